#!/bin/bash
# SPDX-License-Identifier: MIT
# Several runs of one name: one at a time, in the order of their requests, each with a larger fence.
. "$(dirname "$0")/tap.sh"

"$DIBS" lock turn --ttl 1h >"$dir/lease"
for i in 1 2 3 4 5; do
  "$DIBS" run turn -- sh -c 'echo "begin $1 $DIBS_FENCE" >>"$0/log"; sleep 0.05; echo "end $1 $DIBS_FENCE" >>"$0/log"' "$dir" $i &
  later $!
  until_true 20 waits turn $i || say "the waiter $i did not appear"
done
is 'five wait in the queue' "$("$DIBS" ls turn | awk '/waits/ { print $3 }' | tr -d '\n')" '#1#2#3#4#5'
"$DIBS" unlock - <"$dir/lease"
wait
is 'each ran, one after another' "$(awk '{ print $1 $2 }' "$dir/log" | tr '\n' ' ')" \
  'begin1 end1 begin2 end2 begin3 end3 begin4 end4 begin5 end5 '
is 'fences grew from run to run' "$(awk '/begin/ { if ($3 <= last) print "fell"; last = $3 }' "$dir/log")" ''

# A counter that only the lease protects.
echo 0 >"$dir/counter"
for i in 1 2 3 4 5 6; do
  (for j in 1 2 3 4 5; do
    "$DIBS" run count -- sh -c 'n=$(cat "$0"); echo $((n + 1)) >"$0"' "$dir/counter"
  done) &
done
wait
is 'six processes count to thirty' "$(cat "$dir/counter")" 30

# Readers share, a writer waits for them, and later readers do not starve it.
reader() { "$DIBS" run rw --shared -- sh -c 'echo "r $1" >>"$0/rw"; while [ ! -e "$0/go" ]; do sleep 0.02; done; echo "x $1" >>"$0/rw"' "$dir" "$1"; }
both_read() { [ "$(grep -c '^r' "$dir/rw" 2>/dev/null)" = 2 ]; }
reader 1 & reader 2 &
ok 'two readers hold at once' until_true 20 both_read
"$DIBS" run rw -- sh -c 'echo "w" >>"$0/rw"' "$dir" &
until_true 20 waits rw
reader 3 &
until_true 20 waits rw 2
touch "$dir/go"
wait
is 'the writer ran after the first readers and before the third' "$(awk '{ print $1 }' "$dir/rw" | tr -d '\n')" rrxxwrx

# Slots: at most two at once, each with a slot of its own.
for i in 1 2 3 4; do
  "$DIBS" run seats --slots 2 -- sh -c '
    mkdir "$0/slot.$DIBS_SLOT" || echo "slot $DIBS_SLOT is taken" >>"$0/clash"
    sleep 0.1
    rmdir "$0/slot.$DIBS_SLOT"; echo "$DIBS_SLOT" >>"$0/slots"' "$dir" &
done
wait
is 'no slot had two holders at once' "$(cat "$dir/clash" 2>/dev/null)" ''
is 'four runs used the two slots' "$(sort "$dir/slots" | tr -d '\n' | sed 's/[01]//g'; wc -l <"$dir/slots")" 4
done_testing
