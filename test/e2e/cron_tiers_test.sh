#!/bin/bash
# SPDX-License-Identifier: MIT
# dibs cron on a store of tiers: Redis is killed, emptied, paused, moved away from and failed over to a replica while
# jobs fire each second.  No firing is doubled, and none is missing.
#   with.sh --private sets DIBS_TEST_REDIS and the server's script and folder
#   DIBS_ANCHOR: the anchor; without it a file
. "$(dirname "$0")/tap.sh"
. "$(dirname "$0")/../servers/fences.sh"
. "$(dirname "$0")/../servers/sentinel.sh"
: "${DIBS_TEST_REDIS:?names a private Redis}" "${DIBS_TEST_SERVERS_SCRIPT:?names the script that starts and kills it}"
anchor=${DIBS_ANCHOR:-sqlite://$dir/anchor.db}
case $anchor in *\?*) join='&' ;; *) join='?' ;; esac
primary=$DIBS_TEST_SERVERS_DIR
base=$(mktemp -d "${TMPDIR:-/tmp}/dibs-test-replica.XXXXXX") || exit 1
chmod 711 "$base"
end() {
  local folder
  finish
  for folder in "$base"/*/; do "$DIBS_TEST_SERVERS_SCRIPT" remove --dir "$folder" >/dev/null 2>&1; done
  rm -rf "$base"
}
trap end EXIT
port=$(port_of "$DIBS_TEST_REDIS")
sentinel "$dir/sentinel" "$primary" "$port"
redis="redis://dibs:dibs-secret@127.0.0.1:$sentinel_port/0?sentinel=main"
export DIBS_STORE="$redis,$anchor${join}tiers.dwell=500&tiers.wait=200&tiers.timeout=300"
server() { "$DIBS_TEST_SERVERS_SCRIPT" "$1" --dir "$primary" "${@:2}" redis >/dev/null 2>&1; }

cat >"$dir/jobs.cron" <<END
DIR=$dir
* * * * * *  name=tick overlap=allow  echo "\$DIBS_INSTANT \$DIBS_ATTEMPT \$DIBS_FENCE" >>"\$DIR/ticks"
END
ok 'the sentinel knows Redis' until_true 30 sentinel_has "$port"
exits 0 'a lease on Redis' "$DIBS" run job -- true
ok 'Redis serves all names' until_true 10 serves 100 0
nodes=()
for i in 1 2 3; do
  "$DIBS" cron "$dir/jobs.cron" 2>"$dir/node$i.err" &
  nodes+=($!)
  later $!
done
lines() { [ "$(wc -l 2>/dev/null <"$dir/ticks")" -ge "$1" ]; }
# At the instant of a firing: at the end of a second.
at_instant() { sleep "0.$(printf '%06d' $((1000000 - 10#${EPOCHREALTIME#*[.,]} - 1)))"; }
more() { # more: some more firings
  local now
  now=$(wc -l <"$dir/ticks")
  until_true 20 lines $((now + 3))
}

ok 'the nodes fire' until_true 20 lines 3
at_instant
ok 'Redis is killed at the instant of a firing' server kill
ok 'they fire without Redis' more
at_instant
ok 'Redis returns, and is empty' server restart
ok 'they fire' more
at_instant
ok 'Redis is paused' server pause
ok 'they fire' more
at_instant
ok 'Redis continues' server resume
ok 'they fire' more
at_instant
exits 0 'all names move to the anchor' "$DIBS" tier move 1
ok 'they fire' more
exits 0 'and back' "$DIBS" tier move 0
ok 'they fire' more

# ---- A replica is promoted ----

# on_replica WHAT COMMAND...: makes a replica, runs the command at the instant of a firing, and waits until the sentinel
# has promoted the replica and all names are on it.
on_replica() {
  local what=$1 old=$primary before=$port
  shift
  primary=$base/$before
  ok "$what: a replica is made" server follow --of "$old" --until $$
  port=$(<"$primary/redis/port")
  ok "$what: the sentinel knows it" until_true 30 sentinel_knows "$port"
  ok "$what: Redis serves all names" until_true 40 serves 100 0
  at_instant
  ok "$what, at the instant of a firing" "$@" "$old"
  ok "$what: they fire" more
  ok "$what: the replica is promoted" until_true 60 sentinel_has "$port"
  "$DIBS_TEST_SERVERS_SCRIPT" remove --dir "$old" >/dev/null 2>&1
  ok "$what: they fire" more
  ok "$what: all names are on the promoted Redis" until_true 60 serves 100 0
  exits 0 "$what: a lease on it" "$DIBS" run job --wait 20s -- true
  ok "$what: they fire" more
}
by_sentinel() { sentinel_ask failover main; }
by_death() { "$DIBS_TEST_SERVERS_SCRIPT" kill --dir "$1" redis; }
on_replica 'the replica takes over' by_sentinel
on_replica 'the primary is killed' by_death

kill -TERM "${nodes[@]}"
for pid in "${nodes[@]}"; do ok 'a node ends' wait "$pid"; done

first=$(date -u -d "$(sort "$dir/ticks" | head -n 1 | cut -d ' ' -f 1)" +%s)
last=$(date -u -d "$(sort "$dir/ticks" | tail -n 1 | cut -d ' ' -f 1)" +%s)
for ((at = first; at <= last; at++)); do date -u -d "@$at" +%FT%TZ; done >"$dir/wanted"
ok 'it was long enough' test $((last - first)) -ge 15
is 'no firing is missing, and none is doubled' "$(sort "$dir/ticks" | cut -d ' ' -f 1 | diff - "$dir/wanted")" ''
is 'each ran at its first attempt' "$(grep -Ecv ' 1 [0-9]+$' "$dir/ticks")" 0
done_testing
