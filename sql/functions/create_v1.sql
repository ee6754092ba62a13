-- Insert n flows with their entry steps. With p_session the steps are born claimed by that session, without it they wait
-- for a claim, or for p_start_at. Null arrays stand for defaults. Returns the ids in the order of the arrays, and the time.
create function dwarf.create_v1(
  p_session int
, p_token text[]
, p_workflow text[]
, p_graph_id int[]
, p_task text[]
, p_input json[]
, p_priority smallint[]
, p_budget_ms int[]
, p_fairness_key text[] default null
, p_weight float8[] default null
, p_baggage json[] default null
, p_tenant text[] default null
, p_thread_id bigint[] default null
, p_delete_on_completion boolean[] default null
, p_start_at timestamptz[] default null
, p_now timestamptz default null
, out flow_ids bigint[]
, out created_at timestamptz
)
language plpgsql
set plan_cache_mode = force_generic_plan
set jit = off
as $$
declare
  v_hour bigint;
  v_day int;
begin
  created_at := coalesce(p_now, dwarf.now());
  v_hour := dwarf.hour_of(created_at);
  v_day := dwarf.day_of(created_at);
  with r as materialized (
    select (v_hour << 36) | (nextval('dwarf.flow_seq') & 68719476735) as id, t.*
    from unnest(p_token, p_workflow, p_graph_id, p_task, p_input, p_priority, p_budget_ms, p_fairness_key, p_weight, p_baggage, p_tenant
      , p_thread_id, p_delete_on_completion, p_start_at)
      with ordinality t(token, workflow, graph_id, task, input, priority, budget_ms, fairness_key, weight, baggage, tenant
      , thread_id, delete_on_completion, start_at, ord)
  ), l as (
    insert into dwarf.live(flow_id, root_id, priority, delete_on_completion, graph_id, budget_ms, day, weight, created_at, thread_id
      , token, workflow, fairness_key, tenant, baggage, input)
    select r.id, r.id, r.priority, coalesce(r.delete_on_completion, false), r.graph_id, r.budget_ms, v_day, coalesce(r.weight, 1)
      , create_v1.created_at, coalesce(r.thread_id, r.id), r.token, r.workflow, coalesce(r.fairness_key, ''), r.tenant, r.baggage, r.input
    from r
  ), a as (
    insert into dwarf.active(flow_id, branch, seq, lease, owner, depth, status, priority, half, budget_ms, day, weight, created_at
      , claimable, wake_at, started_at, due_at, task, fairness_key)
    select r.id, 0, 1
      , case when p_session is null then 0 else 1 end
      , p_session, 1
      , case when p_session is null then 1 else 2 end
      , r.priority, hashint8(r.id) & 1, r.budget_ms, v_day, coalesce(r.weight, 1), create_v1.created_at
      , case when p_session is null and (r.start_at is null or r.start_at <= create_v1.created_at) then create_v1.created_at end
      , case when r.start_at > create_v1.created_at then r.start_at end
      , case when p_session is not null then create_v1.created_at end
      , case when p_session is not null then create_v1.created_at + (r.budget_ms + 30000) * interval '1 ms' end
      , r.task, coalesce(r.fairness_key, '')
    from r
  )
  select array_agg(r.id order by r.ord) into flow_ids from r;
end $$;
