-- Take at most p_limit signals of a session, oldest first: running rows that were taken away from it. kind 1 cancelled,
-- 2 terminated, 3 swept. What others are taking is passed over. The session is asked for as a range: an equality would make
-- the order that of the key alone, and the signals of all sessions might be read in that order.
create function dwarf.take_signals_v1(p_session int, p_limit int)
returns table (flow_id bigint, branch bigint, seq int, lease int, kind smallint)
language plpgsql rows 100
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set enable_sort = off
set jit = off
as $$
#variable_conflict use_column
declare
  v_taken bigint[];
begin
  v_taken := array(
    select s.signal_id from dwarf.signals s where s.session >= p_session and s.session <= p_session
    order by s.session, s.signal_id limit p_limit for update skip locked
  );
  if cardinality(v_taken) > 0 then
    return query
    delete from dwarf.signals s where s.signal_id = any (v_taken) returning s.flow_id, s.branch, s.seq, s.lease, s.kind;
  end if;
end $$;
