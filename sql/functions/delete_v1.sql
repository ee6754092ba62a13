-- Delete a flow: hidden from lists and histories at once, its rows removed by reap_v1. An interrupted flow is terminated first.
--   deleted      it had ended; also when it was deleted before and is not yet removed
--   terminated   it was interrupted, and ended by this
--   running      nothing was changed: it runs, or a resume came first
--   child        nothing was changed: only roots are deleted, their children go with them
--   missing      there is no such flow
--   moved        nothing was changed: p_parked_at is given, and the flow is not interrupted, or has been anew since that time
create function dwarf.delete_v1(
  p_flow_id bigint
, p_reason text default 'deleted'
, p_now timestamptz default null
, p_actor text default null
, p_parked_at timestamptz default null
) returns text
language plpgsql
set plan_cache_mode = force_custom_plan
set enable_seqscan = off
set jit = off
as $$
declare
  v_now timestamptz := coalesce(p_now, dwarf.now());
  v_flow record;
  v_state text := 'deleted';
  v_parked_at timestamptz;
begin
  select l.root_id into v_flow from dwarf.live l where l.flow_id = p_flow_id for update;
  if found then
    if v_flow.root_id <> p_flow_id then
      return 'child';
    end if;
    -- A resume locks the row of the step: whatever came first has committed once the whole tree is locked.
    perform 1 from dwarf.live l where l.root_id = p_flow_id and l.root_id <> l.flow_id order by l.flow_id for update;
    perform dwarf.lock_tree_v1(p_flow_id);
    v_parked_at := (select max(p.parked_at) from dwarf.parks p where p.root_id = p_flow_id and p.kind = 1 and p.answer is null);
    if v_parked_at is null then
      return 'running';
    elsif v_parked_at <> p_parked_at then
      return 'moved';
    end if;
    perform dwarf.terminate_v1(p_flow_id, p_reason, p_now, '');
    v_state := 'terminated';
  elsif p_parked_at is not null then
    return 'moved';
  end if;
  -- A statement of its own: a flow that was closing meanwhile is closed by now.
  select f.root_id, f.day into v_flow from dwarf.flows f where f.flow_id = p_flow_id and f.day in (dwarf.day_of_id(p_flow_id), -1);
  if not found then
    return 'missing';
  elsif v_flow.root_id <> p_flow_id then
    return 'child';
  end if;
  insert into dwarf.doomed as d (flow_id, day, due_at, hidden_at) values (p_flow_id, v_flow.day, v_now, v_now)
  on conflict (flow_id) do update set due_at = least(d.due_at, excluded.due_at);
  perform dwarf.audit_v1('delete', p_flow_id, p_actor, p_now => v_now);
  return v_state;
end $$;

-- Delete the closed roots among the flows named, and return how many were not deleted before. For a purge; interrupted flows
-- go one by one through delete_v1, each in a transaction of its own, with the time at which they were found to be parked.
create function dwarf.delete_closed_v1(p_flow_id bigint[], p_now timestamptz default null, p_actor text default null) returns int
language plpgsql
set plan_cache_mode = force_custom_plan
set enable_seqscan = off
set jit = off
as $$
declare
  v_now timestamptz := coalesce(p_now, dwarf.now());
  v_days int[] := array(select distinct dwarf.day_of_id(t.id) from unnest(p_flow_id) t(id)) || -1;
  v_deleted bigint[];
begin
  with deleted as (
    insert into dwarf.doomed(flow_id, day, due_at, hidden_at)
    select f.flow_id, f.day, v_now, v_now
    from dwarf.flows f
    where f.flow_id = any (p_flow_id) and f.day = any (v_days) and f.root_id = f.flow_id
    order by f.flow_id
    on conflict (flow_id) do nothing
    returning doomed.flow_id
  )
  select array_agg(d.flow_id order by d.flow_id) into v_deleted from deleted d;
  perform dwarf.audit_v1('delete', u.id, p_actor, p_now => v_now) from unnest(v_deleted) u(id);
  return coalesce(cardinality(v_deleted), 0);
end $$;
