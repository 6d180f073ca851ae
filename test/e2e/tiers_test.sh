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

# ---- Status ----
exits 0 'status before anything was leased' "$DIBS" tier status
exits 0 'a lease over two tiers' "$DIBS" run job -- true
for alone in first anchor; do # Also the tier that serves nothing: its earlier users would not see the other's leases.
  exits 123 "the $alone alone grants nothing from then on" "$DIBS" run other --try --store "sqlite://$dir/$alone.db" -- true
  like "the $alone alone: the message" "$err" 'with all its tiers'
done
like 'the message of the anchor names the serving tier' "$err" 'sqlite serves this name' 
exits 0 'doctor' "$DIBS" doctor --probe
like 'doctor: each member' "$out" "^fine +member +sqlite://$dir/anchor.db, opened"
like 'doctor: each tier' "$out" '^fine +tier +sqlite-2 is up, the anchor, serves 0 of 100'
exits 116 'doctor: an unusable member' "$DIBS" doctor --store "sqlite://$dir/no/such.db,sqlite://$dir/anchor.db?tiers.wait=300"
like 'doctor: names it' "$out" "^TROUBLE +member .*$dir/no"
like 'doctor: and the good member' "$out" "^fine +member +sqlite://$dir/anchor.db, opened"
exits 0 'status' "$DIBS" tier status
like 'status: in words' "$out" '^sqlite serves 100 of 100 buckets'
like 'status: the first tier' "$out" '^sqlite +up +100 +100%'
like 'status: the anchor' "$out" '^sqlite-2 +up, anchor +0 '
ok 'status --json is JSON' "$JSON_CHECK" <<<"$(json tier status)"
"$DIBS" run seen -- sleep 60 &
seen=$!
later $seen
until_true 5 eval 'json tier status | grep -q owner'
like 'status --json: tiers and clients' "$(json tier status)" \
  '"strictness":"fenced","pinned":null,.*"name":"sqlite",.*"anchor":true,.*"clients":\[\{"owner":'
kill $seen
wait $seen 2>/dev/null
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
ok 'rolled out: ten are there, the others on the anchor' until_true 5 serves 10 90
exits 0 'the alias of the fallback' "$DIBS" flag set fallback.enabled off
is 'is the same flag' "$("$DIBS" flag get sqlite-2-fallback.enabled)" 0
"$DIBS" flag set fallback.enabled on
"$DIBS" flag set sqlite.enabled on
ok 'and back' until_true 5 serves 100 0
after=$(fence job)
ok 'fences only grow through all of it' test "$after" -gt "$before"

# ---- Moves by hand ----
exits 0 'move' "$DIBS" tier move sqlite-2
ok 'all buckets are there' until_true 5 serves 0 100
like 'and status shows that it was by hand' "$("$DIBS" tier status)" '^All names were moved to sqlite-2 by hand'
like 'pinned, as JSON' "$(json tier status)" '"pinned":"sqlite-2"'
moved=$(fence job)
ok 'its fence is larger' test "$moved" -gt "$after"
exits 0 'move back' "$DIBS" tier move auto
ok 'it is' until_true 5 serves 100 0
exits 0 'open by hand' "$DIBS" tier open sqlite
ok 'is left' until_true 5 serves 0 100
like 'and status shows it' "$("$DIBS" tier status)" '^sqlite is switched off by hand; dibs tier auto sqlite'
exits 0 'by its number' "$DIBS" tier close 0
ok 'comes back' until_true 5 serves 100 0
like 'status shows close' "$("$DIBS" tier status)" '^sqlite +on by hand'
exits 0 'auto again' "$DIBS" tier auto sqlite
back=$(fence job)
ok 'fences grow back on the first' test "$back" -gt "$moved"

# ---- A holder whose names move ----
"$DIBS" run held --ttl 3s -- sleep 60 2>"$dir/held" &
holder=$!
later $holder
until_true 5 holds held
"$DIBS" tier move sqlite-2
ok 'the other buckets have moved' until_true 5 serves 0 100
exits 120 'a move keeps the holder' "$DIBS" run held --try -- true
like 'status shows that a holder remains there' "$("$DIBS" tier status)" '^1 buckets are moving away from sqlite;'
like 'and listed' "$("$DIBS" ls held)" '^held +holds'
"$DIBS" tier move auto
ok 'the other buckets are back' until_true 5 eval '"$DIBS" tier status | grep -q "^[0-9]* buckets are not yet"'
like 'status shows the bucket that waits for that move' "$("$DIBS" tier status)" '^1 buckets are not yet on their tier: they wait for a move'
"$DIBS" tier move sqlite-2
ok 'they have moved again' until_true 5 serves 0 100
exits 0 'the lease can be broken there' "$DIBS" break held --now
wait $holder
is 'the holder learns of the break' "$?" 122
ok 'the last bucket has moved' "$DIBS" run held --wait 5s -- true
"$DIBS" tier move auto
ok 'all back' until_true 5 serves 100 0
"$DIBS" run held --ttl 3s -- sleep 60 2>"$dir/held" &
holder=$!
later $holder
until_true 5 holds held
"$DIBS" tier open sqlite
ok 'a tier that is down: another client gets it at once: fenced' "$DIBS" run held --wait 3s -- true
wait $holder
is 'the holder learns of the loss' "$?" 122
"$DIBS" tier auto sqlite
ok 'all buckets are back' until_true 5 serves 100 0

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

# ---- Changes as JSON ----
says() { # says OBJECT WORDS...: the command prints exactly that
  local wanted=$1
  shift
  exits 0 "$* --json" "$DIBS" "$@" --json
  is "$* --json" "$out" "$wanted"
}
says '{"verb":"bump","above":null}' tier bump
says '{"verb":"bump","above":4294967296}' tier bump 4294967296
says '{"verb":"move","tier":"sqlite"}' tier move sqlite
says '{"verb":"move","tier":"auto"}' tier move auto
says '{"verb":"close","tier":"sqlite"}' tier close sqlite
says '{"verb":"auto","tier":"sqlite"}' tier auto sqlite
says '{"verb":"strictness","strictness":"fenced"}' tier strictness fenced
says '{"name":"circuit-breaker.enabled","percent":100}' flag set circuit-breaker.enabled on

# ---- The anchor's own names ----
two="sqlite://$dir/own-first.db,trace+sqlite://$dir/own.db?trace.file=$dir/trace"
exits 0 'a lease of a store alone' "$DIBS" run job --store "sqlite://$dir/own.db" -- true
exits 0 'the store becomes an anchor' "$DIBS" run job --store "$two" -- true
like 'it keeps serving its names' "$("$DIBS" tier status --store "$two")" '^sqlite-2 serves 100 of 100 buckets'
: >"$dir/trace"
exits 0 'bump of its own names' "$DIBS" tier bump --store "$two"
like 'the buckets are raised' "$(cat "$dir/trace")" '"anchor.raise":100'
is 'clients that opened it alone are not refused meanwhile' "$(grep -c '"anchor.install"\|"anchor.open"' "$dir/trace")" 0
exits 0 'a lease alone' "$DIBS" run job --try --store "sqlite://$dir/own.db" -- true
exits 0 'a lease through the tiers' "$DIBS" run job --try --store "$two" -- true

# ---- Epochs ----
exits 0 'doctor: epochs' "$DIBS" doctor --store "$two"
like 'doctor: how many epochs are left' "$out" '^fine +epochs +[5-9][0-9]% of the epochs are left'
like 'status: how many epochs are left' "$("$DIBS" tier status --store "$two")" ', epochs left [5-9][0-9]%$'
like 'status --json: how many epochs are left' "$(json tier status --store "$two")" '"epochs_left_percent":[5-9][0-9],'
exits 0 'most epochs are used' "$DIBS" tier bump $((1600000 * 4294967296)) --store "$two"
exits 116 'doctor: few epochs' "$DIBS" doctor --store "$two"
like 'doctor: few epochs are left' "$out" '^TROUBLE +epochs +2[0-4]% of the epochs are left'
like 'status: few epochs are left' "$("$DIBS" tier status --store "$two")" '^ONLY 2[0-4]% OF THE EPOCHS ARE LEFT'

# ---- Stats ----
ok 'the lease of the holder has ended' until_true 5 free held
exits 0 'stats' "$DIBS" stats --probe
like 'stats: the counts of the clients' "$out" '^acquired +[0-9]+$'
like 'stats: the time of a lease' "$out" '^acquire +[0-9.]+ ms, p99 [0-9.]+ ms, max [0-9.]+ ms of 20$'
like 'stats: and its release' "$out" '^release +[0-9.]+ ms'
ok 'stats --json is JSON' "$JSON_CHECK" <<<"$(json stats)"
like 'stats --json' "$(json stats --probe)" '"counts":\{"acquired":[0-9]+.*"lease":\{"acquire":\{"count":20,"p50_ns":[1-9]'
is 'stats leaves no lease' "$("$DIBS" ls)" ''
exits 0 'stats of one store alone' "$DIBS" stats --probe --store "$lone"
like 'stats of one store: a lease' "$out" '^acquire +'
ok 'stats of one store is JSON too' "$JSON_CHECK" <<<"$(json stats --store "$lone")"

# ---- A first tier that forgets everything between two processes: the memory of each ----
forgets="memory:x,sqlite://$dir/memory-anchor.db"
grows=yes last=0
for _ in 1 2 3 4; do
  got=$("$DIBS" run job --store "$forgets" -- sh -c 'echo $DIBS_FENCE')
  [ "${got:-0}" -gt "$last" ] || grows=no
  last=${got:-0}
done
is 'fences grow although the tier forgets' "$grows" yes
like 'flags are named by the tiers' "$("$DIBS" flag ls --store "$forgets")" '^memory.enabled +on'

# ---- One store alone ----
exits 0 'tier bump of one store' "$DIBS" tier bump --store "$lone"
for words in 'flag ls' 'flag get redis.enabled' 'flag set redis.enabled on' 'tier status' 'tier move redis' 'tier open redis' \
  'tier strictness' 'tier strictness strict'; do
  # shellcheck disable=SC2086  # words are meant
  exits 125 "$words of one store" "$DIBS" $words --store "$lone"
  like "$words of one store: the message" "$err" '^dibs: .*is one store, not several tiers; .*comma'
done

last=$("$DIBS" run job --store "$lone" -- sh -c 'echo $DIBS_FENCE')
exits 0 'tier bump of one store' "$DIBS" tier bump --store "$lone"
exits 0 'and a lease there' "$DIBS" run job --store "$lone" -- sh -c 'echo $DIBS_FENCE'
ok 'tier bump of one store: its fences grow' test "$out" -gt "$((last + 2147483648))"

# ---- A tier that is opened alone is refused until the tiers are dissolved ----
exits 123 'a tier alone' "$DIBS" run job --store "sqlite://$dir/first.db" -- true
like 'a tier alone: the message' "$err" 'with all its tiers'
"$DIBS" run busy -- sleep 60 &
other=$!
later $other
ok 'the client is listed' until_true 5 eval '"$DIBS" tier status | grep -q "clients 1"'
exits 120 'dissolve while others use the tiers' "$DIBS" tier dissolve
like 'dissolve: the message' "$err" '^dibs: [0-9]+ other clients? used the tiers'
exits 120 'dissolve of a tier that is opened alone' "$DIBS" tier dissolve --store "sqlite://$dir/first.db"
kill $other
wait $other 2>/dev/null
last=$(fence job)
exits 0 'dissolve --force' "$DIBS" tier dissolve --force
for part in first anchor; do
  exits 0 "$part is a store of its own" "$DIBS" run job --store "sqlite://$dir/$part.db" -- sh -c 'echo $DIBS_FENCE'
  [ $part = first ] && ok 'and its fences still grow' test "$out" -gt "$last"
done
exits 0 'a lease does not make a store a tier again' "$DIBS" run job -- true
ok 'the anchor serves it, also alone' "$DIBS" run job --store "sqlite://$dir/anchor.db" -- true
like 'no tier is rolled out' "$("$DIBS" flag ls)" '^sqlite.enabled +off'
exits 0 'bump: the fences of the first tier are far above' "$DIBS" tier bump
exits 0 'a flag makes them tiers again' "$DIBS" flag set sqlite.enabled on
ok 'all buckets are on the first' until_true 5 serves 100 0
exits 0 'a lease' "$DIBS" run job -- sh -c 'echo $DIBS_FENCE'
ok 'above all earlier fences' test "$out" -gt "$last"

# ---- Wrong words ----
for words in 'flag' 'flag list' 'flag ls x' 'flag get' 'flag get a b' 'flag set a' 'flag set a maybe' 'flag set a 101' \
  'flag set a off --percent 3' 'flag set a --percent 101' 'flag get a --percent 3' 'flag set nope on' \
  'flag set circuit-breaker.enabled 50' 'flag set sqlite-2.enabled off' 'tier' 'tier look' 'tier status x' 'tier move' \
  'tier move redis' 'tier open' 'tier open 7' 'tier bump x' 'tier bump 9007199254740992' 'tier strictness loose' \
  'tier status --force' 'stats x'; do
  # shellcheck disable=SC2086  # words are meant
  exits 125 "125: $words" "$DIBS" $words
  like "125: $words: the message" "$err" '^dibs: .{12}'
done
like 'an unknown flag: the message lists the flags' "$("$DIBS" flag set nope on 2>&1)" \
  'nope.*sqlite.enabled, circuit-breaker.enabled, sqlite-2-fallback.enabled, least-strict.enabled'
like 'an unknown tier: the message lists the tiers' "$("$DIBS" tier move redis 2>&1)" 'redis.*sqlite, sqlite-2'
exits 123 'an unreachable anchor' "$DIBS" tier status --store "sqlite://$dir/first.db,sqlite:///nowhere/at/all.db"
like 'an unreachable anchor: status shows what the tiers remember' "$out" "^THE ANCHOR IS UNREACHABLE"
like 'an unreachable anchor: the reason' "$out" '/nowhere/at'
exits 123 'no flag can be set then' "$DIBS" flag set sqlite.enabled off --store \
  "sqlite://$dir/first.db,sqlite:///nowhere/at/all.db"
done_testing
