-- Then groups.
if not in_turn() then return 0 end
while at < #ARGV do
  local group = take()
  if call('EXISTS', held_of(group)) == 1 then
    call('SADD', 'ready:batches', group)
    call('SREM', 'active:batches', group)
  end
end
return 1
