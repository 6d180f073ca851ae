#!/bin/bash
# SPDX-License-Identifier: MIT
# Other processes list the threads that wait in the process that holds the name.
. "$(dirname "$0")/tap.sh"
: "${HOLD_LINE:?names the program that holds a name and waits for it}"
[ $# -gt 0 ] && DIBS_STORE=$1
name=line-$$
within=5 # seconds: a process publishes its queue when it is one second old, and then every second

# begin WAITERS WAIT_MS: starts $holder; descriptor 7 is its standard input.
begin() {
  rm -f "$dir/told"
  mkfifo "$dir/told"
  "$HOLD_LINE" "$DIBS_STORE" "$name" "$1" "$2" <"$dir/told" >"$dir/said" 2>&1 7>&- &
  holder=$!
  later "$holder"
  exec 7>"$dir/told"
  ok 'it holds the name' until_true 10 grep -q held "$dir/said"
}
said() { [ "$(grep -c "$1" "$dir/said")" = "$2" ]; }
count() { "$DIBS" "$1" "$name" --json | grep -o "$2" | wc -l; }

begin 3 60000
ok 'ls counts three waiters' until_true $within waits "$name" 3
is 'ls lists one holder' "$(count ls '"state":"holds"')" 1
is 'show lists three waiters' "$(count show '"state":"waits"')" 3
"$DIBS" show "$name" --json >"$dir/json"
ok 'show --json is JSON' "$JSON_CHECK" --lines <"$dir/json"
is 'each has its owner' "$(count show '"owner":"a thread"')" 3
like 'each has its position' "$(cat "$dir/json")" '"ahead":0.*"ahead":1.*"ahead":2'
is 'each has an age' "$(count show '"age_ms":[1-9][0-9]*')" 4
like 'the table shows them' "$("$DIBS" show "$name" | tr '\n' ' ')" 'holds .*waits, #1 .*waits, #2 .*waits, #3 '
like 'stats counts them' "$("$DIBS" stats --json)" '"waiting":3'
# A waiter of another process is in the store's queue; those threads are not.
"$DIBS" run "$name" --wait 60s -- true &
other=$!
later "$other"
ok 'one more process waits' until_true $within waits "$name" 4
echo >&7
ok 'all three are granted the name' until_true 20 said OK 3
ok 'so does the other process' wait "$other"
ok 'no waiter remains' until_true $within waits "$name" 0
ok 'nor a holder' until_true $within free "$name"
exec 7>&-
wait "$holder"

begin 3 4000
ok 'three wait again' until_true $within waits "$name" 3
ok 'their wait times out' until_true 20 said TIMEOUT 3
ok 'they are no longer listed' until_true $within waits "$name" 0
ok 'the name is held' holds "$name"
exec 7>&-
wait "$holder"

# A killed process publishes nothing more; its last report expires.
begin 3 60000
ok 'three wait once more' until_true $within waits "$name" 3
kill -KILL "$holder"
ok 'waiters of a killed process are no longer listed' until_true $((2 * within)) waits "$name" 0
exec 7>&-
wait 2>/dev/null
done_testing
