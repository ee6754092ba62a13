-- Make sleeping rows claimable whose time has come, earliest first; they queue by the time they were due. Returns how many.
create function dwarf.wake_v1(p_limit int, p_now timestamptz default null) returns int
language plpgsql
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set enable_sort = off
set jit = off
as $$
declare
  v_now timestamptz := coalesce(p_now, dwarf.now());
  v_flow bigint[];
  v_branch bigint[];
begin
  select array_agg(x.flow_id), array_agg(x.branch) into v_flow, v_branch
  from (
    select a.flow_id, a.branch from dwarf.active a
    where a.wake_at is not null and a.wake_at <= v_now
    order by a.wake_at
    limit p_limit
    for update skip locked
  ) x;
  if v_flow is null then
    return 0;
  end if;
  perform dwarf.wake_rows_v1(v_flow, v_branch);
  return cardinality(v_flow);
end $$;
