-- ARGV: prefix of potok's own keys, share, then what the script works on.
local prefix, share = take(), take()
local groups = prefix .. 'groups:' .. share
local function held_of(group) return prefix .. 'held:' .. share .. ':' .. group end
local function ids_of(group) return prefix .. 'ids:' .. share .. ':' .. group end
-- Kind and id in one, which no other pair gives.
local function name_of(kind, id) return #kind .. ':' .. kind .. id end
local function data_of(kind, group, id) return 'data:' .. kind .. ':' .. group .. ':' .. id end
local function set_of(kind, group) return 'batch:' .. kind .. 's:' .. group end
local function start_of(group) return 'batch:start:' .. group end
-- What lies in a key that other programs may have written; false where it is no text.
local function text_in(key)
  local value = redis.pcall('GET', key)
  return type(value) == 'string' and value
end
-- The text at a documented key may be another's: ours ends with it where we have a copy.
local function is_ours(key, entry)
  if string.sub(entry, 1, 1) == 'D' then return true end
  local value = text_in(key)
  return value and (value == '' or string.sub(entry, -#value) == value)
end
