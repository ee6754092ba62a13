-- A row from which a chain has led on: the row as it was, and the place of the chain's record in its batch.
create type dwarf.chain as (
  place int
, flow_id bigint
, branch bigint
, seq int
, day int
, depth int
, attempt int
, owner int
, ordinal int
, base_seq int
, base_branch bigint
, created_at timestamptz
, started_at timestamptz
, parked boolean
, task text
);
