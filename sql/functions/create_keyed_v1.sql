-- Create one flow under an idempotency key of its workflow, or find the one that was created under it before.
--   created    a new flow
--   existing   the flow that the same input created; where it was removed meanwhile the key is free and a new one is created
--   conflict   the key belongs to a flow of another input (see input_hash_v1)
--   busy       another transaction is creating under this key and did not end within 2 s
-- In a short transaction of its own: others with the same key wait for it.
create function dwarf.create_keyed_v1(
  p_key text
, p_token text
, p_workflow text
, p_graph_id int
, p_task text
, p_input json
, p_priority smallint
, p_budget_ms int
, p_fairness_key text default ''
, p_weight float8 default 1
, p_baggage json default null
, p_tenant text default null
, p_thread_id bigint default null
, p_delete_on_completion boolean default false
, p_start_at timestamptz default null
, p_now timestamptz default null
, out state text
, out flow_id bigint
, out token text
)
language plpgsql
set lock_timeout = '2s'
as $$
#variable_conflict use_column
declare
  v_now timestamptz := coalesce(p_now, dwarf.now());
  v_hash bytea := dwarf.input_hash_v1(p_input);
  v_found record;
begin
  -- Two rounds: one to lose the race for the key, one to read who won it.
  for v_round in 1..2 loop
    select i.flow_id, i.token, i.input_hash into v_found from dwarf.idempotency i where i.workflow = p_workflow and i.key = p_key;
    if found and dwarf.flow_exists_v1(v_found.flow_id) then
      state := case when v_found.input_hash = v_hash then 'existing' else 'conflict' end;
      flow_id := v_found.flow_id;
      token := v_found.token;
      return;
    elsif found then
      delete from dwarf.idempotency i where i.workflow = p_workflow and i.key = p_key and i.flow_id = v_found.flow_id;
    end if;
    declare
      v_constraint text;
    begin
      select c.flow_ids[1] into flow_id
      from dwarf.create_v1(null, array[p_token], array[p_workflow], array[p_graph_id], array[p_task], array[p_input], array[p_priority]
      , array[p_budget_ms], array[p_fairness_key], array[p_weight], array[p_baggage], array[p_tenant], array[p_thread_id]
      , array[p_delete_on_completion], array[p_start_at], v_now) c;
      insert into dwarf.idempotency(workflow, key, flow_id, token, input_hash, created_at)
      values (p_workflow, p_key, flow_id, p_token, v_hash, v_now);
      state := 'created';
      token := p_token;
      return;
    exception
      when unique_violation then
        get stacked diagnostics v_constraint = constraint_name;
        if v_constraint <> 'idempotency_workflow_key_key' then
          raise;
        end if;
      when lock_not_available then
        exit;
    end;
  end loop;
  state := 'busy';
  flow_id := null;
end $$;

-- Look for the flow that was created under an idempotency key, here, and create none: `existing` or `conflict` as above, or
-- `missing`. For a create that asks every shard before it chooses one.
create function dwarf.find_keyed_v1(p_workflow text, p_key text, p_input json, out state text, out flow_id bigint, out token text)
language plpgsql stable
as $$
#variable_conflict use_column
declare
  v_found record;
begin
  select i.flow_id, i.token, i.input_hash into v_found from dwarf.idempotency i where i.workflow = p_workflow and i.key = p_key;
  if not found or not dwarf.flow_exists_v1(v_found.flow_id) then
    state := 'missing';
    return;
  end if;
  state := case when v_found.input_hash = dwarf.input_hash_v1(p_input) then 'existing' else 'conflict' end;
  flow_id := v_found.flow_id;
  token := v_found.token;
end $$;

-- What two inputs have in common that are the same object, however they are written: blanks, the order of members, a member
-- given twice (the last counts) and ways to write a number (1e2, 100; but not 1.0, which is another type) make no difference.
-- This is the one place where it is computed, for creates in SQL and through an engine alike. What jsonb cannot hold is
-- compared byte by byte.
create function dwarf.input_hash_v1(p_input json) returns bytea
language plpgsql immutable
as $$
begin
  return sha256(convert_to(replace(p_input::text, '\u0000', '\ue000\u0001')::jsonb::text, 'UTF8'));
exception
  when data_exception or program_limit_exceeded then
    return sha256(convert_to(p_input::text, 'UTF8'));
end $$;

create function dwarf.flow_exists_v1(p_flow_id bigint) returns boolean
language plpgsql stable
set plan_cache_mode = force_custom_plan
as $$
begin
  return exists (select from dwarf.live l where l.flow_id = p_flow_id)
  or exists (select from dwarf.flows f where f.flow_id = p_flow_id and f.day in (dwarf.day_of_id(p_flow_id), -1));
end $$;
