-- Question: what has failed since midnight (UTC), and with which error?
-- One row per task and beginning of an error. `routed`: taken over by an onError edge, so that the flow went on.

select
  h.task
  , left(h.error, 120) as error
  , count(*) as steps
  , count(*) filter (where h.status = 6) as routed
  , max(h.ended_at) as last_at
  , dwarf.flow_name(max(h.flow_id)) as a_flow
from dwarf.history as h
where
  h.day in (dwarf.day_of(dwarf.now()), dwarf.day_of(dwarf.now()) - 1, -1)
  and h.error is not null
  and h.ended_at >= dwarf.start_of_day(dwarf.day_of(dwarf.now()))
group by h.task, left(h.error, 120)
order by count(*) desc, h.task
limit 100;
