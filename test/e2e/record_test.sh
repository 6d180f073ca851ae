#!/bin/bash
# SPDX-License-Identifier: MIT
# dibs record on a user's table, which the user's own program also changes.
. "$(dirname "$0")/tap.sh"
file=$dir/own.db
export DIBS_STORE=sqlite://$file
"$DIBS" ls >/dev/null
one_line() { # one_line CODE PATTERN: the last command said one line.
  like "$1: the message and the next step" "$err" "$2"
  is "$1: one line" "$(printf '%s\n' "$err" | wc -l)" 1
}
sql() { "$RUN_SQL" "$file" "$@"; }
sql 'CREATE TABLE event (id INTEGER PRIMARY KEY, title TEXT, body TEXT, version INTEGER, fence INTEGER, holder INTEGER)' \
  "INSERT INTO event (id, title, version) VALUES (7, 'Gala', 3)"
cat >"$dir/t.ini" <<'INI'
# Ours.
[event]
table = event
key = id
version = version
fence = fence
owner = holder
columns = title, body   ; what is read and written

[page]
table = event
key = id
version_kind = hash
columns = body
INI
event=("--table" "$dir/t.ini#event")
page=("--table" "$dir/t.ini#page")

exits 0 'get' "$DIBS" record get 7 "${event[@]}"
is 'get: one line for each column, NULL without a value' "$out" $'title=Gala\nbody'
"$DIBS" record get 7 "${event[@]}" --json >"$dir/json"
ok 'get --json is JSON' "$JSON_CHECK" --lines <"$dir/json"
is 'get --json' "$(cat "$dir/json")" '{"key":"7","version":"3","fence":null,"values":{"title":"Gala","body":null}}'
exits 0 'put: other columns are unchanged' "$DIBS" record put 7 'body=a=b c' --if 3 "${event[@]}"
is 'put: the new version' "$out" 4
is 'put: the new row' "$(sql "SELECT title || '/' || body || '/' || version FROM event")" 'Gala/a=b c/4'
exits 115 'put: another client was faster' "$DIBS" record put 7 title=Late --if 3 "${event[@]}"
one_line 115 '^dibs: record "7" is at version "4", not "3"'
sql "UPDATE event SET title = 'Theirs', version = version + 1"
exits 115 'put: a program of the user was faster' "$DIBS" record put 7 title=Late --if 4 "${event[@]}"
exits 0 'put: a column without a value becomes NULL' "$DIBS" record put 7 body --if 5 "${event[@]}"
is 'put: it is' "$(sql 'SELECT body FROM event')" NULL
exits 117 'put: no such row' "$DIBS" record put 8 title=x --if 1 "${event[@]}"
one_line 117 '^dibs: there is no record "8" in table event'
exits 0 'put --create' "$DIBS" record put 8 title=x --create "${event[@]}"
exits 115 'put --create: the row exists' "$DIBS" record put 8 title=x --create "${event[@]}"

# A seal refuses older leases.
old=$("$DIBS" lock job --ttl 100ms)
until_true 10 free job
new=$("$DIBS" lock job --ttl 1h)
as() { local lease=$1; shift; env $(printf '%s' "$lease" | grep -v export | tr -d "'") "$@"; }
exits 0 'get under a lease seals' as "$new" "$DIBS" record get 7 "${event[@]}"
is 'and reads' "$out" $'title=Theirs\nbody'
exits 118 'put: an older lease' as "$old" "$DIBS" record put 7 title=Late "${event[@]}"
one_line 118 '^dibs: putting record "7" with fence [0-9]* was refused: it has seen fence [0-9]*; somebody newer'
exits 118 'put: an older lease with the right version' as "$old" "$DIBS" record put 7 title=Late --if 6 "${event[@]}"
exits 118 'rm: an older lease' as "$old" "$DIBS" record rm 7 "${event[@]}"
exits 115 'put: the right lease with a wrong version' as "$new" "$DIBS" record put 7 title=Late --if 5 "${event[@]}"
exits 0 'put: both are' as "$new" "$DIBS" record put 7 title=Mine --if 6 "${event[@]}"
is 'the refused writes changed nothing' "$(sql 'SELECT title FROM event WHERE id = 7')" Mine
exits 125 '--force with a lease' as "$new" "$DIBS" record put 7 title=Mine --force "${event[@]}"
exits 0 'rm' "$DIBS" record rm 7 --if 7 "${event[@]}"
is 'rm: the row is removed' "$(sql 'SELECT COUNT(*) FROM event WHERE id = 7')" 0

# A shared or counted lease has no fence: a get under it only reads, and a put under it is refused.
for kind in --shared '--slots 2'; do
  reader=$("$DIBS" lock "readers${#kind}" $kind --ttl 1h)
  exits 0 "get under $kind reads" as "$reader" "$DIBS" record get 8 "${event[@]}"
  is "get under $kind: what it reads" "$out" $'title=x\nbody'
  exits 125 "put under $kind" as "$reader" "$DIBS" record put 8 title=y "${event[@]}"
  one_line 125 'only an exclusive lease has a fence'
done

# One column, from standard input; a hash that is not stored.
version=$("$DIBS" record get 8 "${page[@]}" --json | sed 's/.*"version":"\([^"]*\)".*/\1/')
like 'a hash' "$version" '^[0-9a-f]{64}$'
exits 0 'put: standard input' sh -c 'printf "two\nlines" | "$DIBS" record put 8 "$@"' sh --if "$version" "${page[@]}"
exits 115 'put: the hash differs' sh -c 'printf late | "$DIBS" record put 8 "$@"' sh --if "$version" "${page[@]}"
exits 0 'get: one column unchanged' "$DIBS" record get 8 "${page[@]}"
is 'get: the value that was put' "$out" $'two\nlines'
exits 125 'get under a lease: a table without a fence' as "$new" "$DIBS" record get 8 "${page[@]}"
one_line 125 'table event was declared without a fence column'
done_testing
