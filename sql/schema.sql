-- The whole schema of a shard as the migrations leave it, for reading, and to compare their replay with. Nobody runs it.
--
-- GLOSSARY
--
-- flow        One execution of a graph. A root was created by a caller; a child by a step of another flow, its caller step.
-- tree        A root with all its children. Verbs act on trees; a tree shares priority, half and dispatcher lane.
-- step        One execution of one task, named (branch, seq). Its public id is branch << 20 | seq.
-- branch      What moves from step to step: a row of `active`. Branch 0 is the trunk. A fan-out makes `size` new ones with
--             consecutive numbers; seq counts inside a branch. A fan-in goes on in the branch of its source.
-- cohort      The branches of one fan-out. Its source's row becomes the joining row of the fan-in, which counts them:
--             failed <= arrived <= expanded <= size. Wide ones are made in slices, over several records.
-- due         Waiting for a claim: `claimable` says since when. A row is due, running, joining, interrupted, parked or asleep.
-- todo        What a claim is to do: 0 run the task, 1 fold a complete cohort and run, 2 resolve one with a failed or cancelled
--             member (no task runs), 3 deliver a cancellation, 4 create the next slice of branches.
-- claim       Takes due rows for a session: best band (priority) first, by quotas per fairness key, oldest first in a key. Each
--             of two dispatchers claims its own half of the trees first, then the other.
-- record      Stores what came of claimed rows, a batch in one commit. Kinds: 1 advance (9: the successor starts at once),
--             2 fan out, 3 arrive, 4 park, 5 retry, 6 close, 7 give back. One record touches one level of a tree: its own row, the
--             rows it makes, one joining row, one caller row, its flow. SQL never routes and never folds: that was decided before.
-- lease       A number on the row that rises with every claim and whatever else takes the row from its holder. A record names the
--             lease it was claimed under; under another it changes nothing: that is the fence.
-- session     One process start of a replica, renewed every few seconds. `owner` of a running row; used for recovery alone.
-- lane        One recording connection of a session. Its epoch and batch number tell what became of a commit nobody heard of.
-- signal      Tells a session that a row it runs was taken from it: 1 cancelled, 2 terminated, 3 swept.
-- park        What a step has that is not at its beginning: 0 writes kept by a retry, 1 an interrupt, 2 a child.
-- document    A stored state that later steps stand on: `history.state`, or the flow's input (0, 0). `base_branch, base_seq` name it,
--             `delta` holds what changed since, up to `delta_seq`.
-- day         Days since 2000-01-01 UTC. History and ended flows are partitioned by the day their flow was created; it is copied into
--             every row, so that nobody computes it. Day -1 is `kept`, the partition for what outlives the others.
-- doomed      Deleted and hidden, not yet removed.
-- status      1 pending, 2 running, 3 joining, 4 interrupted, 5 parked; 6 completed, 7 failed, 8 cancelled, 9 terminated.
-- via         How a step was left: 0 by its transitions, 1 goto, 2 error, 3 cancellation, 4 a fan-in that never ran.
--
-- A STEP FROM CLAIM TO RECORD
--
-- create_v1 inserts `live` (the open flow) and `active` (its trunk, due). claim_v1 locks due rows, take_v1 marks them running under
-- a higher lease and returns what running them takes; load_* read what they stand on. record_v1 moves the lane, locks, then lets
-- apply_linear_v1 (roots with one row) and apply_rows_v1 (all others) change each record's own row behind the fence and insert
-- its history; new branches are inserted, park_v1 writes parks and starts children, count_down_v1 counts arrivals, wake_callers_v1
-- wakes the steps whose child has ended. A flow that closes moves from `live` to `flows`. What became due is claimed next.
--
-- LOCK ORDER
--
-- Whoever locks rows in several of these takes them in this order, and inside each by (flow_id, branch):
--
--   1  lanes          the one lane of a record
--   2  live           roots (for share by records that make rows, for update by verbs), then flows being closed
--   3  active         rows that others count down or wake: those with a size, and those that wait for a child (status 5)
--   4  active         all other rows
--   5  parks
--   6  history, flows, signals, doomed, idempotency: inserted into, or closed rows that nobody else changes
--
-- A transaction that works on several trees takes each rank for all of them before the next one. Claims, sweeps and wakes skip
-- what is locked and wait for nobody. Partitions are attached under a lock that stops neither readers nor writers, and dropped
-- only after being detached concurrently.
--
-- What follows is assembled from the migrations by .ci/schema.py.

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

create sequence dwarf.flow_seq cache 100;

create sequence dwarf.branch_block_seq;

create sequence dwarf.session_seq;

create table dwarf.graphs (
  graph_id int generated always as identity constraint graphs_graph_id_key primary key
  , hash bytea not null constraint graphs_hash_key unique
  , name text not null
  , entry_task text not null
  , definition json not null
  , created_at timestamptz not null
);

create table dwarf.workflows (
  url text constraint workflows_url_key primary key
  , graph_id int not null constraint workflows_graph_id_fk references dwarf.graphs (graph_id)
  , updated_at timestamptz not null
);

create table dwarf.peers (
  session int constraint peers_session_key primary key
  , engine_id bigint not null
  , started_at timestamptz not null
  , renewed_at timestamptz not null
  , expires_at timestamptz not null
  , steady_since timestamptz not null
  , is_dispatcher boolean not null default false
  , missing_since timestamptz
) with (fillfactor = 20);

create table dwarf.lanes (
  session int not null
  , lane smallint not null
  , epoch int not null default 1
  , batch bigint not null default 0
  , missed int[]
  , constraint lanes_session_lane_key primary key (session, lane)
) with (fillfactor = 10);

create table dwarf.live (
  flow_id bigint constraint live_flow_id_key primary key
  , root_id bigint not null
  , status smallint not null default 1
  , cancels int not null default 0
  , nesting smallint not null default 0
  , priority smallint not null
  , delete_on_completion boolean not null default false
  , graph_id int not null
  , budget_ms int not null
  , day int not null
  , weight float8 not null
  , created_at timestamptz not null
  , thread_id bigint not null
  , caller_flow bigint
  , caller_branch bigint
  , caller_seq int
  , token text not null
  , workflow text not null
  , fairness_key text not null
  , tenant text
  , reason text
  , path bigint[]
  , baggage json
  , input json
) with (fillfactor = 80);

create index live_root_id_idx on dwarf.live (root_id) where root_id <> flow_id;

create index live_thread_id_idx on dwarf.live (thread_id) where thread_id <> flow_id;

create table dwarf.flows (
  flow_id bigint not null
  , day int not null
  , root_id bigint not null
  , status smallint not null
  , nesting smallint not null default 0
  , priority smallint not null
  , delete_on_completion boolean not null default false
  , graph_id int not null
  , budget_ms int not null
  , weight float8 not null
  , created_at timestamptz not null
  , ended_at timestamptz not null
  , thread_id bigint not null
  , caller_flow bigint
  , caller_branch bigint
  , caller_seq int
  , token text not null
  , workflow text not null
  , fairness_key text not null
  , tenant text
  , task text
  , error text
  , reason text
  , baggage json
  , input json
  , final_state json
  , constraint flows_flow_id_day_key primary key (flow_id, day)
) partition by list (day);

create index flows_ended_at_flow_id_idx on dwarf.flows (ended_at, flow_id);

-- Columns that a running step leaves alone come first, those that every step changes last and together: an update then logs
-- little more than what it changes.
create table dwarf.active (
  flow_id bigint not null
  , branch bigint not null
  , base_branch bigint not null default 0
  , weight float8 not null
  , join_branch bigint
  , owner int
  , budget_ms int not null
  , day int not null
  , base_seq int not null default 0
  , attempt int not null default 0
  , ordinal int
  , size int
  , expanded int
  , arrived int
  , failed int
  , last_ordinal int
  , fan_depth int
  , priority smallint not null
  , half smallint not null
  , status smallint not null
  , todo smallint not null default 0
  , deaths smallint not null default 0
  , parked boolean not null default false
  , seq int not null
  , lease int not null default 0
  , depth int not null
  , delta_seq int not null default 0
  , created_at timestamptz not null
  , claimable timestamptz
  , wake_at timestamptz
  , started_at timestamptz
  , due_at timestamptz
  , task text not null
  , fairness_key text collate "C" not null
  , delta json
  , constraint active_flow_id_branch_key primary key (flow_id, branch)
) with (
  fillfactor = 30
  , autovacuum_vacuum_scale_factor = 0
  , autovacuum_vacuum_threshold = 20000
  , autovacuum_vacuum_cost_delay = 0
);

create index active_claim_idx on dwarf.active (half, priority, fairness_key, claimable, flow_id, branch) where claimable is not null;

create index active_weight_idx on dwarf.active (half, priority, fairness_key, weight) where claimable is not null;

create index active_wake_at_idx on dwarf.active (wake_at) where wake_at is not null;

create index active_owner_idx on dwarf.active (owner) where owner is not null;

create table dwarf.history (
  flow_id bigint not null
  , branch bigint not null
  , seq int not null
  , day int not null
  , depth int not null
  , attempt int not null
  , status smallint not null
  , via smallint not null default 0
  , owner int
  , created_at timestamptz not null
  , started_at timestamptz
  , ended_at timestamptz not null
  , parent_branch bigint
  , parent_seq int
  , ordinal int
  , fan_first bigint
  , fan_size int
  , child_id bigint
  , task text not null
  , goto text
  , error text
  , changes json
  , contribution json
  , state json
  , payload json
  , kept json
  , constraint history_flow_id_branch_seq_day_key primary key (flow_id, branch, seq, day)
) partition by list (day);

create table dwarf.parks (
  flow_id bigint not null
  , branch bigint not null
  , seq int not null
  , kind smallint not null
  , root_id bigint not null
  , parked_at timestamptz not null
  , child_id bigint
  , child_day int
  , path bigint[]
  , kept json
  , payload json
  , answer json
  , constraint parks_flow_id_branch_key primary key (flow_id, branch)
);

create index parks_root_id_idx on dwarf.parks (root_id, parked_at, branch, seq) where kind = 1 and answer is null;

create table dwarf.signals (
  signal_id bigint generated always as identity constraint signals_signal_id_key primary key
  , session int not null
  , flow_id bigint not null
  , branch bigint not null
  , seq int not null
  , lease int not null
  , kind smallint not null
);

create index signals_session_signal_id_idx on dwarf.signals (session, signal_id);

create table dwarf.idempotency (
  workflow text not null
  , key text not null
  , flow_id bigint not null
  , token text not null
  , input_hash bytea not null
  , created_at timestamptz not null
  , constraint idempotency_workflow_key_key primary key (workflow, key)
);

create index idempotency_flow_id_idx on dwarf.idempotency (flow_id);

create table dwarf.gauges (
  name text constraint gauges_name_key primary key
  , value float8 not null
  , measured_at timestamptz not null
  , session int
);

create table dwarf.audit (
  audit_id bigint generated always as identity constraint audit_audit_id_key primary key
  , at timestamptz not null
  , actor text not null
  , verb text not null
  , flow_id bigint
  , detail json
);

create index audit_flow_id_idx on dwarf.audit (flow_id);

create table dwarf.doomed (
  flow_id bigint constraint doomed_flow_id_key primary key
  , day int not null
  , due_at timestamptz not null
  , hidden_at timestamptz not null
);

create index doomed_due_at_idx on dwarf.doomed (due_at);

create table dwarf.flows_kept partition of dwarf.flows for values in (-1);

create table dwarf.history_kept partition of dwarf.history for values in (-1);

-- Documents are compressed by lz4 where the server was built with it, which takes less time than its own method. Partitions of
-- days take it over from their parents.
do $$
declare
  v_statement text;
begin
  if 'lz4' = any (select unnest(s.enumvals) from pg_catalog.pg_settings s where s.name = 'default_toast_compression') then
    for v_statement in
      select format('alter table dwarf.%I alter column %I set compression lz4', c.relname, a.attname)
      from pg_catalog.pg_class c join pg_catalog.pg_attribute a on a.attrelid = c.oid
      where c.relnamespace = 'dwarf'::regnamespace and c.relkind in ('r', 'p') and a.atttypid = 'json'::regtype and not a.attisdropped
      order by c.relname, a.attnum
    loop
      execute v_statement;
    end loop;
  end if;
end
$$;

create table dwarf.settings (
  name text constraint settings_name_key primary key
  , value bigint not null
  , updated_at timestamptz not null
);

-- An index of a partitioned table cannot be built concurrently, and there is nothing in it yet.
-- squawk-ignore require-concurrent-index-creation
create index flows_root_id_idx on dwarf.flows (root_id) where root_id <> flow_id;

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

-- include functions/now.sql
-- include functions/keys.sql
-- include functions/create_v1.sql
-- include functions/put_graphs_v1.sql
-- include functions/claimed.sql
-- include functions/take_v1.sql
-- include functions/observe_v1.sql
-- include functions/claim_v1.sql
-- include functions/chain.sql
-- include functions/lanes_v1.sql
-- include functions/record_linear_v1.sql
-- include functions/apply_rows_v1.sql
-- include functions/count_down_v1.sql
-- include functions/wake_callers_v1.sql
-- include functions/unpark_v1.sql
-- include functions/park_v1.sql
-- include functions/chain_history_v1.sql
-- include functions/record_v1.sql
-- include functions/sessions_v1.sql
-- include functions/wake_rows_v1.sql
-- include functions/wake_v1.sql
-- include functions/release_rows_v1.sql
-- include functions/sweep_v1.sql
-- include functions/lock_tree_v1.sql
-- include functions/terminate_v1.sql
-- include functions/cancel_v1.sql
-- include functions/resume_v1.sql
-- include functions/signals_v1.sql
-- include functions/load_v1.sql
-- include functions/settings.sql
-- include functions/audit_v1.sql
-- include functions/partitions_v1.sql
-- include functions/move_trees_v1.sql
-- include functions/reap_trees_v1.sql
-- include functions/drop_step_v1.sql
-- include functions/delete_v1.sql
-- include functions/reap_v1.sql
-- include functions/expire_v1.sql
-- include functions/create_keyed_v1.sql
-- include functions/outcome_v1.sql
-- include functions/gauges_v1.sql
-- include functions/lists_v1.sql
-- include functions/checks.sql
-- include functions/create_flow.sql
-- include functions/resume_flow.sql
-- include functions/cancel_flow.sql
-- include functions/terminate_flow.sql
-- include functions/flow_outcome.sql
-- include functions/recover_steps.sql
-- include functions/faults_v1.sql
-- include views.sql
-- include comments.sql
-- include functions/find_flows_v1.sql
-- include functions/ended_v1.sql
-- include functions/fingerprint_v1.sql
-- include functions/history_v1.sql
-- include functions/replay_v1.sql
-- include functions/shard_gauges_v1.sql
-- include functions/fork_v1.sql
-- include functions/continue_v1.sql
