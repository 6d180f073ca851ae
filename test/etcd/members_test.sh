#!/bin/bash
# SPDX-License-Identifier: MIT
# Members of etcd that are killed and stopped, compaction, no majority:  members_test.sh DIBS URI, through members.sh.
set -u
dibs=$1 uri=$2
. "$(dirname "$0")/../support/says.sh"
# check NAME COMMAND...
check() {
  local name=$1 said
  shift
  if said=$("$@" 2>&1); then pass "$name"; else fail "$name" "exit $?: $said"; fi
}
members() { bash "$DIBS_TEST_ETCD_MEMBERS" "$@"; }
endpoints=$(members endpoints)
export ETCDCTL_API=3
ctl() { etcdctl --endpoints "$endpoints" "$@" 2>&1; }
other() { echo $(($1 % 3 + 1)); }
refused() { # refused CODE WORDS COMMAND...
  local code=$1 words=$2 said got
  shift 2
  said=$("$@" 2>&1)
  got=$?
  [ "$got" -eq "$code" ] && [[ $said == *"$words"* ]] && return 0
  echo "exit $got, not $code: $said"
  return 1
}
out=$(mktemp -d /tmp/dibs-test-members.XXXXXX) || exit 1
trap 'rm -rf "$out"' EXIT
until_file() { # until_file FILE: it exists within a minute
  local end=$((SECONDS + 60))
  until [ -e "$1" ]; do
    [ "$SECONDS" -lt "$end" ] || return 1
    sleep 0.05
  done
}
holder() { # holder NAME FILE: holds it until FILE-end exists; FILE exists while it does
  "$dibs" run --store "$uri" --ttl 6s "$1" -- sh -c 'touch "$1"; until [ -e "$1-end" ]; do sleep 0.05; done' sh "$2" \
    >"$2-said" 2>&1 &
}

check 'three members serve a store' "$dibs" run --store "$uri" first -- true

# etcdctl shows what dibs wrote.
"$dibs" run --store "$uri" --owner anna seen -- etcdctl --endpoints "$endpoints" get --prefix dibs/lease/seen/ >"$out/seen" 2>&1
check 'etcdctl sees the holder' grep -q '"owner":"anna"' "$out/seen"
check 'nothing is left after the release' test -z "$(ctl get --prefix dibs/lease/seen/)"

# The leader is killed: the holder keeps its lease, and nobody else gets it.
holder kept "$out/kept"
pid=$!
check 'a holder' until_file "$out/kept"
leader=$(members leader)
members kill "$leader"
check 'another is refused, without the leader' refused 120 kept "$dibs" run --store "$uri" --try kept -- true
check 'another name is granted, without the leader' "$dibs" run --store "$uri" --wait 30s free -- true
sleep 7 # longer than the ttl: it must have been renewed
check 'still refused after a ttl' refused 120 kept "$dibs" run --store "$uri" --try kept -- true
touch "$out/kept-end"
wait "$pid"
check 'the holder lost nothing' test $? -eq 0
members start "$leader"

# The leader is stopped, and believes to lead when it continues.
holder paused "$out/paused"
pid=$!
until_file "$out/paused"
leader=$(members leader)
members pause "$leader"
check 'another name is granted while the leader is stopped' "$dibs" run --store "$uri" --wait 30s free -- true
sleep 7
members resume "$leader"
check 'the stopped leader grants nothing that is held' refused 120 paused \
  "$dibs" run --store "etcd://$(cut -d, -f"$leader" <<<"$endpoints")" --try paused -- true
touch "$out/paused-end"
wait "$pid"
check 'the holder lost nothing while the leader was stopped' test $? -eq 0

# A waiter whose endpoint is killed after its revision was compacted checks again.
holder compacted "$out/compacted"
pid=$!
until_file "$out/compacted"
"$dibs" run --store "$uri" --wait 2m compacted -- touch "$out/after" &
waiter=$!
until [ -n "$(ctl get --prefix dibs/wait/compacted/)" ]; do sleep 0.05; done
for _ in 1 2 3; do ctl put other/key x >/dev/null; done
revision=$(ctl get other/key -w json | python3 -c 'import json, sys; print(json.load(sys.stdin)["header"]["revision"])')
check 'compaction' ctl compact "$revision"
members kill 1
touch "$out/compacted-end"
wait "$pid"
wait "$waiter"
check 'the waiter got the name after the compaction' test $? -eq 0
check 'and ran its command' test -e "$out/after"
members start 1

# No majority: an answer within the time, and the store works again afterwards.
members kill 1
members kill 2
started=$SECONDS
check 'without a majority dibs says that the store is unavailable' refused 123 etcd \
  timeout 60 "$dibs" run --store "$uri" --wait 2s alone -- true
check 'within its time' test $((SECONDS - started)) -lt 45
members start 1
members start 2
check 'and works again with a majority' "$dibs" run --store "$uri" --wait 60s alone -- true

# The store is emptied: a new incarnation, with larger fences.
before=$("$dibs" run --store "$uri" emptied -- sh -c 'echo "$DIBS_FENCE"')
ctl del --prefix dibs/ >/dev/null
after=$("$dibs" run --store "$uri" emptied -- sh -c 'echo "$DIBS_FENCE"')
check 'fences grow when the store was emptied' test "$after" -gt "$before"

end_of_cases
