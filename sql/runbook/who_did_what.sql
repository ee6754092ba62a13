-- Question: who has resumed, cancelled, terminated, deleted or recovered what, lately?
-- The newest act first. To see those on one flow, add: where a.flow_id = the second and third part of its name, the second
-- times 2^36 plus the third. Acts are forgotten after 90 days, or as audit_days says.

select
  a.at
  , a.actor
  , a.verb
  , case when a.flow_id is not null then dwarf.flow_name(a.flow_id) end as flow
  , a.detail
from dwarf.audit as a
order by a.audit_id desc
limit 200;
