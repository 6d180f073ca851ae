#!/bin/bash
# SPDX-License-Identifier: MIT
# Session locks between processes: processes_test.sh DIBS postgres|mariadb URI
# The server is this test's own ($DIBS_TEST_SERVERS_SCRIPT), because the test restarts it.
set -u
dibs=$1 engine=$2 uri=$3
. "$(dirname "$0")/../support/says.sh"
folder=$(mktemp -d "${TMPDIR:-/tmp}/dibs-locks.XXXXXX")
pids=()
end() {
  for pid in "${pids[@]}"; do kill -KILL "$pid" 2>/dev/null; done
  rm -rf "$folder"
}
trap end EXIT
# check NAME GOT WANTED
check() { if [ "$2" = "$3" ]; then pass "$1"; else fail "$1" "got $2, not $3"; fi; }
now_ms() { date +%s%3N; }
# until_true WHAT COMMAND...: 20 s at most
until_true() {
  local by=$((SECONDS + 20))
  until "${@:2}"; do
    if [ "$SECONDS" -ge "$by" ]; then
      fail "$1" 'it never became true'
      return 1
    fi
    sleep 0.01
  done
}
admin() {
  local place=${uri#*@} rest=${DIBS_TEST_MYSQL_ADMIN:-} password
  [ "$engine" != postgres ] || rest=$DIBS_TEST_POSTGRES_ADMIN
  place=${place%%/*}
  rest=${rest#*://*:}
  password=${rest%%@*}
  if [ "$engine" = postgres ]; then
    PGPASSWORD=$password psql -X -q -A -t -h "${place%%:*}" -p "${place##*:}" -U admin dibs
  else
    MYSQL_PWD=$password mariadb --no-defaults -N -B --unbuffered -h "${place%%:*}" -P "${place##*:}" -u admin dibs
  fi
}
store=$uri
# Connections that have locks of dibs, and the key of a name as each program computes it.
if [ "$engine" = postgres ]; then
  store="$uri?lock=advisory"
  key() { echo "('x' || left(encode(sha256('dibs.dibs_:$1'), 'hex'), 16))::bit(64)::bigint"; }
  take() { echo "SELECT pg_try_advisory_lock($(key "$1"))::int"; }
  # A notifier's lock would count, too, but no client of a session store listens.
  end_holders() { echo "SELECT count(pg_terminate_backend(pid)) FROM pg_locks WHERE locktype = 'advisory'" | admin; }
  connections() { echo "SELECT count(*) FROM pg_stat_activity WHERE usename = 'dibs'" | admin; }
else
  store="$uri?lock=named"
  key() { echo "CONCAT('dibs.', LEFT(SHA2('dibs.dibs_:$1', 256), 48))"; }
  take() { echo "SELECT GET_LOCK($(key "$1"), 0)"; }
  end_holders() {
    local holder
    holder=$(echo "SELECT IS_USED_LOCK($(key "$1"))" | admin)
    echo "KILL $holder" | admin
  }
  connections() { echo "SELECT count(*) FROM information_schema.PROCESSLIST WHERE USER = 'dibs'" | admin; }
fi

# begin NAME: a process holds it; $held is dibs.
begin() {
  rm -f "$folder/in"
  "$dibs" run --store "$store" --ttl 10s "$1" -- sh -c "echo \$DIBS_FENCE > $folder/fence; touch $folder/in; exec sleep 60" \
    >"$folder/said" 2>&1 &
  held=$!
  pids+=("$held")
  until_true "$1 is held" test -e "$folder/in"
}
try() { "$dibs" run --store "$store" --try --quiet "$1" -- true >"$folder/tried" 2>&1; }

begin n
try n
check 'another process is refused' $? 120
try N
check 'names that differ only in case are distinct' $? 0
check 'another program sees it by the documented key' "$(take n | admin)" 0
long=$(printf 'x%.0s' $(seq 254))
begin "${long}a"
try "${long}b"
check 'names of 255 bytes are distinct to the last byte' $? 0
try "${long}a"
check 'and kept' $? 120

# ---- A killed process, a stopped process ----

kill -STOP "$held"
try "${long}a"
check 'a stopped process keeps its lock' $? 120
kill -CONT "$held"
began=$(now_ms)
kill -KILL "$held"
until_true 'killed: free' try "${long}a"
took=$(($(now_ms) - began))
if [ "$took" -lt 3000 ]; then pass "the lock of a killed process is free at once ($took ms)"; else
  fail 'the lock of a killed process is free at once' "$took ms"
fi

# ---- A connection that the server ends ----

begin m
first=$(cat "$folder/fence")
began=$(now_ms)
end_holders m >/dev/null
wait "$held"
check 'the holder of an ended connection has lost its lease' $? 122
took=$(($(now_ms) - began))
if [ "$took" -lt 2000 ]; then pass "at once, and not at the end of its ttl of 10 s ($took ms)"; else
  fail 'at once' "$took ms"
fi
begin m
if [ "$(cat "$folder/fence")" -gt "$first" ]; then pass 'the next fence is larger'; else
  fail 'the next fence is larger' "$(cat "$folder/fence") after $first"
fi

# ---- Breaking, listing ----

"$dibs" show --store "$store" m >"$folder/shown" 2>&1
if grep -q 'connection' "$folder/shown"; then pass 'show names the connection of the holder'; else
  fail 'show names the connection of the holder' "$(cat "$folder/shown")"
fi
"$dibs" break --store "$store" --now m >"$folder/broke" 2>&1
check 'a lock can be broken at once' $? 0
wait "$held"
check 'its holder has lost' $? 122
"$dibs" lock --store "$store" m >"$folder/locked" 2>&1
check 'dibs lock is refused, because no process would hold the lock' $? 125

# ---- Another program uses the same locks ----

mkfifo "$folder/statements"
admin <"$folder/statements" >"$folder/took" &
pids+=($!)
exec 7>"$folder/statements"
echo "$(take other);" >&7
until_true 'the program has it' grep -q 1 "$folder/took"
try other
check 'a lock of another program is respected' $? 120
"$dibs" run --store "$store" --wait 20s other -- true >"$folder/said" 2>&1 7>&- &
waiter=$!
until_true 'dibs waits' sh -c "'$dibs' show --store '$store' other 2>/dev/null | grep -qi wait"
exec 7>&-
wait "$waiter"
check 'and waited for' $? 0

# ---- A restart ----

begin r
first=$(cat "$folder/fence")
"$DIBS_TEST_SERVERS_SCRIPT" restart --dir "$DIBS_TEST_SERVERS_DIR" "$engine" >/dev/null 2>&1
check 'the server runs again' $? 0
wait "$held"
check 'a restart ends held leases' $? 122
begin r
if [ "$(cat "$folder/fence")" -gt "$first" ]; then pass 'fences keep growing'; else
  fail 'fences keep growing' "$(cat "$folder/fence") after $first"
fi
kill -TERM "$held"
wait "$held"

# ---- Many leases, few connections ----

begin one
before=$(connections)
if [ "$before" -le 4 ]; then pass "a holder has $before connections"; else fail 'few connections' "$before"; fi

end_of_cases
