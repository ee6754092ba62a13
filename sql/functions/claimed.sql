-- What a claim returns of each row: the row as claimed, and what its flow adds. input is set where the step stands on it.
create type dwarf.claimed as (
  flow_id bigint
, branch bigint
, seq int
, lease int
, task text
, todo smallint
, attempt int
, depth int
, created_at timestamptz
, due_at timestamptz
, parked boolean
, base_branch bigint
, base_seq int
, delta json
, delta_seq int
, join_branch bigint
, ordinal int
, size int
, expanded int
, last_ordinal int
, fairness_key text
, priority smallint
, day int
, root_id bigint
, caller_flow bigint
, caller_branch bigint
, token text
, graph_id int
, workflow text
, budget_ms int
, flow_created_at timestamptz
, nesting smallint
, reason text
, baggage json
, input json
);
