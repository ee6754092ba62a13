-- Start a session: one process start of a replica. The engine id only names it.
create function dwarf.start_session_v1(p_engine_id bigint, p_life_ms int, p_now timestamptz default null) returns int
language plpgsql
as $$
declare
  v_now timestamptz := coalesce(p_now, dwarf.now());
  v_session int := nextval('dwarf.session_seq');
begin
  insert into dwarf.peers(session, engine_id, started_at, renewed_at, expires_at, steady_since)
  values (v_session, p_engine_id, v_now, v_now, v_now + p_life_ms * interval '1 ms', v_now);
  return v_session;
end $$;

-- Renew a session, whatever the number of steps it holds. A gap of more than half a life between renewals starts the time
-- anew from which the session may judge others. Returns false when the row is gone: the session must register anew.
create function dwarf.renew_session_v1(p_session int, p_life_ms int, p_is_dispatcher boolean, p_now timestamptz default null) returns boolean
language plpgsql
as $$
declare
  v_now timestamptz := coalesce(p_now, dwarf.now());
begin
  update dwarf.peers p set
    renewed_at = v_now
  , expires_at = v_now + p_life_ms * interval '1 ms'
  , steady_since = case when v_now - p.renewed_at > p_life_ms * interval '0.5 ms' then v_now else p.steady_since end
  , is_dispatcher = p_is_dispatcher
  where p.session = p_session;
  return found;
end $$;

-- End a session in good order. Rows it still holds are swept at once.
create function dwarf.end_session_v1(p_session int, p_now timestamptz default null) returns void
language sql volatile
begin atomic
  update dwarf.peers set expires_at = coalesce(p_now, dwarf.now()) where session = p_session;
end;
