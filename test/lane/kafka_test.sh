#!/bin/bash
# SPDX-License-Identifier: MIT
# dibs lane kafka, with a real broker: members of a consumer group join, leave, are stopped past their session, and killed,
# and the broker restarts.
#   kafka_test.sh BROKER    that this test may kill (with_server --private DIBS_TEST_KAFKA); needs kcat.
#                           DIBS_TEST_KAFKA_SECONDS: how long the storm lasts (6)
. "$(dirname "$0")/../e2e/tap.sh"
broker=${1:?the address of a broker}
seconds=${DIBS_TEST_KAFKA_SECONDS:-6}
servers() { "$DIBS_TEST_SERVERS_SCRIPT" "$@" --dir "$DIBS_TEST_SERVERS_DIR" kafka; }
settings=(--setting session.timeout.ms=3000 --setting heartbeat.interval.ms=500)
# member NAME TOPIC COMMAND [OPTION...]: in the background; $member is its pid.
member() {
  local times=("${@:4}")
  [ $# -gt 3 ] || times=(--ttl 2s)
  "$DIBS" lane kafka "$2" --brokers "$broker" --group g "${settings[@]}" --jobs 8 --owner "$1" "${times[@]}" --verbose --exec "$3" \
    >>"$dir/$1.out" 2>>"$dir/$1.err" </dev/null &
  member=$!
  later $member
}
# send TOPIC FIRST LAST: messages K:N, where the key K is N modulo 20
send() { seq "$2" "$3" | awk '{ print $1 % 20 ":" $1 }' | kcat -q -P -b "$broker" -t "$1" -K : -X partitioner=murmur2; }
# The messages of the topic that are stored as done, over all partitions.
stored() { local sum=0 n; for n in 0 1 2 3; do n=$("$DIBS" record get "kafka:g/$1#$n" 2>/dev/null); sum=$((sum + ${n:-0})); done; echo $sum; }
stored_is() { [ "$(stored "$1")" = "$2" ]; }
owned_by() { [ "$("$DIBS" ls "kafka/g/$2#" --json | grep -o '"owner":"'"$1"'"' | wc -l)" = "$3" ]; }

# ---- Wrong calls ----
exits 125 'no brokers' "$DIBS" lane kafka t --group g -- true
exits 125 'no group' "$DIBS" lane kafka t --brokers "$broker" -- true
exits 125 'no command' "$DIBS" lane kafka t --brokers "$broker" --group g
exits 125 'a setting that librdkafka does not have' timeout 30 "$DIBS" lane kafka t --brokers "$broker" --group g --setting no.such=1 -- true
like 'it says so' "$err" 'no.such'

# ---- One member ----
send one 1 40
member a one "echo \$DIBS_LANE \$DIBS_OFFSET \$DIBS_FENCE \$DIBS_KEY \$(cat) >>$dir/one"
ok 'every message is done' until_true 60 stored_is one 40
is 'once' "$(wc -l <"$dir/one")" 40
is 'with its key, and its payload' "$(awk '$5 % 20 != $4' "$dir/one")" ''
is 'in the order of its partition' "$(awk '($1 in last) && $2 != last[$1] + 1 { print } { last[$1] = $2 }' "$dir/one")" ''
kill -TERM $member
wait $member
is 'TERM: it ends with 0' $? 0
is 'and holds no partition' "$("$DIBS" ls kafka/)" ''
send one 41 60
member a one "echo \$DIBS_LANE \$DIBS_OFFSET \$DIBS_FENCE \$DIBS_KEY \$(cat) >>$dir/one"
ok 'it begins where it ended' until_true 60 stored_is one 60
is 'and does nothing twice' "$(wc -l <"$dir/one")" 60
kill -TERM $member
wait $member

# ---- A command that fails ----
send fails 1 1
member a fails "[ -e $dir/works ] || exit 3; cat >>$dir/fails"
ok 'a command that fails is run again for its message' until_true 60 grep -q 'exited with 3; it is run again' "$dir/a.err"
is 'no offset is stored' "$(stored fails)" 0
touch "$dir/works"
ok 'until it has done it' until_true 60 stored_is fails 1
kill -TERM $member
wait $member

# ---- TERM in the middle of a message, which the command completes ----
send finishes 1 1
member a finishes "trap 'touch $dir/told' TERM; touch $dir/begun; while [ ! -e $dir/finish ]; do sleep 0.05; done; echo \$DIBS_OFFSET >>$dir/finishes" \
  --ttl 120s --grace 40s
ok 'a member works on a message' until_true 60 test -e "$dir/begun"
kill -TERM $member
ok 'its command gets TERM' until_true 60 test -e "$dir/told"
touch "$dir/finish"
wait $member
is 'the member ends with 0' $? 0
is 'the command ended with 0: its offset is stored' "$(stored finishes)" 1
send finishes 21 21
member a finishes "echo \$DIBS_OFFSET >>$dir/finishes"
ok 'the next member goes on' until_true 60 stored_is finishes 2
is 'and does nothing twice' "$(cat "$dir/finishes")" $'0\n1'
kill -TERM $member
wait $member
# Without an orderly end it is not done.
rm "$dir/finish" "$dir/told"
send unfinished 1 1
member a unfinished "trap 'touch $dir/told; exit 7' TERM; echo begin >>$dir/unfinished; while :; do sleep 0.05; done" \
  --ttl 120s --grace 40s
ok 'a member works on a message' until_true 60 filled "$dir/unfinished"
kill -TERM $member
wait $member
ok 'its command got TERM, and ended with another status' test -e "$dir/told"
is 'no offset is stored' "$(stored unfinished)" 0

# ---- The record of the offset is sealed under a lease of another name, whose fences are larger ----
for _ in $(seq 60); do "$DIBS" run lag -- true; done
send sealed 1 1
member s sealed "echo begin >>$dir/runs; [ -e $dir/sealed ] || { $DIBS run lag -- $DIBS record get kafka:g/sealed#\$DIBS_LANE && touch $dir/sealed; }"
ok 'the offset is refused' until_true 60 grep -q 'offset 1 is not stored' "$dir/s.err"
ok 'the member says why the record cannot be read' until_true 60 grep -q 'getting record.*has seen fence.*dibs tier bump' "$dir/s.err"
lane=$(sed -n 's/.*partition \([0-9]*\): getting record.*/\1/p' "$dir/s.err" | head -n 1)
# The fence grows by one with each grant.
fence() { "$DIBS" ls "kafka/g/sealed#$lane" --json | grep -o '"fence":[0-9]*' | cut -d : -f 2; }
held() { began=$(now_ms) && first=$(fence) && [ "$first" ]; }
ok 'its partition has a lease' until_true 60 held
tried_again() { last=$(fence) && [ "${last:-0}" -ge $((first + 2)) ]; }
ok 'it tries again' until_true 60 tried_again
most=$((($(now_ms) - began) / 1000 + 1))
ok "with a pause: $((last - first)) times, $most at most" test $((last - first)) -le "$most"
is 'it says so once' "$(grep -c 'getting record' "$dir/s.err")" 1
is 'and does not run the command meanwhile' "$(wc -l <"$dir/runs")" 1
exits 0 'larger fences' "$DIBS" tier bump
ok 'let it go on' until_true 60 stored_is sealed 1
is 'the message is done again' "$(wc -l <"$dir/runs")" 2
kill -TERM $member
wait $member

# ---- A zombie: stopped with all its processes past its session and its ttl, in the middle of a message ----
send zombie 1 1
member a zombie "echo begin a >>$dir/zombie; while [ ! -e $dir/go ]; do sleep 0.05; done; echo \$DIBS_KEY by a | $DIBS record put late; echo \$? >>$dir/late"
a=$member
ok 'a member works on a message' until_true 60 filled "$dir/zombie"
tree() { local child; echo "$1"; for child in $(cat /proc/"$1"/task/*/children 2>/dev/null); do tree "$child"; done; }
zombies=$(tree $a)
# shellcheck disable=SC2086
kill -STOP $zombies
member b zombie "echo begin b >>$dir/zombie; echo \$DIBS_KEY by b | $DIBS record put late"
b=$member
ok 'the next member does it' until_true 60 stored_is zombie 1
touch "$dir/go"
for pid in $zombies; do kill -CONT "$pid" 2>/dev/null; done
ok 'the first one learns that it lost' until_true 60 grep -q 'the lease was lost\|is not stored' "$dir/a.err"
is 'what the second one wrote stays' "$("$DIBS" record get late)" '1 by b'
is 'the offset, too' "$(stored zombie)" 1
kill -TERM $a $b
wait $a $b

# ---- A zombie whose command has ended: only the fence refuses its offset ----
rm "$dir/go"
printf '1:1\n1:2\n1:3\n' | kcat -q -P -b "$broker" -t fence -K :
member a fence "echo begin >>$dir/fence; while [ ! -e $dir/go ]; do sleep 0.05; done; touch $dir/ended"
a=$member
ok 'a member works on a message' until_true 60 filled "$dir/fence"
kill -STOP $a
touch "$dir/go"
ok 'its command ends while dibs is stopped' until_true 60 test -e "$dir/ended"
member b fence true
b=$member
ok 'the next member does this message, and the others' until_true 60 stored_is fence 3
kill -CONT $a
ok 'the offset of the first one is refused' until_true 60 grep -q 'offset 1 is not stored' "$dir/a.err"
is 'the later offset stays' "$(stored fence)" 3
kill -TERM $a $b
wait $a $b

# ---- An outbox ----
to=kafka://$broker/outbox
exits 125 'no topic' "$DIBS" relay out --to "kafka://$broker"
exits 125 'headers are for HTTP' "$DIBS" relay out --to "$to" --header 'A: b'
exits 125 'settings are for Kafka' "$DIBS" relay out --stdout --setting a=b
exits 125 'a setting that a producer does not have' "$DIBS" relay out --to "$to" --setting no.such=1
read_topic() { kcat -q -C -e -b "$broker" -t outbox -f '%k %s %h\n'; }
add() { local i; for i in $(seq "$1" "$2"); do "$DIBS" task add out "$i" --key "k$((i % 5))" >/dev/null; done; }
counts() { "$DIBS" task counts out --json | grep -o '"'"$1"'":[0-9]*' | cut -d : -f 2; }
add 1 40
exits 0 'the messages of an outbox go to a topic' timeout 60 "$DIBS" relay out --to "$to" --once
is 'each once' "$(read_topic | awk '{ print $2 }' | sort -n)" "$(seq 1 40)"
is 'with the key of the task' "$(read_topic | awk '$1 != "k" $2 % 5')" ''
is 'in the order of their keys' "$(read_topic | awk '$2 <= last[$1] { print } { last[$1] = $2 }')" ''
like 'with headers' "$(read_topic | head -n 1)" 'Idempotency-Key=out-[0-9]+-[0-9]+,Dibs-Kind=out,Dibs-Task=[0-9]+,Dibs-Fence=[1-9]'
head -c 1048576 /dev/zero | tr '\0' x >"$dir/large"
"$DIBS" task add large "@$dir/large" >/dev/null
exits 0 'a message that Kafka never takes' timeout 60 "$DIBS" relay large --to "$to" --once
is 'is dead at once' "$("$DIBS" task ls --kind large --json | grep -o '"state":"[a-z]*"')" '"state":"dead"'
ok 'the broker is killed' servers kill
add 41 60
"$DIBS" relay out --to "$to" --timeout 2s 2>"$dir/relay.err" &
relay=$!
later $relay
failed_once() { [ "$(counts failed)" -gt 0 ] || "$DIBS" task ls --kind out --json | grep -q '"failures":[1-9]'; }
ok 'the broker is down: tries fail' until_true 60 failed_once
ok 'the broker starts again' servers start
all_done() { [ "$(counts done)" = 60 ]; }
ok 'all messages are delivered' until_true 120 all_done
is 'every one of them' "$(read_topic | awk '{ print $2 }' | sort -nu)" "$(seq 1 60)"
is 'the first time in the order of their keys' "$(read_topic | awk '!($2 in seen) { seen[$2]; if ($2 <= last[$1]) print; last[$1] = $2 }')" ''
kill -TERM $relay
wait $relay
is 'TERM: the relay ends with 0' $? 0

# ---- A storm ----
# The effect of a message is a line in a file for its key, which has no fence: it happens at least once, and a second time
# only after a member was killed or stopped in the middle.  The record of the key has a fence: it counts once.
command="k=\$DIBS_KEY; n=\$(cat); last=\$($DIBS record get storm-\$k 2>/dev/null || echo 0)
[ \"\${last:-0}\" -ge \"\$n\" ] || echo \$n | $DIBS record put storm-\$k >/dev/null || exit 1
echo \$DIBS_LANE \$DIBS_OFFSET \$DIBS_FENCE \$k \$n >>$dir/storm"
disturbed=0 sent=0 members=()
for name in m1 m2 m3; do member $name storm "$command"; members+=("$member"); done
by=$(($(now_ms) + seconds * 1000))
while [ "$(now_ms)" -lt "$by" ]; do
  send storm $((sent + 1)) $((sent + 40))
  sent=$((sent + 40)) i=$((RANDOM % 3))
  case $((RANDOM % 3)) in
    0) kill -KILL "${members[i]}"; member "m$((i + 1))" storm "$command"; members[i]=$member; disturbed=$((disturbed + 4)) ;;
    1) kill -STOP "${members[i]}"; sleep 3.5; kill -CONT "${members[i]}"; disturbed=$((disturbed + 4)) ;;
    2) kill -TERM "${members[i]}"; wait "${members[i]}"; member "m$((i + 1))" storm "$command"; members[i]=$member ;;
  esac
done
ok 'the broker restarts' servers restart
send storm $((sent + 1)) $((sent + 20))
sent=$((sent + 20))
ok "all of $sent messages are done" until_true 120 stored_is storm $sent
kill -TERM "${members[@]}"
wait "${members[@]}"
is 'every message was done' "$(awk '{ print $5 }' "$dir/storm" | sort -n | uniq | wc -l)" $sent
twice=$(($(wc -l <"$dir/storm") - sent))
ok "few were done twice ($twice), by members that were disturbed" test "$twice" -le "$disturbed"
is 'of each key the last record is the last message' "$(for k in $(seq 0 19); do "$DIBS" record get "storm-$k"; done | sort -n | tail -n 1)" $sent
is 'the first time in the order of the partition' "$(awk '!(($1, $2) in seen) { seen[$1, $2]; if ($1 in last && $2 != last[$1] + 1) print; last[$1] = $2 }' "$dir/storm")" ''
done_testing
