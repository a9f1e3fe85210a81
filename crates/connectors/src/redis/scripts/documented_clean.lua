-- Then, until the end: group, number of records, and for each place, kind, id.
local runs, gone = {}, {}
while at < #ARGV do
  local group, count = take(), tonumber(take())
  local before, names, fields, kinds = at, {}, {}, {}
  for n = 1, count do
    names[n] = name_of(ARGV[at + 2], ARGV[at + 3])
    at = at + 3
  end
  for n, entry in ipairs(call('HMGET', held_of(group), unpack(names))) do
    local argument = before + 3 * n - 3
    local place, kind, id = ARGV[argument + 1], ARGV[argument + 2], ARGV[argument + 3]
    if entry and is_of(entry, place) then
      local data = data_of(kind, group, id)
      if is_ours(entry, data) then gone[#gone + 1] = data end
      add_id(kinds, kind, id)
      fields[#fields + 1] = names[n]
    else
      fields[#fields + 1] = hidden_at(place)
    end
  end
  runs[#runs + 1] = {group = group, fields = fields, kinds = kinds}
end
call_all('DEL', gone)
local empty, keys = {}, {}
for _, run in ipairs(runs) do
  local group = run.group
  for_each_kind('SREM', run.kinds, group)
  call('HDEL', held_of(group), unpack(run.fields))
  if call('EXISTS', held_of(group)) == 0 and call('SISMEMBER', groups, group) == 1 then
    append(empty, group)
    append(keys, start_of(group))
  end
end
call_all('DEL', keys)
call_with('SREM', 'active:batches', empty)
call_with('SREM', 'ready:batches', empty)
call_with('SREM', groups, empty)
return 1
