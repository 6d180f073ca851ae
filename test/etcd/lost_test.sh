#!/bin/bash
# SPDX-License-Identifier: MIT
# What a client believes when etcd's answer, or etcd's memory, is lost:  lost_test.sh DIBS URI, through with.sh --private.
set -u
dibs=$1 uri=$2
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
place=${uri#etcd://}
export ETCDCTL_API=3
out=$(mktemp -d "${TMPDIR:-/tmp}/dibs-test-lost.XXXXXX") || exit 1
pids=()
trap 'kill "${pids[@]}" 2>/dev/null; rm -rf "$out"' EXIT
count=0 failures=0
check() { # check NAME WANT GOT
  count=$((count + 1))
  if [[ $3 == $2 ]]; then echo "ok $count - $1"; else # WANT is a pattern
    failures=$((failures + 1))
    echo "not ok $count - $1"
    printf '%s\n' "wanted: $2" "got: $3" | sed 's/^/#   /'
  fi
}
ctl() { etcdctl --endpoints "$place" "$@" 2>&1; }
got() { # got ARG...: the exit code of dibs and what it says
  local said code
  said=$(timeout 60 "$dibs" "$@" 2>&1)
  code=$?
  echo "$code $said"
}
# serve ARG: lost_answer.py, whose port is in $port.
serve() {
  : >"$out/port"
  python3 "$here/lost_answer.py" "$1" >"$out/port" 2>>"$out/log" &
  pids+=($!)
  for _ in $(seq 600); do
    [ ! -s "$out/port" ] || break
    sleep 0.05
  done
  port=$(<"$out/port")
}

# etcd has written the record.  After a conflict its client would write it once more.
version=$(printf 1 | "$dibs" record put --store "$uri" counted --create)
serve "$place"
lost=$(printf 2 | got record put --store "etcd://127.0.0.1:$port" counted --if "$version")
check 'the record is written' 2 "$("$dibs" record get --store "$uri" counted)"
check 'a write whose answer is lost is unknown, not a conflict' '124 *outcome is not known*' "$lost"

for answer in '{}' '[]' '{"header":{"cluster_id":5}}'; do
  serve "$answer"
  check "a server that answers $answer" '125 *does not answer as etcd*' \
    "$(got run --try --store "etcd://127.0.0.1:$port" name -- true)"
done

ctl put dibs/lease/foreign/key value >/dev/null
ctl put dibs/wait/foreign2/key value >/dev/null
check 'a key of another program among the holders' '123 *the key dibs/lease/foreign/key is not one of dibs*' \
  "$(got run --wait 5s --store "$uri" foreign -- true)"
check 'a key of another program among the waiters' '123 *the key dibs/wait/foreign2/key is not one of dibs*' \
  "$(got run --try --store "$uri" foreign2 -- true)"
ctl del dibs/lease/foreign/key >/dev/null
check 'without it the name is free' '0 ran' "$(got run --try --store "$uri" foreign -- echo ran)"

# Whatever the mode of a recorded break is.
ctl put dibs/break/broken/00000000000000000001 '{"owners":"eAB5","mode":400000000,"fence":5,"at":1}' >/dev/null
"$dibs" serve --store "$uri" --listen "unix:$out/socket" >"$out/served" 2>&1 &
pids+=($!)
for _ in $(seq 600); do
  ! curl -sf -m 5 --unix-socket "$out/socket" http://dibs/healthz >/dev/null || break
  sleep 0.05
done
check 'the daemon survives a break that somebody else wrote' '*"broken"*' \
  "$(curl -s -m 20 --unix-socket "$out/socket" http://dibs/v1/leases/broken)"
check 'and serves' 200 "$(curl -s -m 20 -o /dev/null -w '%{http_code}' --unix-socket "$out/socket" http://dibs/healthz)"
kill "${pids[-1]}"

# The same etcd with an earlier memory, or none: its id is the same, because its name and addresses are.
fence() { timeout 60 "$dibs" run --store "$uri" --wait 20s fence -- sh -c 'echo "$DIBS_FENCE"'; }
servers() { "$DIBS_TEST_SERVERS_SCRIPT" "$1" --dir "$DIBS_TEST_SERVERS_DIR" etcd >/dev/null 2>&1; }
data=$DIBS_TEST_SERVERS_DIR/etcd/data/member
peers=http://127.0.0.1:$(<"$DIBS_TEST_SERVERS_DIR/etcd/peer-port")
restore() { # restore SNAPSHOT [OPTION]...
  servers stop
  rm -rf "$data"
  etcdctl snapshot restore "$@" --name default --data-dir "$data" --initial-cluster "default=$peers" \
    --initial-advertise-peer-urls "$peers" >/dev/null 2>&1
  chown -R --reference "$DIBS_TEST_SERVERS_DIR/etcd/data" "$data" 2>/dev/null
  servers start
}
first=$(fence)
servers stop
rm -rf "$data"
servers start
second=$(fence)
check 'fences grow when all data is lost' yes "$([ "$second" -gt "$first" ] && echo yes)"
ctl snapshot save "$out/snapshot" >/dev/null
# The holder keeps its store open, and sees that etcd goes back.
"$dibs" run --store "$uri" --ttl 30s holder -- sleep 60 >"$out/said" 2>&1 &
holder=$!
pids+=("$holder")
for _ in 1 2 3 4 5 6; do third=$(fence); done
cluster=$(ctl get dibs/meta | sed -n 's/.*"cluster":"\([0-9]*\)".*/\1/p')
restore "$out/snapshot"
wait "$holder"
check 'a lease that the restored etcd does not have is lost' 122 $?
fourth=$(fence)
check 'the restored etcd has the same id' "*\"cluster\":\"$cluster\"*" "$(ctl get dibs/meta)"
check 'fences grow after a restore' yes "$([ "$fourth" -gt "$third" ] && [ "$third" -gt "$second" ] && echo yes)"

# A client that keeps its store open uses a cluster that was restored as another one.
"$dibs" serve --store "$uri" --listen "unix:$out/kept" >"$out/served" 2>&1 &
pids+=($!)
kept() { curl -s -m 60 --retry 20 --retry-all-errors --unix-socket "$out/kept" "http://dibs/v1/$1" "${@:2}"; }
kept_fence() {
  kept "leases/$1" -d '{"ttl": "10s", "wait": "30s"}' | sed -n 's/.*"fence":"\{0,1\}\([0-9]*\).*/\1/p'
}
kept_fence before >/dev/null
ctl snapshot save "$out/other" >/dev/null
for n in 1 2 3 4 5 6; do fifth=$(kept_fence "kept-$n"); done
restore "$out/other" --initial-cluster-token other
sixth=$(kept_fence restored)
check 'fences grow for a client that is there before and after a restore' yes \
  "$([ "$sixth" -gt "$fifth" ] && [ "$fifth" -gt "$fourth" ] && echo yes)"
[ "$failures" -eq 0 ] || echo "# fences: $first $second $third $fourth $fifth $sixth"

echo "1..$count"
[ "$failures" -eq 0 ]
