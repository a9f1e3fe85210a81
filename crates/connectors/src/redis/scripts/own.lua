-- KEYS[1] holds the owner of the share; ARGV[1] is who that is from now on, as `owner.lua` reads it.
-- Removing comes first: it needs no memory, and Redis lets a script that has begun to write go on.
redis.call('DEL', KEYS[1])
redis.call('SET', KEYS[1], ARGV[1])
return 1
