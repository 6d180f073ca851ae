#!/bin/bash
# SPDX-License-Identifier: MIT
# Nodes that another program has written, and advice:  foreign_test.sh DIBS URI, through with.sh --private.
set -u
dibs=$1 uri=$2
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
place=${uri#zk://}
count=0 failures=0
# says NAME CODE WORDS ARG...: dibs ends with CODE and prints WORDS.
says() {
  local said got
  count=$((count + 1))
  said=$(timeout 60 "$dibs" "${@:4}" 2>&1)
  got=$?
  if [ "$got" -eq "$2" ] && [[ $said == *"$3"* ]]; then
    echo "ok $count - $1"
  else
    failures=$((failures + 1))
    echo "not ok $count - $1"
    printf '%s\n' "exit $got, not $2; it says:" "$said" | sed 's/^/#   /'
  fi
}
says 'a lease' 0 ran run --store "$uri" name -- echo ran
python3 "$here/foreign.py" "$place" lease name garbage || failures=$((failures + 1))
says 'a foreign node keeps others out' 120 held run --try --store "$uri" name -- true
says 'it is listed' 0 'not written by dibs' ls --store "$uri"
says 'it can be broken' 0 '' break --now --store "$uri" name
says 'and the name is free' 0 ran run --try --store "$uri" name -- echo ran
printf 'text' | "$dibs" record put --store "$uri" key --create >/dev/null
python3 "$here/foreign.py" "$place" record key garbage || failures=$((failures + 1))
says 'a record of another form' 123 'has another form' record get --store "$uri" key
says 'advice for a store that is no tier' 125 "can't be one of several tiers" counter add n 1 --store "$uri"
echo "1..$count"
[ "$failures" -eq 0 ]
