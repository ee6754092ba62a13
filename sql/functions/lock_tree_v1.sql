-- Lock every row of a tree in the order of the schema: rows that others count down or wake first. The caller holds the root's
-- live row, so that no row can be created meanwhile.
create function dwarf.lock_tree_v1(p_root bigint) returns void
language plpgsql
set enable_seqscan = off
set enable_indexscan = off
set enable_indexonlyscan = off
set enable_bitmapscan = on
set jit = off
as $$
begin
  perform 1
  from (
    select p_root as flow_id union all select l.flow_id from dwarf.live l where l.root_id = p_root and l.root_id <> l.flow_id
  ) t
  join dwarf.active a on a.flow_id = t.flow_id
  order by a.size is null and not a.parked, a.flow_id, a.branch
  for update of a;
end $$;
