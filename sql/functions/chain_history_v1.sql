-- Write the history of chains but for the last step of each, which its record writes. Arrays are those of record_v1: h_rec is
-- the place of the chain's record, h_task the task that follows the step, h_ended_ms when it ended after the chain began.
-- A step begins when the one before it has ended. The arrays are joined by hashing, which the caller has switched off.
create function dwarf.chain_history_v1(
  p_now timestamptz
, p_chains dwarf.chain[]
, h_rec int[]
, h_task text[]
, h_changes json[]
, h_state json[]
, h_ended_ms bigint[]
)
returns void
language plpgsql
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set enable_nestloop = off
set enable_hashjoin = on
set enable_material = off
set enable_memoize = off
set jit = off
as $$
#variable_conflict use_column
begin
  insert into dwarf.history(flow_id, branch, seq, day, depth, attempt, status, owner, created_at, started_at, ended_at
  , parent_branch, parent_seq, ordinal, child_id, task, changes, state, payload, kept)
  select c.flow_id, c.branch, c.seq + h.nth, c.day, c.depth + h.nth, case when h.nth = 0 then c.attempt else 0 end, 6, c.owner
  , case when h.nth = 0 then c.created_at else t.begun_at end
  , case when h.nth = 0 then c.started_at else t.begun_at end
  , t.ended_at
  , case when c.seq + h.nth = 1 and c.branch <> 0 then c.base_branch end, case when c.seq + h.nth = 1 and c.branch <> 0 then c.base_seq end
  , case when c.seq + h.nth = 1 then c.ordinal end, k.child_id, coalesce(h.task, c.task), h.changes, h.state, k.payload, k.kept
  from unnest(p_chains) c
  join (
    select x.rec, x.changes, x.state, x.ended_ms
    , (row_number() over w)::int - 1 as nth, lag(x.next_task) over w as task, lag(x.ended_ms) over w as begun_ms
    from unnest(h_rec, h_task, h_changes, h_state, h_ended_ms) with ordinality
      x(rec, next_task, changes, state, ended_ms, ord)
    window w as (partition by x.rec order by x.ord)
  ) h on h.rec = c.place
  cross join lateral (
    select least(p_now, c.started_at + h.begun_ms * interval '1 ms') as begun_at
    , least(p_now, c.started_at + h.ended_ms * interval '1 ms') as ended_at
  ) t
  left join lateral (
    select p.child_id, p.payload, case when p.kind = 2 then p.kept end as kept from dwarf.parks p
    where c.parked and h.nth = 0 and p.flow_id = c.flow_id and p.branch = c.branch
    offset 0
  ) k on true;
end $$;
