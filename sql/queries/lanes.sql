-- Lanes: one per connection of a dispatcher; they settle whether an ambiguous commit happened.

-- name: open_lane
select
  l.epoch
  , l.batch
  , l.missed
from dwarf.open_lane_v1($1, $2) as l;

-- name: end_lane_holder
select dwarf.end_lane_holder_v1($1, $2) as ended;

-- name: branch_block
select dwarf.branch_block_v1() as first;
