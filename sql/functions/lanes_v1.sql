-- Open a lane of a session, or open it anew: nothing that is still under way in it can commit afterwards. Waits behind a
-- backend that is committing a batch. Returns the epoch to record with, the last batch recorded, and what that missed.
create function dwarf.open_lane_v1(p_session int, p_lane smallint, out epoch int, out batch bigint, out missed int[])
language plpgsql
as $$
#variable_conflict use_column
begin
  insert into dwarf.lanes as l (session, lane) values (p_session, p_lane)
  on conflict (session, lane) do update set epoch = l.epoch + 1
  returning l.epoch, l.batch, l.missed into epoch, batch, missed;
end $$;

-- End the backend that is recording in a lane and does not come back: the one whose transaction has changed the lane's row.
-- Nothing of its batch is left then. Returns how many were ended.
create function dwarf.end_lane_holder_v1(p_session int, p_lane smallint) returns int
language sql volatile
return (
  select count(*) filter (where pg_terminate_backend(a.pid))::int
  from dwarf.lanes l join pg_stat_activity a on a.backend_xid = l.xmax
  where l.session = p_session and l.lane = p_lane and a.pid <> pg_backend_pid()
);

-- Reserve a block of 2^20 branch numbers and return its first. A fan-out takes consecutive numbers out of one block.
create function dwarf.branch_block_v1() returns bigint
language sql volatile
return nextval('dwarf.branch_block_seq') << 20;

-- Why a batch is not recorded now: 'stale' if the lane's epoch has moved on or it is not there, else 'repeated', and for the
-- lane's last batch what it missed.
create function dwarf.turned_away_v1(p_session int, p_lane smallint, p_epoch int, p_batch bigint, out state text, out missed int[])
language plpgsql stable
as $$
#variable_conflict use_column
begin
  select case when l.epoch = p_epoch and l.batch >= p_batch then 'repeated' else 'stale' end
  , case when l.epoch = p_epoch and l.batch = p_batch then l.missed end
  into state, missed
  from dwarf.lanes l where l.session = p_session and l.lane = p_lane;
  state := coalesce(state, 'stale');
end $$;

-- Mark flows that closed to be kept for a short while only: their outcome can be read for a minute.
create function dwarf.doom_v1(p_flow bigint[], p_now timestamptz) returns void
language plpgsql
as $$
begin
  insert into dwarf.doomed(flow_id, day, due_at, hidden_at)
  select d.id, (d.id >> 36) / 24, p_now + interval '60 s', p_now from unnest(p_flow) d(id)
  on conflict (flow_id) do nothing;
end $$;
