#!/bin/bash
# SPDX-License-Identifier: MIT
# dibs once: one call runs the command, the others repeat its output; what counts as an answer.
. "$(dirname "$0")/tap.sh"

# ---- The command runs once, and its output is repeated ----
exits 3 'the first call runs it' "$DIBS" once k -- sh -c 'echo out; echo err >&2; printf more; exit 3'
is 'standard output passes through' "$out" "$(printf 'out\nmore')"
is 'standard error passes through' "$err" err
exits 3 'the second call returns its status' "$DIBS" once k -- sh -c 'echo never; exit 9'
is 'and its output, on the same streams' "$out" "$(printf 'out\nmore')"
is 'standard error too' "$err" err
"$DIBS" once order -- sh -c 'for i in 1 2 3; do echo o$i; sleep 0.05; echo e$i >&2; sleep 0.05; done' >/dev/null 2>&1
is 'the parts keep their order' "$("$DIBS" once order -- true 2>&1 | tr '\n' ' ')" 'o1 e1 o2 e2 o3 e3 '
exits 0 'a command of another key runs' "$DIBS" once other -- echo fresh
is 'and prints its own output' "$out" fresh
"$DIBS" once empty -- true
exits 0 'no output is an answer, too' "$DIBS" once empty -- false
head -c 300000 /dev/urandom >"$dir/bytes"
"$DIBS" once bytes -- cat "$dir/bytes" >"$dir/first"
"$DIBS" once bytes -- true >"$dir/second"
ok 'any bytes pass through' cmp "$dir/bytes" "$dir/first"
ok 'any bytes are kept' cmp "$dir/bytes" "$dir/second"
long=$(printf '%0255d' 7)
exits 0 'a key of the maximum length' "$DIBS" once "$long" -- echo long
exits 125 'a key that is too long' "$DIBS" once "${long}0" -- echo long
exits 125 'an empty key' "$DIBS" once '' -- true

# ---- The environment of the command ----
"$DIBS" once env -- env >"$dir/env"
like 'DIBS_NAME is the lease' "$(cat "$dir/env")" '^DIBS_NAME=once:env$'
like 'DIBS_FENCE' "$(cat "$dir/env")" '^DIBS_FENCE=[1-9][0-9]*$'
is 'records use its lease' "$("$DIBS" once rec -- sh -c 'dibs() { "$DIBS" "$@"; }; dibs record get r; echo x | dibs record put r >/dev/null && dibs record get r')" x
is 'standard input is the command'"'"'s' "$(echo in | "$DIBS" once stdin -- cat)" in

# ---- As JSON ----
"$DIBS" once j --json -- sh -c 'echo 12345; exit 4' >"$dir/out" 2>"$dir/err"
is '--json: the output is the command'"'"'s' "$(cat "$dir/out")" 12345
ok '--json reports on standard error' "$JSON_CHECK" <"$dir/err"
like '--json: it ran' "$(cat "$dir/err")" '"command":"once","exit":4,"status":"OK","key":"j","kept":true,"fence":[1-9].*"stdout":6,"stderr":0,"left_out":0'
"$DIBS" once j --json -- true >/dev/null 2>"$dir/err"
like '--json: the repetition' "$(cat "$dir/err")" '"exit":4,"status":"REPLAY","key":"j","kept":true,.*"age_ms":[0-9]'

# ---- Outcomes that are not answers ----
runs() { wc -l <"$dir/runs"; }
: >"$dir/runs"
run_it='echo x >>"$0"'
exits 137 'killed: 128 + KILL' "$DIBS" once killed -- sh -c "$run_it; kill -9 \$\$" "$dir/runs"
like 'killed: the message says that nothing is kept' "$err" "^dibs: 'killed': a signal killed it; nothing is kept"
exits 0 'killed: the next call runs it' "$DIBS" once killed -- sh -c "$run_it" "$dir/runs"
is 'killed: it ran twice' "$(runs)" 2
exits 130 'the status that a shell gives a killed command' "$DIBS" once shell -- sh -c 'exit 130'
exits 0 'is not an answer either' "$DIBS" once shell -- true
exits 1 'a failure is an answer' "$DIBS" once fails -- sh -c 'exit 1'
exits 1 'and is kept' "$DIBS" once fails -- true
exits 2 '--retry runs a failure again' "$DIBS" once fails --retry -- sh -c 'exit 2'
like '--retry says that nothing is kept' "$err" "it failed; nothing is kept"
exits 0 'and keeps no failure' "$DIBS" once fails --retry -- echo fine
exits 0 'but a success' "$DIBS" once fails --retry -- false
is 'which is repeated' "$out" fine
exits 127 'a missing command' "$DIBS" once nocmd -- "$dir/nowhere"
exits 0 'is not an answer' "$DIBS" once nocmd -- true
"$DIBS" once asked -- sh -c 'trap "exit 5" TERM; echo up; while :; do sleep 0.05; done' >"$dir/up" 2>"$dir/err" &
pid=$!
later $pid
ok 'ended by TERM: it runs' until_true 20 filled "$dir/up"
kill -TERM $pid
wait $pid
is 'ended by TERM: its status' $? 5
exits 0 'ended by TERM: that was not an answer' "$DIBS" once asked -- echo after
is 'ended by TERM: the next call ran the command' "$out" after

# ---- Concurrent callers ----
"$DIBS" once slow -- sh -c 'echo up >"$0"; while [ ! -e "$0.go" ]; do sleep 0.02; done; echo done' "$dir/slow" >"$dir/slow.out" &
first=$!
later $first
ok 'concurrent: the first runs' until_true 20 filled "$dir/slow"
exits 120 'in between: --try' "$DIBS" once slow --try -- echo never
exits 121 'in between: --wait' "$DIBS" once slow --wait 50ms -- echo never
"$DIBS" once slow -- echo never >"$dir/waited" &
second=$!
later $second
ok 'in between: another waits' until_true 20 waits once:slow
touch "$dir/slow.go"
wait $first
is 'concurrent: the first is done' $? 0
wait $second
is 'concurrent: the waiter gets the answer' "$(cat "$dir/waited")" 'done'
pids=()
: >"$dir/runs"
for i in 1 2 3 4 5 6; do
  "$DIBS" once race -- sh -c "$run_it; echo one" "$dir/runs" >"$dir/race.$i" &
  pids+=($!)
done
wait "${pids[@]}"
is 'six at once: one ran' "$(runs)" 1
is 'six at once: all print the same' "$(cat "$dir"/race.* | sort | uniq -c | awk '{ print $1, $2 }')" '6 one'

# ---- Crashes ----
"$DIBS" once crash --ttl 1s -- sh -c 'echo $DIBS_FENCE >"$0"; exec sleep 600' "$dir/crash" 2>/dev/null &
pid=$!
later $pid
ok 'a crash: it runs' until_true 20 filled "$dir/crash"
kill -KILL $pid
wait $pid 2>/dev/null
exits 0 'a crash: the next call waits for the lease, and runs' "$DIBS" once crash --wait 20s -- sh -c 'echo $DIBS_FENCE'
ok "a crash: its fence is larger ($(cat "$dir/crash"), $out)" [ "$out" -gt "$(cat "$dir/crash")" ]

# ---- Much output, and no reader ----
"$DIBS" once much -- head -c 3000000 /dev/zero >"$dir/much" 2>"$dir/err3"
is 'much: all of it passes through' "$(wc -c <"$dir/much")" 3000000
like 'much: the message gives the number of missing bytes' "$(cat "$dir/err3")" "^dibs: 'much' wrote more than .* bytes that can be kept; the last [0-9]+ bytes will be missing"
exits 0 'much: the status is kept' sh -c '"$DIBS" once much -- false >"$0" 2>"$1"' "$dir/much" "$dir/err2"
like 'much: the repetition says it, too' "$(cat "$dir/err2")" 'the last [0-9]+ bytes are missing'
left=$(sed -n 's/.*the last \([0-9]*\) bytes.*/\1/p' "$dir/err2")
is 'much: both messages agree' "$(sed -n 's/.*the last \([0-9]*\) bytes.*/\1/p' "$dir/err3")" "$left"
is 'much: kept and missing bytes add up' $(($(wc -c <"$dir/much") + left)) 3000000
"$DIBS" once unread -- sh -c 'for i in $(seq 20000); do echo line $i; done; echo end' | head -n 1 >"$dir/out"
is 'no reader: the part that was read' "$(cat "$dir/out")" 'line 1'
is 'no reader: the answer was kept' "$("$DIBS" once unread -- true | tail -n 1)" end
exits 119 'output that cannot be written' sh -c '"$DIBS" once full -- echo x >/dev/full'
like 'output that cannot be written: the message' "$err" '^dibs: cannot pass on the command'
is 'and is kept' "$("$DIBS" once full -- false)" x

# ---- The end of a key ----
"$DIBS" once short --keep 50ms -- echo first >/dev/null
ok '--keep: the answer expires' until_true 20 sh -c '[ "$("$DIBS" once short --keep 50ms -- echo next)" = next ]'
exits 0 '--forget' "$DIBS" once k --forget
is '--forget prints nothing' "$out$err" ''
exits 117 '--forget of an unknown key' "$DIBS" once k --forget
exits 0 'a forgotten key runs again' "$DIBS" once k -- echo again
is 'and prints the new output' "$out" again
"$DIBS" once k --forget --json >"$dir/out"
is '--forget --json' "$(cat "$dir/out")" '{"key":"k","forgotten":true}'
exits 125 '--forget runs nothing' "$DIBS" once k --forget -- true
exits 125 'a command is needed' "$DIBS" once k
exits 0 'no lease remains' "$DIBS" ls
is 'and no waiter' "$out" ''
done_testing
