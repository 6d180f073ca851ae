#!/bin/bash
# SPDX-License-Identifier: MIT
# dibs-test-proxy before real servers: a cut request is done, is not done, or lands late, in each protocol.
#   proxy_test.sh PROXY
# shellcheck disable=SC2317  # functions are called by name
set -u
proxy=$1
count=0 failures=0
for variable in DIBS_TEST_POSTGRES DIBS_TEST_MYSQL DIBS_TEST_REDIS; do
  [ -z "${!variable:-}" ] || continue
  if [ "${DIBS_TEST_SERVERS:-}" = required ]; then
    echo "Bail out! $variable is not set, though servers are required here"
    exit 1
  fi
  echo "1..0 # SKIP $variable is not set"
  exit 0
done
table=proxy_test_$$_$SRANDOM

check() { # check WHAT COMMAND...
  local what=$1
  shift
  count=$((count + 1))
  if said=$("$@" 2>&1); then echo "ok $count - $what"; else
    failures=$((failures + 1))
    echo "not ok $count - $what"
    # shellcheck disable=SC2001
    sed 's/^/#   /' <<<"$said"
  fi
}
not() { ! "$@"; }
is() { [ "$1" = "$2" ] || { echo "got: $1, wanted: $2"; false; }; }
until_true() { # until_true SECONDS COMMAND...
  local by=$((${EPOCHREALTIME/[.,]/} + $1 * 1000000))
  shift
  until "$@" >/dev/null 2>&1; do
    [ "${EPOCHREALTIME/[.,]/}" -lt "$by" ] || return 1
    sleep 0.02
  done
}

# before URI PROTOCOL: starts the proxy as a coprocess; sets port.
before() {
  local at=${1#*@}
  coproc PROXY { exec "$proxy" --protocol "$2" "${at%%/*}"; }
  read -r -t 10 -u "${PROXY[0]}" _ port
}
tell() { # tell LINE...
  local said
  echo "$*" >&"${PROXY[1]}"
  read -r -t 10 -u "${PROXY[0]}" said
  case $said in ok*) answer=${said#ok} ;; *) echo "# $*: $said"; false ;; esac
}
after() {
  # bash removes the descriptors when the process ends.
  local pid=$PROXY_PID
  echo quit >&"${PROXY[1]}"
  wait "$pid"
}

# Each engine's client; it uses the proxy if there is a port.
pg() { PGCONNECT_TIMEOUT=5 psql -X -At -q -v ON_ERROR_STOP=1 "${DIBS_TEST_POSTGRES/@*\//@127.0.0.1:$port/}" "$@" 2>&1; }
my() {
  MYSQL_PWD=dibs-secret mariadb --no-defaults --skip-reconnect -N -h 127.0.0.1 -P "$port" -u dibs dibs "$@" 2>&1
}
red() { REDISCLI_AUTH=dibs-secret redis-cli -e --user dibs -p "$port" "$@" 2>&1; }
directly() { local port=$straight; "$@"; }
straight_to() { straight=${1#*@*:} straight=${straight%%/*}; }

# ---- PostgreSQL ----

straight_to "$DIBS_TEST_POSTGRES"
before "$DIBS_TEST_POSTGRES" postgres
rows() { directly pg -c "select coalesce(string_agg(a::text, ' ' order by a), '-') from $table"; }
has() { is "$(rows)" "$1"; }
insert() { pg -c begin -c "insert into $table values ($1)" -c "${2:-commit}"; }
check 'postgres: a table, through the proxy' pg -c "create table $table (a int)"
tell cut-before-request COMMIT
check 'a commit cut before: the client gets no answer' not insert 1
check 'and it is not done' has -
tell cut-after-request COMMIT
check 'a commit cut after: the client gets no answer' not insert 2
check 'and it is done' has 2
# psql waits for each answer; a slow COMMIT is still done before the client knows.
tell cut-after-request COMMIT
check 'one packet that takes a while' not pg -c "begin; insert into $table values (3); select pg_sleep(0.2); commit"
check 'is done when the client sees the end' has '2 3'
tell orphan-request COMMIT 500
check 'an orphaned commit' not insert 4
check 'is not done when its client is cut' has '2 3'
check 'and lands later' until_true 10 has '2 3 4'
tell hold-request COMMIT 300
check 'a commit that is held' insert 5
check 'is done' has '2 3 4 5'
tell stats
check 'all triggers fired' is "${answer##*fired=}" 5
directly pg -c "drop table $table"
after

# ---- MariaDB ----

straight_to "$DIBS_TEST_MYSQL"
before "$DIBS_TEST_MYSQL" mysql
rows() { directly my -e "select ifnull(group_concat(a order by a separator ' '), '-') from $table"; }
insert() { my -e "begin; insert into $table values ($1); commit"; }
check 'mariadb: a table, through the proxy' my -e "create table $table (a int) engine = innodb"
tell cut-before-request commit
check 'a commit cut before: the client gets no answer' not insert 1
check 'and it is not done' has -
tell cut-after-request commit
check 'a commit cut after: the client gets no answer' not insert 2
check 'and it is done' has 2
tell orphan-request commit 500
check 'an orphaned commit' not insert 3
check 'is not done when its client is cut' has 2
check 'and lands later' until_true 10 has '2 3'
tell cut-after-request '\x03insert\sinto'
check 'a packet identified by its first byte' not insert 4
check 'is rolled back without its commit' has '2 3'
directly my -e "drop table $table"
after

# ---- Redis ----

straight_to "$DIBS_TEST_REDIS"
before "$DIBS_TEST_REDIS" redis
has() { is "$(directly red get "$table")" "$1"; }
check 'redis: through the proxy' red set "$table" 1
tell cut-before-request INCR
check 'a request cut before' not red incr "$table"
check 'is not done' has 1
tell cut-after-request INCR
check 'a request cut after' not red incr "$table"
check 'is done' has 2
directly red del "$table" >/dev/null
after

echo "1..$count"
[ "$failures" -eq 0 ]
