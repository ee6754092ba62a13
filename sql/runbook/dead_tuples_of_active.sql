-- Question: does vacuum keep up with dwarf.active, the one table that is updated all the time?
-- Expect: hot_percent above 95, dead rows below some 20,000 or the live ones, a size of tens of MB, a vacuum within the last
-- minutes under load. Many dead rows in spite of vacuums: long_snapshots. A size far above what is live: vacuum full, when idle.

select
  t.relname as table_name
  , t.n_live_tup as live_rows
  , t.n_dead_tup as dead_rows
  , round(100.0 * t.n_tup_hot_upd / nullif(t.n_tup_upd, 0), 1) as hot_percent
  , pg_size_pretty(pg_relation_size(t.relid)) as table_size
  , pg_size_pretty(pg_indexes_size(t.relid)) as index_size
  , t.last_autovacuum
  , t.autovacuum_count
  , c.reloptions as settings
from pg_catalog.pg_stat_user_tables as t
inner join pg_catalog.pg_class as c on t.relid = c.oid
where t.schemaname = 'dwarf' and t.relname in ('active', 'live', 'lanes', 'peers', 'parks', 'signals')
order by t.n_dead_tup desc, t.relname asc;
