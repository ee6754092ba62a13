-- Apply every record that is not on the linear path to its own row, and write its history. kind: 1 advance (9: the successor
-- starts at once), 2 fan out (on an expanding row: the next slice), 3 arrive, 4 park, 5 retry, 6 close, 7 give back.
-- A record may end a chain: p_from is then the seq that the row has, p_seq that of the last step, p_own its task, p_begun_ms
-- when it began after the chain did; p_base and p_delta_seq say where a document and the delta come from that an earlier
-- step of the chain left. An array that is null holds nothing but nulls.
-- Returns the ordinals not applied, and what the rest of the record needs: who arrived where, which callers to wake, which
-- parks to drop, which closed flows are to be kept for a short while only, and the rows from which chains have led on.
create function dwarf.apply_rows_v1(
  p_session int
, p_now timestamptz
, p_flow bigint[]
, p_branch bigint[]
, p_seq int[]
, p_lease int[]
, p_kind smallint[]
, p_status smallint[]
, p_via smallint[]
, p_task text[]
, p_goto text[]
, p_error text[]
, p_changes json[]
, p_contribution json[]
, p_snapshot json[]
, p_delta json[]
, p_delay_ms bigint[]
, p_size int[]
, p_count int[]
, p_first bigint[]
, p_final json[]
, p_keeps boolean[]
, p_from int[]
, p_own text[]
, p_begun_ms bigint[]
, p_base int[]
, p_delta_seq int[]
, out missed int[]
, out applied int[]
, out join_flow bigint[]
, out join_branch bigint[]
, out join_ordinal int[]
, out join_failed boolean[]
, out join_depth int[]
, out join_delay_ms bigint[]
, out caller_flow bigint[]
, out caller_branch bigint[]
, out caller_seq int[]
, out caller_cancelled boolean[]
, out unparked_flow bigint[]
, out unparked_branch bigint[]
, out doomed bigint[]
, out chains dwarf.chain[]
)
language plpgsql
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set enable_material = off
set enable_memoize = off
set jit = off
as $$
#variable_conflict use_column
declare
  v_found int;
  v_changed int;
  v_closed int;
  v_ended int;
begin
  -- MERGE with a branch that is never true: the arrays are the outer side, and rows are locked in their order.
  with r as (
    select t.* from unnest(p_flow, p_branch, p_seq, p_lease, p_kind, p_status, p_via, p_task, p_goto, p_error, p_changes, p_contribution, p_snapshot
      , p_delta, p_delay_ms, p_size, p_count, p_first, p_final, p_keeps, p_from, p_own, p_begun_ms, p_base, p_delta_seq) with ordinality
      t(flow_id, branch, seq, lease, kind, status, via, next_task, goto, error, changes, contribution, snapshot
      , delta, delay_ms, size, count, first, final, keeps, from_seq, own_task, begun_ms, base_seq, delta_seq, ord)
  ), m as (
    merge into dwarf.active s using r
      on s.flow_id = any (array[r.flow_id]) and s.branch = r.branch and s.seq = coalesce(r.from_seq, r.seq) and s.lease = r.lease
      and (s.status = 2 or s.status = 1 and r.status in (6, 4, 5) and r.kind not in (5, 7))
    when matched and r.kind in (3, 6) then delete
    when matched then update set
      seq = r.seq + case when (r.kind in (1, 9) or r.kind = 2 and s.todo <> 4) then 1 else 0 end
    , depth = s.depth + r.seq - s.seq + case when (r.kind in (1, 9) or r.kind = 2 and s.todo <> 4) then 1 else 0 end
    , lease = s.lease + case when r.kind = 7 then 0 else 1 end
    , task = case when (r.kind in (1, 9) or r.kind = 2 and s.todo <> 4) then r.next_task when s.seq < r.seq then r.own_task else s.task end
    , status = case
        when r.kind = 9 then 2
        when r.kind = 4 then r.status
        when r.kind = 2 and r.count = r.size then 3
        else 1
      end
    , todo = case when r.kind = 2 then case when r.count < r.size then 4 else 0 end when (s.seq < r.seq or r.kind in (1, 9) or r.kind = 2 and s.todo <> 4) then 0 else s.todo end
    , owner = case when r.kind = 9 then p_session end
    , claimable = case
        when r.kind = 7 then case when s.seq < r.seq then p_now else s.created_at end
        when r.kind in (1, 5) and r.delay_ms is null or r.kind = 2 and r.count < r.size then p_now
      end
    , wake_at = case when r.kind in (1, 5) then p_now + r.delay_ms * interval '1 ms' end
    , created_at = case when (s.seq < r.seq or r.kind in (1, 9) or r.kind = 2 and s.todo <> 4) then p_now else s.created_at end
    , started_at = case
        when r.kind = 9 then p_now
        when r.kind = 7 or (r.kind in (1, 9) or r.kind = 2 and s.todo <> 4) then null
        when s.seq < r.seq then p_now
        else s.started_at
      end
    , due_at = case when r.kind = 9 then p_now + (s.budget_ms + 30000) * interval '1 ms' end
    , attempt = case when (s.seq < r.seq or r.kind in (1, 9) or r.kind = 2 and s.todo <> 4) then 0 else s.attempt end + case when r.kind = 5 then 1 else 0 end
    , deaths = case when (s.seq < r.seq or r.kind in (1, 9) or r.kind = 2 and s.todo <> 4) then 0 else s.deaths end
    , parked = case when r.kind = 7 then s.parked and s.seq = r.seq else r.kind = 4 or r.kind = 5 and coalesce(r.keeps, false) end
    , base_branch = case when r.snapshot is null and r.base_seq is null then s.base_branch else s.branch end
    , base_seq = case when r.snapshot is null then coalesce(r.base_seq, s.base_seq) else r.seq end
    , delta = case when r.snapshot is null and r.base_seq is null then coalesce(r.delta, s.delta) else r.delta end
    , delta_seq = case
        when r.snapshot is null and r.base_seq is null and r.delta is null then s.delta_seq
        else coalesce(r.delta_seq, r.seq)
      end
    , size = case when (r.kind in (1, 9) or r.kind = 2 and s.todo <> 4) then r.size when s.seq = r.seq then s.size end
    , expanded = case when r.kind = 2 then r.count when not (s.seq < r.seq or r.kind in (1, 9) or r.kind = 2 and s.todo <> 4) then s.expanded end
    , arrived = case when not (s.seq < r.seq or r.kind in (1, 9) or r.kind = 2 and s.todo <> 4) then s.arrived when r.kind = 2 then 0 end
    , failed = case when not (s.seq < r.seq or r.kind in (1, 9) or r.kind = 2 and s.todo <> 4) then s.failed when r.kind = 2 then 0 end
    , last_ordinal = case when not (s.seq < r.seq or r.kind in (1, 9) or r.kind = 2 and s.todo <> 4) then s.last_ordinal end
    , fan_depth = case when not (s.seq < r.seq or r.kind in (1, 9) or r.kind = 2 and s.todo <> 4) then s.fan_depth when r.kind = 2 and r.count < r.size then s.depth + r.seq - s.seq + 1 end
    when not matched and r.seq = -1 then insert (flow_id, branch) values (0, 0)
    returning old.flow_id, old.branch, old.seq as from_seq, old.day, old.depth + r.seq - old.seq as depth, old.attempt, old.owner, old.created_at
    , old.started_at, case when old.seq < r.seq then r.own_task else old.task end as task, old.task as first_task, old.parked
    , old.base_branch, old.base_seq, old.join_branch, old.ordinal
    , r.seq, r.kind, r.status as new_status, r.via, r.goto, r.error, r.changes, r.contribution, r.snapshot, r.delay_ms, r.size as new_size
    , r.first, r.final, r.ord::int, old.seq < r.seq as chained
    , case when old.seq < r.seq then least(p_now, old.started_at + r.begun_ms * interval '1 ms') end as begun_at
    , case when r.kind in (1, 9) or r.kind = 2 and old.todo <> 4 then 1 else 0 end as steps
  ), l as (
    merge into dwarf.live l using (select * from m where m.kind = 6) x on l.flow_id = any (array[x.flow_id])
    when matched then delete
    when not matched and x.seq = -1 then insert (flow_id) values (0)
    returning old.*, x.new_status, x.task, x.error, x.final
  ),
  h as (
    insert into dwarf.history(flow_id, branch, seq, day, depth, attempt, status, via, owner, created_at, started_at, ended_at
    , parent_branch, parent_seq, ordinal, fan_first, fan_size, child_id, task, goto, error, changes, contribution, state, payload, kept)
    select m.flow_id, m.branch, m.seq, m.day, m.depth, case when m.chained then 0 else m.attempt end, m.new_status, m.via, m.owner
    , coalesce(m.begun_at, m.created_at), coalesce(m.begun_at, m.started_at), p_now
    , case when m.seq = 1 and m.branch <> 0 then m.base_branch end, case when m.seq = 1 and m.branch <> 0 then m.base_seq end
    , case when m.seq = 1 then m.ordinal end, m.first, m.new_size, k.child_id, m.task, m.goto, m.error, m.changes, m.contribution
    , m.snapshot, k.payload, k.kept
    from m left join lateral (
      select p.child_id, p.payload, case when p.kind = 2 then p.kept end as kept from dwarf.parks p
      where m.parked and not m.chained and p.flow_id = m.flow_id and p.branch = m.branch
      offset 0
    ) k on true
    where m.kind in (3, 6) or m.steps = 1
  ),
  f as (
    insert into dwarf.flows(flow_id, day, root_id, status, nesting, priority, delete_on_completion, graph_id, budget_ms, weight, created_at
    , ended_at, thread_id, caller_flow, caller_branch, caller_seq, token, workflow, fairness_key, tenant, task, error, reason, baggage
    , input, final_state)
    select l.flow_id, l.day, l.root_id, l.new_status, l.nesting, l.priority, l.delete_on_completion, l.graph_id, l.budget_ms, l.weight
    , l.created_at, p_now, l.thread_id, l.caller_flow, l.caller_branch, l.caller_seq, l.token, l.workflow, l.fairness_key, l.tenant, l.task
    , case when l.new_status = 7 then l.error end, case when l.new_status = 8 then l.reason end, l.baggage, l.input, l.final
    from l
  )
  select count(*), count(*), array_agg(m.ord), count(*) filter (where m.kind = 6)
  , array_agg(m.flow_id) filter (where m.kind = 3), array_agg(m.join_branch) filter (where m.kind = 3)
  , array_agg(m.ordinal) filter (where m.kind = 3), array_agg(m.new_status <> 6) filter (where m.kind = 3)
  , array_agg(m.depth) filter (where m.kind = 3), array_agg(m.delay_ms) filter (where m.kind = 3)
  , array_agg(m.flow_id) filter (where m.parked and (m.kind <> 7 or m.chained))
  , array_agg(m.branch) filter (where m.parked and (m.kind <> 7 or m.chained))
  , array_agg(
      row(m.ord, m.flow_id, m.branch, m.from_seq, m.day, m.depth - m.seq + m.from_seq, m.attempt, m.owner, m.ordinal, m.base_seq, m.base_branch
      , m.created_at, m.started_at, m.parked, m.first_task)::dwarf.chain
    ) filter (where m.chained)
  , (select count(*) from l)
  , (select array_agg(l.flow_id) filter (where l.delete_on_completion and l.new_status = 6) from l)
  , (select array_agg(l.caller_flow) filter (where l.caller_flow is not null) from l)
  , (select array_agg(l.caller_branch) filter (where l.caller_flow is not null) from l)
  , (select array_agg(l.caller_seq) filter (where l.caller_flow is not null) from l)
  , (select array_agg(l.new_status = 8) filter (where l.caller_flow is not null) from l)
  into v_found, v_changed, applied, v_closed, join_flow, join_branch, join_ordinal, join_failed, join_depth, join_delay_ms, unparked_flow, unparked_branch
  , chains, v_ended, doomed, caller_flow, caller_branch, caller_seq, caller_cancelled
  from m;
  if v_found <> v_changed or v_closed <> v_ended then
    raise exception using errcode = 'DW901'
    , message = format('%s rows locked but %s changed, %s flows closed but %s live rows were there', v_found, v_changed, v_closed, v_ended);
  end if;
  missed := case
    when v_found = cardinality(p_flow) then '{}'
    else array(select g from generate_series(1, cardinality(p_flow)) g where g <> all (coalesce(applied, '{}')))
  end;
end $$;
