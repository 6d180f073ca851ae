#!/bin/bash
# SPDX-License-Identifier: MIT
# The lab's scenes with processes and servers that it kills: a worker of a task, and a Redis of its own.
#   scenes_test.sh TAP.SH [URI]      without a URI on an embedded store of its own, and then also the Redis
# PAGE_CHECK checks a report, LAB_TABLES counts the lab's tables.
. "$1"
[ -z "${2:-}" ] || export DIBS_STORE=$2
: "${PAGE_CHECK:?}" "${LAB_TABLES:?}" "${JSON_CHECK:?}"
mkdir "$dir/tmp" "$dir/empty"
export TMPDIR=$dir/tmp

lab() { "$DIBS" lab "$@" --json; }
value() { # value NAME KEY OF: of the row of JSON whose OF is NAME
  printf '%s' "$out" | grep -o "{\"$3\":\"$1\"[^}]*}" | head -n 1 | sed -n "s/.*\"$2\":\"\{0,1\}\([^,\"}]*\).*/\1/p"
}
guard() { value "$1" "$2" guard; }
json_fine() { printf '%s' "$out" | "$JSON_CHECK"; }
# A Redis of the lab works in its folder; its arguments do not show it.
own_redis() {
  local process
  for process in /proc/[0-9]*; do
    [[ $(readlink "$process/cwd" 2>/dev/null) == "$dir/tmp/"* ]] || continue
    [ "$(cat "$process/comm" 2>/dev/null)" = redis-server ] && return
  done
  return 1
}
no_redis() { ! own_redis && [ -z "$(ls "$dir/tmp")" ]; }

# ---- A worker is killed ----
exits 0 'crash' lab crash --ttl 700ms --html "$dir/crash.html"
ok 'crash is JSON' json_fine
for name in 'An effect without an id' "An effect under the task's own id"; do
  is "$name: the next worker continues in the phase that was reached" "$(guard "$name" phase)/$(guard "$name" attempt)" charge/2
done
is 'without an id the effect happens twice' "$(guard 'An effect without an id' effects)" 2
is 'as expected' "$(guard 'An effect without an id' mood)" expected
is "under the task's own id it happens once" "$(guard "An effect under the task's own id" effects)" 1
is 'which is correct' "$(guard "An effect under the task's own id" verdict)" correct
like 'the second one is a replay' "$out" '"gets":"REPLAY: '
is 'the worker waits for the end of the claim' "$([ "$(guard 'An effect without an id' free_ms)" -gt 100 ] && echo yes)" yes
ok 'the report of crash is well-formed and loads nothing' "$PAGE_CHECK" "$dir/crash.html"
is 'no task remains' "$("$DIBS" task ls --json | grep -c lab-)" 0
ok 'no table remains' [ "$("$LAB_TABLES")" = 0 ]
exits 116 'an effect that happens twice can count as broken' lab crash --ttl 500ms --strict

# ---- A counter, whose process is killed ----
redis=
! command -v redis-server >/dev/null || redis=yes
exits 0 'counter' lab counter --users 4 --seconds 1.2 --html "$dir/counter.html"
ok 'counter is JSON' json_fine
method() { value "$1" "$2" method; }
for name in durable 'UPDATE n = n [+] 1' 'SELECT FOR UPDATE, then UPDATE'; do
  is "$name: nothing is lost and nothing counted twice" "$(method "$name" lost)/$(method "$name" twice)" 0/0
  is "$name: which is correct" "$(method "$name" verdict)" correct
  ok "$name: additions were acknowledged" [ "$(method "$name" acknowledged)" -gt 0 ]
done
is 'buffered counts nothing twice' "$(method buffered twice)" 0
ok 'it loses at most the last moments' [ "$(method buffered lost)" -le "$(method buffered acknowledged)" ]
like 'as documented' "$(method buffered verdict)" '^(lost the last [0-9]+ ms|correct$)'
is 'reading and writing loses updates' "$(method 'read, then write' mood)" expected
ok 'the report of counter is well-formed and loads nothing' "$PAGE_CHECK" "$dir/counter.html"
ok 'no table of counter remains' [ "$("$LAB_TABLES")" = 0 ]
if [ -n "$redis" ]; then
  is 'shared survives its user, too' "$(method shared lost)/$(method shared twice)/$(method shared verdict)" 0/0/correct
  is 'without Redis it counts nothing twice' "$(method 'shared, and Redis is killed, too' twice)" 0
  is 'Redis INCR survives its user' "$(method 'Redis INCR' lost)/$(method 'Redis INCR' twice)" 0/0
  is 'but not its Redis' "$(method 'Redis INCR, and Redis is killed, too' counted)" 0
  is 'which is expected' "$(method 'Redis INCR, and Redis is killed, too' mood)" expected
  ok 'HGETALL and DEL lose what is added in between' [ "$(method 'HINCRBY; HGETALL, UPDATE, DEL' lost)" -gt 0 ]
  ok 'without the DEL the sums are written again' [ "$(method 'the same, killed before DEL' twice)" -gt 0 ]
fi
if [ -n "${2:-}" ]; then
  done_testing
  exit
fi

exits 116 'lost updates can count as broken' lab counter --users 4 --seconds 0.3 --strict
exits 123 'a store without SQL has no row to add to' lab counter --store memory:
exits 0 'counter without redis-server' env PATH="$dir/empty" "$DIBS" lab counter --users 2 --seconds 0.2 --json
like 'says what is left out' "$out" 'The methods with a Redis are left out: .*redis-server is not installed'
is 'and still has the others' "$(method durable verdict)" correct
ok 'and leaves nothing' no_redis

# ---- Without the program redis-server ----
for scene in failover amnesia; do
  exits 123 "$scene without redis-server" env PATH="$dir/empty" "$DIBS" lab $scene
  like "$scene says what to install" "$err" 'the program redis-server is not installed: install it'
  ok "$scene leaves nothing" no_redis
done

if ! command -v redis-server >/dev/null; then
  [ "${DIBS_TEST_SERVERS:-}" != required ] || ok 'redis-server is installed' false
  done_testing
  exit
fi

# ---- A Redis is killed under load ----
exits 0 'failover' lab failover --users 8 --seconds 3 --html "$dir/failover.html"
ok 'failover is JSON' json_fine
phase() { value "$1" "$2" phase; }
ok 'Redis grants leases at first' [ "$(phase serves redis)" -gt 0 ]
is 'and the anchor none' "$(phase serves anchor)" 0
ok 'the anchor grants them while Redis is down' [ "$(phase 'is down' anchor)" -gt 0 ]
ok 'Redis grants them again when it is back' [ "$(phase 'is back, empty' redis)" -gt 0 ]
is 'nothing is lost' "$(value additions lost check)/$(value additions mood check)" 0/good
ok 'what was acknowledged is there' [ "$(value additions counted check)" -ge "$(value additions acknowledged check)" ]
is 'fences have grown' "$(value 'fences grow from tier to tier' verdict check)" correct
like 'the course of events' "$out" '"does":"[0-9.]+ s: SIGKILL"'
ok 'the report of failover is well-formed and loads nothing' "$PAGE_CHECK" "$dir/failover.html"
ok 'no Redis and no folder remains' no_redis

# ---- A Redis forgets ----
exits 0 'amnesia' lab amnesia --html "$dir/amnesia.html"
ok 'amnesia is JSON' json_fine
is 'a lock by hand is broken' "$(guard 'A lock by hand' late_write)/$(guard 'A lock by hand' lost)" accepted/5
is 'a lease that nothing checks, too' "$(guard 'A lease, and writes that check nothing' lost)" 5
is 'both as expected' "$(guard 'A lock by hand' mood)/$(guard 'A lease, and writes that check nothing' mood)" expected/expected
is 'a fence that records check holds' \
  "$(guard 'A lease, and records that check its fence' late_write)/$(guard 'A lease, and records that check its fence' lost)" refused/0
is 'which is correct' "$(guard 'A lease, and records that check its fence' verdict)" correct
ok 'the report of amnesia is well-formed and loads nothing' "$PAGE_CHECK" "$dir/amnesia.html"
ok 'no Redis and no folder remains' no_redis

# ---- An interrupt ----
"$DIBS" lab failover --users 4 --seconds 120 --json >"$dir/out" 2>"$dir/err" &
pid=$!
later $pid
ok 'failover has a Redis of its own while it runs' until_true 20 own_redis
kill -INT $pid
wait $pid
is 'an interrupt ends it' $? 130
ok 'no Redis and no folder remains' no_redis

# ---- All of them ----
exits 0 'all experiments' lab all --users 6 --seats 3 --seconds 0.6 --rows 1,10 --ttl 500ms --html "$dir/all"
ok 'all is JSON' json_fine
for name in race throughput contend deadlock pause crash failover amnesia counter phases; do
  like "$name is in it" "$out" "\"lab\":\"$name\""
  ok "$name has a page" "$PAGE_CHECK" "$dir/all/$name.html"
  like "the index refers to $name" "$(cat "$dir/all/index.html")" "<a href=\"$name.html\">"
done
ok 'the index is well-formed' "$PAGE_CHECK" "$dir/all/index.html"
like 'no promise was broken' "$out" '"held":true\}$'
like 'numbers are numbers' "$out" '"applicants":6,"seats":3[,}]'
like 'the report has its date, version, machine and durability' "$out" \
  '"date":"20[0-9-]+ [0-9:]+ UTC","version":"[0-9.]+","machine":"[0-9]+ processors .*"durability":"journal_mode=wal, synchronous='
exits 119 'a folder that cannot be created' lab all --html "$dir/no/such"
like 'is reported before the run' "$out$err" 'nothing was run'
done_testing
