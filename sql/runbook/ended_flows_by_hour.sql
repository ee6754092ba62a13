-- Question: how many flows of which workflow ended, and how, in the last 24 hours?

select
  date_trunc('hour', f.ended_at) as hour
  , f.workflow
  , dwarf.status_name(f.status) as status
  , count(*) as flows
  , round(avg(extract(epoch from f.ended_at - f.created_at))::numeric, 3) as seconds
from dwarf.flows as f
where f.ended_at >= dwarf.now() - interval '24 hours' and f.root_id = f.flow_id
group by date_trunc('hour', f.ended_at), f.workflow, f.status
order by date_trunc('hour', f.ended_at) desc, count(*) desc, f.workflow
limit 500;
