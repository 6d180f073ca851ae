#!/bin/bash
# SPDX-License-Identifier: MIT
# dibs worker --topic: workers that own lanes, the order of keys, lanes that move, and messages.
#   worker_lanes_test.sh [URI]    without URI in a file
. "$(dirname "$0")/tap.sh"
[ -z "${1:-}" ] || export DIBS_STORE=$1
uri=$DIBS_STORE
. "$(dirname "$0")/sql.sh"
state() { "$DIBS" task show "$1" 2>/dev/null | sed -n 's/^state //p'; }
is_state() { [ "$(state "$1")" = "$2" ]; }
count_of() { "$DIBS" task ls --json --kind "$1" --state "$2" | grep -o '"task":' | wc -l; }
counts() { [ "$(count_of "$1" "$2")" = "$3" ]; }
# worker NAME KIND COMMAND [OPTION...]: in the background; $worker is its pid.
worker() {
  "$DIBS" worker --kind "$2" --exec "$3" --owner "$1" "${@:4}" >"$dir/$1.out" 2>"$dir/$1.err" </dev/null &
  worker=$!
  later $worker
}
once() { timeout 60 "$DIBS" worker --once --kind "$1" --exec "$2" "${@:3}" >"$dir/worker.out" 2>"$dir/worker.err"; }
lanes_of() { "$DIBS" lane ls "$1" --json | grep -o "\"owner\":\"$2\"" | wc -l; }
owns() { [ "$(lanes_of "$1" "$2")" = "$3" ]; }
# refused CODE TEXT [WORD...]: the call ends with this status and prints this.
refused() {
  timeout 60 "$DIBS" worker --kind "${@:3}" -- true >/dev/null 2>"$dir/refused"
  is "exit status $1: ${*:3}" $? "$1"
  like "which says: $2" "$(cat "$dir/refused")" "$2"
}

# ---- The order of a key, and what the command gets ----
for n in 1 2 3 4 5; do
  for key in a b c; do "$DIBS" task add event "$n" --key "$key" >/dev/null; done
done
once event 'read n; echo "$n" >>'"$dir"'/seen.$DIBS_KEY; echo "$n" | '"$DIBS"' record put "last-$DIBS_KEY" &&
  echo "$DIBS_TOPIC $DIBS_LANE/$DIBS_LANES $DIBS_NAME $DIBS_TTL ${DIBS_SLOT-none}" >>'"$dir/env" \
  --topic orders --lanes 4 --ttl 5s --jobs 3
is '--once ends with 0' $? 0
is 'all tasks are done' "$(count_of event done)" 15
for key in a b c; do is "those of $key in their order" "$(tr '\n' ' ' <"$dir/seen.$key")" '1 2 3 4 5 '; done
is 'a write under the lane is accepted' "$("$DIBS" record get last-a)" 5
like 'the topic, the lane and its lease' "$(sort -u "$dir/env" | head -1)" '^orders [0-3]/4 lane/orders#4\.[0-3]-[0-9a-f]* 5000ms none$'
lane=$("$DIBS" lane of orders b)
ok 'the lane is that of the key' grep -q "^orders $lane/4 " "$dir/env"
like 'the kind belongs to the topic' "$("$DIBS" task kind event)" '^topic orders$'
like 'also as JSON' "$("$DIBS" task counts event --json)" '"topic":"orders"'

# ---- After a failure the later tasks wait ----
first=$("$DIBS" task add steps 1 --key k --tries 1)
second=$("$DIBS" task add steps 2 --key k)
once steps 'cat >>'"$dir"'/steps; exit 1' --topic orders
is 'a task with a key that fails for good is parked' "$(state "$first")" parked
is 'the later one was not begun' "$(cat "$dir/steps")" 1
"$DIBS" task purge "$first" >/dev/null
once steps 'exit 0' --topic orders
is 'and is done when a person has decided' "$(state "$second")" done

# ---- Lanes move ----
worker one moves 'read n; echo "$n" >>'"$dir"'/moves.$DIBS_KEY; sleep 0.05' --topic moves --lanes 4 --ttl 2s --jobs 2
one=$worker
ok 'a worker owns all lanes' until_true 20 owns moves one 4
for n in 1 2 3 4 5 6; do
  for key in a b c d e f; do "$DIBS" task add moves "$n" --key "$key" >/dev/null; done
done
worker two moves 'read n; echo "$n" >>'"$dir"'/moves.$DIBS_KEY; sleep 0.05' --topic moves --ttl 2s --jobs 2
two=$worker
ok 'a second one gets half of them' until_true 20 owns moves two 2
ok 'the tasks are done' until_true 60 counts moves done 36
kill -KILL $two
wait $two 2>/dev/null
for n in 7 8; do
  for key in a b c d e f; do "$DIBS" task add moves "$n" --key "$key" >/dev/null; done
done
ok 'after kill -9 of the second one the first does its tasks, too' until_true 60 counts moves done 48
for key in a b c d e f; do is "in their order: $key" "$(uniq "$dir/moves.$key" | tr '\n' ' ')" '1 2 3 4 5 6 7 8 '; done

# ---- A command ends before another owner of its lane begins ----
# The first command of a task ignores TERM, and the next one writes whether it still runs.  Claims last long.
guarded='trap "" TERM; read name
  if [ -e "'"$dir"'/$name.first" ]; then
    read -r first <"'"$dir"'/$name.first"
    [ -d "/proc/$first" ] && ! grep -q "^State:.*Z" "/proc/$first/status" && echo lives || echo ended
    exit 0
  fi >>"'"$dir"'/$name.next"
  echo $$ >"'"$dir"'/$name.new"; mv "'"$dir"'/$name.new" "'"$dir"'/$name.first"
  i=0; while [ $((i += 1)) -lt 900 ]; do sleep 0.1; done'
guard() { worker "$1" "$2" "$guarded" --topic "$2" --lanes 1 --ttl 3s --timeout 1h; }
"$DIBS" task add stopped stopped --key k >/dev/null
guard halted stopped
halted=$worker
ok 'a command runs' until_true 30 filled "$dir/stopped.first"
later "$(cat "$dir/stopped.first")"
kill -STOP $halted
guard heir stopped
heir=$worker
ok 'its worker is stopped: another one begins the task' until_true 60 filled "$dir/stopped.next"
is 'when the first command has ended' "$(cat "$dir/stopped.next")" ended
kill -CONT $halted
kill -TERM $halted $heir
wait $halted $heir
# After so many requests the first worker reaches the store no more.
case $uri in *\?*) cut="fault+$uri&" ;; *) cut="fault+$uri?" ;; esac
"$DIBS" task add cut cut --key k >/dev/null
DIBS_STORE="${cut}fault.nth=120&fault.forever=1" guard lonely cut
lonely=$worker
ok 'a command runs' until_true 30 filled "$dir/cut.first"
later "$(cat "$dir/cut.first")"
guard next cut
next=$worker
ok 'its worker is cut off from the store: another one begins the task' until_true 90 filled "$dir/cut.next"
is 'when the first command has ended' "$(cat "$dir/cut.next")" ended
kill -KILL $lonely
kill -TERM $next
wait $lonely $next 2>/dev/null

# ---- Keys of other programs ----
if [[ $DIBS_STORE != postgres* ]]; then # whose texts have no NUL
  case $DIBS_STORE in
    mysql*) nul() { echo "concat('$1', char(0))"; } ;;
    *) nul() { echo "cast('$1' || x'00' AS text)"; } ;;
  esac
  worker left nuls 'exit 0' --topic nuls --lanes 2 --ttl 2s
  left=$worker
  ok 'a worker owns both lanes' until_true 20 owns nuls left 2
  worker right nuls 'exit 0' --topic nuls --ttl 2s
  right=$worker
  ok 'a second one gets one of them' until_true 20 owns nuls right 1
  for key in k2 k4 k6 k13; do sql "INSERT INTO dibs_task (kind, serial) VALUES ('nuls', $(nul $key))"; done
  ok 'each does the keys of its lane, with all of their bytes, also after a NUL' until_true 30 counts nuls done 4
  kill -TERM $left $right
  wait $left $right
fi

# ---- Messages ----
"$DIBS" task add moves x --key a >/dev/null
kill -TERM $one
wait $one
is 'TERM: the worker ends with 0' $? 0
is 'and has given back its lanes' "$(lanes_of moves one)" 0
"$DIBS" task add moves y --key a >/dev/null
worker plain moves 'exit 0'
ok 'a worker without a topic says where the tasks go' until_true 20 grep -q 'of the topic "moves"' "$dir/plain.err"
like 'and what to do' "$(cat "$dir/plain.err")" 'tasks with a key.*[-][-]topic.*dibs task kind moves [-][-]no-lanes'
refused 125 'the kind belongs to the topic "moves"; dibs task kind --no-lanes ends that' moves --topic other --lanes 2
refused 125 'has 4 lanes, and not 5' moves --topic moves --lanes 5
refused 117 'there is no topic "nowhere" yet.*--lanes P' moves --topic nowhere
refused 125 'give --topic TOPIC' moves --lanes 4
refused 125 'without --table and --phase' moves --topic moves --phase p
"$DIBS" task kind moves --no-lanes >"$dir/kind"
is 'after --no-lanes the kind has no topic' "$(grep -c topic "$dir/kind")" 0
ok 'and the worker without one does its tasks' until_true 20 counts moves done 50
kill -TERM $worker
wait $worker
worker fixed moves 'exit 0' --topic moves --lanes 4 --ttl 2s
ok 'a worker that named the number of lanes' until_true 20 owns moves fixed 4
"$DIBS" lane resize moves --lanes 6 --wait 20s >/dev/null
wait $worker
is 'ends with 115 when it is changed' $? 115
like 'and says so' "$(cat "$dir/fixed.err")" 'has 6 lanes by now'
done_testing
