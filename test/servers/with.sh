#!/bin/bash
# SPDX-License-Identifier: MIT
# Runs a test with the URI of a server that script/servers has started.
#
#   with.sh [--own|--private [--tls]] [--tap] VARIABLE PROGRAM [ARG]...
#
#   VARIABLE   DIBS_TEST_POSTGRES, DIBS_TEST_MYSQL, DIBS_TEST_REDIS, ..._SOCKET, DIBS_TEST_KAFKA,
#              DIBS_TEST_ETCD, DIBS_TEST_MONGODB; {} in an ARG becomes its value
#   --own      a new database for this run, dropped afterwards (PostgreSQL and MariaDB)
#   --private  a server for this run, which it may kill, pause and restart:
#              "$DIBS_TEST_SERVERS_SCRIPT" kill postgres, in the folder $DIBS_TEST_SERVERS_DIR
#   --tls      a private server with TLS, whose certificate $DIBS_TEST_SERVERS_CA signed
#   --tap      prints a skip as TAP
#
# Without the variable the test is skipped (77); with DIBS_TEST_SERVERS=required, as in script/test, it fails.
set -u
own='' private='' tap=''
options=()
while :; do
  case ${1:-} in
    --own) own=1 ;;
    --private) private=1 ;;
    --tls) options+=(--tls) ;;
    --tap) tap=1 ;;
    *) break ;;
  esac
  shift
done
if [ $# -lt 2 ]; then
  echo 'with.sh: usage: with.sh [--own|--private [--tls]] [--tap] VARIABLE PROGRAM [ARG]...' >&2
  exit 2
fi
variable=$1
shift

# skip WHY: if servers are required, this is a failure; but not without Kafka, whose jars need Maven's repository, and not
# without FerretDB for the tests with MongoDB, and without MySQL's own server, which need root and repositories.
skip() {
  if [ "${DIBS_TEST_SERVERS:-}" = required ] && [[ $variable != DIBS_TEST_@(KAFKA|MONGODB*|MYSQL9) ]]; then
    echo "with.sh: $1, though servers are required here" >&2
    exit 1
  fi
  if [ "$tap" ]; then
    echo "1..0 # SKIP $1"
    exit 0
  fi
  echo "with.sh: $1: skipped" >&2
  exit 77
}

if [ "$private" ]; then
  script=$(cd "$(dirname "${BASH_SOURCE[0]}")/../../script" && pwd)/servers
  case $variable in
    DIBS_TEST_POSTGRES*) servers=(postgres) ;;
    DIBS_TEST_MYSQL9) servers=(mysql) ;;
    DIBS_TEST_MYSQL*) servers=(mariadb) ;;
    DIBS_TEST_REDIS_CLUSTER) servers=(rediscluster) ;;
    DIBS_TEST_REDIS*) servers=(redis) ;;
    DIBS_TEST_ZOOKEEPER) servers=(zookeeper) ;;
    DIBS_TEST_PGBOUNCER) servers=(postgres pgbouncer) ;;
    DIBS_TEST_KAFKA) servers=(kafka) ;;
    DIBS_TEST_MONGODB*) servers=(mongodb) ;;
    DIBS_TEST_ETCD*) servers=(etcd) ;;
    *) echo "with.sh: unknown variable $variable" >&2; exit 2 ;;
  esac
  folder=$(mktemp -d "${TMPDIR:-/tmp}/dibs-test-private.XXXXXX") || exit 1
  trap '"$script" remove --dir "$folder" >/dev/null 2>&1; rm -rf "$folder"' EXIT
  trap 'exit 130' INT TERM
  "$script" start --dir "$folder" --until $$ "${options[@]}" "${servers[@]}" >&2
  case $? in
    0) eval "$("$script" env --dir "$folder")" ;;
    77) skip "the server is not installed (${servers[*]})" ;;
    *) exit 1 ;;
  esac
fi

uri=${!variable:-}
# shellcheck disable=SC2016  # the user types it like this
[ -n "$uri" ] || skip "$variable is not set (script/servers start, then: eval \"\$(script/servers env)\")"

# Runs the administrator's statements on the server of the variable.
admin() {
  local rest=${admin_uri#*://*:} password
  password=${rest%%@*}
  rest=${rest#*@}
  local host=${rest%%:*} port=${rest#*:}
  port=${port%%/*}
  case $admin_uri in
    postgres://*) PGPASSWORD=$password psql -X -q -h "$host" -p "$port" -U admin -v ON_ERROR_STOP=1 dibs ;;
    mysql://*) MYSQL_PWD=$password mariadb --no-defaults -h "$host" -P "$port" -u admin ;;
  esac
}
drop() {
  case $admin_uri in
    postgres://*) echo "DROP DATABASE $database WITH (FORCE);" | admin ;;
    mysql://*)
      admin <<END
DROP DATABASE $database;
REVOKE ALL PRIVILEGES ON $database.* FROM dibs@'127.0.0.1';
REVOKE ALL PRIVILEGES ON $database.* FROM dibs@localhost;
END
      ;;
  esac
}
if [ "$own" ] && [ -z "$private" ]; then
  admin_name=${variable%_SOCKET}_ADMIN
  admin_uri=${!admin_name:-}
  database=dibs_$$_$SRANDOM
  case $admin_uri in
    postgres://*)
      statements="CREATE DATABASE $database OWNER dibs;
        REVOKE ALL ON DATABASE $database FROM PUBLIC;"
      ;;
    mysql://*)
      statements="CREATE DATABASE $database CHARACTER SET utf8mb4;
        GRANT ALL PRIVILEGES ON $database.* TO dibs@'127.0.0.1', dibs@localhost;"
      ;;
    *) echo "with.sh: no database of its own from $variable: $admin_name is not set" >&2; exit 1 ;;
  esac
  admin <<<"$statements" || exit 1
  rest=${uri#*@}
  uri=${uri%%@*}@${rest/"/dibs"/"/$database"}
fi

args=()
for arg; do args+=("${arg//\{\}/"$uri"}"); done
[ "$own$private" ] || exec "${args[@]}"
if [ "$own" ] && [ -z "$private" ]; then
  trap drop EXIT
  trap 'exit 130' INT TERM
fi
"${args[@]}"
