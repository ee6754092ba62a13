-- Create a flow of a workflow that an engine has registered here, in the caller's own transaction: it starts once that commits.
-- Returns the flow's key. Options, an object, by the names they have on the wire or in Python: priority, fairnessKey,
-- fairnessWeight, timeBudget (seconds, or a text such as 2m), baggage, threadKey, deleteOnCompletion, idempotencyKey, startAt.
-- DW400 names what is wrong; DW404: workflow or thread unknown; DW409: the idempotency key belongs to another input, or is
-- being used by another transaction.
create function dwarf.create_flow(p_workflow text, p_state json default null, p_options json default null, p_now timestamptz default null)
returns text
language plpgsql
as $$
declare
  v_state json := dwarf.check_document_v1(p_state, 'state');
  v_option record := dwarf.read_options_v1(p_options);
  v_token text := left(encode(sha256(uuid_send(gen_random_uuid())), 'hex'), 16);
  v_graph record;
  v_made record;
begin
  if coalesce(p_workflow, '') = '' then
    raise exception using errcode = 'DW400', message = 'the workflow must not be empty';
  end if;
  select g.graph_id, g.entry_task into v_graph
  from dwarf.workflows w join dwarf.graphs g on g.graph_id = w.graph_id
  where w.url = p_workflow;
  if not found then
    raise exception using errcode = 'DW404'
    , message = format('no workflow %s is registered here; an engine or service that has it registers it when it starts', quote_literal(left(p_workflow, 80)));
  end if;
  if v_option.idempotency_key is not null then
    select k.state, k.flow_id, k.token into v_made
    from dwarf.create_keyed_v1(v_option.idempotency_key, v_token, p_workflow, v_graph.graph_id, v_graph.entry_task, v_state, v_option.priority, v_option.budget_ms, v_option.fairness_key, v_option.weight
    , v_option.baggage, null, v_option.thread_id, v_option.delete_on_completion, v_option.start_at, p_now) k;
    if v_made.state in ('conflict', 'busy') then
      raise exception using errcode = 'DW409'
      , message = format('idempotency key %s of workflow %s %s', quote_literal(left(v_option.idempotency_key, 80)), quote_literal(left(p_workflow, 80))
      , case v_made.state when 'conflict' then 'was used with another state' else 'is in progress in another transaction' end);
    end if;
  else
    select 'created' as state, c.flow_ids[1] as flow_id, v_token as token into v_made
    from dwarf.create_v1(null, array[v_token], array[p_workflow], array[v_graph.graph_id], array[v_graph.entry_task], array[v_state]
    , array[v_option.priority], array[v_option.budget_ms], array[v_option.fairness_key], array[v_option.weight], array[v_option.baggage]
    , null, array[v_option.thread_id], array[v_option.delete_on_completion], array[v_option.start_at], p_now) c;
  end if;
  return dwarf.flow_key(dwarf.setting_v1('shard_index', 1)::int, v_made.flow_id, v_made.token);
end $$;

-- Read and check the options of create_flow. DW400 names option, value and rule.
create function dwarf.read_options_v1(
  p_options json
, out priority smallint
, out budget_ms int
, out fairness_key text
, out weight float8
, out baggage json
, out thread_id bigint
, out delete_on_completion boolean
, out idempotency_key text
, out start_at timestamptz
)
language plpgsql stable
as $$
declare
  v_max bigint := dwarf.setting_v1('max_priority', 5);
  v_option record;
  v_number numeric;
  v_kind text;
  v_rule text;
begin
  priority := (v_max + 1) / 2;
  budget_ms := dwarf.setting_v1('time_budget_ms', 120000);
  fairness_key := '';
  weight := 1;
  delete_on_completion := false;
  for v_option in
    select e.key, e.value, json_typeof(e.value) as kind, lower(replace(e.key, '_', '')) as name
    from json_each(dwarf.check_document_v1(p_options, 'options')) e
    where json_typeof(e.value) <> 'null'
  loop
    v_rule := null;
    v_kind := case
      when v_option.name in ('priority', 'fairnessweight') then 'number'
      when v_option.name in ('fairnesskey', 'threadkey', 'idempotencykey', 'startat') then 'string'
      when v_option.name = 'deleteoncompletion' then 'boolean'
      when v_option.name = 'baggage' then 'object'
      else v_option.kind
    end;
    if v_option.kind <> v_kind then
      v_rule := format('it must be %s', case v_kind when 'number' then 'a number' when 'string' then 'text' when 'boolean' then 'true or false' else 'an object' end);
    elsif v_option.name = 'priority' then
      v_number := (v_option.value #>> '{}')::numeric;
      if v_number <> trunc(v_number) or v_number not between 0 and v_max then
        v_rule := format('it must be a whole number from 1 to %s, or 0 for the middle', v_max);
      elsif v_number > 0 then
        priority := v_number;
      end if;
    elsif v_option.name = 'fairnessweight' then
      v_number := (v_option.value #>> '{}')::numeric;
      if v_number not between 0 and 1048576 then
        v_rule := 'it must be above 0 and at most 1048576, or 0 for 1';
      elsif v_number > 0 then
        weight := greatest(v_number, 1e-300);
      end if;
    elsif v_option.name = 'timebudget' then
      v_number := dwarf.read_seconds_v1(v_option.value #>> '{}');
      if v_option.kind not in ('number', 'string') or v_number is null or v_number <> 0 and v_number not between 0.001 and 2147483.647 then
        v_rule := 'it must be from 0.001 to 2147483.647 seconds, a text such as 2m, or 0 for the default';
      elsif v_number > 0 then
        budget_ms := round(v_number * 1000);
      end if;
    elsif v_option.name = 'fairnesskey' then
      fairness_key := v_option.value #>> '{}';
      if length(fairness_key) > 256 or fairness_key !~ '^[A-Za-z0-9._-]*$' then
        v_rule := 'it must be at most 256 of the letters A-Z a-z, digits and - _ .';
      end if;
    elsif v_option.name = 'idempotencykey' then
      idempotency_key := nullif(v_option.value #>> '{}', '');
      if length(idempotency_key) > 256 or idempotency_key ~ '[\x01-\x1f\x7f-\x9f]' or btrim(idempotency_key) = '' then
        v_rule := 'it must be at most 256 characters, more than blanks, and no control characters';
      end if;
    elsif v_option.name = 'startat' then
      begin
        start_at := (v_option.value #>> '{}')::timestamptz;
      exception
        when data_exception then
          v_rule := 'it must be a time such as 2030-01-31T12:00:00Z';
      end;
      if v_option.value #>> '{}' !~* '^[0-9]{4}-[0-9]{2}-[0-9]{2}[T ][0-9:.]+ ?(Z|[+-][0-9]{2}(:?[0-9]{2})?)$' then
        v_rule := 'it must be a time such as 2030-01-31T12:00:00Z';
      end if;
    elsif v_option.name = 'threadkey' then
      if v_option.value #>> '{}' <> '' then
        thread_id := dwarf.find_thread_v1(v_option.value #>> '{}');
      end if;
    elsif v_option.name = 'deleteoncompletion' then
      delete_on_completion := (v_option.value #>> '{}')::boolean;
    elsif v_option.name = 'baggage' then
      baggage := dwarf.check_document_v1(v_option.value, 'baggage', 1048576);
    else
      raise exception using errcode = 'DW400', message = format('options has no member %s; it has priority, fairnessKey, fairnessWeight, '
      || 'timeBudget, baggage, threadKey, deleteOnCompletion, idempotencyKey, startAt', quote_literal(left(v_option.key, 80)));
    end if;
    if v_rule is not null then
      raise exception using errcode = 'DW400', message = format('options.%s is %s; %s', v_option.key, left(v_option.value::text, 80), v_rule);
    end if;
  end loop;
end $$;

-- The thread of the flow that a key names. DW404 when there is none, DW400 when it is a child.
create function dwarf.find_thread_v1(p_key text) returns bigint
language plpgsql stable
set plan_cache_mode = force_custom_plan
as $$
declare
  v_key record := dwarf.parse_key_v1(p_key);
  v_flow record;
begin
  select l.thread_id, l.root_id into v_flow from dwarf.live l where l.flow_id = v_key.flow_id and l.token = v_key.token;
  if not found then
    select f.thread_id, f.root_id into v_flow from dwarf.flows f
    where f.flow_id = v_key.flow_id and f.day in (dwarf.day_of_id(v_key.flow_id), -1) and f.token = v_key.token;
  end if;
  if not found then
    raise exception using errcode = 'DW404', message = format('there is no flow %s whose thread could be joined', dwarf.flow_name(v_key.flow_id));
  end if;
  if v_flow.root_id <> v_key.flow_id then
    raise exception using errcode = 'DW400', message = format('flow %s is a child; name the thread by a root', dwarf.flow_name(v_key.flow_id));
  end if;
  return v_flow.thread_id;
end $$;
