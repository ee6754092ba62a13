-- Lock every row of a tree in the order of the schema: the live rows of the children, then the branches that others count
-- down or wake (joining, or waiting for a child), then the others. The caller holds the root's live row, so that no row can be
-- created meanwhile, and none can begin to join or to wait for a child.
create function dwarf.lock_tree_v1(p_root bigint) returns void
language plpgsql
set enable_seqscan = off
set enable_indexscan = off
set enable_indexonlyscan = off
set enable_bitmapscan = on
set jit = off
as $$
begin
  perform 1 from dwarf.live l where l.root_id = p_root and l.root_id <> l.flow_id order by l.flow_id for update;
  perform 1
  from (
    select p_root as flow_id union all select l.flow_id from dwarf.live l where l.root_id = p_root and l.root_id <> l.flow_id
  ) t
  join dwarf.active a on a.flow_id = t.flow_id
  order by a.size is null and a.status <> 5, a.flow_id, a.branch
  for update of a;
end $$;
