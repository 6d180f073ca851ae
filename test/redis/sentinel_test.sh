#!/bin/bash
# SPDX-License-Identifier: MIT
# Starts a master, a replica and a sentinel for test_redis_sentinel:  sentinel_test.sh PROGRAM
#
# The program may kill the first master, and start it again as a replica: "$DIBS_TEST_FIRST" kill|start.
set -u
server=$(command -v redis-server) || {
  [ "${DIBS_TEST_SERVERS:-}" = required ] && { echo 'sentinel_test: redis-server is not installed' >&2; exit 1; }
  echo 'sentinel_test: redis-server is not installed: skipped' >&2
  exit 77
}
base=$(mktemp -d "${TMPDIR:-/tmp}/dibs-test-sentinel.XXXXXX") || exit 1
export REDISCLI_AUTH=data-secret
finish() {
  local file
  for file in "$base"/*.pid; do
    [ -s "$file" ] && kill -9 "$(<"$file")" 2>/dev/null
  done
  rm -rf "$base"
}
trap finish EXIT
trap 'exit 130' INT TERM

# until_true WHAT COMMAND...: waits until it succeeds.
until_true() {
  local what=$1 end=$((SECONDS + 20))
  shift
  until "$@" >/dev/null 2>&1; do
    [ "$SECONDS" -lt "$end" ] || { echo "sentinel_test: timeout: $what" >&2; tail -n 20 "$base"/*.log >&2; exit 1; }
    sleep 0.02
  done
}

# Chooses a free port; the caller repeats it if another process was faster.
port() {
  local p
  while :; do
    p=$((20000 + SRANDOM % 10000))
    (exec 3<>"/dev/tcp/127.0.0.1/$p") 2>/dev/null || { echo "$p"; return; }
  done
}
data() { # data NAME PORT [LINE]...
  local name=$1 at=$2
  shift 2
  mkdir "$base/$name"
  {
    printf '%s\n' "bind 127.0.0.1" "port $at" "dir $base/$name" 'save ""' 'repl-diskless-sync yes' \
      'repl-diskless-sync-delay 0' 'requirepass data-secret' 'masterauth data-secret' "pidfile $base/$name.pid" \
      "logfile $base/$name.log" 'daemonize yes' "$@"
  } >"$base/$name.conf"
  "$server" "$base/$name.conf" >/dev/null || exit 1
  until_true "$name did not answer" redis-cli -p "$at" ping
}

first=$(port)
data first "$first"
second=$(port)
data second "$second" "replicaof 127.0.0.1 $first"
linked() { redis-cli -p "$second" info replication | grep -q 'master_link_status:up'; }
until_true 'the replica did not connect' linked

sentinel=$(port)
mkdir "$base/sentinel"
cat >"$base/sentinel.conf" <<END
bind 127.0.0.1
port $sentinel
dir $base/sentinel
daemonize yes
pidfile $base/sentinel.pid
logfile $base/sentinel.log
requirepass sentinel-secret
sentinel monitor main 127.0.0.1 $first 1
sentinel auth-pass main data-secret
sentinel down-after-milliseconds main 60000
sentinel failover-timeout main 1000
END
"$server" "$base/sentinel.conf" --sentinel >/dev/null || exit 1
knows() { redis-cli -a sentinel-secret -p "$sentinel" sentinel replicas main | grep -q "127.0.0.1:$second"; }
until_true 'the sentinel did not find the replica' knows

cat >"$base/first.sh" <<END
#!/bin/sh
case \$1 in
  start) exec "$server" "$base/first.conf" --replicaof 127.0.0.1 "$second" >/dev/null ;;
  kill) kill -9 "\$(cat "$base/first.pid")" ;;
esac
END
chmod +x "$base/first.sh"
export DIBS_TEST_FIRST=$base/first.sh DIBS_TEST_FIRST_PORT=$first DIBS_TEST_SECOND_PORT=$second
export DIBS_TEST_SENTINEL_PORT=$sentinel
"$1"
