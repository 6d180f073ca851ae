#!/bin/bash
# SPDX-License-Identifier: MIT
# TLS, users, and messages about etcd:  command_test.sh DIBS URI, through with.sh --private --tls.
set -u
dibs=$1 uri=$2
. "$(dirname "$0")/../support/says.sh"
place=${uri#etcd://}
tls=${DIBS_TEST_ETCD_TLS%%\?*}
export ETCDCTL_API=3
ctl() { etcdctl --endpoints "$place" "$@"; }

says 'a lease' 0 ran run --store "$uri" name -- echo ran
says 'over TLS' 0 ran run --store "$DIBS_TEST_ETCD_TLS" name -- echo ran
says 'an unknown authority' 123 'cannot reach etcd' run --wait 1s --store "$tls" name -- echo ran
says 'files of TLS without TLS' 125 'need etcds://' run --store "$uri?ca=/tmp/ca.pem" name -- true
says 'no such parameter' 125 'has no parameter evict' run --store "$uri?evict=1" name -- true
says 'a path' 125 '?prefix=' run --store "$uri/app" name -- true
says 'a record' 0 '' record put --store "$uri" key --create < <(printf '{"n":1}')
if [ "$(ctl get --print-value-only dibs/record/key)" = '{"n":1}' ]; then
  pass 'etcdctl shows the content of a record'
else
  fail 'etcdctl shows the content of a record' "$(ctl get --prefix dibs/record)"
fi
ctl put dibs/record/key '{"n":2}' >/dev/null
says 'what etcdctl put is a newer version' 0 '{"n":2}' record get --store "$uri" key
says 'two prefixes' 0 ran run --store "$uri?prefix=app" --try name -- \
  "$dibs" run --store "$uri?prefix=other" --try name -- echo ran
says 'doctor' 0 'leases (exclusive, shared, counted), lanes, records; not: stocks, once keys' doctor --store "$uri"
says 'a file that does not exist' 125 "can't read the file of key= in the store URI, /none: No such file" run \
  --store "$tls?cert=$0&key=/none" name -- true
says 'a URI without a host' 125 'has no host: write etcd://HOST:2379' run --store etcd:app name -- true
says 'a user where etcd has none' 123 'has no users: remove USER:PASSWORD@' run --store "etcd://app:secret@$place" name -- true
ctl put foreign/meta 'not from dibs' >/dev/null
says 'keys of another program' 123 'belongs to another program' run --store "$uri?prefix=foreign" name -- true

# The anchor of a fleet without SQL: Redis serves the names, and etcd takes over when it is killed.
if [ -e "$DIBS_MODULE_PATH/dibs-driver-redis.so" ]; then
  "$DIBS_TEST_SERVERS_SCRIPT" start --dir "$DIBS_TEST_SERVERS_DIR" redis >/dev/null 2>&1
  eval "$("$DIBS_TEST_SERVERS_SCRIPT" env --dir "$DIBS_TEST_SERVERS_DIR")"
  fleet="$DIBS_TEST_REDIS?connect_timeout=500,$uri?prefix=fleet"
  says 'tiers with etcd as the anchor' 0 '' flag set redis.enabled on --store "$fleet"
  fence() { timeout 60 "$dibs" run --store "$fleet" --wait 50s fleet -- sh -c 'echo "$DIBS_FENCE"'; }
  first=$(fence)
  says 'Redis serves the names' 0 'redis serves 100 of 100 buckets' tier status --store "$fleet"
  "$DIBS_TEST_SERVERS_SCRIPT" kill --dir "$DIBS_TEST_SERVERS_DIR" redis >/dev/null 2>&1
  second=$(fence)
  says 'etcd has taken over' 0 'etcd serves 100 of 100 buckets' tier status --store "$fleet"
  if [ "$second" -gt "$first" ]; then pass 'fences grow across the tiers'; else
    fail 'fences grow across the tiers' "$first, then $second"
  fi
fi

# A user with a token, which a restart of the server forgets.
ctl user add root --new-user-password=root-secret >/dev/null
ctl user add app --new-user-password=app-secret >/dev/null
ctl role add dibs >/dev/null
ctl role grant-permission dibs --prefix=true readwrite dibs/ >/dev/null
ctl user grant-role app dibs >/dev/null
ctl user grant-role root root >/dev/null 2>&1
ctl auth enable >/dev/null
user=etcd://app:app-secret@$place
says 'a user' 0 ran run --store "$user" name -- echo ran
folder=$(mktemp -d "${TMPDIR:-/tmp}/dibs-test-tokens.XXXXXX") || exit 1
touch "$folder/tokens"
python3 "$(dirname "$0")/gateway.py" "$place" "$folder" >"$folder/port" 2>"$folder/log" &
gateway=$!
trap 'kill "$gateway" 2>/dev/null; rm -rf "$folder"' EXIT
for _ in $(seq 600); do
  [ ! -s "$folder/port" ] || break
  sleep 0.05
done
says 'a long token, as a JWT is' 0 ran run --wait 10s --store "etcd://app:app-secret@127.0.0.1:$(<"$folder/port")" name -- \
  echo ran
says 'a wrong password' 123 '' run --try --store "${user/app-secret/no-secret}" name -- true
says 'no user' 123 '' run --try --store "$uri" name -- true
says 'the role has one prefix' 123 'permission denied' run --try --store "$user?prefix=other" name -- true
says 'a token that the server forgot' 0 ran run --store "$user" --ttl 10s name -- \
  sh -c '"$1" restart etcd >/dev/null && sleep 8 && echo ran' sh "$DIBS_TEST_SERVERS_SCRIPT"

end_of_cases
