-- Then groups.
although_full()
if not in_turn() then return 0 end
if at == #ARGV then return 1 end
local states, closed = call('HMGET', groups, unpack(ARGV, at + 1)), {}
for n, state in ipairs(states) do
  if state then
    append(closed, ARGV[at + n])
    append(closed, 'closed')
  end
end
call_with('HSET', groups, closed)
return 1
