-- Move what the trees named have under a day to `kept` (day -1), where dropping that day does not reach it. Returns how many
-- flows were moved. The rows of the open flows are locked in the order of the schema first, whole trees before anything is
-- changed: a record that inserts history takes the day from its row, so that it either has committed, and what it wrote is
-- moved, or waits for the row and then writes under `kept`. Closed flows are moved before their history, see reap_trees_v1.
create function dwarf.move_trees_v1(p_root bigint[], p_day int) returns int
language plpgsql
set plan_cache_mode = force_custom_plan
set enable_seqscan = off
set jit = off
as $$
declare
  v_open bigint[];
  v_closed bigint[];
begin
  -- The roots first, which waits for whoever creates rows in their trees; then a fresh look at what is in them.
  perform 1 from dwarf.live l where l.flow_id = any (p_root) order by l.flow_id for no key update;
  perform 1 from dwarf.live l where l.root_id = any (p_root) and l.root_id <> l.flow_id order by l.flow_id for no key update;
  v_open := array(
    select l.flow_id from dwarf.live l where l.flow_id = any (p_root) and l.day = p_day
    union all
    select l.flow_id from dwarf.live l where l.root_id = any (p_root) and l.root_id <> l.flow_id and l.day = p_day
  );
  perform 1
  from unnest(v_open) o(flow_id)
  join dwarf.active a on a.flow_id = o.flow_id
  order by a.size is null and a.status <> 5, a.flow_id, a.branch
  for no key update of a;

  update dwarf.live l set day = -1 where l.flow_id = any (v_open);
  update dwarf.active a set day = -1 where a.flow_id = any (v_open);
  update dwarf.parks p set child_day = -1
  from (
    select l.flow_id from dwarf.live l where l.flow_id = any (p_root)
    union all
    select l.flow_id from dwarf.live l where l.root_id = any (p_root) and l.root_id <> l.flow_id
  ) t
  where p.flow_id = t.flow_id and p.child_day = p_day;

  with moved as (
    update dwarf.flows f set day = -1
    where f.day = p_day and (f.flow_id = any (p_root) or f.root_id = any (p_root) and f.root_id <> f.flow_id)
    returning f.flow_id
  )
  select array(select m.flow_id from moved m) into v_closed;
  update dwarf.history h set day = -1 where h.day = p_day and h.flow_id = any (v_open || v_closed);
  return cardinality(v_open) + cardinality(v_closed);
end $$;
