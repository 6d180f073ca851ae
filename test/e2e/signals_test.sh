#!/bin/bash
# SPDX-License-Identifier: MIT
# Signals reach the command, dibs returns its status, and a signal interrupts a waiting dibs.
. "$(dirname "$0")/tap.sh"

# Prints the signal that it received.
cat >"$dir/listen" <<'SH'
for s in TERM INT HUP QUIT USR1 USR2 WINCH; do trap "echo $s >\"$1/got\"; exit 40" "$s"; done
echo up >"$1/up"
while :; do sleep 0.05; done
SH
for s in TERM INT HUP QUIT USR1 USR2 WINCH; do
  rm -f "$dir/up" "$dir/got"
  # A shell without job control starts background commands with INT and QUIT ignored, and dibs keeps that.
  (
    trap - INT QUIT
    exec env --default-signal=INT,QUIT "$DIBS" run sig -- bash "$dir/listen" "$dir"
  ) &
  run=$!
  later $run
  until_true 20 filled "$dir/up"
  kill -"$s" $run
  wait $run
  is "$s: the command's status is returned" $? 40
  is "$s reached the command" "$(cat "$dir/got" 2>&1)" "$s"
done

env --default-signal=INT,QUIT "$DIBS" run sig -- sleep 60 &
run=$!
later $run
until_true 20 holds sig
kill -TERM $run
wait $run
is 'a command that TERM ends: 128 + 15' $? 143
ok 'the lease is released then' free sig

# Ignored signals stay ignored (nohup).
(
  trap '' HUP
  exec "$DIBS" run sig -- sh -c 'kill -HUP $$; echo survived'
) >"$dir/out"
is 'a signal that dibs was started to ignore is ignored by the command' "$(cat "$dir/out")" survived

# The command gets the mask and the dispositions that dibs had.  (32 and 33 are the C library's own.)
signals_of() { # signals_of FIELD COMMAND...: of /proc/self/status
  local field=$1 set
  shift
  set=$("$@" grep "^$field" /proc/self/status)
  printf '%x\n' $((0x${set##*[^0-9a-f]} & ~0x180000000))
}
for field in SigBlk SigIgn; do
  is "$field of the command is that of dibs" "$(signals_of $field "$DIBS" run sig --)" "$(signals_of $field env)"
done
is 'an ignored signal stays ignored, the others not' "$(
  trap '' USR1
  signals_of SigIgn env --default-signal=INT,QUIT "$DIBS" run sig -- # which are ignored in a background job
)" 200
is 'and no descriptor except those of dibs' "$("$DIBS" run sig -- sh -c 'ls /proc/self/fd' | wc -l)" \
  "$(sh -c 'ls /proc/self/fd' | wc -l)"
is 'but the descriptors that dibs inherited' "$("$DIBS" run sig -- sh -c 'echo through >&7' 7>&1)" through
is 'standard input passes through' "$(echo words | "$DIBS" run sig -- cat)" words

# A signal ends the wait, and the waiter leaves the queue at once.
"$DIBS" lock busy --ttl 1h >"$dir/lease"
for s in TERM INT HUP QUIT USR1; do
  env --default-signal=INT,QUIT "$DIBS" run busy -- true 2>"$dir/err" &
  run=$!
  later $run
  until_true 20 waits busy
  kill -"$s" $run
  wait $run
  is "$s while waiting: 128 + it" $? $((128 + $(kill -l "$s")))
  like "$s while waiting: the message" "$(cat "$dir/err")" "^dibs: gave up waiting for 'busy'"
  ok "$s while waiting: no waiter remains" waits busy 0
done

# A waiter that is stopped and continued is still granted the name.
"$DIBS" run busy -- true &
run=$!
later $run
until_true 20 waits busy
kill -TSTP $run
until_true 10 is_stopped $run
kill -CONT $run
"$DIBS" unlock - <"$dir/lease"
wait $run
is 'stopped and continued while waiting: it is granted the name' $? 0

# kill of the process group of dibs does not reach the minder.
setsid "$DIBS" run sig --ttl 2s -- sh -c 'echo $$ >"$0/pid"; while :; do sleep 1; done' "$dir" 2>/dev/null &
until_true 20 filled "$dir/pid"
command=$(cat "$dir/pid")
minder=$(awk '{print $4}' "/proc/$command/stat")
run=$(awk '{print $4}' "/proc/$minder/stat")
later "$command" "$run"
is 'the command has a process group of its own' "$(awk '{print $5}' "/proc/$command/stat")" "$command"
is 'so has the minder' "$(awk '{print $5}' "/proc/$minder/stat")" "$minder"
kill -KILL -- "-$(awk '{print $5}' "/proc/$run/stat")"
ok 'killing the group of dibs: the minder ends the command' until_true 10 gone "$command"
ok 'killing the group of dibs: and then itself' until_true 10 gone "$minder"
done_testing
