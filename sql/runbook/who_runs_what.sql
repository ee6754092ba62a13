-- Question: which session runs which steps, since when, and until when?
-- `is_recoverable`: the session has expired or the run is past its deadline, and the next sweep takes the step back; that it
-- stays so for more than a minute means that no engine sweeps. By hand: select * from dwarf.recover_steps(session).

select
  r.session
  , r.engine_id
  , r.flow
  , r.step_id
  , r.workflow
  , r.task
  , r.attempt
  , r.started_at
  , r.running_seconds
  , r.due_at
  , r.is_recoverable
from dwarf.v_running as r
order by r.is_recoverable desc, r.started_at asc
limit 200;
