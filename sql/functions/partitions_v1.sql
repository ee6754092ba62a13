-- The partitions by day of flows and history. is_attached: it is one now; is_pending: a detach of it was begun and not ended;
-- neither: it was detached and waits to be dropped.
create function dwarf.partitions_v1() returns table (day int, parent text, is_attached boolean, is_pending boolean, rows_estimate bigint)
language sql stable
begin atomic
  select split_part(c.relname, '_d', 2)::int, split_part(c.relname, '_d', 1), i.inhrelid is not null and not i.inhdetachpending
  , coalesce(i.inhdetachpending, false), greatest(c.reltuples, 0)::bigint
  from pg_catalog.pg_class c
  left join pg_catalog.pg_inherits i on i.inhrelid = c.oid
  where c.relnamespace = 'dwarf'::regnamespace and c.relkind = 'r' and c.relname ~ '^(flows|history)_d[0-9]{1,9}$'
  order by 1, 2;
end;

-- The first flow id of a day, whether or not there is such a flow.
create function dwarf.first_id_of_day(p_day int) returns bigint
language sql immutable parallel safe
return (p_day::bigint * 24) << 36;

create function dwarf.day_of_id(p_flow_id bigint) returns int
language sql immutable parallel safe
return (p_flow_id >> 36) / 24;

create function dwarf.start_of_day(p_day int) returns timestamptz
language sql immutable parallel safe
return to_timestamp(946684800 + p_day::bigint * 86400);

-- Whether an open flow still stands in a day: its rows are to be found under that day, not under `kept`.
create function dwarf.is_open_day_v1(p_day int) returns boolean
language sql stable
return exists (
  select from dwarf.live l
  where l.flow_id >= dwarf.first_id_of_day(p_day) and l.flow_id < dwarf.first_id_of_day(p_day + 1) and l.day = p_day
);

-- Which partitions are missing: of today, of p_days_ahead days after it, and of older days in which an open flow stands, as
-- after a long time of creates without any engine. Live flows are skipped through day by day, never read one by one.
create function dwarf.missing_partitions_v1(p_today int, p_days_ahead int) returns table (day int, parent text)
language sql stable
set enable_seqscan = off
set enable_bitmapscan = off
begin atomic
  with recursive open_days as (
    (select dwarf.day_of_id(l.flow_id) as day from dwarf.live l order by l.flow_id limit 1)
    union all
    select (select dwarf.day_of_id(l.flow_id) from dwarf.live l where l.flow_id >= dwarf.first_id_of_day(o.day + 1) order by l.flow_id limit 1)
    from open_days o
    where o.day is not null
  ), wanted as (
    select o.day, t.parent
    from (select g as day from generate_series(p_today, p_today + p_days_ahead) g union select o.day from open_days o where o.day is not null) o
    cross join unnest(array['flows', 'history']) t(parent)
  )
  select w.day, w.parent from wanted w
  where not exists (select from dwarf.partitions_v1() p where p.day = w.day and p.parent = w.parent and p.is_attached)
  and (w.day >= p_today or dwarf.is_open_day_v1(w.day))
  order by 1, 2;
end;

-- Create the partitions that are missing, today's and those of p_days_ahead days after it, and return how many tables were
-- made. Any number of callers may run at once: they take turns on a lock that stops neither readers nor writers, and nobody
-- waits for it longer than lock_timeout (55P03: try again). A table of its own is attached: `partition of` would take the
-- parents for itself alone. Creating a flow needs no partition, recording its first step does (23514 when it is missing).
create function dwarf.ensure_partitions(p_days_ahead int default 7, p_now timestamptz default null) returns int
language plpgsql
set lock_timeout = '200ms'
as $$
declare
  v_today int := dwarf.day_of(coalesce(p_now, dwarf.now()));
  v_made int := 0;
  v_part record;
  v_name text;
begin
  if p_days_ahead not between 0 and 3660 then
    raise exception using errcode = 'DW400', message = format('days_ahead is %s; it must be from 0 to 3660', p_days_ahead);
  end if;
  if not exists (select from dwarf.missing_partitions_v1(v_today, p_days_ahead)) then
    return 0;
  end if;
  lock table only dwarf.flows in share update exclusive mode;
  lock table only dwarf.history in share update exclusive mode;
  for v_part in select m.day, m.parent from dwarf.missing_partitions_v1(v_today, p_days_ahead) m loop
    v_name := format('%s_d%s', v_part.parent, v_part.day);
    if to_regclass('dwarf.' || v_name) is null then
      execute format('create table dwarf.%I (like dwarf.%I including defaults including constraints including storage including compression)'
      , v_name, v_part.parent);
      v_made := v_made + 1;
    elsif exists (select from dwarf.partitions_v1() p where p.day = v_part.day and p.parent = v_part.parent and p.is_pending) then
      execute format('alter table dwarf.%I detach partition dwarf.%I finalize', v_part.parent, v_name);
    end if;
    execute format('alter table dwarf.%I attach partition dwarf.%I for values in (%s)', v_part.parent, v_name, v_part.day);
  end loop;
  return v_made;
end $$;
