-- Reads and verbs of clients. What the hot path needs stands elsewhere.

-- name: statuses
select
  s.flow_id
  , s.status
from dwarf.statuses_v1($1) as s;

-- name: outcome
select
  o.flow_id
  , o.root_id
  , o.token
  , o.status
  , o.graph_id
  , o.error
  , o.reason
  , o.final_state
  , o.payload
  , o.park_flow
  , o.park_branch
  , o.park_seq
from dwarf.outcome_v1($1) as o;

-- name: ended
select
  e.flow_id
  , e.status
  , e.error
  , e.reason
  , e.final_state
from dwarf.ended_v1($1, $2) as e;

-- name: find_flows
select
  f.flow_id
  , f.root_id
  , f.thread_id
  , f.token
  , f.status
  , f.graph_id
  , f.name
  , f.workflow
  , f.ended_at
  , f.is_hidden
from dwarf.find_flows_v1($1) as f;

-- name: fingerprint
select
  f.token
  , f.status
  , f.fingerprint
from dwarf.fingerprint_v1($1) as f;

-- name: history
select
  h.flow_id
  , h.branch
  , h.seq
  , h.depth
  , h.attempt
  , h.status
  , h.task
  , h.error
  , h.created_at
  , h.started_at
  , h.updated_at
  , h.engine_id
  , h.parent_branch
  , h.parent_seq
  , h.fan_first
  , h.fan_size
  , h.child_id
from dwarf.history_v1($1) as h;

-- name: replay
select
  r.branch
  , r.seq
  , r.status
  , r.via
  , r.task
  , r.changes
  , r.parent_branch
  , r.parent_seq
  , r.ordinal
  , r.fan_first
  , r.fan_size
  , r.depth
  , r.attempt
  , r.child_id
  , r.kept
from dwarf.replay_v1($1) as r;

-- name: origin
select
  o.graph_id
  , o.input
  , o.overrides
from dwarf.origin_v1($1) as o;

-- name: callers
select
  c.flow_id
  , c.day
  , c.graph_id
  , c.caller_branch
  , c.caller_seq
  , c.input
  , c.overrides
from dwarf.callers_v1($1) as c;

-- name: forked
select distinct o.origin_root_id
from dwarf.forks as o
where o.origin_root_id = any($1);

-- name: child_of
select h.child_id
from dwarf.history as h
where
  h.flow_id = $1
  and h.branch = $2
  and h.seq = $3
  and h.day in (dwarf.day_of_id($1), -1)
  and h.child_id is not null;

-- name: fork
select
  f.state
  , f.flow_ids
from dwarf.fork_v1(
  $1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $21, $22, $23, $24, $25, $26, $27, $28
  , $29, $30, $31, $32, $33, $34, $35, $36, $37, $38, $39, $40, $41
) as f;

-- name: writes
select
  w.changes
  , w.payload
from dwarf.writes_v1($1, $2, $3) as w;

-- name: parked
select
  p.graph_id
  , p.day
  , p.base_branch
  , p.base_seq
  , p.delta_seq
  , p.delta
  , p.kept
  , p.is_fan_in
from dwarf.parked_v1($1, $2, $3) as p;

-- name: find_workflows
-- The graphs that engines have registered under these URLs.
select
  w.url
  , w.graph_id
  , g.entry_task
from dwarf.workflows as w
inner join dwarf.graphs as g on w.graph_id = g.graph_id
where w.url = any($1);

-- name: list_open
select
  f.flow_id
  , f.ended_at
  , f.is_place
  , f.token
  , f.thread_id
  , f.thread_token
  , f.workflow
  , f.name
  , f.status
  , f.task
  , f.error
  , f.reason
  , f.created_at
  , f.started_at
  , f.updated_at
  , f.priority
  , f.fairness_key
  , f.is_child
from dwarf.list_open_v1(
  p_limit => $1
  , p_before => $2
  , p_status => $3
  , p_workflow => $4
  , p_name => $5
  , p_thread_id => $6
  , p_task => $7
  , p_fairness_key => $8
  , p_priority => $9
  , p_older_than => $10
  , p_newer_than => $11
  , p_with_children => $12
  , p_search => $13
  , p_scan => $14
) as f;

-- name: list_closed
select
  f.flow_id
  , f.ended_at
  , f.is_place
  , f.token
  , f.thread_id
  , f.thread_token
  , f.workflow
  , f.name
  , f.status
  , f.task
  , f.error
  , f.reason
  , f.created_at
  , f.started_at
  , f.updated_at
  , f.priority
  , f.fairness_key
  , f.is_child
from dwarf.list_closed_v1(
  p_limit => $1
  , p_before_at => $2
  , p_before_id => $3
  , p_status => $4
  , p_workflow => $5
  , p_name => $6
  , p_thread_id => $7
  , p_task => $8
  , p_fairness_key => $9
  , p_priority => $10
  , p_older_than => $11
  , p_newer_than => $12
  , p_with_children => $13
  , p_search => $14
  , p_scan => $15
) as f;

-- name: delete_flow
select dwarf.delete_v1($1, $2, $3, $4) as state;

-- name: database_now
select dwarf.now() as now;

-- name: setting
select s.value from dwarf.settings as s
where s.name = $1;

-- name: shard_gauges
select
  g.flows_open
  , g.steps_pending
  , g.steps_running
  , g.oldest_pending_seconds
  , g.dispatchers
  , g.version
from dwarf.shard_gauges_v1() as g;
