#!/bin/bash
# SPDX-License-Identifier: MIT
# The commands for tiers while the test's own Redis is killed, returns empty, and is paused.
#   with.sh --private sets DIBS_TEST_REDIS and the server's script and folder
#   DIBS_ANCHOR: the anchor; without it a file
. "$(dirname "$0")/tap.sh"
: "${DIBS_TEST_REDIS:?names a private Redis}" "${DIBS_TEST_SERVERS_SCRIPT:?names the script that starts and kills it}"

anchor=${DIBS_ANCHOR:-sqlite://$dir/anchor.db}
case $anchor in *\?*) join='&' ;; *) join='?' ;; esac
export DIBS_STORE="$DIBS_TEST_REDIS,$anchor${join}tiers.dwell=500&tiers.wait=200&tiers.timeout=300"
server() { "$DIBS_TEST_SERVERS_SCRIPT" "$1" --dir "$DIBS_TEST_SERVERS_DIR" redis >/dev/null 2>&1; }
fence() { "$DIBS" run "$1" --wait 20s -- sh -c 'echo $DIBS_FENCE'; }
serves() { # serves N M: so many buckets on each
  [ "$("$DIBS" tier status --json 2>/dev/null | grep -o '"buckets":[0-9]*' | tr -dc '0-9\n' | paste -sd' ')" = "$1 $2" ]
}
name=$("$DIBS" flag ls --json | grep -o '[a-z]*-fallback' | cut -d- -f1)

exits 0 'a lease on Redis' "$DIBS" run job -- true
ok 'Redis serves all buckets' serves 100 0
like 'status' "$("$DIBS" tier status)" '^redis +up +100 +100% .* redis://'
like 'flags are named by the tiers' "$("$DIBS" flag ls)" "^$name-fallback.enabled +on"
is 'no password is shown' "$("$DIBS" tier status --json | grep -c 'secret')" 0
before=$(fence job)

# ---- Killed ----
"$DIBS" run keep --ttl 3s -- sleep 120 2>/dev/null &
keeper=$!
later $keeper
ok 'a client that keeps running' until_true 5 holds keep
ok 'Redis is killed' server kill
began=$(now_ms)
killed=$(fence job)
took=$(($(now_ms) - began))
ok "the anchor grants it, in $took ms, with a larger fence" test "${killed:-0}" -gt "$before"
ok 'and serves all buckets' until_true 10 serves 0 100
exits 0 'status' "$DIBS" tier status
like 'status shows that Redis is down' "$out" '^redis has been DOWN for '
like 'status: the row' "$out" '^redis +DOWN [0-9]'
like 'stats counts fallback leases' "$("$DIBS" stats --probe --json)" '"fallback":[1-9]'
wait $keeper
is 'the holder of a lease on Redis learns of its loss' "$?" 122

# ---- Back, and empty ----
"$DIBS" run keep --wait 20s -- sleep 120 2>/dev/null &
keeper=$!
later $keeper
ok 'another client that keeps running' until_true 5 holds keep
ok 'Redis is started' server restart
ok 'clients return to Redis after its dwell time' until_true 20 serves 100 0
back=$(fence job)
ok 'with a larger fence' test "${back:-0}" -gt "$killed"
like 'status: up' "$("$DIBS" tier status)" '^redis +up '
kill $keeper
wait $keeper 2>/dev/null

# ---- Paused ----
exits 0 'a move by hand, before it is paused' "$DIBS" tier move "$name"
ok 'all buckets have moved' until_true 5 serves 0 100
ok 'Redis is paused' server pause
exits 0 'status, while Redis is paused' "$DIBS" tier status
exits 0 'leases are still granted' "$DIBS" run job --wait 5s -- true
exits 123 'buckets cannot move to a paused tier' "$DIBS" tier move redis
like 'and why' "$err" '^dibs: .*redis'
ok 'Redis continues' server resume
exits 0 'now they can' "$DIBS" tier move redis
ok 'and serves all buckets' until_true 5 serves 100 0
ok 'fences grew all the time' test "$(fence job)" -gt "$back"
exits 0 'flags and votes decide again' "$DIBS" tier move auto

# ---- Rolled out by percent ----
exits 0 'a tenth on Redis' "$DIBS" flag set redis.enabled --percent 10
ok 'is on Redis' until_true 5 serves 10 90
done_testing
