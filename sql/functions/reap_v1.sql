-- Remove deleted flows that are due, at most p_limit trees, and return how many flows were roots among them. One transaction:
-- killed anywhere, nothing of them is gone. Several callers share the work.
create function dwarf.reap_v1(p_limit int, p_now timestamptz default null) returns int
language plpgsql
as $$
declare
  v_now timestamptz := coalesce(p_now, dwarf.now());
  v_due bigint[];
begin
  v_due := array(
    select d.flow_id from dwarf.doomed d where d.due_at <= v_now order by d.due_at limit p_limit for update skip locked
  );
  if cardinality(v_due) = 0 then
    return 0;
  end if;
  perform dwarf.reap_trees_v1(v_due);
  return cardinality(v_due);
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
