-- Then, until the end: group, opened, number of records, and for each kind, id, entry, value.
-- The entry is `D`, place and packed, or `C` where the value is to be kept behind it as well.
--
-- First it is read what lies there, then decided record by record, then written. Tables and calls
-- are what costs most here, so for records that come for the first time there are few.
if not in_turn() then return 0 end
local runs, unused = {}, {}
while at < #ARGV do
  local group, opened, count = take(), take(), tonumber(take())
  local names, data = {}, {}
  local run = {
    group = group, opened = opened, count = count, before = at, names = names, data = data,
    held = {}, kinds = {}, made = {}, is_open = false,
  }
  for n = 1, count do
    names[n], data[n] = names_of(ARGV[at + 1], group, ARGV[at + 2])
    at = at + 4
  end
  local shown, size = call('HMGET', held_of(group), unpack(names)), #unused
  for n = 1, count do
    if not shown[n] then
      size = size + 1
      unused[size] = data[n]
    end
  end
  run.shown = shown
  runs[#runs + 1] = run
end
-- Who uses the readable keys of new names.
local is_used = {}
if (call_all('EXISTS', unused) or 0) > 0 then
  for _, key in ipairs(unused) do is_used[key] = call('EXISTS', key) == 1 end
end

local texts = {}
local function with_value(entry, value) return 'C' .. string.sub(entry, 2) .. value end
local function show(run, n, argument)
  append_pair(texts, run.data[n], ARGV[argument + 4])
  append(ids_of(run.kinds, ARGV[argument + 1]), ARGV[argument + 2])
  run.made[run.names[n]] = argument
end
-- Of the same partition and further on: the one shown stays.
local function is_behind(entry, shown)
  local position, current = cut(entry, 2), cut(shown, 2)
  return string.sub(current, 21) == string.sub(position, 21)
    and string.sub(position, 1, 20) < string.sub(current, 1, 20)
end
-- Something is shown under its name: itself, or another record, with `text` as its value.
local function meet(run, n, argument, shown, text)
  local entry, value = ARGV[argument + 3], ARGV[argument + 4]
  local name, whole, held = run.names[n], with_value(entry, value), run.held
  local place = place_of(entry)
  if is_of(shown, place) then
    -- A repeat changes nothing, but for what has got lost or was overwritten.
    local is_there = shown == whole or shown == entry and text == value
    if not is_there then append_pair(held, name, whole) end
    if text ~= value then show(run, n, argument) end
    return
  end
  local hidden = call('HGET', held_of(run.group), hidden_at(place))
  if hidden then
    if hidden ~= whole then append_pair(held, hidden_at(place), whole) end
    return
  end
  run.is_open = true
  if is_behind(entry, shown) then
    append_pair(held, hidden_at(place), whole)
    return
  end
  -- The body of the one before goes where nobody overwrites it.
  local before = hidden_at(place_of(shown))
  if not is_shown_only(shown) then
    append_pair(held, before, shown)
  elseif text then
    append_pair(held, before, with_value(shown, text))
  end
  append_pair(held, name, is_shown_only(entry) and entry or whole)
  show(run, n, argument)
end
for _, run in ipairs(runs) do
  local argument, held, made, kinds = run.before, run.held, run.made, run.kinds
  local kind, ids
  for n = 1, run.count do
    local name, key, shown = run.names[n], run.data[n], run.shown[n]
    local of_this_call = made[name]
    if of_this_call then
      meet(run, n, argument, ARGV[of_this_call + 3], ARGV[of_this_call + 4])
    elseif shown then
      meet(run, n, argument, shown, text_at(key))
    else
      local entry, value = ARGV[argument + 3], ARGV[argument + 4]
      -- Somebody else uses this name and may overwrite it.
      if is_used[key] or not is_shown_only(entry) then entry = with_value(entry, value) end
      append_pair(held, name, entry)
      append_pair(texts, key, value)
      if kind ~= ARGV[argument + 1] then
        kind = ARGV[argument + 1]
        ids = ids_of(kinds, kind)
      end
      ids[#ids + 1] = ARGV[argument + 2]
      made[name] = argument
      run.is_open = true
    end
    argument = argument + 4
  end
end

-- What may turn out to be of another type comes first, what is held last: a call that failed
-- half-way is made again whole.
local open = {}
for _, run in ipairs(runs) do
  if run.is_open then
    open[#open + 1] = run.group
    append_pair(texts, start_of(run.group), run.opened)
  end
end
call_with('SADD', groups, open)
call_with('SADD', 'active:batches', open)
call_with('SREM', 'ready:batches', open)
for _, run in ipairs(runs) do for_each_kind('SADD', run.kinds, run.group) end
call_all('MSET', texts)
for _, run in ipairs(runs) do call_with('HSET', held_of(run.group), run.held) end
return 1
