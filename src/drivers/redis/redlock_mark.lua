-- SPDX-License-Identifier: MIT
-- The mark of a node, which goes with its memory.
--   KEYS  the mark
--   ARGV  nothing: looks.  Else the life and the instant that a look gave: from now on the node counts, if it is as
--         fresh as it was then.
--   gives {standing as in redlock_take, life, since}
local life = string.match(redis.call('INFO', 'replication'), 'master_replid:(%w+)')
local mark = redis.call('HMGET', KEYS[1], 'life', 'since', 'in', 'fresh')
if mark[1] ~= life then
  local t = redis.call('TIME')
  mark = {life, string.format('%.0f', t[1] * 1000 + math.floor(t[2] / 1000)), '0', mark[1] and '0' or '1'}
  redis.call('HSET', KEYS[1], 'life', mark[1], 'since', mark[2], 'in', mark[3], 'fresh', mark[4])
end
if ARGV[1] == mark[1] and ARGV[2] == mark[2] and mark[4] == '1' then
  redis.call('HSET', KEYS[1], 'in', 1)
  mark[3] = '1'
end
return {mark[3] == '1' and 2 or 1 - mark[4], mark[1], mark[2]}
