-- Answer the first open interrupt of a tree, by (parked_at, branch, seq). True, or false when none is open. The row of the
-- step is taken before its park, as everywhere; when another resume or a cancellation came first the next one is tried.
-- DW901: a park whose step does not wait for an answer; nothing was changed.
create function dwarf.resume_v1(p_root bigint, p_answer json, p_now timestamptz default null, p_actor text default null)
returns boolean
language plpgsql
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set enable_sort = off
set jit = off
as $$
declare
  v_now timestamptz := coalesce(p_now, dwarf.now());
  v_park record;
  v_last record;
  v_same int := 0;
begin
  loop
    select p.flow_id, p.branch, p.seq, p.parked_at into v_park
    from dwarf.parks p
    where p.root_id = p_root and p.kind = 1 and p.answer is null
    order by p.parked_at, p.branch, p.seq
    limit 1;
    if not found then
      return false;
    end if;
    update dwarf.active a set status = 1, claimable = v_now
    where a.flow_id = v_park.flow_id and a.branch = v_park.branch and a.seq = v_park.seq and a.status = 4;
    exit when found;
    -- Whoever came first has committed, so that its park is not seen again but where it is damaged (or parked anew at once).
    v_same := case when v_park = v_last then v_same + 1 else 0 end;
    if v_same = 3 then
      raise exception using errcode = 'DW901', message = format('flow %s: branch %s is parked at step %s for an answer, and its row does not wait for one'
      , dwarf.flow_name(v_park.flow_id), v_park.branch, v_park.seq);
    end if;
    v_last := v_park;
  end loop;
  -- By the key alone: that it is an open interrupt goes without saying, and said it would invite the index of all open ones.
  update dwarf.parks p set answer = p_answer where p.flow_id = v_park.flow_id and p.branch = v_park.branch and p.answer is null;
  if not found then
    raise exception using errcode = 'DW901', message = format('flow %s: branch %s waits for an answer at step %s, and is not parked for one'
    , dwarf.flow_name(v_park.flow_id), v_park.branch, v_park.seq);
  end if;
  perform dwarf.audit_v1('resume', p_root, p_actor, p_now => v_now);
  return true;
end $$;
