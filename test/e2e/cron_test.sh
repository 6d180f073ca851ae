#!/bin/bash
# SPDX-License-Identifier: MIT
# dibs cron: nodes share a crontab; each firing runs once, also while nodes are killed and stopped.
#   cron_test.sh [STORE]
. "$(dirname "$0")/tap.sh"
[ $# = 0 ] || export DIBS_STORE=$1
export DIBS TZ=UTC

# node NAME FILE [OPTION...]: starts a node; its pid is in $node, what it prints in $dir/NAME.err.
node() {
  "$DIBS" cron "${@:2}" 2>"$dir/$1.err" &
  node=$!
  later "$node"
  until_true 15 grep -q ' jobs$' "$dir/$1.err"
}
# lines FILE COUNT: it has at least so many.
lines() { [ "$(wc -l 2>/dev/null <"$1")" -ge "$2" ]; }
# whole FILE SECONDS: the instants of so many seconds from the first one on, each of them at least once.
whole() {
  local first second
  first=$(head -n 1 "$1" | cut -d ' ' -f 1)
  for ((second = 0; second < $2; second++)); do
    grep -q "^$(date -u -d "$first + $second seconds" +%FT%TZ) " "$1" || return 1
  done
}
# Instants that ran twice, although the first run was not broken off.
doubled() { awk '{ runs[$1]++; if ($2 > 1) again[$1]++ } END { for (i in runs) if (runs[i] - again[i] > 1) print i }' "$1"; }
ends() { # ends PID: it has ended, with 0
  wait "$1"
}

# ---- Five nodes at once on an empty store, which make its tables ----
cat >"$dir/empty.cron" <<END
@yearly name=rare true
END
nodes=()
for i in 1 2 3 4 5; do
  "$DIBS" cron "$dir/empty.cron" 2>"$dir/empty$i.err" &
  nodes+=($!)
  later $!
done
all_ready() { [ "$(grep -l ' jobs$' "$dir"/empty?.err | wc -l)" = 5 ]; }
ok 'five nodes start at once on an empty store' until_true 60 all_ready
is 'and none has anything to report' "$(grep -hv ' jobs$' "$dir"/empty?.err)" ''
kill -TERM "${nodes[@]}"
for pid in "${nodes[@]}"; do ok 'it ends' ends "$pid"; done

# ---- Three nodes, of which one is killed and one is stopped ----
cat >"$dir/fleet.cron" <<END
DIR=$dir
* * * * * *  name=tick overlap=allow  echo "\$DIBS_INSTANT \$DIBS_ATTEMPT" >>"\$DIR/ticks"
END
node a "$dir/fleet.cron"
a=$node
node b "$dir/fleet.cron"
b=$node
node c "$dir/fleet.cron"
c=$node
ok 'the nodes fire' until_true 15 lines "$dir/ticks" 3
kill -KILL "$a"
kill -STOP "$b"
sleep 4 # of firings, without these two
kill -CONT "$b"
ok 'all of them run, also without two nodes' until_true 20 whole "$dir/ticks" 8
ok 'none is missing' until_true 45 whole "$dir/ticks" 10
is 'none runs twice' "$(doubled "$dir/ticks")" ''
kill -TERM "$b" "$c"
ok 'TERM ends a node' ends "$b"
ok 'and another one' ends "$c"
wait "$a" 2>/dev/null

# ---- The file changes ----
cat >"$dir/change.cron" <<END
DIR=$dir
* * * * * *  name=first  echo x >>"\$DIR/first"
END
node d "$dir/change.cron"
ok 'a job runs' until_true 15 filled "$dir/first"
cat >"$dir/new" <<END
DIR=$dir
this is no job
* * * * * *  name=second  echo "\$GREETING" >>"\$DIR/second"
GREETING=hello
* * * * * *  name=third  cat >>"\$DIR/third"; echo "\$GREETING \$DIBS_JOB" >>"\$DIR/third"%some%input
END
mv "$dir/new" "$dir/change.cron"
ok 'a new job runs' until_true 15 lines "$dir/third" 3
is 'with its input and its variables' "$(head -n 3 "$dir/third")" "$(printf 'some\ninput\nhello third')"
ok 'and others' until_true 15 filled "$dir/second"
like 'a bad line is reported' "$(cat "$dir/d.err")" "^dibs: $dir/change.cron:2: 'this is no job' is neither"
count=$((count)) before=$(wc -l <"$dir/first") more=$(wc -l <"$dir/second")
ok 'later' until_true 15 lines "$dir/second" $((more + 2))
ok 'a removed job does not run any more' test "$(wc -l <"$dir/first")" -le $((before + 1))
mv "$dir/change.cron" "$dir/kept"
ok 'a file that is gone is reported' until_true 15 grep -q "cannot read the crontab $dir/change.cron: No such file" "$dir/d.err"
mkdir "$dir/change.cron"
ok 'and one that cannot be read' until_true 15 grep -q "cannot read the crontab $dir/change.cron: Invalid" "$dir/d.err"
ok 'its jobs run on' until_true 15 lines "$dir/second" $(($(wc -l <"$dir/second") + 3))
rmdir "$dir/change.cron" && mv "$dir/kept" "$dir/change.cron"
ok 'and the end of that' until_true 15 grep -q 'can be read again' "$dir/d.err"
is 'each once' "$(grep -c 'cannot read' "$dir/d.err") $(grep -c 'read again$' "$dir/d.err")" '2 1'

# ---- ls, run ----
exits 0 'ls' "$DIBS" cron ls "$dir/change.cron"
like 'ls: heads' "$out" '^NAME +SCHEDULE +NEXT +LAST +HOW +MISSED +SKIPPED$'
like 'ls: a job' "$out" '^third +\* \* \* \* \* \* +[0-9]{2} [A-Z][a-z]{2} [0-9:]{8} +[0-9]{2} [A-Z][a-z]{2} [0-9:]{8} +done +0 +0$'
ok 'ls: JSON' "$JSON_CHECK" < <("$DIBS" cron ls --json "$dir/change.cron")
kill -TERM "$node"
ok 'the node ends' ends "$node"
cat >"$dir/hand.cron" <<END
DIR=$dir
@yearly name=rare echo "\$DIBS_JOB \$DIBS_FENCE" >>"\$DIR/rare"; sleep 2; exit 3
END
node e "$dir/hand.cron"
exits 0 'a job by hand' "$DIBS" cron run rare "$dir/hand.cron"
like 'prints its task' "$out" '^[0-9]+$'
ok 'and runs' until_true 15 filled "$dir/rare"
exits 120 'not beside itself' "$DIBS" cron run rare "$dir/hand.cron"
like 'the message' "$err" "^dibs: 'rare' is still running"
exits 117 'a job that is none' "$DIBS" cron run often "$dir/hand.cron"
failed() { "$DIBS" history --json "$1" | grep -q '"kind":"cron","outcome":"failed","code":3'; }
ok 'its end is in the history' until_true 15 failed rare
kill -TERM "$node"
ok 'the node ends again' ends "$node"
exits 125 'a file that is none' "$DIBS" cron "$dir/nothing.cron"
exits 125 'too many words' "$DIBS" cron run rare "$dir/hand.cron" more

# ---- Overlap, timeout ----
cat >"$dir/long.cron" <<END
DIR=$dir
* * * * * *  name=skip  echo "\$DIBS_INSTANT" >>"\$DIR/skip"; sleep 2.5
* * * * * *  name=queue overlap=queue  mkdir "\$DIR/busy" || echo clash >>"\$DIR/clashes"; echo "\$DIBS_INSTANT" >>"\$DIR/queue"; sleep 0.2; rmdir "\$DIR/busy"
* * * * * *  name=beside overlap=allow  echo x >>"\$DIR/beside"; sleep 3
* * * * * *  name=slow timeout=1s  echo \$\$ >"\$DIR/slow"; sleep 600
END
node f "$dir/long.cron"
first=$node
node g "$dir/long.cron"
overtime() { "$DIBS" history --json slow | grep -q '"outcome":"overtime"'; }
ok 'a timeout ends a command' until_true 20 overtime
ok 'queue: all of them run' until_true 20 lines "$dir/queue" 6
ok 'queue: in order' sort -c "$dir/queue"
ok 'queue: one at a time' test ! -e "$dir/clashes"
ok 'allow: they run beside each other' until_true 20 lines "$dir/beside" 5
skipped() { "$DIBS" cron ls --json "$dir/long.cron" | grep -Eq '"name":"skip".[^}]*"skipped":[1-9]'; }
ok 'skip: some are skipped, and counted' until_true 20 skipped
ok 'skip: none overlaps' awk '{ split($0, t, /[:Z]/); s = t[2] * 60 + t[3]; if (NR > 1 && s - last < 2 && s >= last) exit 1; last = s }' "$dir/skip"
kill -TERM "$first" "$node"
ok 'a node waits for its commands' ends "$first"
ok 'and so does the other' ends "$node"

# ---- TERM, twice ----
cat >"$dir/end.cron" <<END
DIR=$dir
@yearly name=end  trap 'echo ended >"\$DIR/ended"; exit' TERM; echo \$\$ >"\$DIR/pid"; while :; do sleep 0.05; done
END
node h "$dir/end.cron"
"$DIBS" cron run end "$dir/end.cron" >/dev/null
ok 'a long command' until_true 15 filled "$dir/pid"
kill -TERM "$node"
ok 'the node says that it waits' until_true 15 grep -q 'ending: waiting for 1 command;' "$dir/h.err"
ok 'and the command runs' alive "$(cat "$dir/pid")"
kill -TERM "$node"
ok 'a second TERM ends it' ends "$node"
is 'the command could clean up' "$(cat "$dir/ended")" ended

# ---- A node that dies in the middle: its command ends, and another node runs the firing again ----
cat >"$dir/crash.cron" <<END
DIR=$dir
@yearly name=crash  echo "\$DIBS_ATTEMPT \$DIBS_FENCE \$\$" >>"\$DIR/crash"; [ "\$DIBS_ATTEMPT" = 1 ] && sleep 600; echo over >"\$DIR/over"
END
node i "$dir/crash.cron"
first=$node
"$DIBS" cron run crash "$dir/crash.cron" >/dev/null
ok 'it runs' until_true 15 filled "$dir/crash"
kill -KILL "$first"
wait "$first" 2>/dev/null
gone_now() { ! alive "$(head -n 1 "$dir/crash" | cut -d ' ' -f 3)"; }
ok 'its command ends with the node' until_true 10 gone_now
node j "$dir/crash.cron"
ok 'another node runs it again' until_true 60 filled "$dir/over"
is 'as the second attempt, with a larger fence' \
  "$(awk 'NR == 1 { first = $2 } NR == 2 { printf "%s %s", $1, ($2 > first ? "larger" : "not larger") }' "$dir/crash")" '2 larger'
kill -TERM "$node"
ok 'the last node ends' ends "$node"

# ---- The minder is killed ----
cat >"$dir/minder.cron" <<END
DIR=$dir
@yearly name=minder  setsid sleep 600 & echo \$! >"\$DIR/far"; echo \$PPID >"\$DIR/minder"; wait
END
node p "$dir/minder.cron"
"$DIBS" cron run minder "$dir/minder.cron" >/dev/null
ok 'it runs' until_true 15 filled "$dir/minder"
kill -KILL "$(cat "$dir/minder")"
far_gone() { ! alive "$(cat "$dir/far")"; }
ok 'what its command started is ended' until_true 15 far_gone
minded() { "$DIBS" history --json minder | grep -q '"outcome":"killed"'; }
ok 'the run was killed' until_true 15 minded
kill -TERM "$node"
ok 'the node ends' ends "$node"

# ---- The launcher is killed ----
find_launcher() { # sets $launcher
  for launcher in $(cat "/proc/$node/task/$node/children"); do
    [ "$(cat "/proc/$launcher/comm")" = dibs-launcher ] && return
  done
  return 1
}
cat >"$dir/launch.cron" <<END
DIR=$dir
* * * * * *  name=launch overlap=allow  echo x >>"\$DIR/launch"
END
node o "$dir/launch.cron"
ok 'it fires' until_true 15 filled "$dir/launch"
find_launcher && kill -KILL "$launcher"
ends "$node"
is 'the node ends' $? 119
like 'and says why' "$(tail -n 1 "$dir/o.err")" '^dibs: a process of the node that starts commands was killed'
is 'no firing failed by that' "$("$DIBS" history launch --failed)" ''

# ---- No descriptor is left ----
echo '@yearly name=lacking true' >"$dir/lacking.cron"
node p "$dir/lacking.cron" --jobs 1
ok 'a process of the node starts its commands' until_true 15 find_launcher
prlimit --pid "$launcher" --nofile=8: # enough for its minder, and not for a command
"$DIBS" cron run lacking "$dir/lacking.cron" >"$dir/number"
ok 'a command cannot be started' until_true 15 grep -q 'cannot start a command for lacking: Too many open files' "$dir/p.err"
prlimit --pid "$launcher" --nofile=1024:
ran() { "$DIBS" history --json lacking | grep -q '"outcome":"done"'; }
ok 'its firing runs as soon as it can' until_true 15 ran
is 'once' "$("$DIBS" history --json lacking | grep -o '"outcome"' | wc -l)" 1
kill -TERM "$node"
ok 'the node ends' ends "$node"

# ---- Without a node for some time ----
cat >"$dir/gap.cron" <<END
DIR=$dir
* * * * * *  name=gap overlap=allow catch-up=all:1h  echo "\$DIBS_INSTANT \$DIBS_ATTEMPT" >>"\$DIR/gap"
END
node k "$dir/gap.cron"
ok 'it fires' until_true 15 lines "$dir/gap" 2
kill -TERM "$node"
ends "$node"
sleep 3 # without a node
node l "$dir/gap.cron"
ok 'what was missed is made up for' until_true 20 whole "$dir/gap" 8
is 'and nothing twice' "$(doubled "$dir/gap")" ''
kill -TERM "$node"
ends "$node"

# ---- Clocks that are minutes apart: the server's counts ----
# (The wall clocks.  The clock of waits is that of the kernel, which libfaketime does not move.)
faketime=$(ls /usr/lib/*/faketime/libfaketimeMT.so.1 2>/dev/null | head -n 1)
if [ $# = 1 ] && [ -n "$faketime" ]; then
  cat >"$dir/clock.cron" <<END
DIR=$dir
* * * * * *  name=clock overlap=allow  echo "\$DIBS_INSTANT \$DIBS_ATTEMPT" >>"\$DIR/clock"
END
  plain=$DIBS
  DIBS=$dir/late
  printf '#!/bin/sh\nLD_PRELOAD=%s FAKETIME=-3m FAKETIME_DONT_FAKE_MONOTONIC=1 exec "%s" "$@"\n' "$faketime" "$plain" >"$dir/late"
  sed 's/-3m/+5m/' "$dir/late" >"$dir/early"
  chmod +x "$dir/late" "$dir/early"
  node m "$dir/clock.cron"
  late=$node
  DIBS=$dir/early
  node n "$dir/clock.cron"
  early=$node
  DIBS=$plain
  ok 'they fire' until_true 15 lines "$dir/clock" 6
  ok 'each second' until_true 15 whole "$dir/clock" 6
  is 'once' "$(doubled "$dir/clock")" ''
  now=$(date -u +%s) last=$(date -u -d "$(tail -n 1 "$dir/clock" | cut -d ' ' -f 1)" +%s)
  ok 'at the time of the server' test $((now - last)) -ge 0 -a $((now - last)) -le 5
  kill -TERM "$late" "$early"
  wait "$late" "$early"
fi
done_testing
