#!/bin/bash
# SPDX-License-Identifier: MIT
# dibs run --max: the command and all that it started end, and the name is free.
. "$(dirname "$0")/tap.sh"

# passed FROM LEAST MOST: so many ms ago.
passed() { local ms=$(($(now_ms) - $1)) && echo "$ms ms" && [ "$ms" -ge "$2" ] && [ "$ms" -le "$3" ]; }
gone() { ! alive "$(cat "$1")"; }

# ---- A command that takes too long ----
from=$(now_ms)
exits 114 'it is ended' "$DIBS" run n --max 500ms -- sh -c 'sleep 60 & echo $! >"$0"; wait' "$dir/child"
ok 'after its time, and not much later' passed "$from" 500 10000
is 'one line' "$err" \
  "dibs: the command of 'n' ran longer than --max 500ms, and dibs ended it; signal 15 (Terminated) ended the command"
ok 'with all that it started' gone "$dir/child"
exits 0 'the name is free' "$DIBS" run n --try -- true

exits 114 'JSON' "$DIBS" run n --max 300ms --json -- sleep 60
like 'JSON: the object' "$err" '^\{"command":"run","exit":114,"status":"","message":"the command of .n. ran longer than --max 300ms'

# ---- TERM first, KILL after the grace ----
exits 114 'it may clean up' "$DIBS" run n --max 300ms --grace 5s --ttl 30s -- \
  bash -c 'trap "echo cleaned >\"$0\"; exit 7" TERM; while :; do sleep 0.05; done' "$dir/cleaned"
is 'it did' "$(cat "$dir/cleaned")" cleaned
like 'its status is in the message' "$err" 'the command exited with 7$'
from=$(now_ms)
exits 114 'it ignores TERM' "$DIBS" run n --max 300ms --grace 700ms --ttl 30s -- \
  bash -c 'trap "" TERM; while :; do sleep 0.05; done'
ok 'KILL comes after the grace' passed "$from" 1000 10000
like 'KILL is in the message' "$err" 'signal 9 \(Killed\) ended the command$'
exits 0 'nor is the name held' "$DIBS" run n --try -- true
exits 114 'a stopped command' "$DIBS" run n --max 300ms -- sh -c 'kill -STOP $$'

# ---- A command that ends in time ----
exits 3 'its own status' "$DIBS" run n --max 60s -- sh -c 'exit 3'
is 'nothing is printed' "$err" ''
exits 143 'its own signal' "$DIBS" run n --max 60s -- sh -c 'kill -TERM $$'
exits 127 'no such command' "$DIBS" run n --max 1ms -- /no/such/command

# ---- Waiting does not count ----
"$DIBS" run n -- sleep 1.5 &
later $!
until_true 10 "$DIBS" show n
exits 0 'the time begins with the command' "$DIBS" run n --wait 20s --max 1s -- true

# ---- A lease that is lost is lost ----
exits 122 'a broken lease' "$DIBS" run n --ttl 3s --max 60s -- sh -c '"$DIBS" break n; sleep 60'

# ---- Longer than the ttl: dibs renews until then ----
from=$(now_ms)
exits 114 'longer than the ttl' "$DIBS" run n --ttl 1s --max 3s -- sleep 60
ok 'not before its time' passed "$from" 3000 12000

# ---- With --at-least ----
exits 114 'with --at-least' "$DIBS" run m --max 300ms --at-least 60s -- sleep 60
exits 120 'the name stays held' "$DIBS" run m --try -- true

# ---- A store that does not answer at the end ----
sqlite3 "${DIBS_STORE#sqlite://}" >/dev/null 2>&1 < <(
  until [ -e "$dir/go" ]; do sleep 0.02; done
  echo 'BEGIN EXCLUSIVE;'
  until [ -e "$dir/over" ] || [ ! -d "$dir" ]; do sleep 0.05; done # the folder may go first
) &
later $!
exits 114 'the store is locked when the command is over' "$DIBS" run g --max 500ms --ttl 6s --grace 2s -- \
  bash -c 'trap "touch \"$0\"; sleep 0.8; exit 0" TERM; sleep 9 & wait' "$dir/go"
like 'the lease stays, and the message says it' "$err" 'dibs ended it; .*; the lease was not released and expires after its ttl: '
touch "$dir/over"

# ---- What does not go together ----
exits 125 'with --reenter' "$DIBS" run n --max 1s --reenter -- true
like 'with --reenter: the message' "$err" '^dibs: --reenter and --max do not go together'
exits 125 'no time' "$DIBS" run n --max 0s -- true
exits 125 'not a duration' "$DIBS" run n --max 2 -- true
exits 125 'lock has nothing to end' "$DIBS" lock n --max 1s
done_testing
