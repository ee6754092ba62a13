-- The one clock. Statements take their time from here or from a p_now argument; tests replace this function.
create function dwarf.now() returns timestamptz
language sql stable parallel safe
return pg_catalog.now();

-- Whole hours and days since 2000-01-01 00:00 UTC: the first is part of every flow id, the second names a partition.
create function dwarf.hour_of(p_at timestamptz) returns int
language sql immutable parallel safe
return (floor(date_part('epoch', p_at at time zone 'UTC'))::bigint - 946684800) / 3600;

create function dwarf.day_of(p_at timestamptz) returns int
language sql immutable parallel safe
return (floor(date_part('epoch', p_at at time zone 'UTC'))::bigint - 946684800) / 86400;
