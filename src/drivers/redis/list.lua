-- SPDX-License-Identifier: MIT
-- The holders, waiters and recorded breaks of some names: each call is one instant.  It changes nothing, and leaves out
-- expired leases, swept or not, and waiters whose process is gone.
--
--   KEYS     the bucket of each name
--   ARGV     a digit: 1 for breaks too, plus 2 for a node of a cluster, where all names are of one bucket; the names
--   answers  the clock in ms (a double), then for each name its rows as list.c reads them
--
-- lease.lua describes the keys.
local HOLDS, WAITS, OFFERED, BREAKING, BROKEN = 0, 1, 2, 3, 4
local HOLDER, SHARER = '<BBc16ddHdI4dc8Bc0', '<BHdI4dc8Bc0'
local HEAD, WAITER = '<BBHI4I4I4dd', '<BBHI4ddddc8Bc0'
local ROW = '<BBHHI4ddddBc0' -- state, mode, slots, slot, ttl, fence, left, age, order, owner

local call, pack, cut = redis.call, struct.pack, struct.unpack
local clock = call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
local live_sessions = {}
local kind, suffix = tonumber(ARGV[1]), ''
if kind >= 2 then -- see lease.lua
  local probe = redis.pcall('MGET', KEYS[1], KEYS[1] .. ':-')
  if probe.err then return redis.error_reply('TRYAGAIN ' .. KEYS[1] .. ' is being moved') end
  suffix = ':' .. string.match(call('INFO', 'replication'), 'master_replid:(%x+)')
end

local function alive(base, session)
  if live_sessions[session] == nil then
    local channel_prefix = string.match(base, '^(.*):{%d+}$') .. ':s:'
    local channel = channel_prefix .. string.format(string.rep('%02x', 8), string.byte(session, 1, 8)) .. suffix
    live_sessions[session] = tonumber(call('PUBSUB', 'NUMSUB', channel)[2]) > 0
  end
  return live_sessions[session]
end

local function pack_row(state, mode, slots, slot, ttl, fence, left, since, order, owner)
  return pack(ROW, state, mode, slots, slot, ttl, fence, left, now - since, order, #owner, owner)
end

local function add_exclusive(rows, v, at)
  local _, broken, _, _, first, _, till, ttl, since, _, owner = cut(HOLDER, v, at)
  if till <= now then return end
  rows[#rows + 1] = pack_row(broken == 0 and HOLDS or BREAKING, 0, 0, 0, ttl, first, till - now, since, since, owner)
end

local function add_sharers(rows, key, mode, slots)
  local all = call('HVALS', key)
  for i = 1, #all do
    local broken, slot, till, ttl, since, _, owner = cut(SHARER, all[i])
    if till > now then
      rows[#rows + 1] = pack_row(broken == 0 and HOLDS or BREAKING, mode, slots, slot, ttl, 0, till - now, since, since,
        owner)
    end
  end
end

local function add_waiters(rows, key, base)
  local all = call('HVALS', key)
  for i = 1, #all do
    local state, mode, slots, ttl, ticket, till, _, since, session, owner = cut(WAITER, all[i])
    local offered = state == 2 and till > now
    if offered or alive(base, session) then
      rows[#rows + 1] = pack_row(offered and OFFERED or WAITS, mode, slots, 0, ttl, 0, offered and till - now or 0, since,
        ticket, owner)
    end
  end
end

local function add_breaks(rows, key)
  local all = call('LRANGE', key, 0, -1)
  for i = 1, #all do
    local at, fence, mode, owner = cut('<ddBBc0', all[i])
    rows[#rows + 1] = pack_row(BROKEN, mode, 0, 0, 0, fence, 0, at, i, owner)
  end
end

local out = {pack('<d', now)}
for i = 1, #KEYS do
  local name, rows = ARGV[i + 1], {}
  local v = call('GET', KEYS[i] .. ':n:' .. name)
  if v and string.byte(v) == 88 then
    add_exclusive(rows, v, 1)
  elseif v and string.byte(v) == 81 then
    local _, mode, slots, holders, _, waiting, _, _, at = cut(HEAD, v)
    if at <= #v then
      add_exclusive(rows, v, at)
    elseif holders > 0 then
      add_sharers(rows, KEYS[i] .. ':h:' .. name, mode, slots)
    end
    if waiting > 0 then add_waiters(rows, KEYS[i] .. ':w:' .. name, KEYS[i]) end
  elseif v then
    return redis.error_reply('CORRUPT ' .. KEYS[i] .. ':n:' .. name .. " is none of dibs'")
  end
  if kind % 2 == 1 then add_breaks(rows, KEYS[i] .. ':b:' .. name) end
  out[i + 1] = table.concat(rows)
end
return out
