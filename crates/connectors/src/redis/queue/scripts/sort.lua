-- ARGV: time of the look as text, nonce, count, bytes and age at which chats close, how many chats may
-- wait, whether a processor lock without an end is overwritten; then the entries that were seen, chats
-- (key, quiet time, bytes that count, number of entries), the places of their entries, one chat after the
-- other, and the places of those that belong to no chat. Entries at no place are left out.
--
-- The entries must be the head of the list still, byte for byte: then it does not matter who looked, how
-- long ago, or how often. They leave the list last: what breaks off doubles and loses nothing.
local iso, nonce = take(), take()
local max_count, max_bytes, max_age = take_number(), take_number(), take_number()
local waiting_max, force = take_number(), take() == '1'
local size = take_number()
local first = at
at = at + size
local function entry(place) return ARGV[first + place] end

local held, expiry = lock_state(PROCESSOR_LOCK, tonumber(redis.call('GET', P .. 'lock') or '0'))
if held == 'foreign' and not (force and expiry == -1) then return { 'locked', num(expiry) } end
if size > 0 then
  local head = redis.call('LRANGE', list, 0, size - 1)
  for place = 1, size do
    if head[place] ~= entry(place) then return { 'moved' } end
  end
end
local refusal = wrong_index() or wrong_kind(batch_of(''), 'list')
if refusal then return refusal end
local waiting = redis.call('ZCARD', DUE)
if size > 0 and waiting >= waiting_max then return { 'full' } end
-- Few chats fit, whatever the limit; many do not, and are refused here, with nothing changed.
if waiting < 10000 then although_full() end
local until_ms = num(now_ms + 30000)
redis.call('SET', PROCESSOR_LOCK, 'processing', 'PXAT', until_ms)
redis.call('SET', P .. 'lock', until_ms)

local earliest
-- Looks at a chat at that time or before. While something of it is being delivered the time of its look is a
-- lease, which no arrival moves; the acknowledgement looks at what came.
local function look_by(key, time)
  if redis.call('HEXISTS', CLAIMS, key) == 1 then return end
  redis.call('ZADD', DUE, 'LT', num(time), key)
  if not earliest or time < earliest then earliest = time end
end
local function set_aside(entries)
  for from = 1, #entries, 1000 do
    redis.call('RPUSH', P .. 'bad', unpack(entries, from, math.min(from + 999, #entries)))
  end
  look_by('', now)
end
local chats, keys = {}, {}
for index = 1, take_number() do
  local chat = { key = take(), quiet = take_number(), bytes = take_number(), count = take_number() }
  chats[index], keys[index] = chat, chat.key
end
local known = #keys > 0 and redis.call('HMGET', CHATS, unpack(keys)) or {}
local seen = {}
for index, chat in ipairs(chats) do
  local key, entries = chat.key, {}
  for number = 1, chat.count do entries[number] = entry(take_number()) end
  local state = read_state(known[index])
  local is_new = state == nil
  local changed = is_new
  state = state or new_state(chat.quiet)
  -- Who takes over a chat that somebody else had is decided by the look at it.
  local foreign = state.foreign ~= 0
  if not foreign and state.lock - now_ms < LOCK_MS / 2 then
    local whose, lock_end = lock_state(lock_of(key), state.lock)
    if whose == 'foreign' then
      foreign, changed = true, true
      state.foreign, state.since = lock_end, now_ms
    else
      take_lock(key, state)
      redis.call('PERSIST', batch_of(key))
      changed = true
    end
  end
  if not foreign and state.opened == 0 then
    state.opened, state.nonce, changed = now, nonce, true
  end
  local is_sooner = chat.quiet < state.quiet
  if state.quiet ~= chat.quiet then state.quiet, changed = chat.quiet, true end
  if chat.bytes > 0 then state.bytes, changed = state.bytes + chat.bytes, true end
  local length = redis.pcall('RPUSH', batch_of(key), unpack(entries))
  if is_error(length) then
    if not string.find(length.err, 'WRONGTYPE', 1, true) then return length end
    set_aside(entries)
    -- What was written for it goes again.
    if is_new and not foreign then redis.call('DEL', lock_of(key)) end
    if changed and not is_new then write_state(key, state) end
  else
    seen[#seen + 1] = 'last_seen:' .. key
    seen[#seen + 1] = iso
    local is_full = length >= max_count or (max_bytes > 0 and state.bytes >= max_bytes)
    if foreign then
      if is_new then look_by(key, now + 5 * SECOND) end
    elseif is_full then
      look_by(key, now)
    elseif is_new or is_sooner then
      look_by(key, now + math.min(chat.quiet, max_age))
    end
    if changed then write_state(key, state) end
  end
end
if #seen > 0 then redis.call('MSET', unpack(seen)) end
local bad = {}
for number = 1, take_number() do bad[number] = entry(take_number()) end
if #bad > 0 then set_aside(bad) end
if size > 0 then redis.call('LTRIM', list, size, -1) end
return { 'ok', num(now), earliest and num(earliest) or '' }
