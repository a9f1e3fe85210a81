-- Then groups.
although_full()
if not in_turn() then return 0 end
local held = {}
while at < #ARGV do
  local group = take()
  if call('EXISTS', held_of(group)) == 1 then append(held, group) end
end
call_with('SADD', 'ready:batches', held)
call_with('SREM', 'active:batches', held)
return 1
