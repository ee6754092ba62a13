-- What in this shard is as it must never be, one row per fault: the rule that is broken, the flow and branch where, and what is
-- there. Reads everything open, and the p_ended flows that ended last. Planned anew at each call, for tables that were empty a
-- moment ago may be full, and never compiled: with many partitions that takes minutes, and running it less than a second.
create function dwarf.faults_v1(p_ended int default 20000) returns table (rule text, flow_id bigint, branch bigint, detail text)
language plpgsql stable
set plan_cache_mode = force_custom_plan
set jit = off
as $$
#variable_conflict use_column
begin
  return query
  with open_flows as not materialized (
    select
      l.flow_id
      , l.root_id
      , l.caller_flow
      , l.caller_branch
      , l.caller_seq
      , l.nesting
      , l.priority
      , l.day
      , l.status
      , l.path
    from dwarf.live as l
  )

  , rows as not materialized (
    select
      a.flow_id
      , a.branch
      , a.seq
      , a.lease
      , a.owner
      , a.status
      , a.todo
      , a.priority
      , a.half
      , a.parked
      , a.day
      , a.base_seq
      , a.base_branch
      , a.claimable
      , a.wake_at
      , a.started_at
      , a.due_at
      , a.join_branch
      , a.ordinal
      , a.size
      , a.expanded
      , a.arrived
      , a.failed
    from dwarf.active as a
  )

  , parked as not materialized (
    select
      p.flow_id
      , p.branch
      , p.seq
      , p.kind
      , p.root_id
      , p.child_id
      , p.answer is not null as is_answered
    from dwarf.parks as p
  )

  , counted as materialized (
    select
      r.flow_id
      , r.join_branch
      , count(*) as branches
    from rows as r
    where r.join_branch is not null
    group by r.flow_id, r.join_branch
  )

  , ended as materialized (
    select
      f.flow_id
      , f.day
      , f.root_id
    from dwarf.flows as f
    order by f.ended_at desc, f.flow_id desc
    limit p_ended
  )

  , faults (rule, flow_id, branch, detail) as (
    -- Flows and their rows.
    select
      'an ended flow has a live branch'
      , r.flow_id
      , r.branch
      , format('status %s, seq %s', r.status, r.seq)
    from rows as r
    where
      not exists (
        select from open_flows as o
        where o.flow_id = r.flow_id
      )
    union all
    select
      'an ended flow has a park'
      , p.flow_id
      , p.branch
      , format('kind %s, seq %s', p.kind, p.seq)
    from parked as p
    where
      not exists (
        select from open_flows as o
        where o.flow_id = p.flow_id
      )
    union all
    select
      'an open flow has no live branch'
      , o.flow_id
      , null::bigint
      , format('root %s', o.root_id)
    from open_flows as o
    where
      not exists (
        select from rows as r
        where r.flow_id = o.flow_id
      )
    union all
    select
      'a flow is open and ended at once'
      , o.flow_id
      , null::bigint
      , format('found under day %s', f.day)
    from open_flows as o cross join
      lateral (
        select x.day from dwarf.flows as x
        where x.flow_id = o.flow_id and x.day in (o.day, -1)
        order by x.day
        limit 1
      ) as f
    union all
    select
      'an open flow is being closed for ever'
      , o.flow_id
      , null::bigint
      , format('status %s', o.status)
    from open_flows as o
    where o.status <> 1
    union all
    select
      'a day does not fit'
      , r.flow_id
      , r.branch
      , format('row %s, flow %s, id %s', r.day, o.day, dwarf.day_of_id(r.flow_id))
    from rows as r inner join open_flows as o on r.flow_id = o.flow_id
    where r.day <> o.day or o.day not in (dwarf.day_of_id(o.flow_id), -1)
    union all
    select
      'a row has not the priority and half of its tree'
      , r.flow_id
      , r.branch
      , format('priority %s, half %s', r.priority, r.half)
    from rows as r inner join open_flows as o on r.flow_id = o.flow_id
    where r.priority <> o.priority or r.half <> hashint8(o.root_id) & 1
    -- Trees.
    union all
    select
      'the root of an open flow is not an open root'
      , o.flow_id
      , null::bigint
      , format('root %s', o.root_id)
    from open_flows as o
    where
      not exists (
        select from open_flows as t
        where t.flow_id = o.root_id and t.root_id = t.flow_id
      )
    union all
    select
      'the root of an ended flow does not exist'
      , e.flow_id
      , null::bigint
      , format('root %s', e.root_id)
    from ended as e
    where
      e.root_id <> e.flow_id and not exists (
        select from open_flows as o
        where o.flow_id = e.root_id and o.root_id = o.flow_id
      )
      and not exists (
        select from dwarf.flows as f
        where f.flow_id = e.root_id and f.root_id = f.flow_id and f.day in (dwarf.day_of_id(e.root_id), -1)
      )
    union all
    select
      'an open child has no caller that waits for it'
      , o.flow_id
      , null::bigint
      , format('caller %s, branch %s, seq %s', o.caller_flow, o.caller_branch, o.caller_seq)
    from open_flows as o
    where (o.root_id <> o.flow_id or o.caller_flow is not null) and not exists (
      select from rows as r
      inner join open_flows as c on r.flow_id = c.flow_id
      inner join parked as p on r.flow_id = p.flow_id and r.branch = p.branch and r.seq = p.seq
      where
        r.flow_id = o.caller_flow and r.branch = o.caller_branch and r.seq = o.caller_seq and r.status = 5
        and c.root_id = o.root_id and c.nesting = o.nesting - 1 and p.child_id = o.flow_id
    )
    -- Cohorts.
    union all
    select
      'the counts of a cohort are out of order'
      , r.flow_id
      , r.branch
      , format('failed %s, arrived %s, expanded %s, size %s', r.failed, r.arrived, r.expanded, r.size)
    from rows as r
    where
      r.size is not null and not coalesce(0 <= r.failed and r.failed <= r.arrived and r.arrived <= r.expanded and r.expanded <= r.size, false)
      or r.size is null and coalesce(r.failed, r.arrived, r.expanded) is not null
    union all
    select
      'arrivals and live branches are not the branches made'
      , r.flow_id
      , r.branch
      , format('expanded %s, arrived %s, live %s', r.expanded, r.arrived, coalesce(c.branches, 0))
    from rows as r left join counted as c on r.flow_id = c.flow_id and r.branch = c.join_branch
    where r.size is not null and r.arrived <> r.expanded - coalesce(c.branches, 0)
    union all
    select
      'a branch points at no joining row'
      , r.flow_id
      , r.branch
      , format('joins branch %s as %s', r.join_branch, r.ordinal)
    from rows as r left join rows as j on r.flow_id = j.flow_id and r.join_branch = j.branch
    where
      (r.join_branch is null) <> (r.branch = 0)
      or r.join_branch is not null and not coalesce(r.ordinal >= 0 and r.ordinal < j.expanded, false)
    union all
    select
      'a joining row has not the status its counts ask for'
      , r.flow_id
      , r.branch
      , format('status %s, todo %s, arrived %s, expanded %s, size %s', r.status, r.todo, r.arrived, r.expanded, r.size)
    from rows as r
    where
      r.size is null and (r.status = 3 or r.todo in (1, 2, 4))
      or r.size is not null and (r.todo = 4) <> (r.expanded < r.size)
      or r.size is not null and r.todo <> 4 and (r.status = 3) <> (r.arrived < r.size)
      or r.size is not null and r.status <> 3 and r.todo = 0
    -- What a row is doing.
    union all
    select
      'a row has an owner and does not run, or runs without'
      , r.flow_id
      , r.branch
      , format('status %s, owner %s', r.status, r.owner)
    from rows as r
    where (r.owner is not null) <> (r.status = 2) or r.status = 2 and (r.lease = 0 or r.started_at is null or r.due_at is null)
    union all
    select
      'a row that should wait for a claim cannot be found, or one that should not can'
      , r.flow_id
      , r.branch
      , format('status %s, todo %s, claimable %s, wake_at %s', r.status, r.todo, r.claimable, r.wake_at)
    from rows as r
    where num_nonnulls(r.claimable, r.wake_at) <> case when r.status = 1 then 1 else 0 end or r.status not in (1, 2, 3, 4, 5)
    union all
    select
      'parked, without its park or against it'
      , r.flow_id
      , r.branch
      , format('status %s, parked %s, seq %s, park of kind %s and seq %s', r.status, r.parked, r.seq, p.kind, p.seq)
    from rows as r left join parked as p on r.flow_id = p.flow_id and r.branch = p.branch
    where
      r.parked <> (p.flow_id is not null)
      or r.parked and p.seq <> r.seq
      or (r.status = 4) <> coalesce(p.kind = 1 and not p.is_answered, false)
      or (r.status = 5) <> coalesce(p.kind = 2 and exists (
        select from open_flows as o
        where o.flow_id = p.child_id
      ), false)
    union all
    select
      'a park belongs to no live branch, or to another tree'
      , p.flow_id
      , p.branch
      , format('kind %s, root %s', p.kind, p.root_id)
    from parked as p
    where
      not exists (
        select from rows as r
        where r.flow_id = p.flow_id and r.branch = p.branch
      )
      or exists (
        select from open_flows as o
        where o.flow_id = p.flow_id and o.root_id <> p.root_id
      )
    -- History.
    union all
    select
      'the history of a live branch has gaps, or goes beyond it'
      , r.flow_id
      , r.branch
      , format('seq %s, %s rows, the last one %s', r.seq, h.steps, h.last)
    from rows as r cross join
      lateral (
        select
          count(*) as steps
          , coalesce(max(x.seq), 0) as last
        from dwarf.history as x
        where x.flow_id = r.flow_id and x.branch = r.branch and x.day = r.day
      ) as h
    where h.steps <> r.seq - 1 or h.last <> r.seq - 1
    union all
    select
      'a row stands on a state that is not there'
      , r.flow_id
      , r.branch
      , format('branch %s, seq %s', r.base_branch, r.base_seq)
    from rows as r
    where (r.base_branch, r.base_seq) <> (0, 0) and not exists (
      select from dwarf.history as h
      where h.flow_id = r.flow_id and h.branch = r.base_branch and h.seq = r.base_seq and h.day = r.day and h.state is not null
    )
    union all
    select
      'the history of an ended flow has gaps, or none'
      , e.flow_id
      , h.branch
      , format('%s rows, the last one %s', h.steps, h.last)
    from ended as e left join lateral (
      select
        x.branch
        , count(*) as steps
        , max(x.seq) as last
      from dwarf.history as x
      where x.flow_id = e.flow_id and x.day = e.day
      group by x.branch
    ) as h on true
    where h.steps is null or h.steps <> h.last
    union all
    select
      'an ended flow has a branch without a beginning'
      , e.flow_id
      , h.branch
      , format('parent %s, ordinal %s', h.parent_branch, h.ordinal)
    from ended as e cross join
      lateral (
        select
          x.branch
          , x.parent_branch
          , x.parent_seq
          , x.ordinal
          , x.day
        from dwarf.history as x
        where x.flow_id = e.flow_id and x.day = e.day and x.seq = 1 and x.branch <> 0
      ) as h
    where
      not exists (
        select from dwarf.history as p
        where
          p.flow_id = e.flow_id and p.branch = h.parent_branch and p.seq = h.parent_seq and p.day = e.day
          and p.fan_first + h.ordinal = h.branch and h.ordinal < p.fan_size
      )
    -- What speaks of flows.
    union all
    select
      'an open flow is marked as deleted'
      , d.flow_id
      , null::bigint
      , format('hidden at %s', d.hidden_at)
    from dwarf.doomed as d
    where
      exists (
        select from open_flows as o
        where o.flow_id = d.flow_id
      )
    union all
    select
      'an idempotency key leads nowhere'
      , i.flow_id
      , null::bigint
      , format('workflow %s', i.workflow)
    from dwarf.idempotency as i
    where
      not exists (
        select from open_flows as o
        where o.flow_id = i.flow_id
      )
      and not exists (
        select from dwarf.flows as f
        where f.flow_id = i.flow_id and f.day in (dwarf.day_of_id(i.flow_id), -1)
      )
  )

  select
    f.rule
    , f.flow_id
    , f.branch
    , f.detail
  from faults as f
  order by f.rule, f.flow_id, f.branch;
end $$;
