-- Then bytes at most, and until the end: group, number of records, and for each its position.
-- Answers with as many as fit, at least one, and then with a few more at most.
local room, bytes = tonumber(take()), 0
local found = {1}
while at < #ARGV and bytes < room do
  local held, count = held_of(take()), tonumber(take())
  local last = at + count
  while at < last and bytes < room do
    local upto = math.min(at + SLICE, last)
    for _, record in ipairs(call('HMGET', held, unpack(ARGV, at + 1, upto))) do
      append(found, record)
      bytes = bytes + (record and #record or 0)
    end
    at = upto
  end
end
return found
