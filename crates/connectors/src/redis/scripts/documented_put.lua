-- Then, until the end: group, opened, number of records, and for each position, kind, id,
-- whether to keep a copy, packed, value.
if not in_turn() then return 0 end
local count = #ARGV
while at < count do
  local group, opened, records = take(), take(), tonumber(take())
  local held, ids = held_of(group), ids_of(group)
  local first = at
  local positions = {}
  for n = 1, records do positions[n] = ARGV[first + 6 * n - 5] end
  local entries = call('HMGET', held, unpack(positions))
  for n = 1, records do
    if not entries[n] then
      call('SADD', groups, group)
      call('SADD', 'active:batches', group)
      call('SREM', 'ready:batches', group)
      call('SET', start_of(group), opened)
      break
    end
  end
  for n = 1, records do
    local position, kind, id = take(), take(), take()
    local copy, packed, value = take() == '1', take(), take()
    local name, data = name_of(kind, id), data_of(kind, group, id)
    local current = call('HGET', ids, name)
    if entries[n] then
      -- A repeat: it changes nothing, but for what has got lost or was overwritten.
      local whole = 'C' .. packed .. value
      local there = entries[n] == whole
      if not there and entries[n] == 'D' .. packed then there = text_in(data) == value end
      if not there then call('HSET', held, position, whole) end
      if current == position and text_in(data) ~= value then
        call('SADD', set_of(kind, group), id)
        call('SET', data, value)
      end
    else
      -- Of the same partition and further on: the one shown stays.
      local earlier = current and string.sub(current, 21) == string.sub(position, 21)
        and string.sub(position, 1, 20) < string.sub(current, 1, 20)
      if earlier then
        copy = true
      else
        if current and current ~= position then
          -- Its body goes where nobody overwrites it.
          local before = call('HGET', held, current)
          local body = before and string.sub(before, 1, 1) == 'D' and text_in(data)
          if body then call('HSET', held, current, 'C' .. string.sub(before, 2) .. body) end
        elseif not current and call('EXISTS', data) == 1 then
          -- Somebody else uses this name and may overwrite it.
          copy = true
        end
        call('SADD', set_of(kind, group), id)
        call('SET', data, value)
        call('HSET', ids, name, position)
      end
      -- Last: a call that failed half-way is made again whole.
      call('HSET', held, position, copy and 'C' .. packed .. value or 'D' .. packed)
    end
  end
end
return 1
