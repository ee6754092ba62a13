-- Make the rows named claimable as of the time they were to wake. They are locked by the caller.
-- Only the key finds them, never the index of all that sleep (see sql/README.md).
create function dwarf.wake_rows_v1(p_flow bigint[], p_branch bigint[]) returns void
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
  update dwarf.active s set claimable = s.wake_at, wake_at = null
  from c
  where s.flow_id = any (array[c.flow_id]) and s.branch = c.branch and coalesce(s.wake_at, 'infinity') < 'infinity' and s.status = 1;
end $$;
