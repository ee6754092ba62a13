-- Create a flow that goes on where a completed one has ended: with its graph, options, baggage, tenant and thread, and with what
-- the caller has made of its final state. It is not deleted on completion, and nothing of the completed one is changed.
--   created     a new flow
--   existing, conflict, busy   as create_keyed_v1, where p_key is given
--   deleted     nothing was done: the completed flow is deleted, though not yet removed
--   missing     nothing was done: there is no completed root of this id
create function dwarf.continue_v1(
  p_flow_id bigint
, p_token text
, p_input json
, p_key text default null
, p_now timestamptz default null
, p_actor text default null
, out state text
, out flow_id bigint
, out token text
)
language plpgsql
set plan_cache_mode = force_custom_plan
set enable_seqscan = off
set jit = off
as $$
#variable_conflict use_column
declare
  v_now timestamptz := coalesce(p_now, dwarf.now());
  v_flow record;
begin
  -- Held until the end: whoever removes or moves the tree comes before or after.
  select f.workflow, f.graph_id, g.entry_task, f.priority, f.budget_ms, f.fairness_key, f.weight, f.baggage, f.tenant, f.thread_id into v_flow
  from dwarf.flows f
  join dwarf.graphs g on g.graph_id = f.graph_id
  where f.flow_id = p_flow_id and f.day in (dwarf.day_of_id(p_flow_id), -1) and f.root_id = f.flow_id and f.status = 6
  for key share of f;
  if not found then
    state := 'missing';
    return;
  elsif exists (select from dwarf.doomed d where d.flow_id = p_flow_id) then
    state := 'deleted';
    return;
  end if;
  if p_key is not null then
    select k.state, k.flow_id, k.token into state, flow_id, token
    from dwarf.create_keyed_v1(p_key, p_token, v_flow.workflow, v_flow.graph_id, v_flow.entry_task, p_input, v_flow.priority, v_flow.budget_ms
    , v_flow.fairness_key, v_flow.weight, v_flow.baggage, v_flow.tenant, v_flow.thread_id, p_now => v_now) k;
  else
    select 'created', c.flow_ids[1], p_token into state, flow_id, token
    from dwarf.create_v1(null, array[p_token], array[v_flow.workflow], array[v_flow.graph_id], array[v_flow.entry_task], array[p_input]
    , array[v_flow.priority], array[v_flow.budget_ms], array[v_flow.fairness_key], array[v_flow.weight], array[v_flow.baggage]
    , array[v_flow.tenant], array[v_flow.thread_id], p_now => v_now) c;
  end if;
  if state = 'created' then
    perform dwarf.audit_v1('continue', flow_id, p_actor, json_build_object('origin', p_flow_id), v_now);
  end if;
end $$;

comment on function dwarf.continue_v1 is 'Create a flow that goes on where a completed one has ended.';
