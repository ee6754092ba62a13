-- purpose: the schema `dwarf`, and the ledger of the migrations applied to it
-- lock: none on anything that exists
-- transactional: yes
-- breaking: no

do $$
begin
  -- `create schema if not exists` would want the right to create schemas even where an administrator made this one.
  if not exists (select from pg_catalog.pg_namespace where pg_namespace.nspname = 'dwarf') then
    create schema dwarf;
  end if;
end
$$;

comment on schema dwarf is 'Dwarf, a durable workflow engine: its tables, functions and views.';

create table dwarf.migrations (
  version integer not null
  , name text not null
  , checksum text not null
  , breaking boolean not null
  , applied_at timestamptz not null default pg_catalog.transaction_timestamp()
  , dwarf_version text not null
  , constraint migrations_version_key primary key (version)
  , constraint migrations_version_check check (version >= 0)
);

comment on table dwarf.migrations is 'One row per migration, inserted by the transaction that applies it, which holds this table locked.';
comment on column dwarf.migrations.version is 'The number that begins the name of the migration''s file.';
comment on column dwarf.migrations.name is 'The name of its file, without the number and the suffix.';
comment on column dwarf.migrations.checksum is 'SHA-256 of its text as it was applied, the included functions being part of it.';
comment on column dwarf.migrations.breaking is 'Whether code that does not know this migration must refuse to run.';
comment on column dwarf.migrations.applied_at is 'When the transaction that applied it began.';
comment on column dwarf.migrations.dwarf_version is 'The version of Dwarf that applied it.';
