-- Return running steps to pending by hand: those past their own deadline, and those of p_session, which the caller knows to be
-- gone (see v_sessions). What a session does for itself the sweep of any engine does within a minute.
create function dwarf.recover_steps(p_session int default null, p_now timestamptz default null)
returns table (flow text, branch bigint, session int, why text)
language plpgsql
as $$
#variable_conflict use_column
declare
  v_now timestamptz := coalesce(p_now, dwarf.now());
  v_flow bigint[];
  v_branch bigint[];
  v_steps int;
begin
  return query
  select dwarf.flow_name(s.flow_id), s.branch, s.owner, s.why from dwarf.sweep_v1(0, 0, false, 100000, v_now) s;
  get diagnostics v_steps = row_count;
  if p_session is not null then
    perform dwarf.end_session_v1(p_session, v_now);
    select array_agg(x.flow_id), array_agg(x.branch) into v_flow, v_branch
    from (
      select a.flow_id, a.branch from dwarf.active a
      where a.owner = p_session and a.status = 2
      order by a.size is null and a.status <> 5, a.flow_id, a.branch
      for update skip locked
    ) x;
    if v_flow is not null then
      perform dwarf.release_rows_v1(v_flow, v_branch);
      return query select dwarf.flow_name(u.flow_id), u.branch, p_session, 'session' from unnest(v_flow, v_branch) u(flow_id, branch);
      v_steps := v_steps + cardinality(v_flow);
    end if;
  end if;
  perform dwarf.audit_v1('recover', null, null, json_build_object('session', p_session, 'steps', v_steps), v_now);
end $$;
