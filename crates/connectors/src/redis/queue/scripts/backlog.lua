-- Answers how many entries wait and in how many chats. Of very many chats the first are counted, each of
-- the others as one entry.
local records, chats = redis.pcall('LLEN', list), redis.call('ZCARD', DUE)
if is_error(records) then records = 0 end
local keys = redis.call('ZRANGE', DUE, 0, 999)
for _, key in ipairs(keys) do
  for _, name in ipairs({ batch_of(key), sending_of(key) }) do
    local size = redis.pcall('LLEN', name)
    if not is_error(size) then records = records + size end
  end
end
return { records + math.max(chats - #keys, 0), chats, num(now) }
