#!/bin/bash
# SPDX-License-Identifier: MIT
# `dibs lab phases`: nodes, each a process, take rows from phase to phase; one is killed and another one is stopped.
#   phases_test.sh TAP.SH [URI]      without a URI on an embedded store of its own
# PAGE_CHECK checks a report, LAB_TABLES counts the lab's tables, or collections.
. "$1"
[ -z "${2:-}" ] || export DIBS_STORE=$2
: "${PAGE_CHECK:?}" "${LAB_TABLES:?}" "${JSON_CHECK:?}"
mkdir "$dir/tmp" "$dir/odd"
export TMPDIR=$dir/tmp

by_hand='polled UPDATE' engine='' kept='The tables dibs_lab_'
case $DIBS_STORE in
mongodb*) by_hand='polled findAndModify' engine='"engine":"(FerretDB|MongoDB) ' kept='The collections dibs_lab_' ;;
esac

lab() { "$DIBS" lab "$@" --json; }
json_fine() { printf '%s' "$out" | "$JSON_CHECK"; }
# `verdict` is the first of the row's keys.
method_row() { printf '%s' "$out" | grep -o "{\"verdict\":[^}]*\"method\":\"$1\"[^}]*}" | head -n 1; }
in_row() { method_row "$1" | sed -n "s/.*\"$2\":\"\{0,1\}\([^,\"}]*\).*/\1/p"; }
tables_are() { [ "$("$LAB_TABLES")" = "$1" ]; }

exits 0 'phases' lab phases --ttl 700ms --html "$dir/phases.html"
ok 'phases is JSON' json_fine
like 'it has the course of each method' "$out" '"polled":\[.*"compared":\[.*"dibs":\['
[ -z "$engine" ] || like 'it names the engine' "$out" "$engine"
is 'it speaks of no stock' "$(printf '%s' "$out" | grep -c 'takes from a stock')" 0
for name in "$by_hand" "$by_hand, compared" dibs; do
  is "$name: every row is deleted in the end" "$(in_row "$name" done)/$(in_row "$name" rows)" 12/12
  ok "$name: gateways wait for their certificates" [ "$(in_row "$name" waits)" -gt 0 ]
  ok "$name: the row of the killed node is claimed again, later" [ "$(in_row "$name" continues_ms)" -gt 0 ]
done
for name in "$by_hand" "$by_hand, compared"; do
  ok "$name: the effects of both nodes happen twice" [ "$(in_row "$name" twice)" -ge 2 ]
  is "$name: as expected" "$(in_row "$name" mood)" expected
done
ok "$by_hand: the stopped node has a late effect and overwrites the row" [ "$(in_row "$by_hand" late_writes)" -ge 2 ]
ok 'compared, the late effect happens and the row is refused' [ "$(in_row "$by_hand, compared" refused)" -ge 1 ]
is 'with dibs no effect happens twice or late' \
  "$(in_row dibs effects)/$(in_row dibs twice)/$(in_row dibs late_writes)" 60/0/0
ok 'the late write is refused' [ "$(in_row dibs refused)" -ge 1 ]
is 'which is correct' "$(in_row dibs verdict)" correct
ok 'the report of phases is well-formed and loads nothing' "$PAGE_CHECK" "$dir/phases.html"
ok 'nothing remains' tables_are 0

# ---- The ends of it ----
exits 116 'phases that happen twice can count as broken' lab phases --ttl 500ms --strict --keep
is "$by_hand: that is its verdict" "$(in_row "$by_hand" verdict)" BROKEN
is 'and not that of dibs' "$(in_row dibs verdict)" correct
like 'what was kept is named' "$out" "$kept"
ok 'and is there' tables_are 2
[ -z "$engine" ] || "$LAB_TABLES" drop >/dev/null

if [ -n "$engine" ]; then
  "$DIBS" lab phases --ttl 60s --json >"$dir/out" 2>"$dir/err" &
  pid=$!
  later $pid
  ok 'it has collections while it runs' until_true 60 tables_are 2
  kill -INT $pid
  wait $pid
  is 'an interrupt ends it' $? 130
  ok 'nothing remains then, either' tables_are 0
  echo 'no library' >"$dir/odd/dibs-lab-mongodb.so"
  exits 123 'a module that cannot be loaded' env DIBS_MODULE_PATH="$dir/odd" "$DIBS" lab phases
  like 'the message names it' "$err" "can't load the module: $dir/odd/dibs-lab-mongodb.so"
else
  exits 123 'a store without rows of a user' lab phases --store memory:
  like 'the message names the stores that have them' "$err" \
    'SQLite, PostgreSQL, MariaDB or MySQL, or in a collection of MongoDB'
fi
done_testing
