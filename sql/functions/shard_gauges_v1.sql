-- How a shard is doing, in one row: roots that are open (above 100,000 an estimate), steps that are due (exact up to 10,000 in a
-- band), steps that run, the seconds for which the oldest due step has waited, replicas that dispatch, the schema's version.
create function dwarf.shard_gauges_v1() returns table (
  flows_open bigint
, steps_pending bigint
, steps_running bigint
, oldest_pending_seconds float8
, dispatchers int
, version int
)
language plpgsql stable
as $$
#variable_conflict use_column
declare
  v_open bigint := (select count(*) from (select from dwarf.live l where l.root_id = l.flow_id limit 100000) x);
begin
  if v_open = 100000 then
    v_open := greatest(v_open, (select c.reltuples::bigint from pg_catalog.pg_class c where c.oid = 'dwarf.live'::regclass));
  end if;
  return query
  select v_open, coalesce(sum(g.pending), 0)::bigint, (select count(*) from dwarf.active a where a.owner is not null)
  , greatest(coalesce(extract(epoch from dwarf.now() - min(g.oldest_due_at)), 0), 0)::float8
  , (select count(*) from dwarf.peers p where p.is_dispatcher and p.expires_at > dwarf.now())::int
  , (select max(m.version) from dwarf.migrations m)
  from dwarf.gauges_v1() g;
end $$;

comment on function dwarf.shard_gauges_v1 is 'How a shard is doing, in one row.';
