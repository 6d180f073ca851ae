-- SPDX-License-Identifier: MIT
-- Renews on one node.
--   KEYS  the bucket's highest fence, the name
--   ARGV  id, fence (0: any of this id), ms to hold, ttl, tag, "1": propose a fence
--   gives {1, f, g, n, proposed fence, owner, pid, since}; {0}: the name is free, or the id has another grant;
--         {2}: another id has it, or it is broken
local h = redis.call('HMGET', KEYS[2], 'id', 'f', 'g', 'n', 'x', 'o', 'p', 's')
if not h[1] then return {0} end
local fence, first = tonumber(ARGV[2]), tonumber(h[2])
if h[1] ~= ARGV[1] or h[5] ~= '0' then return {2} end
if first == 0 then return {0} end
if fence ~= 0 and (fence < tonumber(h[3]) or fence >= first + h[4]) then return {0} end
redis.call('HSET', KEYS[2], 'l', ARGV[4], 'u', ARGV[5])
redis.call('PEXPIRE', KEYS[2], ARGV[3])
local proposed = 0
if ARGV[6] == '1' then
  local t = redis.call('TIME')
  local now = t[1] * 1000 + math.floor(t[2] / 1000)
  proposed = math.max(tonumber(redis.call('GET', KEYS[1]) or '0') + 1, now * 1024)
  redis.call('SET', KEYS[1], string.format('%.0f', proposed))
end
return {1, first, tonumber(h[3]), tonumber(h[4]), proposed, h[6], h[7], h[8]}
