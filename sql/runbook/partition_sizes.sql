-- Question: how large are the days, are the next ones there, and is one half dropped?
-- `kept` holds what outlived its day: open flows, and those that ended too recently. state: attached; detaching (a drop was cut
-- short and goes on by itself, once nobody holds an old snapshot: long_snapshots); detached (it will be dropped). The days
-- ahead are made by every engine; by hand: select dwarf.ensure_partitions().

select
  date '2000-01-01' + parts.day as created_on
  , parts.parent
  , parts.state
  , parts.rows_estimate
  , pg_size_pretty(pg_total_relation_size(parts.relation)) as total_size
from (
  select
    p.day
    , p.parent
    , case when p.is_attached then 'attached' when p.is_pending then 'detaching' else 'detached' end as state
    , p.rows_estimate
    , to_regclass(format('dwarf.%s_d%s', p.parent, p.day)) as relation
  from dwarf.partitions_v1() as p
  union all
  select
    null as day
    , k.parent
    , 'kept' as state
    , greatest(c.reltuples, 0)::bigint as rows_estimate
    , c.oid::regclass as relation
  from unnest(array['flows', 'history']) as k (parent)
  inner join pg_catalog.pg_class as c on to_regclass(format('dwarf.%s_kept', k.parent)) = c.oid
) as parts
order by parts.day desc nulls first, parts.parent asc;
