-- Apply every record that is not on the linear path to its own row, and write its history. kind: 1 advance (9: the successor
-- starts at once), 2 fan out (on an expanding row: the next slice), 3 arrive, 4 park, 5 retry, 6 close, 7 give back.
-- A record may end a chain: p_from is then the seq that the row has, p_seq that of the last step, p_own its task, p_begun_ms
-- when it began after the chain did; p_base and p_delta_seq say where a document and the delta come from that an earlier
-- step of the chain left. An array that is null holds nothing but nulls.
-- Returns the ordinals not applied, and what the rest of the record needs: who arrived where, which callers to wake, which
-- parks to drop, which closed flows are to be kept for a short while only, and the rows from which chains have led on.
-- Only look-ups by key reach the tables (see sql/README.md): the arrays stay outside. Rows are changed by primary key from the
-- locked set, never by ctid: a harmless concurrent update would leave history without its row.
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
  with m as materialized (
    select a.flow_id, a.branch, a.from_seq, a.day, a.depth + r.seq - a.from_seq as depth, a.attempt, a.owner, a.created_at, a.started_at
    , case when a.from_seq < r.seq then r.own_task else a.first_task end as task, a.first_task, a.parked, a.base_branch, a.base_seq
    , a.join_branch, a.ordinal, r.seq, r.kind, r.status as new_status, r.via, r.next_task, r.goto, r.error, r.changes, r.contribution
    , r.snapshot, r.delta, r.delay_ms, r.size as new_size, r.count, r.first, r.final, r.keeps, r.base_seq as new_base, r.delta_seq, r.ord::int
    , a.from_seq < r.seq as chained, a.steps, a.from_seq < r.seq or a.steps = 1 as moves
    , case when a.from_seq < r.seq then least(p_now, a.started_at + r.begun_ms * interval '1 ms') end as begun_at
    from unnest(p_flow, p_branch, p_seq, p_lease, p_kind, p_status, p_via, p_task, p_goto, p_error, p_changes, p_contribution, p_snapshot
      , p_delta, p_delay_ms, p_size, p_count, p_first, p_final, p_keeps, p_from, p_own, p_begun_ms, p_base, p_delta_seq) with ordinality
      r(flow_id, branch, seq, lease, kind, status, via, next_task, goto, error, changes, contribution, snapshot
      , delta, delay_ms, size, count, first, final, keeps, from_seq, own_task, begun_ms, base_seq, delta_seq, ord)
    cross join lateral (
      select s.flow_id, s.branch, s.seq as from_seq, s.day, s.depth, s.attempt, s.owner, s.created_at, s.started_at, s.task as first_task
      , s.parked, s.base_branch, s.base_seq, s.join_branch, s.ordinal
      , case when r.kind in (1, 9) or r.kind = 2 and s.todo <> 4 then 1 else 0 end as steps
      from dwarf.active s
      where s.flow_id = r.flow_id and s.branch = r.branch and s.seq = coalesce(r.from_seq, r.seq) and s.lease = r.lease
      and (s.status = 2 or s.status = 1 and r.status in (6, 4, 5) and r.kind not in (5, 7))
      for update
    ) a
  ), u as (
    update dwarf.active s set
      seq = m.seq + m.steps
    , depth = m.depth + m.steps
    , lease = s.lease + case when m.kind = 7 then 0 else 1 end
    , task = case when m.steps = 1 then m.next_task else m.task end
    , status = case
        when m.kind = 9 then 2
        when m.kind = 4 then m.new_status
        when m.kind = 2 and m.count = m.new_size then 3
        else 1
      end
    , todo = case when m.kind = 2 then case when m.count < m.new_size then 4 else 0 end when m.moves then 0 else s.todo end
    , owner = case when m.kind = 9 then p_session end
    , claimable = case
        when m.kind = 7 then case when m.chained then p_now else s.created_at end
        when m.kind in (1, 5) and m.delay_ms is null or m.kind = 2 and m.count < m.new_size then p_now
      end
    , wake_at = case when m.kind in (1, 5) then p_now + m.delay_ms * interval '1 ms' end
    , created_at = case when m.moves then p_now else s.created_at end
    , started_at = case
        when m.kind = 9 then p_now
        when m.kind = 7 or m.steps = 1 then null
        when m.chained then p_now
        else s.started_at
      end
    , due_at = case when m.kind = 9 then p_now + (s.budget_ms + 30000) * interval '1 ms' end
    , attempt = case when m.moves then 0 else s.attempt end + case when m.kind = 5 then 1 else 0 end
    , deaths = case when m.moves then 0 else s.deaths end
    , parked = case when m.kind = 7 then s.parked and not m.chained else m.kind = 4 or m.kind = 5 and coalesce(m.keeps, false) end
    , base_branch = case when m.snapshot is null and m.new_base is null then s.base_branch else s.branch end
    , base_seq = case when m.snapshot is null then coalesce(m.new_base, s.base_seq) else m.seq end
    , delta = case when m.snapshot is null and m.new_base is null then coalesce(m.delta, s.delta) else m.delta end
    , delta_seq = case
        when m.snapshot is null and m.new_base is null and m.delta is null then s.delta_seq
        else coalesce(m.delta_seq, m.seq)
      end
    , size = case when m.steps = 1 then m.new_size when not m.chained then s.size end
    , expanded = case when m.kind = 2 then m.count when not m.moves then s.expanded end
    , arrived = case when not m.moves then s.arrived when m.kind = 2 then 0 end
    , failed = case when not m.moves then s.failed when m.kind = 2 then 0 end
    , last_ordinal = case when not m.moves then s.last_ordinal end
    , fan_depth = case when not m.moves then s.fan_depth when m.kind = 2 and m.count < m.new_size then m.depth + 1 end
    from m
    where m.kind not in (3, 6) and s.flow_id = any (array[m.flow_id]) and s.branch = m.branch
    returning 1
  ), d as (
    delete from dwarf.active s using m where m.kind in (3, 6) and s.flow_id = any (array[m.flow_id]) and s.branch = m.branch
    returning 1
  ), l as (
    delete from dwarf.live l using m where m.kind = 6 and l.flow_id = any (array[m.flow_id])
    returning l.*, m.new_status, m.task, m.error, m.final
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
  select count(*), (select count(*) from u) + (select count(*) from d), array_agg(m.ord), count(*) filter (where m.kind = 6)
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
