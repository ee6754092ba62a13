-- Where a flow stands, as the HTTP door tells it: status, state, error, interruptPayload, reason, stopped. state is the final one;
-- it is null while the flow is open, and for one that was terminated, whose state only an engine can fold. DW404: no such flow.
create function dwarf.flow_outcome(p_key text) returns json
language plpgsql stable
as $$
declare
  v_key record := dwarf.parse_key_v1(p_key);
  v_flow record;
begin
  select o.status, o.token, o.error, o.reason, o.final_state, o.payload into v_flow from dwarf.outcome_v1(v_key.flow_id) o;
  if v_flow.token is distinct from v_key.token then
    raise exception using errcode = 'DW404', message = format('there is no flow %s', dwarf.flow_name(v_key.flow_id));
  end if;
  return json_build_object(
    'status', case v_flow.status when 1 then 'running' else dwarf.status_name(v_flow.status) end
  , 'state', v_flow.final_state
  , 'error', case when v_flow.status = 7 then coalesce(v_flow.error, '') else '' end
  , 'interruptPayload', coalesce(v_flow.payload, '{}')
  , 'reason', case when v_flow.status in (8, 9) then coalesce(v_flow.reason, '') else '' end
  , 'stopped', v_flow.status <> 1
  );
end $$;
