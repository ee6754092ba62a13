-- Question: which flows wait for somebody's answer, and since when?
-- One row per open interrupt; a resume of the flow answers its first one. They wait for ever, unless expiration is set.

select
  dwarf.flow_key(x.shard::int, l.flow_id, l.token) as flow_key
  , l.workflow
  , dwarf.flow_name(p.flow_id) as asked_in
  , dwarf.step_id(p.branch, p.seq) as step_id
  , p.parked_at
  , row_number() over (partition by p.root_id order by p.parked_at, p.branch, p.seq) as place
  , dwarf.peek(p.payload) as payload
from dwarf.parks as p
inner join dwarf.live as l on p.root_id = l.flow_id
cross join dwarf.setting_v1('shard_index', 1) as x (shard)
where p.kind = 1 and p.answer is null
order by p.parked_at, p.branch, p.seq
limit 200;
