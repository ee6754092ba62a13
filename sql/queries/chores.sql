-- Chores: what a shard needs done from time to time, whoever does it.

-- name: ensure_partitions
select dwarf.ensure_partitions($1, $2) as made;

-- name: reap
select dwarf.reap_v1($1, $2) as removed;

-- name: expired
select e.flow_id
from dwarf.expired_v1($1, $2, $3, $4) as e;

-- name: expire
select dwarf.expire_v1($1, $2, $3) as done;

-- name: forget_sessions
select dwarf.forget_sessions_v1($1, $2) as forgotten;

-- name: forget_audit
select dwarf.forget_audit_v1(coalesce($3, dwarf.now()) - $1 * interval '1 ms', $2) as forgotten;

-- name: today
select dwarf.day_of(coalesce($1, dwarf.now())) as today;

-- name: refresh_gauges
select dwarf.refresh_gauges_v1($1, $2, $3) as done;

-- name: gauges
select
  g.name
  , g.value
from dwarf.gauges as g
order by g.name;
