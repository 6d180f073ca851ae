-- SPDX-License-Identifier: MIT
-- The mark of a node, which vanishes with its memory.
--   KEYS  the mark
--   ARGV  nothing: reads.  Otherwise the incarnation and the instant of a read: from now on the node counts, if it is
--         still as fresh as then.
--   gives {standing as in redlock_take, incarnation, since}
local incarnation = string.match(redis.call('INFO', 'replication'), 'master_replid:(%w+)')
local mark = redis.call('HMGET', KEYS[1], 'life', 'since', 'in', 'fresh')
if mark[1] ~= incarnation then
  local t = redis.call('TIME')
  mark = {incarnation, string.format('%.0f', t[1] * 1000 + math.floor(t[2] / 1000)), '0', mark[1] and '0' or '1'}
  redis.call('HSET', KEYS[1], 'life', mark[1], 'since', mark[2], 'in', mark[3], 'fresh', mark[4])
end
if ARGV[1] == mark[1] and ARGV[2] == mark[2] and mark[4] == '1' then
  redis.call('HSET', KEYS[1], 'in', 1)
  mark[3] = '1'
end
return {mark[3] == '1' and 2 or 1 - mark[4], mark[1], mark[2]}
