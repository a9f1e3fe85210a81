-- Then, until the end: group, number of records, and for each position, kind, id.
while at < #ARGV do
  local group, records = take(), tonumber(take())
  local held, ids = held_of(group), ids_of(group)
  for _ = 1, records do
    local position, kind, id = take(), take(), take()
    local name, data = name_of(kind, id), data_of(kind, group, id)
    local entry = call('HGET', held, position)
    if call('HGET', ids, name) == position then
      if not entry or is_ours(data, entry) then call('DEL', data) end
      call('SREM', set_of(kind, group), id)
      call('HDEL', ids, name)
    end
    call('HDEL', held, position)
  end
  if call('EXISTS', held) == 0 and call('SISMEMBER', groups, group) == 1 then
    call('DEL', ids)
    call('DEL', start_of(group))
    call('SREM', 'active:batches', group)
    call('SREM', 'ready:batches', group)
    call('SREM', groups, group)
  end
end
return 1
