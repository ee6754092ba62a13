-- Live branches: claiming, recording, waking, taking back.

-- name: due_bands
select b.priority from dwarf.due_bands_v1($1) as b (priority);

-- name: due_keys
select
  k.fairness_key
  , k.weight
from dwarf.due_keys_v1($1, $2, $3, $4) as k;

-- name: claim
select
  c.flow_id
  , c.branch
  , c.seq
  , c.lease
  , c.task
  , c.todo
  , c.attempt
  , c.depth
  , c.created_at
  , c.due_at
  , c.parked
  , c.base_branch
  , c.base_seq
  , c.delta
  , c.delta_seq
  , c.join_branch
  , c.ordinal
  , c.size
  , c.expanded
  , c.last_ordinal
  , c.fairness_key
  , c.priority
  , c.day
  , c.root_id
  , c.caller_flow
  , c.caller_branch
  , c.token
  , c.graph_id
  , c.workflow
  , c.budget_ms
  , c.flow_created_at
  , c.nesting
  , c.reason
  , c.baggage
  , c.input
from dwarf.claim_v1($1, $2, $3, $4, $5, $6, $7) as c;

-- name: claim_these
select
  c.flow_id
  , c.branch
  , c.seq
  , c.lease
  , c.task
  , c.todo
  , c.attempt
  , c.depth
  , c.created_at
  , c.due_at
  , c.parked
  , c.base_branch
  , c.base_seq
  , c.delta
  , c.delta_seq
  , c.join_branch
  , c.ordinal
  , c.size
  , c.expanded
  , c.last_ordinal
  , c.fairness_key
  , c.priority
  , c.day
  , c.root_id
  , c.caller_flow
  , c.caller_branch
  , c.token
  , c.graph_id
  , c.workflow
  , c.budget_ms
  , c.flow_created_at
  , c.nesting
  , c.reason
  , c.baggage
  , c.input
from dwarf.claim_these_v1($1, $2, $3, $4) as c;

-- name: record_linear
-- A batch of nothing but linear records: the parameters that it leaves out need not travel.
select
  r.state
  , r.missed
from dwarf.record_linear_v1($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13) as r;

-- name: record
select
  r.state
  , r.missed
  , r.woke_flow
  , r.woke_branch
  , r.children
from dwarf.record_v1(
  $1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $21, $22, $23, $24, $25, $26, $27, $28, $29
  , $30, $31, $32, $33, $34, $35, $36, $37, $38, $39, $40, $41, $42, $43, $44, $45, $46, $47, $48, $49, $50, $51, $52, $53, $54, $55, $56
  , $57, $58
) as r;

-- name: wake
select dwarf.wake_v1($1, $2) as woken;

-- name: next_wake
select (
  select a.wake_at from dwarf.active as a
  where a.wake_at is not null
  order by a.wake_at asc
  limit 1
) as wake_at;

-- name: sweep
select
  s.flow_id
  , s.branch
  , s.owner
  , s.why
from dwarf.sweep_v1($1, $2, $3, $4, $5) as s;

-- name: release
select dwarf.release_v1($1, $2, $3, $4, $5, $6) as released;
