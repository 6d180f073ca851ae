# SPDX-License-Identifier: MIT
# A client that keeps running while its anchor is restored to an older state; source it after tap.sh and fences.sh.
#   POD: test/tier/rollout_worker; first_tier: the name of the first of two tiers
first_tier=sqlite

pod_log() { [ "$(grep -c '^held' "$dir/pod.log" 2>/dev/null)" -ge "$1" ]; }
pod_starts() {
  rm -f "$dir/pod.log"
  "$POD" pod "$DIBS_STORE" "$dir/pod.log" "$RANDOM" 2>>"$dir/pod.err" &
  pod=$!
  later "$pod"
  ok "$scene: a client takes leases" until_true 30 pod_log 3
}
pod_ends() {
  kill "$pod"
  wait "$pod"
  is "$scene: the client ended with status 0" $? 0
}
# A client reads the record when it reports: checks that the newest other client has reported since now_ms SINCE.
pod_has_read() { # pod_has_read SINCE
  local age at
  at=$(now_ms)
  age=$("$DIBS" tier status --json | grep -o "\"owner\":\"[^\"]*:$pod\"[^}]*\"age_ms\":[0-9]*" | grep -o '[0-9]*$')
  [ -n "$age" ] && [ $((at - age)) -gt "$1" ]
}
rules() {
  "$DIBS" flag ls
  "$DIBS" tier strictness
  "$DIBS" tier status --json | grep -o '"breaker_mode":"[a-z]*"\|"pinned":[^,]*' | paste -sd' '
}
rules_are() { [ "$(rules)" = "$1" ]; }

# A client that is stopped within a transaction keeps its locks, and everybody waits for it. A scene over files defines
# no_locks: no process has a lock on them.
no_locks() { true; }
stops_between_transactions() {
  kill -STOP "$pod"
  no_locks || { kill -CONT "$pod" && return 1; }
}
saw_it() { "$DIBS" tier status --json | grep -o '"counts":{[^}]*"anchor_rollbacks":[1-9]'; }

# Sets rules that the restored anchor does not have. living FIRST BACKUP RESTORE; FIRST: the client that acts first
# afterwards.
living() {
  local wanted since
  pod_starts
  ok "$scene: backup" "$2"
  exits 0 "$scene: 30 percent" "$DIBS" flag set "$first_tier.enabled" --percent 30
  exits 0 "$scene: no breaker" "$DIBS" flag set circuit-breaker.enabled off
  exits 0 "$scene: as if the first tier were down" "$DIBS" tier open "$first_tier"
  exits 0 "$scene: strict" "$DIBS" tier strictness strict
  since=$(now_ms)
  ok "$scene: the client has read them" until_true 10 pod_has_read "$since"
  wanted=$(rules)
  [ "$1" = client ] || ok "$scene: the client is stopped" until_true 20 stops_between_transactions
  ok "$scene: restore" "$3"
  if [ "$1" != client ]; then
    ok "$scene: the restored anchor knows none of them" eval '! rules_are "$wanted"'
    draw "$scene, by another client"
    kill -CONT "$pod"
  fi
  ok "$scene: all rules are back" until_true 20 rules_are "$wanted"
  [ "$(rules)" = "$wanted" ] || say "got: $(rules)" "wanted: $wanted"
  ok "$scene: status tells" until_true 10 went_back
  ok "$scene: the client counts it" until_true 10 saw_it
  exits 0 "$scene: confirmed" "$DIBS" tier bump
  ok "$scene: and tells no more" eval '! went_back'
  exits 0 "$scene: another rule" "$DIBS" flag set "$first_tier.enabled" --percent 40
  wanted=$(rules)
  since=$(now_ms)
  ok "$scene: the client has read the record" until_true 10 pod_has_read "$since"
  ok "$scene: it stays" rules_are "$wanted"
  draw "$scene, at the end"
  pod_ends
}

# A person sets a flag on the restored anchor before the client returns: no client overrides that. settles BACKUP
# RESTORE
settles() {
  local wanted since
  pod_starts
  ok "$scene: backup" "$1"
  exits 0 "$scene: 30 percent" "$DIBS" flag set "$first_tier.enabled" --percent 30
  since=$(now_ms)
  ok "$scene: the client has read the record" until_true 10 pod_has_read "$since"
  ok "$scene: the client is stopped" until_true 20 stops_between_transactions
  ok "$scene: restore" "$2"
  exits 0 "$scene: a person sets a flag" "$DIBS" flag set "$first_tier.enabled" --percent 70
  wanted=$(rules)
  kill -CONT "$pod"
  ok "$scene: the client counts it" until_true 10 saw_it
  since=$(now_ms)
  ok "$scene: and has read the record again" until_true 10 pod_has_read "$since"
  is "$scene: the flag is the person's" "$(rules)" "$wanted"
  pod_ends
}
