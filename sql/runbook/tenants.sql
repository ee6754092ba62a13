-- Question: what has each tenant open, due and running?

select
  t.tenant
  , t.flows_open
  , t.steps_due
  , t.steps_running
  , t.steps_interrupted
  , t.oldest_due_at
from dwarf.v_tenants as t
order by t.steps_due desc, t.flows_open desc, t.tenant asc
limit 200;
