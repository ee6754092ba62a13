-- Question: what does this flow wait for?
-- Put its key or its name into the first line. One row per branch of the flow and of its children; a flow without rows has
-- ended, or does not exist: see v_flows. A joining row waits for the branches it counts, a parked one for the child below it.

with asked as (
  select '1-0-0'::text as flow
)

, tree as (
  select l.flow_id
  from asked as q
  inner join dwarf.live as r
    on r.flow_id = ((split_part(q.flow, '-', 2)::bigint << 36) | split_part(q.flow, '-', 3)::bigint)
  inner join dwarf.live as l on r.root_id in (l.flow_id, l.root_id)
)

select
  dwarf.flow_name(a.flow_id) as flow
  , dwarf.step_id(a.branch, a.seq) as step_id
  , a.task
  , dwarf.status_name(a.status) as status
  , case
    when
      a.status = 2 and a.due_at < dwarf.now()
      then format('its run by session %s is past its deadline: the next sweep takes it back', a.owner)
    when a.status = 2 then format('session %s runs it, at most until %s', a.owner, a.due_at)
    when a.status = 3 then format('%s of %s branches have arrived', a.arrived, a.size)
    when a.status = 4 then format('an answer, since %s: resume it', p.parked_at)
    when a.status = 5 then format('its child %s', dwarf.flow_name(p.child_id))
    when a.wake_at is not null then format('it sleeps until %s', a.wake_at)
    when a.claimable is not null
      then format(
        'a claim, since %s: to %s; priority %s, key %L', a.claimable
        , (array['run', 'fold its branches', 'resolve its branches', 'take a cancellation', 'create more branches'])[a.todo + 1]
        , a.priority, a.fairness_key
      )
  end as waits_for
  , a.attempt
  , a.deaths
  , a.created_at
from tree as t
inner join dwarf.active as a on t.flow_id = a.flow_id
left join dwarf.parks as p on a.flow_id = p.flow_id and a.branch = p.branch
order by a.flow_id, a.branch;
