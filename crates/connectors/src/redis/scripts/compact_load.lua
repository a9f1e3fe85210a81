-- Then bytes at most, and for each record group and position. Answers with as many as fit, at
-- least one.
local room, bytes = tonumber(take()), 0
local found = {1}
while at < #ARGV and bytes < room do
  local group, position = take(), take()
  local record = call('HGET', held_of(group), position)
  found[#found + 1] = record
  bytes = bytes + (record and #record or 0)
end
return found
