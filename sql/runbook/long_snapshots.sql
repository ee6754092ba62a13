-- Question: who keeps dead rows from being cleaned up, so that claims get slower and slower?
-- Every update of dwarf.active leaves a dead row; while any of these is older, none of those can go. End a session with
-- select pg_terminate_backend(pid). A slot or a prepared transaction that nobody needs any more has to be dropped by hand.

select
  holders.what
  , holders.name
  , holders.pid
  , holders.since
  , holders.transactions_behind
  , holders.doing
from (
  select
    'session' as what
    , concat_ws(' ', s.usename, s.application_name, s.client_addr) as name
    , s.pid
    , s.xact_start as since
    , age(s.backend_xmin) as transactions_behind
    , left(s.query, 200) as doing
  from pg_catalog.pg_stat_activity as s
  where s.backend_xmin is not null and s.pid <> pg_backend_pid()
  union all
  select
    'replication slot' as what
    , r.slot_name::text as name
    , r.active_pid as pid
    , null as since
    , greatest(age(r.xmin), age(r.catalog_xmin)) as transactions_behind
    , r.slot_type as doing
  from pg_catalog.pg_replication_slots as r
  where r.xmin is not null or r.catalog_xmin is not null
  union all
  select
    'prepared transaction' as what
    , p.gid as name
    , null as pid
    , p.prepared as since
    , age(p.transaction) as transactions_behind
    , p.owner::text as doing
  from pg_catalog.pg_prepared_xacts as p
) as holders
order by holders.transactions_behind desc nulls last, holders.since asc
limit 50;
