#!/bin/bash
# SPDX-License-Identifier: MIT
# Every exit code, each with its line on standard error.  (124 needs a store that breaks: store_test.sh.)
. "$(dirname "$0")/tap.sh"

one_line() { # one_line CODE PATTERN: the last command said one line, and as JSON one object.
  like "$1: the message and the next step" "$err" "$2"
  is "$1: one line" "$(printf '%s\n' "$err" | wc -l)" 1
}
as_json() { # as_json CODE STATUS COMMAND...
  local code=$1 status=$2
  shift 2
  local command=$1
  shift
  "$command" --json "$@" >/dev/null 2>"$dir/err" </dev/null
  like "$code as an object" "$(cat "$dir/err")" "^\{\"command\":\"[a-z]*\",\"exit\":$code,\"status\":\"$status\",\"message\":\".+\"\}$"
  ok "$code is valid JSON" "$JSON_CHECK" <"$dir/err"
}

exits 0 '0: done' "$DIBS" run free -- true
is '0 says nothing' "$err" ''
exits 7 'the status of the command is returned' "$DIBS" run free -- sh -c 'exit 7'
is 'the status of the command comes without a line' "$err" ''
exits 122 'a status of the command that dibs uses, too' "$DIBS" run free -- sh -c 'exit 122'
is 'the missing message distinguishes it' "$err" ''

# 120, 121: another client holds the name.
"$DIBS" lock held --ttl 1h >"$dir/lease"
exits 120 '120: held, with --try' "$DIBS" run held --try -- true
one_line 120 "^dibs: 'held' is held by .*--wait"
as_json 120 HELD "$DIBS" lock held --try
exits 120 '120 with --quiet' "$DIBS" lock held --try --quiet
is '120 with --quiet prints nothing' "$err" ''
exits 121 '121: timed out' "$DIBS" run held --wait 100ms -- true
one_line 121 "^dibs: 'held' was still held after 100ms; .*dibs show"
as_json 121 TIMEOUT "$DIBS" run --wait 50ms held -- true
exits 121 '121: break gives up waiting' "$DIBS" break held --wait 100ms
"$DIBS" break held --now --quiet

# 122
exits 122 '122: unlock of a lease that was broken' sh -c '"$DIBS" unlock - <"$0"' "$dir/lease"
one_line 122 '^dibs: .*held.* lost'

# 117
exits 117 '117: the name is free' "$DIBS" show nothing
one_line 117 '^dibs: .*nothing'
as_json 117 NOT_FOUND "$DIBS" show nothing
exits 117 '117: break of a free name' "$DIBS" break nothing
exits 117 '117: no such record' "$DIBS" record get nothing

# 115: another version is current; the message names it.
exits 0 'a record is created' sh -c 'echo one | "$DIBS" record put doc --create'
is 'and its version is printed' "$out" 1
exits 0 'it is replaced' sh -c 'echo two | "$DIBS" record put doc --if 1'
exits 115 '115: another version is current' sh -c 'echo late | "$DIBS" record put doc --if 1'
one_line 115 '^dibs: record "doc" is at version "2", not "1"'
exits 115 '115: the record exists' sh -c 'echo late | "$DIBS" record put doc --create'
exits 115 '115: nor is the record removed' "$DIBS" record rm doc --if 1
as_json 115 CONFLICT "$DIBS" record rm doc --if 1
exits 117 '117: no record to replace' sh -c 'echo x | "$DIBS" record put none --if 1'
exits 0 'it is removed' "$DIBS" record rm doc --if 2

# 118: an older lease writes after a newer one has sealed.
old=$("$DIBS" lock doc --ttl 100ms)
until_true 10 free doc
new=$("$DIBS" lock doc --ttl 1h)
env $(printf '%s' "$new" | grep -v export | tr -d "'") "$DIBS" record get doc >/dev/null
env $(printf '%s' "$old" | grep -v export | tr -d "'") "$DIBS" record put doc </dev/null 2>"$dir/err"
is '118: a stale write is refused' $? 118
err=$(cat "$dir/err")
one_line 118 '^dibs: .*doc'

# 119
exits 119 '119: the output cannot be written' sh -c '"$DIBS" version >/dev/full'
one_line 119 '^dibs: cannot write standard output'

# 123: not a database; the file is unchanged.
echo 'not a database, but a valuable file, which must stay unchanged' >"$dir/foreign.db"
cp "$dir/foreign.db" "$dir/foreign.copy"
exits 123 '123: the store cannot be used' "$DIBS" ls --store "sqlite://$dir/foreign.db"
one_line 123 '^dibs: .*foreign.db'
as_json 123 CORRUPT "$DIBS" ls --store "sqlite://$dir/foreign.db"
ok '123: the file is unchanged' cmp "$dir/foreign.db" "$dir/foreign.copy"

# 116
chmod o+r "$dir/dibs.db"
exits 116 '116: doctor found a problem' "$DIBS" doctor
one_line 116 '^dibs: doctor found trouble'
like '116: doctor names the next step' "$out" '-> chmod'
chmod o-r "$dir/dibs.db"
exits 0 'doctor finds no problem' "$DIBS" doctor

# 125
for words in '' 'nonsense' 'run x' 'run x true' 'run' 'ls a b' 'ls --nonsense' 'ls --ttl 1s' 'run x --ttl 30 -- true' \
  'run x --ttl 1parsec -- true' 'run x --slots 0 -- true' 'run x --slots 2 --shared -- true' 'run x --ttl -- true' \
  'run x --try --wait 1s -- true' 'run x --ttl 3s --grace 2s -- true' 'run --ttl 1ms x -- true' 'break x --now --wait 1s' \
  'unlock 0123456789abcdef0123456789abcdef' 'unlock x' 'renew x' 'record steal x' 'help nonsense' 'show' \
  '--store bogus://x ls' 'unlock --id 0123456789abcdef0123456789abcdef x' 'ls -x'; do
  # shellcheck disable=SC2086  # words are meant
  exits 125 "125: dibs $words" "$DIBS" $words
  like "125: dibs $words: the message" "$err" '^dibs: .{12}'
done
exits 125 '125: an empty name' "$DIBS" run '' -- true
exits 125 '125: a name with a control character' "$DIBS" run $'a\nb' -- true
is '125: the message has one line' "$(printf '%s\n' "$err" | wc -l)" 1
exits 125 '125: a name that is not UTF-8' "$DIBS" run $'a\xff' -- true
exits 125 '125: a name that is too long' "$DIBS" run "$(printf '%0256d' 0)" -- true
exits 0 'a name of the maximum length' "$DIBS" run "$(printf '%0255d' 0)" -- true
as_json 125 INVALID "$DIBS" ls --nonsense
exits 125 '125 as an object if --json follows the mistake' "$DIBS" ls --nonsense --json
like '125 as an object if --json follows the mistake' "$err" '^\{'

# 126, 127, 128 + N
exits 126 '126: found, but cannot be executed' "$DIBS" run x -- "$dir/foreign.db"
one_line 126 "^dibs: cannot run '.*foreign.db'"
exits 127 '127: not found' "$DIBS" run x -- "$dir/nowhere"
one_line 127 "^dibs: cannot run '.*nowhere': there is no such command"
exits 143 '128 + TERM' "$DIBS" run x -- sh -c 'kill -TERM $$'
exits 137 '128 + KILL' "$DIBS" run x -- sh -c 'kill -KILL $$'
printf 'exit 9\n' >"$dir/bare"
chmod +x "$dir/bare"
exits 9 'sh runs a script without #!, as in shells' "$DIBS" run x -- "$dir/bare"
exits 0 'no lease remains' "$DIBS" ls x
is 'and no waiter' "$out" ''

# The table and the documentation agree.
exits 0 'help exits' "$DIBS" help exits
for code in 0 114 115 116 117 118 119 120 121 122 123 124 125 126 127 128; do
  like "help exits lists $code" "$out" "^ *$code  "
done
done_testing
