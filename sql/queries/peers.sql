-- Sessions: one per process start of a replica, renewed while it lives.

-- name: start_session
select dwarf.start_session_v1($1, $2, $3) as session;

-- name: renew_session
select dwarf.renew_session_v1($1, $2, $3, $4) as known;

-- name: end_session
select dwarf.end_session_v1($1, $2);

-- name: take_signals
select
  s.flow_id
  , s.branch
  , s.seq
  , s.lease
  , s.kind
from dwarf.take_signals_v1($1, $2) as s;
