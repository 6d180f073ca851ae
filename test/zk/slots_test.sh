#!/bin/bash
# SPDX-License-Identifier: MIT
# Counted leases in three ZooKeeper servers, of which the leader is killed and stopped, and of clients that are killed and
# stopped: slots_test.sh DIBS STORM CONTRACT
# The servers are this test's own.
DIBS=$1 storm=$2 contract=$3
export DIBS
. "$(dirname "$0")/../e2e/tap.sh"
. "$(dirname "$0")/ensemble.sh"
ensemble_begin
export DIBS_STORE="zk://$hosts?session=8000"
patient="zk://$hosts?session=20000" # its leases outlast an election

# ---- The contract, in three servers ----

for pattern in '*counted*' '*slot*' 'R9_threads_*'; do
  exits 0 "the contract holds: $pattern" "$contract" "zk://$hosts" "$pattern"
done

# ---- Holders of two slots ----

# hold STORE WHO: a dibs run that holds one of two slots of n until the file WHO.go exists, and writes its slot, and when its
# command ended.
declare -A runs
hold() {
  rm -f "$dir/$2".*
  "$DIBS" run --store "$1" --slots 2 --wait 60s --ttl 30s n -- bash -c '
    trap "echo \$EPOCHREALTIME >\"$0.ended\"; exit 1" TERM
    echo "$EPOCHREALTIME" >"$0.began"
    echo "$DIBS_SLOT" >"$0.slot.new" && mv "$0.slot.new" "$0.slot"
    until [ -e "$0.go" ]; do sleep 0.02; done' "$dir/$2" >"$dir/$2.out" 2>"$dir/$2.err" &
  runs[$2]=$!
  later "${runs[$2]}"
}
holds_slot() { until_true 60 filled "$dir/$1.slot" && [ "$(<"$dir/$1.slot")" = "$2" ]; }
let_go() {
  touch "$dir/$1.go"
  wait "${runs[$1]}"
}
us() { local t; t=$(<"$1") && echo "${t/[.,]/}"; }

hold "$patient" a
ok 'the first holder has slot 0' holds_slot a 0
hold "$patient" b
ok 'the second one has slot 1' holds_slot b 1
exits 120 'there is no third slot' "$DIBS" run --try --slots 2 n -- true
exits 120 'nor is it exclusive' "$DIBS" run --try n -- true
exits 125 'another number of slots is refused' "$DIBS" run --try --slots 3 n -- true
like 'and told why' "$err" 'held with 2 slots'
like 'a listing has the slots' "$("$DIBS" ls --json n)" '"slot":1'

was=$(leader)
node_kill "$was"
ok 'another server becomes the leader' until_true 60 leader
exits 120 'both slots are held after that' "$DIBS" run --try --slots 2 n -- true
ok 'both commands run' alive "${runs[a]}"
node_start "$was"
until_true 60 serves "$was"
hold "$patient" c
until_true 30 waits n
let_go a
ok 'a waiter is granted the slot that was freed' holds_slot c 0

# ---- A holder is killed, another one stopped ----

let_go b
let_go c
hold "$DIBS_STORE" a
ok 'slot 0 is held again' holds_slot a 0
hold "$patient" b
ok 'and slot 1' holds_slot b 1
hold "$patient" c
until_true 30 waits n
kill -KILL "${runs[a]}"
ok 'the slot of a holder that was killed is granted' holds_slot c 0
ok 'after its command had ended' test "$(us "$dir/a.ended" 2>/dev/null || echo 9999999999999999)" -lt "$(us "$dir/c.began")"
let_go c
hold "$DIBS_STORE" a
ok 'slot 0 is held again' holds_slot a 0
hold "$patient" c
until_true 30 waits n
kill -STOP "${runs[a]}"
ok 'the slot of a holder that is stopped past its session is granted' holds_slot c 0
ok 'after its command had ended' test "$(us "$dir/a.ended" 2>/dev/null || echo 9999999999999999)" -lt "$(us "$dir/c.began")"
kill -CONT "${runs[a]}"
wait "${runs[a]}"
is 'the stopped one learns that it lost' $? 122
exits 0 'all slots are broken at once' "$DIBS" break --now n
wait "${runs[b]}"
is 'their holders are notified' $? 122
exits 0 'and the slots are free' "$DIBS" run --wait 30s --slots 2 n -- bash -c '[ "$DIBS_SLOT" = 0 ]'

# ---- A storm, while leaders are killed and stopped ----

"$storm" "$DIBS_STORE" --counted --names 3 --seconds 10 >"$dir/storm.out" 2>&1 &
storming=$!
later "$storming"
for round in 1 2; do
  sleep 1
  was=$(leader) || continue
  if [ "$round" = 1 ]; then
    node_kill "$was"
    until_true 30 leader
    node_start "$was"
  else
    kill -STOP "${pids[$was]}"
    sleep 3
    kill -CONT "${pids[$was]}"
  fi
  until_true 30 serves "$was"
done
wait "$storming"
is 'no two clients believed to hold one slot while leaders were killed and stopped' $? 0
tail -n 60 "$dir/storm.out" | sed 's/^/# /'
done_testing
