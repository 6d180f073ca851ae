#!/bin/bash
# SPDX-License-Identifier: MIT
# dibs record on a table of the user's, beside a program of theirs.
. "$(dirname "$0")/tap.sh"
file=$dir/own.db
export DIBS_STORE=sqlite://$file
"$DIBS" ls >/dev/null
one_line() { # one_line CODE PATTERN: the last command said one line.
  like "$1 says what and what next" "$err" "$2"
  is "$1 says one line" "$(printf '%s\n' "$err" | wc -l)" 1
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
is 'get: a line a column, NULL without a value' "$out" $'title=Gala\nbody'
"$DIBS" record get 7 "${event[@]}" --json >"$dir/json"
ok 'get --json is JSON' "$JSON_CHECK" --lines <"$dir/json"
is 'get --json' "$(cat "$dir/json")" '{"key":"7","version":"3","fence":0,"values":{"title":"Gala","body":null}}'
exits 0 'put: what is not named stays' "$DIBS" record put 7 'body=a=b c' --if 3 "${event[@]}"
is 'put: the new version' "$out" 4
is 'put: what stands there' "$(sql "SELECT title || '/' || body || '/' || version FROM event")" 'Gala/a=b c/4'
exits 115 'put: somebody was faster' "$DIBS" record put 7 title=Late --if 3 "${event[@]}"
one_line 115 '^dibs: record "7" is at version "4", not "3"'
sql "UPDATE event SET title = 'Theirs', version = version + 1"
exits 115 'put: so was a program of theirs' "$DIBS" record put 7 title=Late --if 4 "${event[@]}"
exits 0 'put: a column alone becomes NULL' "$DIBS" record put 7 body --if 5 "${event[@]}"
is 'put: it is' "$(sql 'SELECT body FROM event')" NULL
exits 117 'put: no such row' "$DIBS" record put 8 title=x --if 1 "${event[@]}"
one_line 117 '^dibs: there is no record "8" in table event'
exits 0 'put --create' "$DIBS" record put 8 title=x --create "${event[@]}"
exits 115 'put --create: there is one' "$DIBS" record put 8 title=x --create "${event[@]}"

# Who sealed shuts out who came before.
old=$("$DIBS" lock job --ttl 100ms)
until_true 10 free job
new=$("$DIBS" lock job --ttl 1h)
as() { local lease=$1; shift; env $(printf '%s' "$lease" | grep -v export | tr -d "'") "$@"; }
exits 0 'seal' as "$new" "$DIBS" record seal 7 "${event[@]}"
is 'seal: it reads' "$out" $'title=Theirs\nbody'
exits 118 'put: an older lease' as "$old" "$DIBS" record put 7 title=Late "${event[@]}"
one_line 118 '^dibs: putting record "7" with fence [0-9]* was refused: it has seen fence [0-9]*; somebody newer'
exits 118 'put: an older lease, though the version is right' as "$old" "$DIBS" record put 7 title=Late --if 6 "${event[@]}"
exits 118 'rm: an older lease' as "$old" "$DIBS" record rm 7 "${event[@]}"
exits 115 'put: the lease is right and the version is not' as "$new" "$DIBS" record put 7 title=Late --if 5 "${event[@]}"
exits 0 'put: both are' as "$new" "$DIBS" record put 7 title=Mine --if 6 "${event[@]}"
is 'nothing of the others is there' "$(sql 'SELECT title FROM event WHERE id = 7')" Mine
exits 125 '--force beside a lease' as "$new" "$DIBS" record put 7 title=Mine --force "${event[@]}"
exits 0 'rm' "$DIBS" record rm 7 --if 7 "${event[@]}"
is 'rm: it is gone' "$(sql 'SELECT COUNT(*) FROM event WHERE id = 7')" 0

# One column, from standard input; a hash that is stored nowhere.
version=$("$DIBS" record get 8 "${page[@]}" --json | sed 's/.*"version":"\([^"]*\)".*/\1/')
like 'a hash' "$version" '^[0-9a-f]{64}$'
exits 0 'put: standard input' sh -c 'printf "two\nlines" | "$DIBS" record put 8 "$@"' sh --if "$version" "${page[@]}"
exits 115 'put: the hash is another' sh -c 'printf late | "$DIBS" record put 8 "$@"' sh --if "$version" "${page[@]}"
exits 0 'get: one column as it is' "$DIBS" record get 8 "${page[@]}"
is 'get: it is what was put' "$out" $'two\nlines'
exits 125 'seal: a table without a fence' as "$new" "$DIBS" record seal 8 "${page[@]}"
one_line 125 'table event was declared without a fence column'
done_testing
