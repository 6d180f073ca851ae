#!/bin/bash
# SPDX-License-Identifier: MIT
# dibs counter add --level shared, and flush: Redis in front of a SQLite file.
#   counter_shared_test.sh URI      of a Redis of its own
. "$(dirname "$0")/tap.sh"
redis=$1 file=$DIBS_STORE
export DIBS_STORE=$redis,$file
counter() { "$DIBS" counter "$@"; }
stored() { "$DIBS" counter get "$1" --store "$file" 2>/dev/null; }

exits 0 'add --level shared' "$DIBS" counter add likes 5 --level shared
is 'it prints nothing' "$out$err" ''
exits 0 'once more' "$DIBS" counter add likes --level shared
is 'get: what is shared is in the value' "$(counter get likes)" 6
is 'it is not in the database yet' "$(stored likes)" ''
exits 0 'flush' "$DIBS" counter flush
is 'flush prints nothing' "$out$err" ''
is 'it is in the database' "$(stored likes)" 6
is 'get: the same value' "$(counter get likes)" 6
exits 0 'flush of nothing' "$DIBS" counter flush
printf 'a 1\nb 2\na 3\n' | counter add - --level shared
is 'lines' "$?" 0
is 'lines: the value' "$(counter get a)" 4
counter flush
is 'lines are in the database' "$(stored a) $(stored b)" '4 2'

# ---- Refused ----
"$RUN_SQL" "${file#sqlite://}" "CREATE TABLE person (name TEXT PRIMARY KEY, likes INTEGER); INSERT INTO person VALUES ('ann', 1)"
printf '[likes]\ntable = person\nkey = name\ncount = likes\n' >"$dir/tables.ini"
table=$dir/tables.ini#likes
exits 0 'a row of a table' "$DIBS" counter add ann 4 --level shared --table "$table"
exits 0 'a key without a row is not refused yet' "$DIBS" counter add bob 7 --level shared --table "$table"
exits 0 'flush writes sums of the table that it is given' "$DIBS" counter flush
exits 117 'flush --table: 117' "$DIBS" counter flush --table "$table"
like 'flush: what was refused' "$err" '7 was not added to "bob": the table has no such row'
is 'the other is added' "$(stored likes; counter get ann --table "$table")" "6
5"
exits 117 'it is printed until it is removed' "$DIBS" counter flush --table "$table"
exits 125 'nothing is removed unseen: --quiet with --forget is refused' "$DIBS" counter flush --table "$table" --quiet --forget
"$DIBS" counter flush --table "$table" --forget 2>/dev/full
is 'flush --forget that can not print it: 117' $? 117
exits 117 'flush --forget prints it' "$DIBS" counter flush --table "$table" --forget
like 'flush --forget: the sum' "$err" '7 was not added to "bob"'
exits 0 'and removes it' "$DIBS" counter flush --table "$table"

# ---- Wrong usage ----
for words in 'add k --level none' 'get k --level shared' 'flush k' 'get k --forget'; do
  read -ra list <<<"$words"
  exits 125 "counter $words: 125" "$DIBS" counter "${list[@]}"
done
exits 125 'without Redis in front: 125' "$DIBS" counter add k --level shared --store "$file"
like 'without Redis in front: the message' "$err" 'no fast store'

# ---- Redis is unreachable ----
"$DIBS_TEST_SERVERS_SCRIPT" kill --dir "$DIBS_TEST_SERVERS_DIR" redis >/dev/null
exits 123 'no Redis: 123' "$DIBS" counter add likes --level shared --wait 300ms
exits 0 'get' "$DIBS" counter get likes
is 'get: what is in the database' "$out" 6
like 'get: the note' "$err" 'Redis does not answer: the sums that it has are missing'
exits 0 'get --json' "$DIBS" counter get likes --json
is 'get --json: it is partial' "$out" '{"key":"likes","value":6,"partial":true}'
exits 0 'durable additions go on' "$DIBS" counter add likes 10
is 'they are in the database' "$(stored likes)" 16
done_testing
