-- Then bytes at most, and for each record group, position, kind, id. Answers with as many as fit,
-- at least one: entry and, where the value lies in its documented key, value.
local room, bytes = tonumber(take()), 0
local found = {1}
while at < #ARGV and bytes < room do
  local group, position, kind, id = take(), take(), take(), take()
  local entry = call('HGET', held_of(group), position)
  local value = false
  if entry and string.sub(entry, 1, 1) == 'D' then
    value = text_in(data_of(kind, group, id))
    if not value then entry = false end
  end
  found[#found + 1] = entry
  found[#found + 1] = value
  bytes = bytes + (entry and #entry or 0) + (value and #value or 0)
end
return found
