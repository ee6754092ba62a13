-- A number that the engines of this shard agree on and have written here when they started, or else the default.
--   shard_index      this shard's index, the first part of every key; 1
--   max_priority     the largest priority; 5
--   time_budget_ms   the time budget of flows that name none; 120000
create function dwarf.setting_v1(p_name text, p_default bigint) returns bigint
language sql stable
return coalesce((select s.value from dwarf.settings s where s.name = p_name), p_default);

create function dwarf.put_settings_v1(p_name text[], p_value bigint[], p_now timestamptz default null) returns void
language sql volatile
begin atomic
  insert into dwarf.settings as s (name, value, updated_at)
  select t.name, t.value, coalesce(p_now, dwarf.now()) from unnest(p_name, p_value) t(name, value)
  order by t.name
  on conflict (name) do update set value = excluded.value, updated_at = excluded.updated_at
  where s.value <> excluded.value;
end;
