-- The backlog of each band: how many steps are due, counted up to p_cap (null: all), and since when the oldest has been due.
-- Steps that sleep, wait or run are not in it. Bands and keys are skipped through in the order of the index; of a key only
-- the first row is read, so that the age is exact whatever the backlog.
create function dwarf.gauges_v1(p_cap bigint default 10000)
returns table (priority smallint, pending bigint, oldest_due_at timestamptz, fairness_keys bigint)
language plpgsql stable
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set enable_material = off
set jit = off
as $$
#variable_conflict use_column
begin
  return query
  with recursive k as (
    (
      select a.half, a.priority, a.fairness_key, a.claimable from dwarf.active a where a.claimable is not null
      order by a.half, a.priority, a.fairness_key, a.claimable limit 1
    )
    union all
    select n.half, n.priority, n.fairness_key, n.claimable
    from k cross join lateral (
      select a.half, a.priority, a.fairness_key, a.claimable from dwarf.active a
      where a.claimable is not null and (a.half, a.priority, a.fairness_key) > (k.half, k.priority, k.fairness_key)
      order by a.half, a.priority, a.fairness_key, a.claimable limit 1
    ) n
  ), b as (
    select k.priority, min(k.claimable) as oldest, count(distinct k.fairness_key) as keys, array_agg(distinct k.half) as halves
    from k group by k.priority
  )
  select b.priority, least(sum(c.counted)::bigint, p_cap), b.oldest, b.keys
  from b cross join lateral unnest(b.halves) h(half) cross join lateral (
    select count(*) as counted
    from (select from dwarf.active a where a.claimable is not null and a.half = h.half and a.priority = b.priority limit p_cap) x
  ) c
  group by b.priority, b.oldest, b.keys
  order by b.priority;
end $$;

-- Store figures for all to report, by name; figures of one reading share a moment.
create function dwarf.store_gauges_v1(p_session int, p_name text[], p_value float8[], p_now timestamptz default null) returns void
language sql volatile
begin atomic
  insert into dwarf.gauges as g (name, value, measured_at, session)
  select t.name, t.value, coalesce(p_now, dwarf.now()), p_session from unnest(p_name, p_value) t(name, value)
  order by t.name
  on conflict (name) do update set value = excluded.value, measured_at = excluded.measured_at, session = excluded.session;
end;

-- Measure the whole backlog for all to report alike, unless somebody has within p_age_ms; true if it was done. One row per band
-- and figure, called steps_pending/3, steps_oldest_due/3 (in seconds since 1970) and fairness_keys/3; a band without due work
-- has none, and `backlog` is the sum. Reads the index of all due steps: once a minute is often.
create function dwarf.refresh_gauges_v1(p_session int, p_age_ms int, p_now timestamptz default null) returns boolean
language plpgsql
as $$
declare
  v_now timestamptz := coalesce(p_now, dwarf.now());
  v_name text[];
  v_value float8[];
begin
  if exists (select from dwarf.gauges g where g.name = 'backlog' and g.measured_at > v_now - p_age_ms * interval '1 ms') then
    return false;
  end if;
  with b as materialized (select g.priority, g.pending, g.oldest_due_at, g.fairness_keys from dwarf.gauges_v1(null) g)
  select array_agg(f.name), array_agg(f.value) into v_name, v_value
  from (
    select x.name, x.value
    from b
    cross join lateral (
      values ('steps_pending/' || b.priority, b.pending::float8), ('steps_oldest_due/' || b.priority, extract(epoch from b.oldest_due_at)::float8)
      , ('fairness_keys/' || b.priority, b.fairness_keys::float8)
    ) x(name, value)
    union all
    select 'backlog', coalesce(sum(b.pending), 0)::float8 from b
  ) f;
  perform dwarf.store_gauges_v1(p_session, v_name, v_value, v_now);
  delete from dwarf.gauges g where g.name ~ '^(steps_pending|steps_oldest_due|fairness_keys)/' and g.measured_at < v_now;
  return true;
end $$;
