-- SPDX-License-Identifier: MIT
-- One node's state of a name.
--   KEYS  the name, its breaks
--   gives {ms left, digest of the id, f, broken, owner, ttl, pid, age in ms, now, break, ...}; ms left < 0: not granted
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
local h = redis.call('HMGET', KEYS[1], 'id', 'f', 'x', 'o', 'l', 'p', 's')
local shown = {-1, '', 0, 0, '', 0, 0, 0, now}
if h[1] and h[2] ~= '0' then
  shown = {redis.call('PTTL', KEYS[1]), string.sub(redis.sha1hex(h[1]), 1, 16), tonumber(h[2]), tonumber(h[3]), h[4],
           tonumber(h[5]), tonumber(h[6]), now - h[7], now}
end
for _, broken in ipairs(redis.call('LRANGE', KEYS[2], 0, -1)) do shown[#shown + 1] = broken end
return shown
