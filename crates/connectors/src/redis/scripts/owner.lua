-- KEYS[1] holds the owner of the share and the number of its last write: `nonce number`.
-- ARGV: who asks, the number of this call, then what the script works on.
local function call(command, key, ...)
  local answer = redis.pcall(command, key, ...)
  if type(answer) == 'table' and answer.err then
    if string.find(answer.err, 'WRONGTYPE', 1, true) then
      error('WRONGTYPE of the key ' .. key)
    end
    error(answer.err)
  end
  return answer
end
local owner = call('GET', KEYS[1])
if not owner then return -1 end
local space = string.find(owner, ' ', 1, true) or 0
if string.sub(owner, 1, space - 1) ~= ARGV[1] then return 0 end
-- False for a call that arrives behind a later one of the same owner: it was given up long ago.
local function in_turn()
  if tonumber(ARGV[2]) < tonumber(string.sub(owner, space + 1)) then return false end
  call('SET', KEYS[1], ARGV[1] .. ' ' .. ARGV[2])
  return true
end
-- Redis refuses a command that may need memory only where it has none left and the script has written
-- nothing yet. This is a write that needs none: what makes room begins with it.
local function although_full() call('DEL', KEYS[1] .. ':none') end
local ARGV, at = ARGV, 2
local function take()
  at = at + 1
  return ARGV[at]
end
local function append(list, value) list[#list + 1] = value end
local function append_pair(list, one, two)
  local size = #list
  list[size + 1] = one
  list[size + 2] = two
end
-- Calls for several keys, names or members at once. A piece is small enough for one call.
local function call_all(command, list)
  if #list > 0 then return call(command, unpack(list)) end
end
local function call_with(command, key, list)
  if #list > 0 then return call(command, key, unpack(list)) end
end
-- Records looked up at once where the answer is bounded in bytes.
local SLICE = 16
-- Some names and values of a hash, about so many; none only where it is empty. A hash that is
-- being emptied has nothing left where scans begin, and one page of a scan is bounded.
local function some_of(hash, count)
  local cursor, pairs_found = '0', {}
  repeat
    local page = call('HSCAN', hash, cursor, 'COUNT', count)
    cursor, pairs_found = page[1], page[2]
  until #pairs_found > 0 or cursor == '0'
  return pairs_found
end
