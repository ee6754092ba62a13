-- The text of a flow key: shard-hour-low-token. The shard's own index is a setting of the caller, not of the database.
create function dwarf.flow_key(p_shard int, p_flow_id bigint, p_token text) returns text
language sql immutable parallel safe
return p_shard || '-' || (p_flow_id >> 36) || '-' || (p_flow_id & 68719476735) || '-' || p_token;

create function dwarf.step_id(p_branch bigint, p_seq int) returns bigint
language sql immutable parallel safe
return (p_branch << 20) | p_seq;

-- A step's token follows from its flow's and is stored nowhere.
create function dwarf.step_token(p_token text, p_step_id bigint) returns text
language sql immutable parallel safe
return left(encode(sha256(convert_to(p_token || ':' || p_step_id, 'UTF8')), 'hex'), 16);

create function dwarf.step_key(p_shard int, p_flow_id bigint, p_token text, p_branch bigint, p_seq int) returns text
language sql immutable parallel safe
return p_shard || '-' || (p_flow_id >> 36) || '-' || (p_flow_id & 68719476735) || '-' || dwarf.step_id(p_branch, p_seq)
  || '-' || dwarf.step_token(p_token, dwarf.step_id(p_branch, p_seq));

-- A json value that an operator can look into: -> and ->> fail on a whole document that holds a NUL anywhere.
create function dwarf.peek(p_value json) returns jsonb
language sql immutable parallel safe
return replace(p_value::text, '\u0000', '\ufffd')::jsonb;

create function dwarf.status_name(p_status smallint) returns text
language sql immutable parallel safe
return (array['pending', 'running', 'joining', 'interrupted', 'parked', 'completed', 'failed', 'cancelled', 'terminated'])[p_status];
