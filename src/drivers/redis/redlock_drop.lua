-- SPDX-License-Identifier: MIT
-- Releases the id's grant of the name.
--   KEYS  the name
--   ARGV  id, and which grant: a fence of it (a vote that is not a grant yet is dropped, too), or "all"
--   gives 0: no grant; 1: it was not granted yet; 2: it was
local h = redis.call('HMGET', KEYS[1], 'id', 'f', 'g', 'n')
if h[1] ~= ARGV[1] then return 0 end
if h[2] ~= '0' then
  local fence = tonumber(ARGV[2])
  if fence and (fence < tonumber(h[3]) or fence >= h[2] + h[4]) then return 0 end
end
redis.call('DEL', KEYS[1])
return h[2] == '0' and 1 or 2
