-- SPDX-License-Identifier: MIT
-- After a renewal on a majority: a node that has no grant of the id, or an older one, learns it.
--   KEYS  the bucket's highest fence, the name
--   ARGV  id, f, g, n, ms to hold, ttl, tag, owner, pid, since
--   gives 1: done; 0: another id has the name
local h = redis.call('HMGET', KEYS[2], 'id', 'x')
if h[1] and (h[1] ~= ARGV[1] or h[2] ~= '0') then return 0 end
local top = ARGV[2] + ARGV[4] - 1
if tonumber(redis.call('GET', KEYS[1]) or '0') < top then redis.call('SET', KEYS[1], string.format('%.0f', top)) end
redis.call('HSET', KEYS[2], 'id', ARGV[1], 'f', ARGV[2], 'g', ARGV[3], 'n', ARGV[4], 'x', 0, 'l', ARGV[6], 'u', ARGV[7],
           'o', ARGV[8], 'p', ARGV[9], 's', ARGV[10])
redis.call('PEXPIRE', KEYS[2], ARGV[5])
return 1
