-- ARGV: age at which chats close, lowest time of a look, how many to pass over and how many to answer at
-- most; or the key that is asked for, if there is one. Answers the time, how many chats there are, and of
-- each the time of its look, its state, its claim, and its entries.
local max_age, from, skip, most, asked = take_number(), take(), take(), take(), take()
local found = {}
if asked ~= '' then
  local score = redis.call('ZSCORE', DUE, asked)
  if score then found = { asked, score } end
else
  found = redis.call('ZRANGEBYSCORE', DUE, from, '+inf', 'WITHSCORES', 'LIMIT', skip, most)
end
local chats = {}
for index = 1, #found, 2 do
  local key = found[index]
  local state = read_state(redis.call('HGET', CHATS, key))
  local claim = read_claim(redis.call('HGET', CLAIMS, key))
  local size, sending = redis.pcall('LLEN', batch_of(key)), redis.pcall('LLEN', sending_of(key))
  if is_error(size) then size = 0 end
  if is_error(sending) then sending = 0 end
  local due = ''
  if state and state.opened > 0 and state.foreign == 0 then
    local opened = math.min(state.opened, now)
    local closes = math.min(last_of(key, opened) + state.quiet, opened + max_age)
    due = num(math.max(closes, grace_of(state)))
  end
  chats[#chats + 1] = {
    key, num(tonumber(found[index + 1])), due,
    state and num(state.opened) or '', state and state.nonce or '', state and num(state.foreign) or '',
    claim and claim.token or '', claim and num(claim.opened) or '', claim and claim.nonce or '',
    claim and num(claim.closed) or '', claim and claim.reason or '',
    claim and num(claim.takeovers) or '', size, sending,
  }
end
return { num(now), redis.call('ZCARD', DUE), chats }
