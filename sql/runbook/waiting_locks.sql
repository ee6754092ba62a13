-- Question: does anybody wait for a lock on Dwarf's tables, and for whom?
-- Dwarf's own statements wait for milliseconds. Whoever holds others up for longer is named in `blocked_by`.

select
  s.pid
  , s.application_name
  , s.state
  , round(extract(epoch from clock_timestamp() - s.state_change)::numeric, 1) as seconds
  , pg_blocking_pids(s.pid) as blocked_by
  , left(s.query, 200) as doing
  , (
    select string_agg(distinct w.relation::regclass::text, ', ')
    from pg_catalog.pg_locks as w
    where w.pid = s.pid and w.relation is not null and not w.granted
  ) as relations
from pg_catalog.pg_stat_activity as s
where s.datname = current_database() and cardinality(pg_blocking_pids(s.pid)) > 0
order by s.state_change;
