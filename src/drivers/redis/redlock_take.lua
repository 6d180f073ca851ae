-- SPDX-License-Identifier: MIT
-- The first round of an acquire, on one node: grants the name if it is free, or has the same id.
--   KEYS  the node's mark, the bucket's highest fence, the name
--   ARGV  id, ms to hold, owner, ttl, tag, pid, ms in quarantine, the proposed fence, how many of them
--   gives {0, standing, wait, fence, 1: it is the proposed one, and is written}    granted now
--         {1, standing, wait, ms left, digest of the id}                           another id has it
--         {2, standing, wait, ms left, broken, f, g, n, tag, highest}              granted before
-- standing: 2 the node counts; 1 it lost its memory, and counts in `wait` ms; 0 the same, and it never had a mark
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
local incarnation = string.match(redis.call('INFO', 'replication'), 'master_replid:(%w+)')
local mark = redis.call('HMGET', KEYS[1], 'life', 'since', 'in', 'fresh')
local standing, wait = 2, 0
if mark[1] ~= incarnation then
  local fresh = mark[1] and 0 or 1
  redis.call('HSET', KEYS[1], 'life', incarnation, 'since', string.format('%.0f', now), 'in', 0, 'fresh', fresh)
  standing, wait = 1 - fresh, tonumber(ARGV[7])
elseif mark[3] == '0' then
  wait = mark[2] + ARGV[7] - now
  standing = 1 - mark[4]
  if wait <= 0 then
    redis.call('HSET', KEYS[1], 'in', 1)
    standing, wait = 2, 0
  end
end

local h = redis.call('HMGET', KEYS[3], 'id', 'f', 'g', 'n', 'x', 'u')
if h[1] and h[1] ~= ARGV[1] then
  return {1, standing, wait, redis.call('PTTL', KEYS[3]), string.sub(redis.sha1hex(h[1]), 1, 16)}
end
local last = tonumber(redis.call('GET', KEYS[2]) or '0')
if h[1] and h[2] ~= '0' then
  return {2, standing, wait, redis.call('PTTL', KEYS[3]), tonumber(h[5]), tonumber(h[2]), tonumber(h[3]),
          tonumber(h[4]), h[6], last}
end

-- If the proposed fence is above all that was seen here, the second round is not needed.  Otherwise the node proposes a
-- fence, above the fences from before a loss of its memory, too, if clocks go on; so fences far ahead of clocks are
-- refused.
local fence, block, written = tonumber(ARGV[8]), 0, 0
if fence > last and fence <= (now + 1000) * 1024 then
  block, written = tonumber(ARGV[9]), 1
  redis.call('SET', KEYS[2], string.format('%.0f', fence + block - 1))
else
  fence = math.max(last + 1, now * 1024)
  redis.call('SET', KEYS[2], string.format('%.0f', fence))
end
local first = written == 1 and ARGV[8] or 0
redis.call('HSET', KEYS[3], 'id', ARGV[1], 'f', first, 'g', first, 'n', block, 'x', 0, 'o', ARGV[3], 'l', ARGV[4], 'u',
           ARGV[5], 'p', ARGV[6], 's', string.format('%.0f', now))
redis.call('PEXPIRE', KEYS[3], ARGV[2])
return {0, standing, wait, fence, written}
