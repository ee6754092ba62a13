-- What has to be known of flows before anything is done with them: whose they are, their tokens, where they stand (1 running,
-- 4 interrupted, 6 to 9 ended), whether they were deleted. A flow that is not there has no row. Ids must be distinct.
create function dwarf.find_flows_v1(p_flow_id bigint[]) returns table (
  flow_id bigint
, root_id bigint
, thread_id bigint
, token text
, status smallint
, graph_id int
, name text
, workflow text
, ended_at timestamptz
, is_hidden boolean
)
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
  return query
  select l.flow_id, l.root_id, l.thread_id, l.token, case when exists (
    select from dwarf.parks p where p.root_id = l.root_id and p.kind = 1 and p.answer is null and p.path @> array[l.flow_id]
  ) then 4 else 1 end::smallint, l.graph_id, g.name, l.workflow, null::timestamptz, false
  from unnest(p_flow_id) t(id)
  cross join lateral (select x.* from dwarf.live x where x.flow_id = t.id offset 0) l
  join dwarf.graphs g on g.graph_id = l.graph_id;
  get diagnostics v_rows = row_count;
  v_wanted := v_wanted - v_rows;
  for v_day in
    select d.day
    from (select distinct dwarf.day_of_id(t.id) as day from unnest(p_flow_id) t(id) union select -1) d
    order by d.day = -1, d.day
  loop
    exit when v_wanted <= 0;
    return query
    select f.flow_id, f.root_id, f.thread_id, f.token, f.status, f.graph_id, g.name, f.workflow, f.ended_at
    , exists (select from dwarf.doomed d where d.flow_id = f.root_id)
    from dwarf.flows f
    join dwarf.graphs g on g.graph_id = f.graph_id
    where f.flow_id = any (p_flow_id) and f.day = v_day;
    get diagnostics v_rows = row_count;
    v_wanted := v_wanted - v_rows;
  end loop;
end $$;

comment on function dwarf.find_flows_v1 is 'Whose flows are, their tokens, and where they stand.';
