#!/bin/bash
# SPDX-License-Identifier: MIT
# dibs worker: real processes that work on tasks, die, stop, and are drained.
#   worker_test.sh [URI]    without URI in a file
. "$(dirname "$0")/tap.sh"
[ -z "${1:-}" ] || export DIBS_STORE=$1
state() { "$DIBS" task show "$1" 2>/dev/null | sed -n 's/^state //p'; }
is_state() { [ "$(state "$1")" = "$2" ]; }
field() { "$DIBS" task show "$1" --json | grep -o "\"$2\":[0-9]*" | cut -d : -f 2; }
count_of() { "$DIBS" task ls --json --kind "$1" --state "$2" | grep -o '"task":' | wc -l; }
counts() { [ "$(count_of "$1" "$2")" = "$3" ]; }
# worker KIND COMMAND [OPTION...]: in the background; $worker is its pid.
worker() {
  "$DIBS" worker --kind "$1" --exec "$2" "${@:3}" >"$dir/worker.out" 2>"$dir/worker.err" </dev/null &
  worker=$!
  later $worker
}
once() { timeout 60 "$DIBS" worker --once --kind "$1" --exec "$2" "${@:3}" >"$dir/worker.out" 2>"$dir/worker.err"; }
minders() { # of a worker, below its launchers
  local launcher
  for launcher in $(cat "/proc/$1/task/$1/children"); do cat "/proc/$launcher/task/$launcher/children" 2>/dev/null; done
}

# ---- The command and its verdicts ----
nr=$("$DIBS" task add env payload --phase p --key k)
once env 'echo "$DIBS_TASK $DIBS_KIND $DIBS_PHASE $DIBS_KEY $DIBS_FENCE $DIBS_ATTEMPT $(cat)"; echo more >&2'
is 'the command ends with 0: done' "$(state "$nr")" done
like 'what it got, and its output' "$("$DIBS" task show "$nr")" "^$nr env p k [1-9][0-9]* 1 payload$"
like 'standard error is kept, too' "$("$DIBS" task show "$nr")" '^more$'
DIBS_NAME=a DIBS_LEASE=b DIBS_SLOT=1 once env 'true' # nothing is ready
nr=$("$DIBS" task add env x)
DIBS_NAME=a DIBS_SLOT=1 once env 'echo "${DIBS_NAME-none}${DIBS_SLOT-none}${DIBS_PHASE-none}"'
like 'no variable of a lease is left' "$("$DIBS" task show "$nr")" '^nonenonenone$'

nr=$("$DIBS" task add fail x --tries 1)
once fail 'echo reason; exit 9'
is 'another status: failed, here dead' "$(state "$nr")" dead
like 'the error: the status and the output' "$("$DIBS" task show "$nr" | tr '\n' ' ')" 'the command exited with 9 reason'
nr=$("$DIBS" task add fail x --tries 1)
once fail 'kill -KILL $$'
like 'a signal: failed' "$("$DIBS" task show "$nr")" 'signal 9 '
nr=$("$DIBS" task add start x --tries 1)
timeout 60 "$DIBS" worker --once --kind start -- ./missing 2>"$dir/worker.err"
like 'a command that cannot be started is reported without a terminal, too' "$(cat "$dir/worker.err")" "^dibs: task $nr: failed .*cannot run './missing'"
nr=$("$DIBS" task add fail x)
once fail 'exit 87'
is '87: dead at once' "$(state "$nr")" dead
is '87: whatever it may fail' "$(field "$nr" max_failures)" 10

nr=$("$DIBS" task add again x)
once again '[ "$DIBS_ATTEMPT" = 3 ] || exit 85'
is '85: again, at once' "$(state "$nr") $(field "$nr" attempts) $(field "$nr" failures)" 'done 3 0'
nr=$("$DIBS" task add phases x)
once phases 'case ${DIBS_PHASE-} in
  "") printf "noise\ntrigger\n" >"$DIBS_NEXT_PHASE"; exit 86;;
  trigger) echo stage >"$DIBS_NEXT_PHASE"; exit 86;;
esac'
is '86: the next phase' "$(state "$nr") $(field "$nr" attempts) $("$DIBS" task show "$nr" | sed -n 's/^phase //p')" 'done 3 stage'
nr=$("$DIBS" task add phases x --tries 1)
once phases 'exit 86'
like '86 without a phase: failed, and says why' "$("$DIBS" task show "$nr")" 'wrote no phase'
nr=$("$DIBS" task add wait x)
worker wait '[ -e '"$dir"'/certificate ] || exit 75'
ok '75: waits' until_true 10 eval "[ \"\$(field $nr attempts)\" -ge 3 ]"
is '75: no failure' "$(field "$nr" failures)" 0
touch "$dir/certificate"
ok 'and is done when it can be' until_true 20 is_state "$nr" done
kill -TERM $worker
wait $worker
is 'TERM: the worker ends with 0' $? 0

nr=$("$DIBS" task add argv 'some words')
timeout 30 "$DIBS" worker --once --kind argv -- sh -c 'echo "$1: $(cat)"' sh 'one argument'
like 'a command after --' "$("$DIBS" task show "$nr")" '^one argument: some words$'
nr=$("$DIBS" task add argv x --tries 1)
timeout 30 "$DIBS" worker --once --kind argv -- "$dir/no-such-command"
like 'a command that is not there' "$("$DIBS" task show "$nr")" "cannot run '.*no-such-command': No such file"
head -c 1048576 /dev/urandom >"$dir/large"
nr=$("$DIBS" task add large "@$dir/large")
once large 'sha256sum'
like 'a payload of 1 MiB' "$("$DIBS" task show "$nr")" "^$(sha256sum <"$dir/large" | cut -c 1-64) "
nr=$("$DIBS" task add large x)
once large 'head -c 3000000 /dev/zero | tr "\0" a; echo; echo the end'
like 'of a large output the end is kept' "$("$DIBS" task show "$nr" | tail -n 3 | head -n 1)" 'the end'
is 'and no more than 4 KiB' "$(($("$DIBS" task show "$nr" | wc -c) < 5000))" 1
nr=$("$DIBS" task add large x)
once large 'printf "a\0b\377c\n"'
is 'an output of any bytes' "$(state "$nr")" done

# ---- Wrong calls ----
exits 125 'no kind' "$DIBS" worker --exec true
exits 125 'no command' "$DIBS" worker --kind k
exits 125 'two commands' "$DIBS" worker --kind k --exec true -- true
exits 125 'a timeout that is too short' "$DIBS" worker --kind k --exec true --timeout 100ms

# ---- Limits ----
for i in 1 2 3 4 5; do "$DIBS" task add few "$i" >/dev/null; done
exits 0 '--max-tasks' timeout 60 "$DIBS" worker --kind few --max-tasks 2 --exec true --json
ok 'its report is JSON' "$JSON_CHECK" <"$dir/out"
is 'it did so many' "$(count_of few done)" 2
"$DIBS" task add max x --tries 1 >/dev/null
began=$(now_ms)
once max 'sleep 60 & sleep 60' --max 300ms
nr=$("$DIBS" task ls --json --kind max | grep -o '"task":[0-9]*' | cut -d : -f 2)
like '--max: the command is ended, and the try has failed' "$("$DIBS" task show "$nr")" 'longer than --max 300ms'
is '--max: in time' "$(($(now_ms) - began < 10000))" 1
"$DIBS" task kind limited --running 1 >/dev/null
for i in 1 2 3; do "$DIBS" task add limited "$i" >/dev/null; done
once limited "echo x >>$dir/limited.\$(ls $dir/limited.in.* 2>/dev/null | wc -l); touch $dir/limited.in.\$\$; sleep 0.1; rm $dir/limited.in.\$\$" --jobs 3
is 'a kind with a limit of one' "$(cat "$dir/limited.0" | wc -l) $(ls "$dir"/limited.* | wc -l)" '3 1'

# ---- The history ----
row() { "$DIBS" history --json --last 1 "$1"; }
nr=$("$DIBS" task add kept x)
once kept 'echo said; sleep 0.3' --owner ann
like 'a command that is done leaves a row' "$(row kept)" \
  '^\[\{"name":"kept","kind":"worker","outcome":"done","code":0,.*"host":"ann","fence":[1-9][0-9]*,"task":'"$nr"',"command":"sh -c echo said; sleep 0.3","output":"said\\n"\}\]$'
took=$(row kept | grep -o '"duration_ms":[0-9]*' | cut -d : -f 2)
ok 'how long it took' test "$took" -ge 300 -a "$took" -le 10000
"$DIBS" task add kept x --tries 1 >/dev/null
once kept 'echo reason; exit 9'
like 'one that failed' "$(row kept)" '"outcome":"failed","code":9,.*"output":"reason\\n"'
"$DIBS" task add kept x --tries 1 >/dev/null
once kept 'exit 87'
like 'one whose task is dead' "$(row kept)" '"outcome":"failed","code":87,'
"$DIBS" task add kept x --tries 1 >/dev/null
once kept 'kill -KILL $$'
like 'one that was killed' "$(row kept)" '"outcome":"killed","code":9,'
"$DIBS" task add kept x --tries 1 >/dev/null
timeout 30 "$DIBS" worker --once --kind kept -- "$dir/no-such-command"
like 'one that is not there' "$(row kept)" '"outcome":"not run","code":127,'
like 'one that ran too long' "$(row max)" '"outcome":"overtime",'
is 'again and next phase: a row for each run, and none has failed' \
  "$("$DIBS" history again --json | grep -o '"outcome":"[a-z ]*","code":[0-9]*' | tr '\n' ' ')" \
  '"outcome":"done","code":0 "outcome":"done","code":85 "outcome":"done","code":85 '
for i in $(seq 40); do "$DIBS" task add many "$i"; done >/dev/null
once many 'cat; exit 3' --jobs 4
is 'a row for each of many' "$("$DIBS" history many --last 1000 --json | grep -o '"output":"[0-9]*"' | sort -u | wc -l)" 40
for i in 1 2; do "$DIBS" task add unkept "$i"; done >/dev/null
once unkept true --no-history --max-tasks 1
DIBS_HISTORY=off once unkept true
is '--no-history and DIBS_HISTORY=off: done' "$(count_of unkept done)" 2
is 'and no row' "$("$DIBS" history unkept)" ''

# ---- Several workers ----
for i in $(seq 200); do echo "$i"; done | while read -r i; do "$DIBS" task add crowd "$i"; done >/dev/null
worker crowd 'read n; echo "$n" >>'"$dir"'/crowd' --jobs 3
one=$worker
worker crowd 'read n; echo "$n" >>'"$dir"'/crowd' --jobs 3
two=$worker
ok '200 tasks are done by two workers' until_true 60 counts crowd done 200
kill -TERM $one $two
wait $one && wait $two
is 'both end with 0' $? 0
is 'each was done once' "$(sort -n "$dir/crowd" | tr '\n' ' ')" "$(seq 200 | tr '\n' ' ')"
serial=()
for i in 1 2 3 4 5; do serial+=("$("$DIBS" task add serial "$i" --key gw)"); done
once serial 'read n; echo "begin $n" >>'"$dir"'/serial; sleep 0.05; echo "end $n" >>'"$dir"'/serial' --jobs 4
is 'tasks of one key run one after the other' "$(tr '\n' ' ' <"$dir/serial")" \
  "$(for i in 1 2 3 4 5; do printf 'begin %s end %s ' $i $i; done)"

# ---- A worker that dies ----
nr=$("$DIBS" task add killed x)
worker killed "echo \$\$ >$dir/killed.pid; sleep 60 & wait" --timeout 2s
ok 'it runs' until_true 10 filled "$dir/killed.pid"
kill -KILL $worker
ok 'kill -9 of dibs: the command is ended, too' until_true 10 gone "$(cat "$dir/killed.pid")"
is 'the task is still claimed' "$(state "$nr")" claimed
worker killed 'exit 0' --timeout 2s
ok 'another worker does it after the timeout' until_true 20 is_state "$nr" done
is 'and it counted as a failed try' "$(field "$nr" failures) $(field "$nr" attempts)" '1 2'
like 'which is kept with it' "$("$DIBS" task show "$nr")" 'ended without an answer'
kill -TERM $worker
wait $worker

# ---- A worker that is stopped for longer than its claim ----
nr=$("$DIBS" task add stopped x)
worker stopped "echo \$\$ >>$dir/stopped.pids; [ \$DIBS_ATTEMPT -gt 1 ] || sleep 60" --timeout 2s --json
ok 'it runs' until_true 10 filled "$dir/stopped.pids"
pid=$(head -n 1 "$dir/stopped.pids")
kill -STOP $worker
one=$worker
ok 'SIGSTOP of dibs: the minder ends the command before the claim ends' until_true 10 gone "$pid"
is 'the claim is not over yet' "$(field "$nr" attempts)" 1
worker stopped 'exit 0' --timeout 2s
ok 'another worker does it' until_true 20 is_state "$nr" done
kill -CONT $one
kill -TERM $one
wait $one
is 'the stopped one ends with 0' $? 0
kill -TERM $worker
wait $worker
is 'done once, after one failed try' "$(field "$nr" failures) $(field "$nr" attempts)" '1 2'

nr=$("$DIBS" task add paused x)
"$DIBS" worker --kind paused --timeout 2s --json --exec "echo begun >>$dir/paused; sleep 60" >"$dir/paused.out" 2>/dev/null </dev/null &
one=$!
later $one
ok 'a worker and its minder run' until_true 10 filled "$dir/paused"
# shellcheck disable=SC2046  # pids are meant
kill -STOP $one $(minders $one)
worker paused 'exit 0' --timeout 2s
ok 'all stopped: another worker does the task' until_true 20 is_state "$nr" done
# shellcheck disable=SC2046  # pids are meant
kill -CONT $one $(minders $one)
kill -TERM $one
wait $one
like 'the late verdict is refused' "$(cat "$dir/paused.out")" '"refused":1'
is 'and changed nothing' "$(state "$nr") $(field "$nr" failures)" 'done 1'
kill -TERM $worker
wait $worker

# ---- Its helpers die ----
nr=$("$DIBS" task add minded x --tries 1)
worker minded "setsid sleep 60 & echo \$\$ >$dir/minded.pid; sleep 60"
ok 'it runs' until_true 10 filled "$dir/minded.pid"
# shellcheck disable=SC2046  # pids are meant
kill -KILL $(minders $worker)
ok 'kill -9 of the minder: the command is ended' until_true 10 gone "$(cat "$dir/minded.pid")"
ok 'and the try has failed' until_true 10 is_state "$nr" dead
like 'with the reason' "$("$DIBS" task show "$nr")" 'minder of the command was killed'
ok 'nothing that it started is left' until_true 10 eval '[ -z "$(minders $worker)" ]'
nr=$("$DIBS" task add minded x)
ok 'the worker goes on' until_true 10 is_state "$nr" claimed
kill -TERM $worker
sleep 0.2
kill -TERM $worker
wait $worker
is 'a second signal ends the command at once' "$? $(state "$nr")" '0 ready'
worker minded true
ok 'the next worker' until_true 10 is_state "$nr" done
# shellcheck disable=SC2046  # pids are meant
kill -KILL $(cat "/proc/$worker/task/$worker/children")
nr=$("$DIBS" task add minded x)
wait $worker
is 'kill -9 of the process that starts commands: 119' $? 119
like 'with a message' "$(cat "$dir/worker.err")" 'was killed or stopped; the worker ends'
like 'the task is given back' "$(state "$nr") $(field "$nr" failures)" '^ready 0$'
worker minded true
ok 'the next worker' until_true 10 is_state "$nr" done
read -r launcher <"/proc/$worker/task/$worker/children"
kill -STOP "$launcher"
nr=$("$DIBS" task add minded x)
wait $worker
is 'SIGSTOP of the process that starts commands: 119, too' $? 119
like 'the task is given back' "$(state "$nr") $(field "$nr" failures)" '^ready 0$'
ok 'and that process ends with its worker' until_true 10 gone "$launcher"

# ---- The folder of DIBS_NEXT_PHASE ----
mkdir "$dir/phases"
TMPDIR=$dir/phases worker phases 'echo next >"$DIBS_NEXT_PHASE"; [ "$DIBS_PHASE" = next ] || exit 86'
nr=$("$DIBS" task add phases x)
ok 'a task with a next phase' until_true 10 is_state "$nr" done
folder=$(echo "$dir"/phases/*)
rm -r "$folder"
nr=$("$DIBS" task add phases x)
ok 'the folder is made again' until_true 10 is_state "$nr" done
rm -r "$folder"
touch "$folder"
nr=$("$DIBS" task add phases x)
ok 'a command that cannot be started is reported' until_true 10 grep -q "cannot start a command for task $nr" "$dir/worker.err"
sleep 2.5 # for some tries
ok 'its task is not claimed again at once' test "$(field "$nr" attempts)" -le 5
rm "$folder"
ok 'and is done as soon as it can be' until_true 10 is_state "$nr" done
is 'it was reported once' "$(grep -c 'cannot start' "$dir/worker.err")" 1
kill -TERM $worker
wait $worker
worker lacking true
until_true 10 test -s "/proc/$worker/task/$worker/children"
read -r launcher <"/proc/$worker/task/$worker/children"
prlimit --pid "$launcher" --nofile=8: # enough for its minder, and not for a command
nr=$("$DIBS" task add lacking x --tries 1)
ok 'no descriptor is left' until_true 10 grep -q "cannot start a command for task $nr: Too many open files" "$dir/worker.err"
is 'which is no failed try' "$(field "$nr" failures)" 0
prlimit --pid "$launcher" --nofile=1024:
ok 'the task is done as soon as it can be' until_true 10 is_state "$nr" done
kill -TERM $worker
wait $worker
nr=$("$DIBS" task add fifo x --tries 1)
once fifo 'rm "$DIBS_NEXT_PHASE" && mkfifo "$DIBS_NEXT_PHASE"; exit 86'
like 'a pipe in place of the file: no phase' "$("$DIBS" task show "$nr")" 'wrote no phase'

# ---- A person cancels ----
nr=$("$DIBS" task add cancelled x)
worker cancelled "echo \$\$ >$dir/cancelled.pid; sleep 60" --timeout 2s
ok 'it runs' until_true 10 filled "$dir/cancelled.pid"
"$DIBS" task cancel "$nr" >/dev/null
ok 'cancel: the command is ended' until_true 10 gone "$(cat "$dir/cancelled.pid")"
is 'and the task stays cancelled' "$(state "$nr")" cancelled
kill -TERM $worker
wait $worker
like 'its row: lost' "$(row cancelled)" '"outcome":"lost",.*"task":'"$nr"','

# ---- Draining ----
nr=$("$DIBS" task add drain x)
worker drain "echo \$\$ >$dir/drain.pid; until [ -e $dir/go ]; do sleep 0.05; done"
ok 'it runs' until_true 10 filled "$dir/drain.pid"
other=$("$DIBS" task add drain y)
kill -TERM $worker
sleep 0.3
ok 'TERM: the worker waits for the command' alive "$worker"
touch "$dir/go"
wait $worker
is 'and ends with 0' $? 0
is 'its task is done' "$(state "$nr")" done
is 'and no other was begun' "$(field "$other" attempts)" 0
rm "$dir/go" "$dir/drain.pid"
mkdir "$dir/tmp"
TMPDIR=$dir/tmp worker drain "echo \$\$ >$dir/drain.pid; until [ -e $dir/go ]; do sleep 0.05; done" --drain 300ms
ok 'it runs' until_true 10 filled "$dir/drain.pid"
kill -TERM $worker
wait $worker
is 'after --drain it ends with 0, too' $? 0
ok 'the command is gone' gone "$(cat "$dir/drain.pid")"
like 'its task is given back' "$(state "$other")" ready
is 'which is no failure' "$(field "$other" failures)" 0
is 'no file is left' "$(ls "$dir/tmp")" ''

# ---- Waking ----
worker wake 'exit 0'
sleep 0.5
began=$(now_ms)
nr=$("$DIBS" task add wake x)
ok 'a task of another process is begun' until_true 10 is_state "$nr" done
is 'within some seconds' "$(($(now_ms) - began < 4000))" 1
kill -TERM $worker
wait $worker
done_testing
