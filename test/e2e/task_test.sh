#!/bin/bash
# SPDX-License-Identifier: MIT
# dibs task and dibs dead: adding, listing, showing and changing tasks.
#   task_test.sh [URI]    without URI in a file
. "$(dirname "$0")/tap.sh"
[ -z "${1:-}" ] || export DIBS_STORE=$1
state() { "$DIBS" task show "$1" 2>/dev/null | sed -n 's/^state //p'; }
ids() { "$DIBS" task ls --json "$@" | grep -o '"task":[0-9]*' | cut -d : -f 2 | tr '\n' ' '; }
# work KIND COMMAND: does what is ready.
work() { "$DIBS" worker --once --kind "$1" --exec "$2" >/dev/null 2>&1; }

# ---- Adding ----
exits 0 'add' "$DIBS" task add mail 'to ann'
like 'add prints the number' "$out" '^[0-9]+$'
first=$out
exits 0 'show' "$DIBS" task show "$first"
like 'show: the payload' "$out" 'payload, 6 bytes:'
like 'show: the state' "$(state "$first")" '^(arrived|ready)$'
exits 0 'add with everything' "$DIBS" task add mail two --phase p1 --key ann --unique u1 --priority -5 --delay 1h --tries 3
second=$out
like 'numbers grow' "$((second > first))" 1
show=$("$DIBS" task show "$second")
for line in 'phase p1' 'key ann' 'unique u1' 'priority -5' 'failed 0 of 3'; do like "show: $line" "$show" "^$line$"; done
exits 0 'the same unique text again' "$DIBS" task add mail three --unique u1
is 'prints the number that has it' "$out" "$second"
exits 0 'add --json' "$DIBS" task add mail three --unique u1 --json
ok 'add --json is JSON' "$JSON_CHECK" <"$dir/out"
like 'add --json: the status' "$out" '"status":"REPLAY"'
printf 'a\0b\377\n' | "$DIBS" task add bytes - >/dev/null
printf 'from a file' >"$dir/payload"
exits 0 'add @FILE' "$DIBS" task add bytes "@$dir/payload"
like 'is the file' "$("$DIBS" task show "$out")" '^from a file$'
exits 125 'add @FILE that is not there' "$DIBS" task add bytes "@$dir/nothing"
like 'names the file' "$err" 'nothing.*No such file'
head -c 1048577 /dev/zero >"$dir/large"
exits 125 'a payload that is too large' "$DIBS" task add bytes "@$dir/large"
head -c 1048576 /dev/zero >"$dir/large"
exits 0 'a payload of 1 MiB' "$DIBS" task add bytes "@$dir/large"
exits 0 'an empty payload' "$DIBS" task add bytes
is 'bytes arrive unchanged' "$("$DIBS" worker --once --kind bytes --exec 'sha256sum' >/dev/null 2>&1; for nr in $(ids --kind bytes --state done); do
  "$DIBS" task show "$nr" | sed -n 's/^\([0-9a-f]\{64\}\) .*/\1/p'; done)" \
  "$(printf 'a\0b\377\n' | sha256sum | cut -c 1-64; sha256sum <"$dir/payload" | cut -c 1-64
    sha256sum <"$dir/large" | cut -c 1-64; sha256sum </dev/null | cut -c 1-64)"

# ---- Wrong calls ----
for words in 'add' 'add k --priority x' 'add k --priority 1001' 'ls --state nothing' 'ls --state=' 'show x' 'show 0' 'add k p q' 'retry' 'purge' \
  'ls --delay 1s' 'counts --kind x' 'kind k --paused maybe' 'nothing'; do
  # shellcheck disable=SC2086  # words are meant
  exits 125 "wrong: task $words" "$DIBS" task $words
done
exits 125 'dead has no cancel' "$DIBS" dead cancel 1
exits 125 'dead takes no --state' "$DIBS" dead ls --state done
exits 117 'show of no task' "$DIBS" task show 999999999
exits 117 'cancel of no task' "$DIBS" task cancel 999999999

# ---- Listing and filters ----
for i in 1 2 3; do "$DIBS" task add list "$i" --phase "p$i" --key k >/dev/null; done
is 'ls by phase' "$(ids --kind list --phase p2 | wc -w)" 1
is 'ls by key' "$(ids --key k | wc -w)" 3
is 'ls --count' "$(ids --kind list --count 2 | wc -w)" 2
is 'ls of a state' "$(ids --kind list --state done,dead | wc -w)" 0
is 'ls of unfinished ones' "$(ids --kind list --state unfinished | wc -w)" 3
is 'ls of what did not change for long' "$(ids --kind list --older 1h | wc -w)" 0
like 'ls is a table' "$("$DIBS" task ls --kind list)" '^TASK +KIND +STATE'
is 'ls of nothing is empty' "$("$DIBS" task ls --kind nothing)" ''
"$DIBS" task ls --json >"$dir/out"
ok 'ls --json is JSON' "$JSON_CHECK" <"$dir/out"
"$DIBS" task show "$first" --json >"$dir/out"
ok 'show --json is JSON' "$JSON_CHECK" <"$dir/out"
"$DIBS" task counts --json >"$dir/out"
ok 'counts --json is JSON' "$JSON_CHECK" <"$dir/out"
like 'counts' "$("$DIBS" task counts bytes)" '^bytes .* 4 '

# ---- Changing ----
exits 0 'cancel' "$DIBS" task cancel "$first"
is 'cancel: how many' "$out" 'cancelled 1'
is 'it is cancelled' "$(state "$first")" cancelled
exits 117 'cancel again: nothing to do' "$DIBS" task cancel "$first"
exits 0 'retry' "$DIBS" task retry "$first"
is 'it is ready' "$(state "$first")" ready
exits 0 'cancel of a filter' "$DIBS" task cancel --kind list
is 'all that match' "$out" 'cancelled 3'
exits 0 'purge --dry-run' "$DIBS" task purge --kind list --dry-run
is 'counts them' "$out" 'would purge 3'
is 'and deletes none' "$(ids --kind list | wc -w)" 3
exits 0 'purge --count' "$DIBS" task purge --kind list --count 2 --json
ok 'purge --json is JSON' "$JSON_CHECK" <"$dir/out"
like 'purge --json: how many' "$out" '"tasks":2'
is 'one is left' "$(ids --kind list | wc -w)" 1
exits 0 'purge of a filter without tasks' "$DIBS" task purge --kind nothing
is 'purges none' "$out" 'purged 0'

for i in 1 2 3; do "$DIBS" task add many "$i" >/dev/null; done
script -qec "'$DIBS' task cancel --kind many --rate 2" /dev/null </dev/null >"$dir/terminal" 2>&1
like 'on a terminal the progress is shown' "$(tr '\r' '\n' <"$dir/terminal")" 'cancel: 2 tasks'
like 'and then the result' "$(tail -n 1 "$dir/terminal")" 'cancelled 3'
for i in 4 5 6; do "$DIBS" task add many "$i" >/dev/null; done
script -qec "'$DIBS' --quiet task cancel --kind many --rate 2" /dev/null </dev/null >"$dir/terminal" 2>&1
is 'and none with --quiet' "$(tr -d '\r' <"$dir/terminal")" 'cancelled 3'

# ---- Dead ones ----
for i in 1 2 3 4 5; do "$DIBS" task add frail "$i" --tries 1 >/dev/null; done
"$DIBS" task add frail 6 --tries 1 --key gw >/dev/null
later_one=$("$DIBS" task add frail 7 --key gw)
work frail 'read n; echo "no route to $n" >&2; exit 3'
is 'dead ls: the dead and the parked one' "$("$DIBS" dead ls --json | grep -o '"state":"[a-z]*"' | sort | uniq -c | tr -s ' \n' ' ')" \
  ' 5 "state":"dead" 1 "state":"parked" '
is 'a task behind the parked one waits' "$(state "$later_one")" blocked
nr=$("$DIBS" dead ls --json --kind frail | grep -o '"task":[0-9]*' | head -n 1 | cut -d : -f 2)
show=$("$DIBS" dead show "$nr")
like 'dead show: the error' "$show" 'exited with 3'
like 'dead show: the output' "$show" 'no route to '
exits 0 'dead requeue by error, dry run' "$DIBS" dead requeue --kind frail --error 'exited with 3' --dry-run
is 'counts all' "$out" 'would requeue 6'
began=$(now_ms)
exits 0 'dead requeue at a rate' "$DIBS" dead requeue --kind frail --rate 3
is 'requeues all' "$out" 'requeued 6'
like 'in two seconds' "$(($(now_ms) - began >= 1000))" 1
is 'nothing is dead' "$("$DIBS" dead ls)" ''
work frail 'exit 0'
is 'all are done' "$(ids --kind frail --state done | wc -w)" 7

# Dead tasks with one unique text: all but one are left out, and the later tasks are requeued.
for i in 1 2 3; do
  "$DIBS" task add twins "$i" --tries 1 --unique twin >/dev/null
  work twins 'exit 3'
done
for i in 1 2; do "$DIBS" task add twins "$i" --tries 1 >/dev/null; done
work twins 'exit 3'
is 'five are dead' "$(ids --kind twins --state dead | wc -w)" 5
exits 0 'dead requeue at a rate, of twins' "$DIBS" dead requeue --kind twins --rate 2
is 'requeues one of the twins and all others' "$out" 'requeued 3'
is 'two twins are left' "$(ids --kind twins --state dead | wc -w)" 2

# ---- Settings ----
exits 0 'kind: the defaults' "$DIBS" task kind frail
is 'kind: printed' "$out" "$(printf 'running 0 (no limit)\npaused off\nkeep 7d')"
exits 0 'kind: set' "$DIBS" task kind frail --running 2 --paused on --keep 1h
like 'kind: what was set' "$(echo $out)" '^running 2 paused on keep 1h'
"$DIBS" task kind frail --json >"$dir/out"
ok 'kind --json is JSON' "$JSON_CHECK" <"$dir/out"
nr=$("$DIBS" task add frail x)
work frail 'exit 0'
like 'a paused kind gives no task' "$(state "$nr")" '^(arrived|ready)$'
"$DIBS" task kind frail --paused off >/dev/null
work frail 'exit 0'
is 'after the pause it does' "$(state "$nr")" done
done_testing
