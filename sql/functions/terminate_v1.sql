-- End a root, its children and every unfinished step of the tree at once. True, or false when the root is not open. Three
-- statements, three snapshots, one commit: the first waits for records that create rows, and later ones find the root closed;
-- the second waits for records that change rows; what the third sees is final (a park written meanwhile is seen too).
create function dwarf.terminate_v1(p_root bigint, p_reason text, p_now timestamptz default null, p_actor text default null)
returns boolean
language plpgsql
set enable_seqscan = off
set enable_indexscan = off
set enable_indexonlyscan = off
set enable_bitmapscan = on
set jit = off
as $$
declare
  v_now timestamptz := coalesce(p_now, dwarf.now());
begin
  update dwarf.live l set status = 2, reason = p_reason where l.flow_id = p_root and l.root_id = p_root and l.status = 1;
  if not found then
    return false;
  end if;
  perform dwarf.lock_tree_v1(p_root);
  with tree as materialized (
    select p_root as flow_id union all select l.flow_id from dwarf.live l where l.root_id = p_root and l.root_id <> l.flow_id
  ), o as materialized (
    select a.* from tree t join dwarf.active a on a.flow_id = t.flow_id
  ), d as (
    delete from dwarf.active a using o where a.flow_id = o.flow_id and a.branch = o.branch
  ), g as (
    insert into dwarf.signals(session, flow_id, branch, seq, lease, kind)
    select o.owner, o.flow_id, o.branch, o.seq, o.lease, 2 from o where o.owner is not null
  ), k as (
    delete from dwarf.parks p using tree t where p.flow_id = t.flow_id returning p.*
  ), h as (
    insert into dwarf.history(flow_id, branch, seq, day, depth, attempt, status, via, owner, created_at, started_at, ended_at, parent_branch
    , parent_seq, ordinal, child_id, task, changes, payload, kept)
    select o.flow_id, o.branch, o.seq, o.day, o.depth, o.attempt, 9, case when o.status = 3 or o.todo in (2, 4) then 4 else 0 end, o.owner
    , o.created_at, o.started_at, v_now, case when o.seq = 1 and o.branch <> 0 then o.base_branch end
    , case when o.seq = 1 and o.branch <> 0 then o.base_seq end, case when o.seq = 1 then o.ordinal end, k.child_id, o.task, '{}', k.payload
    , case when k.kind = 2 then k.kept end
    from o left join k on k.flow_id = o.flow_id and k.branch = o.branch
  ), l as (
    delete from dwarf.live l using tree t where l.flow_id = t.flow_id returning l.*
  )
  insert into dwarf.flows(flow_id, day, root_id, status, nesting, priority, delete_on_completion, graph_id, budget_ms, weight, created_at
  , ended_at, thread_id, caller_flow, caller_branch, caller_seq, token, workflow, fairness_key, tenant, task, reason, baggage, input)
  select l.flow_id, l.day, l.root_id, 9, l.nesting, l.priority, l.delete_on_completion, l.graph_id, l.budget_ms, l.weight, l.created_at
  , v_now, l.thread_id, l.caller_flow, l.caller_branch, l.caller_seq, l.token, l.workflow, l.fairness_key, l.tenant
  , (select o.task from o where o.flow_id = l.flow_id and o.branch = 0), p_reason, l.baggage, l.input
  from l;
  perform dwarf.audit_v1('terminate', p_root, p_actor, p_now => v_now);
  return true;
end $$;
