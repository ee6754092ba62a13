-- The last child that a step called whose row does not name it: a retry that keeps no writes leaves nothing of a call. It has
-- ended, and was called between the days given.
create function dwarf.last_child_v1(p_root bigint, p_flow_id bigint, p_branch bigint, p_seq int, p_from_day int, p_to_day int)
returns bigint
language plpgsql stable
set plan_cache_mode = force_custom_plan
set enable_seqscan = off
set jit = off
as $$
begin
  return (
    select max(f.flow_id) from dwarf.flows f
    where f.root_id = p_root and f.root_id <> f.flow_id and (f.day between p_from_day and p_to_day or f.day = -1)
    and f.caller_flow = p_flow_id and f.caller_branch = p_branch and f.caller_seq = p_seq
  );
end $$;

-- The steps of a flow and of the children below it, those that are under way included: of a step that called several children
-- the last one's. A row that waits for its cohort, and one that ran no task when its cohort had failed, are no steps.
-- fan_first and fan_size are those of a fan-out source; parent_branch and parent_seq, on a branch's first step, name its source.
create function dwarf.history_v1(p_flow_id bigint) returns table (
  flow_id bigint
, branch bigint
, seq int
, depth int
, attempt int
, status smallint
, task text
, error text
, created_at timestamptz
, started_at timestamptz
, updated_at timestamptz
, engine_id bigint
, parent_branch bigint
, parent_seq int
, fan_first bigint
, fan_size int
, child_id bigint
)
language plpgsql stable rows 100
set plan_cache_mode = force_custom_plan
set enable_seqscan = off
set enable_mergejoin = off
set jit = off
as $$
#variable_conflict use_column
declare
  v_level bigint[] := array[p_flow_id];
  v_below bigint[];
  v_more bigint[];
  v_day int;
  v_root bigint := (select f.root_id from dwarf.find_flows_v1(array[p_flow_id]) f);
begin
  while cardinality(v_level) > 0 loop
    return query
    select a.flow_id, a.branch, a.seq, a.depth, a.attempt, a.status, a.task, null::text, a.created_at, a.started_at
    , greatest(a.created_at, a.started_at, p.parked_at), e.engine_id
    , case when a.seq = 1 and a.branch <> 0 then a.base_branch end, case when a.seq = 1 and a.branch <> 0 then a.base_seq end
    , null::bigint, null::int, coalesce(p.child_id, case when a.attempt > 0 then dwarf.last_child_v1(v_root, a.flow_id, a.branch, a.seq
    , dwarf.day_of(a.created_at), dwarf.day_of(greatest(a.started_at, dwarf.now()))) end)
    from dwarf.active a
    left join dwarf.parks p on p.flow_id = a.flow_id and p.branch = a.branch
    left join dwarf.peers e on e.session = a.owner
    where a.flow_id = any (v_level) and a.status <> 3 and a.todo not in (2, 4);
    v_below := array(
      select c.id
      from dwarf.active a
      left join dwarf.parks p on p.flow_id = a.flow_id and p.branch = a.branch
      cross join lateral (
        select coalesce(p.child_id, case when a.attempt > 0 then dwarf.last_child_v1(v_root, a.flow_id, a.branch, a.seq
        , dwarf.day_of(a.created_at), dwarf.day_of(greatest(a.started_at, dwarf.now()))) end) as id
      ) c
      where a.flow_id = any (v_level) and c.id is not null
    );
    for v_day in
      select d.day
      from (select distinct dwarf.day_of_id(t.id) as day from unnest(v_level) t(id) union select -1) d
      order by d.day = -1, d.day
    loop
      return query
      select h.flow_id, h.branch, h.seq, h.depth, h.attempt, h.status, h.task, h.error, h.created_at, h.started_at, h.ended_at, e.engine_id
      , h.parent_branch, h.parent_seq, h.fan_first, h.fan_size, coalesce(h.child_id, case when h.attempt > 0 then dwarf.last_child_v1(v_root
      , h.flow_id, h.branch, h.seq, dwarf.day_of(h.created_at), dwarf.day_of(h.ended_at)) end)
      from dwarf.history h
      left join dwarf.peers e on e.session = h.owner
      where h.flow_id = any (v_level) and h.day = v_day and h.via <> 4;
      v_more := array(
        select c.id
        from dwarf.history h
        cross join lateral (
          select coalesce(h.child_id, case when h.attempt > 0 then dwarf.last_child_v1(v_root, h.flow_id, h.branch, h.seq
          , dwarf.day_of(h.created_at), dwarf.day_of(h.ended_at)) end) as id
        ) c
        where h.flow_id = any (v_level) and h.day = v_day and h.via <> 4 and c.id is not null
      );
      v_below := v_below || v_more;
    end loop;
    v_level := v_below;
  end loop;
end $$;

comment on function dwarf.history_v1 is 'The steps of a flow and of the children below it.';
comment on function dwarf.last_child_v1 is 'The last child that a retried step called.';
