-- ARGV: prefix of the share's keys, then what the script works on.
local prefix = take()
local groups = prefix .. 'groups'
local function held_of(group) return prefix .. 'held:' .. group end
