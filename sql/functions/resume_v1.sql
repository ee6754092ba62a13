-- Answer the first open interrupt of a tree, by (parked_at, branch, seq). True, or false when none is open. The row of the
-- step is locked before its park, as everywhere; when another resume or a cancellation came first the next one is tried.
create function dwarf.resume_v1(p_root bigint, p_answer json, p_now timestamptz default null) returns boolean
language plpgsql
as $$
declare
  v_now timestamptz := coalesce(p_now, dwarf.now());
  v_park record;
begin
  loop
    select p.flow_id, p.branch, p.seq into v_park
    from dwarf.parks p
    where p.root_id = p_root and p.kind = 1 and p.answer is null
    order by p.parked_at, p.branch, p.seq
    limit 1;
    if not found then
      return false;
    end if;
    perform 1 from dwarf.active a where a.flow_id = v_park.flow_id and a.branch = v_park.branch for update;
    if not found then
      continue;
    end if;
    update dwarf.parks p set answer = p_answer
    where p.flow_id = v_park.flow_id and p.branch = v_park.branch and p.seq = v_park.seq and p.kind = 1 and p.answer is null;
    if not found then
      continue;
    end if;
    update dwarf.active a set status = 1, claimable = v_now where a.flow_id = v_park.flow_id and a.branch = v_park.branch;
    return true;
  end loop;
end $$;
