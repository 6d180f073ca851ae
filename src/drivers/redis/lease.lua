-- SPDX-License-Identifier: MIT
-- Leases and mandates: many operations of a batch, in their order, as one atomic step of the server.
--
--   KEYS     the buckets, dibs:{17}, and then the names' keys; of a node of a cluster the first bucket alone
--   ARGV     a digit: 1 for a tier, plus 2 for a node of a cluster, plus 4 if WAIT follows; our session, 8 bytes; the
--            number of incarnations, a byte; and a byte for each bucket: 0, or of a node how many keys follow.  The
--            operations, as run.c packs them.  The incarnations that they name, as 40 hexadecimal digits each.  Of a
--            node the keys: of each bucket itself, its names, and dibs:{17}:-
--   answers  our incarnation, the clock in ms (a double), 30 bytes an operation; and a message of an error, if any
--
-- The keys (numbers are little-endian, fences and instants doubles, exact below 2^53):
--   dibs:{17}          'L' last fence, epoch: a store of its own.  'S' epoch, seq, incarnation: served for an
--                      anchor; 'T' the same, and the bucket moves to another tier: a name without holders is not
--                      granted
--   dibs:{17}:n:NAME   'X' one exclusive holder and nothing else, expires with its ttl; or 'Q' a head of the following
--                      keys, and the exclusive holder if there is one
--   dibs:{17}:h:NAME   hash, id -> a shared or counted holder
--   dibs:{17}:u:NAME   sorted set, id -> expiry of these holders, and of offers
--   dibs:{17}:s:NAME   bitmap of taken slots
--   dibs:{17}:w:NAME   hash, id -> a waiter: waiting, asleep or offered
--   dibs:{17}:q:NAME   sorted set, id -> ticket of the waiters that are awake
--   dibs:{17}:a:NAME   sorted set, id -> when a waiter, or its process, was last seen
--   dibs:{17}:b:NAME   list of recorded breaks, kept for a while
--   dibs:{17}:-        never exists: see below
-- All but the last two are deleted with the last holder or waiter, or expire, without requests, at `keep` of the head.
--
-- The buckets of a node of a cluster have slots of their own: no command has keys of two of them.  While the slot of a
-- bucket is moved to another node, some of its keys are here and some are there, and a command with one key would find a
-- holder, or not.  A command with several keys, one of which does not exist, is refused on both nodes until the move is
-- complete, and nothing has been done before.  If the first bucket is refused, the call is.  The operations of another
-- bucket that is refused, or that this server does not let a script reach beside the first, are answered REDIRECTED.

-- Closures are slow: the functions made in each call come before all locals, and capture next to none of them.

-- The first of `want` fences, and how many are granted; nil: the epoch has too few left.  Without an anchor a bucket's
-- fences never run ahead of the clock, so that they grow even if `last` is lost: a larger block is cut for that.
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
    local most = (now + 1) * 1024 - first
    if want > most then want = most > 1 and most or 1 end
    b.last = first + want - 1
  end
  b.dirty = true
  return first, want
end

local function last_drawn(b)
  return b.served and b.epoch * 4294967296 + b.seq or b.last
end

-- The status of an error: UNAVAILABLE, DENIED, CORRUPT.
local function status_of_error(e)
  for word in string.gmatch('OOM MISCONF NOREPLICAS READONLY', '%u+') do
    if string.find(e, word, 1, true) then return 13 end
  end
  if string.find(e, 'NOPERM', 1, true) or string.find(e, 'ermission', 1, true) then return 10 end
  return 15
end

-- A verb of the anchor on a bucket's mandate: a status, and the bucket's new state.  A Redis makes no epochs for other
-- stores: NEXT answers CONFLICT.
local function anchor(verb, b, epoch, asked, incarnation, above)
  local OK, CONFLICT, INVALID, UNAVAILABLE = 0, 5, 9, 13
  local SEQ_MAX, EPOCH, EPOCH_MAX = 4294967295, 4294967296, 2097151
  if verb == 16 then return OK, b end -- READ
  if verb == 17 then return CONFLICT, b end -- NEXT
  if verb == 18 then -- INSTALL
    if epoch > EPOCH_MAX then return INVALID, b end
    -- Above the grants without a mandate, too: otherwise fences would decrease.
    if asked ~= incarnation or epoch <= b.epoch or epoch * EPOCH <= last_drawn(b) then return CONFLICT, b end
    return OK, {key = b.key, served = true, epoch = epoch, seq = 0, incarnation = incarnation, dirty = true}
  end
  if verb == 21 then -- LEAVE
    if not b.served or b.incarnation ~= incarnation then return CONFLICT, b end
    if asked ~= incarnation or epoch ~= b.epoch then return CONFLICT, b end
    b.left, b.dirty = true, true
    return OK, b
  end
  if verb == 22 then return CONFLICT, b end -- OPEN: a Redis is no anchor
  local raises = verb == 20 -- RAISE; else ALONE
  if raises and b.served then return CONFLICT, b end
  if not raises and not b.served and b.last >= above then return OK, b end
  local top = b.served and b.epoch or math.max(b.epoch, math.floor(b.last / EPOCH))
  top = math.max(top, math.floor(above / EPOCH))
  if top >= EPOCH_MAX then return UNAVAILABLE, b end
  return OK, {key = b.key, last = top * EPOCH + SEQ_MAX, epoch = top + 1, dirty = true}
end

-- Names with a queue or several holders, and breaking.
local function make_queued(now, session, keys, values, gone, buckets, suffix, copied)
  local call, pack, cut = redis.call, struct.pack, struct.unpack
  local OFFER_MS, EPOCH = 500, 4294967296 -- DIBS__OFFER_MS
  local SLACK_MS = 50      -- a key outlives its content: `till` decides, not the expiry
  local ORPHAN_MS = 600000 -- waiters whose processes are all gone, in a name without requests
  local SPARE_MS = 30000   -- so that a renewal rarely moves the expiry of all keys
  local SILENT_MS = 10000  -- a waiter without a request for so long: is its process alive?
  local BREAK_MS, BREAKS = 86400000, 16
  local OK, HELD, LOST, NOT_FOUND, INVALID, QUEUED = 0, 1, 3, 8, 9, 100
  local SUBSCRIBED = 4 -- flags: 1 queue, 2 at once, 4 our subscription is open
  local ANSWER = '<BBHHddd'                 -- status, has waiters, slot or was, block; see run.c
  local HOLDER = '<BBc16ddHdI4dc8Bc0'       -- kind, broken, id, granted, first, block, till, ttl, since, session, owner
  local WAITING, ASLEEP, OFFERED = 0, 1, 2
  local HEAD = '<BBHI4I4I4dd'            -- kind, mode, slots, holders, offers, waiters, tickets, keep
  local SHARER = '<BHdI4dc8Bc0'          -- broken, slot, till, ttl, since, session, owner
  local WAITER = '<BBHI4ddddc8Bc0'       -- state, mode, slots, ttl, ticket, till, first, since, session, owner
  local channel_prefix, live_sessions = string.match(KEYS[1], '^(.*):{%d+}$') .. ':s:', {}

  local function channel(s)
    return channel_prefix .. string.format(string.rep('%02x', 8), string.byte(s, 1, 8)) .. suffix
  end
  -- A session with a subscriber is alive.  Patterns do not count: a monitor that listens to everything is no session.
  local function alive(s)
    if live_sessions[s] == nil then live_sessions[s] = tonumber(call('PUBSUB', 'NUMSUB', channel(s))[2]) > 0 end
    return live_sessions[s]
  end
  local function publish_event(s, id, fence) call('PUBLISH', channel(s), id .. fence) end
  local function key_of(h, letter) return h.bucket.key .. ':' .. letter .. h.tail end
  -- A key that may be new expires with the others.
  local function key_is_new(h, letter) h.new[letter] = true end

  -- A fence that was drawn for an offer under an earlier mandate is no longer valid: another tier may have granted
  -- larger ones since.
  local function fence_is_valid(b, first)
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

  local function load_head(o)
    local b, k = buckets[o[2]], o[12]
    local h = {k = k, key = keys[k], tail = string.sub(keys[k], #b.key + 3), bucket = b, new = {},
      mode = 0, slots = 0, holders = 0, offers = 0, waiters = 0, tickets = 0, keep = 0, need = 0}
    local v = values[k]
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

  local function store_head(h)
    local k, key, value = h.k, h.key
    if h.holders == 0 and h.waiters == 0 then
      if values[k] then gone[k], values[k] = true, false end
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
    if not values[k] and not gone[k] then
      -- MGET found no string; then the key must not exist.
      if not call('SET', key, value, 'PX', h.keep - now + SLACK_MS, 'NX') then error('CORRUPT') end
    elseif values[k] ~= value or h.again then
      call('SET', key, value, 'PX', h.keep - now + SLACK_MS)
    end
    values[k], gone[k] = value, nil
    for letter in pairs(h.new) do call('PEXPIREAT', key_of(h, letter), h.keep + SLACK_MS) end
  end

  local function find_waiter(h, id)
    local v, w = h.waiters > 0 and call('HGET', key_of(h, 'w'), id), {id = id}
    if not v then return nil end
    w.state, w.mode, w.slots, w.ttl, w.ticket, w.till, w.first, w.since, w.session, w.owner = cut(WAITER, v)
    return w
  end
  local function write_waiter(h, w)
    call('HSET', key_of(h, 'w'), w.id, pack(WAITER, w.state, w.mode, w.slots, w.ttl, w.ticket, w.till, w.first, w.since,
      w.session, #w.owner, w.owner))
  end
  local function touch_waiter(h, id) call('ZADD', key_of(h, 'a'), now, id) end
  local function wait_awake(h, w)
    w.state = WAITING
    call('ZADD', key_of(h, 'q'), w.ticket, w.id)
    key_is_new(h, 'q')
    if not h.front or w.ticket < h.front then h.front = w.ticket end
  end
  local function remove_offer(h, id)
    call('ZREM', key_of(h, 'u'), id)
    h.offers = h.offers - 1
  end
  local function remove_waiter(h, w)
    call('HDEL', key_of(h, 'w'), w.id)
    call('ZREM', key_of(h, 'a'), w.id)
    if w.state == OFFERED then remove_offer(h, w.id) end
    if w.state == WAITING then call('ZREM', key_of(h, 'q'), w.id) end
    h.waiters = h.waiters - 1
    if h.waiters == 0 then h.tickets = 0 end
  end

  local function find_sharer(h, id)
    local v = h.holders > 0 and not h.x and call('HGET', key_of(h, 'h'), id)
    local x = {id = id, granted = 0, first = 0, block = 0}
    if not v then return nil end
    x.broken, x.slot, x.till, x.ttl, x.since, x.session, x.owner = cut(SHARER, v)
    return x
  end
  local function write_sharer(h, x)
    call('HSET', key_of(h, 'h'), x.id, pack(SHARER, x.broken, x.slot, x.till, x.ttl, x.since, x.session, #x.owner,
      x.owner))
    h.need = math.max(h.need, x.till)
  end
  local function write_expiry(h, x)
    call('ZADD', key_of(h, 'u'), x.till, x.id)
    key_is_new(h, 'u')
  end
  local function find_holder(h, id)
    if h.x then return h.x.id == id and h.x or nil end
    return find_sharer(h, id)
  end
  local function write_holder(h, x)
    if h.x then return end
    write_sharer(h, x)
    write_expiry(h, x)
  end
  local function remove_holder(h, x)
    h.holders = h.holders - 1
    if h.x then
      h.x = nil
      return
    end
    call('HDEL', key_of(h, 'h'), x.id)
    call('ZREM', key_of(h, 'u'), x.id)
    if h.mode == 2 then call('SETBIT', key_of(h, 's'), x.slot, 0) end
    if h.mode == 2 and h.holders == 0 then call('DEL', key_of(h, 's')) end
  end

  local function fits(h, mode, slots)
    local there = h.holders + h.offers
    if there == 0 then return true end
    if mode == 0 or mode ~= h.mode then return false end
    return mode == 1 or (slots == h.slots and there < slots)
  end

  -- With its fence, so that its owner may begin at once; the last one of an epoch has none.
  local function offer(h, w)
    local first = w.mode == 0 and draw(h.bucket, 1, now) or 0
    call('ZREM', key_of(h, 'q'), w.id)
    w.state, w.first, w.till = OFFERED, first, now + OFFER_MS
    write_waiter(h, w)
    write_expiry(h, w)
    if h.holders + h.offers == 0 then h.mode, h.slots = w.mode, w.slots end
    h.offers = h.offers + 1
    publish_event(w.session, w.id, pack('>I8', first))
  end

  -- After this the first waiter, if there is one, is alive and does not fit; h.front is its ticket.
  local function pass_on(h)
    h.front = nil
    if h.bucket.left then return end
    while h.waiters > 0 do
      local first = call('ZRANGE', key_of(h, 'q'), 0, 0)[1]
      if not first then return end
      local w = find_waiter(h, first)
      if not w or w.state ~= WAITING then error('CORRUPT') end
      if not alive(w.session) then
        remove_waiter(h, w)
      elseif fits(h, w.mode, w.slots) then
        offer(h, w)
      else
        h.front = w.ticket
        return
      end
    end
  end

  -- Checks the waiter without a request for longest: if its process is gone, it is removed, at any position.
  local function check_oldest_waiter(h)
    local oldest = call('ZRANGE', key_of(h, 'a'), 0, 0, 'WITHSCORES')
    if not oldest[1] or tonumber(oldest[2]) > now - SILENT_MS then return end
    local w = find_waiter(h, oldest[1])
    if not w then error('CORRUPT') end
    if alive(w.session) then touch_waiter(h, w.id) else remove_waiter(h, w) end
  end

  local function settle(h)
    if h.x and h.x.till <= now then remove_holder(h, h.x) end
    if not h.x and h.holders + h.offers > 0 then
      for _, id in ipairs(call('ZRANGEBYSCORE', key_of(h, 'u'), '-inf', now)) do
        local x = find_sharer(h, id)
        if x then
          remove_holder(h, x)
        else
          local w = find_waiter(h, id)
          if not w or w.state ~= OFFERED then error('CORRUPT') end
          remove_offer(h, id)
          w.state, w.first = ASLEEP, 0
          write_waiter(h, w)
        end
      end
    end
    if h.waiters > 0 then check_oldest_waiter(h) end
    -- No waiter fits beside an exclusive holder or offer; the first waiter is not read before that ends.
    if h.mode ~= 0 or h.holders + h.offers == 0 then pass_on(h) end
  end

  local function first_expiry(h)
    local at = h.x and h.x.till or 0
    if not h.x and h.holders + h.offers > 0 then
      at = tonumber(call('ZRANGE', key_of(h, 'u'), 0, 0, 'WITHSCORES')[2])
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
  local function answer_busy(h, status, ticket)
    return answer(h, status, 0, 0, last_drawn(h.bucket), first_expiry(h), ticket)
  end

  -- The next requester becomes a holder; w: it was a waiter.  nil: the epoch is used up, and nothing is changed.
  local function grant(h, o, w)
    local x = {id = o[6], broken = 0, granted = 0, first = 0, block = 0, till = now + o[8], ttl = o[8], since = now,
      session = session, owner = w and w.owner or o[13]}
    local mode, slots = w and w.mode or o[4], w and w.slots or o[9]
    if w and w.state == OFFERED and fence_is_valid(h.bucket, w.first) then x.first, x.block = w.first, 1 end
    if mode == 0 and (x.first == 0 or o[10] > 1) then
      x.first, x.block = draw(h.bucket, o[10], now)
      if not x.first then return nil end
    end
    x.granted = x.first
    if w then remove_waiter(h, w) end
    if h.holders + h.offers == 0 then h.mode, h.slots = mode, slots end
    h.holders = h.holders + 1
    if mode == 0 then
      h.x = x
      return x
    end
    x.slot = 0
    if mode == 2 then
      x.slot = call('BITPOS', key_of(h, 's'), 0)
      call('SETBIT', key_of(h, 's'), x.slot, 1)
      key_is_new(h, 's')
    end
    write_sharer(h, x)
    write_expiry(h, x)
    key_is_new(h, 'h')
    return x
  end

  local function acquire_new(h, o)
    if h.holders > 0 and h.mode == 2 and o[4] == 2 and h.slots ~= o[9] then return answer_plain(h, INVALID) end
    -- The bucket is left: a name without holders and offers is not granted, and stays free.
    local left = h.bucket.left
    if left and h.holders + h.offers == 0 then return nil end
    if not h.front and fits(h, o[4], o[9]) and (not left or h.holders > 0) then
      local x = grant(h, o)
      return x and answer_holder(h, x)
    end
    if left or o[11] % 2 == 0 then return answer_busy(h, HELD, 0) end
    h.tickets = h.tickets + 1
    local w = {id = o[6], mode = o[4], slots = o[9], ttl = o[8], ticket = h.tickets, till = 0, first = 0, since = now,
      session = session, owner = o[13]}
    if h.waiters == 0 then
      key_is_new(h, 'w')
      key_is_new(h, 'a')
    end
    h.waiters = h.waiters + 1
    wait_awake(h, w)
    write_waiter(h, w)
    touch_waiter(h, w.id)
    return answer_busy(h, QUEUED, w.ticket)
  end

  -- It is in the queue, and requests again: that wakes it.
  local function acquire_queued(h, o, w)
    local is_next = w.state == OFFERED
    if w.state == ASLEEP then is_next = not (h.front and h.front < w.ticket) and fits(h, w.mode, w.slots) end
    if is_next then
      local x = grant(h, o, w)
      return x and answer_holder(h, x)
    end
    local taken = o[11] >= SUBSCRIBED and w.session ~= session -- the latest requester gets the offer, if subscribed
    if w.state == ASLEEP or taken then
      if w.state == ASLEEP then wait_awake(h, w) end
      if taken then w.session = session end
      write_waiter(h, w)
    end
    touch_waiter(h, w.id)
    return answer_busy(h, QUEUED, w.ticket)
  end

  local function acquire(h, o)
    local x = find_holder(h, o[6])
    if not x then
      local w = find_waiter(h, o[6])
      if w and (w.state == OFFERED or not h.bucket.left) then return acquire_queued(h, o, w) end
      if w then remove_waiter(h, w) end
      return acquire_new(h, o)
    end
    -- An earlier request was granted, maybe on another connection.  WAIT counts the replicas that have what its own
    -- connection has written, so the grant is written again.
    if x.session ~= session or copied then
      x.session, h.again = session, copied
      write_holder(h, x)
    end
    if x.broken ~= 0 then return answer_plain(h, LOST) end
    return answer_holder(h, x)
  end

  -- An exclusive offer, with its fence, becomes a holder until the offer's end.
  local function hold_offered(h, w)
    remove_waiter(h, w)
    h.mode, h.slots, h.holders = 0, 0, 1
    h.x = {id = w.id, broken = 0, granted = w.first, first = w.first, block = 1, till = w.till, ttl = w.ttl,
      since = now, session = w.session, owner = w.owner}
  end
  local function offers_fence(h, w)
    return w and h.holders == 0 and w.state == OFFERED and w.mode == 0 and fence_is_valid(h.bucket, w.first)
  end

  -- The holder with that id and a fence of its grant; R39: for a renewal with fence 0, with that id.
  local function find_grant(h, o)
    if h.holders == 0 and h.offers == 1 then
      local w = find_waiter(h, o[6])
      if offers_fence(h, w) and w.first == o[7] then hold_offered(h, w) end
    end
    local x = find_holder(h, o[6])
    if not x then return nil end
    if h.mode ~= 0 then return o[7] == 0 and x or nil end
    if o[1] == 1 and o[7] == 0 then return x end -- 1: RENEW
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
    write_holder(h, x)
    return answer_holder(h, x)
  end

  local function release(h, o)
    local x = find_grant(h, o)
    if not x then return answer_plain(h, LOST) end
    remove_holder(h, x)
    pass_on(h)
    return answer_plain(h, OK)
  end

  local function cancel(h, o)
    local x, was = find_holder(h, o[6]), 3
    local of_queue = o[11] % 2 == 1 -- R84
    if x and of_queue then return answer_plain(h, NOT_FOUND) end
    if x then
      remove_holder(h, x)
    else
      local w = find_waiter(h, o[6])
      if not w or (of_queue and w.session ~= session) then return answer_plain(h, NOT_FOUND) end
      was = w.state == OFFERED and 2 or 1
      remove_waiter(h, w)
    end
    pass_on(h) -- also after a waiter: it may have been in front of others that fit
    return answer(h, OK, was, 0, 0, 0, 0)
  end

  local function break_holders(h, o, each, at_once)
    local fresh, last, first, ids, from = at_once, now, 0, {}, ''
    for i, x in ipairs(each) do
      if x.till > last then last = x.till end
      if x.broken == 0 then
        fresh = true
        publish_event(x.session, x.id, string.rep('\255', 8))
      end
      first, ids[i], x.broken = x.first, x.id, 1
      if from == '' or x.owner < from then from = x.owner end
      if at_once then remove_holder(h, x) elseif not h.x then write_sharer(h, x) end
    end
    if fresh then
      local key = key_of(h, 'b')
      local owner = o[13] .. '\31' .. from -- in the form of dibs__break_owner()
      call('RPUSH', key, pack('<ddBBc0', now, first, h.mode, #owner, owner))
      call('LTRIM', key, -BREAKS, -1)
      call('PEXPIRE', key, BREAK_MS)
    end
    return at_once and now or last
  end

  local function break_all(h, o)
    -- The owner of an exclusive offer may have begun: it is broken like a holder.
    if h.holders == 0 and h.offers == 1 then
      local w = find_waiter(h, call('ZRANGE', key_of(h, 'u'), 0, 0)[1] or '')
      if offers_fence(h, w) then hold_offered(h, w) end
    end
    if h.holders == 0 then return answer_plain(h, NOT_FOUND) end
    local each, at_once = {h.x}, o[11] == 2
    if not h.x then
      local all = call('HKEYS', key_of(h, 'h'))
      for i, id in ipairs(all) do each[i] = find_sharer(h, id) end
    end
    local last = break_holders(h, o, each, at_once)
    pass_on(h)
    return answer(h, OK, 0, 0, 0, last, 0)
  end

  local verbs = {[0] = acquire, renew, release, cancel, break_all}
  return function(o)
    local h = load_head(o)
    settle(h)
    local result = verbs[o[1]](h, o)
    store_head(h)
    return result -- nil: the epoch is used up
  end
end

-- ---- A call ----

local OK, HELD, LOST, NOT_FOUND, DENIED, CORRUPT, MOVED = 0, 1, 3, 8, 10, 15, 101
local REDIRECTED = 120 -- never leaves the driver
local ACQUIRE, RENEW, RELEASE, CANCEL, READ = 0, 1, 2, 3, 16
local SLACK_MS = 50
-- An operation: verb, bucket, incarnation, mode, epoch, id, fence, ttl, slots, block, flags, key, owner.  The bucket and
-- the incarnation are numbers from 1 on; so is the key, of all keys.
local OPERATION = '<BBBBI4c16dI4HHBHBc0'
local ANSWER = '<BBHHddd'
local HOLDER = '<BBc16ddHdI4dc8Bc0'
local HOLDER_HEAD = '<BBc16ddHd'

local call, pcall_command, pack, cut, byte = redis.call, redis.pcall, struct.pack, struct.unpack, string.byte
if not redis.REDIS_VERSION_NUM then redis.replicate_commands() end -- before 7: effects, not the script, are replicated
local info = call('INFO', 'replication')
if not string.find(info, 'role:master', 1, true) then
  return redis.error_reply('DIBS this server is a replica, not the master any more')
end
-- The colon excludes master_replid2.
local incarnation = ARGV[3]
if not incarnation or not string.find(info, 'master_replid:' .. incarnation, 1, true) then
  incarnation = string.match(info, 'master_replid:(%x+)')
end
local clock = call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
local kind, incarnations, bucket_count = byte(ARGV[1]) - 48, byte(ARGV[1], 10), #ARGV[1] - 10
local session = string.sub(ARGV[1], 2, 9)
local tier, clustered, copied = kind % 2 == 1, kind % 4 >= 2, kind >= 4

-- One command reads all that the first step needs; of a node, one for each bucket.
local keys, values, buckets = KEYS, nil, {}

local function why_refused(e)
  -- Newer servers: 'undeclared keys were accessed during rehashing of the slot'.
  local moves = clustered and (string.find(e, 'cluster', 1, true) or string.find(e, 'TRYAGAIN', 1, true) or
    string.find(e, 'rehashing of the slot', 1, true))
  return redis.error_reply(moves and 'TRYAGAIN ' .. KEYS[1] .. ' is being moved' or e)
end

-- The state of a bucket by its value.  The tables are made with all their fields, because tables that grow are slow.
local function bucket_from(key, v)
  if not v then
    return {key = key, last = 0, epoch = 1, served = false, dirty = false, bad = call('EXISTS', key) == 1}
  elseif #v == 13 and byte(v) == 76 then
    local last, epoch = cut('<dI4', v, 2)
    return {key = key, last = last, epoch = epoch, served = false, dirty = false, bad = false}
  elseif #v == 49 and (byte(v) == 83 or byte(v) == 84) then
    local epoch, seq, installed = cut('<I4I4c40', v, 2)
    return {key = key, served = true, left = byte(v) == 84, epoch = epoch, seq = seq, incarnation = installed}
  end
  return {key = key, bad = true}
end

if clustered then
  local first = incarnations + 3
  keys, values = ARGV, {}
  for i = 1, bucket_count do
    local last = first + byte(ARGV[1], 10 + i)
    local got = pcall_command('MGET', unpack(ARGV, first, last))
    if not got.err then
      buckets[i] = bucket_from(ARGV[first], got[1])
      for k = first + 1, last - 1 do values[k] = got[k - first + 1] end
    elseif i > 1 then
      buckets[i] = {key = ARGV[first], bad = true, elsewhere = true}
    else
      return why_refused(got.err)
    end
    first = last + 1
  end
else
  values = pcall_command('MGET', unpack(KEYS))
  if values.err then return why_refused(values.err) end
  for i = 1, bucket_count do buckets[i] = bucket_from(KEYS[i], values[i]) end
end

local out, gone, run_queued, message = {incarnation .. pack('<d', now)}, {}, nil, nil -- gone: deleted at the end
local wrote = false -- or may have
local answers, expiries = {}, {} -- made once: plain answers by status, and expiry times by ttl, as text
local blob, at, size = ARGV[2], 1, #ARGV[2]
while at <= size do
  local this = at
  local verb, nth, named, mode, epoch, id, fence, ttl, _, block_wanted, flags, k, owner
  verb, nth, named, mode, epoch, id, fence, ttl, _, block_wanted, flags, k, owner, at = cut(OPERATION, blob, at)
  local b = buckets[nth]
  local status, slot, block, first, till = nil, 0, 0, 0, 0 -- status nil: not a simple case
  if b.bad then
    status = b.elsewhere and REDIRECTED or CORRUPT
    message = message or not b.elsewhere and 'no bucket of dibs' or nil
  elseif verb >= READ then
    status, b = anchor(verb, b, epoch, ARGV[named + 2], incarnation, fence)
    buckets[nth], wrote = b, wrote or b.dirty
    slot, first = b.left and 2 or b.served and 1 or b.last > 0 and 3 or 0, b.epoch
  elseif b.served and not tier then
    status = DENIED
  elseif tier and not b.served then -- a tier needs an installed mandate
    status = MOVED
  elseif epoch ~= b.epoch or ARGV[named + 2] ~= incarnation or (tier and b.incarnation ~= incarnation) then
    status, first = MOVED, b.epoch
  else
    -- A name that is free, or has one exclusive holder and no queue: most of the requests.
    local key, v = keys[k], values[k]
    if not v then
      if verb == ACQUIRE and b.left then
        status, first = MOVED, b.epoch
      elseif verb == ACQUIRE and mode == 0 then
        first, block = draw(b, block_wanted, now)
        if first then
          till = now + ttl
          v = pack(HOLDER, 88, 0, id, first, first, block, till, ttl, now, session, #owner, owner)
          -- MGET found no string; then the key must not exist.
          local expiry_ms = expiries[ttl]
          if not expiry_ms then
            expiry_ms = string.format('%d', ttl + SLACK_MS)
            expiries[ttl] = expiry_ms
          end
          local done = gone[k] and pcall_command('SET', key, v, 'PX', expiry_ms) or
            pcall_command('SET', key, v, 'PX', expiry_ms, 'NX')
          if done and done.ok then
            status, values[k], gone[k], wrote = OK, v, nil, true
          else
            message = message or done and done.err or 'CORRUPT'
            status = status_of_error(done and done.err or '')
          end
        end
      elseif verb ~= ACQUIRE then
        status = (verb == RENEW or verb == RELEASE) and LOST or NOT_FOUND
      end
    elseif byte(v) == 88 and #v >= 65 and verb <= CANCEL then
      local _, broken, holder, granted, held, length, ends, rest = cut(HOLDER_HEAD, v)
      local ours = ends > now and id == holder
      if verb == ACQUIRE then
        if ends > now and not ours and flags % 2 == 0 then status, first, till = HELD, last_drawn(b), ends end
      elseif verb == CANCEL then
        status = NOT_FOUND
        if ours and flags % 2 == 0 then status, slot, gone[k], values[k] = OK, 3, true, false end
      elseif not ours or ((fence < granted or fence >= held + length) and (verb ~= RENEW or fence ~= 0)) then
        status = LOST -- R39: a renewal with fence 0 is one by the id alone
      elseif verb == RELEASE then
        status, gone[k], values[k] = OK, true, false
      elseif broken ~= 0 then
        status = LOST
      else
        first, block = held, length
        if block_wanted > 0 then first, block = draw(b, block_wanted, now) end
        if first then
          local _, since, _, holders_owner = cut('<I4dc8Bc0', v, rest)
          till = now + ttl
          v = pack(HOLDER, 88, 0, id, granted, first, block, till, ttl, since, session, #holders_owner, holders_owner)
          local expiry_ms = expiries[ttl]
          if not expiry_ms then
            expiry_ms = string.format('%d', ttl + SLACK_MS)
            expiries[ttl] = expiry_ms
          end
          local done = pcall_command('SET', key, v, 'PX', expiry_ms)
          if done.ok then
            status, values[k], wrote = OK, v, true
          else
            message = message or done.err
            status = status_of_error(done.err)
          end
        end
      end
    end
    if not first then
      status, first, block = MOVED, b.epoch, 0
    elseif not status then
      run_queued = run_queued or
        make_queued(now, session, keys, values, gone, buckets, clustered and ':' .. incarnation or '', copied)
      wrote = true
      local fine, result = pcall(run_queued, {cut(OPERATION, blob, this)})
      if not fine then
        local e = type(result) == 'table' and result.err or tostring(result)
        message = message or e
        status = status_of_error(e)
      elseif result then
        out[#out + 1] = result
      else
        status, first = MOVED, b.epoch
      end
    end
  end
  if status and verb < READ and (verb == RELEASE or status ~= OK) and status ~= HELD and status ~= MOVED then
    local plain = answers[status]
    if not plain then
      plain = pack(ANSWER, status, 0, 0, 0, 0, 0, 0)
      answers[status] = plain
    end
    out[#out + 1] = plain
  elseif status then
    out[#out + 1] = pack(ANSWER, status, 0, slot, block, first, till, 0)
  end
end

-- A full server refuses the first write of a script, and no other one.  If that was a grant, its fence was not given out,
-- and the bucket need not remember it.
local free, kept, refused = {}, {}, nil
for k in pairs(gone) do
  wrote = true
  if clustered then call('DEL', keys[k]) else free[#free + 1] = keys[k] end
end
if free[1] then call('DEL', unpack(free)) end
for i = 1, bucket_count do
  local b = buckets[i]
  if b.dirty then
    local v = b.served and (b.left and 'T' or 'S') .. pack('<I4I4c40', b.epoch, b.seq, b.incarnation) or
      pack('<c1dI4', 'L', b.last, b.epoch)
    if clustered then
      refused = pcall_command('SET', b.key, v).err or refused
    else
      kept[#kept + 1] = b.key
      kept[#kept + 1] = v
    end
  end
end
if kept[1] then refused = pcall_command('MSET', unpack(kept)).err end
if refused and (wrote or not message) then error(refused) end
local reply = table.concat(out)
if message then return {reply, message} end
return reply
