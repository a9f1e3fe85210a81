-- ARGV: a key, and who wants it. Answers who has it.
although_full()
local key, own = take(), take()
redis.call('SET', key, own, 'NX')
return redis.call('GET', key)
