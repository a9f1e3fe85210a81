-- Then, until the end: group, number of records, and for each its position.
local empty = {}
while at < #ARGV do
  local group, count = take(), tonumber(take())
  local held = held_of(group)
  call('HDEL', held, unpack(ARGV, at + 1, at + count))
  at = at + count
  if call('EXISTS', held) == 0 then append(empty, group) end
end
call_with('HDEL', groups, empty)
return 1
