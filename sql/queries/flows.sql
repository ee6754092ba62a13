-- Flows: their creation, their graphs, how they ended.

-- name: create_flows
select
  c.flow_ids
  , c.created_at
from dwarf.create_v1($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16) as c;

-- name: put_graphs
-- One row per hash, in the order of the arrays; a graph that is there already keeps its number.
select g.graph_id
from dwarf.put_graphs_v1($1, $2, $3, $4, $5) with ordinality as g (graph_id, place)
order by g.place;

-- name: terminate_flow
select dwarf.terminate_v1($1, $2, $3, $4) as done;

-- name: cancel_flow
select dwarf.cancel_v1($1, $2, $3, $4) as done;

-- name: resume_flow
select dwarf.resume_v1($1, $2, $3, $4) as done;

-- name: create_keyed
select
  c.state
  , c.flow_id
  , c.token
from dwarf.create_keyed_v1($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16) as c;

-- name: find_keyed
select
  f.state
  , f.flow_id
  , f.token
from dwarf.find_keyed_v1($1, $2, $3) as f;
