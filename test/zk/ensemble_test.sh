#!/bin/bash
# SPDX-License-Identifier: MIT
# Leases in three ZooKeeper servers that are killed and paused, and of clients that are cut off, stopped and killed:
# ensemble_test.sh DIBS PROXY STORM
# The servers are this test's own.
DIBS=$1 proxy=$2 storm=$3
export DIBS
. "$(dirname "$0")/../e2e/tap.sh"
. "$(dirname "$0")/ensemble.sh"
session=5000
ensemble_begin
export DIBS_STORE="zk://$hosts?session=$session"
patient="zk://$hosts?session=50000" # its leases outlast an election

# hold STORE NAME: a dibs run that holds the name until the file go exists, and writes its fence, and when its command ended.
hold() {
  rm -f "$dir/fence" "$dir/ended" "$dir/go"
  "$DIBS" run --store "$1" --ttl 30s "$2" -- bash -c '
    trap "echo \$EPOCHREALTIME >\"$0/ended\"; exit 1" TERM
    echo "$DIBS_FENCE" >"$0/fence.new" && mv "$0/fence.new" "$0/fence"
    until [ -e "$0/go" ]; do sleep 0.02; done' "$dir" >"$dir/held.out" 2>"$dir/held.err" &
  held=$!
  later "$held"
  until_true 15 filled "$dir/fence" || say "$2 is not held: $(cat "$dir/held.err")"
}
let_go() {
  touch "$dir/go"
  wait "$held"
}
# Waits for the name in the background and writes when it was granted.
await() {
  rm -f "$dir/began"
  "$DIBS" run --wait 60s "$1" -- bash -c 'echo $EPOCHREALTIME >"$0/began"' "$dir" >"$dir/await.out" 2>"$dir/await.err" &
  waiter=$!
  later "$waiter"
  until_true 30 waits "$1"
}
us() { local t; t=$(<"$1") && echo "${t/[.,]/}"; }
# The command of the holder that lost the name had ended before the next client began.
ended_before() {
  local ended began
  wait "$waiter"
  is "$1: the next client is granted the name" $? 0
  ended=$(us "$dir/ended" 2>/dev/null) began=$(us "$dir/began" 2>/dev/null)
  if [ -n "$ended" ] && [ -n "$began" ] && [ "$ended" -lt "$began" ]; then
    report 0 "$1: the first one's command had ended before"
  else
    report 1 "$1: the first one's command had ended before"
    say "ended ${ended:-never}, the next began ${began:-never}"
  fi
}

# ---- Servers ----

hold "$patient" n
first=$(<"$dir/fence")
was=$(leader)
node_kill "$was"
ok 'another server becomes the leader' until_true 60 leader
exits 120 'the name is held after that' "$DIBS" run --try n -- true
ok 'its command runs' alive "$held"
let_go
is 'and ends as it likes' $? 0
hold "$patient" n
second=$(<"$dir/fence")
let_go
ok "the fence of the next epoch is larger: $second after $first" test "$second" -gt "$first"
ok 'by at least one epoch' test $((second - first)) -gt $((1 << 31))
node_start "$was"
until_true 60 serves "$was"

hold "$patient" n
was=$(leader)
kill -STOP "${pids[$was]}"
pids_of_was=${pids[$was]}
pids[$was]=
ok 'a leader that is stopped is replaced' until_true 60 leader
ok 'and holders keep their leases' alive "$held"
kill -CONT "$pids_of_was"
pids[$was]=$pids_of_was
ok 'the stopped server follows' until_true 60 has_mode "$was" follower
let_go
is 'a lease outlives both' $? 0

# ---- No majority ----

hold "$DIBS_STORE" n
one=$(leader)
two=$((one % 3 + 1))
node_kill "$one"
node_kill "$two"
began=$(now_ms)
wait "$held"
is 'without a majority the holder loses its lease' $? 122
ok 'by its own clock, before a session could end' test -s "$dir/ended"
ok "in time: $(($(now_ms) - began)) ms" test $(($(now_ms) - began)) -lt 20000
exits 123 'nothing is granted then' timeout -k 5 60 "$DIBS" run --wait 1s n -- true
like 'and the message says why' "$err" 'no majority|did not answer|no server answers|connection was lost'
node_start "$one"
node_start "$two"
for n in 1 2 3; do until_true 60 serves "$n"; done
exits 0 'it goes on when they are back' "$DIBS" run --wait 60s n -- true

# ---- A client that is cut off ----

follower=$(($(leader) % 3 + 1))
mkfifo "$dir/commands"
"$proxy" "127.0.0.1:${ports[$follower]}" <"$dir/commands" >"$dir/proxy.out" &
later $!
exec 7>"$dir/commands"
until_true 10 grep -q listening "$dir/proxy.out"
port=$(sed -n 's/^listening //p' "$dir/proxy.out")
proxied="zk://127.0.0.1:$port?session=$session"

hold "$proxied" n
echo cut >&7
exits 120 'a connection that is reset ends no lease' "$DIBS" run --try n -- true
sleep 0.5
ok 'its holder continues' alive "$held"
let_go
is 'in the same session, to its end' $? 0

hold "$proxied" n
await n
echo half-open >&7
wait "$held"
is 'a client that is cut off loses its lease by its own clock' $? 122
ended_before 'cut off'
echo pass >&7

# ---- A client that is stopped, killed, broken ----

hold "$DIBS_STORE" n
await n
kill -STOP "$held"
wait "$waiter"
is 'stopped past its session: the next client is granted the name' $? 0
ok 'after the minder ended the command' test "$(us "$dir/ended" 2>/dev/null || echo 9999999999999999)" -lt "$(us "$dir/began")"
kill -CONT "$held"
wait "$held"
is 'the stopped one learns that it lost' $? 122

hold "$DIBS_STORE" n
await n
kill -KILL "$held"
ended_before 'killed'

hold "$DIBS_STORE" n
exits 0 'a lease is broken at once' "$DIBS" break --now n
wait "$held"
is 'its holder is notified' $? 122
like 'the break is recorded' "$("$DIBS" show n)" 'broke'

# ---- Rights, and another program's node ----

exits 0 'a user makes nodes of its own' "$DIBS" run --store "zk://alice:secret@$hosts/app" n -- true
exits 123 'another user may not use them' "$DIBS" run --store "zk://bob:secret@$hosts/app" n -- true
like 'and is told why' "$err" 'access rights'
exits 123 'nor may a client without a user' "$DIBS" run --store "zk://$hosts/app" n -- true
exits 0 'the user itself may, after its session ended' "$DIBS" run --store "zk://alice:secret@$hosts/app" n -- true

# ---- A storm, while leaders are killed and stopped ----

"$storm" "$DIBS_STORE" --seconds 8 >"$dir/storm.out" 2>&1 &
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
is 'no two clients believed to hold one name while leaders were killed and stopped' $? 0
tail -n 60 "$dir/storm.out" | sed 's/^/# /'
done_testing
