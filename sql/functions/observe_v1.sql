-- Which bands of a half have due work, best first. One step down the claim index per band, whatever the backlog.
create function dwarf.due_bands_v1(p_half smallint) returns setof smallint
language plpgsql stable rows 5
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set enable_sort = off
set jit = off
as $$
declare
  v_band smallint := -1;
begin
  loop
    select a.priority into v_band from dwarf.active a
    where a.claimable is not null and a.half = p_half and a.priority > v_band
    order by a.priority
    limit 1;
    exit when not found;
    return next v_band;
  end loop;
end $$;

-- The fairness keys with due work in a band, after p_after in order, at most p_limit, each with the lowest weight among its
-- due rows. One step down an index per key, whatever the backlog: keys are found by skipping, never by counting.
create function dwarf.due_keys_v1(p_half smallint, p_priority smallint, p_after text, p_limit int)
returns table (fairness_key text, weight float8)
language plpgsql stable rows 200
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set enable_material = off
set enable_memoize = off
set enable_sort = off
set enable_incremental_sort = off
set jit = off
as $$
#variable_conflict use_column
declare
  v_from text := case when p_after is null then '' else p_after || chr(1) end;  -- keys sort by their bytes, all above 1
begin
  return query
  with recursive k(fairness_key, weight, place) as (
    (
      select a.fairness_key, a.weight, 1 from dwarf.active a
      where a.claimable is not null and a.half = p_half and a.priority = p_priority and a.fairness_key >= v_from
      order by a.fairness_key, a.weight
      limit 1
    )
    union all
    select n.fairness_key, n.weight, k.place + 1
    from k cross join lateral (
      select a.fairness_key, a.weight from dwarf.active a
      where a.claimable is not null and a.half = p_half and a.priority = p_priority and a.fairness_key > k.fairness_key
      order by a.fairness_key, a.weight
      limit 1
    ) n
    where k.place < p_limit
  )
  select k.fairness_key, k.weight from k;
end $$;
