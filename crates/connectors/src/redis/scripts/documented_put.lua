-- Then, until the end: group, opened, number of records, and for each position, kind, id, entry,
-- value. The entry is `D` packed, or `C` packed where the value is to be kept behind it as well.
--
-- First everything is read that lies there, then it is decided record by record, then written.
-- Lists are of all groups together, where each knows its part: tables are what costs most here.
if not in_turn() then return 0 end
local runs, open, looked_at, unused, texts = {}, {}, {}, {}, {}
local positions, names, data, record = {}, {}, {}, 0
-- What a group holds, by position, and which position it shows, by name: as it will be.
local function read(run)
  local held, entry_of, current_of = held_of(run.group), run.entry_of, run.current_of
  local entries = call('HMGET', held, unpack(positions, run.first, run.last))
  local currents = call('HMGET', ids_of(run.group), unpack(names, run.first, run.last))
  local superseded
  for n = run.first, run.last do
    local position, entry = positions[n], entries[n - run.first + 1]
    local current = currents[n - run.first + 1]
    entry_of[position], current_of[names[n]] = entry, current
    if not entry then run.is_open = true end
    if entry then
      append(looked_at, data[n])
    elseif not current then
      append(unused, data[n])
    elseif current ~= position then
      superseded = superseded or {}
      append(superseded, current)
      append(looked_at, data[n])
    end
  end
  if not superseded then return end
  for n, entry in ipairs(call('HMGET', held, unpack(superseded))) do
    entry_of[superseded[n]] = entry
  end
end
while at < #ARGV do
  local group, opened, count = take(), take(), tonumber(take())
  local run = {
    group = group, first = record + 1, last = record + count, arguments = at + 1,
    entry_of = {}, current_of = {}, is_open = false,
    first_held = 0, last_held = 0, first_id = 0, last_id = 0,
  }
  for n = run.first, run.last do
    local kind, id = ARGV[at + 2], ARGV[at + 3]
    positions[n], names[n], data[n] = ARGV[at + 1], name_of(kind, id), data_of(kind, group, id)
    at = at + 5
  end
  record = run.last
  append(runs, run)
  read(run)
  if run.is_open then
    append(open, group)
    append_pair(texts, start_of(group), opened)
  end
end
-- What lies in the documented keys, and which of them somebody else uses: as it will be, too.
local text_of, is_used = texts_in(looked_at), {}
if (call_all('EXISTS', unused) or 0) > 0 then
  for _, key in ipairs(unused) do is_used[key] = call('EXISTS', key) == 1 end
end

local held, ids = {}, {}
local function hold(run, position, entry)
  append_pair(held, position, entry)
  run.entry_of[position] = entry
end
local function show(kinds, kind, id, key, value)
  add_id(kinds, kind, id)
  append_pair(texts, key, value)
  text_of[key], is_used[key] = value, true
end
-- Of the same partition and further on: the one shown stays.
local function is_behind(position, current)
  return current and string.sub(current, 21) == string.sub(position, 21)
    and string.sub(position, 1, 20) < string.sub(current, 1, 20)
end
local function with_value(entry, value) return 'C' .. string.sub(entry, 2) .. value end
-- A repeat changes nothing, but for what has got lost or was overwritten.
local function repeated(run, kinds, n, kind, id, entry, value)
  local position, key = positions[n], data[n]
  local before, whole = run.entry_of[position], with_value(entry, value)
  local is_there = before == whole or before == entry and text_of[key] == value
  if not is_there then hold(run, position, whole) end
  if run.current_of[names[n]] == position and text_of[key] ~= value then
    show(kinds, kind, id, key, value)
  end
end
local function added(run, kinds, n, kind, id, entry, value)
  local position, name, key = positions[n], names[n], data[n]
  local current, is_copied = run.current_of[name], not is_shown_only(entry)
  if is_behind(position, current) then
    is_copied = true
  else
    if current and current ~= position then
      -- Its body goes where nobody overwrites it.
      local before, body = run.entry_of[current], text_of[key]
      if before and is_shown_only(before) and body then
        hold(run, current, with_value(before, body))
      end
    elseif not current and is_used[key] then
      -- Somebody else uses this name and may overwrite it.
      is_copied = true
    end
    show(kinds, kind, id, key, value)
    append_pair(ids, name, position)
    run.current_of[name] = position
  end
  hold(run, position, is_copied and with_value(entry, value) or entry)
end

-- What may turn out to be of another type comes first, what is held last: a call that failed
-- half-way is made again whole.
call_with('SADD', groups, open)
call_with('SADD', 'active:batches', open)
call_with('SREM', 'ready:batches', open)
for _, run in ipairs(runs) do
  local kinds, argument = {}, run.arguments
  run.first_held, run.first_id = #held + 1, #ids + 1
  for n = run.first, run.last do
    local decide = run.entry_of[positions[n]] and repeated or added
    decide(run, kinds, n, unpack(ARGV, argument + 1, argument + 4))
    argument = argument + 5
  end
  run.last_held, run.last_id = #held, #ids
  for_each_kind('SADD', kinds, run.group)
end
call_all('MSET', texts)
for _, run in ipairs(runs) do
  if run.first_id <= run.last_id then
    call('HSET', ids_of(run.group), unpack(ids, run.first_id, run.last_id))
  end
  if run.first_held <= run.last_held then
    call('HSET', held_of(run.group), unpack(held, run.first_held, run.last_held))
  end
end
return 1
