-- Parks: what retried and parked steps left, and what answered them.

-- name: load_parks
select
  p.flow_id
  , p.branch
  , p.kind
  , p.kept
  , p.answer
  , p.child_id
  , p.child_status
  , p.child_error
  , p.result
from dwarf.load_parks_v1($1, $2) as p;
