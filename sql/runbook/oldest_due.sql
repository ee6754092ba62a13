-- Question: what has been due the longest?
-- The first of each fairness key, oldest first. Steps that sleep, wait for an answer or for a child are not due.

select
  dwarf.flow_name(a.flow_id) as flow
  , dwarf.step_id(a.branch, a.seq) as step_id
  , a.task
  , a.priority
  , a.fairness_key
  , (array['run', 'fold', 'resolve', 'cancel', 'expand'])[a.todo + 1] as todo
  , a.claimable as due_at
  , round(extract(epoch from dwarf.now() - a.claimable)::numeric, 1) as due_seconds
from dwarf.active as a
where a.claimable is not null
order by a.claimable, a.flow_id, a.branch
limit 50;
