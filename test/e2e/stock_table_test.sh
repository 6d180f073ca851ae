#!/bin/bash
# SPDX-License-Identifier: MIT
# dibs stock table: the engine's own client executes its output, and the table then holds a stock. $1: the URI of a
# store on a server; without it a file.
. "$(dirname "$0")/tap.sh"
uri=${1:-}
case $uri in
  postgres:*)
    engine=postgres
    client() { psql -q -v ON_ERROR_STOP=1 "$uri"; }
    ;;
  mysql:*)
    engine=mysql
    parts='s|mysql://([^:]*):([^@]*)@([^:]*):([0-9]*)/([^?]*).*|\1 \2 \3 \4 \5|'
    read -r user password host port database < <(sed -E "$parts" <<<"$uri")
    client() { MYSQL_PWD=$password mariadb -h "$host" -P "$port" -u "$user" "$database"; }
    ;;
  *)
    engine=sqlite
    client() { "$RUN_SQL" "$dir/dibs.db" "$(cat)"; }
    ;;
esac
store=()
[ -z "$uri" ] || store=(--store "$uri")
[ -n "$uri" ] || store=(--store "sqlite://$dir/dibs.db")
d() { "$DIBS" "$@" "${store[@]}"; }
exits 0 'the store is created' d stock set other 1

# uses TABLE KEY: every verb and strategy.
uses() {
  exits 0 "$1: set" d stock set "$2" 7 --table "$1"
  for strategy in coalesced atomic pessimistic optimistic named fenced; do
    exits 0 "$1: take, $strategy" d stock take "$2" --strategy "$strategy" --claim "c-$strategy" --table "$1"
    exits 0 "$1: take again, $strategy" d stock take "$2" --strategy "$strategy" --claim "c-$strategy" --table "$1"
  done
  exits 120 "$1: not more than the limit" d stock take "$2" 2 --table "$1"
  exits 0 "$1: give" d stock give "$2" c-atomic --table "$1"
  exits 0 "$1: show" d stock show "$2" --table "$1"
  is "$1: used and limit" "$out" "$(printf 'used 5\nlimit 7')"
}

# ---- The example, with the section that it prints ----
for which in "$engine" ''; do # by its name, and by the store
  # shellcheck disable=SC2086  # none, or one word
  exits 0 "stock table $which" d stock table $which
  like "stock table $which: SQL" "$out" 'CREATE TABLE'
done
is 'stock table: the store selects the same engine' "$out" "$("$DIBS" stock table "$engine")"
sed -n 's/^--   //p' <<<"$out" >"$dir/tables.ini"
ok 'the engine'"'"'s client executes it' client <<<"$out"
uses "$dir/tables.ini#seats" 'row 7'

# ---- As a section declares it ----
cat >"$dir/mine.ini" <<INI
[mine]
table = my_event
key = id
version = version
columns = title, body
used = booked
limit = limit
fence = seen
owner = holder
claims = my_applicant
claim = ticket
claim_stock = event
claim_amount = amount
claim_given = gone
claim_owner = person
claim_time = came
INI
exits 0 'stock table of a section' d stock table --table "$dir/mine.ini#mine"
ok 'the client executes it, too' client <<<"$out"
uses "$dir/mine.ini#mine" e
exits 0 'and the table holds records' d record put e title=Gala --force --table "$dir/mine.ini#mine"
exits 0 'which are read' d record get e --json --table "$dir/mine.ini#mine"
like 'with their version' "$out" '"version":"2".*"title":"Gala"'

# ---- With the columns of tasks ----
cat >"$dir/tasks.ini" <<INI
[gates]
table = my_gate
key = id
phase = step
locked_at = since
updated_at = touched
fence = seen
INI
exits 0 'stock table of a section for tasks' d stock table --table "$dir/tasks.ini#gates"
ok 'the client executes it' client <<<"$out"
client <<<"INSERT INTO my_gate (id, step) VALUES ('g 1', 'Creating');"
exits 0 'and its rows are tasks' d worker --table "$dir/tasks.ini#gates" --once --phase Creating --exec 'echo Created >"$DIBS_NEXT_PHASE"'
exits 0 'which are listed' d task ls --table "$dir/tasks.ini#gates" --json
like 'with their phase' "$out" '"row":"g 1","state":"ready","phase":"Created","fence":1'

# ---- Mistakes ----
exits 125 'not an SQL store' "$DIBS" stock table redis
exits 125 'an unexpected argument' "$DIBS" stock table sqlite postgres
exits 125 'no such section' "$DIBS" stock table --table "$dir/mine.ini#yours"
done_testing
