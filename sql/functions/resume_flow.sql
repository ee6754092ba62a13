-- Answer the first open interrupt of a flow, with nothing or with an object. DW400, DW404: see find_open_root_v1. DW409 when the
-- flow is not interrupted, or another resume was first.
create function dwarf.resume_flow(p_key text, p_data json default null, p_now timestamptz default null) returns void
language plpgsql
as $$
declare
  v_root bigint := dwarf.find_open_root_v1(p_key);
begin
  if not dwarf.resume_v1(v_root, dwarf.check_document_v1(p_data, 'data'), p_now) then
    raise exception using errcode = 'DW409', message = format('flow %s is not interrupted', dwarf.flow_name(v_root));
  end if;
end $$;
