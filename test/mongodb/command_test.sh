#!/bin/bash
# SPDX-License-Identifier: MIT
# The command on a MongoDB store: leases, waiters of other processes, listings, and messages for mistakes.
#   command_test.sh DIBS DOCUMENTS URI
set -u
dibs=$1 documents=$2 uri=$3
. "$(dirname "$0")/../support/says.sh"
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
says 'the doctor names the server' 0 ', which calls itself MongoDB ' doctor --store "$store"
says 'and its role' 0 'one server: nothing takes its place' doctor --store "$store"
says 'and TLS' 0 'none: the connection is not encrypted' doctor --store "$store"

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
says 'a stock of a missing collection' 125 'there is no collection "things"' \
  stock show --store "$store" --table "$folder/tables.ini#t" 1
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

# Records and a stock in collections of the user's.
cat >"$folder/tables.ini" <<END
[event]
table = ${prefix}_events
key = _id
version = version
fence = fence
columns = title, seats
[seats]
table = ${prefix}_events
key = _id
used = booked
limit = seats
claims = bookings
claim = id
claim_given = cancelled
END
event=$folder/tables.ini#event seats=$folder/tables.ini#seats
"$documents" "$uri" "${prefix}_events" '{"_id": 7, "title": "Gala", "seats": 2, "booked": 0}' || fail 'a document of the user'
says 'a document is a record' 0 '"title":"Gala","seats":"2"' record get --store "$store" --table "$event" --json 7
says 'it is put by its version' 0 1 record put --store "$store" --table "$event" --if 0 7 title=Ball
says 'an old version is refused' 115 'at version "1"' record put --store "$store" --table "$event" --if 0 7 title=Late
says 'another type is refused' 125 'must be a number' record put --store "$store" --table "$event" --if 1 7 seats=many
says 'a new document' 0 1 record put --store "$store" --table "$event" --create 8 title=New
(timeout 60 "$dibs" run --store "$store" event/7 -- env | grep -E '^DIBS_(NAME|LEASE|FENCE)=' >"$folder/old") || fail 'a lease'
says 'a holder writes' 0 2 run --store "$store" event/7 -- "$dibs" record put --store "$store" --table "$event" 7 title=Held
# shellcheck disable=SC2046  # words without blanks
stale=$(env $(cat "$folder/old") timeout 60 "$dibs" record put --store "$store" --table "$event" 7 title=Late 2>&1)
code=$?
if [ "$code" -eq 118 ]; then pass 'a stale holder is refused'; else fail 'a stale holder is refused' "$code $stale"; fi
says 'the document has the write of the holder' 0 Held record get --store "$store" --table "$event" 7
says 'a seat of a document' 0 'used 1' stock take --store "$store" --table "$seats" 7 --claim order-1
says 'the last one' 0 'used 2' stock take --store "$store" --table "$seats" 7 --claim order-2
says 'no more than there are' 120 '' stock take --store "$store" --table "$seats" 7 --claim order-3
says 'one is given back' 0 'used 1' stock give --store "$store" --table "$seats" 7 order-1
says 'its claim is over' 115 'given back before' stock take --store "$store" --table "$seats" 7 --claim order-1

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
says 'doctor lists what it keeps' 0 'tasks, counters, history; not: lanes' doctor --store "$store"
says "a task of dibs' own is added" 0 1 task add --store "$store" mail text --key ann --unique one
says 'another one of its key waits behind it' 0 2 task add --store "$store" mail text --key ann
says 'a unique text is added once' 0 1 task add --store "$store" mail text --unique one
says 'both are listed' 0 blocked task ls --store "$store" --kind mail
"$dibs" worker --store "$store" --kind mail --exec "cat >>$folder/mail; echo \$DIBS_TASK >>$folder/mail" 2>"$folder/worker" &
holder=$!
for _ in $(seq 200); do
  [[ $("$dibs" task ls --store "$store" --kind mail --state done) == *2*mail* ]] && break
  sleep 0.1
done
kill "$holder" && wait "$holder"
holder=
if [ "$(tr -d ' \n' <"$folder/mail")" = text1text2 ]; then pass 'a worker does them in their order'; else
  fail 'a worker does them in their order' "$(cat "$folder/mail" "$folder/worker")"
fi
says 'by lane is refused' 125 'lane' worker --store "$store" --kind mail --topic orders --lanes 4 -- true

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
"$documents" "$uri" "${prefix}_leases" '{"_id": "broken", "v": {"$numberLong": "1"}, "fence": 0, "tickets": 0, "claims": [], "breaks":
  [{"at": 1, "fence": 0, "mode": -1, "owner": "x"}]}'
says 'a break of a mode that does not exist' 123 'the document "broken" is not one of dibs' run --wait 1s --store "$store" broken -- true
says 'lanes are refused' 125 'not in one order' lane run topic --lanes 4 --store "$store" -- true
"$documents" "$uri" "${prefix}_tasks" '{"_id": {"$numberLong": "700"}, "v": {"$numberLong": "1"}, "kind": "odd", "state": 1, "tries": "many"}'
says 'a document of the tasks that is none' 123 'the document 700 of the tasks is not one of dibs' task ls --store "$store" --kind odd

# libmongoc counts in a file of /dev/shm, of which the next process with its number would complain.
if [ -d /dev/shm ]; then
  "$dibs" run --store "$store" killed -- sh -c 'touch "$1"; exec sleep 60' sh "$folder/began" >/dev/null 2>&1 &
  holder=$!
  for _ in $(seq 600); do
    [ -e "$folder/began" ] && break
    sleep 0.05
  done
  kill -KILL "$holder"
  wait "$holder" 2>/dev/null
  if [ -e "$folder/began" ] && [ ! -e "/dev/shm/mongoc-$holder" ]; then pass 'a killed process leaves no file'; else
    fail 'a killed process leaves no file' "/dev/shm/mongoc-$holder"
  fi
  holder=
fi

# A process that was killed leaves its document; another process removes it an hour later.
"$documents" "$uri" "${prefix}_sessions" '{"_id": {"$numberLong": "7"}, "seen": {"$date": "2026-01-01T00:00:00Z"}}'
"$dibs" run --store "$store" other -- sh -c 'for i in $(seq 600); do
  [ "$("$1" "$2" "$3" "count{\"_id\": 7}")" = 0 ] && exit 0; sleep 0.05; done; exit 1' sh "$documents" "$uri" "${prefix}_sessions"
if [ $? -eq 0 ]; then pass 'documents of dead processes are removed'; else fail 'documents of dead processes are removed'; fi

end_of_cases
