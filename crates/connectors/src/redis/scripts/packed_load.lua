-- Then bytes at most, and until the end: group, number of pieces, and the name of each.
-- Answers with list and records of as many pieces as fit, at least one.
local room, bytes = tonumber(take()), 0
local found = {1}
while at < #ARGV and bytes < room do
  local held, count = held_of(take()), tonumber(take())
  local last = at + count
  while at < last and bytes < room do
    local name = take()
    local piece = call('HMGET', held, 'i' .. name, 'b' .. name)
    append_pair(found, piece[1], piece[2])
    bytes = bytes + (piece[2] and #piece[2] or 0)
  end
end
return found
