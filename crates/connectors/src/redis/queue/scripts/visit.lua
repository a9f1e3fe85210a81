-- ARGV: token, nonce, chats and bytes at most, lease, quiet time, age, count and bytes at which chats
-- close, the longest time a look may be away, a nonce for an emptied server.
--
-- Looks at the chats whose time has come. Each is claimed, looked at again later, or forgotten; what is
-- wrong with one is no reason to stop. A claim is what lies in `sending:`: it is handed out until it is
-- acknowledged, never changed and never overwritten.
local token, nonce = take(), take()
local most, room, lease = take_number(), take_number(), take_number()
local usual_quiet, max_age = take_number(), take_number()
local max_count, max_bytes = take_number(), take_number()
local longest, new_epoch = take_number(), take()
local refusal = wrong_index()
if refusal then return refusal end
although_full()
local epoch = redis.call('GET', P .. 'epoch')
if not epoch then
  epoch = new_epoch
  redis.call('SET', P .. 'epoch', epoch)
end
local claims, wrong, handed_over, adopted, adopted_late = {}, {}, 0, 0, 0

local function hand_out(key, claim)
  local entries = redis.call('LRANGE', sending_of(key), 0, -1)
  for _, body in ipairs(entries) do room = room - #body end
  look_at(key, now + lease)
  claims[#claims + 1] = { key, num(claim.opened), claim.nonce, num(claim.closed), claim.reason,
    num(claim.takeovers), claim.deaths or '-', entries }
end

-- Tokens of one opening begin alike: it lost sight of Redis for a while, and nobody has died.
local function is_own(other)
  local opening = string.match(token, '^%x+%-')
  return opening and string.sub(other, 1, #opening) == opening
end

-- Its owner died while it tried one message alone.
local function count_death(claim)
  local times, deaths = 0, {}
  for place, known in string.gmatch(claim.deaths, '(%d+):(%d+)') do
    if place == claim.trying then times = tonumber(known) else deaths[#deaths + 1] = place .. ':' .. known end
  end
  deaths[#deaths + 1] = claim.trying .. ':' .. num(times + 1)
  claim.deaths = table.concat(deaths, ',')
end

local function hand_out_again(key)
  local claim = read_claim(redis.call('HGET', CLAIMS, key))
  if not claim then
    -- Its note is gone: it has another name now, and nothing else is lost.
    local state = read_state(redis.call('HGET', CHATS, key))
    local opened = state and state.opened > 0 and math.min(state.opened, now) or now
    claim = { opened = opened, nonce = nonce, closed = now, takeovers = 0, reason = 'unknown' }
  elseif claim.token ~= '-' and not is_own(claim.token) then
    claim.takeovers = claim.takeovers + 1
    if claim.trying ~= '-' then count_death(claim) end
  end
  claim.token, claim.trying = token, '-'
  write_claim(key, claim)
  hand_out(key, claim)
end

-- How many entries a claim takes: no more than the count, nor than the bytes, but at least one; and whether
-- it is the bytes that end it.
local function cut(key, size, most_entries)
  local limit = math.min(size, most_entries)
  if max_bytes <= 0 then return limit, false end
  local taken, bytes = 0, 0
  while taken < limit do
    local slice = redis.call('LRANGE', batch_of(key), taken, math.min(taken + 16, limit) - 1)
    for _, body in ipairs(slice) do
      -- A record costs something besides its bytes, as in the embedded log.
      local more = #body + 64
      if taken > 0 and bytes + more > max_bytes then return taken, true end
      taken, bytes = taken + 1, bytes + more
      if bytes >= max_bytes then return taken, true end
    end
    if #slice == 0 then break end
  end
  return taken, false
end

-- What counts towards the bytes of the next group, as far as its count and its bytes reach.
local function bytes_of(key)
  local bytes, seen = 0, 0
  while seen < max_count and bytes < max_bytes do
    local slice = redis.call('LRANGE', batch_of(key), seen, math.min(seen + 16, max_count) - 1)
    if #slice == 0 then break end
    for _, body in ipairs(slice) do bytes = bytes + #body + 64 end
    seen = seen + #slice
  end
  return bytes
end

local function move(key, size, count)
  local from, to = batch_of(key), sending_of(key)
  if count == size then
    redis.call('RENAME', from, to)
    redis.call('PERSIST', to)
    return
  end
  for start = 0, count - 1, 1000 do
    local slice = redis.call('LRANGE', from, start, math.min(start + 1000, count) - 1)
    redis.call('RPUSH', to, unpack(slice))
  end
  redis.call('LTRIM', from, count, -1)
end

local function forget(key)
  local state = read_state(redis.call('HGET', CHATS, key))
  redis.call('ZREM', DUE, key)
  redis.call('HDEL', CHATS, key)
  redis.call('HDEL', CLAIMS, key)
  -- Messages were there: somebody else took them.
  if state and (state.opened > 0 or state.foreign ~= 0) then handed_over = handed_over + 1 end
  if lock_state(lock_of(key), state and state.lock or 0) ~= 'foreign' then
    redis.call('DEL', lock_of(key), 'last_seen:' .. key)
  end
end

local function claim_bad(size)
  local count = cut('', size, math.min(max_count, 1000))
  move('', size, count)
  local claim = { token = token, opened = now, nonce = nonce, closed = now, takeovers = 0,
    reason = 'unknown' }
  write_claim('', claim)
  hand_out('', claim)
end

-- Takes over a chat that nobody has, or whose lock somebody else left.
local function adopt(key, state)
  local wait = 0
  if state and state.foreign > 0 and state.foreign <= now_ms then wait = GRACE_MS end
  state = new_state(state and state.quiet or usual_quiet)
  if wait > 0 then state.since = now_ms + wait end
  take_lock(key, state)
  redis.call('PERSIST', batch_of(key))
  state.opened, state.nonce = now, nonce
  write_state(key, state)
  look_at(key, now + state.quiet + wait * 1000)
  adopted = adopted + 1
end

local function visit(key)
  local claimed = redis.pcall('LLEN', sending_of(key))
  if not is_error(claimed) and claimed > 0 then return hand_out_again(key) end
  local size = redis.pcall('LLEN', batch_of(key))
  if is_error(claimed) or is_error(size) then
    look_at(key, now + 60 * SECOND)
    wrong[#wrong + 1] = key
    return
  end
  if size == 0 then return forget(key) end
  if key == '' then return claim_bad(size) end
  local state = read_state(redis.call('HGET', CHATS, key))
  local whose, lock_end = lock_state(lock_of(key), state and state.lock or 0)
  if whose == 'foreign' then
    state = state or new_state(usual_quiet)
    if state.foreign == 0 then state.since = now_ms end
    state.foreign = lock_end
    if lock_end == -1 and now_ms - math.min(state.since, now_ms) >= LOCK_MS then
      adopted_late = adopted_late + 1
      return adopt(key, nil)
    end
    write_state(key, state)
    return look_at(key, now + 5 * SECOND)
  end
  if not state or state.foreign ~= 0 then return adopt(key, state) end
  local grace = grace_of(state)
  if grace > 0 then return look_at(key, grace) end
  local changed = false
  if whose == 'free' then
    take_lock(key, state)
    changed = true
  end
  redis.call('PERSIST', batch_of(key))
  if state.opened == 0 or state.opened > now then
    if state.opened == 0 then state.nonce = nonce end
    state.opened, changed = now, true
  end
  local last = last_of(key, state.opened)
  local quiet_at, age_at = last + state.quiet, state.opened + max_age
  local wished = state.wish ~= '-' and state.count > 0
  local count, is_full = cut(key, size, wished and math.min(state.count, max_count) or max_count)
  local reason
  if wished then reason = state.wish
  elseif is_full then reason = 'max_bytes'
  elseif size >= max_count then reason = 'max_count'
  elseif math.min(quiet_at, age_at) <= now then
    reason = quiet_at <= age_at and 'silence_reached' or 'max_wait_reached'
  else
    if changed then write_state(key, state) end
    return look_at(key, math.min(quiet_at, age_at))
  end
  local claim = { token = token, opened = state.opened, nonce = state.nonce, closed = now,
    takeovers = 0, reason = reason }
  move(key, size, count)
  take_lock(key, state)
  write_claim(key, claim)
  state.bytes = 0
  state.count = wished and math.max(state.count - count, 0) or 0
  if state.count == 0 then state.wish = '-' end
  if count < size then
    state.opened, state.nonce, state.bytes = now, nonce .. '-rest', bytes_of(key)
  else
    state.opened, state.nonce, state.wish, state.count = 0, '-', '-', 0
  end
  write_state(key, state)
  hand_out(key, claim)
end

for _, key in ipairs(redis.call('ZRANGEBYSCORE', DUE, '-inf', num(now), 'LIMIT', 0, most)) do
  if room <= 0 then break end
  visit(key)
end
-- A clock that was set back leaves looks far ahead.
local far = redis.call('ZRANGEBYSCORE', DUE, num(now + longest), '+inf', 'LIMIT', 0, 500)
for _, key in ipairs(far) do look_at(key, now + lease) end
local following = redis.call('ZRANGE', DUE, 0, 0, 'WITHSCORES')[2] or ''
return { num(now), following, epoch, { handed_over, adopted, adopted_late }, wrong, claims }
