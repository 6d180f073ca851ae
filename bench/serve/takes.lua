-- SPDX-License-Identifier: MIT
-- Each request takes one of the stock `seats`, under a claim that is new.  RUN makes the claims of two runs different.
local threads = 0
function setup(thread)
  thread:set("nr", threads)
  threads = threads + 1
end

local nth, prefix, headers = 0, nil, { ["Content-Type"] = "application/json" }
function init()
  prefix = "/v1/stocks/seats/claims/" .. os.getenv("RUN") .. "-" .. nr .. "-"
end

function request()
  nth = nth + 1
  return wrk.format("PUT", prefix .. nth, headers, '{"amount":1}')
end

function done(summary, latency)
  local e = summary.errors
  io.write(string.format("JSON {\"requests\": %d, \"us\": %d, \"p50_us\": %d, \"p99_us\": %d, \"errors\": %d}\n",
    summary.requests, summary.duration, latency:percentile(50), latency:percentile(99),
    e.connect + e.read + e.write + e.status + e.timeout))
end
