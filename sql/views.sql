create view dwarf.v_flows as
select
  dwarf.flow_key(x.shard::int, l.flow_id, l.token) as flow_key
  , dwarf.flow_name(x.shard::int, l.flow_id) as flow
  , l.workflow
  , case when exists (
    select from dwarf.parks as p
    where p.root_id = l.root_id and p.kind = 1 and p.answer is null and p.path @> array[l.flow_id]
  ) then 'interrupted' else 'running' end as status
  , case when a.size is null then a.task end as task
  , l.priority
  , l.fairness_key
  , l.tenant
  , l.created_at
  , null::timestamptz as ended_at
  , null::text as error
  , l.reason
  , l.root_id <> l.flow_id as is_child
  , l.flow_id
  , l.root_id
  , l.thread_id
from dwarf.live as l
left join dwarf.active as a on l.flow_id = a.flow_id and a.branch = 0
cross join dwarf.setting_v1('shard_index', 1) as x (shard)
union all
select
  dwarf.flow_key(x.shard::int, f.flow_id, f.token) as flow_key
  , dwarf.flow_name(x.shard::int, f.flow_id) as flow
  , f.workflow
  , dwarf.status_name(f.status) as status
  , f.task
  , f.priority
  , f.fairness_key
  , f.tenant
  , f.created_at
  , f.ended_at
  , f.error
  , f.reason
  , f.root_id <> f.flow_id as is_child
  , f.flow_id
  , f.root_id
  , f.thread_id
from dwarf.flows as f
cross join dwarf.setting_v1('shard_index', 1) as x (shard)
where not exists (
  select from dwarf.doomed as d
  where d.flow_id = f.root_id
);

create view dwarf.v_steps as
select
  dwarf.flow_name(x.shard::int, a.flow_id) as flow
  , dwarf.step_id(a.branch, a.seq) as step_id
  , a.task
  , dwarf.status_name(a.status) as status
  , (array['run', 'fold', 'resolve', 'cancel', 'expand'])[a.todo + 1] as todo
  , a.depth
  , a.attempt
  , a.created_at
  , a.started_at
  , null::timestamptz as ended_at
  , coalesce(a.claimable, a.wake_at) as due_at
  , a.owner as session
  , null::text as left_by
  , null::text as error
  , p.child_id
  , a.flow_id
  , a.branch
  , a.seq
  , true as is_live
from dwarf.active as a
left join dwarf.parks as p on a.flow_id = p.flow_id and a.branch = p.branch
cross join dwarf.setting_v1('shard_index', 1) as x (shard)
union all
select
  dwarf.flow_name(x.shard::int, h.flow_id) as flow
  , dwarf.step_id(h.branch, h.seq) as step_id
  , h.task
  , dwarf.status_name(h.status) as status
  , null as todo
  , h.depth
  , h.attempt
  , h.created_at
  , h.started_at
  , h.ended_at
  , null as due_at
  , h.owner
  , (array['normal', 'goto', 'error', 'cancel'])[h.via + 1] as left_by
  , h.error
  , h.child_id
  , h.flow_id
  , h.branch
  , h.seq
  , false as is_live
from dwarf.history as h
cross join dwarf.setting_v1('shard_index', 1) as x (shard)
where h.via <> 4;

create view dwarf.v_backlog as
select
  a.priority
  , a.fairness_key
  , count(*) as pending
  , min(a.claimable) as oldest_due_at
  , round(extract(epoch from dwarf.now() - min(a.claimable))::numeric, 1) as oldest_due_seconds
  , min(a.weight) as weight
from dwarf.active as a
where a.claimable is not null
group by a.priority, a.fairness_key;

create view dwarf.v_running as
select
  dwarf.flow_name(x.shard::int, a.flow_id) as flow
  , dwarf.step_id(a.branch, a.seq) as step_id
  , l.workflow
  , a.task
  , a.attempt
  , a.owner as session
  , p.engine_id
  , a.started_at
  , round(extract(epoch from dwarf.now() - a.started_at)::numeric, 1) as running_seconds
  , a.due_at
  , a.due_at < dwarf.now() or p.session is null or p.expires_at < dwarf.now() as is_recoverable
  , a.flow_id
  , a.branch
  , a.seq
  , a.lease
from dwarf.active as a
inner join dwarf.live as l on a.flow_id = l.flow_id
left join dwarf.peers as p on a.owner = p.session
cross join dwarf.setting_v1('shard_index', 1) as x (shard)
where a.owner is not null;

create view dwarf.v_tenants as
with s as (
  select
    a.flow_id
    , count(*) filter (where a.claimable is not null) as steps_due
    , count(*) filter (where a.status = 2) as steps_running
    , count(*) filter (where a.status = 4) as steps_interrupted
    , min(a.claimable) as oldest_due_at
  from dwarf.active as a
  group by a.flow_id
)

select
  l.tenant
  , count(*) filter (where l.root_id = l.flow_id) as flows_open
  , coalesce(sum(s.steps_due), 0)::bigint as steps_due
  , coalesce(sum(s.steps_running), 0)::bigint as steps_running
  , coalesce(sum(s.steps_interrupted), 0)::bigint as steps_interrupted
  , min(s.oldest_due_at) as oldest_due_at
from dwarf.live as l
left join s on l.flow_id = s.flow_id
group by l.tenant;

create view dwarf.v_sessions as
with o as (
  select
    a.owner
    , count(*) as steps
    , min(a.started_at) as oldest_started_at
  from dwarf.active as a
  where a.owner is not null
  group by a.owner
)

, n as (
  select
    l.session
    , count(*) as lanes
    , sum(l.batch)::bigint as batches
  from dwarf.lanes as l
  group by l.session
)

select
  coalesce(p.session, o.owner) as session
  , p.engine_id
  , case
    when p.session is null then 'missing'
    when p.expires_at < dwarf.now() then 'expired'
    when p.missing_since is not null then 'missing'
    else 'alive'
  end as state
  , p.is_dispatcher
  , p.started_at
  , round(extract(epoch from dwarf.now() - p.renewed_at)::numeric, 1) as renewed_seconds_ago
  , round(extract(epoch from p.expires_at - dwarf.now())::numeric, 1) as expires_in_seconds
  , coalesce(o.steps, 0) as steps_running
  , o.oldest_started_at
  , n.lanes
  , n.batches
from dwarf.peers as p
full join o on p.session = o.owner
left join n on p.session = n.session;

create view dwarf.v_health as
with facts as (
  select
    (select extract(epoch from dwarf.now() - min(g.oldest_due_at)) from dwarf.gauges_v1(1) as g) as oldest_due
    , (
      select extract(epoch from dwarf.now() - min(a.wake_at)) from dwarf.active as a
      where a.wake_at is not null
    ) as oldest_sleeper
    , (
      select count(*) from dwarf.v_sessions as s
      where s.state <> 'alive' and s.steps_running > 0
    ) as lost_sessions
    , (
      select count(*) from dwarf.peers as p
      where p.is_dispatcher and p.expires_at > dwarf.now()
    ) as dispatchers
    , (select count(*) from dwarf.missing_partitions_v1(dwarf.day_of(dwarf.now()), 1)) as missing_partitions
    , (
      select count(*) from dwarf.partitions_v1() as p
      where not p.is_attached
    ) as half_dropped
    , (select extract(epoch from dwarf.now() - min(d.due_at)) from dwarf.doomed as d) as oldest_doomed
    , (
      select max(extract(epoch from clock_timestamp() - s.xact_start)) from pg_catalog.pg_stat_activity as s
      where s.datname = current_database() and s.backend_xmin is not null and s.pid <> pg_backend_pid()
    ) as oldest_snapshot
    , (
      select t.n_dead_tup::float8 / greatest(t.n_live_tup, 20000) from pg_catalog.pg_stat_user_tables as t
      where t.schemaname = 'dwarf' and t.relname = 'active'
    ) as dead_share
    , (select max(m.version) from dwarf.migrations as m) as schema_version
)

select
  c.question
  , c.answer
  , c.is_well
  , c.otherwise
from facts as f cross join lateral (
  values
  (
    'seconds the oldest due step has waited', round(coalesce(f.oldest_due, 0)::numeric, 1)::text, coalesce(f.oldest_due, 0) < 60
    , 'nothing claims, or more is due than there are slots: runbook oldest_due, backlog_by_band_and_key'
  )
  , (
    'seconds the oldest sleeper is overdue', round(greatest(f.oldest_sleeper, 0)::numeric, 1)::text, coalesce(f.oldest_sleeper, 0) < 60
    , 'no dispatcher wakes sleepers: runbook sessions'
  )
  , (
    'lost sessions that still hold steps', f.lost_sessions::text, f.lost_sessions = 0
    , 'a sweep takes them back within a minute where any engine runs: runbook who_runs_what'
  )
  , ('dispatchers alive', f.dispatchers::text, f.dispatchers > 0, 'no engine serves this shard: runbook sessions')
  , ('partitions missing for today and tomorrow', f.missing_partitions::text, f.missing_partitions = 0, 'select dwarf.ensure_partitions()')
  , (
    'partitions half dropped'
    , f.half_dropped::text
    , f.half_dropped = 0
    , 'retention was cut short and goes on by itself: runbook partition_sizes'
  )
  , (
    'seconds the oldest deleted flow waits for its removal', round(greatest(f.oldest_doomed, 0)::numeric, 1)::text
    , coalesce(f.oldest_doomed, 0) < 300, 'no engine reaps: select dwarf.reap_v1(100)'
  )
  , (
    'seconds the oldest snapshot has been held', round(coalesce(f.oldest_snapshot, 0)::numeric, 1)::text
    , coalesce(f.oldest_snapshot, 0) < 300, 'dead rows of dwarf.active stay, claims get slower: runbook long_snapshots'
  )
  , (
    'dead rows of dwarf.active for each live one', round(coalesce(f.dead_share, 0)::numeric, 2)::text, coalesce(f.dead_share, 0) < 50
    , 'vacuum does not keep up: runbook dead_tuples_of_active'
  )
  , ('version of the schema', f.schema_version::text, true, '')
) as c (question, answer, is_well, otherwise);
