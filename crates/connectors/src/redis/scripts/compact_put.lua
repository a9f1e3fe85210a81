-- Then, until the end: group, number of records, and for each position and record.
if not in_turn() then return 0 end
while at < #ARGV do
  local group, records = take(), tonumber(take())
  call('HSETNX', groups, group, 'open')
  local fields = {}
  for n = 1, 2 * records do fields[n] = take() end
  if call('HSET', held_of(group), unpack(fields)) > 0 then call('HSET', groups, group, 'open') end
end
return 1
