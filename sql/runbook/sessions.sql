-- Question: which replicas are there, and are they well?
-- alive: renewed in time. expired: its steps are taken back by the next sweep, and it is forgotten once it holds nothing.
-- missing: steps name it, but it never registered, or its row was removed; it counts as seen when it was first missed.
-- A healthy shard has two dispatchers, or one where there is one replica.

select
  s.session
  , s.engine_id
  , s.state
  , s.is_dispatcher
  , s.started_at
  , s.renewed_seconds_ago
  , s.expires_in_seconds
  , s.steps_running
  , s.oldest_started_at
  , s.lanes
  , s.batches
from dwarf.v_sessions as s
order by s.state, s.session;
