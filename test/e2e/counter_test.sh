#!/bin/bash
# SPDX-License-Identifier: MIT
# dibs counter: add, get, ls; dibs rate.
#   counter_test.sh [URI]
. "$(dirname "$0")/tap.sh"
[ $# -eq 0 ] || export DIBS_STORE=$1
counter() { "$DIBS" counter "$@"; }

exits 117 'no such counter: 117' "$DIBS" counter get likes
like 'no such counter: the message' "$err" '^dibs: .*likes'
exits 0 'add' "$DIBS" counter add likes
is 'add prints nothing' "$out$err" ''
exits 0 'add several' "$DIBS" counter add likes 41
exits 0 'get' "$DIBS" counter get likes
is 'get: the value' "$out" 42
exits 0 'a number below 0' "$DIBS" counter add likes -50
is 'below 0' "$(counter get likes)" -8
exits 0 'a number with a sign' "$DIBS" counter add likes +8
is 'the sum' "$(counter get likes)" 0
exits 0 'get --json' "$DIBS" counter get likes --json
is 'get --json: the object' "$out" '{"key":"likes","value":0}'

# ---- Lines of standard input ----
printf 'page/a 2\npage/b\n\npage/a\t-1\npage with blanks 7\npage/b\n' | counter add -
is 'lines: 0' $? 0
is 'lines: a' "$(counter get page/a)" 1
is 'lines: b' "$(counter get page/b)" 2
is 'lines: the last word is the number' "$(counter get 'page with blanks')" 7
seq 1 3000 | sed 's/^/many\//' | counter add -
is 'many keys: 0' $? 0
is 'many keys: each' "$(counter ls many/ --json | grep -o '"value":1[,}]' | wc -l)" 3000
yes hot | head -20000 | counter add -
is 'one key, many lines' "$(counter get hot)" 20000
printf 'fine 1\nwrong x\nlater 1\n' | counter add - 2>"$dir/err"
is 'a wrong line: 125' $? 125
like 'a wrong line: the message' "$(cat "$dir/err")" 'line 2: .wrong x.'
is 'lines before it are added' "$(counter get fine)" 1
printf 'long/a\n%0400d\n' 7 | counter add - 2>"$dir/err"
is 'a line that is too long: 125' $? 125
like 'a line that is too long: the message' "$(cat "$dir/err")" 'line 2: it is longer than a key of 255 bytes'
exits 117 'lines after it are not' "$DIBS" counter get later
printf 'fine 1\nfi\0ne 5\n' | counter add - 2>"$dir/err"
is 'a line with a NUL: 125' $? 125
is 'a line with a NUL: nothing is added' "$(counter get fine; counter ls fi --json | grep -c '"fi"')" '2
0'
timeout 20 "$DIBS" counter add - </dev/zero 2>"$dir/err"
is 'a line without an end: 125' $? 125

# ---- The whole command takes no longer than --wait ----
if [ $# -eq 0 ] && command -v python3 >/dev/null; then
  locked() { # locked WAIT: the ms of an addition to a file that another program has locked
    local from=${EPOCHREALTIME/./}
    "$DIBS" counter add k --store "sqlite:$dir/locked.db" --wait "$1" >"$dir/out" 2>&1 && return 1
    echo $(((${EPOCHREALTIME/./} - from) / 1000))
  }
  mkfifo "$dir/lock" "$dir/ready"
  python3 -c 'import sqlite3, sys
db = sqlite3.connect(sys.argv[1], isolation_level=None)
db.execute("BEGIN EXCLUSIVE")
open(sys.argv[2], "w").close()
open(sys.argv[3]).read()' "$dir/locked.db" "$dir/ready" "$dir/lock" &
  later $!
  : <"$dir/ready"
  long=$(locked 4s)
  short=$(locked 200ms)
  ok "the wait limits opening the store, too: $short ms of $long ms" [ $((short * 2)) -lt "$long" ]
  : >"$dir/lock"
  wait
fi

# ---- An error prints no half of a JSON document ----
if [ $# -eq 0 ]; then
  exits 123 'ls --json of a store that fails' "$DIBS" counter ls --json \
    --store "fault+$DIBS_STORE?fault.on=run&fault.how=unavailable&fault.nth=1&fault.forever=1"
  is 'prints nothing' "$out" ''
fi
exits 0 'ls --json of nothing' "$DIBS" counter ls nothing/ --json
is 'prints an empty list' "$out" '[]'

# ---- The answers of the store are lost ----
lost=$(printf '%s' "$DIBS_STORE" | sed 's,^sqlite:,fault+sqlite:,')?fault.on=run\&fault.how=unknown-after\&fault.forever=1
if [ $# -eq 0 ]; then
  counter add seen 1
  exits 124 'the answer is lost' "$DIBS" counter add seen --store "$lost&fault.nth=1" --wait 300ms
  like 'the answer is lost: the message' "$err" 'adding to "seen" at .*the outcome of a batch is not known'
  echo seen | counter add - --store "$lost&fault.nth=1" --wait 300ms 2>"$dir/err"
  is 'lines: the answer is lost: 124' $? 124
  like 'lines: the answer is lost: the message' "$(cat "$dir/err")" 'some lines may be added or not: .*is not known'
  is 'each was applied once' "$(counter get seen)" 3
fi

# ---- ls ----
counter ls page >"$dir/out"
is 'ls: by key' "$(awk 'NR > 1 { print $NF }' "$dir/out" | tr '\n' ' ')" '7 1 2 '
counter ls page --json >"$dir/out"
ok 'ls --json is JSON' "$JSON_CHECK" <"$dir/out"
is 'ls --json' "$(cat "$dir/out")" \
  '[{"key":"page with blanks","value":7},{"key":"page/a","value":1},{"key":"page/b","value":2}]'
is 'ls of nothing' "$(counter ls nothing/)" ''
is 'ls of nothing --json' "$(counter ls nothing/ --json)" '[]'

# ---- The end of the range ----
exits 0 'the largest number' "$DIBS" counter add large 9223372036854775807
exits 120 'one more: 120' "$DIBS" counter add large
like 'one more: the message' "$err" 'large.*does not fit'
printf 'large 1\nbeside 5\n' | counter add - 2>"$dir/err"
is 'a line that does not fit: 120' $? 120
like 'a line that does not fit: the message has the number' "$(cat "$dir/err")" '1 was not added to "large"'
is 'the other line is added' "$(counter get beside)" 5
is 'nothing was added' "$(counter get large)" 9223372036854775807

# ---- At the same time ----
pids=()
for i in 1 2 3 4 5 6; do
  for j in 1 2 3; do counter add together "$j" || echo "failed $i"; done >"$dir/out.$i" 2>&1 &
  pids+=($!)
done
wait "${pids[@]}"
is 'processes at the same time' "$(cat "$dir"/out.[1-6])$(counter get together)" 36

# ---- A table of one's own ----
if [ -n "${RUN_SQL:-}" ] && [ $# -eq 0 ]; then
  "$DIBS" ls >/dev/null
  printf '[likes]\ntable = person\nkey = name\ncount = likes\n' >"$dir/tables.ini"
  file=$(printf '%s' "$DIBS_STORE" | sed 's,^sqlite://,,')
  "$RUN_SQL" "$file" "CREATE TABLE person (name TEXT PRIMARY KEY, likes INTEGER); INSERT INTO person VALUES ('ann', 1)"
  exits 0 '--table' "$DIBS" counter add ann 4 --table "$dir/tables.ini#likes"
  is '--table: the value' "$(counter get ann --table "$dir/tables.ini#likes")" 5
  exits 117 '--table: no such row' "$DIBS" counter add bob --table "$dir/tables.ini#likes"
  printf 'ann 1\nbob 3\n' | counter add - --table "$dir/tables.ini#likes" 2>"$dir/err"
  is '--table: lines, one without a row: 117' $? 117
  like '--table: the message has the number' "$(cat "$dir/err")" '3 was not added to "bob"'
  is '--table: the other line' "$(counter get ann --table "$dir/tables.ini#likes")" 6
fi

# ---- Quotas ----
for i in 1 2 3; do exits 0 "rate: $i of 3" "$DIBS" rate mail --limit 3/1h; done
is 'rate prints nothing' "$out$err" ''
exits 120 'rate: used up' "$DIBS" rate mail --limit 3/1h
like 'rate: the message has the time' "$err" 'mail.* is used up; try again in (1[0-9]m|20m)'
exits 120 'rate --json: used up' "$DIBS" rate mail --limit 3/1h --json
ok 'rate --json is JSON' "$JSON_CHECK" <"$dir/out"
like 'rate --json: the object' "$out" '^."key":"mail","status":"FULL","retry_ms":1[12][0-9]{5}.$'
exits 0 'rate: several' "$DIBS" rate some 2 --limit 3/1h
exits 120 'rate: too many of the rest' "$DIBS" rate some 2 --limit 3/1h
exits 0 'rate: the rest' "$DIBS" rate some --limit 3/1h
exits 125 'rate: more than the quota' "$DIBS" rate k 6 --limit 5/1m
like 'rate: more than the quota: the message names the option' "$err" "'6' is more than the whole quota, --limit 5/1m"
exits 125 'rate: too long a time' "$DIBS" rate k --limit 5/32d
like 'rate: too long a time: the message names the option' "$err" "--limit: '5/32d': give a time of 31d at most"
exits 0 'rate --wait: the first' "$DIBS" rate wait 2 --limit 2/4s
began=$(now_ms)
exits 0 'rate --wait: it is allowed' "$DIBS" rate wait 2 --limit 2/4s --wait 60s
ok 'rate --wait: it waited' [ $(($(now_ms) - began)) -ge 300 ]
exits 120 'rate --wait: no time for that' "$DIBS" rate mail --limit 3/1h --wait 100ms
for words in 'rate' 'rate k' 'rate k --limit 5' 'rate k --limit 5/x' 'rate k --limit x/1m' 'rate k --limit 0/1m' 'rate k 6 --limit 5/1m' \
  'rate k 0 --limit 5/1m' 'rate k --limit 5/32d'; do
  # shellcheck disable=SC2086  # words are meant
  exits 125 "125: $words" "$DIBS" $words
done

# ---- Wrong words ----
for words in 'add' 'get' 'take likes' 'add likes x' 'add likes 1x' 'add likes 9223372036854775808' 'get likes 1' \
  'add likes 1 2' 'ls a b' 'add - 5' 'ls --table x.ini'; do
  # shellcheck disable=SC2086  # words are meant
  exits 125 "125: $words" "$DIBS" counter $words
  like "125: $words: the message" "$err" '^dibs: .{12}'
done
done_testing
