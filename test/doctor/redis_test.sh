#!/bin/bash
# SPDX-License-Identifier: MIT
# What doctor shows of a Redis: version, role, replicas, TLS, the log, and what a user may not see.  redis_test.sh, with the
# variables of a private server with TLS (with.sh --private --tls).
. "$(dirname "$0")/doctor.sh"
. "$(dirname "$0")/../servers/sentinel.sh"
uri=$DIBS_TEST_REDIS script=$DIBS_TEST_SERVERS_SCRIPT primary=$DIBS_TEST_SERVERS_DIR replica=$dir/replica
chmod 711 "$dir"
end() {
  "$script" resume --dir "$replica" redis >/dev/null 2>&1
  "$script" remove --dir "$replica" >/dev/null 2>&1
  finish
}
trap end EXIT
at=${uri##*@}
admin() { REDISCLI_AUTH=$(<"$primary/admin-password") redis-cli -e -h 127.0.0.1 -p "$(port_of)" --user admin "$@" >/dev/null; }
port_of() { sed 's|.*:\([0-9]*\)/.*|\1|' <<<"$at"; }
export DIBS_STORE=$uri

admin config set appendonly no
says 0 'one server' "$uri" '^fine +server +(Redis|Valkey) [0-9]+\.[0-9]' '^fine +role +master, with 0 replicas' \
  '^fine +tls +none: the connection is not encrypted' '^WARNING +setting +appendonly = no' \
  '^ +-> set appendonly yes' '^fine +setting +maxmemory-policy = noeviction'
admin config set appendonly yes
says 0 'a user without CONFIG' "$uri" '^fine +setting +appendonly = yes; appendfsync: not visible to this user'
admin acl setuser dibs '+config|get' '-config|set'
admin config set appendfsync everysec
says 0 'a log that is synced later' "$uri" '^WARNING +setting +appendonly = yes, appendfsync = everysec'
admin config set appendfsync always
says 0 'a log that is synced at once' "$uri" '^fine +setting +appendonly = yes, appendfsync = always'
if [ -n "${DIBS_TEST_REDIS_TLS:-}" ]; then
  says 0 'TLS' "$DIBS_TEST_REDIS_TLS" "^fine +tls +TLSv1\.[23], .*; the server's certificate and name are verified"
  says 0 'TLS, not verified' "${DIBS_TEST_REDIS_TLS%%\?*}?insecure=1" '^WARNING +tls +TLSv1\.[23], .*; the server is not verified'
fi

if "$script" follow --of "$primary" --dir "$replica" --until $$ redis >"$dir/follow.out" 2>&1; then
  port=$("$script" status --dir "$replica" redis | awk '{ print $3 }')
  says 0 'a replica' "$uri" '^fine +role +master, with 1 replicas' "^fine +node +replica 127\.0\.0\.1:$port: online" \
    '^WARNING +setting +replication is asynchronous'
  says 0 'a replica that is waited for' "$uri?replicas=1" '^fine +setting +a lease counts when 1 replicas have it'
  says 116 'a replica that is missing' "$uri?replicas=2" \
    '^TROUBLE +setting +a lease counts when 2 replicas have it, and 1 are connected' 'nothing is granted'
  "$script" pause --dir "$replica" redis >/dev/null
  ok 'a replica that is stopped' until_true 40 shows "^TROUBLE +node +replica 127\.0\.0\.1:$port does not answer: its last word"
  "$script" resume --dir "$replica" redis >/dev/null
  ok 'it goes on' until_true 40 shows "^fine +node +replica 127\.0\.0\.1:$port: online"
else
  report 1 'a replica follows'
  say "$(tail -n 5 "$dir/follow.out")"
fi

# Sentinels, of which one is stopped.
sentinel "$dir/first" "$primary" "$(port_of)"
first=$sentinel_port
sentinel "$dir/second" "$primary" "$(port_of)"
second=$sentinel_port
named=redis://dibs:dibs-secret@127.0.0.1:$first,127.0.0.1:$second/0?sentinel=main
says 0 'two sentinels' "$named" "^fine +node +sentinel 127\.0\.0\.1:$first leads to the master" \
  "^fine +node +sentinel 127\.0\.0\.1:$second leads to the master"
kill -STOP "$sentinel_pid"
says 116 'a sentinel is stopped' "$named" "^fine +node +sentinel 127\.0\.0\.1:$first leads to the master" \
  "^TROUBLE +node +sentinel 127\.0\.0\.1:$second does not lead to the master"
kill -CONT "$sentinel_pid"
done_testing
