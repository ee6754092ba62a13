-- All that is needed to rebuild what the steps of one flow were given: what each finished one changed, and where its branches
-- came from.
create function dwarf.replay_v1(p_flow_id bigint) returns table (
  branch bigint
, seq int
, status smallint
, via smallint
, task text
, changes json
, parent_branch bigint
, parent_seq int
, ordinal int
, fan_first bigint
, fan_size int
, depth int
, attempt int
, child_id bigint
, kept json
)
language plpgsql stable rows 100
set plan_cache_mode = force_custom_plan
set enable_seqscan = off
set jit = off
as $$
#variable_conflict use_column
begin
  return query
  select h.branch, h.seq, h.status, h.via, h.task, h.changes, h.parent_branch, h.parent_seq, h.ordinal, h.fan_first, h.fan_size, h.depth, h.attempt, h.child_id, h.kept
  from dwarf.history h
  where h.flow_id = p_flow_id and h.day in (dwarf.day_of_id(p_flow_id), -1);
end $$;

-- What a flow was created with, its graph, and what a fork has put in the place of the input of some steps. No row: there is no
-- such flow.
create function dwarf.origin_v1(p_flow_id bigint) returns table (graph_id int, input json, overrides json)
language plpgsql stable
set plan_cache_mode = force_custom_plan
set enable_seqscan = off
set jit = off
as $$
#variable_conflict use_column
begin
  return query select l.graph_id, l.input, dwarf.overrides_v1(p_flow_id) from dwarf.live l where l.flow_id = p_flow_id;
  if not found then
    return query
    select f.graph_id, f.input, dwarf.overrides_v1(p_flow_id)
    from dwarf.flows f
    where f.flow_id = p_flow_id and f.day in (dwarf.day_of_id(p_flow_id), -1);
  end if;
end $$;

-- What one step wrote, and what it waits or waited for. changes are the writes that a retry or a park kept where the step is not
-- over.
create function dwarf.writes_v1(p_flow_id bigint, p_branch bigint, p_seq int) returns table (changes json, payload json)
language plpgsql stable
set plan_cache_mode = force_custom_plan
set enable_seqscan = off
set jit = off
as $$
#variable_conflict use_column
begin
  return query
  select h.changes, h.payload from dwarf.history h
  where h.flow_id = p_flow_id and h.branch = p_branch and h.seq = p_seq and h.day in (dwarf.day_of_id(p_flow_id), -1);
  if not found then
    return query select p.kept, p.payload from dwarf.parks p where p.flow_id = p_flow_id and p.branch = p_branch and p.seq = p_seq;
  end if;
end $$;

-- What an interrupted step stands on (see dwarf.active), and the writes it keeps; a fan-in stands on its cohort besides. No row:
-- it waits no more.
create function dwarf.parked_v1(p_flow_id bigint, p_branch bigint, p_seq int) returns table (
  graph_id int
, day int
, base_branch bigint
, base_seq int
, delta_seq int
, delta json
, kept json
, is_fan_in boolean
)
language sql stable
begin atomic
  select l.graph_id, a.day, a.base_branch, a.base_seq, a.delta_seq, a.delta, p.kept, a.size is not null
  from dwarf.active a
  join dwarf.parks p on p.flow_id = a.flow_id and p.branch = a.branch
  join dwarf.live l on l.flow_id = a.flow_id
  where a.flow_id = p_flow_id and a.branch = p_branch and a.seq = p_seq and p.seq = p_seq and p.kind = 1 and p.answer is null;
end;

comment on function dwarf.replay_v1 is 'What the finished steps of a flow changed, and where its branches came from.';
comment on function dwarf.origin_v1 is 'What a flow was created with, its graph, and the overrides of a fork.';
comment on function dwarf.writes_v1 is 'What one step wrote, and what it waits or waited for.';
comment on function dwarf.parked_v1 is 'What an interrupted step stands on, and the writes it keeps.';
