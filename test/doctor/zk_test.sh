#!/bin/bash
# SPDX-License-Identifier: MIT
# What doctor shows of three ZooKeeper servers of its own: each, also those that are stopped or killed, the leader, and a
# server that allows no four-letter word.  zk_test.sh
. "$(dirname "$0")/doctor.sh"
. "$(dirname "$0")/../zk/ensemble.sh"
ensemble_begin
export DIBS_STORE=zk://$hosts
leader=$(leader)
follower=$((leader % 3 + 1))
line() { echo "node +127\.0\.0\.1:${ports[$1]}"; }

says 0 'three servers' "$DIBS_STORE" '^fine +server +ZooKeeper 3\.[0-9]+\.[0-9]+ at 127' \
  '^fine +role +an ensemble of 3 servers, of which the URI names 3; 3 of these answer' \
  '^fine +node +127.*: leader, ZooKeeper 3' '^fine +node +127.*: follower, ZooKeeper 3'
kill -STOP "${pids[$follower]}"
# The client library asks the stopped one first once in three times.
for n in 1 2 3 4; do
  says 116 "a server is stopped, $n" "$DIBS_STORE" \
    "^TROUBLE +$(line "$follower") does not answer: it accepts connections, and says nothing" \
    "^fine +$(line "$leader"): (leader|follower)"
done
kill -CONT "${pids[$follower]}"
node_kill "$follower"
says 116 'a server was killed' "$DIBS_STORE" "^TROUBLE +$(line "$follower") does not answer: Connection refused"
node_start "$follower"
ok 'it is back' until_true 60 shows "^fine +$(line "$follower"): (leader|follower)"

# A server that answers, and does not allow srvr: ZooKeeper itself always does.
cat >"$dir/mute.py" <<'END'
import socket
import sys
listener = socket.create_server(("127.0.0.1", 0))
print(listener.getsockname()[1], flush=True)
while True:
    client, _ = listener.accept()
    try:
        client.settimeout(2)
        if client.recv(4) == b"srvr":
            client.sendall(b"srvr is not executed because it is not in the whitelist.\n")
    except OSError:
        pass
    client.close()
END
python3 "$dir/mute.py" >"$dir/mute.port" &
later $!
until_true 20 test -s "$dir/mute.port"
mute=$(<"$dir/mute.port")
says 0 'a server that does not allow srvr' "$DIBS_STORE,127.0.0.1:$mute" \
  "^fine +node +127\.0\.0\.1:$mute answers; its version and role are not visible" "^fine +$(line "$leader"): (leader|follower)"
done_testing
