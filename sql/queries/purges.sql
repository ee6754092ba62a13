-- Purges: which flows go, and that they do; and flows that go on where others have ended.

-- name: stopped
select
  s.flow_id
  , s.parked_at
  , s.is_place
from dwarf.stopped_v1(
  p_limit => $1
  , p_after => $2
  , p_status => $3
  , p_workflow => $4
  , p_name => $5
  , p_thread_id => $6
  , p_task => $7
  , p_fairness_key => $8
  , p_priority => $9
  , p_older_than => $10
  , p_newer_than => $11
  , p_search => $12
  , p_scan => $13
) as s;

-- name: delete_closed
select dwarf.delete_closed_v1($1, $2, $3) as deleted;

-- name: delete_interrupted
select dwarf.delete_v1($1, $2, $3, $4, $5) as state;

-- name: note_drop
select dwarf.audit_v1('drop', null, $1, json_build_object('before', $2::text)) is null as done;

-- name: continue_flow
select
  c.state
  , c.flow_id
  , c.token
from dwarf.continue_v1($1, $2, $3, $4, $5, $6) as c;
