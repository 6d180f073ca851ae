#!/bin/bash
# SPDX-License-Identifier: MIT
# The lab with small sizes: promises hold, unguarded strategies break, and no table remains.
#   lab_test.sh TAP.SH [URI]      without a URI on an embedded store of its own
# PAGE_CHECK checks a report, LAB_TABLES counts the lab's tables.
. "$1"
[ -z "${2:-}" ] || export DIBS_STORE=$2
scheme=${DIBS_STORE%%:*}
: "${PAGE_CHECK:?}" "${LAB_TABLES:?}" "${JSON_CHECK:?}"

lab() { "$DIBS" lab "$@" --json; }
# Of the row of JSON that has STRATEGY: the value of KEY.
value() { # value STRATEGY KEY
  printf '%s' "$out" | grep -o "{\"$3\":\"$1\"[^}]*}" | head -n 1 | sed -n "s/.*\"$2\":\"\{0,1\}\([^,\"}]*\).*/\1/p"
}
race() { value "$1" "$2" strategy; }
json_fine() { printf '%s' "$out" | "$JSON_CHECK"; }
no_tables() { [ "$("$LAB_TABLES")" = 0 ]; }
some_tables() { [ "$("$LAB_TABLES")" -gt 0 ]; }

# ---- race ----
exits 0 'a race' lab race --users 24 --seats 6 --html "$dir/race.html"
ok 'it is JSON' json_fine
for strategy in coalesced atomic pessimistic optimistic named fenced child-first; do
  is "$strategy lets in as many as there are seats" "$(race $strategy accepted)/$(race $strategy counted)" 6/6
  is "$strategy is judged" "$(race $strategy verdict)" correct
  is "$strategy answers all" "$(race $strategy refused)" 18
done
is 'without a guard the promise breaks' "$(race none mood)" expected
ok 'more applicants than seats are accepted, or some are not counted' \
  [ $(($(race none over_capacity) + $(race none lost_updates))) -gt 0 ]
case $scheme in
  mysql) ok 'the order of the child first deadlocks' [ "$(race child-first deadlocks)" -gt 0 ] ;;
  *) is 'the order of the child first does not deadlock here' "$(race child-first deadlocks)" 0 ;;
esac
like 'an expected break does not count as broken' "$out" '"held":true,"complete":true'
ok 'its report is well-formed and loads nothing' "$PAGE_CHECK" "$dir/race.html"
ok 'no table remains' no_tables

# --strict counts an expected break as broken: the same verdict, and another exit code.
exits 116 'a broken promise has an exit code' lab race --users 24 --seats 6 --strategies none,atomic --strict
like 'and is reported' "$out" '"held":false'
is 'and marked' "$(race none mood)" bad
is 'beside a strategy that held' "$(race atomic mood)" good
ok 'and no table remains' no_tables

exits 0 'a race of processes' lab race --users 12 --seats 5 --processes 3 --strategies coalesced,atomic
is 'the count is correct' "$(race coalesced counted)/$(race atomic counted)" 5/5
exits 0 'a race without seats' lab race --users 5 --seats 0 --strategies coalesced
is 'no applicant is accepted' "$(race coalesced accepted)/$(race coalesced refused)" 0/5

# ---- throughput, contend ----
exits 0 'throughput' lab throughput --users 1,6 --seconds 0.3 --rounds 2 --strategies coalesced,pessimistic,none \
  --html "$dir/throughput.html"
ok 'throughput is JSON' json_fine
is 'each number of users has its row' "$(printf '%s' "$out" | grep -o '"strategy":"coalesced","users":[0-9]*,"per' | sort -u | wc -l)" 2
ok 'bookings are counted' [ "$(race coalesced per_second | cut -d . -f 1)" -gt 0 ]
is 'and the count is correct' "$(race coalesced verdict)/$(race pessimistic verdict)" correct/correct
like 'rounds have medians' "$out" '"rounds":\[\{"strategy":"coalesced","users":1,"median":[0-9.]+,"low":'
ok 'the report of throughput is well-formed and loads nothing' "$PAGE_CHECK" "$dir/throughput.html"
like 'it has a plot of latencies' "$(cat "$dir/throughput.html")" 'How long a booking takes, 6 users'

cat >"$dir/bare" <<'END'
#!/bin/sh
case $* in
  *--help*) printf 'usage\n\n  coalesced1     all of them in one packet\n  none           wrong\n' ;;
  *"--strategy coalesced1 --users 3 --seconds 0.200 --json"*)
    echo '{"per_second":10.0,"p50_ns":1000,"p99_ns":2000,"max_ns":3000,"conflicts":0,"deadlocks":0,"correct":true}' ;;
  *) exit 1 ;;
esac
END
chmod +x "$dir/bare"
exits 0 'a bare client runs beside the strategies' lab throughput --users 3 --seconds 0.2 --strategies coalesced --floor "$dir/bare"
like 'its figures are beside them' "$out" '"strategy":"bare coalesced1","users":3,"per_second":10.000'
like 'the ratio is reported' "$out" '"to_floor":[0-9]+\.'
exits 123 'a bare client that fails is reported' lab throughput --users 2 --seconds 0.2 --strategies none --floor "$dir/bare"
like 'by its name' "$err" "bare, none"

exits 0 'contend' lab contend --users 4 --rows 1,20 --seconds 0.2 --strategies coalesced,optimistic --html "$dir/contend.html"
is 'each number of rows is tried' "$(printf '%s' "$out" | grep -o '"rows":[0-9]*,"strategy"' | sort -u | wc -l)" 2
like 'the best strategy is reported' "$out" '"ahead":\[\{"rows":1,"best":"'
ok 'the report of contend is well-formed and loads nothing' "$PAGE_CHECK" "$dir/contend.html"

# ---- deadlock, pause ----
exits 0 'deadlock' lab deadlock --html "$dir/deadlock.html"
ok 'deadlock is JSON' json_fine
order() { value "$1" "$2" order; }
is 'counting first does not deadlock' "$(order 'The counted row first' deadlocks)/$(order 'The counted row first' counted)" 0/2
case $scheme in
  mysql)
    is 'the child first does' "$(order "The applicant's row first" deadlocks)" 1
    is 'its victim is accepted after a retry' "$(order "The applicant's row first" applicants)" 2
    like 'one is chosen as the victim' "$out" 'chosen as the victim: Deadlock'
    ;;
  postgres*)
    is 'the child first does not' "$(order "The applicant's row first" deadlocks)" 0
    is 'a shared lock taken by hand does' "$(order 'Read with a shared lock, then written' deadlocks)" 1
    ;;
  *) is 'reading first is refused' "$(order 'Read, then written' deadlocks)/$(order 'Read, then written' counted)" 1/2 ;;
esac
ok 'the report of deadlock is well-formed and loads nothing' "$PAGE_CHECK" "$dir/deadlock.html"

exits 0 'pause' lab pause --ttl 500ms --html "$dir/pause.html"
ok 'pause is JSON' json_fine
guard() { value "$1" "$2" guard; }
is 'a plain lease lets the late write in' "$(guard 'A plain lease' late_write)/$(guard 'A plain lease' lost)" accepted/5
is 'a fence refuses it' "$(guard 'A fence' late_write)/$(guard 'A fence' lost)" refused/0
is 'a seal refuses it before anything was written' "$(guard 'Sealed before reading' late_write)/$(guard 'Sealed before reading' lost)" refused/0
like 'with STALE' "$out" '"gets":"STALE: '
ok 'the report of pause is well-formed and loads nothing' "$PAGE_CHECK" "$dir/pause.html"
exits 116 'what a plain lease lets in can count as broken' lab pause --ttl 500ms --strict

# ---- Ends ----
"$DIBS" lab throughput --seconds 60 --users 3 --strategies coalesced,atomic --json >"$dir/out" 2>"$dir/err" &
pid=$!
later $pid
ok 'its tables are there while it runs' until_true 20 some_tables
kill -INT $pid
wait $pid
is 'interrupted it ends with the signal' $? 130
out=$(cat "$dir/out")
ok 'it prints the results so far' json_fine
like 'and marks them as incomplete' "$out" '"complete":false'
ok 'and no table remains' no_tables

exits 0 '--keep keeps the tables' lab race --users 2 --seats 1 --strategies coalesced --keep
like 'and named' "$out" 'The tables dibs_lab_event_[0-9]+ and dibs_lab_applicant_[0-9]+ were kept'
ok 'they exist' some_tables

if [ -z "${2:-}" ]; then
  exits 0 'for people' "$DIBS" lab race --users 4 --seats 2
  like 'it prints a table' "$out" '^none +[0-9]'
  is 'no progress bar without a terminal' "$err" ''
  wrong() { # wrong PATTERN WORDS...
    local pattern=$1
    shift
    exits 125 "lab $*" "$DIBS" lab "$@"
    like "lab $* says" "$err" "$pattern"
  }
  wrong 'which experiment' --users 3
  wrong 'which experiment' rase
  wrong "'0' is not a list" race --users 0
  wrong "'9,,' is not a list" race --users 9,,
  wrong "'bogus' is not one of the strategies" race --strategies atomic,bogus
  wrong 'not a time from 50ms to 24h' throughput --seconds soon
  wrong 'from 500ms to 60s' pause --ttl 3
  wrong 'needs a value' race --users
  wrong 'there is no option' race --bogus
  wrong '^dibs: lab: deadlock does not use --seats;' deadlock --seats 5
  wrong '^dibs: lab: race does not use --seconds;' race --seconds 2
  wrong '^dibs: lab: amnesia does not use --keep;' amnesia --strict --keep
  wrong 'race takes one number of --users' race --users 3,4
  exits 119 'a report that cannot be written' "$DIBS" lab race --users 2 --seats 1 --strategies atomic --html "$dir/no/such"
  like 'is reported before the run' "$out$err" '^dibs: lab: cannot write the report to .*; nothing was run$'
  echo old >"$dir/kept.html"
  exits 123 'a store that cannot be reached' "$DIBS" lab race --store mysql://127.0.0.1:1/x --html "$dir/kept.html"
  is 'keeps the report of an earlier run' "$(cat "$dir/kept.html")" old
  "$DIBS" lab race --store mysql://127.0.0.1:1/x --html "$dir/none.html" 2>/dev/null
  ok 'and creates no empty report' [ ! -e "$dir/none.html" ]
  exits 0 'seconds may have a unit' "$DIBS" lab throughput --users 2 --seconds 200ms --strategies coalesced
  exits 0 'a store without SQL has stock, too' lab race --users 9 --seats 4 --store memory:
  is 'and counts' "$(race coalesced counted)/$(race pessimistic counted)/$(race child-first counted)" 4/4/
  exits 123 'a store in memory is its own' lab race --store memory: --processes 2
  exits 123 'a store in memory has no other process to stop' "$DIBS" lab pause --store memory:
  (
    unset DIBS_STORE
    export TMPDIR=$dir/tmp
    mkdir "$TMPDIR"
    "$DIBS" lab race --users 3 --seats 1 --strategies coalesced >"$dir/own.out"
  )
  like 'without a store it makes one' "$(cat "$dir/own.out")" "^Store: sqlite://$dir/tmp/dibs-lab"
  is 'and removes it' "$(ls "$dir/tmp")" ''
fi
done_testing
