-- Take the signals of a session: running rows that were taken away from it. kind 1 cancelled, 2 terminated, 3 swept.
create function dwarf.take_signals_v1(p_session int, p_limit int)
returns table (flow_id bigint, branch bigint, seq int, lease int, kind smallint)
language sql volatile
set enable_seqscan = off
begin atomic
  delete from dwarf.signals s
  where s.signal_id in (select x.signal_id from dwarf.signals x where x.session = p_session order by x.signal_id limit p_limit for update skip locked)
  returning s.flow_id, s.branch, s.seq, s.lease, s.kind;
end;
