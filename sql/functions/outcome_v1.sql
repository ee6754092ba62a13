-- Where the flows named stand: 1 running, 4 interrupted, 6 to 9 ended. A flow that is not there has no row. For those who wait:
-- open flows are looked up by key; for the others the partitions of their days are asked by name, then `kept`, so that the
-- number of partitions does not count. Stable, so that all of it sees one moment.
create function dwarf.statuses_v1(p_flow_id bigint[]) returns table (flow_id bigint, status smallint)
language plpgsql stable
set plan_cache_mode = force_custom_plan
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set jit = off
as $$
#variable_conflict use_column
declare
  v_rest bigint[] := p_flow_id;
  v_found bigint[];
  v_status smallint[];
  v_day int;
begin
  select array_agg(l.flow_id), array_agg(case when exists (
    select from dwarf.parks p where p.root_id = l.root_id and p.kind = 1 and p.answer is null and p.path @> array[l.flow_id]
  ) then 4 else 1 end)
  into v_found, v_status
  from unnest(v_rest) t(id)
  cross join lateral (select x.flow_id, x.root_id from dwarf.live x where x.flow_id = t.id offset 0) l;
  for v_day in
    select d.day
    from (select distinct dwarf.day_of_id(t.id) as day from unnest(p_flow_id) t(id) union select -1) d
    order by d.day = -1, d.day
  loop
    if v_found is not null then
      return query select u.flow_id, u.status from unnest(v_found, v_status) u(flow_id, status);
      v_rest := array(select t.id from unnest(v_rest) t(id) where t.id <> all (v_found));
    end if;
    exit when cardinality(v_rest) = 0;
    select array_agg(f.flow_id), array_agg(f.status) into v_found, v_status
    from dwarf.flows f where f.flow_id = any (v_rest) and f.day = v_day;
  end loop;
  if v_found is not null and cardinality(v_rest) > 0 then
    return query select u.flow_id, u.status from unnest(v_found, v_status) u(flow_id, status);
  end if;
end $$;

-- What there is to say of one flow. status as in statuses_v1. final_state is null for flows ended from outside, whose state the
-- reader folds. payload is that of the first open interrupt below the flow; park_flow, park_branch and park_seq name its step.
-- No row: there is no such flow.
create function dwarf.outcome_v1(p_flow_id bigint) returns table (
  flow_id bigint
, root_id bigint
, token text
, day int
, status smallint
, graph_id int
, error text
, reason text
, final_state json
, payload json
, park_flow bigint
, park_branch bigint
, park_seq int
)
language plpgsql stable
set plan_cache_mode = force_custom_plan
set enable_seqscan = off
set jit = off
as $$
#variable_conflict use_column
begin
  return query
  select l.flow_id, l.root_id, l.token, l.day, case when p.flow_id is null then 1::smallint else 4::smallint end, l.graph_id
  , null::text, null::text, null::json, p.payload, p.flow_id, p.branch, p.seq
  from dwarf.live l
  left join lateral (
    select x.flow_id, x.branch, x.seq, x.payload from dwarf.parks x
    where x.root_id = l.root_id and x.kind = 1 and x.answer is null and x.path @> array[l.flow_id]
    order by x.parked_at, x.branch, x.seq
    limit 1
  ) p on true
  where l.flow_id = p_flow_id;
  if not found then
    return query
    select f.flow_id, f.root_id, f.token, f.day, f.status, f.graph_id, f.error, f.reason, f.final_state
    , null::json, null::bigint, null::bigint, null::int
    from dwarf.flows f
    where f.flow_id = p_flow_id and f.day in (dwarf.day_of_id(p_flow_id), -1);
  end if;
end $$;
