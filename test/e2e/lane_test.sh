#!/bin/bash
# SPDX-License-Identifier: MIT
# dibs lane: members are processes that share lanes, hand them over, are stopped and killed.
#   lane_test.sh [URI]    without URI in a file
. "$(dirname "$0")/tap.sh"
[ -z "${1:-}" ] || export DIBS_STORE=$1
records=1
[[ $DIBS_STORE != redis* ]] || records=
owners() { "$DIBS" lane ls "$1" --json | grep -o '"owner":"[^"]*"' | cut -d '"' -f 4 | sort | uniq -c | awk '{ print $2 "=" $1 }' | tr '\n' ' '; }
owns() { [ "$(owners "$1")" = "$2" ]; } # owns TOPIC 'a=2 b=2 '
unowned() { "$DIBS" lane ls "$1" --json | grep -o '"owner":null' | wc -l; }
fence_of() { "$DIBS" lane ls "$1" --json | grep -o "\"lane\":$2,[^}]*\"fence\":[0-9]*" | sed 's/.*://'; }
# member NAME TOPIC LANES [COMMAND]: in the background; $member is its pid.  Its commands write what they are.
member() {
  local command=${4:-"echo begin $1 \$DIBS_LANE \$DIBS_FENCE >>$dir/log.$2; trap 'echo end $1 \$DIBS_LANE \$DIBS_FENCE >>$dir/log.$2; exit' TERM; while :; do sleep 0.05; done"}
  "$DIBS" lane run "$2" --lanes "$3" --owner "$1" --ttl 4s --verbose --exec "$command" >"$dir/$1.out" 2>"$dir/$1.err" </dev/null &
  member=$!
  later $member
}
lines() { grep -c "^$1" "$dir/log.$2" 2>/dev/null; }
# runs OWNER TOPIC N: so many of its commands have begun and not ended.
runs() { [ $(($(lines "begin $1" "$2") - $(lines "end $1" "$2"))) = "$3" ]; }
has_lines() { [ "$(lines "$1" "$2")" = "$3" ]; }
# In the log of a topic no lane begins under one owner while it runs under another one.
overlap() {
  awk '$1 == "begin" { if ($3 in by) print "lane " $3 ": " $2 " began while " by[$3] " had it"; by[$3] = $2
                       if ($3 in fence && $4 + 0 <= fence[$3]) print "lane " $3 ": the fence did not grow"; fence[$3] = $4 + 0 }
       $1 == "end" { delete by[$3] }' "$dir/log.$1"
}

# ---- Wrong calls ----
exits 125 'no such form' "$DIBS" lane start t
exits 125 'run without --lanes' "$DIBS" lane run t -- true
exits 125 'run without a command' "$DIBS" lane run t --lanes 2
like 'run without a command: its usage' "$err" 'dibs lane run TOPIC --lanes P -- CMD'
exits 125 'kafka without a command' "$DIBS" lane kafka t --brokers b --group g
like 'kafka without a command: its usage' "$err" 'dibs lane kafka TOPIC --brokers HOST:PORT --group GROUP -- CMD'
like 'the help of --jobs is about partitions' "$("$DIBS" help lane)" '--jobs N +kafka: how many partitions'
exits 125 'two commands' "$DIBS" lane run t --lanes 2 --exec true -- true
exits 125 'ls runs nothing' "$DIBS" lane ls t -- true
exits 125 'ls takes no --lanes' "$DIBS" lane ls t --lanes 2
exits 125 'of without a key' "$DIBS" lane of t
exits 125 'a grace that is too long' "$DIBS" lane run t --lanes 2 --ttl 3s --grace 2s -- true
exits 117 'there is no such topic' "$DIBS" lane ls none
like 'it says so' "$err" 'no topic "none" yet'
exits 127 'a command that is not there' timeout 60 "$DIBS" lane run missing --lanes 2 -- ./missing
like 'it names the command' "$err" "cannot run './missing'"

# ---- One member ----
member a one 3 "echo \"\$DIBS_TOPIC \$DIBS_LANES \$DIBS_LANE \$DIBS_TTL \${#DIBS_LEASE} \${DIBS_SLOT-none} \$(cat)\" >>$dir/seen; sleep 60"
ok 'it owns every lane' until_true 30 owns one 'a=3 '
ok 'each lane has its command' until_true 30 eval "[ \$(wc -l <$dir/seen) = 3 ]"
is 'what the commands got' "$(sort "$dir/seen")" "$(printf 'one 3 %s 4000ms 32 none \n' 0 1 2)"
like 'a list for people' "$("$DIBS" lane ls one)" '^1/3 +a +[1-9][0-9]* '
ok 'a list for programs' "$JSON_CHECK" < <("$DIBS" lane ls one --json)
is 'the lane of a key' "$("$DIBS" lane of one some-key)" "$("$DIBS" lane of one some-key --json | grep -o '"lane":[0-9]*' | cut -d : -f 2)"
exits 125 'another number of lanes is refused' timeout 30 "$DIBS" lane run one --lanes 4 -- true
like 'it says which number the topic has' "$err" 'has 3 lanes, and not 4'
kill -TERM $member
wait $member
is 'TERM: it ends with 0' $? 0
is 'and nothing of its lanes is left' "$("$DIBS" ls lane/one)" ''

# ---- A command that ends by itself ----
member a again 1 "echo x >>$dir/again"
ok 'a command that ends is started again' until_true 30 eval "[ \$(wc -l <$dir/again) -ge 2 ]"
like 'after a note' "$(cat "$dir/a.err")" 'lane 0: the command exited with 0; it is started again'
kill -TERM $member
wait $member

# ---- Sharing, hand-over, death ----
member a share 4
a=$member
ok 'one member: all lanes' until_true 30 owns share 'a=4 '
member b share 4
b=$member
ok 'a second member: half of them' until_true 30 owns share 'a=2 b=2 '
ok 'each lane has a command' until_true 30 has_lines begin share 6
is 'the first member ended two commands before' "$(lines end share)" 2
is 'no lane had two commands, and fences grow' "$(overlap share)" ''
kill -TERM $b
wait $b
is 'a member leaves: 0' $? 0
ok 'the other one gets its lanes' until_true 30 owns share 'a=4 '
member b share 4
b=$member
ok 'it comes back' until_true 30 owns share 'a=2 b=2 '
ok 'its commands run' until_true 30 runs b share 2
kill -KILL $b
ok 'a member is killed: its minders end its commands' until_true 30 runs b share 0
ok 'and its lanes pass to the other one' until_true 30 owns share 'a=4 '
ok 'whose commands run' until_true 30 runs a share 4
is 'again no lane had two commands' "$(overlap share)" ''
member b share 4
b=$member
ok 'it comes back again' until_true 30 owns share 'a=2 b=2 '
ok 'its commands run again' until_true 30 runs b share 2
kill -STOP $b
ok 'a member is stopped: its lanes pass to the other one' until_true 30 owns share 'a=4 '
ok 'its commands were ended by their minders' until_true 30 runs b share 0
kill -CONT $b
ok 'it is continued: it joins again by itself' until_true 30 owns share 'a=2 b=2 '
ok 'and its commands, too' until_true 30 runs b share 2
is 'still no lane had two commands' "$(overlap share)" ''
kill -TERM $a $b
wait $a $b
is 'both end' "$("$DIBS" ls lane/share)" ''

# ---- Another number of lanes ----
if [ "$records" ]; then
  member a size 2
  a=$member
  ok 'two lanes' until_true 30 owns size 'a=2 '
  before=$(fence_of size 1)
  exits 0 'resize waits until the member has ended' timeout 60 "$DIBS" lane resize size --lanes 5
  wait $a
  is 'the member ends with 115' $? 115
  like 'and says why' "$(cat "$dir/a.err")" 'the topic "size" has 5 lanes by now'
  is 'nobody owns the new lanes yet' "$(unowned size)" 5
  exits 125 'the old number is refused' timeout 30 "$DIBS" lane run size --lanes 2 -- true
  member a size 5
  ok 'the new number' until_true 30 owns size 'a=5 '
  ok 'fences are larger than before' test "$(fence_of size 0)" -gt "$before"
  kill -TERM $member
  wait $member
else
  exits 125 'without records the number cannot be changed' "$DIBS" lane resize size --lanes 5
fi

# ---- No descriptor is left for a lane ----
member a few 2
a=$member
ok 'a member owns the lanes' until_true 30 owns few 'a=2 '
kill -STOP $a
member b few 2
b=$member
two_members() { "$DIBS" lane ls few --json | grep -q '"members":2'; }
ok 'another one waits for them' until_true 30 two_members
limit() { prlimit --pid $b --nofile="$1":1024; }
ok 'it may open nothing more' limit 8
without() { [ "$(grep -c 'no thread or descriptor is left' "$dir/b.err")" = 2 ]; }
ok 'it gets them, and says that it cannot work on them' until_true 60 without
before="$(fence_of few 0) $(fence_of few 1)"
sleep 2 # some looks: a member that gave them back would get them again under other fences
is 'it keeps them' "$(fence_of few 0) $(fence_of few 1)" "$before"
ok 'and says so once for each' without
ok 'descriptors are there again' limit 1024
ok 'it works on them' until_true 60 runs b few 2
is 'under the same fences' "$(fence_of few 0) $(fence_of few 1)" "$before"
kill -CONT $a
kill -TERM $a $b
wait $a $b

# ---- A record that a lane guards ----
if [ "$records" ]; then
  member a guard 1 "cp /proc/\$\$/environ $dir/environ; echo \$DIBS_FENCE | $DIBS record put row >/dev/null; echo \$? >$dir/put; sleep 60"
  ok 'a command writes under its lane' until_true 30 filled "$dir/put"
  is 'it may' "$(cat "$dir/put")" 0
  kill -KILL $member
  rm "$dir/put"
  mapfile -d '' old < <(grep -z '^DIBS_' "$dir/environ")
  member a guard 1 "echo new | $DIBS record put row; echo \$? >$dir/put; sleep 60"
  ok 'the next owner writes' until_true 30 filled "$dir/put"
  exits 118 'a late write of the first owner is stale' env "${old[@]}" sh -c "echo late | $DIBS record put row"
  kill -TERM $member
  wait $member
fi
done_testing
