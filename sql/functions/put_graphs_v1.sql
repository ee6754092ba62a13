-- Store graphs, each once per hash, and return their numbers in the order of the arrays. In order of the hashes, so that two
-- that store the same graphs do not wait for one another crosswise.
create function dwarf.put_graphs_v1(
  p_hash bytea[]
, p_name text[]
, p_entry_task text[]
, p_definition json[]
, p_now timestamptz default null
) returns setof int
language plpgsql rows 10
as $$
begin
  insert into dwarf.graphs(hash, name, entry_task, definition, created_at)
  select distinct on (t.hash) t.hash, t.name, t.entry_task, t.definition, coalesce(p_now, dwarf.now())
  from unnest(p_hash, p_name, p_entry_task, p_definition) t(hash, name, entry_task, definition)
  where not exists (select from dwarf.graphs g where g.hash = t.hash)
  order by t.hash
  on conflict (hash) do nothing;
  return query
  select g.graph_id
  from unnest(p_hash) with ordinality t(hash, ord) join dwarf.graphs g on g.hash = t.hash
  order by t.ord;
end $$;
