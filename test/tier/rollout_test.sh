#!/bin/bash
# SPDX-License-Identifier: MIT
# A roll-out under load, pod by pod: from one database to Redis as the first tier, at 0, 10 and 100 percent, and back.
# No client is refused, no lease is lost, no two hold one name at once, and fences grow, as each process believes.
#   rollout_test.sh DATABASE WORKER     doc/tiers.md has the runbook with the same commands
#   script/servers env sets DIBS_TEST_REDIS; DIBS_ROLLOUT_SECONDS: the length of each phase
. "$(dirname "$0")/../e2e/tap.sh"
: "${DIBS_TEST_REDIS:?is a Redis}"

alone=$1 worker=$2
case $alone in *\?*) join='&' ;; *) join='?' ;; esac
# Long limits: a machine that is busy with other tests must not look like an unreachable Redis.
tiers="$DIBS_TEST_REDIS?prefix=rollout$$,$alone${join}tiers.timeout=5000&tiers.slow_ms=5000"
seconds=${DIBS_ROLLOUT_SECONDS:-3}
log=$dir/log
PODS=4
pods=() loop=''

start_pod() { # start_pod N URI
  "$worker" pod "$2" "$log" "$RANDOM" 2>>"$dir/pods" &
  pods[$1]=$!
  later $!
}
restart_pods() { # restart_pods URI: one by one
  for ((n = 0; n < PODS; n++)); do
    kill "${pods[n]}"
    wait "${pods[n]}" || echo "trouble: pod $n ended with $?" >>"$log"
    start_pod $n "$1"
    sleep 0.3
  done
}
# A pod whose jobs use dibs run: a file names the store of the next job.
run_pod() {
  local code
  while [ ! -e "$dir/end" ]; do
    DIBS_STORE=$(cat "$dir/store") "$DIBS" run "job-$((RANDOM % 24))" --ttl 6s --wait 60s -- \
      "$worker" hold "$log" @ 100 2>>"$dir/pods"
    code=$?
    [ $code = 0 ] || echo "trouble: dibs run ended with $code" >>"$log"
  done
}
use() { # use URI: what jobs that begin from now on use
  echo "$1" >"$dir/store.new"
  mv "$dir/store.new" "$dir/store"
}
dibs() { DIBS_STORE=$tiers "$DIBS" "$@"; }
serves() { # serves N M: so many buckets on each, and no move is under way
  local got
  got=$(dibs tier status --json | tr -d '\n')
  [ "$(grep -o '"\(buckets\|buckets_leaving\)":[0-9]*' <<<"$got" | tr -dc '0-9\n' | paste -sd' ')" = "$1 0 $2 0" ]
}
placed() { # placed N M: so many buckets on each
  [ "$(dibs tier status --json | grep -o '"buckets":[0-9]*' | tr -dc '0-9\n' | paste -sd' ')" = "$1 $2" ]
}
all_well() { # all_well WHAT
  is "$1: no client was refused, no lease was lost" "$(grep '^trouble' "$log" | head -n 5)" ''
}

# ---- One database ----
use "$alone"
for ((n = 0; n < PODS; n++)); do start_pod $n "$alone"; done
run_pod &
loop=$!
later $loop
# A lease that is held during all moves.
DIBS_STORE=$alone "$DIBS" run leader --ttl 6s -- "$worker" hold "$log" leader "$dir/leader.ends" 2>>"$dir/pods" &
leader=$!
later $leader
ok 'a leader is held' until_true 20 eval 'DIBS_STORE=$alone holds leader'
ok 'clients use the database alone' until_true 10 eval '[ $(wc -l <"$log") -gt 20 ]'
all_well 'alone'

# ---- Reading it as tiers changes nothing ----
for words in ls 'show leader' stats doctor 'tier status' 'flag ls' 'flag get redis.enabled'; do
  # shellcheck disable=SC2086  # words are meant
  exits 0 "$words" dibs $words
done
like 'the held lease is listed' "$(dibs ls leader)" leader
sleep "$seconds"
all_well 'after looking'

# ---- Tiers, without moves ----
exits 0 'nothing moves' dibs flag set redis.enabled off
ok 'the database serves all buckets' placed 0 100
use "$tiers"
restart_pods "$tiers"
sleep "$seconds"
ok 'it still serves them' placed 0 100
all_well 'at 0 percent'

# ---- On Redis ----
exits 0 'a tenth on Redis' dibs flag set redis.enabled --percent 10
ok 'is on Redis' until_true 15 placed 10 90
sleep "$seconds"
all_well 'at 10 percent'
exits 0 'all on Redis' dibs flag set redis.enabled on
ok 'all buckets are on Redis, except that of the held lease' until_true 15 placed 100 0
DIBS_STORE=$alone exits 123 'then a client that opens the database alone is refused' "$DIBS" run job-1 --try -- true
like 'and the message names the serving tier' "$err" 'redis serves this name'
exits 120 'the lease on the database is still held' dibs run leader --try -- true
sleep "$seconds"
all_well 'at 100 percent'
touch "$dir/leader.ends"
wait $leader
is 'the leader ended with status 0' $? 0
ok 'after its end all buckets are on Redis' until_true 20 serves 100 0

# ---- And back ----
exits 0 'back' dibs flag set redis.enabled off
ok 'the database serves all buckets again' until_true 30 serves 0 100
use "$alone"
restart_pods "$alone"
sleep "$seconds"
for pid in "${pods[@]}"; do kill "$pid"; done
wait "${pods[@]}"
touch "$dir/end"
wait $loop
all_well 'alone again'
"$worker" check "$log" >"$dir/checked"
is 'no two held at once, and fences grew' $? 0
say "$(cat "$dir/checked")"

# ---- To Redis and back: how many of the 2,097,151 epochs that uses ----
epoch() { DIBS_STORE=$alone "$DIBS" run job-1 --wait 30s -- sh -c 'echo $((DIBS_FENCE >> 32))'; }
dibs run stays -- sh -c 'until [ -e "$0" ]; do sleep 0.1; done' "$dir/stays.ends" &
stays=$! # a client of the tiers, which ends moves
later $stays
before=$(epoch)
for cycle in 1 2 3; do
  exits 0 "on Redis, $cycle" dibs flag set redis.enabled on
  exits 0 "a lease on Redis, $cycle" dibs run job-1 --wait 30s -- true
  exits 0 "and back, $cycle" dibs flag set redis.enabled off
  ok "the database alone grants it again, $cycle" until_true 30 eval 'DIBS_STORE=$alone "$DIBS" run job-1 --try -- true'
done
used=$(($(epoch) - before))
touch "$dir/stays.ends"
wait $stays
ok "three moves to Redis and back used $used epochs" test "$used" -gt 0 -a "$used" -le 40
[ -s "$dir/pods" ] && say "$(head -n 5 "$dir/pods")"
done_testing
