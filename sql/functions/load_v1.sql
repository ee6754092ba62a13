-- Documents: what inputs stand on (see base_branch, base_seq of dwarf.active). Each is asked for once, whoever shares it.
create function dwarf.load_documents_v1(p_flow bigint[], p_branch bigint[], p_seq int[], p_day int[])
returns table (flow_id bigint, branch bigint, seq int, document json)
language plpgsql stable rows 100
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set jit = off
as $$
#variable_conflict use_column
begin
  return query
  select q.flow_id, q.branch, q.seq, x.document
  from unnest(p_flow, p_branch, p_seq, p_day) q(flow_id, branch, seq, day)
  cross join lateral (
    select h.state as document from dwarf.history h
    where q.seq > 0 and h.flow_id = q.flow_id and h.branch = q.branch and h.seq = q.seq and h.day = q.day
    union all
    select l.input from dwarf.live l where q.seq = 0 and l.flow_id = q.flow_id
  ) x;
end $$;

-- The changes of the steps of a branch after p_after and before p_before: for rows that hold no delta up to here.
create function dwarf.load_changes_v1(p_flow bigint[], p_branch bigint[], p_after int[], p_before int[], p_day int[])
returns table (flow_id bigint, branch bigint, seq int, changes json)
language plpgsql stable rows 100
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set jit = off
as $$
#variable_conflict use_column
begin
  return query
  select q.flow_id, q.branch, x.seq, x.changes
  from unnest(p_flow, p_branch, p_after, p_before, p_day) q(flow_id, branch, after, before, day)
  cross join lateral (
    select h.seq, h.changes from dwarf.history h
    where h.flow_id = q.flow_id and h.branch = q.branch and h.seq > q.after and h.seq < q.before and h.day = q.day
    order by h.seq
  ) x;
end $$;

-- The source of a joining row's cohort: which task opened it, and the numbers of its branches.
create function dwarf.load_sources_v1(p_flow bigint[], p_branch bigint[], p_seq int[], p_day int[])
returns table (flow_id bigint, branch bigint, task text, fan_first bigint, fan_size int)
language plpgsql stable rows 100
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set jit = off
as $$
#variable_conflict use_column
begin
  return query
  select q.flow_id, q.branch, x.task, x.fan_first, x.fan_size
  from unnest(p_flow, p_branch, p_seq, p_day) q(flow_id, branch, seq, day)
  cross join lateral (
    select h.task, h.fan_first, h.fan_size from dwarf.history h
    where h.flow_id = q.flow_id and h.branch = q.branch and h.seq = q.seq - 1 and h.day = q.day
  ) x;
end $$;

-- The members of a cohort in order: the last row of each branch, with what the branch contributed.
create function dwarf.load_members_v1(p_flow bigint, p_first bigint, p_count int, p_day int)
returns table (ordinal int, seq int, status smallint, contribution json, error text)
language plpgsql stable rows 1000
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set jit = off
as $$
#variable_conflict use_column
begin
  return query
  select g.ordinal, x.seq, x.status, x.contribution, x.error
  from generate_series(0, p_count - 1) g(ordinal)
  cross join lateral (
    select h.seq, h.status, coalesce(h.contribution, h.changes) as contribution, case when h.status <> 6 then h.error end as error
    from dwarf.history h
    where h.flow_id = p_flow and h.branch = p_first + g.ordinal and h.day = p_day
    order by h.seq desc
    limit 1
  ) x;
end $$;

-- What a parked step left, and the answer to what it waited for. result is a completed child's final state, child_status and
-- child_error tell of another end. The child's own row is read: nothing of it was copied.
create function dwarf.load_parks_v1(p_flow bigint[], p_branch bigint[])
returns table (flow_id bigint, branch bigint, kind smallint, kept json, answer json, child_id bigint, child_status smallint, child_error text
, result json)
language plpgsql stable rows 100
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set jit = off
as $$
#variable_conflict use_column
begin
  return query
  select q.flow_id, q.branch, p.kind, p.kept, p.answer, p.child_id, c.status, coalesce(c.error, c.reason), c.final_state
  from unnest(p_flow, p_branch) q(flow_id, branch)
  cross join lateral (select x.* from dwarf.parks x where x.flow_id = q.flow_id and x.branch = q.branch offset 0) p
  left join lateral (
    select f.status, f.error, f.reason, f.final_state from dwarf.flows f
    where p.child_id is not null and f.flow_id = p.child_id and f.day in (p.child_day, -1)
    limit 1
  ) c on true;
end $$;
