#!/bin/bash
# SPDX-License-Identifier: MIT
# Runs a test on a primary and its replica; each kill of the server is a failover.
#
#   pair.sh [--async] [--tap] postgres|mariadb PROGRAM [ARG]...
#
# {} in an ARG becomes a URI that names both servers. DIBS_TEST_SERVERS_SCRIPT and DIBS_TEST_SERVERS_DIR are set as by
# with.sh --private, so that a test that kills and starts its server tests failovers without a change:
#
#   pair.sh kill --dir FOLDER    the primary is killed; stop: it ends cleanly
#   pair.sh start --dir FOLDER   the replica is promoted, and the old primary returns, empty, as its replica
#
# A commit waits for the replica (PostgreSQL: synchronous_standby_names; MariaDB: semi-synchronous, AFTER_SYNC, no
# timeout). --async: it does not, and the replica receives nothing in the last second before the kill.
# Without the server the test is skipped (77; --tap prints it as TAP); with DIBS_TEST_SERVERS=required it fails.
set -u
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
script=$here/../../script/servers

# ---- One server of the pair: `pair` is the folder, `engine` the server ----

servers() { "$script" "$1" --dir "$pair/$2" "${@:3}" "$engine" >&2; }
ask() { # ask a|b STATEMENT, as the administrator
  local password port
  password=$(<"$pair/$1/admin-password") port=$(<"$pair/$1/$engine/port")
  case $engine in
    postgres) PGPASSWORD=$password psql -X -q -A -t -v ON_ERROR_STOP=1 -h 127.0.0.1 -p "$port" -U admin postgres -c "$2" ;;
    mariadb) MYSQL_PWD=$password mariadb --no-defaults -N -B -h 127.0.0.1 -P "$port" -u admin -e "$2" ;;
  esac
}

# Its settings as a primary. A replica has them too, after it has loaded the primary's data: from its first commit as a
# primary on, it waits for its replica.
waits_for_replica() { # waits_for_replica a|b
  [ "$(<"$pair/mode")" = sync ] || return 0
  case $engine in
    postgres)
      ask "$1" "ALTER SYSTEM SET synchronous_standby_names = '*'" && ask "$1" 'SELECT pg_reload_conf()' >/dev/null
      ;;
    mariadb)
      ask "$1" 'SET GLOBAL rpl_semi_sync_master_wait_point = AFTER_SYNC, rpl_semi_sync_master_timeout = 4000000000,
        rpl_semi_sync_master_enabled = 1'
      ;;
  esac
}
acknowledges() { # acknowledges a|b: this replica, which has no connection to its primary yet
  [ "$engine" = mariadb ] && [ "$(<"$pair/mode")" = sync ] || return 0
  ask "$1" 'SET GLOBAL rpl_semi_sync_slave_enabled = 1'
}
logs() { # logs a|b: a MariaDB can have replicas from its start on
  [ "$engine" = mariadb ] && [ ! -f "$pair/$1/mariadb/binary-log" ] || return 0
  : >"$pair/$1/mariadb/binary-log" && servers restart "$1"
}

# ---- The verbs of script/servers ----

other() { if [ "$1" = a ]; then echo b; else echo a; fi; }

# A MariaDB stays read-only until it has a replica: commits that wait for one would stop the dump that makes it.
promote() { # promote a|b
  local received
  [ "$engine" = mariadb ] || { servers promote "$1"; return; }
  ask "$1" 'STOP SLAVE IO_THREAD' || return 1
  received=$(ask "$1" 'SHOW SLAVE STATUS\G' | sed -n 's/^ *Gtid_IO_Pos: //p')
  [ "$(ask "$1" "SELECT MASTER_GTID_WAIT('$received', 60)")" = 0 ] && ask "$1" 'STOP SLAVE; RESET SLAVE ALL' &&
    rm -f "$pair/$1/mariadb/of"
}
serve() { [ "$engine" != mariadb ] || ask "$1" 'SET GLOBAL read_only = 0'; } # serve a|b

failover() { # failover kill|stop|start|pause|resume
  local primary replica
  primary=$(<"$pair/primary") replica=$(other "$primary")
  case $1 in
    kill)
      if [ "$(<"$pair/mode")" = async ]; then servers lag "$replica" && sleep 1 || return 1; fi
      servers kill "$primary"
      ;;
    start)
      promote "$replica" && echo "$replica" >"$pair/primary" || return 1
      rm -rf "$pair/$primary/$engine/data" && echo "$pair/$replica/$engine" >"$pair/$primary/$engine/of" &&
        servers start "$primary" && acknowledges "$primary" && servers follow "$primary" --of "$pair/$replica" &&
        waits_for_replica "$primary" && serve "$replica"
      ;;
    *) servers "$1" "$primary" ;;
  esac
}

case ${1:-} in
  kill | stop | start | pause | resume)
    if [ "${2:-}" != --dir ] || [ ! -s "${3:-}/primary" ]; then
      echo "pair.sh: usage: pair.sh $1 --dir FOLDER" >&2
      exit 2
    fi
    pair=$3
    engine=$(<"$pair/engine")
    failover "$1"
    exit
    ;;
esac

# ---- A test ----

mode=sync tap=''
while :; do
  case ${1:-} in
    --async) mode=async ;;
    --tap) tap=1 ;;
    *) break ;;
  esac
  shift
done
if [ $# -lt 2 ]; then
  echo 'pair.sh: usage: pair.sh [--async] [--tap] postgres|mariadb PROGRAM [ARG]...' >&2
  exit 2
fi
engine=$1
shift
pair=$(mktemp -d /tmp/dibs-test-pair.XXXXXX) || exit 1
chmod 711 "$pair"
end() {
  "$script" remove --dir "$pair/b" >/dev/null 2>&1
  "$script" remove --dir "$pair/a" >/dev/null 2>&1
  rm -rf "$pair"
}
trap end EXIT
trap 'exit 130' INT TERM
echo "$engine" >"$pair/engine"
echo "$mode" >"$pair/mode"
echo a >"$pair/primary"

servers start a --until $$
case $? in
  0) ;;
  77)
    [ "${DIBS_TEST_SERVERS:-}" != required ] || exit 1
    if [ "$tap" ]; then
      echo "1..0 # SKIP $engine is not installed"
      exit 0
    fi
    echo "pair.sh: $engine is not installed: skipped" >&2
    exit 77
    ;;
  *) exit 1 ;;
esac
logs a && servers follow b --of "$pair/a" --until $$ && logs b && servers lag b && acknowledges b &&
  servers follow b --of "$pair/a" && waits_for_replica b && waits_for_replica a || exit 1

case $engine in
  postgres) variable=DIBS_TEST_POSTGRES ;;
  mariadb) variable=DIBS_TEST_MYSQL ;;
esac
unset DIBS_TEST_POSTGRES DIBS_TEST_MYSQL
eval "$("$script" env --dir "$pair/a" "$engine")"
uri=${!variable}
both="${uri%@*}@127.0.0.1:$(<"$pair/a/$engine/port"),127.0.0.1:$(<"$pair/b/$engine/port")/dibs"
export "$variable=$both" DIBS_TEST_SERVERS_SCRIPT="$here/pair.sh" DIBS_TEST_SERVERS_DIR="$pair"
args=()
for arg; do args+=("${arg//\{\}/"$both"}"); done
"${args[@]}"
