-- Dispatching: what a dispatcher looks at between its claims, and what it finds of its own again.

-- name: due
-- Which fairness keys have due work: by half and band, best band first, each with the lowest weight among its due rows.
select
  h.half
  , b.priority
  , k.fairness_key
  , k.weight
from (values (0::smallint), (1::smallint)) as h (half)
cross join lateral dwarf.due_bands_v1(h.half) as b (priority)
cross join lateral dwarf.due_keys_v1(h.half, b.priority, null, $1) as k;

-- name: look
-- Wake sleepers whose time has come, tell whether signals wait, and which dispatchers there are.
select
  dwarf.wake_v1($2, $3) as woken
  , exists(
    select from dwarf.signals as s
    where s.session = $1
  ) as has_signals
  , array(
    select p.session from dwarf.peers as p
    where p.is_dispatcher and p.expires_at > coalesce($3, dwarf.now())
    order by p.session asc
  ) as dispatchers;

-- name: owned
-- The running rows of a session.
select
  a.flow_id
  , a.branch
  , a.lease
from dwarf.active as a
where a.owner = $1 and a.status = 2;

-- name: register_workflows
-- Name the graphs by which flows of these URLs are created from now on.
insert into dwarf.workflows as w (url, graph_id, updated_at)
select
  t.url
  , t.graph_id
  , coalesce($3, dwarf.now()) as updated_at
from unnest($1::text[], $2::int4[]) as t (url, graph_id)
order by t.url asc
on conflict (
  url) do update set graph_id = excluded.graph_id, updated_at = excluded.updated_at
where w.graph_id <> excluded.graph_id;

-- name: put_settings
select dwarf.put_settings_v1($1, $2);

-- name: graphs
select
  g.graph_id
  , g.hash
  , g.name
  , g.entry_task
  , g.definition
from dwarf.graphs as g
where g.graph_id = any($1);
