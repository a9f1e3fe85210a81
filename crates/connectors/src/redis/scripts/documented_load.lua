-- Then bytes at most, and until the end: group, number of records, and for each position, kind, id.
-- Answers with as many as fit, at least one, and then with a few more at most: entry and, where the
-- value lies in its documented key, value.
local room, bytes = tonumber(take()), 0
local found = {1}
local function load_slice(group, upto)
  local positions, data, shown = {}, {}, {}
  while at < upto do
    append(positions, take())
    append(data, data_of(take(), group, take()))
  end
  local entries = call('HMGET', held_of(group), unpack(positions))
  for n, entry in ipairs(entries) do
    if entry and is_shown_only(entry) then append(shown, data[n]) end
  end
  local texts = texts_in(shown)
  for n, entry in ipairs(entries) do
    local value = false
    if entry and is_shown_only(entry) then
      value = texts[data[n]]
      entry = value and entry
    end
    append_pair(found, entry, value)
    bytes = bytes + (entry and #entry or 0) + (value and #value or 0)
  end
end
while at < #ARGV and bytes < room do
  local group, count = take(), tonumber(take())
  local last = at + 3 * count
  while at < last and bytes < room do
    load_slice(group, math.min(at + 3 * SLICE, last))
  end
end
return found
