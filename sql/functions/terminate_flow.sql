-- End a flow, its children and all their steps at once. DW400, DW404, DW409: see find_open_root_v1.
create function dwarf.terminate_flow(p_key text, p_reason text default '', p_now timestamptz default null) returns void
language plpgsql
as $$
declare
  v_root bigint := dwarf.find_open_root_v1(p_key);
begin
  if not dwarf.terminate_v1(v_root, dwarf.clean_reason_v1(p_reason), p_now) then
    raise exception using errcode = 'DW409', message = format('flow %s has ended meanwhile', dwarf.flow_name(v_root));
  end if;
end $$;
