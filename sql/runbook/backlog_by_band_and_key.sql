-- Question: how much is due, and whose is it?
-- Priority 1 is served first; within a band the keys share by weight. One key with everything and others with little is
-- normal under load: the others wait no longer for it. Everything old in the worst bands means that there are too few slots.

select
  b.priority
  , b.fairness_key
  , b.pending
  , b.weight
  , b.oldest_due_at
  , b.oldest_due_seconds
from dwarf.v_backlog as b
order by b.priority, b.oldest_due_at
limit 200;
