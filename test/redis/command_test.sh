#!/bin/bash
# SPDX-License-Identifier: MIT
# The messages of the command about Redis, and the user that doc/internals/redis.md describes: command_test.sh DIBS URI
# DOC
set -u
dibs=$1 uri=$2 doc=$3
. "$(dirname "$0")/../support/says.sh"
admin() {
  local rest=${DIBS_TEST_REDIS_ADMIN#redis://admin:}
  REDISCLI_AUTH=${rest%%@*} redis-cli --no-auth-warning --user admin -p "$port" "$@"
}
place=${uri#*@}
place=${place%%/*}
port=${place##*:}

says 'a lease' 0 ran run --store "$uri" name -- echo ran
says 'by the socket' 0 ran run --store "$DIBS_TEST_REDIS_SOCKET" name -- echo ran
says 'TLS to a port without it' 123 'is this its port for TLS?' \
  run --wait 1s --store "rediss://u:secret@$place/0?connect_timeout=500" name -- echo ran
says 'records need a database' 125 'add a database as its last tier' record get --store "$uri" key
says 'a wrong password' 123 'check the user and the password' run --store "${uri/dibs-secret/no-secret}" name -- true
says 'no such parameter' 125 'has no parameter evict' run --store "$uri?evict=1" name -- true

# The rights that the page names suffice, also for waiters; the test uses a new user, so that it has no other rights.
line=$(sed -n 's/^ *ACL SETUSER app on >PASSWORD //p' "$doc")
# shellcheck disable=SC2086  # words
admin ACL SETUSER app reset on '>app-secret' $line >/dev/null
admin ACL LOG RESET >/dev/null
lean=redis://app:app-secret@$place/0
says 'the documented rights suffice' 0 ran run --store "$lean" rights -- echo ran
fifo=$(mktemp -u /tmp/dibs-test-redis.XXXXXX)
mkfifo "$fifo"
"$dibs" run --store "$lean" rights -- cat "$fifo" >/dev/null &
holder=$!
exec 3>"$fifo" # after the name is held
rm -f "$fifo"
"$dibs" run --store "$lean" rights -- echo waited >/tmp/dibs-test-redis.$$ 2>&1 3>&- &
waiter=$!
seen=
for _ in $(seq 200); do
  seen=$("$dibs" show --store "$lean" rights 2>&1)
  [[ $seen == *wait* ]] && break
  sleep 0.05
done
exec 3>&-
wait "$holder" "$waiter"
said=$(cat /tmp/dibs-test-redis.$$)
rm -f /tmp/dibs-test-redis.$$
if [[ $seen == *wait* && $said == waited ]]; then pass 'and for waiters'; else fail 'and for who waits' "$seen" "$said"; fi
missing=$(admin ACL LOG)
if [ -z "$missing" ]; then pass 'nothing else was asked for'; else fail 'nothing else was asked for' "$missing"; fi
says 'the lab needs rows, and otherwise runs nothing' 125 'keeps no stock' lab race --store "$lean"
admin ACL DELUSER app >/dev/null

end_of_cases
