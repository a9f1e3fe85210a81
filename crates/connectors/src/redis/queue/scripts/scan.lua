-- ARGV: cursor, lease. Looks at some keys: a list of a chat, or of a claim, that nobody will look at is
-- entered. Lists are the truth. Answers the next cursor and how many were entered.
local cursor, lease = take(), take_number()
although_full()
local page = redis.call('SCAN', cursor, 'COUNT', 500, 'TYPE', 'list')
local entered = 0
local function enter(key, time)
  entered = entered + redis.call('ZADD', DUE, 'NX', num(time), key)
end
for _, name in ipairs(page[2]) do
  if string.sub(name, 1, 12) == 'queue:batch:' and #name > 12 then
    -- What is being delivered of it has a lease.
    local key = string.sub(name, 13)
    enter(key, redis.call('EXISTS', sending_of(key)) == 1 and now + lease or now)
  elseif string.sub(name, 1, #P + 8) == P .. 'sending:' then
    enter(string.sub(name, #P + 9), now + lease)
  elseif name == P .. 'bad' then
    enter('', now)
  end
end
return { page[1], entered }
