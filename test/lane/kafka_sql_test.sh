#!/bin/bash
# SPDX-License-Identifier: MIT
# dibs lane kafka --sql, and dibs/kafka.h, with a real broker: effects and offset in one transaction of the store.  Members are
# killed, stopped past their session and ended while messages come, and the broker is killed.
#   kafka_sql_test.sh MEMBER [STORE]    MEMBER: the program kafka_member; STORE: a new database; without it a file.
#       DIBS_TEST_KAFKA: a broker that this test may kill (with_server --private); DIBS_TEST_KAFKA_SECONDS: of the storm (8)
# The oracle: the table `effect` has one row for each message, and its rows of each key are in the order of the messages.
. "$(dirname "$0")/../e2e/tap.sh"
broker=${DIBS_TEST_KAFKA:?the address of a broker}
program=${1:?the program kafka_member}
[ -z "${2:-}" ] || export DIBS_STORE=$2
seconds=${DIBS_TEST_KAFKA_SECONDS:-8}
servers() { "$DIBS_TEST_SERVERS_SCRIPT" "$@" --dir "$DIBS_TEST_SERVERS_DIR" kafka; }
number='INTEGER PRIMARY KEY AUTOINCREMENT'
case $DIBS_STORE in
  postgres:*) number='BIGSERIAL PRIMARY KEY' ;;
  mysql:*) number='BIGINT PRIMARY KEY AUTO_INCREMENT' ;;
esac
# run_sql STATEMENT: prints its rows, with blanks between the columns.  mysql://USER:PASSWORD@HOST:PORT/DATABASE
run_sql() {
  local password host at=${DIBS_STORE#*://*:}
  case $DIBS_STORE in
    sqlite:*) sqlite3 -separator ' ' -cmd '.timeout 30000' "${DIBS_STORE#sqlite://}" "$1" ;;
    postgres:*) psql -XAtq -F ' ' "$DIBS_STORE" -c "$1" ;;
    mysql:*)
      password=${at%%@*} host=${at#*@}
      MYSQL_PWD=$password mariadb --no-defaults -N -h "${host%%:*}" -P "$(grep -o '[0-9]*' <<<"${host#*:}" | head -n 1)" \
        -u dibs "${host##*/}" -e "$1" | tr '\t' ' '
      ;;
  esac
}
exits 0 'a stock' "$DIBS" stock set units 1000000
ok 'a table for the effects' run_sql "CREATE TABLE effect (nr $number, topic VARCHAR(40), k INTEGER, n INTEGER, how VARCHAR(10))"
settings=(--setting session.timeout.ms=3000 --setting heartbeat.interval.ms=500)
# member NAME TOPIC COMMAND: in the background; $member is its pid.
member() {
  "$DIBS" lane kafka "$2" --brokers "$broker" --group g "${settings[@]}" --jobs 8 --owner "$1" --ttl 2s --sql --verbose --exec "$3" \
    >>"$dir/$1.out" 2>>"$dir/$1.err" </dev/null &
  member=$!
  later $member
}
# api_member NAME TOPIC: the same by the C API, with effects by statements, by its own connection, and by dibs.
api_member() {
  "$program" "$broker" "$2" g "$1" >>"$dir/$1.out" 2>>"$dir/$1.err" </dev/null &
  member=$!
  later $member
}
# send TOPIC FIRST LAST: messages K:N, where the key K is N modulo 20
send() { seq "$2" "$3" | awk '{ print $1 % 20 ":" $1 }' | kcat -q -P -b "$broker" -t "$1" -K : -X partitioner=murmur2; }
stored() { local sum=0 n; for n in 0 1 2 3; do n=$("$DIBS" record get "kafka:g/$1#$n" 2>/dev/null); sum=$((sum + ${n:-0})); done; echo $sum; }
stored_is() { [ "$(stored "$1")" = "$2" ]; }
effects() { run_sql "SELECT k, n FROM effect WHERE topic = '$1' ORDER BY nr"; }
# judge TOPIC COUNT: the oracle.
judge() {
  effects "$1" >"$dir/effects"
  is "$1: the effect of each message, once" "$(awk '{ print $2 }' "$dir/effects" | sort -n | md5sum)" "$(seq 1 "$2" | md5sum)"
  is "$1: in the order of each key" "$(awk '$2 <= last[$1] { print } { last[$1] = $2 }' "$dir/effects")" ''
}
insert() { echo "n=\$(cat); echo \"INSERT INTO effect (topic, k, n, how) VALUES ('$1', \$DIBS_KEY, \$n, 'sql');\""; }

# ---- One member ----
send one 1 40
member a one "$(insert one)"
ok 'every message is done' until_true 60 stored_is one 40
judge one 40
kill -TERM $member
wait $member
is 'TERM: it ends with 0' $? 0

# ---- What the database refuses ----
send wrong 1 3
member a wrong "n=\$(cat); echo \"INSERT INTO effect (topic, k, n, how) VALUES ('wrong', \$DIBS_KEY, \$n, 'sql');\"; [ -e $dir/right ] || [ \$n != 2 ] || echo 'INSERT INTO no_such_table VALUES (1);'"
ok 'a statement that the database refuses is noted' until_true 60 grep -q 'no_such_table' "$dir/a.err"
is 'nothing of its message took effect' "$(effects wrong | awk '$2 == 2')" ''
touch "$dir/right"
ok 'the message is repeated until it is done' until_true 60 stored_is wrong 3
judge wrong 3
kill -TERM $member
wait $member

# ---- A record of the offset that somebody else has overwritten ----
overwrite() { printf %s "$2" | "$DIBS" record put "kafka:g/overwritten#$1" --force; }
send overwritten 1 3
member a overwritten "$(insert overwritten)"
ok 'every message is done, and then' until_true 60 stored_is overwritten 3
kill -TERM $member
wait $member
for n in 0 1 2 3; do
  was=$("$DIBS" record get "kafka:g/overwritten#$n" 2>/dev/null)
  [ -n "$was" ] || continue
  ok 'the record gets another text' overwrite "$n" "${was}x"
  member a overwritten "$(insert overwritten)"
  ok 'it is not taken for an offset' until_true 60 grep -q "has no offset but \"${was}x\"" "$dir/a.err"
  ok 'the right one is put back' overwrite "$n" "$was"
  send overwritten 4 6
  ok 'and the member goes on' until_true 60 stored_is overwritten 6
  judge overwritten 6
  kill -TERM $member
  wait $member
  break
done

# ---- A zombie: stopped past its session and its ttl when its command has ended ----
printf '1:1\n1:2\n1:3\n' | kcat -q -P -b "$broker" -t zombie -K :
member a zombie "echo begin >>$dir/zombie; while [ ! -e $dir/go ]; do sleep 0.05; done; $(insert zombie); touch $dir/ended"
a=$member
ok 'a member works on a message' until_true 60 filled "$dir/zombie"
kill -STOP $a
touch "$dir/go"
ok 'its command ends while dibs is stopped' until_true 60 test -e "$dir/ended"
member b zombie "$(insert zombie)"
b=$member
ok 'the next member does this message, and the others' until_true 60 stored_is zombie 3
kill -CONT $a
ok 'the effects of the first one are refused with its offset' until_true 60 grep -q 'offset 1 is not stored' "$dir/a.err"
judge zombie 3
kill -TERM $a $b
wait $a $b

# ---- A storm ----
sent=0 members=()
again() { # again I: member I, in place of one that has ended; half of them by the C API
  if [ "$1" = 0 ]; then member m0 storm "$(insert storm)"; else api_member "m$1" storm; fi
  members[$1]=$member
}
for i in 0 1 2; do again $i; done
by=$(($(now_ms) + seconds * 1000))
while [ "$(now_ms)" -lt "$by" ]; do
  send storm $((sent + 1)) $((sent + 100))
  sent=$((sent + 100)) i=$((RANDOM % 3))
  # Not in the middle of every message: some are to be done.
  sleep 0.$((RANDOM % 9 + 1))
  case $((RANDOM % 3)) in
    0) kill -KILL "${members[i]}"; wait "${members[i]}" 2>/dev/null; again $i ;;
    1) kill -STOP "${members[i]}"; sleep 3.5; kill -CONT "${members[i]}" ;;
    2) kill -TERM "${members[i]}"; wait "${members[i]}"; again $i ;;
  esac
done
ok 'the broker is killed' servers kill
ok 'and starts again' servers start
send storm $((sent + 1)) $((sent + 20))
sent=$((sent + 20))
ok "all of $sent messages are done" until_true 180 stored_is storm $sent
kill -TERM "${members[@]}"
wait "${members[@]}"
judge storm $sent
# What the members of the C API did beside the rows.
by_api=$(run_sql "SELECT COUNT(*) FROM effect WHERE how = 'api'")
ok "some were done by the C API ($by_api)" test "$by_api" -gt 0
is 'which took as many units of a stock' "$("$DIBS" stock show units --json | grep -o '"used":[0-9]*' | cut -d : -f 2)" "$by_api"
is 'and added as many tasks' "$(run_sql "SELECT COUNT(*) FROM ${tasks:-dibs_task} WHERE kind = 'effects'")" "$by_api"
done_testing
