#!/bin/bash
# SPDX-License-Identifier: MIT
# What doctor shows of PostgreSQL and MariaDB: version, role, replicas, TLS, settings that weaken a promise, and what a user
# may not see.  sql_test.sh VARIABLE, which has the URI of a private server with TLS (with.sh --private --tls).
. "$(dirname "$0")/doctor.sh"
uri=${!1}
engine=${uri%%:*}
script=$DIBS_TEST_SERVERS_SCRIPT primary=$DIBS_TEST_SERVERS_DIR ca=$DIBS_TEST_SERVERS_CA
replica=$dir/replica
chmod 711 "$dir"
case $engine in
  postgres) server=postgres name=PostgreSQL verified="sslmode=verify-full&sslrootcert=$ca" unverified=sslmode=require ;;
  mysql) server=mariadb name=MariaDB verified="ssl=verify&ssl_ca=$ca" unverified=ssl=on ;;
esac
end() {
  "$script" resume --dir "$replica" "$server" >/dev/null 2>&1
  "$script" remove --dir "$replica" >/dev/null 2>&1
  finish
}
trap end EXIT
admin() { # admin STATEMENT
  case $engine in
    postgres) psql -X -q -A -t -v ON_ERROR_STOP=1 "$DIBS_TEST_POSTGRES_ADMIN" -c "$1" ;;
    mysql)
      local rest=${DIBS_TEST_MYSQL_ADMIN#*://*:}
      MYSQL_PWD=${rest%%@*} mariadb --no-defaults -N --socket="$primary/mariadb/mariadb.sock" -u admin -e "$1"
      ;;
  esac
}
set_to() { # set_to SETTING VALUE
  case $engine in
    postgres) admin "ALTER SYSTEM SET $1 = $2" && admin 'SELECT pg_reload_conf()' >/dev/null ;;
    mysql) admin "SET GLOBAL $1 = $2" ;;
  esac
}

# ---- One server ----
says 0 'one server' "$uri?$unverified" "^fine +server +$name [0-9]+\.[0-9]" \
  '^WARNING +tls +TLSv1\.[23], .*; the server is not verified' 'fine +node +(no standby is connected|replicas: not visible)'
says 0 'a verified server' "$uri?$verified" "^fine +tls +TLSv1\.[23], .*; the server's certificate and name are verified"
plain=${unverified/require/disable}
says 0 'without TLS' "$uri?${plain/=on/=off}" '^fine +tls +none: the connection is not encrypted'
export DIBS_STORE="$uri?$verified"

# ---- Settings ----
if [ "$engine" = postgres ]; then
  says 0 'settings' "$uri" '^fine +role +primary, timeline 1, system [0-9]+' '^fine +setting +fsync = on' \
    '^fine +setting +synchronous_commit = on'
  set_to full_page_writes off
  ok 'a setting that a power failure needs' until_true 20 shows '^WARNING +setting +full_page_writes = off'
  set_to full_page_writes on
  ok 'it is set again' until_true 20 shows '^fine +setting +full_page_writes = on'
  admin 'ALTER ROLE dibs SET synchronous_commit = local'
  says 0 'a commit that no standby confirms' "$uri" '^WARNING +setting +synchronous_commit = local' '^ +-> set synchronous_commit=on'
  admin 'ALTER ROLE dibs RESET synchronous_commit'
else
  says 0 'settings' "$uri" '^fine +role +accepts writes, server id [0-9]+, GTID' \
    '^fine +setting +innodb_flush_log_at_trx_commit = 1' '^fine +setting +innodb_doublewrite = ON'
  set_to innodb_flush_log_at_trx_commit 2
  says 0 'a commit that is not flushed' "$uri" '^WARNING +setting +innodb_flush_log_at_trx_commit = 2' '^ +-> set it to 1'
  set_to innodb_flush_log_at_trx_commit 1
fi

# ---- A replica ----
if ! "$script" follow --of "$primary" --dir "$replica" --until $$ "$server" >"$dir/follow.out" 2>&1; then
  report 1 'a replica follows'
  say "$(tail -n 5 "$dir/follow.out")"
  done_testing
  exit
fi
port=$("$script" status --dir "$replica" "$server" | awk '{ print $3 }')
both=${uri%/*},127.0.0.1:$port/dibs
if [ "$engine" = postgres ]; then
  admin 'REVOKE ALL ON pg_stat_replication FROM PUBLIC'
  says 0 'a user who may not ask at all' "$uri" '^fine +node +standbys: not visible to this user' '^fine +setting +fsync = on'
  admin 'GRANT SELECT ON pg_stat_replication TO PUBLIC'
  says 0 'a user without pg_monitor' "$uri" '^fine +node +the state of 1 standbys .*: not visible to this user'
  admin 'GRANT pg_monitor TO dibs'
  says 0 'a user with pg_monitor' "$uri" '^fine +node +standby .*: streaming, async, [0-9]+ bytes behind' \
    '^WARNING +setting +no standby is synchronous'
  set_to synchronous_standby_names "'*'"
  ok 'a synchronous standby' until_true 30 shows '^fine +node +standby .*: streaming, sync, '
  ok 'is no risk' bash -c "! '$DIBS' doctor | grep -q 'no standby is synchronous'"
  set_to synchronous_standby_names "''"
  says 0 'two hosts' "$both" "^fine +node +127\.0\.0\.1:$port: a standby"
else
  says 0 'a user without rights for replication' "$uri" '^fine +node +replicas: not visible to this user' \
    '^fine +role +whether it replicates from another server: not visible to this user'
  for user in 127.0.0.1 localhost; do
    admin "GRANT REPLICATION MASTER ADMIN, SLAVE MONITOR ON *.* TO dibs@'$user'" 2>/dev/null
  done
  says 0 'a user with these rights' "$uri" '^fine +node +replica [0-9]+' '^WARNING +setting +replication is asynchronous'
  says 0 'two hosts' "$both" "^fine +node +127\.0\.0\.1:$port: read-only, as a replica"
  set_to rpl_semi_sync_master_timeout 5000
  set_to rpl_semi_sync_master_enabled 1
  says 0 'a replica that is waited for, for a while' "$uri" '^WARNING +setting +replication is semi-synchronous, until .* 5000 ms'
  set_to rpl_semi_sync_master_timeout 4000000000
  says 0 'a replica that is waited for' "$uri" '^fine +setting +replication is semi-synchronous'
  set_to rpl_semi_sync_master_enabled 0
fi
"$script" pause --dir "$replica" "$server" >/dev/null
says 116 'a replica that is stopped' "$both" "^TROUBLE +node +127\.0\.0\.1:$port does not answer" "^fine +server +$name"
"$script" resume --dir "$replica" "$server" >/dev/null
"$script" kill --dir "$replica" "$server" >/dev/null
says 116 'a replica that was killed' "$both" "^TROUBLE +node +127\.0\.0\.1:$port does not answer"
done_testing
