-- Then bytes at most, and until the end: group, number of records, and for each place, kind, id.
-- Answers with as many as fit, at least one, and then with a few more at most: entry and, where the
-- value lies in its readable key, value.
local room, bytes = tonumber(take()), 0
local found = {1}
local function load_slice(group, upto)
  local held, places, names, data = held_of(group), {}, {}, {}
  while at < upto do
    append(places, ARGV[at + 1])
    names[#places], data[#places] = names_of(ARGV[at + 2], group, ARGV[at + 3])
    at = at + 3
  end
  for n, entry in ipairs(call('HMGET', held, unpack(names))) do
    local place, value = places[n], false
    if not (entry and is_of(entry, place)) then
      entry = call('HGET', held, hidden_at(place))
    elseif is_shown_only(entry) then
      value = text_at(data[n])
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
