-- Record one batch: everything that a dispatcher's executors finished, in one commit. See schema.sql for the lock order.
--   lane        p_session, p_lane, p_epoch, p_batch: a batch of an older epoch, or one recorded already, changes nothing
--   p_creators  roots of the records that create rows, p_closing the flows that records close: live rows to lock, sorted
--   j_*         joining and caller rows that will be counted down or woken, distinct and sorted
--   f_*         the linear path; ordinals 1..n. s_* every other record; ordinals go on. Both sorted by (flow, branch)
--   c_*         new branches: rec is the place of their record in s_*. k_* new children, likewise
--   h_*         the steps of chains but for the last of each, in order: rec is the place in s_* of the record that ends the chain
-- An array of which every element is null is left out.
-- Returns state 'ok', or 'stale' (the epoch has moved on) or 'repeated' (this batch is recorded: missed is what it returned
-- then); the ordinals not applied; the rows made claimable; the flow ids of the children, in the order of k_*.
create function dwarf.record_v1(
  p_session int
, p_lane smallint
, p_epoch int
, p_batch bigint
, f_flow bigint[] default null
, f_seq int[] default null
, f_lease int[] default null
, f_kind smallint[] default null
, f_task text[] default null
, f_changes json[] default null
, f_state json[] default null
, p_creators bigint[] default null
, p_closing bigint[] default null
, j_flow bigint[] default null
, j_branch bigint[] default null
, s_flow bigint[] default null
, s_branch bigint[] default null
, s_seq int[] default null
, s_lease int[] default null
, s_kind smallint[] default null
, s_status smallint[] default null
, s_via smallint[] default null
, s_task text[] default null
, s_goto text[] default null
, s_error text[] default null
, s_changes json[] default null
, s_contribution json[] default null
, s_snapshot json[] default null
, s_delta json[] default null
, s_delay_ms bigint[] default null
, s_size int[] default null
, s_count int[] default null
, s_first bigint[] default null
, s_final json[] default null
, s_kept json[] default null
, s_payload json[] default null
, s_from int[] default null
, s_own text[] default null
, s_begun_ms bigint[] default null
, s_base int[] default null
, s_delta_seq int[] default null
, c_rec int[] default null
, c_ordinal int[] default null
, c_task text[] default null
, c_delta json[] default null
, c_hot boolean[] default null
, k_rec int[] default null
, k_token text[] default null
, k_graph_id int[] default null
, k_workflow text[] default null
, k_task text[] default null
, k_input json[] default null
, h_rec int[] default null
, h_task text[] default null
, h_changes json[] default null
, h_state json[] default null
, h_ended_ms bigint[] default null
, p_now timestamptz default null
, out state text
, out missed int[]
, out woke_flow bigint[]
, out woke_branch bigint[]
, out children bigint[]
)
language plpgsql
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set enable_bitmapscan = off
set enable_material = off
set enable_memoize = off
set jit = off
as $$
declare
  v_now timestamptz := coalesce(p_now, dwarf.now());
  v_linear int := coalesce(cardinality(f_flow), 0);
  v_rows record;
  v_counted record;
begin
  update dwarf.lanes l set batch = p_batch, missed = null
  where l.session = p_session and l.lane = p_lane and l.epoch = p_epoch and l.batch < p_batch;
  if not found then
    select x.state, x.missed into state, missed from dwarf.turned_away_v1(p_session, p_lane, p_epoch, p_batch) x;
    return;
  end if;
  state := 'ok';
  missed := '{}';

  -- Once a live lock is granted, a terminate or cancel that came first has committed and has taken the rows or raised their
  -- leases: the fence of the next statement, with its fresh snapshot, sees that. Nothing more needs checking.
  if p_creators is not null then
    perform 1 from unnest(p_creators) q(id) cross join lateral (select 1 from dwarf.live l where l.flow_id = q.id for share) x;
  end if;
  if p_closing is not null then
    perform 1 from unnest(p_closing) q(id) cross join lateral (select 1 from dwarf.live l where l.flow_id = q.id for update) x;
  end if;
  if j_flow is not null then
    perform 1 from unnest(j_flow, j_branch) q(flow_id, branch)
    cross join lateral (select 1 from dwarf.active a where a.flow_id = q.flow_id and a.branch = q.branch for update) x;
  end if;

  if v_linear > 0 then
    select x.missed into missed
    from dwarf.record_linear_v1(p_session, null, null, null, f_flow, f_seq, f_lease, f_kind, f_task, f_changes, f_state, null, v_now) x;
  end if;

  if s_flow is not null then
    select * into v_rows from dwarf.apply_rows_v1(p_session, v_now, s_flow, s_branch, s_seq, s_lease, s_kind, s_status, s_via, s_task, s_goto
    , s_error, s_changes, s_contribution, s_snapshot, s_delta, s_delay_ms, s_size, s_count, s_first, s_final
    , case when s_kept is not null then array(select k is not null from unnest(s_kept) with ordinality t(k, ord) order by ord) end
    , s_from, s_own, s_begun_ms, s_base, s_delta_seq);
    missed := missed || array(select v_linear + g from unnest(v_rows.missed) g);
    if v_rows.doomed is not null then
      perform dwarf.doom_v1(v_rows.doomed, v_now);
    end if;
    if v_rows.chains is not null then
      perform dwarf.chain_history_v1(v_now, v_rows.chains, h_rec, h_task, h_changes, h_state, h_ended_ms);
    end if;
    if v_rows.unparked_flow is not null then
      perform dwarf.unpark_v1(v_rows.unparked_flow, v_rows.unparked_branch);
    end if;
    if c_rec is not null then
      insert into dwarf.active(flow_id, branch, seq, lease, owner, depth, status, priority, half, budget_ms, day, base_branch, base_seq
      , weight, created_at, claimable, wake_at, started_at, due_at, join_branch, ordinal, task, fairness_key, delta)
      select p.flow_id, s_first[c.rec] + c.ordinal, 1, case when c.hot then 1 else 0 end, case when c.hot then p_session end, coalesce(p.fan_depth, p.depth)
      , case when c.hot then 2 else 1 end, p.priority, p.half, p.budget_ms, p.day, p.branch, p.seq - 1, p.weight, v_now
      , case when not c.hot and s_delay_ms[c.rec] is null then v_now end
      , case when not c.hot then v_now + s_delay_ms[c.rec] * interval '1 ms' end
      , case when c.hot then v_now end, case when c.hot then v_now + (p.budget_ms + 30000) * interval '1 ms' end
      , p.branch, c.ordinal, c.task, p.fairness_key, c.delta
      from unnest(c_rec, c_ordinal, c_task, c_delta, c_hot) c(rec, ordinal, task, delta, hot)
      cross join lateral (
        select a.* from dwarf.active a where a.flow_id = s_flow[c.rec] and a.branch = s_branch[c.rec] offset 0
      ) p
      where cardinality(v_rows.missed) = 0 or c.rec = any (v_rows.applied);
    end if;
    if 4 = any (s_kind) or 5 = any (s_kind) then
      children := dwarf.park_v1(v_now, v_rows.applied, s_flow, s_branch, s_kind, s_status, s_kept, s_payload, k_rec, k_token, k_graph_id
      , k_workflow, k_task, k_input);
    end if;
    -- Statements of their own: a joining row may have been changed above, and no row can be changed twice in one statement.
    if v_rows.join_flow is not null then
      select * into v_counted from dwarf.count_down_v1(v_now, v_rows.join_flow, v_rows.join_branch, v_rows.join_ordinal, v_rows.join_failed
      , v_rows.join_depth, v_rows.join_delay_ms);
      woke_flow := v_counted.woke_flow;
      woke_branch := v_counted.woke_branch;
    end if;
    if v_rows.caller_flow is not null then
      select * into v_counted from dwarf.wake_callers_v1(v_now, v_rows.caller_flow, v_rows.caller_branch, v_rows.caller_seq
      , v_rows.caller_cancelled);
      woke_flow := woke_flow || v_counted.woke_flow;
      woke_branch := woke_branch || v_counted.woke_branch;
    end if;
  end if;

  if cardinality(missed) > 0 then
    update dwarf.lanes l set missed = record_v1.missed where l.session = p_session and l.lane = p_lane;
  end if;
end $$;
