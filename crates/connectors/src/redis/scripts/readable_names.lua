-- ARGV: prefix of potok's own keys, share, then what the script works on.
local prefix, share = take(), take()
local groups = prefix .. 'groups:' .. share
local function held_of(group) return prefix .. 'held:' .. share .. ':' .. group end
-- Names of records: kind and id in one, which no other pair gives, and the readable key. Most have
-- the kind of the one before.
local known_kind, known_group, name_start, data_start
local function names_of(kind, group, id)
  if kind ~= known_kind or group ~= known_group then
    known_kind, known_group = kind, group
    name_start, data_start = #kind .. ':' .. kind, 'data:' .. kind .. ':' .. group .. ':'
  end
  return name_start .. id, data_start .. id
end
-- Where a record is held that is not the one shown under its name. No name begins like this.
local function hidden_at(place) return 'P' .. place end
local function set_of(kind, group) return 'batch:' .. kind .. 's:' .. group end
local function start_of(group) return 'batch:start:' .. group end
local function is_shown_only(entry) return string.byte(entry) == 68 end -- `D`
-- A place and a name begin with a length and a colon. Returns what the length counts, and the rest.
local function cut(text, first)
  local colon = string.find(text, ':', first, true)
  local length = tonumber(string.sub(text, first, colon - 1))
  return string.sub(text, colon + 1, colon + length), string.sub(text, colon + length + 1)
end
-- Where the record of an entry lies.
local function place_of(entry)
  local position = cut(entry, 2)
  return #position .. ':' .. position
end
-- Whether an entry is of the record that lies there.
local function is_of(entry, place) return string.sub(entry, 2, #place + 1) == place end
-- What lies at a key that other programs may have written; false where it is no text.
local function text_at(key) return call('MGET', key)[1] end
-- The text at a readable key may be another's: ours ends with it where we have a copy.
local function is_ours(entry, key)
  if is_shown_only(entry) then return true end
  local text = text_at(key)
  return text and (text == '' or string.sub(entry, -#text) == text)
end
-- Ids by kind, added or removed with one call for each kind.
local function ids_of(kinds, kind)
  local ids = kinds[kind] or {}
  kinds[kind] = ids
  return ids
end
local function for_each_kind(command, kinds, group)
  for kind, ids in pairs(kinds) do call(command, set_of(kind, group), unpack(ids)) end
end
