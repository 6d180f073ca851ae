#!/bin/bash
# SPDX-License-Identifier: MIT
# What a client believes when answers come late, or a second step fails:  gateway_test.sh DIBS URI, through
# with.sh --private.
set -u
dibs=$1 uri=$2
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
. "$here/../support/says.sh"
place=${uri#etcd://}
export ETCDCTL_API=3
ctl() { etcdctl --endpoints "$place" "$@" 2>&1; }
out=$(mktemp -d "${TMPDIR:-/tmp}/dibs-test-gateway.XXXXXX") || exit 1
pids=()
trap 'kill "${pids[@]}" 2>/dev/null; rm -rf "$out"' EXIT
# until_true SECONDS COMMAND...
until_true() {
  local end=$((SECONDS + $1))
  until "${@:2}"; do
    [ "$SECONDS" -lt "$end" ] || return 1
    sleep 0.05
  done
}
python3 "$here/gateway.py" "$place" "$out" >"$out/port" 2>"$out/log" &
pids+=($!)
until_true 30 test -s "$out/port"
through=etcd://127.0.0.1:$(<"$out/port")

# A client that did not get the answer to its grant finds it, and asks etcd how long it still lasts.
touch "$out/lose"
"$dibs" run --store "$through" --ttl 10s --grace 100ms --wait 30s late -- sh -c 'echo $$ >"$1/pid"; exec sleep 30' sh "$out" \
  >"$out/said" 2>&1 &
pids+=($!)
until_true 30 test -e "$out/lost"
until_true 30 eval 'ctl get --keys-only --prefix dibs/lease/late/ | grep -q late'
"$dibs" run --store "$uri" --wait 60s late -- \
  sh -c '[ -s "$1/pid" ] || echo "# the late client did not get the name"; [ ! -s "$1/pid" ] || ! kill -0 "$(cat "$1/pid")" 2>/dev/null' sh "$out" >"$out/next" 2>&1
next=$?
if [ "$next" -eq 0 ]; then pass 'a late answer about its time prolongs no lease'; else
  fail 'a late answer about its time prolongs no lease' "exit $next" "$(cat "$out/said" "$out/next" "$out/log")"
fi
kill "${pids[-1]}" 2>/dev/null
rm -f "$out/lost"

# A waiter that is queued and offered the name in one request, and then finds no leader, is not forgotten in the queue.
ctl put dibs/lease/gone/0123456789abcdef0123456789abcdef '{"mode":"exclusive","ttl_ms":10000}' >/dev/null
touch "$out/offer"
"$dibs" serve --store "$through" --listen "unix:$out/socket" >"$out/served" 2>&1 &
pids+=($!)
until_true 30 curl -sf -o /dev/null -m 5 --unix-socket "$out/socket" http://dibs/healthz
code=$(curl -s -m 30 -o "$out/answer" -w '%{http_code}' --unix-socket "$out/socket" http://dibs/v1/leases/gone \
  -d '{"ttl": "10s", "wait": "2s"}')
nobody_waits() { [ -z "$(ctl get --keys-only --prefix dibs/wait/gone/)" ]; }
if [ -e "$out/offered" ] && [[ $code == [45]?? ]] && until_true 20 nobody_waits; then
  pass 'a waiter that leaves after a second step failed leaves the queue'
else
  fail 'a waiter that leaves after a second step failed leaves the queue' "HTTP $code" "$(cat "$out/answer")" \
    "$(ctl get --prefix dibs/wait/gone/)" "$(cat "$out/served" "$out/log")"
fi
end_of_cases
