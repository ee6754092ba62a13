-- purpose: forks: which flows went on in the middle of others, and with what in the place of a step's input
-- lock: none, all objects are new
-- transactional: yes
-- breaking: no

create table dwarf.forks (
  flow_id bigint not null
  , branch bigint not null
  , seq int not null
  , root_id bigint not null
  , origin_id bigint not null
  , origin_root_id bigint not null
  , created_at timestamptz not null
  , overrides json
  , constraint forks_flow_id_branch_seq_key primary key (flow_id, branch, seq)
);

create index forks_root_id_idx on dwarf.forks (root_id);

create index forks_origin_root_id_idx on dwarf.forks (origin_root_id);

comment on table dwarf.forks is 'The steps at which forks began, and those whose input forks have changed, as long as the forks are there.';
comment on column dwarf.forks.flow_id is 'The copy of the flow in which the step runs again.';
comment on column dwarf.forks.branch is 'The branch of the step, as in the origin.';
comment on column dwarf.forks.seq is 'The place of the step in its branch.';
comment on column dwarf.forks.root_id is 'The root of the copy: the fork.';
comment on column dwarf.forks.origin_id is 'The flow that flow_id is a copy of; it may be gone.';
comment on column dwarf.forks.origin_root_id is 'The root of the origin.';
comment on column dwarf.forks.created_at is 'When the fork was made.';
comment on column dwarf.forks.overrides is 'What was put in the place of fields of the step''s input, null for one taken away.';

-- As other documents are, where the server was built with it.
do $$
begin
  if 'lz4' = any (select unnest(s.enumvals) from pg_catalog.pg_settings s where s.name = 'default_toast_compression') then
    alter table dwarf.forks alter column overrides set compression lz4;
  end if;
end
$$;

-- include functions/fork_v1.sql
