#!/bin/bash
# SPDX-License-Identifier: MIT
# The id of a lease is a secret: it is never in the arguments of a process, where ps shows it to every user, and dibs
# prints it only to the process that acquired the lease.
. "$(dirname "$0")/tap.sh"

# run: while it runs, read the arguments of all processes.
"$DIBS" run secret --ttl 20s -- sh -c 'echo $DIBS_LEASE >"$0/id"; while [ ! -e "$0/go" ]; do sleep 0.05; done' "$dir" &
run=$!
later $run
until_true 20 filled "$dir/id"
id=$(cat "$dir/id")
like 'run: the command knows the id' "$id" '^[0-9a-f]{32}$'
# The id comes from a file, so that the searching process does not have it in its arguments.
in_arguments() { grep -alF -f "$dir/id" /proc/[0-9]*/cmdline 2>/dev/null; }
sees_it() { [ -n "$(in_arguments)" ]; }
tail -f /dev/null "$id" >/dev/null 2>&1 &
later $!
showing=$!
ok 'the search finds an id in arguments' until_true 10 sees_it
kill $showing
wait $showing 2>/dev/null
is 'run: no process has it in its arguments' "$(in_arguments)" ''
is 'run: its minder does not keep it in its environment for others to inherit' \
  "$(tr '\0' '\n' <"/proc/$(minder_of $run)/environ" | grep -c "$id")" 0
is 'ls does not print it' "$("$DIBS" ls --json | grep -c "$id")" 0
is 'show does not print it' "$("$DIBS" show secret --json | grep -c "$id")" 0
is 'watch does not print it' "$("$DIBS" watch --json --count 1 | grep -c "$id")" 0
touch "$dir/go"
wait $run
is 'run: it succeeds' $? 0

# lock, renew, unlock: standard input keeps each waiting while the test reads the arguments.
lease=$("$DIBS" lock secret --ttl 1h)
printf '%s\n' "$lease" | sed -n 's/^DIBS_LEASE=//p' >"$dir/id"
id=$(cat "$dir/id")
mkfifo "$dir/in"
"$DIBS" unlock - <"$dir/in" &
unlock=$!
later $unlock
exec 8>"$dir/in"
printf '%s\n' "$lease" >&8
is 'unlock: no process has the id in its arguments' "$(in_arguments)" ''
exec 8>&-
wait $unlock
is 'unlock: it is released' $? 0
is 'a wrong id is not repeated in the message' \
  "$(DIBS_NAME=x DIBS_FENCE=1 DIBS_LEASE=$id "$DIBS" unlock 2>&1 | grep -c "$id")" 0
is 'an id in the arguments is not repeated in the message' "$("$DIBS" unlock x "$id" 2>&1 | grep -c "$id")" 0
is 'only its owner can read the file of the store' "$(stat -c %a "$dir/dibs.db")" 600
done_testing
