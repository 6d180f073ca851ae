#!/bin/bash
# SPDX-License-Identifier: MIT
# What a client does in a failover, and with a primary that was replaced and returns as if nothing had happened.
#   failover_test.sh postgres|mariadb [lost|soon]
#   pair.sh sets the variables of the servers. lost: the pair is asynchronous, and the replica lacks a grant; soon: it is
#   asynchronous, and the old primary returns within seconds
. "$(dirname "$0")/../e2e/tap.sh"
engine=$1
script=$(dirname "$0")/../../script/servers
pair=$DIBS_TEST_SERVERS_DIR
case $engine in
  postgres) both=$DIBS_TEST_POSTGRES ;;
  mariadb) both=$DIBS_TEST_MYSQL ;;
esac
servers() { "$script" "$1" --dir "$pair/$2" "${@:3}" "$engine"; }
port() { cat "$pair/$1/$engine/port"; }
address() { echo "127.0.0.1:$(port "$1")"; }
alone() { echo "${both%@*}@$(address "$1")/dibs"; }
of_address() { echo "${both%@*}@$(address "$1"),$(address "$2")/dibs"; }
ask() {
  local password
  password=$(<"$pair/$1/admin-password")
  case $engine in
    postgres) PGPASSWORD=$password psql -X -q -A -t -v ON_ERROR_STOP=1 -h 127.0.0.1 -p "$(port "$1")" -U admin "${3:-postgres}" -c "$2" ;;
    mariadb) MYSQL_PWD=$password mariadb --no-defaults -N -B -h 127.0.0.1 -P "$(port "$1")" -u admin "${3:-mysql}" -e "$2" ;;
  esac
}
fence() { "$DIBS" run "$1" --ttl 2s --wait 20s -- sh -c 'echo $DIBS_FENCE' 2>"$dir/fence.err" || cat "$dir/fence.err" >&2; }
# What a row of dibs has on one server; a primary that nobody waits for keeps its rows.
stored() { ask "$1" "SELECT count(*) FROM ${2}dibs_record WHERE $3 = '$4'" dibs; }
has_record() {
  case $engine in
    postgres) [ "$(stored "$1" dibs. name "$2")" = 1 ] ;;
    mariadb) [ "$(stored "$1" '' name "$2")" = 1 ] ;;
  esac
}
export DIBS_STORE=$both

# ---- A lease that the replica has not received ----

if [ "${2:-}" = lost ]; then
  export DIBS_STORE="$both?failover_wait=8000"
  exits 125 'no ttl is longer than the wait' "$DIBS" run late --ttl 9s -- true
  like 'and the message names both' "$err" 'a ttl of 90[0-9][0-9] ms is longer than failover_wait=8000'
  exits 125 'it does not go with session locks' env DIBS_STORE="$DIBS_STORE&lock=$([ "$engine" = postgres ] && echo advisory || echo named)" "$DIBS" run late -- true
  ok 'the replica receives nothing more' servers lag b
  # shellcheck disable=SC2016
  "$DIBS" run late --ttl 8s --wait 20s --grace 1s -- sh -c 'trap "cut -d\  -f1 /proc/uptime >$0/ended; exit 0" TERM; echo >$0/began; while :; do sleep 0.1; done' \
    "$dir" 2>"$dir/late.err" &
  holder=$!
  later "$holder"
  ok 'a client holds a name' until_true 20 filled "$dir/began"
  ok 'the primary is killed' servers kill a
  ok 'the replica is promoted' servers promote b
  ok 'a client writes nothing while it waits' eval '! printf x | "$DIBS" record put page --force'
  # shellcheck disable=SC2016
  exits 0 'another client gets the name' "$DIBS" run late --ttl 8s --wait 60s -- sh -c 'cut -d\  -f1 /proc/uptime >$0/next' "$dir"
  wait "$holder"
  is 'its holder has learned that it lost it' $? 122
  ok 'before that' awk 'NR == FNR { ended = $1; next } { exit !(ended > 0 && ended < $1) }' "$dir/ended" "$dir/next"
  say "ended $(cat "$dir/ended"), next $(cat "$dir/next")"
  done_testing
  exit
fi

# ---- The old primary returns within the time for which a client that has asked the other hosts does not ask again ----

if [ "${2:-}" = soon ]; then
  schema=$([ "$engine" = postgres ] && echo dibs. || true)
  counted() { [ "$(ask "$1" "SELECT count(*) FROM ${schema}dibs_counter WHERE name = '$2'" dibs)" != 0 ]; }
  connected() {
    case $engine in
      postgres) [ "$(ask "$1" "SELECT count(*) FROM pg_stat_activity WHERE usename = 'dibs'")" != 0 ] ;;
      mariadb) [ "$(ask "$1" "SELECT count(*) FROM information_schema.PROCESSLIST WHERE user = 'dibs'")" != 0 ] ;;
    esac
  }
  disconnected() { ! connected "$1"; }
  ends_connections() {
    case $engine in
      postgres) ask "$1" "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'dibs'" ;;
      mariadb) ask "$1" 'KILL HARD USER dibs' ;;
    esac
  }
  "$DIBS" counter add first
  ok 'the replica has the tables' until_true 20 counted b first
  until_true 20 disconnected a # the next one is the adder's
  mkfifo "$dir/lines"
  "$DIBS" counter add - --wait 60s <"$dir/lines" 2>"$dir/adder.err" &
  adder=$!
  later "$adder"
  exec {lines}>"$dir/lines"
  ok 'a process has a connection to the primary' until_true 20 connected a
  servers pause a
  ok 'the primary hangs, and the replica is promoted' servers promote b
  servers resume a
  ends_connections a >/dev/null
  echo 'later 1' >&$lines
  exec {lines}>&-
  until_true 4 counted a later
  is 'the process counts nothing at the old primary' "$?" 1
  case $engine in
    postgres) exits 116 'doctor shows both' "$DIBS" doctor && like 'and which one' "$out" "TROUBLE +node +$(address a) accepts writes, too" ;;
    mariadb) ask a 'SET GLOBAL read_only = 1' ;;
  esac
  wait "$adder"
  is 'it counts at the new one' "$? $(counted b later; echo $?)" '0 0'
  say "$(cat "$dir/adder.err")"
  done_testing
  exit
fi

# ---- A failover: the client finds the new primary, and its waiters wait on ----

before=$(fence job)
printf 'first' | "$DIBS" record put page --force >/dev/null
ok 'a record is on both servers' until_true 20 has_record b page
"$DIBS" run held --ttl 3s --wait 20s -- sleep 60 2>"$dir/holder.err" &
holder=$!
later "$holder"
ok 'a client holds a name' until_true 20 holds held
"$DIBS" run held --ttl 3s --wait 90s -- echo after >"$dir/waiter.out" 2>"$dir/waiter.err" &
waiter=$!
later "$waiter"
ok 'another one waits for it' until_true 20 waits held
ok 'the primary is killed' servers kill a
ok 'the replica is promoted' servers promote b
[ "$engine" != postgres ] || ask b "ALTER SYSTEM SET synchronous_standby_names = ''" && ask b 'SELECT pg_reload_conf()' >/dev/null 2>&1
[ "$engine" != mariadb ] || ask b 'SET GLOBAL rpl_semi_sync_master_enabled = 0'
wait "$holder"
is 'the holder learns that it lost the name' $? 122
wait "$waiter"
is 'the waiter gets it from the new primary' "$? $(cat "$dir/waiter.out")" '0 after'
after=$(fence job)
ok 'fences grow' [ "$after" -gt "$before" ]
is 'an acknowledged record is there' "$("$DIBS" record get page)" first

# ---- The old primary returns, and accepts writes ----

# Nobody told it that it was replaced.
ok 'the old primary starts as a primary' servers start a
case $engine in
  postgres)
    ask a "ALTER SYSTEM SET synchronous_standby_names = ''" && ask a 'SELECT pg_reload_conf()' >/dev/null
    exits 0 'a new process writes a record' "$DIBS" record put split --force <<<here
    is 'it chose the new primary, though the old one is the first host' "$(has_record a split; echo $?) $(has_record b split; echo $?)" '1 0'
    ok 'and so do leases' [ "$(fence job)" -gt "$after" ]
    exits 0 'in the other order, too' env DIBS_STORE="$(of_address b a)" "$DIBS" record put order --force <<<here
    ok 'on the new primary' has_record b order
    ;;
  mariadb)
    ask a 'SET GLOBAL rpl_semi_sync_master_enabled = 0'
    exits 123 'while both accept writes, dibs uses neither' "$DIBS" record put split --force
    like 'and names both' "$err" "$(address a) and $(address b) both accept writes"
    is 'nothing is written' "$(has_record a split; echo $?) $(has_record b split; echo $?)" '1 1'
    ask a 'SET GLOBAL read_only = 1'
    exits 0 'when the old one is read-only, a process writes' "$DIBS" record put split --force
    ok 'on the new primary' has_record b split
    ;;
esac

# ---- The new primary dies: a client that has seen it does not go back to the old one ----

if [ "$engine" = postgres ]; then
  "$DIBS" run seen --ttl 3s --wait 20s -- sleep 120 2>"$dir/seen.err" &
  later $!
  ok 'a client holds a name' until_true 20 holds seen
  "$DIBS" run seen --ttl 3s --wait 12s -- echo back >"$dir/back.out" 2>"$dir/back.err" &
  waiter=$!
  later "$waiter"
  ok 'another one waits for it' until_true 20 waits seen
  ok 'the new primary is killed' servers kill b
  wait "$waiter"
  ok 'its waiter ends without it' [ $? != 0 ]
  is 'and gets nothing from the old primary' "$(cat "$dir/back.out")" ''
fi

# ---- A switchover: the primary becomes read-only under its clients ----

if [ "$engine" = mariadb ]; then
  "$DIBS" run slow --ttl 3s --wait 20s -- sleep 4 2>"$dir/slow.err" &
  later $!
  ok 'a client holds a name' until_true 20 holds slow
  "$DIBS" run slow --ttl 3s --wait 90s -- echo next >"$dir/next.out" 2>"$dir/next.err" &
  waiter=$!
  later "$waiter"
  ok 'another one waits for it' until_true 20 waits slow
  # The server's own locks are no writes: their holder would keep them there.
  "$DIBS" run slow --store "$both?lock=named&prefix=lock_" --ttl 3s --wait 20s -- sleep 60 2>"$dir/named.err" &
  named=$!
  later "$named"
  ok 'a client holds a lock of the server' until_true 20 env DIBS_STORE="$both?lock=named&prefix=lock_" "$DIBS" show slow
  ask b 'SET GLOBAL read_only = 1'
  ask a 'SET GLOBAL read_only = 0'
  wait "$named"
  is 'the holder of a lock of the server loses it' $? 122
  wait "$waiter"
  is 'the waiter, whose connection stays open, follows to the other server' "$? $(cat "$dir/next.out")" '0 next'
  say "$(cat "$dir/next.err")"

  listens() {
    [ "$(ask "$1" "SELECT count(*) FROM information_schema.PROCESSLIST WHERE user = 'dibs' AND INFO LIKE '%GET_LOCK(%dibs.w.%'")" != 0 ]
  }
  "$DIBS" run turns --ttl 3s --wait 20s -- sleep 60 2>"$dir/turns.err" &
  later $!
  ok 'a client holds a name' until_true 20 holds turns
  "$DIBS" run turns --ttl 3s --wait 90s -- sleep 60 2>"$dir/turns2.err" &
  later $!
  ok 'another one waits for it' until_true 20 waits turns
  ok 'and listens' until_true 20 listens a
  ask a 'SET GLOBAL read_only = 1'
  ask b 'SET GLOBAL read_only = 0'
  ok 'after another switchover it listens at the new primary' until_true 30 listens b
  ok 'and not at the old one' until_true 20 eval '! listens a'
fi
done_testing
