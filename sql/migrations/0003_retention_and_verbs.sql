-- purpose: partitions and retention, deletes, expiration, idempotency, outcomes, lists, gauges, and the verbs for SQL
-- lock: share on dwarf.flows while its index is built, which is short before there are flows
-- transactional: yes
-- breaking: no

create table dwarf.settings (
  name text constraint settings_name_key primary key
  , value bigint not null
  , updated_at timestamptz not null
);

-- An index of a partitioned table cannot be built concurrently, and there is nothing in it yet.
-- squawk-ignore require-concurrent-index-creation
create index flows_root_id_idx on dwarf.flows (root_id) where root_id <> flow_id;

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
