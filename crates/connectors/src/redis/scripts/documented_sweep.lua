-- Then how much to do. Answers 1 when nothing is left, 2 when there is more.
local room = tonumber(take())
while room > 0 do
  local group = call('SRANDMEMBER', groups)
  if not group then return 1 end
  local held, ids = held_of(group), ids_of(group)
  local names = some_of(ids, room)
  for n = 1, #names, 2 do
    local name, position = names[n], names[n + 1]
    local colon = string.find(name, ':', 1, true)
    local length = tonumber(string.sub(name, 1, colon - 1))
    local kind = string.sub(name, colon + 1, colon + length)
    local id = string.sub(name, colon + length + 1)
    local data = data_of(kind, group, id)
    local entry = call('HGET', held, position)
    if not entry or is_ours(entry, texts_in({data})[data]) then call('DEL', data) end
    call('SREM', set_of(kind, group), id)
    call('HDEL', ids, name)
  end
  room = room - 1 - #names / 2
  if call('EXISTS', ids) == 0 then
    call('UNLINK', held)
    call('DEL', start_of(group))
    call('SREM', 'active:batches', group)
    call('SREM', 'ready:batches', group)
    call('SREM', groups, group)
  end
end
return 2
