-- ARGV: entries and bytes at most. Answers the time and the first entries, at least one; changes nothing.
local most, bytes_max = take_number(), take_number()
local found, bytes = {}, 0
while #found < most and bytes < bytes_max do
  local slice = redis.call('LRANGE', list, #found, #found + math.min(16, most - #found) - 1)
  if #slice == 0 then break end
  for _, entry in ipairs(slice) do
    bytes = bytes + #entry
    if bytes > bytes_max and #found > 0 then break end
    found[#found + 1] = entry
  end
end
return { num(now), found }
