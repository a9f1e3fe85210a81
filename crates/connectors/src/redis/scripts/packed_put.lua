-- Then the number of groups, for each its name and how many fields it gets, and then, in the same
-- order, name and value of each.
if not in_turn() then return 0 end
local names, counts = {}, {}
for n = 1, tonumber(take()) do names[n], counts[n] = take(), tonumber(take()) end
if #names == 0 then return 1 end
local states, unknown = call('HMGET', groups, unpack(names)), {}
for n, name in ipairs(names) do
  if not states[n] then
    append_pair(unknown, name, 'open')
  end
end
-- Before what they hold: nobody else knows which groups there are.
call_with('HSET', groups, unknown)
for n, name in ipairs(names) do
  local last = at + 2 * counts[n]
  local added = call('HSET', held_of(name), unpack(ARGV, at + 1, last))
  at = last
  if added > 0 and states[n] == 'closed' then call('HSET', groups, name, 'open') end
end
return 1
