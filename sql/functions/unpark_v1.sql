-- Drop the parks of steps that have moved on. A step that parks or retries anew writes a new one afterwards.
create function dwarf.unpark_v1(p_flow bigint[], p_branch bigint[]) returns void
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
  with c as materialized (select t.* from unnest(p_flow, p_branch) t(flow_id, branch))
  delete from dwarf.parks p using c where p.flow_id = any (array[c.flow_id]) and p.branch = c.branch;
end $$;
