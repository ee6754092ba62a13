-- Question: what sleeps, and what wakes next?
-- Steps that asked for a delay: a sleep before the next step, the wait before a retry, a start in the future. Overdue ones
-- mean that no dispatcher wakes them.

select
  dwarf.flow_name(a.flow_id) as flow
  , dwarf.step_id(a.branch, a.seq) as step_id
  , a.task
  , a.attempt
  , a.wake_at
  , round(extract(epoch from a.wake_at - dwarf.now())::numeric, 1) as wakes_in_seconds
from dwarf.active as a
where a.wake_at is not null
order by a.wake_at
limit 100;
