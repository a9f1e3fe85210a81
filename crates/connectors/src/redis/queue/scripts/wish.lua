-- ARGV: key, nonce of the opening that is meant, and why the chat closes. Answers `done`, `gone` (that
-- opening has been claimed or forgotten), `claimed` or `foreign`.
although_full()
local key, nonce, wish = take(), take(), take()
local state = read_state(redis.call('HGET', CHATS, key))
if not state or state.nonce ~= nonce then return 'gone' end
if redis.call('HEXISTS', CLAIMS, key) == 1 then return 'claimed' end
-- What another program held when it came has not opened.
if state.foreign ~= 0 or lock_state(lock_of(key), state.lock) == 'foreign' then return 'foreign' end
if state.opened == 0 then return 'gone' end
local size = redis.pcall('LLEN', batch_of(key))
if is_error(size) or size == 0 then return 'gone' end
state.wish, state.count = wish, size
write_state(key, state)
look_at(key, now)
return 'done'
