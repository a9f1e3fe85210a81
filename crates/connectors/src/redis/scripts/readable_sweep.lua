-- Then how much to do. Answers 1 when nothing is left, 2 when there is more.
local room = tonumber(take())
while room > 0 do
  local group = call('SRANDMEMBER', groups)
  if not group then return 1 end
  local held = held_of(group)
  local entries = some_of(held, room)
  for n = 1, #entries, 2 do
    local name, entry = entries[n], entries[n + 1]
    if string.byte(name) ~= string.byte('P') then
      local kind, id = cut(name, 1)
      local _, data = names_of(kind, group, id)
      if is_ours(entry, data) then call('DEL', data) end
      call('SREM', set_of(kind, group), id)
    end
    call('HDEL', held, name)
  end
  room = room - 1 - #entries / 2
  if call('EXISTS', held) == 0 then
    call('DEL', start_of(group))
    call('SREM', 'active:batches', group)
    call('SREM', 'ready:batches', group)
    call('SREM', groups, group)
  end
end
return 2
