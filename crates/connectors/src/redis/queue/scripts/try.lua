-- ARGV: key, token, and the message that is tried alone (`-`: none). Noted where the claim is that token's.
although_full()
local key, token, trying = take(), take(), take()
local claim = read_claim(redis.call('HGET', CLAIMS, key))
if not claim or claim.token ~= token then return 0 end
claim.trying = trying
write_claim(key, claim)
return 1
