-- Then, until the end: group, number of records, and for each position, kind, id.
local runs, looked_at = {}, {}
while at < #ARGV do
  local group, count = take(), tonumber(take())
  local run = {group = group, positions = {}, shown = {}, kinds = {}, names = {}}
  local positions, kinds, ids, names = run.positions, {}, {}, {}
  for n = 1, count do
    positions[n], kinds[n], ids[n] = take(), take(), take()
    names[n] = name_of(kinds[n], ids[n])
  end
  local entries = call('HMGET', held_of(group), unpack(positions))
  local currents = call('HMGET', ids_of(group), unpack(names))
  for n, position in ipairs(positions) do
    if currents[n] == position then
      local kind, id = kinds[n], ids[n]
      local one = {
        kind = kind, id = id, name = names[n], entry = entries[n],
        data = data_of(kind, group, id),
      }
      append(run.shown, one)
      if one.entry and not is_shown_only(one.entry) then append(looked_at, one.data) end
    end
  end
  append(runs, run)
end
local text_of, gone = texts_in(looked_at), {}
for _, run in ipairs(runs) do
  for n, one in ipairs(run.shown) do
    if not one.entry or is_ours(one.entry, text_of[one.data]) then append(gone, one.data) end
    add_id(run.kinds, one.kind, one.id)
    run.names[n] = one.name
  end
end
call_all('DEL', gone)
local empty, keys = {}, {}
for _, run in ipairs(runs) do
  local group = run.group
  for_each_kind('SREM', run.kinds, group)
  call_with('HDEL', ids_of(group), run.names)
  call('HDEL', held_of(group), unpack(run.positions))
  if call('EXISTS', held_of(group)) == 0 and call('SISMEMBER', groups, group) == 1 then
    append(empty, group)
    append_pair(keys, ids_of(group), start_of(group))
  end
end
call_all('DEL', keys)
call_with('SREM', 'active:batches', empty)
call_with('SREM', 'ready:batches', empty)
call_with('SREM', groups, empty)
return 1
