-- Then, until the end: group, number of records, and for each place, kind, id.
although_full()
local runs, gone = {}, {}
while at < #ARGV do
  local group, count = take(), tonumber(take())
  local before, names, data, fields, kinds = at, {}, {}, {}, {}
  for n = 1, count do
    names[n], data[n] = names_of(ARGV[at + 2], group, ARGV[at + 3])
    at = at + 3
  end
  local kind, ids
  for n, entry in ipairs(call('HMGET', held_of(group), unpack(names))) do
    local argument = before + 3 * n - 3
    local place = ARGV[argument + 1]
    if entry and is_of(entry, place) then
      if is_ours(entry, data[n]) then gone[#gone + 1] = data[n] end
      if kind ~= ARGV[argument + 2] then
        kind = ARGV[argument + 2]
        ids = ids_of(kinds, kind)
      end
      ids[#ids + 1] = ARGV[argument + 3]
      fields[n] = names[n]
    else
      fields[n] = hidden_at(place)
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
