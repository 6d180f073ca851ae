#!/bin/bash
# SPDX-License-Identifier: MIT
# Runs a test with the URI of a server that script/servers has started.
#
#   with.sh [--own] [--tap] VARIABLE PROGRAM [ARG]...
#
#   VARIABLE   DIBS_TEST_POSTGRES, DIBS_TEST_MYSQL, DIBS_TEST_REDIS, ..._SOCKET; {} in an ARG becomes its value
#   --own      a fresh database for this run alone, dropped afterwards (PostgreSQL and MariaDB)
#   --tap      a skip is said in TAP
#
# Without the variable the test is skipped (77); with DIBS_TEST_SERVERS=required, as in script/test, it fails.
set -u
own='' tap=''
while :; do
  case ${1:-} in
    --own) own=1 ;;
    --tap) tap=1 ;;
    *) break ;;
  esac
  shift
done
if [ $# -lt 2 ]; then
  echo 'with.sh: usage: with.sh [--own] [--tap] VARIABLE PROGRAM [ARG]...' >&2
  exit 2
fi
variable=$1
shift
uri=${!variable:-}
if [ -z "$uri" ]; then
  # shellcheck disable=SC2016  # people type it so
  how='eval "$(script/servers env)" after script/servers start'
  if [ "${DIBS_TEST_SERVERS:-}" = required ]; then
    echo "with.sh: $variable is not set, though servers are required here" >&2
    exit 1
  fi
  if [ "$tap" ]; then
    echo "1..0 # SKIP $variable is not set; $how"
    exit 0
  fi
  echo "with.sh: $variable is not set: skipped.  $how sets it" >&2
  exit 77
fi

# The administrator's statements, on the server that the variable is about.
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
if [ "$own" ]; then
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
[ "$own" ] || exec "${args[@]}"
trap drop EXIT
trap 'exit 130' INT TERM
"${args[@]}"
