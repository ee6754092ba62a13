-- Claim due rows of one half and one band: for each key at most its quota, oldest first. Rows that others hold are skipped.
-- Without a half, of both alike: for a dispatcher that is alone on the shard, so that a key's steps start in the order of their
-- age. Which rows are the oldest of two halves is read without locks; then they are locked, and those taken meanwhile left out.
-- p_since: rows of the key at this place that wait for longer are left out. While an old snapshot is held, whatever was
-- claimed since then is still in the index, and a claim without it walks through all of that.
create function dwarf.claim_v1(
  p_session int
, p_half smallint
, p_priority smallint
, p_keys text[]
, p_quotas int[]
, p_since timestamptz[] default null
, p_now timestamptz default null
) returns setof dwarf.claimed
language plpgsql rows 200
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set enable_bitmapscan = off
set enable_material = off
set enable_memoize = off
set enable_sort = off
set jit = off
as $$
#variable_conflict use_column
declare
  v_flow bigint[];
  v_branch bigint[];
begin
  if p_half is null then
    select array_agg(x.flow_id), array_agg(x.branch) into v_flow, v_branch
    from unnest(p_keys, p_quotas, p_since) q(fairness_key, quota, since)
    cross join lateral (
      select u.flow_id, u.branch
      from (
        (
          select a.claimable, a.flow_id, a.branch from dwarf.active a
          where a.claimable is not null and a.half = 0 and a.priority = p_priority and a.fairness_key = q.fairness_key
          and a.claimable >= coalesce(q.since, '-infinity')
          order by a.claimable, a.flow_id, a.branch limit q.quota
        )
        union all
        (
          select a.claimable, a.flow_id, a.branch from dwarf.active a
          where a.claimable is not null and a.half = 1 and a.priority = p_priority and a.fairness_key = q.fairness_key
          and a.claimable >= coalesce(q.since, '-infinity')
          order by a.claimable, a.flow_id, a.branch limit q.quota
        )
      ) u
      order by u.claimable, u.flow_id, u.branch
      limit q.quota
    ) x;
    if v_flow is not null then
      return query select * from dwarf.claim_these_v1(p_session, v_flow, v_branch, p_now);
    end if;
    return;
  end if;
  select array_agg(x.flow_id), array_agg(x.branch) into v_flow, v_branch
  from unnest(p_keys, p_quotas, p_since) q(fairness_key, quota, since)
  cross join lateral (
    select a.flow_id, a.branch
    from dwarf.active a
    where a.claimable is not null and a.half = p_half and a.priority = p_priority and a.fairness_key = q.fairness_key
      and a.claimable >= coalesce(q.since, '-infinity')
    order by a.claimable, a.flow_id, a.branch
    limit q.quota
    for update skip locked
  ) x;
  if v_flow is not null then
    return query select * from dwarf.take_v1(p_session, v_flow, v_branch, coalesce(p_now, dwarf.now()));
  end if;
end $$;

-- Claim the rows named, where they are claimable: what a record has just made so. Others are skipped. That they are claimable is
-- said such that an index of what waits cannot answer it (see sql/README.md).
create function dwarf.claim_these_v1(p_session int, p_flow bigint[], p_branch bigint[], p_now timestamptz default null)
returns setof dwarf.claimed
language plpgsql rows 200
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set enable_bitmapscan = off
set enable_material = off
set enable_memoize = off
set jit = off
as $$
#variable_conflict use_column
declare
  v_flow bigint[];
  v_branch bigint[];
begin
  select array_agg(x.flow_id), array_agg(x.branch) into v_flow, v_branch
  from unnest(p_flow, p_branch) q(flow_id, branch)
  cross join lateral (
    select a.flow_id, a.branch
    from dwarf.active a
    where a.flow_id = q.flow_id and a.branch = q.branch and coalesce(a.claimable, 'infinity') < 'infinity'
    for update skip locked
  ) x;
  if v_flow is not null then
    return query select * from dwarf.take_v1(p_session, v_flow, v_branch, coalesce(p_now, dwarf.now()));
  end if;
end $$;
