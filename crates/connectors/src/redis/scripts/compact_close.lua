-- Then groups.
if not in_turn() then return 0 end
while at < #ARGV do
  local group = take()
  if call('HEXISTS', groups, group) == 1 then call('HSET', groups, group, 'closed') end
end
return 1
