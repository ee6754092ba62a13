-- A text that changes with every transition of a step in a flow or below it, and where the flow stands (as in statuses_v1). A row
-- of `active` never shows the same seq, lease and status twice; those of 50,000 branches are folded in any order. No row: there
-- is no such flow.
create function dwarf.fingerprint_v1(p_flow_id bigint) returns table (token text, status smallint, fingerprint text)
language plpgsql stable
set plan_cache_mode = force_custom_plan
set enable_seqscan = off
set jit = off
as $$
#variable_conflict use_column
begin
  return query
  select f.token, f.status, case
    when f.status > 5 then f.status || '-' || extract(epoch from f.ended_at)
    else f.status || '-' || (
      with tree as (
        select f.flow_id
        union all
        select l.flow_id from dwarf.live l where l.root_id = f.root_id and l.root_id <> l.flow_id and l.path @> array[f.flow_id]
      )
      select count(*) || '-' || to_hex(coalesce(bit_xor(hashtextextended(concat_ws(' ', a.flow_id, a.branch, a.seq, a.lease, a.status, a.todo
      , a.attempt, a.expanded, a.arrived, a.parked, a.claimable is null, a.wake_at), 0)), 0))
      from tree join dwarf.active a on a.flow_id = tree.flow_id
    )
  end
  from dwarf.find_flows_v1(array[p_flow_id]) f;
end $$;

comment on function dwarf.fingerprint_v1 is 'A text that changes whenever a step of a flow or below it does.';
