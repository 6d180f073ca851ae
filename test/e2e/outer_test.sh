#!/bin/bash
# SPDX-License-Identifier: MIT
# A command that requests the name under whose lease it runs would wait for itself.
. "$(dirname "$0")/tap.sh"
own="is held by the lease under which this command runs"
# nested CODE WHAT COMMAND...: the command does not wait for itself.
nested() { exits "$1" "$2" timeout 10 "${@:3}"; }

nested 125 'run n in run n' "$DIBS" run n -- "$DIBS" run n -- true
like 'run n in run n: the message' "$err" "^dibs: 'n' $own .*--reenter"
nested 125 'with a --wait, at once' "$DIBS" run n -- "$DIBS" run n --wait 1h -- true
nested 120 '--try: busy' "$DIBS" run n -- "$DIBS" run n --try -- true
like '--try: the message' "$err" "$own"
nested 125 'lock n in run n' "$DIBS" run n -- "$DIBS" lock n
nested 125 'a, b, a' "$DIBS" run a -- "$DIBS" run b -- "$DIBS" run a -- true
like 'a, b, a: the message' "$err" "^dibs: 'a' $own"
nested 125 'a name with blanks and %' "$DIBS" run 'a b%20' -- "$DIBS" run b -- "$DIBS" run 'a b%20' -- true
nested 125 'exclusive in shared' "$DIBS" run n --shared -- "$DIBS" run n -- true
nested 125 'the last slot' "$DIBS" run n --slots 1 -- "$DIBS" run n --slots 1 -- true
nested 0 'shared in shared' "$DIBS" run n --shared -- "$DIBS" run n --shared -- true
nested 0 'two slots' "$DIBS" run n --slots 2 -- "$DIBS" run n --slots 2 -- true
nested 125 'run in lock' sh -c 'eval "$("$DIBS" lock n)" && "$DIBS" run n -- true; s=$?; "$DIBS" unlock; exit $s'
nested 125 'lock a, b, a' sh -c 'eval "$("$DIBS" lock a --ttl 30s)" && eval "$("$DIBS" lock b --ttl 30s)" && "$DIBS" run a -- true'
for name in a b; do "$DIBS" break $name --now --quiet; done
nested 0 'the same name in another store is another' "$DIBS" run n -- "$DIBS" run n --store "sqlite://$dir/other.db" -- true

# Another client holds the name in the other store, with the same fence: a run waits for it, and --try reports it as
held.
first=$("$DIBS" run m --store "sqlite://$dir/one.db" -- sh -c 'echo $DIBS_FENCE')
"$DIBS" lock m --store "sqlite://$dir/one.db" --ttl 1h >"$dir/lease"
"$DIBS" run m --store "sqlite://$dir/two.db" -- true
nested 120 'the same fence in another store' "$DIBS" run m --store "sqlite://$dir/two.db" -- sh -c '
  grep -q "^DIBS_FENCE=$DIBS_FENCE\$" "$0" || exit 9
  exec "$DIBS" run m --try --store "$1" -- true' "$dir/lease" "sqlite://$dir/one.db"
like 'the same fence in another store: not the own lease' "$err" "^dibs: 'm' is held by .*@"
# An ended lease in the environment has no effect.
eval "$("$DIBS" lock old --ttl 1h)"
"$DIBS" unlock
"$DIBS" lock old --ttl 1s >/dev/null
nested 0 'an old lease in the environment does not stop a wait' "$DIBS" run old -- true
unset DIBS_NAME DIBS_LEASE DIBS_FENCE DIBS_TTL

# ---- --reenter ----
nested 0 '--reenter runs the command' "$DIBS" run n -- "$DIBS" run n --reenter -- sh -c 'echo $DIBS_NAME $DIBS_FENCE; "$DIBS" ls n | grep -c holds'
like '--reenter: one holder, the same fence' "$(echo $out)" '^n [1-9][0-9]* 1$'
nested 0 '--reenter a, b, a' "$DIBS" run a -- sh -c 'echo $DIBS_LEASE; "$DIBS" run b -- "$DIBS" run a --reenter -- sh -c "echo \$DIBS_LEASE"'
is '--reenter a, b, a: the lease of a' "$(echo "$out" | sort -u | wc -l)" 1
nested 7 '--reenter: the status of the command' "$DIBS" run n -- "$DIBS" run n --reenter -- sh -c 'exit 7'
nested 127 '--reenter: no such command' "$DIBS" run n -- "$DIBS" run n --reenter -- /no/such/command
nested 0 '--reenter without an outer lease acquires' "$DIBS" run n --reenter -- sh -c '"$DIBS" ls n | grep -q holds'
nested 125 '--reenter: shared does not cover exclusive' "$DIBS" run n --shared -- "$DIBS" run n --reenter -- true
nested 0 '--reenter: exclusive covers shared' "$DIBS" run n -- "$DIBS" run n --shared --reenter -- true
"$DIBS" run n --ttl 5s -- "$DIBS" run n --reenter -- sh -c 'echo $$ >"$0"; sleep 60' "$dir/pid" 2>/dev/null &
run=$!
later $run
until_true 20 filled "$dir/pid"
"$DIBS" break n --quiet
ok '--reenter: it ends when the outer lease is lost' until_true 5 gone "$(cat "$dir/pid")"
done_testing
