-- The flow named and the callers above it, the root first, all of a tree that has ended: where each was called from, and what it
-- is a run of. No row: the flow is not there, or not closed.
create function dwarf.callers_v1(p_flow_id bigint) returns table (
  flow_id bigint
, day int
, graph_id int
, caller_branch bigint
, caller_seq int
, input json
, overrides json
)
language plpgsql stable rows 4
set plan_cache_mode = force_custom_plan
set enable_seqscan = off
set jit = off
as $$
#variable_conflict use_column
declare
  v_flow_id bigint := p_flow_id;
  v_path bigint[];
begin
  while v_flow_id is not null loop
    v_path := v_flow_id || v_path;
    v_flow_id := (select f.caller_flow from dwarf.flows f where f.flow_id = v_flow_id and f.day in (dwarf.day_of_id(v_flow_id), -1));
  end loop;
  foreach v_flow_id in array v_path loop
    return query
    select f.flow_id, f.day, f.graph_id, f.caller_branch, f.caller_seq, f.input, dwarf.overrides_v1(f.flow_id)
    from dwarf.flows f
    where f.flow_id = v_flow_id and f.day in (dwarf.day_of_id(v_flow_id), -1);
  end loop;
end $$;

-- What a fork has put in the place of the input of steps of a flow: [[branch, seq, fields], …], null for nothing.
create function dwarf.overrides_v1(p_flow_id bigint) returns json
language sql stable
return (
  select json_agg(json_build_array(o.branch, o.seq, o.overrides)) from dwarf.forks o where o.flow_id = p_flow_id and o.overrides is not null
);

-- Create a flow that goes on in the middle of one that has ended (see dwarf/forking.py, which decides what is copied):
--   p_origin    the flows to copy and leave open: the root, then callers' children down to the flow of the steps that run again.
--               p_token, p_input (null: the same), and the step of the one before that has called it, with the writes it keeps
--   k_*         which steps are copied: those of a branch up to `last`; rec is the place of the flow in p_origin. Children that
--               these steps called are copied whole, with all below them
--   p_steps     how many steps that makes, without the children's
--   d_*         documents that stand with copied steps in place of their own
--   x_*         what branches that had not settled bring to their fan-in, with the last step of each
--   a_*         the rows to begin with: status 1 due, 3 a fan-in that waits, 5 a caller
--   o_*         the steps that run again, in the last flow, with what is put in the place of their input; and callers of which
--               something has been put there by an earlier fork. What such forks put for copied steps is copied
-- state: `forked`, with the ids of the new flows in the order of p_origin; `open`, `deleted` or `missing` is the root, and nothing
-- was changed. With p_is_first it must not have been forked before: else state is `forked before`. Not a row of the origin is changed. Copied steps keep their times; those that never settled are cancelled.
create function dwarf.fork_v1(
  p_root bigint
, p_origin bigint[]
, p_token text[]
, p_caller_branch bigint[]
, p_caller_seq int[]
, p_kept json[]
, p_input json[]
, k_rec int[]
, k_branch bigint[]
, k_last int[]
, p_steps bigint
, d_rec int[]
, d_branch bigint[]
, d_seq int[]
, d_document json[]
, x_rec int[]
, x_branch bigint[]
, x_seq int[]
, x_contribution json[]
, a_rec int[]
, a_branch bigint[]
, a_seq int[]
, a_task text[]
, a_depth int[]
, a_status int[]
, a_attempt int[]
, a_base_branch bigint[]
, a_base_seq int[]
, a_delta json[]
, a_join_branch bigint[]
, a_ordinal int[]
, a_size int[]
, a_arrived int[]
, a_failed int[]
, o_rec int[]
, o_branch bigint[]
, o_seq int[]
, o_overrides json[]
, p_is_first boolean default false
, p_now timestamptz default null
, p_actor text default null
, out state text
, out flow_ids bigint[]
)
language plpgsql
set plan_cache_mode = force_custom_plan
set enable_seqscan = off
set enable_mergejoin = off
set jit = off
as $$
#variable_conflict use_column
declare
  v_now timestamptz := coalesce(p_now, dwarf.now());
  v_hour bigint := dwarf.hour_of(v_now);
  v_today int := dwarf.day_of(v_now);
  v_last int := cardinality(p_origin);
  v_days int[];
  v_day int;
  v_rows bigint;
  v_steps bigint := 0;
  v_old bigint[];
  v_new bigint[];
begin
  -- Held until the end: whoever removes or moves the tree comes before or after.
  perform 1 from dwarf.flows f where f.flow_id = p_root and f.day in (dwarf.day_of_id(p_root), -1) for key share;
  if not found then
    state := case when exists (select from dwarf.live l where l.flow_id = p_root) then 'open' else 'missing' end;
    return;
  end if;
  if exists (select from dwarf.doomed d where d.flow_id = p_root) then
    state := 'deleted';
    return;
  end if;
  if p_is_first then
    -- Of several who would be the first one is.
    perform 1 from dwarf.flows f where f.flow_id = p_root and f.day in (dwarf.day_of_id(p_root), -1) for no key update;
    if exists (select from dwarf.forks o where o.origin_root_id = p_root) then
      state := 'forked before';
      return;
    end if;
  end if;
  v_days := array(
    select f.day
    from unnest(p_origin) with ordinality t(id, rec)
    cross join lateral (select x.day from dwarf.flows x where x.flow_id = t.id and x.day in (dwarf.day_of_id(t.id), -1) offset 0) f
    order by t.rec
  );
  flow_ids := array(select (v_hour << 36) | (nextval('dwarf.flow_seq') & 68719476735) from generate_series(1, v_last));
  select t.old_ids, t.new_ids into v_old, v_new
  from dwarf.copy_children_v1(p_origin, flow_ids, v_days, k_rec, k_branch, k_last, v_now) t;

  foreach v_day in array array(select distinct d.day from unnest(v_days) d(day)) loop
    insert into dwarf.history(flow_id, branch, seq, day, depth, attempt, status, via, owner, created_at, started_at, ended_at, parent_branch
    , parent_seq, ordinal, fan_first, fan_size, child_id, task, goto, error, changes, contribution, state, payload, kept)
    select flow_ids[k.rec], h.branch, h.seq, v_today, h.depth, h.attempt, case when h.status = 9 then 8 else h.status end, h.via, h.owner
    , h.created_at, h.started_at, h.ended_at, h.parent_branch, h.parent_seq, h.ordinal, h.fan_first, h.fan_size, c.new, h.task, h.goto
    , h.error, h.changes, coalesce(x.contribution, h.contribution), coalesce(d.document, h.state), h.payload, h.kept
    from unnest(k_rec, k_branch, k_last) k(rec, branch, last)
    cross join lateral (
      select y.* from dwarf.history y
      where v_days[k.rec] = v_day and y.flow_id = p_origin[k.rec] and y.branch = k.branch and y.seq <= k.last and y.day = v_day
      offset 0
    ) h
    left join unnest(d_rec, d_branch, d_seq, d_document) d(rec, branch, seq, document)
      on d.rec = k.rec and d.branch = h.branch and d.seq = h.seq
    left join unnest(x_rec, x_branch, x_seq, x_contribution) x(rec, branch, seq, contribution)
      on x.rec = k.rec and x.branch = h.branch and x.seq = h.seq
    left join unnest(v_old, v_new) c(old, new) on c.old = h.child_id;
    get diagnostics v_rows = row_count;
    v_steps := v_steps + v_rows;
    insert into dwarf.live(flow_id, root_id, nesting, priority, graph_id, budget_ms, day, weight, created_at, thread_id, caller_flow
    , caller_branch, caller_seq, token, workflow, fairness_key, tenant, path, baggage, input)
    select flow_ids[r.rec], flow_ids[1], f.nesting, f.priority, f.graph_id, f.budget_ms, v_today, f.weight, v_now
    , case when r.rec = 1 then f.thread_id else flow_ids[r.rec] end, case when r.rec > 1 then flow_ids[r.rec - 1] end
    , p_caller_branch[r.rec], p_caller_seq[r.rec], p_token[r.rec], f.workflow, f.fairness_key, f.tenant
    , case when r.rec > 1 then flow_ids[1:r.rec - 1] end, f.baggage, coalesce(p_input[r.rec], f.input)
    from generate_series(1, v_last) r(rec)
    cross join lateral (
      select y.* from dwarf.flows y where v_days[r.rec] = v_day and y.flow_id = p_origin[r.rec] and y.day = v_day offset 0
    ) f;
  end loop;
  if v_steps <> p_steps then
    raise exception using errcode = 'DW901', message = format('%s steps were to be copied, but %s were there', p_steps, v_steps);
  end if;

  insert into dwarf.active(flow_id, branch, seq, depth, status, attempt, priority, half, budget_ms, day, weight, created_at, claimable
  , base_branch, base_seq, delta_seq, delta, join_branch, ordinal, size, expanded, arrived, failed, parked, task, fairness_key)
  select l.flow_id, a.branch, a.seq, a.depth, a.status, a.attempt, l.priority, hashint8(l.root_id) & 1, l.budget_ms, v_today, l.weight, v_now
  , case when a.status = 1 then v_now end, a.base_branch, a.base_seq, a.seq - 1, a.delta, a.join_branch, a.ordinal, a.size, a.size, a.arrived
  , a.failed, a.status = 5, a.task, l.fairness_key
  from unnest(a_rec, a_branch, a_seq, a_task, a_depth, a_status, a_attempt, a_base_branch, a_base_seq, a_delta, a_join_branch, a_ordinal
    , a_size, a_arrived, a_failed)
    a(rec, branch, seq, task, depth, status, attempt, base_branch, base_seq, delta, join_branch, ordinal, size, arrived, failed)
  join dwarf.live l on l.flow_id = flow_ids[a.rec];
  insert into dwarf.parks(flow_id, branch, seq, kind, root_id, parked_at, child_id, child_day, path, kept)
  select l.caller_flow, l.caller_branch, l.caller_seq, 2, l.root_id, v_now, l.flow_id, v_today, l.path, p_kept[c.rec]
  from unnest(flow_ids) with ordinality c(flow_id, rec)
  join dwarf.live l on l.flow_id = c.flow_id
  where c.rec > 1;
  insert into dwarf.forks(flow_id, branch, seq, root_id, origin_id, origin_root_id, created_at, overrides)
  select flow_ids[o.rec], o.branch, o.seq, flow_ids[1], p_origin[o.rec], p_root, v_now, o.overrides
  from unnest(o_rec, o_branch, o_seq, o_overrides) o(rec, branch, seq, overrides)
  union all
  select flow_ids[k.rec], o.branch, o.seq, flow_ids[1], o.flow_id, p_root, v_now, o.overrides
  from unnest(p_origin) with ordinality f(flow_id, rec)
  join dwarf.forks o on o.flow_id = f.flow_id and o.overrides is not null
  join unnest(k_rec, k_branch, k_last) k(rec, branch, last) on k.rec = f.rec and k.branch = o.branch and k.last >= o.seq
  union all
  select c.new, o.branch, o.seq, flow_ids[1], o.flow_id, p_root, v_now, o.overrides
  from unnest(v_old, v_new) c(old, new)
  join dwarf.forks o on o.flow_id = c.old and o.overrides is not null;
  perform dwarf.audit_v1('fork', flow_ids[1], p_actor, json_build_object('origin', p_root), v_now);
  state := 'forked';
end $$;

-- Copy the children that kept steps have called, with all that is below them, and return which id became which. They have
-- ended and stay so. Level by level: a tree may be a thousand deep.
create function dwarf.copy_children_v1(
  p_origin bigint[]
, p_copy bigint[]
, p_day int[]
, k_rec int[]
, k_branch bigint[]
, k_last int[]
, p_now timestamptz
, out old_ids bigint[]
, out new_ids bigint[]
)
language plpgsql
set plan_cache_mode = force_custom_plan
set enable_seqscan = off
set enable_mergejoin = off
set jit = off
as $$
#variable_conflict use_column
declare
  v_hour bigint := dwarf.hour_of(p_now);
  v_today int := dwarf.day_of(p_now);
  v_day int;
  v_level bigint[];
  v_below bigint[];
  v_above_old bigint[] := p_origin;
  v_above_new bigint[] := p_copy;
  v_level_new bigint[];
begin
  old_ids := '{}';
  new_ids := '{}';
  foreach v_day in array array(select distinct d.day from unnest(p_day) d(day)) loop
    v_level := v_level || array(
      select h.child_id
      from unnest(k_rec, k_branch, k_last) k(rec, branch, last)
      cross join lateral (
        select y.child_id from dwarf.history y
        where p_day[k.rec] = v_day and y.flow_id = p_origin[k.rec] and y.branch = k.branch and y.seq <= k.last and y.day = v_day
        and y.child_id is not null
        offset 0
      ) h
    );
  end loop;
  while cardinality(v_level) > 0 loop
    v_level_new := array(select (v_hour << 36) | (nextval('dwarf.flow_seq') & 68719476735) from unnest(v_level));
    old_ids := old_ids || v_level;
    new_ids := new_ids || v_level_new;
    v_below := '{}';
    for v_day in select distinct t.day from (select dwarf.day_of_id(u.id) as day from unnest(v_level) u(id) union select -1) t loop
      insert into dwarf.flows(flow_id, day, root_id, status, nesting, priority, graph_id, budget_ms, weight, created_at, ended_at, thread_id
      , caller_flow, caller_branch, caller_seq, token, workflow, fairness_key, tenant, task, error, reason, baggage, input, final_state)
      select m.new, v_today, p_copy[1], f.status, f.nesting, f.priority, f.graph_id, f.budget_ms, f.weight, f.created_at, f.ended_at, m.new
      , c.new, f.caller_branch, f.caller_seq, left(encode(sha256(uuid_send(gen_random_uuid())), 'hex'), 16), f.workflow, f.fairness_key
      , f.tenant, f.task, f.error, f.reason, f.baggage, f.input, f.final_state
      from unnest(v_level, v_level_new) m(old, new)
      cross join lateral (select y.* from dwarf.flows y where y.flow_id = m.old and y.day = v_day offset 0) f
      join unnest(v_above_old, v_above_new) c(old, new) on c.old = f.caller_flow;
      v_below := v_below || array(
        select h.child_id
        from unnest(v_level) m(old)
        cross join lateral (
          select y.child_id from dwarf.history y where y.flow_id = m.old and y.day = v_day and y.child_id is not null offset 0
        ) h
      );
    end loop;
    v_above_old := v_level;
    v_above_new := v_level_new;
    v_level := v_below;
  end loop;
  for v_day in select distinct t.day from (select dwarf.day_of_id(u.id) as day from unnest(old_ids) u(id) union select -1) t loop
    insert into dwarf.history(flow_id, branch, seq, day, depth, attempt, status, via, owner, created_at, started_at, ended_at, parent_branch
    , parent_seq, ordinal, fan_first, fan_size, child_id, task, goto, error, changes, contribution, state, payload, kept)
    select m.new, h.branch, h.seq, v_today, h.depth, h.attempt, h.status, h.via, h.owner, h.created_at, h.started_at, h.ended_at
    , h.parent_branch, h.parent_seq, h.ordinal, h.fan_first, h.fan_size, c.new, h.task, h.goto, h.error, h.changes, h.contribution, h.state
    , h.payload, h.kept
    from unnest(old_ids, new_ids) m(old, new)
    cross join lateral (select y.* from dwarf.history y where y.flow_id = m.old and y.day = v_day offset 0) h
    left join unnest(old_ids, new_ids) c(old, new) on c.old = h.child_id;
  end loop;
end $$;

comment on function dwarf.callers_v1 is 'A closed flow and the callers above it, the root first.';
comment on function dwarf.overrides_v1 is 'What forks have put in the place of the input of steps of a flow.';
comment on function dwarf.fork_v1 is 'Create a flow that goes on in the middle of one that has ended.';
comment on function dwarf.copy_children_v1 is 'Copy the children that kept steps of a fork have called.';
