-- Write what retried and parked steps leave behind, and start the children that parked steps wait for: park and child are
-- one commit. kind of a park: 0 writes kept by a retry, 1 interrupt, 2 child. Arrays are those of record_v1; only applied
-- records count. Returns the children's flow ids in the order of k_*, null where the record was not applied.
create function dwarf.park_v1(
  p_now timestamptz
, p_applied int[]
, s_flow bigint[]
, s_branch bigint[]
, s_kind smallint[]
, s_status smallint[]
, s_kept json[]
, s_payload json[]
, k_rec int[]
, k_token text[]
, k_graph_id int[]
, k_workflow text[]
, k_task text[]
, k_input json[]
)
returns bigint[]
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
  v_ids bigint[];
  v_child bigint[];
begin
  if k_rec is not null then
    v_ids := array(
      select case when k.rec = any (p_applied) then (dwarf.hour_of(p_now)::bigint << 36) | (nextval('dwarf.flow_seq') & 68719476735) end
      from unnest(k_rec) with ordinality k(rec, ord) order by k.ord
    );
    with k as materialized (
      select t.*, p.flow_id as caller_flow, p.branch as caller_branch, p.seq as caller_seq, p.depth, p.half
      , v.root_id, v.nesting, v.priority, v.budget_ms, v.weight, v.fairness_key, v.tenant, v.path, v.baggage
      from unnest(v_ids, k_rec, k_token, k_graph_id, k_workflow, k_task, k_input) t(id, rec, token, graph_id, workflow, task, input)
      cross join lateral (
        select a.* from dwarf.active a where a.flow_id = s_flow[t.rec] and a.branch = s_branch[t.rec] offset 0
      ) p
      cross join lateral (select x.* from dwarf.live x where x.flow_id = p.flow_id offset 0) v
      where t.id is not null
    ), l as (
      insert into dwarf.live(flow_id, root_id, nesting, priority, graph_id, budget_ms, day, weight, created_at, thread_id, caller_flow
      , caller_branch, caller_seq, token, workflow, fairness_key, tenant, path, baggage, input)
      select k.id, k.root_id, k.nesting + 1, k.priority, k.graph_id, k.budget_ms, dwarf.day_of(p_now), k.weight, p_now, k.id, k.caller_flow
      , k.caller_branch, k.caller_seq, k.token, k.workflow, k.fairness_key, k.tenant, k.path || k.caller_flow, k.baggage, k.input
      from k
    )
    insert into dwarf.active(flow_id, branch, seq, depth, status, priority, half, budget_ms, day, weight, created_at, claimable, task
    , fairness_key)
    select k.id, 0, 1, k.depth + 1, 1, k.priority, k.half, k.budget_ms, dwarf.day_of(p_now), k.weight, p_now, p_now, k.task, k.fairness_key
    from k;
    v_child := array_fill(null::bigint, array[cardinality(s_flow)]);
    for v_place in 1 .. cardinality(k_rec) loop
      v_child[k_rec[v_place]] := v_ids[v_place];
    end loop;
  end if;
  insert into dwarf.parks(flow_id, branch, seq, kind, root_id, parked_at, child_id, child_day, path, kept, payload)
  select p.flow_id, p.branch, p.seq, case when s_kind[r.rec] = 5 then 0 when s_status[r.rec] = 4 then 1 else 2 end, v.root_id, p_now
  , v_child[r.rec], case when v_child[r.rec] is not null then dwarf.day_of(p_now) end, v.path || p.flow_id, s_kept[r.rec], s_payload[r.rec]
  from unnest(p_applied) r(rec)
  cross join lateral (
    select a.* from dwarf.active a where a.flow_id = s_flow[r.rec] and a.branch = s_branch[r.rec] offset 0
  ) p
  cross join lateral (select x.root_id, x.path from dwarf.live x where x.flow_id = p.flow_id offset 0) v
  where s_kind[r.rec] = 4 or s_kind[r.rec] = 5 and s_kept[r.rec] is not null
  on conflict (flow_id, branch) do update set
    seq = excluded.seq, kind = excluded.kind, parked_at = excluded.parked_at, child_id = excluded.child_id
  , child_day = excluded.child_day, kept = excluded.kept, payload = excluded.payload, answer = null;
  return v_ids;
end $$;
