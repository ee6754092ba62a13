-- How flows ended, for those who waited for them. final_state is null where it has to be folded, and where it is larger than
-- p_bytes_max as it is stored: those are read one by one. A flow that has not ended, or is not there, has no row.
create function dwarf.ended_v1(p_flow_id bigint[], p_bytes_max int)
returns table (flow_id bigint, status smallint, error text, reason text, final_state json)
language plpgsql stable
set plan_cache_mode = force_custom_plan
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set jit = off
as $$
#variable_conflict use_column
declare
  v_wanted int := cardinality(p_flow_id);
  v_rows int;
  v_day int;
begin
  for v_day in
    select d.day
    from (select distinct dwarf.day_of_id(t.id) as day from unnest(p_flow_id) t(id) union select -1) d
    order by d.day = -1, d.day
  loop
    exit when v_wanted <= 0;
    return query
    select f.flow_id, f.status, f.error, f.reason, case when pg_column_size(f.final_state) <= p_bytes_max then f.final_state end
    from dwarf.flows f
    where f.flow_id = any (p_flow_id) and f.day = v_day;
    get diagnostics v_rows = row_count;
    v_wanted := v_wanted - v_rows;
  end loop;
end $$;

comment on function dwarf.ended_v1 is 'How flows ended, with their final states where these are small.';
