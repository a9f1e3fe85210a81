-- KEYS[1] is the list, ARGV[1] what our own keys begin with. Time is asked for once; texts are joined
-- by `..` only (a format cuts at NUL) and numbers written by `num` (`..` rounds microseconds).
local list, P = KEYS[1], ARGV[1]
local clock = redis.call('TIME')
local now = clock[1] * 1000000 + clock[2]
local now_ms = math.floor(now / 1000)
local DUE, CHATS, CLAIMS = P .. 'due', P .. 'chats', P .. 'claims'
local LOCK_MS, PROCESSOR_LOCK = 300000, 'queue:processor:lock'
local SECOND = 1000000
local at = 1
local function take()
  at = at + 1
  return ARGV[at]
end
local function take_number() return tonumber(take()) end
local function num(number) return string.format('%.0f', number) end
local function is_error(answer) return type(answer) == 'table' and answer.err ~= nil end
-- The list of a chat; entries that belong to none lie in one of their own, under no key.
local function batch_of(key)
  if key == '' then return P .. 'bad' end
  return 'queue:batch:' .. key
end
local function lock_of(key) return 'lock:batch:' .. key end
local function sending_of(key) return P .. 'sending:' .. key end
-- Redis refuses what may need memory where it has none left, unless the script has written before.
-- This is a write that needs none.
local function although_full() redis.call('DEL', P .. 'none') end

-- What is known of a chat: when it opened (0: nothing has come since the last claim), the nonce of that
-- opening, when our lock runs out (ms), its quiet time, bytes that count towards the limit, what somebody
-- wishes for how many entries, and the lock of somebody else (its end in ms, -1 without one) seen since
-- (ms); without such a lock, before when nothing makes the chat leave.
local function read_state(text)
  if not text then return nil end
  local opened, nonce, lock, quiet, bytes, wish, count, foreign, since = string.match(
    text, '^(%d+) (%S+) (%d+) (%d+) (%d+) (%S+) (%d+) (%-?%d+) (%d+)$')
  if not opened then return nil end
  return {
    opened = tonumber(opened), nonce = nonce, lock = tonumber(lock), quiet = tonumber(quiet),
    bytes = tonumber(bytes), wish = wish, count = tonumber(count), foreign = tonumber(foreign),
    since = tonumber(since),
  }
end
local function new_state(quiet)
  return { opened = 0, nonce = '-', lock = 0, quiet = quiet, bytes = 0, wish = '-', count = 0,
    foreign = 0, since = 0 }
end
local function write_state(key, s)
  redis.call('HSET', CHATS, key, num(s.opened) .. ' ' .. s.nonce .. ' ' .. num(s.lock) .. ' '
    .. num(s.quiet) .. ' ' .. num(s.bytes) .. ' ' .. s.wish .. ' ' .. num(s.count) .. ' '
    .. num(s.foreign) .. ' ' .. num(s.since))
end
-- Whoever had the lock of a chat may be about to read its list when that lock runs out: until when nothing
-- makes the chat leave; 0 where that is over.
local GRACE_MS = 30000
local function grace_of(state)
  local left = state.since - now_ms
  if state.foreign == 0 and left > 0 and left <= GRACE_MS then return state.since * 1000 end
  return 0
end
-- What is known of a claim: who has it (`-`: nobody), the opening, when and why it closed, how often it
-- changed hands, which message is being tried alone (`-`: none), and at which of them owners died how often
-- (`5:2,7:1`).
local function read_claim(text)
  if not text then return nil end
  local token, opened, nonce, closed, takeovers, reason, trying, deaths = string.match(
    text, '^(%S+) (%d+) (%S+) (%d+) (%d+) (%S+) ?(%S*) ?(%S*)$')
  if not token then return nil end
  return { token = token, opened = tonumber(opened), nonce = nonce, closed = tonumber(closed),
    takeovers = tonumber(takeovers), reason = reason, trying = trying ~= '' and trying or '-',
    deaths = deaths ~= '' and deaths or '-' }
end
local function write_claim(key, c)
  redis.call('HSET', CLAIMS, key, c.token .. ' ' .. num(c.opened) .. ' ' .. c.nonce .. ' '
    .. num(c.closed) .. ' ' .. num(c.takeovers) .. ' ' .. c.reason .. ' ' .. (c.trying or '-') .. ' '
    .. (c.deaths or '-'))
end
-- A lock is ours if it runs out exactly when the one runs out that we wrote. -2: there is none.
local function lock_state(key, stored)
  local expiry = redis.call('PEXPIRETIME', key)
  if expiry == -2 then return 'free', expiry end
  if expiry == stored then return 'ours', expiry end
  return 'foreign', expiry
end
local function take_lock(key, state)
  state.lock = now_ms + LOCK_MS
  redis.call('SET', lock_of(key), 'processing', 'PXAT', num(state.lock))
end
-- A key of ours that holds something else, as an error that names it. What a script has done stays done:
-- such a key has to stop it before it begins.
local function wrong_kind(name, kind)
  local found = redis.call('TYPE', name).ok
  if found ~= 'none' and found ~= kind then
    return redis.error_reply('WRONGTYPE `' .. name .. '` is a ' .. found .. ' and should be a ' .. kind)
  end
end
local function wrong_index()
  return wrong_kind(DUE, 'zset') or wrong_kind(CHATS, 'hash') or wrong_kind(CLAIMS, 'hash')
end
local function look_at(key, time) redis.call('ZADD', DUE, num(time), key) end
-- The microseconds of an ISO 8601 time.
local function parse_time(text)
  if type(text) ~= 'string' then return nil end
  local y, mo, d, h, mi, s, fraction, zone = string.match(
    text, '^"?(%d%d%d%d)%-(%d%d)%-(%d%d)[Tt ](%d%d):(%d%d):(%d%d)(%.?%d*)([^"]*)"?$')
  if not y then return nil end
  y, mo, d = tonumber(y), tonumber(mo), tonumber(d)
  if mo <= 2 then y = y - 1 end
  local era_year = y % 400
  local month = (mo + 9) % 12
  local day = math.floor((153 * month + 2) / 5) + d - 1
  local era_day = era_year * 365 + math.floor(era_year / 4) - math.floor(era_year / 100) + day
  local days = math.floor(y / 400) * 146097 + era_day - 719468
  local seconds = days * 86400 + h * 3600 + mi * 60 + s
  if #fraction > 1 then seconds = seconds + tonumber('0' .. fraction) end
  local sign, zone_h, zone_m = string.match(zone, '^([%+%-])(%d%d):?(%d%d)$')
  if sign then
    local shift = zone_h * 3600 + zone_m * 60
    seconds = sign == '+' and seconds - shift or seconds + shift
  end
  return math.floor(seconds * SECOND)
end
-- When the last message of a chat came: never after now, never before it opened.
local function last_of(key, opened)
  local last = parse_time(redis.call('MGET', 'last_seen:' .. key)[1]) or opened
  return math.max(math.min(last, now), opened)
end
