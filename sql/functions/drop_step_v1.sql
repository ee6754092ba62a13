-- Move to `kept` what must outlive the partitions of a day, at most p_limit trees, and return how many: every open tree with
-- rows there, and closed ones that ended at p_cutoff or later. Then remove the idempotency keys and forks of what will be dropped.
-- Returns 0 when nothing is left to do for that day. Where nothing is left but trees that cannot be moved, it raises why.
create function dwarf.clear_day_v1(p_day int, p_cutoff timestamptz, p_limit int) returns int
language plpgsql
set plan_cache_mode = force_custom_plan
set enable_seqscan = off
set jit = off
as $$
declare
  v_from bigint := dwarf.first_id_of_day(p_day);
  v_to bigint := dwarf.first_id_of_day(p_day + 1);
  v_roots bigint[];
  v_gone int;
begin
  v_roots := array(
    select l.root_id from dwarf.live l where l.flow_id >= v_from and l.flow_id < v_to and l.day = p_day order by l.flow_id limit p_limit
  );
  if cardinality(v_roots) = 0 then
    v_roots := array(
      select f.flow_id from dwarf.flows f where f.day = p_day and f.ended_at >= p_cutoff and f.root_id = f.flow_id limit p_limit
    );
  end if;
  if cardinality(v_roots) = 0 then
    -- Children of older trees: the root is open, or was moved before it closed.
    v_roots := array(
      select c.root_id
      from (select distinct f.root_id from dwarf.flows f where f.day = p_day and f.root_id <> f.flow_id) c
      where exists (select from dwarf.live l where l.flow_id = c.root_id)
      or exists (select from dwarf.flows k where k.flow_id = c.root_id and k.day = -1 and k.ended_at >= p_cutoff)
      limit p_limit
    );
  end if;
  if cardinality(v_roots) > 0 then
    return dwarf.each_tree_v1(v_roots, p_day);
  end if;
  delete from dwarf.idempotency i
  where (i.workflow, i.key) in (
    select x.workflow, x.key from dwarf.idempotency x
    where x.flow_id >= v_from and x.flow_id < v_to
    and not exists (select from dwarf.live l where l.flow_id = x.flow_id)
    and not exists (select from dwarf.flows k where k.flow_id = x.flow_id and k.day = -1)
    limit 10000
  );
  get diagnostics v_gone = row_count;
  if v_gone = 0 then
    delete from dwarf.forks o
    where (o.flow_id, o.branch, o.seq) in (
      select x.flow_id, x.branch, x.seq from dwarf.forks x
      where x.root_id >= v_from and x.root_id < v_to
      and not exists (select from dwarf.live l where l.flow_id = x.root_id)
      and not exists (select from dwarf.flows k where k.flow_id = x.root_id and k.day = -1)
      limit 10000
    );
    get diagnostics v_gone = row_count;
  end if;
  return v_gone;
end $$;

-- Move trees to `kept`, or without a day remove them, and return how many. One that cannot be, whatever the reason, stays as it is
-- and keeps no other from it; where none can be, what the first one came to is raised.
create function dwarf.each_tree_v1(p_root bigint[], p_day int default null) returns int
language plpgsql
as $$
declare
  v_root bigint;
  v_done int := 0;
  v_failure text;
begin
  begin
    perform case when p_day is null then dwarf.reap_trees_v1(p_root) else dwarf.move_trees_v1(p_root, p_day) end;
    return cardinality(p_root);
  exception
    when serialization_failure or deadlock_detected or lock_not_available then
      raise;
    when others then
      null;
  end;
  foreach v_root in array p_root loop
    begin
      perform case when p_day is null then dwarf.reap_trees_v1(array[v_root]) else dwarf.move_trees_v1(array[v_root], p_day) end;
      v_done := v_done + 1;
    exception
      when serialization_failure or deadlock_detected or lock_not_available then
        raise;
      when others then
        v_failure := coalesce(v_failure, format('flow %s cannot be %s: %s', dwarf.flow_name(v_root)
        , case when p_day is null then 'removed' else 'moved' end, sqlerrm));
    end;
  end loop;
  if v_done = 0 then
    raise exception using errcode = 'DW902', message = v_failure;
  end if;
  return v_done;
end $$;

-- Do the next piece of dropping every day before p_before: call it, each time in a transaction of its own, until it answers
-- 'done'. Flows that are open, or ended at p_cutoff or later (by default the start of p_before), are kept.
--   again   something was done: call again
--   run     call again after running `statement` outside any transaction: a partition is detached without stopping anybody
--   busy    another one is at work
--   failed  `day` has to stay, for what `fault` says: nothing of it is lost. Call again with the day in p_skip to go on with others
--   done    nothing is left to do
-- `day` is the one that was worked at, -1 for `kept`; is_gone: nothing is left of it. `dropped` counts the closed roots that this
-- piece removed. May be killed anywhere: what comes next is read from the catalogs. Nobody waits for its locks longer than lock_timeout (55P03: try again; a partition whose detach was cut short,
-- while an old snapshot may still see it, waits so). With p_concurrently off it detaches by itself, which stops readers and
-- writers of the parent for as long as it waits.
create function dwarf.drop_step_v1(
  p_before int
, p_cutoff timestamptz default null
, p_limit int default 100
, p_concurrently boolean default true
, p_now timestamptz default null
, p_skip int[] default '{}'
, out state text
, out statement text
, out dropped bigint
, out day int
, out is_gone boolean
, out fault text
)
language plpgsql
set lock_timeout = '200ms'
as $$
#variable_conflict use_column
declare
  v_cutoff timestamptz := coalesce(p_cutoff, dwarf.start_of_day(p_before));
  v_part record;
  v_roots bigint[];
begin
  if p_before > dwarf.day_of(coalesce(p_now, dwarf.now())) then
    raise exception using errcode = 'DW400', message = format('the day %s is not over yet; only earlier days can be dropped', p_before - 1);
  end if;
  dropped := 0;
  is_gone := false;
  state := 'again';
  if not pg_try_advisory_xact_lock(hashtext('dwarf retention'), 0) then
    state := 'busy';
    return;
  end if;
  -- A detached table first, then a detach that was begun, then the oldest day; flows before history.
  select p.day, p.parent, p.is_attached, p.is_pending, format('%s_d%s', p.parent, p.day) as name into v_part
  from dwarf.partitions_v1() p
  where p.day < p_before and p.day <> all (p_skip)
  order by p.is_attached or p.is_pending, p.is_attached, p.day, p.parent
  limit 1;
  day := coalesce(v_part.day, -1);
  begin
    if v_part.day is null and -1 = any (p_skip) then
      state := 'done';
    elsif v_part.day is null then
      v_roots := array(
        select f.flow_id from dwarf.flows f where f.day = -1 and f.ended_at < v_cutoff and f.root_id = f.flow_id
        order by f.ended_at, f.flow_id limit p_limit
      );
      if cardinality(v_roots) > 0 then
        dropped := dwarf.each_tree_v1(v_roots);
      else
        state := 'done';
      end if;
    elsif v_part.is_pending then
      execute format('alter table dwarf.%I detach partition dwarf.%I finalize', v_part.parent, v_part.name);
    elsif not v_part.is_attached and dwarf.is_open_day_v1(v_part.day) then
      execute format('alter table dwarf.%I attach partition dwarf.%I for values in (%s)', v_part.parent, v_part.name, v_part.day);
    elsif v_part.is_attached and dwarf.clear_day_v1(v_part.day, v_cutoff, p_limit) > 0 then
      null;
    elsif v_part.is_attached and p_concurrently then
      state := 'run';
      statement := format('alter table dwarf.%I detach partition dwarf.%I concurrently', v_part.parent, v_part.name);
    else
      dropped := dwarf.drop_table_v1(v_part.name);
      is_gone := not exists (select from dwarf.partitions_v1() p where p.day = v_part.day);
    end if;
  exception
    when serialization_failure or deadlock_detected or lock_not_available then
      raise;
    when others then
      state := 'failed';
      fault := sqlerrm;
      dropped := 0;
  end;
end $$;

-- Drop the table of a day and return how many closed roots were in it.
create function dwarf.drop_table_v1(p_name text) returns bigint
language plpgsql
as $$
declare
  v_roots bigint := 0;
begin
  if p_name like 'flows%' then
    execute format('select count(*) from dwarf.%I f where f.root_id = f.flow_id', p_name) into v_roots;
  end if;
  execute format('drop table dwarf.%I', p_name);
  return v_roots;
end $$;

-- Drop what was created before a day (UTC) and had ended by then; without a day, what is older than 30 days. Returns the
-- number of closed roots removed. All in one transaction, which asks for the tables for itself alone: `dwarf archive drop`
-- does the same without stopping anybody.
create function dwarf.drop_partitions(p_before date default null, p_now timestamptz default null) returns bigint
language plpgsql
set lock_timeout = '200ms'
as $$
declare
  v_before int := coalesce(p_before - date '2000-01-01', dwarf.day_of(coalesce(p_now, dwarf.now())) - 30);
  v_step record;
  v_dropped bigint := 0;
begin
  loop
    select s.state, s.dropped, s.day, s.fault into v_step
    from dwarf.drop_step_v1(v_before, p_limit => 1000000, p_concurrently => false, p_now => p_now) s;
    v_dropped := v_dropped + v_step.dropped;
    exit when v_step.state = 'done';
    if v_step.state = 'busy' then
      raise exception using errcode = '55P03', message = 'another session is dropping partitions now; try again';
    elsif v_step.state = 'failed' then
      raise exception using errcode = 'DW902', message = format('day %s has to stay: %s', v_step.day, v_step.fault);
    end if;
  end loop;
  perform dwarf.audit_v1('drop', null, null, json_build_object('before', date '2000-01-01' + v_before, 'flows', v_dropped), p_now);
  return v_dropped;
end $$;
