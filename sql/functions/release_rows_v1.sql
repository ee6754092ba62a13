-- Return the rows named, which the caller has locked, to pending under their old lease, and tell their owners.
create function dwarf.release_rows_v1(p_flow bigint[], p_branch bigint[]) returns void
language plpgsql
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set enable_material = off
set enable_memoize = off
set jit = off
as $$
begin
  insert into dwarf.signals(session, flow_id, branch, seq, lease, kind)
  select a.owner, a.flow_id, a.branch, a.seq, a.lease, 3
  from unnest(p_flow, p_branch) c(flow_id, branch)
  cross join lateral (
    select x.* from dwarf.active x where x.flow_id = c.flow_id and x.branch = c.branch offset 0
  ) a
  where a.owner is not null;
  with c as materialized (select t.* from unnest(p_flow, p_branch) t(flow_id, branch))
  update dwarf.active s set status = 1, owner = null, claimable = s.created_at, started_at = null, due_at = null
  from c
  where s.flow_id = any (array[c.flow_id]) and s.branch = c.branch;
end $$;
