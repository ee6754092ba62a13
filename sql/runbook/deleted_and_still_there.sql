-- Question: which flows are deleted and not yet removed?
-- Hidden from lists and histories since hidden_at; removed within about a minute of due_at where any engine runs. By hand:
-- select dwarf.reap_v1(100).

select
  dwarf.flow_name(d.flow_id) as flow
  , d.hidden_at
  , d.due_at
  , d.due_at < dwarf.now() - interval '5 minutes' as is_overdue
from dwarf.doomed as d
order by d.due_at, d.flow_id
limit 100;
