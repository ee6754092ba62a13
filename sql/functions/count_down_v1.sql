-- Count arrivals down at their joining rows, grouped: of several updates of one row in one statement only one would stay.
-- A joining row whose cohort is complete becomes claimable, to be folded (todo 1) or, with a failed or cancelled member,
-- resolved (todo 2); the sleep of the last arriver delays it. Only look-ups by key reach the table (see sql/README.md). A joining row
-- that is missing is an error: the arrival would be lost.
create function dwarf.count_down_v1(
  p_now timestamptz
, p_flow bigint[]
, p_branch bigint[]
, p_ordinal int[]
, p_failed boolean[]
, p_depth int[]
, p_delay_ms bigint[]
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
declare
  v_groups int;
  v_counted int;
begin
  with g as materialized (
    select t.flow_id, t.branch, count(*)::int as arrived, (count(*) filter (where t.failed))::int as failed, max(t.depth) + 1 as depth
    , coalesce(max(t.ordinal) filter (where t.failed), max(t.ordinal)) as last_ordinal, max(t.delay_ms) as delay_ms
    from unnest(p_flow, p_branch, p_ordinal, p_failed, p_depth, p_delay_ms) t(flow_id, branch, ordinal, failed, depth, delay_ms)
    group by 1, 2
  ), u as (
    update dwarf.active s set
      arrived = s.arrived + g.arrived
    , failed = s.failed + g.failed
    , depth = greatest(s.depth, g.depth)
    , last_ordinal = g.last_ordinal
    , status = case when s.status = 3 and s.arrived + g.arrived = s.size then 1 else s.status end
    , todo = case when s.status = 3 and s.arrived + g.arrived = s.size then case when s.failed + g.failed > 0 then 2 else 1 end else s.todo end
    , claimable = case when s.status = 3 and s.arrived + g.arrived = s.size and g.delay_ms is null then p_now else s.claimable end
    , wake_at = case when s.status = 3 and s.arrived + g.arrived = s.size and g.delay_ms is not null
        then p_now + g.delay_ms * interval '1 ms' else s.wake_at end
    from g
    where s.flow_id = any (array[g.flow_id]) and s.branch = g.branch
    returning s.flow_id, s.branch, s.claimable is not null and s.todo in (1, 2) as woke
  )
  select (select count(*) from g), count(*), array_agg(u.flow_id) filter (where u.woke), array_agg(u.branch) filter (where u.woke)
  into v_groups, v_counted, woke_flow, woke_branch
  from u;
  if v_groups <> v_counted then
    raise exception using errcode = 'DW901', message = format('arrivals at %s joining rows, but only %s are there', v_groups, v_counted);
  end if;
end $$;
