-- ARGV: lease, how many, then key and token of each. Answers for each 1 where the claim is that token's
-- still.
although_full()
local lease, answers = take_number(), {}
for index = 1, take_number() do
  local key, token = take(), take()
  local claim = read_claim(redis.call('HGET', CLAIMS, key))
  if not claim or claim.token ~= token then
    answers[index] = 0
  else
    answers[index] = 1
    look_at(key, now + lease)
    local state = key ~= '' and read_state(redis.call('HGET', CHATS, key))
    if state and lock_state(lock_of(key), state.lock) ~= 'foreign' then
      take_lock(key, state)
      write_state(key, state)
    end
  end
end
return answers
