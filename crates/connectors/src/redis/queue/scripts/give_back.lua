-- ARGV: how many, then key and token of each. What was claimed stays claimed, by nobody: it may have been
-- delivered in part, and whoever looks at it next hands it out as it is.
although_full()
local answers = {}
for index = 1, take_number() do
  local key, token = take(), take()
  local claim = read_claim(redis.call('HGET', CLAIMS, key))
  if not claim or claim.token ~= token then
    answers[index] = 0
  else
    answers[index] = 1
    claim.token, claim.trying = '-', '-'
    write_claim(key, claim)
    look_at(key, now)
  end
end
return answers
