#!/bin/bash
# SPDX-License-Identifier: MIT
# dibs counter: add, get, ls.
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
exits 117 'lines after it are not' "$DIBS" counter get later
printf 'fine 1\nfi\0ne 5\n' | counter add - 2>"$dir/err"
is 'a line with a NUL: 125' $? 125
is 'a line with a NUL: nothing is added' "$(counter get fine; counter ls fi --json | grep -c '"fi"')" '2
0'
timeout 20 "$DIBS" counter add - </dev/zero 2>"$dir/err"
is 'a line without an end: 125' $? 125

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

# ---- Wrong words ----
for words in 'add' 'get' 'take likes' 'add likes x' 'add likes 1x' 'add likes 9223372036854775808' 'get likes 1' \
  'add likes 1 2' 'ls a b' 'add - 5' 'ls --table x.ini'; do
  # shellcheck disable=SC2086  # words are meant
  exits 125 "125: $words" "$DIBS" counter $words
  like "125: $words: the message" "$err" '^dibs: .{12}'
done
done_testing
