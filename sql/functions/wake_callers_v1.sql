-- Make the steps claimable that waited for the children just closed: to run again, or, where the child ended cancelled, to
-- take the cancellation in turn (todo 3). A caller that is gone, or no longer waits, is left alone.
create function dwarf.wake_callers_v1(
  p_now timestamptz
, p_flow bigint[]
, p_branch bigint[]
, p_seq int[]
, p_cancelled boolean[]
, out woke_flow bigint[]
, out woke_branch bigint[]
)
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
#variable_conflict use_column
begin
  with c as materialized (select t.* from unnest(p_flow, p_branch, p_seq, p_cancelled) t(flow_id, branch, seq, cancelled))
  , u as (
    update dwarf.active s set status = 1, claimable = p_now, todo = case when c.cancelled then 3 else s.todo end
    from c
    where s.flow_id = any (array[c.flow_id]) and s.branch = c.branch and s.seq = c.seq and s.status = 5
    returning s.flow_id, s.branch
  )
  select array_agg(u.flow_id), array_agg(u.branch) into woke_flow, woke_branch from u;
end $$;
