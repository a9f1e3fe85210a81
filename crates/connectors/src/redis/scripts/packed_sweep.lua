-- Then how much to do. Answers 1 when nothing is left, 2 when there is more.
local names = some_of(groups, take())
for n = 1, #names, 2 do
  call('UNLINK', held_of(names[n]))
  call('HDEL', groups, names[n])
end
if call('EXISTS', groups) == 0 then return 1 end
return 2
