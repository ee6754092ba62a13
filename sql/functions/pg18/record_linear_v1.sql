-- Record one batch of nothing but linear records, the trunks of flows that have one live row: the short form of record_v1. A
-- function of its own, without a second one inside: parsing defaults and calling functions is what small batches cost most.
--   lane        p_session, p_lane, p_epoch, p_batch as in record_v1, which calls this with a null p_lane for its own linear
--               records: then the lane has been raised and the live rows are locked
--   f_*         kind 1 advances, 9 advances and keeps the successor running, 6 closes; f_state is the final state at a close,
--               else the delta to store. Sorted by flow. p_closing: the flows that close, sorted
-- Returns state and the ordinals not applied (1..n), as record_v1 does.
create function dwarf.record_linear_v1(
  p_session int
, p_lane smallint
, p_epoch int
, p_batch bigint
, f_flow bigint[]
, f_seq int[]
, f_lease int[]
, f_kind smallint[]
, f_task text[]
, f_changes json[]
, f_state json[]
, p_closing bigint[]
, p_now timestamptz
, out state text
, out missed int[]
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
#variable_conflict use_column
declare
  v_now timestamptz := coalesce(p_now, dwarf.now());
  v_doomed bigint[];
  v_applied int;
  v_ordinals int[];
  v_closed int;
  v_ended int;
begin
  state := 'ok';
  if p_lane is not null then
    update dwarf.lanes l set batch = p_batch, missed = null
    where l.session = p_session and l.lane = p_lane and l.epoch = p_epoch and l.batch < p_batch;
    if not found then
      select x.state, x.missed into state, missed from dwarf.turned_away_v1(p_session, p_lane, p_epoch, p_batch) x;
      return;
    end if;
  end if;
  if p_closing is not null then
    perform 1 from unnest(p_closing) q(id) cross join lateral (select 1 from dwarf.live l where l.flow_id = q.id for update) x;
  end if;

  with r as (
    select t.* from unnest(f_flow, f_seq, f_lease, f_kind, f_task, f_changes, f_state) with ordinality
      t(flow_id, seq, lease, kind, task, changes, state, ord)
  ), m as (
    merge into dwarf.active s using r
      on s.flow_id = any (array[r.flow_id]) and s.branch = 0 and s.seq = r.seq and s.lease = r.lease and s.status in (1, 2)
    when matched and r.kind = 6 then delete
    when matched then update set
      seq = s.seq + 1
    , depth = s.depth + 1
    , task = r.task
    , lease = s.lease + (r.kind >> 3)
    , status = 1 + (r.kind >> 3)
    , todo = 0
    , owner = case when r.kind = 9 then p_session end
    , claimable = case when r.kind = 1 then v_now end
    , created_at = v_now
    , started_at = case when r.kind = 9 then v_now end
    , due_at = case when r.kind = 9 then v_now + (s.budget_ms + 30000) * interval '1 ms' end
    , attempt = 0
    , deaths = 0
    , delta = coalesce(r.state, s.delta)
    , delta_seq = case when r.state is null then s.delta_seq else s.seq end
    when not matched and r.seq = -1 then insert (flow_id, branch) values (0, 0)
    returning old.flow_id, old.seq, old.day, old.depth, old.attempt, old.owner, old.created_at, old.started_at, old.task
    , r.kind, r.changes, r.state, r.ord::int
  ), h as (
    insert into dwarf.history(flow_id, branch, seq, day, depth, attempt, status, owner, created_at, started_at, ended_at, task, changes)
    select m.flow_id, 0, m.seq, m.day, m.depth, m.attempt, 6, m.owner, m.created_at, m.started_at, v_now, m.task, m.changes from m
  ), l as (
    merge into dwarf.live l using (select * from m where m.kind = 6) x on l.flow_id = any (array[x.flow_id])
    when matched then delete
    when not matched and x.seq = -1 then insert (flow_id) values (0)
    returning old.*, x.task, x.state
  ), f as (
    insert into dwarf.flows(flow_id, day, root_id, status, priority, delete_on_completion, graph_id, budget_ms, weight, created_at
    , ended_at, thread_id, token, workflow, fairness_key, tenant, task, baggage, input, final_state)
    select l.flow_id, l.day, l.root_id, 6, l.priority, l.delete_on_completion, l.graph_id, l.budget_ms, l.weight, l.created_at
    , v_now, l.thread_id, l.token, l.workflow, l.fairness_key, l.tenant, l.task, l.baggage, l.input, l.state
    from l
  )
  select count(*), array_agg(m.ord), count(*) filter (where m.kind = 6)
  , (select count(*) from l), (select array_agg(l.flow_id) filter (where l.delete_on_completion) from l)
  into v_applied, v_ordinals, v_closed, v_ended, v_doomed
  from m;
  if v_closed <> v_ended then
    raise exception using errcode = 'DW901', message = format('%s linear flows closed, but %s live rows were there', v_closed, v_ended);
  end if;
  missed := case
    when v_applied = cardinality(f_flow) then '{}'
    else array(select g from generate_series(1, cardinality(f_flow)) g where g <> all (coalesce(v_ordinals, '{}')))
  end;
  if v_doomed is not null then
    perform dwarf.doom_v1(v_doomed, v_now);
  end if;
  if cardinality(missed) > 0 and p_lane is not null then
    update dwarf.lanes l set missed = record_linear_v1.missed where l.session = p_session and l.lane = p_lane;
  end if;
end $$;
