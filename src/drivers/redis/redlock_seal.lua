-- SPDX-License-Identifier: MIT
-- The second round: writes the fence back if the id still has the name.
--   KEYS  the bucket's highest fence, the name
--   ARGV  id, the first fence, how many, "1": the first grant stays (a renewal that draws)
--   gives 1: done; 0: the id no longer has it
local h = redis.call('HMGET', KEYS[2], 'id', 'x')
if h[1] ~= ARGV[1] or h[2] ~= '0' then return 0 end
local top = ARGV[2] + ARGV[3] - 1
if tonumber(redis.call('GET', KEYS[1]) or '0') < top then redis.call('SET', KEYS[1], string.format('%.0f', top)) end
redis.call('HSET', KEYS[2], 'f', ARGV[2], 'n', ARGV[3])
if ARGV[4] ~= '1' then redis.call('HSET', KEYS[2], 'g', ARGV[2]) end
return 1
