-- What steps stand on. A row's day is that of its claim. Retention may have moved its tree to `kept` since, so what is not found
-- under the day is looked for under -1. Partitions are asked by name, one day after the other: a plan for any day opens and locks
-- all there are at each call (at 365 days 740 relations and 20 ms; by name 10 and less than 1 ms).

-- The days of the rows asked for, `kept` last.
create function dwarf.days_to_ask_v1(p_day int[]) returns int[]
language sql immutable parallel safe
return array(select distinct d.day from unnest(p_day) d(day) where d.day <> -1) || -1;

-- Documents: what inputs stand on (see base_branch, base_seq of dwarf.active). Each is asked for once, whoever shares it.
create function dwarf.load_documents_v1(p_flow bigint[], p_branch bigint[], p_seq int[], p_day int[])
returns table (flow_id bigint, branch bigint, seq int, document json)
language plpgsql stable rows 100
set plan_cache_mode = force_custom_plan
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set enable_material = off
set enable_memoize = off
set jit = off
as $$
#variable_conflict use_column
declare
  v_wanted int := cardinality(p_flow);
  v_rows int;
  v_day int;
begin
  if 0 = any (p_seq) then
    return query
    select q.flow_id, q.branch, q.seq, l.input
    from unnest(p_flow, p_branch, p_seq) q(flow_id, branch, seq)
    cross join lateral (select x.input from dwarf.live x where q.seq = 0 and x.flow_id = q.flow_id offset 0) l;
    get diagnostics v_rows = row_count;
    v_wanted := v_wanted - v_rows;
  end if;
  foreach v_day in array dwarf.days_to_ask_v1(p_day) loop
    exit when v_wanted = 0;
    return query
    select q.flow_id, q.branch, q.seq, h.state
    from unnest(p_flow, p_branch, p_seq, p_day) q(flow_id, branch, seq, day)
    cross join lateral (
      select x.state from dwarf.history x
      where q.seq > 0 and v_day in (q.day, -1) and x.flow_id = q.flow_id and x.branch = q.branch and x.seq = q.seq and x.day = v_day
      offset 0
    ) h;
    get diagnostics v_rows = row_count;
    v_wanted := v_wanted - v_rows;
  end loop;
end $$;

-- The changes of the steps of a branch after p_after and before p_before: for rows that hold no delta up to here.
create function dwarf.load_changes_v1(p_flow bigint[], p_branch bigint[], p_after int[], p_before int[], p_day int[])
returns table (flow_id bigint, branch bigint, seq int, changes json)
language plpgsql stable rows 100
set plan_cache_mode = force_custom_plan
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set enable_material = off
set enable_memoize = off
set jit = off
as $$
#variable_conflict use_column
declare
  v_wanted bigint := coalesce((select sum(greatest(q.before - q.after - 1, 0)) from unnest(p_after, p_before) q(after, before)), 0);
  v_rows int;
  v_day int;
begin
  foreach v_day in array dwarf.days_to_ask_v1(p_day) loop
    exit when v_wanted = 0;
    return query
    select q.flow_id, q.branch, h.seq, h.changes
    from unnest(p_flow, p_branch, p_after, p_before, p_day) q(flow_id, branch, after, before, day)
    cross join lateral (
      select x.seq, x.changes from dwarf.history x
      where v_day in (q.day, -1) and x.flow_id = q.flow_id and x.branch = q.branch and x.seq > q.after and x.seq < q.before and x.day = v_day
      order by x.seq
      offset 0
    ) h;
    get diagnostics v_rows = row_count;
    v_wanted := v_wanted - v_rows;
  end loop;
end $$;

-- The source of a joining row's cohort: which task opened it, and the numbers of its branches.
create function dwarf.load_sources_v1(p_flow bigint[], p_branch bigint[], p_seq int[], p_day int[])
returns table (flow_id bigint, branch bigint, task text, fan_first bigint, fan_size int)
language plpgsql stable rows 100
set plan_cache_mode = force_custom_plan
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set enable_material = off
set enable_memoize = off
set jit = off
as $$
#variable_conflict use_column
declare
  v_wanted int := cardinality(p_flow);
  v_rows int;
  v_day int;
begin
  foreach v_day in array dwarf.days_to_ask_v1(p_day) loop
    exit when v_wanted = 0;
    return query
    select q.flow_id, q.branch, h.task, h.fan_first, h.fan_size
    from unnest(p_flow, p_branch, p_seq, p_day) q(flow_id, branch, seq, day)
    cross join lateral (
      select x.task, x.fan_first, x.fan_size from dwarf.history x
      where v_day in (q.day, -1) and x.flow_id = q.flow_id and x.branch = q.branch and x.seq = q.seq - 1 and x.day = v_day
      offset 0
    ) h;
    get diagnostics v_rows = row_count;
    v_wanted := v_wanted - v_rows;
  end loop;
end $$;

-- The members of a cohort in order: the last row of each branch, with what the branch contributed.
create function dwarf.load_members_v1(p_flow bigint, p_first bigint, p_count int, p_day int)
returns table (ordinal int, seq int, status smallint, contribution json, error text)
language plpgsql stable rows 1000
set plan_cache_mode = force_custom_plan
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set enable_material = off
set enable_memoize = off
set jit = off
as $$
#variable_conflict use_column
declare
  v_day int;
begin
  foreach v_day in array dwarf.days_to_ask_v1(array[p_day]) loop
    return query
    select g.ordinal, x.seq, x.status, x.contribution, x.error
    from generate_series(0, p_count - 1) g(ordinal)
    cross join lateral (
      select h.seq, h.status, coalesce(h.contribution, h.changes) as contribution, case when h.status <> 6 then h.error end as error
      from dwarf.history h
      where h.flow_id = p_flow and h.branch = p_first + g.ordinal and h.day = v_day
      order by h.seq desc
      limit 1
    ) x;
    exit when found;  -- the rows of a flow stand together
  end loop;
end $$;

-- What a parked step left, and the answer to what it waited for. result is a completed child's final state, child_status and
-- child_error tell of another end; all three are null while the child is open. The child's own row is read: nothing of it was
-- copied.
create function dwarf.load_parks_v1(p_flow bigint[], p_branch bigint[])
returns table (flow_id bigint, branch bigint, kind smallint, kept json, answer json, child_id bigint, child_status smallint, child_error text
, result json)
language plpgsql stable rows 100
set plan_cache_mode = force_custom_plan
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set enable_material = off
set enable_memoize = off
set jit = off
as $$
#variable_conflict use_column
declare
  v_flow bigint[];
  v_branch bigint[];
  v_child bigint[];
  v_child_day int[];
  v_wanted int := cardinality(p_flow);
  v_rows int;
  v_day int;
begin
  return query
  select q.flow_id, q.branch, p.kind, p.kept, p.answer, p.child_id, null::smallint, null::text, null::json
  from unnest(p_flow, p_branch) q(flow_id, branch)
  cross join lateral (
    select x.kind, x.kept, x.answer, x.child_id from dwarf.parks x
    where x.flow_id = q.flow_id and x.branch = q.branch and x.child_id is null
    offset 0
  ) p;
  get diagnostics v_rows = row_count;
  if v_rows = v_wanted then
    return;
  end if;
  select array_agg(q.flow_id), array_agg(q.branch), array_agg(p.child_id), array_agg(p.child_day), count(*)
  into v_flow, v_branch, v_child, v_child_day, v_wanted
  from unnest(p_flow, p_branch) q(flow_id, branch)
  cross join lateral (
    select x.child_id, x.child_day from dwarf.parks x
    where x.flow_id = q.flow_id and x.branch = q.branch and x.child_id is not null
    offset 0
  ) p;
  foreach v_day in array dwarf.days_to_ask_v1(v_child_day) loop
    exit when v_wanted = 0;
    return query
    select q.flow_id, q.branch, p.kind, p.kept, p.answer, q.child_id, c.status, coalesce(c.error, c.reason), c.final_state
    from unnest(v_flow, v_branch, v_child, v_child_day) q(flow_id, branch, child_id, day)
    cross join lateral (
      select x.status, x.error, x.reason, x.final_state from dwarf.flows x
      where v_day in (q.day, -1) and x.flow_id = q.child_id and x.day = v_day
      offset 0
    ) c
    cross join lateral (select x.kind, x.kept, x.answer from dwarf.parks x where x.flow_id = q.flow_id and x.branch = q.branch offset 0) p;
    get diagnostics v_rows = row_count;
    v_wanted := v_wanted - v_rows;
  end loop;
  if v_wanted > 0 then
    return query
    select q.flow_id, q.branch, p.kind, p.kept, p.answer, q.child_id, null::smallint, null::text, null::json
    from unnest(v_flow, v_branch, v_child) q(flow_id, branch, child_id)
    cross join lateral (select x.kind, x.kept, x.answer from dwarf.parks x where x.flow_id = q.flow_id and x.branch = q.branch offset 0) p
    where q.child_id <> all (array(select s.flow_id from dwarf.statuses_v1(v_child) s where s.status > 5));
  end if;
end $$;
