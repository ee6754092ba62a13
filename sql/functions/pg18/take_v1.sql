-- Claim the rows named, which the caller has locked. MERGE with a branch that is never true keeps the arrays outside.
create function dwarf.take_v1(p_session int, p_flow bigint[], p_branch bigint[], p_now timestamptz) returns setof dwarf.claimed
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
begin
  return query
  with pick as (select t.flow_id, t.branch from unnest(p_flow, p_branch) t(flow_id, branch))
  , m as (
    merge into dwarf.active s using pick on s.flow_id = any (array[pick.flow_id]) and s.branch = pick.branch
    when matched and s.claimable is not null then update set
      status = 2, owner = p_session, lease = s.lease + 1, claimable = null, started_at = coalesce(s.started_at, p_now)
    , due_at = p_now + (s.budget_ms + 30000) * interval '1 ms'
    when not matched and pick.branch = -1 then insert (flow_id, branch) values (0, 0)
    returning s.*
  )
  select m.flow_id, m.branch, m.seq, m.lease, m.task, m.todo, m.attempt, m.depth, m.created_at, m.due_at, m.parked, m.base_branch, m.base_seq
  , m.delta, m.delta_seq, m.join_branch, m.ordinal, m.size, m.expanded, m.last_ordinal, m.fairness_key, m.priority, m.day
  , l.root_id, l.caller_flow, l.caller_branch, l.token, l.graph_id, l.workflow, m.budget_ms, l.created_at, l.nesting, l.reason, l.baggage
  , case when m.base_seq = 0 then l.input end
  from m cross join lateral (select v.* from dwarf.live v where v.flow_id = m.flow_id offset 0) l;
end $$;
