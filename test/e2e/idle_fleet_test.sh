#!/bin/bash
# SPDX-License-Identifier: MIT
# What workers without work cost a server: its own counters, while many processes wait for rows of a user's table, and
# for dibs' own tasks.  doc/tables.md and doc/tasks.md have the figures of an idle machine; the bounds here are larger.
#   $1: the URI of a store on a server; WORKERS and MEASURE_S: for figures
. "$(dirname "$0")/tap.sh"
uri=$1
. "$(dirname "$0")/sql.sh"
export DIBS_STORE=$uri
workers=${WORKERS:-20} seconds=${MEASURE_S:-5}
case $uri in
  postgres:*) what=transactions most=6 ;; # for each worker and second
  *) what=statements most=12 ;;
esac
# How many the server has counted so far.  Each question adds a few.
counted() {
  case $uri in
    postgres:*) sql 'SELECT xact_commit FROM pg_stat_database WHERE datname = current_database()' ;;
    *) sql "SHOW GLOBAL STATUS LIKE 'Questions'" | cut -f 2 ;;
  esac
}
connections() {
  case $uri in
    postgres:*) sql 'SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()' ;;
    *) sql 'SELECT count(*) FROM information_schema.processlist WHERE db = database()' ;;
  esac
}
all_connected() { [ "$(connections)" -gt "$workers" ]; }

pids=()
start_workers() { # start_workers OPTION...
  local i
  pids=()
  for ((i = 0; i < workers; i++)); do
    "$DIBS" worker "$@" --exec 'echo done >>"$DONE"' 2>>"$dir/worker.err" &
    pids+=($!)
  done
  later "${pids[@]}"
}
end_workers() {
  local pid ended=0
  kill -TERM "${pids[@]}"
  for pid in "${pids[@]}"; do wait "$pid" && ended=$((ended + 1)); done
  is 'all of them ran to the end' "$ended" "$workers"
}
# measure WHICH: each worker has to look at least once, and none more often than is documented.
measure() {
  local before ms=0 got
  ok "$1: all workers are connected" until_true 60 all_connected
  sleep 2 # their connections are made, and each has looked
  before=$(counted) ms=$(now_ms)
  sleep "$seconds"
  got=$(($(counted) - before)) ms=$(($(now_ms) - ms))
  say "$1: $workers idle workers: $((got * 1000 / ms)) $what a second"
  ok "$1: each worker looks" test "$got" -ge "$workers"
  ok "$1: at most $most $what a second for each" test $((got * 1000)) -le $((workers * most * ms))
}
export DONE=$dir/done

exits 0 'the store is created' "$DIBS" task counts
sql 'CREATE TABLE gateway (id VARCHAR(80) PRIMARY KEY, phase VARCHAR(80), locked_at BIGINT NOT NULL DEFAULT 0,
  updated_at BIGINT NOT NULL DEFAULT 0, fence BIGINT)'
table=gateway
case $uri in postgres:*) table=dibs.gateway ;; esac
cat >"$dir/t.ini" <<INI
[gateway]
table = $table
key = id
phase = phase
locked_at = locked_at
updated_at = updated_at
fence = fence
INI
sql "INSERT INTO gateway (id, phase) VALUES ('gw-0', 'Created')"
start_workers --table "$dir/t.ini#gateway" --phase Deleting
measure "a user's table"
sql "INSERT INTO gateway (id, phase) VALUES ('gw-1', 'Deleting')"
ok 'they find a row as soon as there is one' until_true 20 filled "$DONE"
end_workers

: >"$DONE"
start_workers --kind idle
measure "dibs' own table"
exits 0 'a task is added' "$DIBS" task add idle x
ok 'and done' until_true 20 filled "$DONE"
end_workers
done_testing
