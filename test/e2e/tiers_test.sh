#!/bin/bash
# SPDX-License-Identifier: MIT
# A store of several tiers: dibs flag, tier, stats.  Two files are the tiers, so that every call sees the same ones.
. "$(dirname "$0")/tap.sh"

lone=sqlite://$dir/lone.db
export DIBS_STORE=sqlite://$dir/first.db,sqlite://$dir/anchor.db
fence() { "$DIBS" run "$1" -- sh -c 'echo $DIBS_FENCE'; }
json() { "$DIBS" "$@" --json | tr -d '\n'; }
serves() { # serves N M: so many buckets on each
  [ "$(json tier status | grep -o '"buckets":[0-9]*' | tr -dc '0-9\n' | paste -sd' ')" = "$1 $2" ]
}

# ---- Looking ----
exits 0 'status before anything was leased' "$DIBS" tier status
exits 0 'a lease over two tiers' "$DIBS" run job -- true
for alone in first anchor; do # Also the one that serves nothing: its users of before would not see the other's leases.
  exits 123 "the $alone alone grants nothing from then on" "$DIBS" run other --try --store "sqlite://$dir/$alone.db" -- true
  like "the $alone alone: said" "$err" "served under an anchor's mandates"
done
exits 0 'doctor' "$DIBS" doctor
like 'doctor: each member' "$out" "^fine +member +sqlite://$dir/anchor.db, opened"
like 'doctor: each tier' "$out" '^fine +tier +sqlite-2 is up, the anchor, serves 0 of 100'
exits 116 'doctor: a member that is wrong' "$DIBS" doctor --store "sqlite://$dir/no/such.db,sqlite://$dir/anchor.db?tiers.wait=300"
like 'doctor: which one is said' "$out" "^TROUBLE +member .*$dir/no"
like 'doctor: and that the other is not' "$out" "^fine +member +sqlite://$dir/anchor.db, opened"
exits 0 'status' "$DIBS" tier status
like 'status: in words' "$out" '^sqlite serves 100 of 100 buckets'
like 'status: the first tier' "$out" '^sqlite +up +100 +100%'
like 'status: the anchor' "$out" '^sqlite-2 +up, anchor +0 '
ok 'status --json is JSON' "$JSON_CHECK" <<<"$(json tier status)"
like 'status --json: tiers and clients' "$(json tier status)" \
  '"strictness":"fenced","pinned":null,.*"name":"sqlite",.*"anchor":true,.*"clients":\[\{"owner":'
before=$(fence job)

# ---- Flags ----
exits 0 'flag ls' "$DIBS" flag ls
is 'flag ls: all of them' "$(sed 's/ .*//' <<<"$out" | paste -sd' ')" \
  'FLAG sqlite.enabled circuit-breaker.enabled sqlite-2-fallback.enabled least-strict.enabled'
ok 'flag ls --json is JSON' "$JSON_CHECK" <<<"$(json flag ls)"
for words in '10%:10' '10:10' 'off:0' 'on:100' '--percent=25:25' 'on --percent 30:30'; do
  # shellcheck disable=SC2086  # words are meant
  exits 0 "flag set ${words%:*}" "$DIBS" flag set sqlite.enabled ${words%:*}
  is "flag set ${words%:*}: it is" "$("$DIBS" flag get sqlite.enabled)" "${words#*:}"
done
is 'flag get --json' "$(json flag get sqlite.enabled)" '{"name":"sqlite.enabled","percent":30}'
exits 0 'rolled out to ten of a hundred' "$DIBS" flag set sqlite.enabled --percent 10
ok 'rolled out: they are there, the others at the anchor' until_true 5 serves 10 90
exits 0 'the alias of the fallback' "$DIBS" flag set fallback.enabled off
is 'is the same flag' "$("$DIBS" flag get sqlite-2-fallback.enabled)" 0
"$DIBS" flag set fallback.enabled on
"$DIBS" flag set sqlite.enabled on
ok 'and back' until_true 5 serves 100 0
after=$(fence job)
ok 'fences only grow through all of it' test "$after" -gt "$before"

# ---- Moves by hand ----
exits 0 'move' "$DIBS" tier move sqlite-2
ok 'everything is there' until_true 5 serves 0 100
like 'and said to be by hand' "$("$DIBS" tier status)" '^Everything was moved to sqlite-2 by hand'
like 'pinned, as JSON' "$(json tier status)" '"pinned":"sqlite-2"'
moved=$(fence job)
ok 'its fence is larger' test "$moved" -gt "$after"
exits 0 'move back to where it should be' "$DIBS" tier move auto
ok 'it is' until_true 5 serves 100 0
exits 0 'open by hand' "$DIBS" tier open sqlite
ok 'is left' until_true 5 serves 0 100
like 'and said' "$("$DIBS" tier status)" '^sqlite is switched off by hand; dibs tier auto sqlite'
exits 0 'by its number' "$DIBS" tier close 0
ok 'comes back' until_true 5 serves 100 0
like 'close is said' "$("$DIBS" tier status)" '^sqlite +on by hand'
exits 0 'the hand off' "$DIBS" tier auto sqlite
back=$(fence job)
ok 'fences grow back on the first' test "$back" -gt "$moved"

# ---- A holder whose names move ----
"$DIBS" run held --ttl 3s -- sleep 60 2>"$dir/held" &
holder=$!
later $holder
until_true 5 holds held
"$DIBS" tier move sqlite-2
ok 'another client gets it at once: fenced' "$DIBS" run held --wait 3s -- true
wait $holder
is 'the holder is told that it lost it' "$?" 122
"$DIBS" tier move auto
ok 'all back' until_true 5 serves 100 0

# ---- Strictness ----
is 'strictness' "$("$DIBS" tier strictness)" fenced
for word in least-strict strict fenced; do
  exits 0 "strictness $word" "$DIBS" tier strictness $word
  is "it is $word" "$("$DIBS" tier strictness)" $word
  is "$word: the flag" "$("$DIBS" flag get least-strict.enabled)" "$([ $word = least-strict ] && echo 100 || echo 0)"
done
is 'strictness --json' "$(json tier strictness)" '{"strictness":"fenced"}'

# ---- Bump ----
now=$(fence job)
exits 0 'bump' "$DIBS" tier bump
bumped=$(fence job)
ok 'bump: larger' test "$bumped" -gt "$now"
far=$((bumped + 5000 * 4294967296))
exits 0 'bump above a fence that was seen' "$DIBS" tier bump "$far"
ok 'bump: above it' test "$(fence job)" -gt "$far"

# ---- Stats ----
ok 'what the holder had has ended' until_true 5 free held
exits 0 'stats' "$DIBS" stats
like 'stats: what clients counted' "$out" '^acquired +[0-9]+$'
like 'stats: what a lease costs' "$out" '^acquire +[0-9.]+ ms, p99 [0-9.]+ ms, at most [0-9.]+ ms of 20$'
like 'stats: and its release' "$out" '^release +[0-9.]+ ms'
ok 'stats --json is JSON' "$JSON_CHECK" <<<"$(json stats)"
like 'stats --json' "$(json stats)" '"counts":\{"acquired":[0-9]+.*"lease":\{"acquire":\{"count":20,"p50_ns":[1-9]'
is 'stats leaves nothing behind' "$("$DIBS" ls)" ''
exits 0 'stats of one store alone' "$DIBS" stats --store "$lone"
like 'stats of one store: a lease' "$out" '^acquire +'
ok 'stats of one store is JSON too' "$JSON_CHECK" <<<"$(json stats --store "$lone")"

# ---- A first tier that forgets all between two processes: the memory of each ----
forgets="memory:x,sqlite://$dir/memory-anchor.db"
grows=yes last=0
for _ in 1 2 3 4; do
  got=$("$DIBS" run job --store "$forgets" -- sh -c 'echo $DIBS_FENCE')
  [ "${got:-0}" -gt "$last" ] || grows=no
  last=${got:-0}
done
is 'fences grow though the tier forgets' "$grows" yes
like 'flags are named by the tiers' "$("$DIBS" flag ls --store "$forgets")" '^memory.enabled +on'

# ---- One store alone ----
for words in 'flag ls' 'flag get redis.enabled' 'flag set redis.enabled on' 'tier status' 'tier move redis' 'tier open redis' \
  'tier bump' 'tier strictness' 'tier strictness strict'; do
  # shellcheck disable=SC2086  # words are meant
  exits 125 "$words of one store" "$DIBS" $words --store "$lone"
  like "$words of one store: what to do" "$err" '^dibs: .*is one store, not several tiers; .*comma'
done

# ---- A tier that is opened by itself is refused, until the tiers are no more ----
exits 123 'a tier by itself' "$DIBS" run job --store "sqlite://$dir/first.db" -- true
like 'a tier by itself: why, and what to do' "$err" 'with all its tiers'
"$DIBS" run busy -- sleep 60 &
other=$!
later $other
ok 'it is seen' until_true 5 eval '"$DIBS" tier status | grep -q "clients 2"'
exits 120 'alone while others use the tiers' "$DIBS" tier alone
like 'alone: who' "$err" '^dibs: [0-9]+ other clients? used the tiers'
exits 120 'alone, of one that is opened by itself' "$DIBS" tier alone --store "sqlite://$dir/first.db"
kill $other
wait $other 2>/dev/null
last=$(fence job)
exits 0 'alone --force' "$DIBS" tier alone --force
for part in first anchor; do
  exits 0 "$part is a store of its own" "$DIBS" run job --store "sqlite://$dir/$part.db" -- sh -c 'echo $DIBS_FENCE'
  [ $part = first ] && ok 'and its fences still grow' test "$out" -gt "$last"
done
exits 123 'tiers again: their fences are far above what a new anchor knows' "$DIBS" run job --wait 1s -- true
like 'and what to do' "$err" 'dibs tier bump$'
exits 0 'bump' "$DIBS" tier bump
exits 0 'they are tiers again' "$DIBS" run job -- sh -c 'echo $DIBS_FENCE'
ok 'above all that was' test "$out" -gt "$last"

# ---- Wrong words ----
for words in 'flag' 'flag list' 'flag ls x' 'flag get' 'flag get a b' 'flag set a' 'flag set a maybe' 'flag set a 101' \
  'flag set a off --percent 3' 'flag set a --percent 101' 'flag get a --percent 3' 'flag set nope on' \
  'flag set circuit-breaker.enabled 50' 'flag set sqlite-2.enabled off' 'tier' 'tier look' 'tier status x' 'tier move' \
  'tier move redis' 'tier open' 'tier open 7' 'tier bump x' 'tier bump 9007199254740992' 'tier strictness loose' \
  'tier status --force' 'stats x'; do
  # shellcheck disable=SC2086  # words are meant
  exits 125 "125: $words" "$DIBS" $words
  like "125: $words says why" "$err" '^dibs: .{12}'
done
like 'an unknown flag: which there are' "$("$DIBS" flag set nope on 2>&1)" \
  'nope.*sqlite.enabled, circuit-breaker.enabled, sqlite-2-fallback.enabled, least-strict.enabled'
like 'an unknown tier: which there are' "$("$DIBS" tier move redis 2>&1)" 'redis.*sqlite, sqlite-2'
exits 123 'an anchor that is not there' "$DIBS" tier status --store "sqlite://$dir/first.db,sqlite:///nowhere/at/all.db"
like 'an anchor that is not there: what the tiers remember is shown' "$out" "^THE ANCHOR CAN'T BE REACHED"
like 'an anchor that is not there: why' "$out" '/nowhere/at'
exits 123 'nothing can be set then' "$DIBS" flag set sqlite.enabled off --store \
  "sqlite://$dir/first.db,sqlite:///nowhere/at/all.db"
done_testing
