-- What a list shows of a flow. On the last row of an answer that is not the end of the list, is_place is set and flow_id and
-- ended_at say where to go on; all else in it is null.
create type dwarf.listed as (
  flow_id bigint
, ended_at timestamptz
, is_place boolean
, token text
, thread_id bigint
, thread_token text
, workflow text
, name text
, status smallint
, task text
, error text
, reason text
, created_at timestamptz
, started_at timestamptz
, updated_at timestamptz
, priority smallint
, fairness_key text
, tenant text
, is_child boolean
);

-- Whether a flow passes the filters that name it; null filters nothing, texts compare exactly. p_search is lower case already. Not
-- immutable, since concat_ws is not: a function that says more than is true of its body is called once a row instead of inlined.
create function dwarf.is_listed_v1(
  p_workflow text, p_wanted_workflow text, p_fairness_key text, p_wanted_fairness_key text, p_priority smallint, p_wanted_priority smallint
, p_tenant text, p_wanted_tenant text, p_search text, p_name text, p_task text, p_error text, p_reason text
) returns boolean
language sql stable parallel safe
return (p_wanted_workflow is null or p_workflow = p_wanted_workflow)
  and (p_wanted_fairness_key is null or p_fairness_key = p_wanted_fairness_key)
  and (p_wanted_priority is null or p_priority = p_wanted_priority)
  and (p_wanted_tenant is null or p_tenant = p_wanted_tenant)
  and (
    p_search is null
    or position(p_search in lower(concat_ws(chr(10), p_workflow, p_name, p_task, p_fairness_key, p_error, p_reason))) > 0
  );

-- A page of open flows, newest first: at most p_limit of those before p_before (null: from the newest). At most p_scan flows are
-- looked at, for at most p_ms milliseconds, so that a page may hold few flows, even none, and go on.
create function dwarf.list_open_v1(
  p_limit int
, p_before bigint default null
, p_status smallint default null
, p_workflow text default null
, p_name text default null
, p_thread_id bigint default null
, p_task text default null
, p_fairness_key text default null
, p_priority smallint default null
, p_tenant text default null
, p_older_than timestamptz default null
, p_newer_than timestamptz default null
, p_with_children boolean default false
, p_search text default null
, p_scan int default 20000
, p_ms int default 300
) returns setof dwarf.listed
language plpgsql stable
set plan_cache_mode = force_custom_plan
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set jit = off
as $$
declare
  v_deadline timestamptz := clock_timestamp() + p_ms * interval '1 ms';
  v_place bigint := coalesce(p_before, 9223372036854775807);
  v_scanned int := 0;
  v_ids bigint[];
  v_page dwarf.listed[] := '{}';
  v_row dwarf.listed;
  v_is_end boolean;
begin
  loop
    v_ids := array(select l.flow_id from dwarf.live l where l.flow_id < v_place order by l.flow_id desc limit least(500, p_scan - v_scanned));
    for v_row in
      select l.flow_id, null, false, l.token, l.thread_id, t.token, l.workflow, g.name, i.status, a.task, null, l.reason, l.created_at
      , a.started_at, greatest(a.updated_at, i.parked_at, l.created_at), l.priority, l.fairness_key, l.tenant, l.root_id <> l.flow_id
      from unnest(v_ids) u(id)
      cross join lateral (select x.* from dwarf.live x where x.flow_id = u.id offset 0) l
      join dwarf.graphs g on g.graph_id = l.graph_id
      cross join lateral (
        select case when max(p.parked_at) is null then 1 else 4 end::smallint as status, max(p.parked_at) as parked_at from dwarf.parks p
        where p.root_id = l.root_id and p.kind = 1 and p.answer is null and p.path @> array[l.flow_id]
      ) i
      cross join lateral (
        select max(x.task) filter (where x.branch = 0 and x.size is null) as task
        , max(greatest(x.created_at, x.started_at)) as updated_at
        , min(x.started_at) filter (where x.branch = 0 and x.seq = 1) as started_at
        from dwarf.active x where x.flow_id = l.flow_id
      ) a
      left join lateral (select x.token from dwarf.live x where x.flow_id = l.thread_id and l.thread_id <> l.flow_id) t on true
      where (p_with_children or l.root_id = l.flow_id)
      and (p_status is null or i.status = p_status)
      and (p_name is null or g.name = p_name)
      and (p_thread_id is null or l.thread_id = p_thread_id)
      and (p_task is null or a.task = p_task)
      and (p_older_than is null or greatest(a.updated_at, i.parked_at, l.created_at) < p_older_than)
      and (p_newer_than is null or greatest(a.updated_at, i.parked_at, l.created_at) >= p_newer_than)
      and dwarf.is_listed_v1(l.workflow, p_workflow, l.fairness_key, p_fairness_key, l.priority, p_priority, l.tenant, p_tenant, p_search
      , g.name, a.task, null, l.reason)
      order by l.flow_id desc
    loop
      v_page := v_page || v_row;
      v_place := v_row.flow_id;
      exit when cardinality(v_page) = p_limit;
    end loop;
    v_scanned := v_scanned + cardinality(v_ids);
    v_is_end := cardinality(v_ids) = 0;
    exit when v_is_end or cardinality(v_page) = p_limit;
    v_place := v_ids[cardinality(v_ids)];
    exit when v_scanned >= p_scan or clock_timestamp() > v_deadline;
  end loop;
  return query select f.* from dwarf.complete_page_v1(v_page) f;
  if not v_is_end then
    v_row := null;
    v_row.flow_id := v_place;
    v_row.is_place := true;
    return next v_row;
  end if;
end $$;

-- A page of ended flows, the last ended first, deleted ones left out: at most p_limit of those before (p_before_at, p_before_id).
-- Bounds and budgets as in list_open_v1; the bounds are on ended_at, and what they exclude is not looked at.
create function dwarf.list_closed_v1(
  p_limit int
, p_before_at timestamptz default null
, p_before_id bigint default null
, p_status smallint default null
, p_workflow text default null
, p_name text default null
, p_thread_id bigint default null
, p_task text default null
, p_fairness_key text default null
, p_priority smallint default null
, p_tenant text default null
, p_older_than timestamptz default null
, p_newer_than timestamptz default null
, p_with_children boolean default false
, p_search text default null
, p_scan int default 20000
, p_ms int default 300
) returns setof dwarf.listed
language plpgsql stable
set plan_cache_mode = force_custom_plan
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set jit = off
as $$
declare
  v_deadline timestamptz := clock_timestamp() + p_ms * interval '1 ms';
  v_at timestamptz := least(p_before_at, p_older_than, 'infinity');
  v_id bigint := case when p_before_at is not null and p_before_at <= least(p_older_than, 'infinity') then p_before_id else -1 end;
  v_since timestamptz := coalesce(p_newer_than, '-infinity');
  v_to int;
  v_chunk int;
  v_seen int;
  v_scanned int := 0;
  v_page dwarf.listed[] := '{}';
  v_line record;
  v_row dwarf.listed;
begin
  loop
    v_chunk := least(500 << least(v_scanned / 500, 4), p_scan - v_scanned);
    v_seen := 0;
    v_to := case when v_at < 'infinity' then dwarf.day_of(v_at) else 2147483647 end;  -- no flow ends before the day it was created
    for v_line in
      select row(f.flow_id, f.ended_at, false, f.token, f.thread_id, null, f.workflow, g.name, f.status, f.task, f.error, f.reason
      , f.created_at, null, f.ended_at, f.priority, f.fairness_key, f.tenant, f.root_id <> f.flow_id)::dwarf.listed as listed
      , (p_with_children or f.root_id = f.flow_id)
      and (p_status is null or f.status = p_status)
      and (p_name is null or g.name = p_name)
      and (p_thread_id is null or f.thread_id = p_thread_id)
      and (p_task is null or f.task = p_task)
      and dwarf.is_listed_v1(f.workflow, p_workflow, f.fairness_key, p_fairness_key, f.priority, p_priority, f.tenant, p_tenant, p_search
      , g.name, f.task, f.error, f.reason)
      and not exists (select from dwarf.doomed d where d.flow_id = f.root_id) as fits
      from (
        select x.flow_id, x.ended_at, x.token, x.thread_id, x.workflow, x.status, x.task, x.error, x.reason, x.created_at, x.priority
        , x.fairness_key, x.tenant, x.root_id, x.graph_id
        from dwarf.flows x
        where (x.ended_at, x.flow_id) < (v_at, v_id) and x.ended_at >= v_since and x.day <= v_to
        order by x.ended_at desc, x.flow_id desc
        limit v_chunk
      ) f
      join dwarf.graphs g on g.graph_id = f.graph_id
      order by f.ended_at desc, f.flow_id desc
    loop
      v_seen := v_seen + 1;
      v_row := v_line.listed;
      if v_line.fits then
        v_page := v_page || v_row;
      end if;
      exit when cardinality(v_page) = p_limit;
    end loop;
    if v_seen > 0 then
      v_at := v_row.ended_at;
      v_id := v_row.flow_id;
    end if;
    v_scanned := v_scanned + v_chunk;
    exit when cardinality(v_page) = p_limit or v_seen < v_chunk or v_scanned >= p_scan or clock_timestamp() > v_deadline;
  end loop;
  return query select f.* from dwarf.complete_page_v1(v_page) f;
  if cardinality(v_page) = p_limit or v_seen = v_chunk then
    v_row := null;
    v_row.flow_id := v_id;
    v_row.ended_at := v_at;
    v_row.is_place := true;
    return next v_row;
  end if;
end $$;

-- Fill in what takes a look elsewhere: when the entry steps were started, and the tokens of the threads (null once their first
-- flow is gone). By day, so that each look asks one partition.
create function dwarf.complete_page_v1(p_page dwarf.listed[]) returns setof dwarf.listed
language plpgsql stable
set plan_cache_mode = force_custom_plan
set enable_seqscan = off
set jit = off
as $$
declare
  v_ids bigint[] := array(select f.flow_id from unnest(p_page) f where f.started_at is null);
  v_threads bigint[] := array(select distinct f.thread_id from unnest(p_page) f where f.thread_id <> f.flow_id and f.thread_token is null);
  v_starts jsonb := '{}';
  v_tokens jsonb := (select coalesce(jsonb_object_agg(l.flow_id, l.token), '{}') from dwarf.live l where l.flow_id = any (v_threads));
  v_day int;
  v_row dwarf.listed;
begin
  for v_day in
    select d.day from (select distinct dwarf.day_of_id(t.id) as day from unnest(v_ids || v_threads) t(id) union select -1) d
  loop
    v_starts := v_starts || (
      select coalesce(jsonb_object_agg(h.flow_id, h.started_at), '{}') from dwarf.history h
      where h.flow_id = any (v_ids) and h.branch = 0 and h.seq = 1 and h.day = v_day
    );
    v_tokens := v_tokens || (
      select coalesce(jsonb_object_agg(f.flow_id, f.token), '{}') from dwarf.flows f where f.flow_id = any (v_threads) and f.day = v_day
    );
  end loop;
  foreach v_row in array p_page loop
    v_row.started_at := coalesce(v_row.started_at, (v_starts ->> v_row.flow_id::text)::timestamptz);
    v_row.thread_token := case when v_row.thread_id = v_row.flow_id then v_row.token else coalesce(v_row.thread_token, v_tokens ->> v_row.thread_id::text) end;
    return next v_row;
  end loop;
end $$;

-- Roots that a purge would take, oldest ids first: ended ones that are not deleted yet, or, where p_status asks for them, open ones
-- that are interrupted; those have parked_at, the time of their last interrupt. Filters as in list_closed_v1 and list_open_v1. At
-- most p_limit of those after p_after; at most p_scan roots are looked at. Where more may follow, the last row has is_place set and
-- says where to go on.
create function dwarf.stopped_v1(
  p_limit int
, p_after bigint default 0
, p_status smallint default null
, p_workflow text default null
, p_name text default null
, p_thread_id bigint default null
, p_task text default null
, p_fairness_key text default null
, p_priority smallint default null
, p_tenant text default null
, p_older_than timestamptz default null
, p_newer_than timestamptz default null
, p_search text default null
, p_scan int default 20000
) returns table (flow_id bigint, parked_at timestamptz, is_place boolean)
language plpgsql stable
set plan_cache_mode = force_custom_plan
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set jit = off
as $$
#variable_conflict use_column
declare
  v_line record;
  v_place bigint := p_after;
  v_seen int := 0;
  v_found int := 0;
begin
  for v_line in
    select r.id, r.parked_at
    , (p_status is null or r.status = p_status)
    and (p_name is null or g.name = p_name)
    and (p_thread_id is null or r.thread_id = p_thread_id)
    and (p_task is null or r.task = p_task)
    and (p_older_than is null or r.moved_at < p_older_than)
    and (p_newer_than is null or r.moved_at >= p_newer_than)
    and dwarf.is_listed_v1(r.workflow, p_workflow, r.fairness_key, p_fairness_key, r.priority, p_priority, r.tenant, p_tenant, p_search
    , g.name, r.task, r.error, r.reason)
    and not exists (select from dwarf.doomed d where d.flow_id = r.id) as fits
    from (
      (
        select f.flow_id as id, null::timestamptz as parked_at, f.status, f.thread_id, f.task, f.ended_at as moved_at, f.workflow
        , f.fairness_key, f.priority, f.tenant, f.error, f.reason, f.graph_id
        from dwarf.flows f
        where p_status is distinct from 4 and f.flow_id > p_after and f.root_id = f.flow_id
        order by f.flow_id limit p_scan
      )
      union all
      (
        select l.flow_id, p.parked_at, 4::smallint, l.thread_id, a.task, greatest(a.updated_at, p.parked_at, l.created_at), l.workflow
        , l.fairness_key, l.priority, l.tenant, null, l.reason, l.graph_id
        from (
          select x.root_id, max(x.parked_at) as parked_at from dwarf.parks x
          where p_status = 4 and x.kind = 1 and x.answer is null and x.root_id > p_after
          group by x.root_id
          order by x.root_id limit p_scan
        ) p
        cross join lateral (select x.* from dwarf.live x where x.flow_id = p.root_id offset 0) l
        cross join lateral (
          select max(x.task) filter (where x.branch = 0 and x.size is null) as task
          , max(greatest(x.created_at, x.started_at)) as updated_at
          from dwarf.active x where x.flow_id = l.flow_id
        ) a
      )
    ) r
    cross join lateral (select x.name from dwarf.graphs x where x.graph_id = r.graph_id offset 0) g
    order by r.id
    limit p_scan
  loop
    v_seen := v_seen + 1;
    v_place := v_line.id;
    continue when not v_line.fits;
    v_found := v_found + 1;
    return query select v_line.id, v_line.parked_at, false;
    exit when v_found = p_limit;
  end loop;
  if v_found = p_limit or v_seen = p_scan then
    return query select v_place, null::timestamptz, true;
  end if;
end $$;
