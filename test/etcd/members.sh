#!/bin/bash
# SPDX-License-Identifier: MIT
# Three members of etcd for a test, which may kill, stop and start each:  members.sh PROGRAM [ARG]...
#
# {} in an ARG becomes the store's URI.  The program gets DIBS_TEST_ETCD_MEMBERS, this script, and in DIBS_TEST_ETCD_PLACE
# its folder; it may call it again:
#
#   members.sh start|kill|pause|resume N   one member; start waits until it serves clients
#   members.sh leader                      prints the number of the leader
#   members.sh endpoints                   prints host:port,host:port,host:port
#
# An election takes about half a second.  Exit 77 without etcd.
set -u
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)/members.sh
at() { echo "$DIBS_TEST_ETCD_PLACE/$1"; }
client() { echo "127.0.0.1:$(<"$(at "$1.client")")"; }
peer() { echo "http://127.0.0.1:$(<"$(at "$1.peer")")"; }
endpoints() { echo "$(client 1),$(client 2),$(client 3)"; }
answers() { curl -sf -m 1 "http://$(client "$1")/health" 2>/dev/null | grep -q '"health":"true"'; }
# until_true SECONDS COMMAND...
until_true() {
  local end=$((SECONDS + $1))
  shift
  until "$@"; do
    [ "$SECONDS" -lt "$end" ] || return 1
    sleep 0.05
  done
}
launch() {
  etcd --name "m$1" --data-dir "$(at "$1.data")" --log-level error --heartbeat-interval 50 --election-timeout 500 \
    --listen-client-urls "http://$(client "$1")" --advertise-client-urls "http://$(client "$1")" \
    --listen-peer-urls "$(peer "$1")" --initial-advertise-peer-urls "$(peer "$1")" \
    --initial-cluster "m1=$(peer 1),m2=$(peer 2),m3=$(peer 3)" >>"$(at "$1.log")" 2>&1 &
  echo $! >"$(at "$1.pid")"
  disown # the shell reports no kill
}
leader() {
  local n
  for n in 1 2 3; do
    if [ "$(curl -sf -m 1 "http://$(client "$n")/v3/maintenance/status" -d '{}' 2>/dev/null |
      python3 -c 'import json, sys
s = json.load(sys.stdin)
print(s.get("leader") == s["header"]["member_id"])' 2>/dev/null)" = True ]; then
      echo "$n"
      return 0
    fi
  done
  return 1
}
if [ -n "${DIBS_TEST_ETCD_PLACE:-}" ]; then
  case $1 in
    start) launch "$2" && until_true 60 answers "$2" ;;
    kill) kill -9 "$(<"$(at "$2.pid")")" ;;
    pause) kill -STOP "$(<"$(at "$2.pid")")" ;;
    resume) kill -CONT "$(<"$(at "$2.pid")")" ;;
    leader) until_true 30 leader ;;
    endpoints) endpoints ;;
    *) echo "members.sh: unknown command $1" >&2; exit 2 ;;
  esac
  exit
fi

for program in etcd etcdctl curl python3; do
  command -v "$program" >/dev/null || {
    echo "members.sh: $program is not installed: skipped" >&2
    [ "${DIBS_TEST_SERVERS:-}" != required ] || exit 1
    exit 77
  }
done
DIBS_TEST_ETCD_PLACE=$(mktemp -d /tmp/dibs-test-etcd.XXXXXX) || exit 1
export DIBS_TEST_ETCD_PLACE DIBS_TEST_ETCD_MEMBERS=$here
finish() {
  local n
  for n in 1 2 3; do kill -9 "$(<"$(at "$n.pid")")" 2>/dev/null; done
  rm -rf "$DIBS_TEST_ETCD_PLACE"
}
trap finish EXIT
trap 'exit 130' INT TERM
# Ports that nobody uses now.
python3 - "$DIBS_TEST_ETCD_PLACE" <<'P' || exit 1
import socket, sys
held = []
for name in ["%d.%s" % (n, kind) for n in (1, 2, 3) for kind in ("client", "peer")]:
    s = socket.socket()
    s.bind(("127.0.0.1", 0))
    held.append(s)
    open(sys.argv[1] + "/" + name, "w").write(str(s.getsockname()[1]))
P
for n in 1 2 3; do launch "$n"; done
for n in 1 2 3; do
  until_true 60 answers "$n" || { echo "members.sh: member $n does not answer" >&2; cat "$(at "$n.log")" >&2; exit 1; }
done
args=()
for arg; do args+=("${arg//\{\}/"etcd://$(endpoints)"}"); done
"${args[@]}"
