-- ARGV: how many, then key and token of each. Answers for each 1 where the claim was that token's, and
-- whether anything is to be looked at now.
although_full()
local answers, again = {}, 0
for index = 1, take_number() do
  local key, token = take(), take()
  local claim = read_claim(redis.call('HGET', CLAIMS, key))
  if not claim or claim.token ~= token then
    answers[index] = 0
  else
    answers[index] = 1
    redis.call('UNLINK', sending_of(key))
    redis.call('HDEL', CLAIMS, key)
    local left = redis.pcall('LLEN', batch_of(key))
    if is_error(left) or left > 0 then
      look_at(key, now)
      again = 1
    else
      local state = read_state(redis.call('HGET', CHATS, key))
      redis.call('ZREM', DUE, key)
      redis.call('HDEL', CHATS, key)
      if lock_state(lock_of(key), state and state.lock or 0) ~= 'foreign' then
        redis.call('DEL', lock_of(key), 'last_seen:' .. key)
      end
    end
  end
end
return { answers, again }
