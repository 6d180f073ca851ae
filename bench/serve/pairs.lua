-- SPDX-License-Identifier: MIT
-- Each connection acquires and releases the lease of its own name in turn.  One connection for each thread of wrk: its
-- state is the connection's.
local threads = 0
function setup(thread)
  thread:set("nr", threads)
  threads = threads + 1
end

local acquire, release, acquired
function init()
  local name, id = "/v1/leases/pairs%2F" .. nr, string.format("%032x", nr + 1)
  acquire = wrk.format("POST", name, { ["Content-Type"] = "application/json" }, '{"id":"' .. id .. '","ttl":"30s"}')
  release = wrk.format("DELETE", name, { ["Dibs-Lease"] = id })
end

function request()
  acquired = not acquired
  return acquired and acquire or release
end

function done(summary, latency)
  local e = summary.errors
  io.write(string.format("JSON {\"requests\": %d, \"us\": %d, \"p50_us\": %d, \"p99_us\": %d, \"errors\": %d}\n",
    summary.requests, summary.duration, latency:percentile(50), latency:percentile(99),
    e.connect + e.read + e.write + e.status + e.timeout))
end
