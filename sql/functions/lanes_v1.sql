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

-- Which backend last recorded in a lane, so that one that never comes back can be ended before the lane is opened anew.
create function dwarf.lane_backend_v1(p_session int, p_lane smallint) returns int
language sql stable
return (select l.backend from dwarf.lanes l where l.session = p_session and l.lane = p_lane);

-- Reserve a block of 2^20 branch numbers and return its first. A fan-out takes consecutive numbers out of one block.
create function dwarf.branch_block_v1() returns bigint
language sql volatile
return nextval('dwarf.branch_block_seq') << 20;
