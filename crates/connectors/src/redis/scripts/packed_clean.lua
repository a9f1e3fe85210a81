-- Then, until the end: group, number of pieces, and of each its name and the offsets that go.
although_full()
local WIDTH = 8
local function without(all, gone)
  if all == gone then return '' end
  local goes, left = {}, {}
  for n = 1, #gone, WIDTH do goes[string.sub(gone, n, n + WIDTH - 1)] = true end
  for n = 1, #all, WIDTH do
    local offset = string.sub(all, n, n + WIDTH - 1)
    if not goes[offset] then append(left, offset) end
  end
  return table.concat(left)
end
local empty = {}
while at < #ARGV do
  local group, count = take(), tonumber(take())
  local held, gone = held_of(group), {}
  for _ = 1, count do
    local name, offsets = take(), take()
    -- A piece without a list is one record, or gone.
    local all = call('HGET', held, 'i' .. name)
    local left = all and without(all, offsets) or ''
    if left == '' then
      append_pair(gone, 'i' .. name, 'b' .. name)
    elseif left ~= all then
      call('HSET', held, 'i' .. name, left)
    end
  end
  call_with('HDEL', held, gone)
  if call('EXISTS', held) == 0 then append(empty, group) end
end
call_with('HDEL', groups, empty)
return 1
