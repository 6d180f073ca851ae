-- SPDX-License-Identifier: MIT
-- A report: put, read or dropped.
--
--   KEYS     dibs:{reports}    hash, id -> its content
--            dibs:{reports}:s  sorted set, id -> when it was put
--   ARGV     the verb (0 put, 1 read, 2 drop), the id, keep_ms, '1' to read as well, the content
--   answers  the clock in ms (a double), then of each report its id, its age in ms (a double) and its content, the
--            youngest first
--
-- Both keys expire after the last put.
local PUT, DROP, MOST, SWEPT = '0', '2', 4096, 64 -- MOST: DIBS__REPORTS_MAX

local call, pack = redis.call, struct.pack
local clock = call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
local reports, seen = KEYS[1], KEYS[2]
local verb, id, keep = ARGV[1], ARGV[2], tonumber(ARGV[3])

local function delete_reports(ids)
  if #ids == 0 then return end
  call('ZREM', seen, unpack(ids))
  call('HDEL', reports, unpack(ids))
end

local function add_reports(answer)
  -- After a clock was set back, reports are from the future: a little counts as now, much as too old.
  local found = call('ZREVRANGEBYSCORE', seen, now + keep, now - keep, 'WITHSCORES', 'LIMIT', 0, MOST)
  local ids = {}
  for i = 1, #found, 2 do ids[#ids + 1] = found[i] end
  if #ids == 0 then return end
  local texts = call('HMGET', reports, unpack(ids))
  for i = 1, #ids do
    local age = now - found[2 * i]
    answer[#answer + 1] = ids[i]
    answer[#answer + 1] = pack('<d', age > 0 and age or 0)
    answer[#answer + 1] = texts[i] or ''
  end
end

local answer = {pack('<d', now)}
if verb == DROP then
  delete_reports({id})
  return answer
end
if verb == PUT then
  delete_reports(call('ZRANGEBYSCORE', seen, '-inf', '(' .. now - keep, 'LIMIT', 0, SWEPT))
  delete_reports(call('ZRANGEBYSCORE', seen, '(' .. now + keep, '+inf', 'LIMIT', 0, SWEPT))
  call('HSET', reports, id, ARGV[5])
  call('ZADD', seen, now, id)
  for i = 1, 2 do
    if call('PTTL', KEYS[i]) < keep then call('PEXPIRE', KEYS[i], keep) end
  end
end
if verb ~= PUT or ARGV[4] == '1' then add_reports(answer) end
return answer
