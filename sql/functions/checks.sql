-- Read a flow key. DW400 when it is malformed, DW404 when it names another shard. Messages never show the token.
create function dwarf.parse_key_v1(p_key text, out flow_id bigint, out token text)
language plpgsql stable
as $$
declare
  v_part text[] := regexp_match(p_key, '^([1-9][0-9]{0,9})-(0|[1-9][0-9]{0,8})-(0|[1-9][0-9]{0,10})-([0-9a-f]{16})$');
  v_shard bigint := dwarf.setting_v1('shard_index', 1);
begin
  if v_part is null or v_part[2]::bigint > 134217727 or v_part[3]::bigint > 68719476735 then
    raise exception using errcode = 'DW400'
    , message = 'the flow key is malformed: its form is shard-hour-number-token, the token being 16 lowercase hex digits';
  end if;
  if v_part[1]::bigint <> v_shard then
    raise exception using errcode = 'DW404'
    , message = format('flow %s-%s-%s is not on this shard, which is shard %s', v_part[1], v_part[2], v_part[3], v_shard);
  end if;
  flow_id := (v_part[2]::bigint << 36) | v_part[3]::bigint;
  token := v_part[4];
end $$;

-- A flow as logs call it: its key without the token.
create function dwarf.flow_name(p_shard int, p_flow_id bigint) returns text
language sql immutable parallel safe
return p_shard || '-' || (p_flow_id >> 36) || '-' || (p_flow_id & 68719476735);

create function dwarf.flow_name(p_flow_id bigint) returns text
language sql stable
return dwarf.flow_name(dwarf.setting_v1('shard_index', 1)::int, p_flow_id);

-- The id of the open root that a key names. DW404 when there is no such flow, DW400 when it is a child, DW409 when it has ended.
create function dwarf.find_open_root_v1(p_key text) returns bigint
language plpgsql stable
as $$
declare
  v_key record := dwarf.parse_key_v1(p_key);
  v_flow record;
begin
  select o.root_id, o.token, o.status into v_flow from dwarf.outcome_v1(v_key.flow_id) o;
  if v_flow.token is distinct from v_key.token then
    raise exception using errcode = 'DW404', message = format('there is no flow %s', dwarf.flow_name(v_key.flow_id));
  end if;
  if v_flow.root_id <> v_key.flow_id then
    raise exception using errcode = 'DW400', message = format('flow %s is a child; name its root', dwarf.flow_name(v_key.flow_id));
  end if;
  if v_flow.status > 5 then
    raise exception using errcode = 'DW409'
    , message = format('flow %s has ended: it is %s', dwarf.flow_name(v_key.flow_id), dwarf.status_name(v_flow.status));
  end if;
  return v_key.flow_id;
end $$;

-- Accept a JSON object that every later reader can decode, nothing standing for the empty one. DW400 otherwise.
create function dwarf.check_document_v1(p_value json, p_what text, p_bytes_max int default 268435456) returns json
language plpgsql immutable
as $$
declare
  v_text text := p_value::text;
  v_bare text;
  v_why text;
begin
  if p_value is null or json_typeof(p_value) = 'null' then
    return '{}';
  elsif json_typeof(p_value) <> 'object' then
    v_why := format('must be a JSON object, not %s %s', case json_typeof(p_value) when 'array' then 'an' else 'a' end, json_typeof(p_value));
  elsif octet_length(v_text) > p_bytes_max then
    v_why := format('takes %s bytes; at most %s are allowed', octet_length(v_text), p_bytes_max);
  else
    begin
      perform dwarf.peek(p_value);  -- half a surrogate pair
    exception
      when data_exception or program_limit_exceeded then
        v_why := format('holds what cannot be stored: %s', sqlerrm);
    end;
  end if;
  if v_why is null and (length(v_text) - length(translate(v_text, '[{', '')) > 200 or v_text ~ '[0-9][eE]\+?[0-9]{3}') then
    v_bare := regexp_replace(v_text, '"(?:[^"\\]|\\.)*"', '""', 'g');
    if dwarf.json_depth_v1(v_bare) > 201 then
      v_why := 'is nested deeper than 200 levels';
    elsif exists (
      select from regexp_matches(v_bare, '-?[0-9]+(?:\.[0-9]+)?[eE]\+?[0-9]{3,}', 'g') m(number)
      where abs(m.number[1]::numeric) > 1.7976931348623157e308
    ) then
      v_why := 'holds a number beyond the range of a float';
    end if;
  end if;
  if v_why is not null then
    raise exception using errcode = 'DW400', message = p_what || ' ' || v_why;
  end if;
  return p_value;
end $$;

-- How deep JSON without texts is nested.
create function dwarf.json_depth_v1(p_bare text) returns int
language sql immutable
return (
  select coalesce(max(d.depth), 0)
  from (
    select sum(case when c.bracket in ('[', '{') then 1 else -1 end) over (order by c.ord)::int as depth
    from unnest(string_to_array(regexp_replace(p_bare, '[^][{}]', '', 'g'), null)) with ordinality c(bracket, ord)
  ) d
);

-- The seconds of a duration: a number, or a text such as 90, 15m, 1h30m or 250ms. Null for anything else.
create function dwarf.read_seconds_v1(p_text text) returns numeric
language plpgsql immutable
as $$
declare
  v_part text[];
  v_one text := '([0-9]{1,20}(?:\.[0-9]{1,20})?)';
begin
  if p_text ~ ('^' || v_one || '$') then
    return p_text::numeric;
  end if;
  v_part := regexp_match(p_text, '^(?=[0-9])' || format('(?:%1$sd)?(?:%1$sh)?(?:%1$sm)?(?:%1$ss)?(?:%1$sms)?', v_one) || '$');
  return case when v_part is not null then
    coalesce(v_part[1]::numeric, 0) * 86400 + coalesce(v_part[2]::numeric, 0) * 3600 + coalesce(v_part[3]::numeric, 0) * 60
    + coalesce(v_part[4]::numeric, 0) + coalesce(v_part[5]::numeric, 0) / 1000
  end;
end $$;

-- A reason fit to be stored: one line, trimmed, control characters replaced, at most 4 KB.
create function dwarf.clean_reason_v1(p_reason text) returns text
language sql immutable
return (
  select case when octet_length(r.line) <= 4096 then r.line else left(r.line, 1000) || '… [cut; ' || length(r.line) || ' characters in all]' end
  from (
    select btrim(regexp_replace(translate(coalesce(p_reason, ''), E'\t\n\v\f\r', '     '), '[\x01-\x1f\x7f-\x9f]', U&'\FFFD', 'g')) as line
  ) r
);
