-- Open roots created more than p_age_ms ago, oldest first. Ids begin with the hour, so that only flows of that age are read;
-- go on after the last one to see more.
create function dwarf.expired_v1(p_age_ms bigint, p_limit int, p_after bigint default 0, p_now timestamptz default null)
returns table (flow_id bigint, created_at timestamptz)
language plpgsql stable
set enable_seqscan = off
set jit = off
as $$
#variable_conflict use_column
declare
  v_cutoff timestamptz := coalesce(p_now, dwarf.now()) - p_age_ms * interval '1 ms';
begin
  return query
  select l.flow_id, l.created_at from dwarf.live l
  where l.flow_id > p_after and l.flow_id < (dwarf.hour_of(v_cutoff)::bigint + 1) << 36
  and l.root_id = l.flow_id and l.created_at < v_cutoff
  order by l.flow_id
  limit p_limit;
end $$;

-- Terminate a root that is older than p_age_ms. False when it is not open or not that old. One tree, one transaction.
create function dwarf.expire_v1(p_root bigint, p_age_ms bigint, p_now timestamptz default null) returns boolean
language plpgsql
as $$
declare
  v_now timestamptz := coalesce(p_now, dwarf.now());
begin
  if not exists (select from dwarf.live l where l.flow_id = p_root and l.created_at < v_now - p_age_ms * interval '1 ms') then
    return false;
  end if;
  return dwarf.terminate_v1(p_root, format('expired: open for more than %s', justify_interval(p_age_ms * interval '1 ms'))
  , p_now, '');
end $$;
