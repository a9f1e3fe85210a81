-- Then, until the end: group, number of records, and for each its position.
while at < #ARGV do
  local group, records = take(), tonumber(take())
  local positions = {}
  for n = 1, records do positions[n] = take() end
  local held = held_of(group)
  call('HDEL', held, unpack(positions))
  if call('EXISTS', held) == 0 then call('HDEL', groups, group) end
end
return 1
