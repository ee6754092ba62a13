-- Question: how long do the tasks of today's flows take, and how long do they wait before?
-- run: from the first start to the record, retries and their waits included. wait: from the step's creation to its start.

select
  h.task
  , count(*) as steps
  , round(avg(extract(epoch from h.ended_at - h.started_at))::numeric, 3) as run_seconds
  , round(max(extract(epoch from h.ended_at - h.started_at))::numeric, 3) as run_seconds_max
  , round(avg(extract(epoch from h.started_at - h.created_at))::numeric, 3) as wait_seconds
  , round(max(extract(epoch from h.started_at - h.created_at))::numeric, 3) as wait_seconds_max
  , count(*) filter (where h.attempt > 0) as retried
from dwarf.history as h
where h.day = dwarf.day_of(dwarf.now()) and h.started_at is not null
group by h.task
order by sum(h.ended_at - h.started_at) desc, h.task
limit 100;
