-- Deliver a cancellation to every step in progress of a tree: each is to take its onError edge, or to end cancelled (todo 3).
-- True, or false when the root is not open. All rows of the tree are locked first; what each becomes is then judged as the
-- last record left it.
--   a step in progress, also asleep, waiting for an answer, or a fan-in whose cohort is complete    -> deliver; of its past only
--                                   the child that it has called stays, for the history
--   a row that still expands     -> no further branches; resolve at once when all that exist have arrived
--   a joining row, a caller whose child runs, a row that resolves     -> as it was
create function dwarf.cancel_v1(p_root bigint, p_reason text, p_now timestamptz default null, p_actor text default null)
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
  update dwarf.live l set cancels = l.cancels + 1, reason = p_reason where l.flow_id = p_root and l.root_id = p_root and l.status = 1;
  if not found then
    return false;
  end if;
  perform dwarf.lock_tree_v1(p_root);
  update dwarf.live l set cancels = l.cancels + 1, reason = p_reason where l.root_id = p_root and l.root_id <> l.flow_id;
  with tree as materialized (
    select p_root as flow_id union all select l.flow_id from dwarf.live l where l.root_id = p_root and l.root_id <> l.flow_id
  ), o as materialized (
    select a.*
    , a.todo = 4 as expands
    , a.status in (1, 2, 4) and a.todo not in (2, 4) as delivers
    , coalesce(p.kind = 2, false) as has_called
    from tree t
    join dwarf.active a on a.flow_id = t.flow_id
    left join dwarf.parks p on p.flow_id = a.flow_id and p.branch = a.branch
  ), g as (
    insert into dwarf.signals(session, flow_id, branch, seq, lease, kind)
    select o.owner, o.flow_id, o.branch, o.seq, o.lease, 1 from o where o.owner is not null and (o.expands or o.delivers)
  ), k as (
    delete from dwarf.parks p using o where o.delivers and not o.has_called and p.flow_id = o.flow_id and p.branch = o.branch
  )
  update dwarf.active a set
    lease = a.lease + case when o.expands or o.delivers then 1 else 0 end
  , owner = case when o.expands or o.delivers then null else a.owner end
  , due_at = case when o.expands or o.delivers then null else a.due_at end
  , size = case when o.expands then a.expanded else a.size end
  , status = case when o.delivers then 1 when o.expands then case when a.arrived = a.expanded then 1 else 3 end else a.status end
  , todo = case when o.delivers then 3 when o.expands then case when a.arrived = a.expanded then 2 else 0 end else a.todo end
  , claimable = case
      when o.delivers then v_now
      when o.expands then case when a.arrived = a.expanded then v_now end
      else a.claimable
    end
  , wake_at = case when o.delivers or o.expands then null else a.wake_at end
  , parked = case when o.delivers then o.has_called else a.parked end
  from o
  where a.flow_id = o.flow_id and a.branch = o.branch;
  perform dwarf.audit_v1('cancel', p_root, p_actor, p_now => v_now);
  return true;
end $$;
