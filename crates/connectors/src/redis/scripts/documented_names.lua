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
local function is_shown_only(entry) return string.byte(entry) == 68 end -- `D`
-- What lies in keys that other programs may have written, by key; false where it is no text.
local function texts_in(keys)
  local texts = {}
  for n, text in ipairs(call_all('MGET', keys) or {}) do texts[keys[n]] = text end
  return texts
end
-- The text at a documented key may be another's: ours ends with it where we have a copy.
local function is_ours(entry, text)
  if is_shown_only(entry) then return true end
  return text and (text == '' or string.sub(entry, -#text) == text)
end
-- Ids by kind, added or removed with one call for each kind.
local function add_id(kinds, kind, id)
  local ids = kinds[kind] or {}
  kinds[kind] = ids
  append(ids, id)
end
local function for_each_kind(command, kinds, group)
  for kind, ids in pairs(kinds) do call(command, set_of(kind, group), unpack(ids)) end
end
