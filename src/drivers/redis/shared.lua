-- SPDX-License-Identifier: MIT
-- Sums that wait for the database: one partition of one space (store/shared.h).
--
--   KEYS[1]  dibs:{7}:c:own, "the base": a hash.  i: the incarnation under which sums are added up; s: their source,
--            which is drawn for each incarnation; n: the number of the latest sums of this source; b: when the hash was
--            begun
--   and from it, with the same hash tag:
--     :sums           hash, key -> sum: what is added up now.  Its field '' has their name: "SOURCE NUMBER BEGAN-AT"
--     :flushing       hash, the same: what is being written to the database.  At most one
--     :sealed         list of names: sums that are complete, the oldest first, each in the hash :sealed:NAME
--     :refused        hash, "STATUS REPEAT KEY" -> sum: what the database did not take
--     :forgot:NUMBER  text, empty: this FORGET was done; expires
--     :from:SOURCE    text, "NUMBER ITEMS": the latest batch of a client, and which of its items did not fit; expires
--   ARGV     the verb, and what it needs: see each
--
-- A full server refuses a command that needs memory.  Each step that adds begins with such a command, so it is refused
-- as a whole; steps that drain need none (rename, delete).
local ADD, READ, LOOK, SEAL, DROP, REFUSED = '0', '1', '2', '3', '4', '5'
local MOST, KEEP_MS, DONE, REPLAY, CHANGED = 1000, 900000, 0, 1, 2 -- MOST: DIBS__COUNTER_ITEMS
local call, find, match, sub = redis.call, string.find, string.match, string.sub
if not redis.REDIS_VERSION_NUM then redis.replicate_commands() end -- before 7: effects, not the script, are replicated
local info = call('INFO', 'replication')
if not find(info, 'role:master', 1, true) then
  return redis.error_reply('DIBS this server is a replica, not the master any more')
end
local incarnation = match(info, 'master_replid:(%x+)') -- the colon excludes master_replid2
local base, verb = KEYS[1], ARGV[1]
local sums, flushing, sealed, refused = base .. ':sums', base .. ':flushing', base .. ':sealed', base .. ':refused'
local clock = call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)

local function age_of(name)
  local began = name and match(name, ' (%d+)$')
  local age = began and now - began or -1
  return (began and age < 0) and 0 or age
end

-- Nothing is added to these sums any more.
local function put_aside()
  local name = call('HGET', sums, '')
  if not name then return end
  call('RPUSH', sealed, name)
  call('RENAME', sums, sealed .. ':' .. name)
end

local function begin_sums(fresh)
  local known = call('HMGET', base, 'i', 's')
  local number = '1'
  if known[1] == incarnation then
    number = string.format('%.0f', call('HINCRBY', base, 'n', 1))
  else
    call('HSET', base, 'i', incarnation, 's', fresh, 'n', number)
    call('HSETNX', base, 'b', string.format('%.0f', now))
  end
  local source = known[1] == incarnation and known[2] or fresh
  call('HSET', sums, '', source .. ' ' .. number .. ' ' .. string.format('%.0f', now))
end

-- Sums that were begun before the server lost its memory, or was promoted, may be in the database in a later state.
local function ensure_sums(fresh)
  if call('EXISTS', sums) == 1 then
    if call('HGET', base, 'i') == incarnation then return end
    put_aside()
  end
  begin_sums(fresh)
end

-- FLUSHALL leaves the server its incarnation.  A repeat may have been added before it, unless this partition was begun
-- before the first attempt was sent.
local function is_emptied(since_ms)
  local began = since_ms > 0 and call('HGET', base, 'b')
  return since_ms > 0 and not (began and now - tonumber(began) >= since_ms)
end

-- The incarnation that the client expects, its source, the number of the batch, the source of new sums, the ms since
-- the first attempt (0: this is the first); then key and delta of each item.  Answers what happened, the incarnation,
-- and the indexes of items that did not fit.
local function add()
  local expected, number, fresh = ARGV[2], tonumber(ARGV[4]), ARGV[5]
  if expected ~= incarnation then return {CHANGED, incarnation, ''} end
  local from = base .. ':from:' .. ARGV[3]
  local last = call('GET', from)
  if last then
    local seen, items = match(last, '^(%d+) (.*)$')
    if tonumber(seen) >= number then
      call('PEXPIRE', from, KEEP_MS) -- a write, for WAIT: the batch may have come by another connection
      return {REPLAY, incarnation, tonumber(seen) == number and items or ''}
    end
  end
  if is_emptied(tonumber(ARGV[6])) then return {CHANGED, incarnation, ''} end
  call('SET', from, ARGV[4] .. ' ', 'PX', KEEP_MS)
  local fine, why = pcall(ensure_sums, fresh)
  if fine then why = redis.pcall('HLEN', sums) end
  if fine and type(why) ~= 'table' then why = redis.pcall('LLEN', sealed) end
  if type(why) == 'table' then fine, why = false, why.err end
  if not fine then -- a key has another type.  Nothing was added, so a repeat must not find the batch done.
    if last then call('SET', from, last, 'PX', KEEP_MS) else call('DEL', from) end
    return redis.error_reply('CORRUPT ' .. tostring(why))
  end
  local tight, misfits = call('HLEN', sums) - 1 + (#ARGV - 6) / 2 > MOST, ''
  for i = 7, #ARGV, 2 do
    if tight and call('HLEN', sums) > MOST and call('HEXISTS', sums, ARGV[i]) == 0 then
      put_aside()
      begin_sums(fresh)
    end
    local answer = redis.pcall('HINCRBY', sums, ARGV[i], ARGV[i + 1])
    local fails = type(answer) == 'table' and answer.err
    if fails then
      if not find(fails, 'overflow', 1, true) and not find(fails, 'integer', 1, true) then error(fails) end
      misfits = misfits .. string.format('%.0f,', (i - 7) / 2)
    end
  end
  if misfits ~= '' then call('SET', from, ARGV[4] .. ' ' .. misfits, 'PX', KEEP_MS) end
  return {DONE, incarnation, misfits}
end

-- A key.  Answers the name of the sums that are added up now, its sum in them, and its sums in those on their way.
local function read()
  local answer = {call('HGET', sums, '') or '', call('HGET', sums, ARGV[2]) or ''}
  local function take(hash)
    local sum = call('HGET', hash, ARGV[2])
    if sum then answer[#answer + 1] = sum end
  end
  take(flushing)
  for _, name in ipairs(call('LRANGE', sealed, 0, -1)) do take(sealed .. ':' .. name) end
  return answer
end

-- Answers the age of the oldest sum in ms, or -1; how many hashes wait; the keys that are added up; refused sums.
local function look()
  local oldest = call('HGET', flushing, '') or call('LINDEX', sealed, 0) or call('HGET', sums, '')
  local keys = call('HLEN', sums)
  return {age_of(oldest), call('LLEN', sealed) + call('EXISTS', flushing) + (keys > 0 and 1 or 0),
          keys > 0 and keys - 1 or 0, call('HLEN', refused)}
end

-- Answers the name of the sums to be written next, their age, and all of them.
local function seal()
  if call('EXISTS', flushing) == 0 then
    local name = call('LINDEX', sealed, 0)
    if name then
      call('RENAME', sealed .. ':' .. name, flushing)
      call('LPOP', sealed)
    elseif call('EXISTS', sums) == 1 then
      call('RENAME', sums, flushing)
    end
  end
  local all = call('HGETALL', flushing)
  local answer = {'', 0}
  for i = 1, #all, 2 do
    if all[i] == '' then
      answer[1], answer[2] = all[i + 1], age_of(all[i + 1])
    else
      answer[#answer + 1] = all[i]
      answer[#answer + 1] = all[i + 1]
    end
  end
  return answer
end

-- "SOURCE NUMBER" of sums that were written; then status, key and sum of each that was refused.
local function drop()
  local name = call('HGET', flushing, '')
  if not name or find(name, ARGV[2] .. ' ', 1, true) ~= 1 then return 0 end
  for i = 3, #ARGV, 3 do
    local repeats, added = 0, nil
    repeat -- a sum of refused sums that does not fit gets another field
      added = redis.pcall('HINCRBY', refused, ARGV[i] .. ' ' .. repeats .. ' ' .. ARGV[i + 1], ARGV[i + 2])
      local fails = type(added) == 'table' and added.err
      if fails and not find(fails, 'overflow', 1, true) then error(fails) end
      repeats = repeats + 1
    until not fails
  end
  call('DEL', flushing)
  return 1
end

-- A cursor.  Answers the next one, then field and sum of some that were refused.
local function list_refused()
  local page = call('HSCAN', refused, ARGV[2], 'COUNT', 500)
  local answer = {page[1]}
  for i = 1, #page[2] do answer[#answer + 1] = page[2][i] end
  return answer
end

-- A number of this request; then status, repeat, key and sum of each that is forgotten.  What was added to the sum
-- meanwhile stays, so a repeat of the request must not take it: the number is noted behind the first write, which a
-- full server may refuse.
local function forget()
  local done = base .. ':forgot:' .. ARGV[2]
  if call('EXISTS', done) == 1 then return 1 end
  for i = 3, #ARGV, 4 do
    local field, sum = ARGV[i] .. ' ' .. ARGV[i + 1] .. ' ' .. ARGV[i + 2], ARGV[i + 3]
    local has = call('HGET', refused, field)
    if has == sum then
      call('HDEL', refused, field)
    elseif has then
      local taken = redis.pcall('HINCRBY', refused, field, find(sum, '-', 1, true) == 1 and sub(sum, 2) or '-' .. sum)
      local fails = type(taken) == 'table' and taken.err
      if fails and not find(fails, 'overflow', 1, true) and not find(fails, 'integer', 1, true) then error(fails) end
    end
  end
  call('SET', done, '', 'PX', KEEP_MS)
  return 1
end

if verb == ADD then return add() end
if verb == READ then return read() end
if verb == LOOK then return look() end
if verb == SEAL then return seal() end
if verb == DROP then return drop() end
if verb == REFUSED then return list_refused() end
return forget()
