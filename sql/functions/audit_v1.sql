-- Note who did what to a flow, or to the shard, in the transaction that does it: rolled back, it was not done. p_actor null
-- stands for the session's user, as for verbs called in SQL; an empty one notes nothing, as for what Dwarf does by itself.
-- Neither a token nor a word of the flow's state is ever noted.
create function dwarf.audit_v1(
  p_verb text, p_flow_id bigint, p_actor text default null, p_detail json default null, p_now timestamptz default null
) returns void
language plpgsql
as $$
begin
  if p_actor is distinct from '' then
    insert into dwarf.audit(at, actor, verb, flow_id, detail)
    values (coalesce(p_now, dwarf.now()), left(coalesce(p_actor, session_user), 512), p_verb, p_flow_id, p_detail);
  end if;
end $$;

-- Forget acts noted before p_before, oldest first, at most p_limit, and return how many. They are found by their order, which
-- is that of their time but for those that ran side by side.
create function dwarf.forget_audit_v1(p_before timestamptz, p_limit int) returns int
language plpgsql
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set enable_sort = off
set jit = off
as $$
declare
  v_old bigint[];
  v_gone int;
begin
  v_old := array(
    select x.audit_id
    from (select a.audit_id, a.at from dwarf.audit a order by a.audit_id limit p_limit for update skip locked) x
    where x.at < p_before
  );
  delete from dwarf.audit a where a.audit_id = any (v_old);
  get diagnostics v_gone = row_count;
  return v_gone;
end $$;
