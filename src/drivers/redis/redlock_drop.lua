-- SPDX-License-Identifier: MIT
-- Takes the name from the id.
--   KEYS  the name
--   ARGV  id, and which grant: a fence of it (what was not granted yet goes, too), or "all"
--   gives 0: nothing was there; 1: it was not granted yet; 2: it was
local h = redis.call('HMGET', KEYS[1], 'id', 'f', 'g', 'n')
if h[1] ~= ARGV[1] then return 0 end
if h[2] ~= '0' then
  local fence = tonumber(ARGV[2])
  if fence and (fence < tonumber(h[3]) or fence >= h[2] + h[4]) then return 0 end
end
redis.call('DEL', KEYS[1])
return h[2] == '0' and 1 or 2
