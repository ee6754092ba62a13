-- purpose: the tables, sequences and indexes of a shard
-- lock: none that matters, all objects are new
-- transactional: yes
-- breaking: yes

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
