-- Question: which open flows get nowhere?
-- A flow is listed when something of it should have moved five minutes ago: a due step that nobody claims, a sleeper that
-- nobody wakes, a run past its deadline. `waits_for` says which; then see why_is_this_flow_waiting. Interrupted flows are
-- not stuck: see interrupted_flows.

with late as (
  select
    a.flow_id
    , a.task
    , case
      when a.claimable is not null then 'a claim: is any engine running, are there slots?'
      when a.wake_at is not null then 'waking: does any dispatcher run?'
      else 'the sweep: its run is past its deadline'
    end as waits_for
    , coalesce(a.claimable, a.wake_at, a.due_at) as since
  from dwarf.active as a
  where coalesce(a.claimable, a.wake_at, a.due_at) < dwarf.now() - interval '5 minutes'
)

select
  dwarf.flow_name(l.flow_id) as flow
  , l.workflow
  , late.task
  , late.waits_for
  , late.since
  , count(*) over (partition by late.waits_for) as alike
from late
inner join dwarf.live as l on late.flow_id = l.flow_id
order by late.since, l.flow_id
limit 100;
