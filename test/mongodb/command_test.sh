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

"$documents" "$uri" "${prefix}_leases" wrong || fail 'a document of another program'
says 'a document of another program' 123 'the document "wrong" is not one of dibs' \
  run --wait 1s --store "$store" wrong -- true
says 'other names work' 0 ran run --store "$store" job -- echo ran

echo "1..$count"
[ "$failures" -eq 0 ]
