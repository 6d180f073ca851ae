-- SPDX-License-Identifier: MIT
-- Leases and mandates: many operations of a batch, in their order, as one atomic step of the server.
--
--   KEYS     the buckets, dibs:{17}
--   ARGV     '1' for a tier, else '0', and our session, 8 bytes; the operations, as redis_run.c packs them;
--            the lives that they name, as 40 hexadecimal digits each
--   answers  our life, the clock in ms (a double), 30 bytes an operation; and words, where there is something to say
--
-- What there is (numbers are little-endian, fences and instants doubles, exact below 2^53):
--   dibs:{17}          'L' last fence, epoch: a store of its own.  'S' epoch, seq, life: served for an anchor
--   dibs:{17}:n:NAME   'X' one exclusive holder and nothing else, gone with its ttl; or 'Q' a head of the following, and
--                      the exclusive holder if there is one
--   dibs:{17}:h:NAME   hash, id -> a shared or counted holder
--   dibs:{17}:u:NAME   sorted set, id -> when it ends: those, and offers
--   dibs:{17}:s:NAME   bitmap of taken slots
--   dibs:{17}:w:NAME   hash, id -> a waiter: waiting, asleep or offered
--   dibs:{17}:q:NAME   sorted set, id -> ticket: of those that wait, awake
--   dibs:{17}:a:NAME   sorted set, id -> when a waiter, or its process, was last seen
--   dibs:{17}:b:NAME   list of recorded breaks, kept for a while
-- All but the last end with the last holder or waiter, or, when nobody comes any more, at `keep` of the head.

-- Closures cost: what is made for each call stands here, before all locals, and has next to none of them in it.

-- The first of `want` fences, and how many there are; nil: the epoch has too few left.  On its own a bucket's fences
-- never run ahead of the clock, so that they grow also when `last` is forgotten: a block is cut short for that.
local function draw(b, want, now)
  local first
  if want < 1 then want = 1 elseif want > 1024 then want = 1024 end -- DIBS__BLOCK_MAX
  if b.served then
    if want > 4294967295 - b.seq then return nil end -- DIBS__SEQ_MAX
    first = b.epoch * 4294967296 + b.seq + 1
    b.seq = b.seq + want
  else
    first = b.last + 1
    if first < now * 1024 then first = now * 1024 end
    local room = (now + 1) * 1024 - first
    if want > room then want = room > 1 and room or 1 end
    b.last = first + want - 1
  end
  b.dirty = true
  return first, want
end

local function last_drawn(b)
  return b.served and b.epoch * 4294967296 + b.seq or b.last
end

-- What an error means, as a status: UNAVAILABLE, DENIED, CORRUPT.
local function excuse(e)
  for word in string.gmatch('OOM MISCONF NOREPLICAS READONLY', '%u+') do
    if string.find(e, word, 1, true) then return 13 end
  end
  if string.find(e, 'NOPERM', 1, true) or string.find(e, 'ermission', 1, true) then return 10 end
  return 15
end

-- Of a bucket's mandate: a status, and what the bucket is then.  A Redis makes no epochs for others: NEXT answers
-- CONFLICT.
local function anchor(verb, b, epoch, asked, life)
  local OK, CONFLICT, INVALID, UNAVAILABLE = 0, 5, 9, 13
  local SEQ_MAX, EPOCH, EPOCH_MAX = 4294967295, 4294967296, 2097151
  if verb == 16 then return OK, b end -- READ
  if verb == 17 then return CONFLICT, b end -- NEXT
  if verb == 18 then -- INSTALL
    if epoch > EPOCH_MAX then return INVALID, b end
    -- Above what was granted without a mandate, too: else fences would fall.
    if asked ~= life or epoch <= b.epoch or epoch * EPOCH <= last_drawn(b) then return CONFLICT, b end
    return OK, {served = true, epoch = epoch, seq = 0, life = life, dirty = true}
  end
  if not b.served then return OK, b end -- ALONE
  if b.epoch >= EPOCH_MAX then return UNAVAILABLE, b end
  return OK, {last = b.epoch * EPOCH + SEQ_MAX, epoch = b.epoch + 1, dirty = true}
end

-- Names with a line, with several holders, and breaking.
local function make_crowd(now, session, cache, gone, buckets)
  local call, pack, cut = redis.call, struct.pack, struct.unpack
  local OFFER_MS, EPOCH = 500, 4294967296 -- DIBS__OFFER_MS
  local SLACK_MS = 50      -- a key outlives what it says: `till` decides, not the expiry
  local ORPHAN_MS = 600000 -- waiters whose processes all went, and who are asked for no more
  local SPARE_MS = 30000   -- so that not each renewal moves the end of all keys
  local SILENT_MS = 10000  -- a waiter unheard of for so long: does its process live?
  local BREAK_MS, BREAKS = 86400000, 16
  local OK, HELD, LOST, NOT_FOUND, INVALID, QUEUED = 0, 1, 3, 8, 9, 100
  local HEARD = 4 -- flags: 1 queue, 2 at once, 4 our subscription stands
  local ANSWER = '<BBHHddd'                 -- status, somebody waits, slot or was, block; see redis_run.c
  local HOLDER = '<BBc16ddHdI4dc8Bc0'       -- kind, broken, id, granted, first, block, till, ttl, since, session, owner
  local WAITING, ASLEEP, OFFERED = 0, 1, 2
  local HEAD = '<BBHI4I4I4dd'            -- kind, mode, slots, holders, offers, waiters, tickets, keep
  local SHARER = '<BHdI4dc8Bc0'          -- broken, slot, till, ttl, since, session, owner
  local WAITER = '<BBHI4ddddc8Bc0'       -- state, mode, slots, ttl, ticket, till, first, since, session, owner
  local word, known = string.match(KEYS[1], '^(.*):{%d+}$') .. ':s:', {}

  local function channel(s) return word .. string.format(string.rep('%02x', 8), string.byte(s, 1, 8)) end
  -- Who listens lives.  Patterns do not count: a monitor that listens to everything is nobody's life.
  local function alive(s)
    if known[s] == nil then known[s] = tonumber(call('PUBSUB', 'NUMSUB', channel(s))[2]) > 0 end
    return known[s]
  end
  local function tell(s, id, fence) call('PUBLISH', channel(s), id .. fence) end
  local function sub(h, letter) return h.base .. ':' .. letter .. ':' .. h.name end
  -- A key that may be new ends with the others.
  local function grows(h, letter) h.new[letter] = true end

  -- A fence that was drawn for an offer under an earlier mandate counts no more: another tier may have granted larger
  -- ones since.
  local function counts(b, first)
    return first > 0 and (not b.served or math.floor(first / EPOCH) == b.epoch)
  end

  local function holder_from(v, at)
    local x, _ = {}
    _, x.broken, x.id, x.granted, x.first, x.block, x.till, x.ttl, x.since, x.session, x.owner = cut(HOLDER, v, at)
    return x
  end
  local function holder_to(x)
    return pack(HOLDER, 88, x.broken, x.id, x.granted, x.first, x.block, x.till, x.ttl, x.since, x.session, #x.owner,
      x.owner)
  end

  local function load(o)
    local h = {key = o[14], base = KEYS[o[2]], name = o[12], bucket = buckets[o[2]], new = {},
      mode = 0, slots = 0, holders = 0, offers = 0, waiters = 0, tickets = 0, keep = 0, need = 0}
    local v = cache[h.key]
    if not v then return h end
    local kind = string.byte(v)
    if kind == 88 then
      h.x = holder_from(v, 1)
      h.holders = 1
    elseif kind == 81 then
      local at
      kind, h.mode, h.slots, h.holders, h.offers, h.waiters, h.tickets, h.keep, at = cut(HEAD, v)
      if at <= #v then h.x = holder_from(v, at) end
      if (h.x ~= nil) ~= (h.mode == 0 and h.holders > 0) or h.offers > h.waiters then error('CORRUPT') end
    else
      error('CORRUPT')
    end
    return h
  end

  local function store(h)
    local key, value = h.key
    if h.holders == 0 and h.waiters == 0 then
      if cache[key] then gone[key], cache[key] = true, false end
      return
    end
    if h.x and h.waiters == 0 then
      value, h.need = holder_to(h.x), h.x.till
      h.keep = h.need
      h.new = {}
    else
      value = nil
      if h.x then h.need = math.max(h.need, h.x.till) end
      if h.waiters > 0 then h.need = math.max(h.need, now + ORPHAN_MS) end
      if h.keep < h.need then
        h.keep = h.need + SPARE_MS
        for letter in string.gmatch('huswqa', '.') do h.new[letter] = true end
      end
      value = pack(HEAD, 81, h.mode, h.slots, h.holders, h.offers, h.waiters, h.tickets, h.keep)
      if h.x then value = value .. holder_to(h.x) end
    end
    if not cache[key] and not gone[key] then
      -- MGET saw no text there; then there must be nothing.
      if not call('SET', key, value, 'PX', h.keep - now + SLACK_MS, 'NX') then error('CORRUPT') end
    elseif cache[key] ~= value then
      call('SET', key, value, 'PX', h.keep - now + SLACK_MS)
    end
    cache[key], gone[key] = value, nil
    for letter in pairs(h.new) do call('PEXPIREAT', sub(h, letter), h.keep + SLACK_MS) end
  end

  local function waiter(h, id)
    local v, w = h.waiters > 0 and call('HGET', sub(h, 'w'), id), {id = id}
    if not v then return nil end
    w.state, w.mode, w.slots, w.ttl, w.ticket, w.till, w.first, w.since, w.session, w.owner = cut(WAITER, v)
    return w
  end
  local function keep_waiter(h, w)
    call('HSET', sub(h, 'w'), w.id, pack(WAITER, w.state, w.mode, w.slots, w.ttl, w.ticket, w.till, w.first, w.since,
      w.session, #w.owner, w.owner))
  end
  local function seen(h, id) call('ZADD', sub(h, 'a'), now, id) end
  local function stand(h, w) -- in line, awake
    w.state = WAITING
    call('ZADD', sub(h, 'q'), w.ticket, w.id)
    grows(h, 'q')
    if not h.front or w.ticket < h.front then h.front = w.ticket end
  end
  local function no_offer(h, id)
    call('ZREM', sub(h, 'u'), id)
    h.offers = h.offers - 1
  end
  local function waiter_out(h, w)
    call('HDEL', sub(h, 'w'), w.id)
    call('ZREM', sub(h, 'a'), w.id)
    if w.state == OFFERED then no_offer(h, w.id) end
    if w.state == WAITING then call('ZREM', sub(h, 'q'), w.id) end
    h.waiters = h.waiters - 1
    if h.waiters == 0 then h.tickets = 0 end
  end

  local function sharer(h, id)
    local v, x = h.holders > 0 and not h.x and call('HGET', sub(h, 'h'), id), {id = id, granted = 0, first = 0, block = 0}
    if not v then return nil end
    x.broken, x.slot, x.till, x.ttl, x.since, x.session, x.owner = cut(SHARER, v)
    return x
  end
  local function keep_sharer(h, x)
    call('HSET', sub(h, 'h'), x.id, pack(SHARER, x.broken, x.slot, x.till, x.ttl, x.since, x.session, #x.owner, x.owner))
    h.need = math.max(h.need, x.till)
  end
  local function sharer_ends(h, x)
    call('ZADD', sub(h, 'u'), x.till, x.id)
    grows(h, 'u')
  end
  local function holder(h, id)
    if h.x then return h.x.id == id and h.x or nil end
    return sharer(h, id)
  end
  local function keep_holder(h, x)
    if h.x then return end
    keep_sharer(h, x)
    sharer_ends(h, x)
  end
  local function holder_out(h, x)
    h.holders = h.holders - 1
    if h.x then
      h.x = nil
      return
    end
    call('HDEL', sub(h, 'h'), x.id)
    call('ZREM', sub(h, 'u'), x.id)
    if h.mode == 2 then call('SETBIT', sub(h, 's'), x.slot, 0) end
    if h.mode == 2 and h.holders == 0 then call('DEL', sub(h, 's')) end
  end

  local function fits(h, mode, slots)
    local there = h.holders + h.offers
    if there == 0 then return true end
    if mode == 0 or mode ~= h.mode then return false end
    return mode == 1 or (slots == h.slots and there < slots)
  end

  -- With its fence, so that who is offered may begin at once; the last one of an epoch has none.
  local function offer(h, w)
    local first = w.mode == 0 and draw(h.bucket, 1, now) or 0
    call('ZREM', sub(h, 'q'), w.id)
    w.state, w.first, w.till = OFFERED, first, now + OFFER_MS
    keep_waiter(h, w)
    sharer_ends(h, w)
    if h.holders + h.offers == 0 then h.mode, h.slots = w.mode, w.slots end
    h.offers = h.offers + 1
    tell(w.session, w.id, pack('>I8', first))
  end

  -- After this the first in line, if there is one, lives and does not fit; h.front is its ticket.
  local function pass_on(h)
    h.front = nil
    while h.waiters > 0 do
      local first = call('ZRANGE', sub(h, 'q'), 0, 0)[1]
      if not first then return end
      local w = waiter(h, first)
      if not w or w.state ~= WAITING then error('CORRUPT') end
      if not alive(w.session) then
        waiter_out(h, w)
      elseif fits(h, w.mode, w.slots) then
        offer(h, w)
      else
        h.front = w.ticket
        return
      end
    end
  end

  -- The one that was silent for longest: of a process that is gone it goes, wherever it stands.
  local function look_after(h)
    local oldest = call('ZRANGE', sub(h, 'a'), 0, 0, 'WITHSCORES')
    if not oldest[1] or tonumber(oldest[2]) > now - SILENT_MS then return end
    local w = waiter(h, oldest[1])
    if not w then error('CORRUPT') end
    if alive(w.session) then seen(h, w.id) else waiter_out(h, w) end
  end

  local function settle(h)
    if h.x and h.x.till <= now then holder_out(h, h.x) end
    if not h.x and h.holders + h.offers > 0 then
      for _, id in ipairs(call('ZRANGEBYSCORE', sub(h, 'u'), '-inf', now)) do
        local x = sharer(h, id)
        if x then
          holder_out(h, x)
        else
          local w = waiter(h, id)
          if not w or w.state ~= OFFERED then error('CORRUPT') end
          no_offer(h, id)
          w.state, w.first = ASLEEP, 0
          keep_waiter(h, w)
        end
      end
    end
    if h.waiters > 0 then look_after(h) end
    -- Behind one exclusive holder or offer nobody fits, whoever is first; to look who is can wait until it ends.
    if h.mode ~= 0 or h.holders + h.offers == 0 then pass_on(h) end
  end

  local function recheck(h)
    local at = h.x and h.x.till or 0
    if not h.x and h.holders + h.offers > 0 then
      at = tonumber(call('ZRANGE', sub(h, 'u'), 0, 0, 'WITHSCORES')[2])
    end
    return at
  end

  local function answer(h, status, slot, block, a, b, c)
    return pack(ANSWER, status, h.waiters > 0 and 1 or 0, slot, block, a, b, c)
  end
  local function answer_plain(h, status) return answer(h, status, 0, 0, 0, 0, 0) end
  local function answer_holder(h, x)
    return answer(h, OK, h.mode == 2 and x.slot or 0, x.block, x.first, x.till, 0)
  end
  local function answer_later(h, status, ticket)
    return answer(h, status, 0, 0, last_drawn(h.bucket), recheck(h), ticket)
  end

  -- Whose turn it is becomes a holder; w: it was a waiter.  nil: the epoch is used up, and nothing is changed.
  local function grant(h, o, w)
    local x = {id = o[6], broken = 0, granted = 0, first = 0, block = 0, till = now + o[8], ttl = o[8], since = now,
      session = session, owner = w and w.owner or o[13]}
    local mode, slots = w and w.mode or o[4], w and w.slots or o[9]
    if w and w.state == OFFERED and counts(h.bucket, w.first) then x.first, x.block = w.first, 1 end
    if mode == 0 and (x.first == 0 or o[10] > 1) then
      x.first, x.block = draw(h.bucket, o[10], now)
      if not x.first then return nil end
    end
    x.granted = x.first
    if w then waiter_out(h, w) end
    if h.holders + h.offers == 0 then h.mode, h.slots = mode, slots end
    h.holders = h.holders + 1
    if mode == 0 then
      h.x = x
      return x
    end
    x.slot = 0
    if mode == 2 then
      x.slot = call('BITPOS', sub(h, 's'), 0)
      call('SETBIT', sub(h, 's'), x.slot, 1)
      grows(h, 's')
    end
    keep_sharer(h, x)
    sharer_ends(h, x)
    grows(h, 'h')
    return x
  end

  local function acquire_new(h, o)
    if h.holders > 0 and h.mode == 2 and o[4] == 2 and h.slots ~= o[9] then return answer_plain(h, INVALID) end
    if not h.front and fits(h, o[4], o[9]) then
      local x = grant(h, o)
      return x and answer_holder(h, x)
    end
    if o[11] % 2 == 0 then return answer_later(h, HELD, 0) end
    h.tickets = h.tickets + 1
    local w = {id = o[6], mode = o[4], slots = o[9], ttl = o[8], ticket = h.tickets, till = 0, first = 0, since = now,
      session = session, owner = o[13]}
    if h.waiters == 0 then
      grows(h, 'w')
      grows(h, 'a')
    end
    h.waiters = h.waiters + 1
    stand(h, w)
    keep_waiter(h, w)
    seen(h, w.id)
    return answer_later(h, QUEUED, w.ticket)
  end

  -- It has a place in the queue, and asks again: that wakes it.
  local function acquire_queued(h, o, w)
    local turn = w.state == OFFERED
    if w.state == ASLEEP then turn = not (h.front and h.front < w.ticket) and fits(h, w.mode, w.slots) end
    if turn then
      local x = grant(h, o, w)
      return x and answer_holder(h, x)
    end
    local taken = o[11] >= HEARD and w.session ~= session -- who asked last is told of its offer, if it can be
    if w.state == ASLEEP or taken then
      if w.state == ASLEEP then stand(h, w) end
      if taken then w.session = session end
      keep_waiter(h, w)
    end
    seen(h, w.id)
    return answer_later(h, QUEUED, w.ticket)
  end

  local function acquire(h, o)
    local x = holder(h, o[6])
    if not x then
      local w = waiter(h, o[6])
      if w then return acquire_queued(h, o, w) end
      return acquire_new(h, o)
    end
    if x.session ~= session then
      x.session = session
      keep_holder(h, x)
    end
    if x.broken ~= 0 then return answer_plain(h, LOST) end
    return answer_holder(h, x)
  end

  -- Who is offered an exclusive name, under the fence of the offer, becomes its holder until the offer's end.
  local function hold_offered(h, w)
    waiter_out(h, w)
    h.mode, h.slots, h.holders = 0, 0, 1
    h.x = {id = w.id, broken = 0, granted = w.first, first = w.first, block = 1, till = w.till, ttl = w.ttl,
      since = now, session = w.session, owner = w.owner}
  end
  local function offers_fence(h, w)
    return w and h.holders == 0 and w.state == OFFERED and w.mode == 0 and counts(h.bucket, w.first)
  end

  -- The holder with that id and a fence of its grant.
  local function find_grant(h, o)
    if h.holders == 0 and h.offers == 1 then
      local w = waiter(h, o[6])
      if offers_fence(h, w) and w.first == o[7] then hold_offered(h, w) end
    end
    local x = holder(h, o[6])
    if not x then return nil end
    if h.mode ~= 0 then return o[7] == 0 and x or nil end
    return o[7] >= x.granted and o[7] < x.first + x.block and x or nil
  end

  local function renew(h, o)
    local x = find_grant(h, o)
    if not x or x.broken ~= 0 then return answer_plain(h, LOST) end
    if h.mode == 0 and o[10] > 0 then
      local first, block = draw(h.bucket, o[10], now)
      if not first then return nil end
      x.first, x.block = first, block
    end
    x.session, x.ttl, x.till = session, o[8], now + o[8]
    keep_holder(h, x)
    return answer_holder(h, x)
  end

  local function release(h, o)
    local x = find_grant(h, o)
    if not x then return answer_plain(h, LOST) end
    holder_out(h, x)
    pass_on(h)
    return answer_plain(h, OK)
  end

  local function cancel(h, o)
    local x, was = holder(h, o[6]), 3
    if x then
      holder_out(h, x)
    else
      local w = waiter(h, o[6])
      if not w then return answer_plain(h, NOT_FOUND) end
      was = w.state == OFFERED and 2 or 1
      waiter_out(h, w)
    end
    pass_on(h) -- also after a waiter: it may have stood before others who fit
    return answer(h, OK, was, 0, 0, 0, 0)
  end

  local function breaks(h, o, each, at_once)
    local fresh, last, first, ids = at_once, now, 0, {}
    for i, x in ipairs(each) do
      if x.till > last then last = x.till end
      if x.broken == 0 then
        fresh = true
        tell(x.session, x.id, string.rep('\255', 8))
      end
      first, ids[i], x.broken = x.first, x.id, 1
      if at_once then holder_out(h, x) elseif not h.x then keep_sharer(h, x) end
    end
    if fresh then
      local key = sub(h, 'b')
      call('RPUSH', key, pack('<ddBBc0', now, first, h.mode, #o[13], o[13]))
      call('LTRIM', key, -BREAKS, -1)
      call('PEXPIRE', key, BREAK_MS)
    end
    return at_once and now or last
  end

  local function break_all(h, o)
    -- Who is offered an exclusive name may have begun: it is broken like a holder.
    if h.holders == 0 and h.offers == 1 then
      local w = waiter(h, call('ZRANGE', sub(h, 'u'), 0, 0)[1] or '')
      if offers_fence(h, w) then hold_offered(h, w) end
    end
    if h.holders == 0 then return answer_plain(h, NOT_FOUND) end
    local each, at_once = {h.x}, o[11] == 2
    if not h.x then
      local all = call('HKEYS', sub(h, 'h'))
      for i, id in ipairs(all) do each[i] = sharer(h, id) end
    end
    local last = breaks(h, o, each, at_once)
    pass_on(h)
    return answer(h, OK, 0, 0, 0, last, 0)
  end

  local verbs = {[0] = acquire, renew, release, cancel, break_all}
  return function(o)
    local h = load(o)
    settle(h)
    local said = verbs[o[1]](h, o)
    store(h)
    return said -- nil: the epoch is used up
  end
end

-- ---- A call ----

local OK, HELD, LOST, NOT_FOUND, DENIED, CORRUPT, MOVED = 0, 1, 3, 8, 10, 15, 101
local ACQUIRE, RENEW, RELEASE, CANCEL, READ = 0, 1, 2, 3, 16
local SLACK_MS = 50
-- An operation: verb, bucket, life, mode, epoch, id, fence, ttl, slots, block, flags, name, owner.
local OPERATION = '<BBBBI4c16dI4HHBBc0Bc0'
local ANSWER = '<BBHHddd'
local HOLDER = '<BBc16ddHdI4dc8Bc0'
local HOLDER_HEAD = '<BBc16ddHd'

local call, pack, cut, byte = redis.call, struct.pack, struct.unpack, string.byte
if not redis.REDIS_VERSION_NUM then redis.replicate_commands() end -- before 7: effects, not the script, are replicated
local info = call('INFO', 'replication')
if not string.find(info, 'role:master', 1, true) then
  return redis.error_reply('DIBS this server is a replica, not the master any more')
end
-- master_replid2 is another one.
local life = ARGV[3]
if not life or not string.find(info, 'master_replid:' .. life, 1, true) then
  life = string.match(info, 'master_replid:(%x+)')
end
local clock = call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
local tier, session = byte(ARGV[1]) == 49, string.sub(ARGV[1], 2)

-- Everything that is looked at first is read in one go.
local ops, wanted, cache, gone = {}, {}, {}, {} -- gone: deleted at the end, all at once
local blob, at, n, count = ARGV[2], 1, #KEYS, 0
for i = 1, n do wanted[i] = KEYS[i] end
while at <= #blob do
  local o = {cut(OPERATION, blob, at)}
  at = o[14]
  count = count + 1
  ops[count] = o
  if o[1] < READ then
    local key = KEYS[o[2]] .. ':n:' .. o[12]
    o[14] = key
    if cache[key] == nil then
      n = n + 1
      wanted[n] = key
      cache[key] = false
    end
  end
end
local got = call('MGET', unpack(wanted))
for i = #KEYS + 1, n do cache[wanted[i]] = got[i] end

local buckets = {}
for i = 1, #KEYS do
  local v, b = got[i], {}
  if not v then
    b.last, b.epoch, b.bad = 0, 1, call('EXISTS', KEYS[i]) == 1
  elseif #v == 13 and byte(v) == 76 then
    b.last, b.epoch = cut('<dI4', v, 2)
  elseif #v == 49 and byte(v) == 83 then
    b.served = true
    b.epoch, b.seq, b.life = cut('<I4I4c40', v, 2)
  else
    b.bad = true
  end
  buckets[i] = b
end

local out, crowd, words = {}, nil, nil
local answers, lives = {}, {} -- made once: plain answers by status, and how long keys live by ttl, as text
for i = 1, count do
  local o = ops[i]
  local verb, b, key = o[1], buckets[o[2]], o[14]
  local status, slot, block, first, till = nil, 0, 0, 0, 0 -- status nil: not a simple case
  if b.bad then
    status, words = CORRUPT, words or 'no bucket of dibs'
  elseif verb >= READ then
    status, b = anchor(verb, b, o[5], ARGV[o[3] + 2], life)
    buckets[o[2]] = b
    slot, first = b.served and 1 or 0, b.epoch
  elseif b.served and not tier then
    status = DENIED
  elseif tier and not b.served then -- a tier is told what was installed
    status = MOVED
  elseif o[5] ~= b.epoch or ARGV[o[3] + 2] ~= life or (tier and b.life ~= life) then
    status, first = MOVED, b.epoch
  else
    -- A name that is free, or has one exclusive holder and no line: most of what is asked.
    local v = cache[key]
    if not v then
      if verb == ACQUIRE and o[4] == 0 then
        first, block = draw(b, o[10], now)
        if first then
          till = now + o[8]
          v = pack(HOLDER, 88, 0, o[6], first, first, block, till, o[8], now, session, #o[13], o[13])
          -- MGET saw no text there; then there must be nothing.
          local lives_ms = lives[o[8]]
          if not lives_ms then
            lives_ms = string.format('%d', o[8] + SLACK_MS)
            lives[o[8]] = lives_ms
          end
          local done = gone[key] and redis.pcall('SET', key, v, 'PX', lives_ms) or
            redis.pcall('SET', key, v, 'PX', lives_ms, 'NX')
          if done and done.ok then
            status, cache[key], gone[key] = OK, v, nil
          else
            words = words or done and done.err or 'CORRUPT'
            status = excuse(done and done.err or '')
          end
        end
      elseif verb ~= ACQUIRE then
        status = (verb == RENEW or verb == RELEASE) and LOST or NOT_FOUND
      end
    elseif byte(v) == 88 and #v >= 65 and verb <= CANCEL then
      local _, broken, id, granted, held, length, ends, rest = cut(HOLDER_HEAD, v)
      local ours = ends > now and id == o[6]
      if verb == ACQUIRE then
        if ends > now and not ours and o[11] % 2 == 0 then status, first, till = HELD, last_drawn(b), ends end
      elseif verb == CANCEL then
        status = NOT_FOUND
        if ours then status, slot, gone[key], cache[key] = OK, 3, true, false end
      elseif not ours or o[7] < granted or o[7] >= held + length then
        status = LOST
      elseif verb == RELEASE then
        status, gone[key], cache[key] = OK, true, false
      elseif broken ~= 0 then
        status = LOST
      else
        first, block = held, length
        if o[10] > 0 then first, block = draw(b, o[10], now) end
        if first then
          local _, since, _, owner = cut('<I4dc8Bc0', v, rest)
          till = now + o[8]
          v = pack(HOLDER, 88, 0, id, granted, first, block, till, o[8], since, session, #owner, owner)
          local lives_ms = lives[o[8]]
          if not lives_ms then
            lives_ms = string.format('%d', o[8] + SLACK_MS)
            lives[o[8]] = lives_ms
          end
          local done = redis.pcall('SET', key, v, 'PX', lives_ms)
          if done.ok then
            status, cache[key] = OK, v
          else
            words = words or done.err
            status = excuse(done.err)
          end
        end
      end
    end
    if not first then
      status, first, block = MOVED, b.epoch, 0
    elseif not status then
      crowd = crowd or make_crowd(now, session, cache, gone, buckets)
      local fine, said = pcall(crowd, o)
      if not fine then
        local e = type(said) == 'table' and said.err or tostring(said)
        words = words or e
        status = excuse(e)
      elseif said then
        out[i] = said
      else
        status, first = MOVED, b.epoch
      end
    end
  end
  if status and verb < READ and (verb == RELEASE or status ~= OK) and status ~= HELD and status ~= MOVED then
    local said = answers[status]
    if not said then
      said = pack(ANSWER, status, 0, 0, 0, 0, 0, 0)
      answers[status] = said
    end
    out[i] = said
  elseif status then
    out[i] = pack(ANSWER, status, 0, slot, block, first, till, 0)
  end
end

local free, kept = {}, {}
for key in pairs(gone) do free[#free + 1] = key end
if free[1] then call('DEL', unpack(free)) end
for i, b in pairs(buckets) do
  if b.dirty then
    kept[#kept + 1] = KEYS[i]
    kept[#kept + 1] = b.served and 'S' .. pack('<I4I4c40', b.epoch, b.seq, b.life) or 'L' .. pack('<dI4', b.last, b.epoch)
  end
end
if kept[1] then call('MSET', unpack(kept)) end
local said = life .. pack('<d', now) .. table.concat(out)
if words then return {said, words} end
return said
