-- Remove closed trees whole, with everything that speaks of them, and return how many roots there were. Whatever a damaged
-- tree still has open goes too. The rows of the roots are locked first: who moves or removes the same tree comes before or
-- after (40001: try again). Children were created between their root's creation and its end: only those days are looked at.
create function dwarf.reap_trees_v1(p_root bigint[]) returns int
language plpgsql
set plan_cache_mode = force_custom_plan
set enable_seqscan = off
set jit = off
as $$
declare
  v_days int[] := array(select distinct dwarf.day_of_id(r.id) from unnest(p_root) r(id)) || -1;
  v_first int;
  v_last int;
  v_found int;
  v_flows bigint[];
begin
  with root as materialized (
    select f.flow_id, f.ended_at from dwarf.flows f
    where f.flow_id = any (p_root) and f.root_id = f.flow_id and f.day = any (v_days)
    order by f.flow_id
    for update
  )
  select count(*), min(dwarf.day_of_id(r.flow_id)), max(dwarf.day_of(r.ended_at)) into v_found, v_first, v_last from root r;
  v_flows := p_root || array(
    select f.flow_id from dwarf.flows f
    where f.root_id = any (p_root) and f.root_id <> f.flow_id and (f.day between v_first and v_last or f.day = -1)
  ) || array(select l.flow_id from dwarf.live l where l.root_id = any (p_root) and l.root_id <> l.flow_id);
  v_days := array(select distinct dwarf.day_of_id(t.id) from unnest(v_flows) t(id)) || -1;

  delete from dwarf.live l where l.flow_id = any (v_flows);
  delete from dwarf.active a where a.flow_id = any (v_flows);
  delete from dwarf.parks p where p.flow_id = any (v_flows);
  delete from dwarf.history h where h.flow_id = any (v_flows) and h.day = any (v_days);
  delete from dwarf.flows f where f.flow_id = any (v_flows) and f.day = any (v_days);
  delete from dwarf.idempotency i where i.flow_id = any (p_root);
  delete from dwarf.forks o where o.root_id = any (p_root);
  delete from dwarf.doomed d where d.flow_id = any (p_root);
  return v_found;
end $$;
