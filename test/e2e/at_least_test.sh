#!/bin/bash
# SPDX-License-Identifier: MIT
# dibs run --at-least: the name stays held for its time, and dibs does not.
. "$(dirname "$0")/tap.sh"

now_ms() { date +%s%3N; }
# passed FROM LEAST MOST: so many ms ago.
passed() { local ms=$(($(now_ms) - $1)) && echo "$ms ms" && [ "$ms" -ge "$2" ] && [ "$ms" -le "$3" ]; }

# ---- It stays held, and dibs ends ----
from=$(now_ms)
exits 3 'the status is that of the command' "$DIBS" run n --at-least 3s -- sh -c 'exit 3'
ok 'dibs itself ends at once' passed "$from" 0 2500
exits 120 'the name is held' "$DIBS" run n --try -- true
exits 0 'by an owner that is gone' "$DIBS" show n --json
like 'what is left of it is the rest of the time, not the ttl' "$out" '"left_ms":[12]?[0-9]{1,3},'
exits 0 'the next one gets it' "$DIBS" run n --wait 20s -- true
ok 'when the time is over, and a second later at most' passed "$from" 3000 6000

# ---- A command that takes longer ----
from=$(now_ms)
exits 0 'a command that takes longer' "$DIBS" run n --at-least 300ms -- sleep 0.6
exits 0 'is free at its end' "$DIBS" run n --try -- true
exits 0 'none' "$DIBS" run n --at-least 0s -- true
exits 0 'none: free at once' "$DIBS" run n --try -- true

# ---- However it ends ----
"$DIBS" run n --at-least 60s -- sh -c 'echo $$ >"$0"; exec sleep 60' "$dir/pid" &
later $!
until_true 10 test -s "$dir/pid"
kill -TERM "$!"
wait "$!"
is 'a signal ends it' "$?" 143
exits 120 'a signal ended it: the name is held' "$DIBS" run n --try -- true
exits 0 'break' "$DIBS" break n --now
exits 127 'a command that does not exist' "$DIBS" run n --at-least 60s -- /no/such/command
exits 0 'a command that does not exist keeps nothing' "$DIBS" run n --try -- true
exits 122 'a broken lease' "$DIBS" run n --ttl 3s --at-least 60s -- sh -c '"$DIBS" break n; sleep 60'
exits 0 'a broken lease keeps nothing' "$DIBS" run n --try -- true

# ---- Slots ----
exits 0 'a slot' "$DIBS" run s --slots 1 --at-least 60s -- true
exits 120 'the slot is held' "$DIBS" run s --slots 1 --try -- true

# ---- What does not go together ----
exits 125 'longer than a lease can be' "$DIBS" run n --at-least 25h -- true
like 'longer than a lease can be: the message' "$err" "^dibs: --at-least: '25h' is not between 0ms and (24h|1d)"
exits 125 'with --reenter' "$DIBS" run n --at-least 1s --reenter -- true
like 'with --reenter: the message' "$err" '^dibs: --reenter and --at-least do not go together'
exits 125 'lock has nothing to end' "$DIBS" lock n --at-least 1s
done_testing
