#!/bin/bash
# SPDX-License-Identifier: MIT
# The command on a MongoDB store: leases, waiters of other processes, listings, and messages for mistakes.
#   command_test.sh DIBS DOCUMENTS URI
set -u
dibs=$1 documents=$2 uri=$3
count=0 failures=0
pass() { count=$((count + 1)) && echo "ok $count - $1"; }
fail() {
  count=$((count + 1)) failures=$((failures + 1))
  echo "not ok $count - $1"
  printf '%s\n' "${@:2}" | sed 's/^/#   /'
}
# says NAME CODE WORDS ARG...: dibs ends with CODE and prints WORDS, and no password.
says() {
  local name=$1 code=$2 words=$3 got said
  said=$(timeout 60 "$dibs" "${@:4}" 2>&1)
  got=$?
  if [ "$got" -ne "$code" ]; then
    fail "$name" "exit $got, not $code: $said"
  elif [[ $said != *"$words"* ]]; then
    fail "$name" "it says: $said"
  elif [[ $said == *secret* ]]; then
    fail "$name" "the password is in: $said"
  else
    pass "$name"
  fi
}
prefix=c$$_$SRANDOM
store=$uri?prefix=${prefix}_
place=${uri#*://}
place=${place%%/*}
folder=$(mktemp -d "${TMPDIR:-/tmp}/dibs-test-mongodb.XXXXXX")
holder=
end() {
  exec 3>&-
  [ -z "$holder" ] || kill "$holder" 2>/dev/null
  rm -rf "$folder"
}
trap end EXIT

says 'a lease' 0 ran run --store "$store" job -- echo ran
if "$dibs" record put --store "$store" key --create <<<text >/dev/null; then pass 'a record is saved'; else fail 'a record is saved'; fi
says 'and read by another process' 0 text record get --store "$store" key
says 'a command is done once' 0 ran once --store "$store" once-key -- echo ran
says 'and its answer is remembered' 0 ran once --store "$store" once-key -- echo again
says 'what ran is remembered' 0 'job' history --store "$store"
says 'the doctor' 0 mongodb doctor --store "$store"

printf '[t]\ntable = things\nkey = id\nversion = v\nused = used\nlimit = most\n' >"$folder/tables.ini"

# Two processes: the second one waits until the first one ends.
mkfifo "$folder/fifo"
"$dibs" run --store "$store" shared -- cat "$folder/fifo" >"$folder/first" 2>&1 &
holder=$!
exec 3>"$folder/fifo" # after the name is held
says 'another kind of lease is refused, too' 120 held run --try --slots 2 --store "$store" shared -- true
says 'a held name is refused' 120 held run --try --store "$store" shared -- true
says 'it is listed' 0 shared ls --store "$store"
"$dibs" run --wait 60s --store "$store" shared -- echo waited >"$folder/second" 2>&1 3>&- &
waiter=$!
seen=
for _ in $(seq 400); do
  seen=$("$dibs" show --store "$store" shared 2>&1)
  [[ $seen == *wait* ]] && break
  sleep 0.05
done
if [[ $seen == *wait* ]]; then pass 'a waiter is shown'; else fail 'a waiter is shown' "$seen"; fi
exec 3>&-
wait "$holder"
holder=
wait "$waiter"
if [ "$(cat "$folder/second")" = waited ]; then pass 'it runs when the holder has ended'; else
  fail 'it runs when the holder has ended' "$(cat "$folder/second")"
fi

says 'nobody listens' 123 '127.0.0.1:1' run --wait 1s --store 'mongodb://app:secret@127.0.0.1:1/x' job -- true
says 'no such parameter' 125 'has no parameter w' run --store "$uri?w=0" job -- true
says 'a wrong prefix' 125 'letters, digits' run --store "$uri?prefix=a.b" job -- true
says 'a wrong name of a database' 125 'not a name that MongoDB accepts' run --store "mongodb://$place/a.b" job -- true
says 'not as one of several tiers' 125 'use it alone' run --store "$store,sqlite:$folder/db" job -- true
says 'a name that is no text' 125 '' run --store "$store" $'\xff\xfe' -- true
says 'a stock of a table' 125 "dibs' own collection" stock show --store "$store" --table "$folder/tables.ini#t" 1
says 'an odd number of claims' 125 'claims' stock show --store "$uri?claims=1001" seats

says 'a stock' 0 '' stock set --store "$store" seats 3
says 'a take' 0 '' stock take --store "$store" seats 2 --claim order-1
says 'its repeat takes nothing' 0 '' stock take --store "$store" seats 2 --claim order-1
says 'no more than there is' 120 '' stock take --store "$store" seats 2 --claim order-2
says 'what is used' 0 '2' stock show --store "$store" seats
says 'a claim of another stock' 115 'another stock' stock take --store "$store" elsewhere 1 --claim order-1
says 'giving back' 0 '' stock give --store "$store" seats order-1
says 'an addition' 0 '' counter add --store "$store" likes 41
says 'another one' 0 '' counter add --store "$store" likes
says 'the counter' 0 42 counter get --store "$store" likes
says 'a quota' 0 '' rate --store "$store" mail --limit 2/1h
says 'the rest of it' 0 '' rate --store "$store" mail --limit 2/1h
says 'it is used up' 120 '' rate --store "$store" mail --limit 2/1h

# Tasks in a collection of the user's.
printf '[gateway]\ntable = %s_gateways\nkey = _id\nphase = phase\nlocked_at = lockedAt\nupdated_at = updatedAt\nfence = fence\n' \
  "$prefix" >"$folder/tables.ini"
table=$folder/tables.ini#gateway
printf '#!/bin/sh\necho "$DIBS_KEY $DIBS_FENCE" >>%s/done\necho Deleted >"$DIBS_NEXT_PHASE"\n' "$folder" >"$folder/step"
chmod +x "$folder/step"
says 'a listing of a collection that does not exist' 0 '' task ls --store "$store" --table "$table"
add() { "$documents" "$uri" "${prefix}_gateways" "{\"_id\": \"$1\", \"phase\": \"Deleting\", \"lockedAt\": $2}"; }
never='{"$date": {"$numberLong": "0"}}'
add g1 "$never" && add g2 "$never" ||
  fail 'documents of the user'
says 'tasks are listed' 0 'g2' task ls --store "$store" --table "$table"
says 'one is shown' 0 'Deleting' task show g1 --store "$store" --table "$table"
add g3 true || fail 'an odd document of the user'
timeout 120 "$dibs" worker --store "$store" --table "$table" --phase Deleting --exec "$folder/step" >"$folder/worker" 2>&1 &
holder=$!
for _ in $(seq 600); do
  [ "$(sort "$folder/done" 2>/dev/null)" = "$(printf 'g1 1\ng2 1')" ] && break
  sleep 0.1
done
seen=
for _ in $(seq 100); do
  seen=$("$dibs" task ls --store "$store" --table "$table" --phase Deleted 2>&1)
  [[ $seen == *g1*g2* ]] && break
  sleep 0.1
done
for _ in $(seq 200); do
  grep -q 'never claimed' "$folder/worker" && break
  sleep 0.1
done
kill "$holder" && wait "$holder"
holder=
if grep -q 'g3.* is never claimed: "lockedAt" is not' "$folder/worker"; then pass 'it names an odd document'; else
  fail 'it names an odd document' "$(cat "$folder/worker")"
fi
if [[ $seen == *g1*g2* && $(sort "$folder/done") == "$(printf 'g1 1\ng2 1')" ]]; then pass 'a worker does each of them once'; else
  fail 'a worker does each of them once' "$(cat "$folder/done" "$folder/worker")" "$seen"
fi
says 'doctor lists what it keeps' 0 'tasks of your own table, counters, history' doctor --store "$store"
says "tasks of dibs' own are refused" 125 'in a collection of yours' task add --store "$store" mail text

"$documents" "$uri" "${prefix}_leases" wrong || fail 'a document of another program'
says 'a document of another program' 123 'the document "wrong" is not one of dibs' \
  run --wait 1s --store "$store" wrong -- true
says 'other names work' 0 ran run --store "$store" job -- echo ran
"$documents" "$uri" "${prefix}_records" '{"_id": "wrong", "v": {"$numberLong": "1"}, "fence": 0, "lease": 0, "version": 1, "data": {"a": 1}}'
says 'content that is neither text nor bytes' 123 'the document "wrong" is not one of dibs' record get --store "$store" wrong
"$documents" "$uri" "${prefix}_leases" '{"_id": "many", "v": {"$numberLong": "1"}, "fence": 0, "tickets": 0, "claims": [{"id":
  {"$binary": "AAAAAAAAAAAAAAAAAAAAAA==", "$type": "00"}, "state": "waits", "mode": "counted", "slots": 4000000000, "owner": "x"}]}'
says 'a claim with too many slots' 123 'the document "many" is not one of dibs' run --wait 1s --store "$store" many -- true
# holder SLOT SLOTS: a holder of a counted lease, until 2100
holder() {
  printf '{"id": {"$binary": "AAAAAAAAAAAAAAAAAAAAA%s==", "$type": "00"}, "state": "holds", "mode": "counted", "slots": %s, "slot": %s, "owner": "x", "ttl_ms": 1000,
    "until": {"$numberLong": "4102444800000"}, "session": 1, "ticket": 1, "requested": 1}' "$3" "$2" "$1"
}
counted() { # counted NAME HOLDER,...
  "$documents" "$uri" "${prefix}_leases" "{\"_id\": \"$1\", \"v\": {\"\$numberLong\": \"1\"}, \"fence\": 0, \"tickets\": 0, \"claims\": [$2]}"
}
counted beyond "$(holder 2 2 A)"
says 'a holder of a slot that does not exist' 123 'the document "beyond" is not one of dibs' run --wait 1s --slots 2 --store "$store" beyond -- true
counted crowded "$(holder 0 2 A), $(holder 1 2 Q), $(holder 1 2 g)"
says 'more holders than slots' 123 'the document "crowded" is not one of dibs' run --wait 1s --slots 2 --store "$store" crowded -- true
counted unlike "$(holder 0 2 A), $(holder 1 3 Q)"
says 'holders with other slots' 123 'the document "unlike" is not one of dibs' run --wait 1s --slots 2 --store "$store" unlike -- true
counted filled "$(holder 1 2 A)"
says 'the free one of two slots' 0 'slot 0' run --slots 2 --store "$store" filled -- sh -c 'echo "slot $DIBS_SLOT"'
says 'another number of slots' 125 slots run --slots 3 --store "$store" filled -- true
says 'lanes are refused' 125 'not in one order' lane run topic --lanes 4 --store "$store" -- true
says "no tasks of dibs' own" 125 'in a collection of yours' task add --store "$store" mail text

# A process that was killed leaves its document; another process removes it an hour later.
"$documents" "$uri" "${prefix}_sessions" '{"_id": {"$numberLong": "7"}, "seen": {"$date": "2026-01-01T00:00:00Z"}}'
"$dibs" run --store "$store" other -- sh -c 'for i in $(seq 600); do
  [ "$("$1" "$2" "$3" "count{\"_id\": 7}")" = 0 ] && exit 0; sleep 0.05; done; exit 1' sh "$documents" "$uri" "${prefix}_sessions"
if [ $? -eq 0 ]; then pass 'documents of dead processes are removed'; else fail 'documents of dead processes are removed'; fi

echo "1..$count"
[ "$failures" -eq 0 ]
