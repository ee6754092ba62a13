-- Return to pending what nobody runs any more: rows whose owner's session has expired, and rows past their own deadline.
-- Only a judge that has renewed without a gap for a whole session life expires others; an engine that was started again under the
-- same engine id takes over from its own expired sessions at once; anybody may act on a deadline. A
-- session that is missing counts as last seen when it was first found missing. The lease stays: a success that was already
-- under way may still be recorded until the row is claimed anew. Returns the rows, at most p_limit.
create function dwarf.sweep_v1(
  p_judge int
, p_life_ms int
, p_by_session boolean
, p_limit int
, p_now timestamptz default null
) returns table (flow_id bigint, branch bigint, owner int, why text)
language plpgsql
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set jit = off
as $$
#variable_conflict use_column
declare
  v_now timestamptz := coalesce(p_now, dwarf.now());
  v_life interval := p_life_ms * interval '1 ms';
  v_healthy boolean;
  v_dead int[];
  v_flow bigint[];
  v_branch bigint[];
  v_owner int[];
  v_why text[];
begin
  select p.expires_at > v_now and p.steady_since <= v_now - v_life into v_healthy from dwarf.peers p where p.session = p_judge;
  if coalesce(v_healthy, false) and p_by_session then
    insert into dwarf.peers(session, engine_id, started_at, renewed_at, expires_at, steady_since, missing_since)
    select o.owner, 0, v_now, v_now, v_now + v_life, v_now, v_now
    from (
      with recursive owners as (
        (select a.owner from dwarf.active a where a.owner is not null order by a.owner limit 1)
        union all
        select (select a.owner from dwarf.active a where a.owner > w.owner order by a.owner limit 1) from owners w where w.owner is not null
      )
      select w.owner from owners w where w.owner is not null
    ) o
    where not exists (select from dwarf.peers p where p.session = o.owner)
    on conflict (session) do nothing;
    v_dead := array(select p.session from dwarf.peers p where p.expires_at <= v_now);
  elsif p_by_session then
    v_dead := array(
      select p.session from dwarf.peers p
      join dwarf.peers j on j.session = p_judge and j.engine_id = p.engine_id
      where p.session <> p_judge and p.expires_at <= v_now
    );
  end if;
  select array_agg(x.flow_id), array_agg(x.branch), array_agg(x.owner), array_agg(x.why) into v_flow, v_branch, v_owner, v_why
  from (
    select a.flow_id, a.branch, a.owner, case when a.owner = any (v_dead) then 'session' else 'deadline' end as why
    from dwarf.active a
    where a.owner is not null and a.status = 2 and (a.owner = any (v_dead) or a.due_at <= v_now)
    order by a.size is null and a.status <> 5, a.flow_id, a.branch
    limit p_limit
    for update skip locked
  ) x;
  if v_flow is not null then
    perform dwarf.release_rows_v1(v_flow, v_branch);
    return query select * from unnest(v_flow, v_branch, v_owner, v_why);
  end if;
end $$;

-- Release rows that this session holds but nobody of it runs: after the death of an executor, or at a hand-over.
-- Only the key finds a row, never the index of owners (see sql/README.md).
create function dwarf.release_v1(
  p_session int
, p_flow bigint[]
, p_branch bigint[]
, p_lease int[]
, p_blamed boolean[]
, p_now timestamptz default null
) returns int
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
declare
  v_released int;
begin
  perform 1
  from unnest(p_flow, p_branch) t(flow_id, branch)
  join dwarf.active a on a.flow_id = any (array[t.flow_id]) and a.branch = t.branch
  order by a.size is null and a.status <> 5, a.flow_id, a.branch
  for update of a;
  with c as materialized (select t.* from unnest(p_flow, p_branch, p_lease, p_blamed) t(flow_id, branch, lease, blamed))
  update dwarf.active s set status = 1, owner = null, claimable = s.created_at, started_at = null, due_at = null
  , deaths = s.deaths + case when c.blamed then 1 else 0 end
  from c
  where s.flow_id = any (array[c.flow_id]) and s.branch = c.branch and s.lease = c.lease and coalesce(s.owner, 0) = p_session and s.status = 2;
  get diagnostics v_released = row_count;
  return v_released;
end $$;
