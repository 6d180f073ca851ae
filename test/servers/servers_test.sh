#!/bin/bash
# SPDX-License-Identifier: MIT
# script/servers itself: its servers serve, are killed, return, pause, and end with the process that requested them.
#   servers_test.sh SCRIPT
set -u
script=$1
unset DIBS_TEST_SERVERS_DIR
count=0 failures=0
base=$(mktemp -d "${TMPDIR:-/tmp}/dibs-st.XXXXXX") || exit 1
chmod 755 "$base"
one=$base/one two=$base/two

finish() {
  local folder
  for folder in "$base"/*/; do [ ! -d "$folder" ] || "$script" remove --dir "$folder" >/dev/null 2>&1; done
  rm -rf "$base"
}
trap finish EXIT
trap 'exit 130' INT TERM

check() { # check WHAT COMMAND...
  local what=$1
  shift
  count=$((count + 1))
  if "$@" >"$base/said" 2>&1; then echo "ok $count - $what"; else
    failures=$((failures + 1))
    echo "not ok $count - $what"
    echo "#   failed: $*"
    tail -n 20 "$base/said" | sed 's/^/#   /'
  fi
}
not() { ! "$@"; }
is() { [ "$1" = "$2" ] || { printf 'got:    %s\nwanted: %s\n' "$1" "$2"; return 1; }; }
until_true() { # until_true SECONDS COMMAND...
  local by=$((${EPOCHREALTIME/[.,]/} + $1 * 1000000))
  shift
  until "$@" >/dev/null 2>&1; do
    [ "${EPOCHREALTIME/[.,]/}" -lt "$by" ] || return 1
    sleep 0.02
  done
}

servers() { "$script" "$@" --dir "$one"; }
state() { "$script" status --dir "${2:-$one}" "$1" | cut -d' ' -f2; }
port() { "$script" status --dir "${2:-$one}" "$1" | cut -d' ' -f3; }
pid() { "$script" status --dir "${2:-$one}" "$1" | cut -d' ' -f4; }
gone() { [ ! -d "$base/$1" ]; }
dead() { # the process runs no longer
  local stat
  { stat=$(<"/proc/$1/stat"); } 2>/dev/null || return 0
  [[ $stat == *") Z "* ]]
}

# Each engine's client as user dibs with this password: pg PASSWORD STATEMENT, and so on.
pg() { PGCONNECT_TIMEOUT=5 psql -X -At -q "postgres://dibs:$1@127.0.0.1:$(port postgres)/dibs" -c "$2"; }
my() { MYSQL_PWD=$1 mariadb --no-defaults -N -h 127.0.0.1 -P "$(port mariadb)" -u dibs dibs -e "$2"; }
red() { REDISCLI_AUTH=$1 redis-cli --user dibs --no-raw -e -p "$(port redis)" "${@:2}"; }

servers start postgres mariadb redis pgbouncer >"$base/start" 2>&1
started=$?
if [ "$started" -eq 77 ] && [ "${DIBS_TEST_SERVERS:-}" != required ]; then
  echo "1..0 # SKIP $(grep -m 1 'script/bootstrap' "$base/start")"
  exit 0
fi
check 'a cold folder starts' is "$started$([ "$started" -eq 0 ] || cat "$base/start")" 0
check 'a start of running servers changes nothing' servers start postgres
check 'all run' servers status
check 'postgres serves dibs' is "$(pg dibs-secret 'create table t (a int); insert into t values (7); select a from t')" 7
check 'mariadb serves dibs' is "$(my dibs-secret 'create table t (a int); insert into t values (7); select a from t')" 7
check 'redis serves dibs' red dibs-secret set t 7
check 'postgres refuses a wrong password' not pg wrong 'select 1'
check 'mariadb refuses a wrong password' not my wrong 'select 1'
check 'redis refuses a wrong password' not red wrong get t
check 'redis refuses a client without a password' not redis-cli -e -p "$(port redis)" get t
check 'mariadb has no root without a password' not mariadb --no-defaults -h 127.0.0.1 -P "$(port mariadb)" -u root -e 'select 1'
check 'the role of postgres is not a superuser' is "$(pg dibs-secret "select rolsuper from pg_roles where rolname = 'dibs'")" f
check 'the role of postgres cannot create a database' not pg dibs-secret 'create database other'
check 'the user of mariadb cannot create a database' not my dibs-secret 'create database other'
check 'postgres is durable' is "$(pg dibs-secret \
  "select string_agg(setting, ' ' order by name) from pg_settings
   where name in ('fsync', 'full_page_writes', 'synchronous_commit', 'max_connections')")" 'on on 300 on'
check 'mariadb is durable' is "$(my dibs-secret 'select @@innodb_flush_log_at_trx_commit, @@max_connections')" $'1\t1300'

eval "$(servers env)"
check 'env: postgres' is "$(psql -X -At "$DIBS_TEST_POSTGRES" -c 'select current_user')" dibs
check 'env: postgres by its socket' is "$(psql -X -At "$DIBS_TEST_POSTGRES_SOCKET" -c 'select inet_client_addr() is null')" t
check 'env: the administrator' is "$(psql -X -At "$DIBS_TEST_POSTGRES_ADMIN" -c 'select current_user')" admin
check 'env: through pgbouncer' is "$(psql -X -At "$DIBS_TEST_PGBOUNCER" -c 'select a from t')" 7
check 'env: the folder' is "$DIBS_TEST_SERVERS_DIR" "$one"
socket=${DIBS_TEST_MYSQL_SOCKET##*socket=}
check 'env: mariadb by its socket' is "$(MYSQL_PWD=dibs-secret mariadb --no-defaults -N -S "$socket" -u dibs -e 'select user()')" \
  dibs@localhost
check 'env: redis' is "$(redis-cli --no-auth-warning -u "$DIBS_TEST_REDIS" acl whoami)" dibs
unset DIBS_TEST_SERVERS_DIR

# A new database for one run, which is dropped afterwards.
with=$(dirname "${BASH_SOURCE[0]}")/with.sh
# shellcheck disable=SC2016
own=$("$with" --own DIBS_TEST_POSTGRES bash -c 'psql -X -At "$1" -c "create table t (a int); select current_database()"' sh {})
check 'a database of its own' grep -q '^dibs_[0-9]' <<<"$own"
check 'and dropped afterwards' is "$(pg dibs-secret "select count(*) from pg_database where datname like 'dibs_%'")" 0
check 'the exit status is the program'"'"'s' is "$("$with" --own DIBS_TEST_MYSQL sh -c 'exit 3' sh {}; echo $?)" 3
check 'without servers a test is skipped' is "$(env -u DIBS_TEST_MYSQL -u DIBS_TEST_SERVERS "$with" DIBS_TEST_MYSQL true; echo $?)" 77
check 'if servers are required, it fails' \
  is "$(DIBS_TEST_MYSQL='' DIBS_TEST_SERVERS=required "$with" DIBS_TEST_MYSQL true; echo $?)" 1

# A server for one run, which may kill it; with TLS.
# shellcheck disable=SC2016
private=$("$with" --private --tls DIBS_TEST_POSTGRES bash -c '
  url=$1?sslrootcert=$DIBS_TEST_SERVERS_CA
  psql -X -At "$url&sslmode=verify-full" -c "create table p (a int); select ssl from pg_stat_ssl where pid = pg_backend_pid()"
  psql -X -At "$url&sslmode=disable" -c "insert into p values (8)"
  "$DIBS_TEST_SERVERS_SCRIPT" kill postgres && "$DIBS_TEST_SERVERS_SCRIPT" start postgres >/dev/null
  psql -X -At "$url" -c "select a from p"
  echo "$DIBS_TEST_SERVERS_DIR"
' sh {} 2>/dev/null)
check 'a private server, TLS, killed and started' is "$(tr '\n' ' ' <<<"$private" | cut -d' ' -f1-6)" \
  'CREATE TABLE t INSERT 0 1'
check 'with the committed rows' is "$(sed -n 4p <<<"$private")" 8
check 'and removed after the run' not test -e "$(sed -n 5p <<<"$private")"
check 'the other server still runs' is "$(state postgres)" running

# Killed: the committed rows return, on the same port.
was="$(port postgres) $(port mariadb)"
# (These lines have no line end, so read returns false.)
read -r -a victims <"/proc/$(pid postgres)/task/$(pid postgres)/children"
victims+=("$(pid postgres)" "$(pid mariadb)")
check 'kill -9' servers kill postgres mariadb
all_dead() { local one; for one; do dead "$one" || return 1; done; }
check 'none of their processes remains' all_dead "${victims[@]}"
check 'a crash is detected' is "$(state postgres) $(state mariadb) $(state redis)" 'crashed crashed running'
check 'status reports it' not servers status
check 'a stopped server is not killed' not servers kill postgres
check 'they start again' servers start
check 'on the same ports' is "$(port postgres) $(port mariadb)" "$was"
check 'postgres has the committed rows' is "$(pg dibs-secret 'select a from t')" 7
check 'mariadb has the committed rows' is "$(my dibs-secret 'select a from t')" 7
check 'pgbouncer finds postgres again' until_true 20 psql -X -At "$DIBS_TEST_PGBOUNCER" -c 'select a from t'
incarnation=$(red dibs-secret info server | grep -o 'run_id:[0-9a-f]*')
check 'restart' servers restart postgres redis
check 'postgres has its data' is "$(pg dibs-secret 'select a from t')" 7
check 'redis has a new run id' not is "$(red dibs-secret info server | grep -o 'run_id:[0-9a-f]*')" "$incarnation"
check 'and is empty' is "$(red dibs-secret get t)" '(nil)'

# Paused: connections are accepted, nothing is answered.
check 'pause' servers pause postgres mariadb
check 'is told' is "$(state postgres) $(state mariadb)" 'paused paused'
all_stopped() { local one; for one; do [[ $(<"/proc/$one/stat") == *") T "* ]] || return 1; done; }
read -r -a kids <"/proc/$(pid postgres)/task/$(pid postgres)/children"
check 'with all their child processes' all_stopped "$(pid postgres)" "${kids[@]}"
check 'a paused server answers nothing' \
  not timeout 1 bash -c "exec 3<>/dev/tcp/127.0.0.1/$(port mariadb) && read -r -N 1 <&3"
check 'resume' servers resume postgres mariadb
check 'and it answers' is "$(pg dibs-secret 'select a from t') $(my dibs-secret 'select a from t')" '7 7'
check 'a paused server can be stopped' eval 'servers pause mariadb && servers stop mariadb'
check 'stopped is not crashed' is "$(state mariadb)" stopped

# Two folders are independent.
sleep 300 &
wanted=$!
check 'another folder beside it' "$script" start --until "$wanted" --dir "$two" redis
check 'with a port of its own' not is "$(port redis "$two")" "$(port redis)"
other=$(pid redis "$two")
kill -KILL "$wanted"
wait "$wanted" 2>/dev/null
check 'the process that requested it was killed: its folder is removed' until_true 20 gone two
check 'and its process ends' dead "$other"
check 'the first still runs' is "$(state redis)" running

# A port that another process uses by now: a new folder takes another port, an old one reports it.
mkdir -p "$base/three/redis" && port redis >"$base/three/redis/port"
taken=$(port redis)
check 'a new folder takes a port' "$script" start --dir "$base/three" redis
check 'other than the used one' not is "$(port redis "$base/three")" "$taken"
"$script" stop --dir "$base/three" redis
sed -i "s/^port .*/port $taken/" "$base/three/redis/data/redis.conf"
echo "$taken" >"$base/three/redis/port"
said=$("$script" start --dir "$base/three" redis 2>&1)
check 'an old one does not start' is "$?" 1
check 'and names the used port' grep -q "127.0.0.1:$taken is in use by another process" <<<"$said"

# A process id that now belongs to another process must not be stopped.
sleep 300 &
innocent=$!
servers stop redis
echo "$innocent 1" >"$one/redis/pid"
servers stop redis
check 'a stale pid file kills no process' not dead "$innocent"
check 'and does not prevent the start' servers start redis
kill "$innocent"
wait "$innocent" 2>/dev/null

if [ "$(id -u)" -eq 0 ] && setpriv --reuid=65534 --regid=65534 --clear-groups test -r "$script" 2>/dev/null; then
  mkdir "$base/nobody" && chown 65534:65534 "$base/nobody"
  nobody() { HOME=/ setpriv --reuid=65534 --regid=65534 --clear-groups "$script" "$@" --dir "$base/nobody/it"; }
  check 'an ordinary user starts them' nobody start postgres mariadb redis pgbouncer
  eval "$(nobody env)"
  check 'and connects' is "$(psql -X -At "$DIBS_TEST_PGBOUNCER" -c 'select current_user')" dibs
  check 'and removes them' nobody remove
else
  count=$((count + 1))
  echo "ok $count - an ordinary user starts them # SKIP not root, or the checkout is closed to others"
fi

# A missing program is reported.
mkdir "$base/bin" && ln -s /usr/bin/* "$base/bin/" && rm "$base/bin/redis-server"
said=$(PATH=$base/bin "$script" start --dir "$two" redis 2>&1)
check 'a missing program has an exit code of its own' is "$?" 77
check 'and the message has the next step' grep -q 'script/bootstrap --for test installs it' <<<"$said"
"$script" remove --dir "$two"

eval "$(servers env)"
check 'one of them removed' servers remove mariadb
check 'the others keep their passwords' is "$(psql -X -At "$DIBS_TEST_POSTGRES_ADMIN" -c 'select 1'; servers env |
  grep -c "${DIBS_TEST_POSTGRES_ADMIN%@*}")" $'1\n1'
last=("$(pid postgres)" "$(pid redis)" "$(pid pgbouncer)")
check 'remove' servers remove
check 'nothing remains' gone one
check 'nor running' all_dead "${last[@]}"
check 'wrong usage: no server' is "$("$script" start --dir "$two"; echo $?)" 2
check 'wrong usage: an unknown server' is "$("$script" start --dir "$two" oracle; echo $?)" 2
check 'pgbouncer alone is refused' not "$script" start --dir "$two" pgbouncer
echo "1..$count"
[ "$failures" -eq 0 ]
