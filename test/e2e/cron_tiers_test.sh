#!/bin/bash
# SPDX-License-Identifier: MIT
# dibs cron on a store of tiers: Redis is killed, emptied, paused and moved away from while jobs fire each second.  No
# firing is doubled, and none is missing.
#   with.sh --private sets DIBS_TEST_REDIS and the server's script and folder
#   DIBS_ANCHOR: the anchor; without it a file
. "$(dirname "$0")/tap.sh"
: "${DIBS_TEST_REDIS:?names a private Redis}" "${DIBS_TEST_SERVERS_SCRIPT:?names the script that starts and kills it}"
anchor=${DIBS_ANCHOR:-sqlite://$dir/anchor.db}
case $anchor in *\?*) join='&' ;; *) join='?' ;; esac
export DIBS_STORE="$DIBS_TEST_REDIS,$anchor${join}tiers.dwell=500&tiers.wait=200&tiers.timeout=300"
server() { "$DIBS_TEST_SERVERS_SCRIPT" "$1" --dir "$DIBS_TEST_SERVERS_DIR" redis >/dev/null 2>&1; }

cat >"$dir/jobs.cron" <<END
DIR=$dir
* * * * * *  name=tick overlap=allow  echo "\$DIBS_INSTANT \$DIBS_ATTEMPT \$DIBS_FENCE" >>"\$DIR/ticks"
END
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
kill -TERM "${nodes[@]}"
for pid in "${nodes[@]}"; do ok 'a node ends' wait "$pid"; done

first=$(date -u -d "$(sort "$dir/ticks" | head -n 1 | cut -d ' ' -f 1)" +%s)
last=$(date -u -d "$(sort "$dir/ticks" | tail -n 1 | cut -d ' ' -f 1)" +%s)
for ((at = first; at <= last; at++)); do date -u -d "@$at" +%FT%TZ; done >"$dir/wanted"
ok 'it was long enough' test $((last - first)) -ge 15
is 'no firing is missing, and none is doubled' "$(sort "$dir/ticks" | cut -d ' ' -f 1 | diff - "$dir/wanted")" ''
is 'each ran at its first attempt' "$(grep -Ecv ' 1 [0-9]+$' "$dir/ticks")" 0
done_testing
