-- KEYS[1] is a list. ARGV: how long a marker stays (s), then marker and entry of each message. The entry
-- first, then its marker: what breaks off in between doubles and loses nothing. Answers for each 1 where
-- the entry was pushed now, 0 where its marker was there.
local answers = {}
for index = 2, #ARGV, 2 do
  local marker = ARGV[index]
  if redis.call('EXISTS', marker) == 1 then
    answers[#answers + 1] = 0
  else
    redis.call('RPUSH', KEYS[1], ARGV[index + 1])
    redis.call('SET', marker, '1', 'EX', ARGV[1])
    answers[#answers + 1] = 1
  end
end
return answers
