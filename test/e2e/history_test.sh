#!/bin/bash
# SPDX-License-Identifier: MIT
# dibs history: the rows that runs leave, and what chooses among them.
#   history_test.sh [STORE]
. "$(dirname "$0")/tap.sh"
[ $# = 0 ] || export DIBS_STORE=$1

# row NAME: the latest run of the name, as JSON.
row() { "$DIBS" history --json --last 1 "$1"; }
# names [OPTION...]: the names that are listed, in their order.
names() { "$DIBS" history --json "$@" | grep -o '"name":"[^"]*"' | cut -d '"' -f 4 | tr '\n' ' '; }

# ---- What each end leaves ----
exits 0 'there is nothing yet' "$DIBS" history
is 'and nothing is printed' "$out" ''
began=$(now_ms)
exits 0 'a run that is done' "$DIBS" run done --owner ann -- sleep 0.3
ended=$(now_ms)
like 'done: how, where and the command' "$(row done)" \
  '^\[\{"name":"done","kind":"run","outcome":"done","code":0,.*"host":"ann","fence":[1-9][0-9]*,"task":null,"command":"sleep 0.3","output":""\}\]$'
ok 'as JSON' "$JSON_CHECK" < <(row done)
took=$(row done | grep -o '"duration_ms":[0-9]*' | cut -d : -f 2)
ok 'how long it took' test "$took" -ge 300 -a "$took" -le $((ended - began + 5))
at=$(row done | grep -o '"started_at_ms":[0-9]*' | cut -d : -f 2)
ok 'when it began' test "$at" -ge $((began - 2000)) -a "$at" -le $((ended + 2000))
exits 3 'a run that fails' "$DIBS" run fails -- sh -c 'exit 3'
like 'failed, with its status' "$(row fails)" '"outcome":"failed","code":3,'
exits 137 'a run that is killed' "$DIBS" run killed -- sh -c 'kill -9 $$'
like 'killed, with the signal' "$(row killed)" '"outcome":"killed","code":9,'
exits 114 'a run that takes too long' "$DIBS" run slow --max 200ms -- sleep 60
like 'overtime' "$(row slow)" '"outcome":"overtime",'
exits 127 'a command that does not exist' "$DIBS" run none -- "$dir/nothing"
like 'not run' "$(row none)" '"outcome":"not run","code":127,'
"$DIBS" run broken --ttl 2s -- sleep 60 >/dev/null 2>&1 &
pid=$!
later "$pid"
until_true 10 holds broken
"$DIBS" break broken --now >/dev/null 2>&1
wait "$pid"
is 'a lease that is broken' $? 122
like 'lost' "$(row broken)" '"outcome":"lost",'
like 'the fence is that of the command' "$(row broken)" '"fence":[1-9]'

# ---- Output ----
"$DIBS" run quiet -- echo said >/dev/null
like 'run keeps no output' "$(row quiet)" '"output":""'
exits 4 'unless it is told to' "$DIBS" run loud --keep-output -- sh -c 'echo said; echo wrong >&2; exit 4'
is 'the output passes through' "$out" said
is 'and standard error' "$err" wrong
like 'and its end is kept' "$(row loud)" '"outcome":"failed","code":4,.*"output":"said\\nwrong\\n"'
"$DIBS" run much --keep-output -- sh -c 'yes 0123456789abcdef | head -c 300000; echo; echo last' >"$dir/much"
is 'much output passes through' "$(wc -c <"$dir/much")" 300006
like 'much output: the last bytes' "$(row much)" '0123456789abcdef\\n[0-9a-f]*\\nlast\\n"\}\]$'
is 'much output: no more than 4096 bytes' "$("$DIBS" history much --output | sed 's/^  //' | tail -n +3 | wc -c)" 4096
"$DIBS" run bytes --keep-output -- printf 'a\377b\033c' >/dev/null
"$DIBS" run zero --keep-output -- printf 'a\0b\n' >/dev/null
is 'a zero byte ends no line' "$("$DIBS" history zero --output | tail -n 1)" '  a?b'
ok 'any bytes are JSON' "$JSON_CHECK" < <(row bytes)
ok 'and harmless on a terminal' test -z "$("$DIBS" history bytes --output | tr -d '[:print:]\n' | tr -d '\200-\377')"
"$DIBS" once key -- echo kept >/dev/null
"$DIBS" once key -- echo kept >/dev/null
like 'once keeps its output' "$("$DIBS" history --json key)" '^\[\{"name":"key","kind":"once","outcome":"done",[^{]*"output":"kept\\n"\}\]$'
exits 0 'for people' "$DIBS" history loud --output
like 'the run' "$out" ' loud  run  failed 4  .*  fence [1-9]'
like 'its command' "$out" '^  \$ sh -c echo said;'
like 'its output' "$out" '^  wrong$'

# ---- A worker ----
"$DIBS" task add task payload --tries 1 >/dev/null
"$DIBS" worker --once --kind task --exec 'cat; exit 85' --max-tasks 1
"$DIBS" worker --once --kind task --exec 'cat; exit 7' --max-tasks 1
like 'each run of a worker leaves a row' "$("$DIBS" history --json --kind worker)" \
  '"name":"task","kind":"worker","outcome":"failed","code":7,.*"fence":[1-9][0-9]*,"task":[1-9][0-9]*,.*"output":"payload".*"outcome":"done","code":85,.*"fence":[1-9]'
is 'and a status that is no failure is none' "$("$DIBS" history --json --kind worker --failed | grep -o '"code":[0-9]*')" '"code":7'

# ---- Choosing ----
exits 0 'a table' "$DIBS" history done
like 'its heads' "$out" '^WHEN +NAME +KIND +HOW +TOOK +WHERE +FENCE$'
like 'its row' "$out" '^[0-9]{2} [A-Z][a-z]{2} [0-9:]{8} +done +run +done +[0-9]+ms +ann +[0-9]+$'
is 'the latest is first' "$(names --last 4)" 'task task key zero '
is 'only those that failed' "$(names --failed)" 'task loud broken none slow killed fails '
is 'of a kind' "$(names --kind once)" 'key '
is 'with a prefix' "$(names --prefix l)" 'loud '
is 'with a prefix of several' "$(names --prefix b)" 'bytes broken '
is 'since' "$(names --kind once --since 1h)" 'key '
is 'until' "$(names --until 1h)" ''
is 'since a date' "$(names --kind once --since '2020-02-03 04:05')" 'key '
is 'until a date' "$(names --until 2020-02-03)" ''
exits 125 'a date that is none' "$DIBS" history --since yesterday
like 'the message' "$err" "^dibs: --since: 'yesterday' is neither a duration like 24h nor a date"
exits 125 'a name that is none' "$DIBS" history ''

exits 0 'a name without runs' "$DIBS" history misspelt
like 'is named' "$err" "^dibs: no runs of 'misspelt' are kept"
is 'on standard error alone' "$out" ''
exits 0 'a filter without runs' "$DIBS" history done --failed
like 'is a different message' "$err" "^dibs: no run of 'done' matches"
exits 0 'as JSON' "$DIBS" history misspelt --json
is 'it is an empty list' "$out$err" '[]'

# ---- Off ----
exits 0 'one run without history' "$DIBS" run off --no-history -- true
DIBS_HISTORY=off "$DIBS" run off -- true
"$DIBS" once off --no-history -- true
is 'leaves no row' "$(names off)" ''
exits 0 'a store without history' "$DIBS" history --keep-for off
"$DIBS" run off -- true
is 'keeps no row' "$(names off)" ''
exits 0 'and what was there before' "$DIBS" history done
like 'with a note' "$err" '^dibs: the store keeps no runs since its history was switched off'
exits 0 'a short time' "$DIBS" history --keep-for 300ms
"$DIBS" run brief -- true
over() { [ -z "$(names "$1")" ]; }
ok 'ends' until_true 10 over brief
exits 0 'on again' "$DIBS" history --keep-for 30d
"$DIBS" run again -- true
is 'and kept' "$(names again)" 'again '
is 'as JSON' "$("$DIBS" history --keep-for 30d --json)" '{"keep_for_ms":2592000000}'
exits 125 'a time that is none' "$DIBS" history --keep-for soon
exits 125 'not with others' "$DIBS" history --keep-for 1d --failed

# ---- Without a place for it ----
exits 0 'a store in memory' "$DIBS" run m --store memory: -- true
is 'is silent' "$err" ''
if [ $# = 0 ]; then
  "$RUN_SQL" "$dir/dibs.db" 'DROP TABLE dibs_run'
  exits 5 'a store that cannot keep it' "$DIBS" run lost -- sh -c 'exit 5'
  like 'says so' "$err" '^dibs: this run is not in the history: .*dibs_run'
  exits 5 'but not with --quiet' "$DIBS" run lost --quiet -- sh -c 'exit 5'
  is 'which is silent' "$err" ''
  for i in 1 2 3; do "$DIBS" task add task "$i"; done >/dev/null
  exits 0 'a worker' "$DIBS" worker --once --kind task --exec true
  is 'says so once, and at its end how many' "$(sed 's/history: .*dibs_run.*/history: dibs_run/; s/task [0-9]*/task N/' "$dir/err")" \
    "$(printf 'dibs: the run of task N is not in the history: dibs_run\ndibs: 3 runs are not in the history')"
fi
done_testing
