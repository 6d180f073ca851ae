-- SPDX-License-Identifier: MIT
-- Breaks the holder of the name.
--   KEYS  the name, its breaks
--   ARGV  the breaker's owner, an id of this break, the same on all nodes, "1": at once, ms that breaks are kept
--   gives ms left; -1: no holder
local h = redis.call('HMGET', KEYS[1], 'id', 'f', 'o')
if not h[1] or h[2] == '0' then return -1 end
local left = redis.call('PTTL', KEYS[1])
if ARGV[3] == '1' then redis.call('DEL', KEYS[1]) else redis.call('HSET', KEYS[1], 'x', 1) end
local t = redis.call('TIME')
redis.call('LPUSH', KEYS[2], string.format('%s %.0f %s %s\31%s', ARGV[2], t[1] * 1000 + math.floor(t[2] / 1000), h[2], ARGV[1],
  h[3] or ''))
redis.call('LTRIM', KEYS[2], 0, 15)
redis.call('PEXPIRE', KEYS[2], ARGV[4])
return left
