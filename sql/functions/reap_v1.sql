-- Remove deleted flows that are due, at most p_limit trees, and return how many flows were roots among them. One transaction:
-- killed anywhere, nothing of them is gone. Several callers share the work. A tree that cannot be removed, whatever the reason,
-- is put off for ten minutes and keeps no other from it.
create function dwarf.reap_v1(p_limit int, p_now timestamptz default null) returns int
language plpgsql
as $$
declare
  v_now timestamptz := coalesce(p_now, dwarf.now());
  v_due bigint[];
  v_root bigint;
  v_removed int := 0;
begin
  v_due := array(
    select d.flow_id from dwarf.doomed d where d.due_at <= v_now order by d.due_at limit p_limit for update skip locked
  );
  if cardinality(v_due) = 0 then
    return 0;
  end if;
  begin
    perform dwarf.reap_trees_v1(v_due);
    return cardinality(v_due);
  exception
    when serialization_failure or deadlock_detected or lock_not_available then
      raise;
    when others then
      null;
  end;
  foreach v_root in array v_due loop
    begin
      perform dwarf.reap_trees_v1(array[v_root]);
      v_removed := v_removed + 1;
    exception
      when serialization_failure or deadlock_detected or lock_not_available then
        raise;
      when others then
        raise warning 'flow % cannot be removed: %', dwarf.flow_name(v_root), sqlerrm;
        update dwarf.doomed d set due_at = v_now + interval '10 minutes' where d.flow_id = v_root;
    end;
  end loop;
  return v_removed;
end $$;

-- Forget sessions that ended p_patience_ms ago or earlier and hold nothing any more, with their lanes and unread signals.
-- Whatever a backend of theirs still commits is stale from then on. Returns how many there were.
create function dwarf.forget_sessions_v1(p_patience_ms int, p_now timestamptz default null) returns int
language plpgsql
set enable_seqscan = off
as $$
declare
  v_now timestamptz := coalesce(p_now, dwarf.now());
  v_gone int[];
begin
  v_gone := array(
    select p.session from dwarf.peers p
    where p.expires_at <= v_now - p_patience_ms * interval '1 ms'
    and not exists (select from dwarf.active a where a.owner = p.session)
    for update skip locked
  );
  delete from dwarf.lanes l where l.session = any (v_gone);
  delete from dwarf.signals s where s.session = any (v_gone);
  delete from dwarf.peers p where p.session = any (v_gone);
  return cardinality(v_gone);
end $$;
