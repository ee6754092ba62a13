-- History: what inputs stand on, and what branches contributed.

-- name: load_documents
select
  d.flow_id
  , d.branch
  , d.seq
  , d.document
from dwarf.load_documents_v1($1, $2, $3, $4) as d;

-- name: load_changes
select
  c.flow_id
  , c.branch
  , c.seq
  , c.changes
from dwarf.load_changes_v1($1, $2, $3, $4, $5) as c;

-- name: load_sources
select
  s.flow_id
  , s.branch
  , s.task
  , s.fan_first
  , s.fan_size
from dwarf.load_sources_v1($1, $2, $3, $4) as s;

-- name: load_members
select
  m.ordinal
  , m.seq
  , m.status
  , m.contribution
  , m.error
from dwarf.load_members_v1($1, $2, $3, $4) as m
order by m.ordinal;
