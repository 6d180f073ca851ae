#!/bin/bash
# SPDX-License-Identifier: MIT
# Ending the command never waits: neither for the reader of standard error or output, nor for a stopped minder; and the
# command ends when dibs and the minder are killed together.
. "$(dirname "$0")/tap.sh"
: "${HOLD_PROCESS:?names the program that stops a process}"

# A full pipe whose reader never reads.
mkfifo "$dir/full"
exec 7<>"$dir/full"
dd if=/dev/zero of="$dir/full" bs=4096 oflag=nonblock 2>/dev/null
dd if=/dev/zero of="$dir/full" bs=1 oflag=nonblock 2>/dev/null

cat >"$dir/job" <<'SH'
echo $$ >"$0.tmp.$1"
mv "$0.tmp.$1" "$0.pid.$1"
i=0
while [ $((i += 1)) -lt 600 ]; do sleep 0.1; done
SH
# begin NAME OPTION...: a run of NAME whose standard output and error are full; sets run, command, minder.
out_file=$dir/full err_file=$dir/full
begin() {
  local name=$1
  "$DIBS" run "$@" -- sh "$dir/job" "$name" >"$out_file" 2>"$err_file" &
  run=$!
  later "$run"
  until_true 20 filled "$dir/job.pid.$name" || say 'the command did not start'
  command=$(cat "$dir/job.pid.$name")
  minder=$(minder_of "$run")
  later "$command" "$minder"
}

# The status of the run; a run that does not end is killed.
end_run() {
  until_true 10 gone "$run" || kill -KILL "$run" "$minder" "$command" 2>/dev/null
  wait "$run" 2>/dev/null
}

# ---- Standard output and error are full ----
begin killed --ttl 3s
kill -KILL "$run"
ok 'full, dibs is killed: the minder ends the command' until_true 10 gone "$command"
ok 'full, dibs is killed: before the next one can hold the name' "$DIBS" run killed --wait 10s -- true
ok 'full, dibs is killed: the minder ends, too' until_true 10 gone "$minder"

begin broken --ttl 6s
ok 'full, broken: the break does not wait' "$DIBS" break broken --now --quiet
ok 'full, broken: dibs ends the command' until_true 5 gone "$command"
end_run
is 'full, broken: with 122' $? 122

begin json --ttl 6s --json
"$DIBS" break json --now --quiet
end_run
is 'full, --json, broken: with 122' $? 122

begin unminded --ttl 20s
kill -KILL "$minder"
ok 'full, the minder is killed: dibs ends the command' until_true 5 gone "$command"
end_run
is 'full, the minder is killed: dibs ends with 119' $? 119

# A waiter must not block on the reader either: a blocked process would hold the grant.
"$DIBS" lock busy --ttl 1h >"$dir/lease"
"$DIBS" run busy --store "$DIBS_STORE" -- sh -c 'echo >"$0"' "$dir/ran" 2>"$dir/full" &
waiter=$!
later "$waiter"
until_true 20 waits busy
"$DIBS" unlock - <"$dir/lease"
until_true 10 gone "$waiter" || kill -KILL "$waiter"
wait "$waiter" 2>/dev/null
is 'full: the waiter is granted the name' "$?,$(wc -l <"$dir/ran")" 0,1

# once passes the output on: both streams go into one pipe that can hold one block.
mkfifo "$dir/narrow"
exec 6<>"$dir/narrow"
dd if=/dev/zero of="$dir/narrow" bs=4096 oflag=nonblock 2>/dev/null
dd if="$dir/narrow" of=/dev/null bs=4096 count=1 2>/dev/null
"$DIBS" once both --ttl 2s -- sh -c 'head -c 3000 /dev/zero; head -c 3000 /dev/zero >&2; sleep 3; echo >"$0"' "$dir/both" \
  >"$dir/narrow" 2>"$dir/narrow" &
once=$!
later "$once"
ok 'once: a full pipe does not lose the lease' until_true 15 test -e "$dir/both"
kill -KILL "$once"
exec 6<&-

# ---- A closed reader, closed streams ----
"$DIBS" run nobody --ttl 5s -- sh -c 'exec >/dev/null 2>&1; echo >"$0"; sleep 30' "$dir/up" 2>&1 >/dev/null | true &
until_true 20 test -e "$dir/up"
ok 'no reader: a break ends the command' "$DIBS" break nobody --wait 10s --quiet
"$DIBS" break nobody --quiet
"$DIBS" lock taken --ttl 1h >/dev/null
(trap - PIPE; "$DIBS" run taken --try -- true 2>&1; echo $? >"$dir/code") | true
until_true 20 filled "$dir/code"
is 'no reader of the message: the exit code is the same' "$(cat "$dir/code")" 120

for closed in '0<&-' '1>&-' '2>&-' '1>&- 2>&-' '0<&- 1>&- 2>&-'; do
  file=$dir/closed.db
  rm -f "$file"*
  eval "\"$DIBS\" run x --store 'sqlite://$file' -- sh -c 'echo out; echo err >&2; read line; exit 3' $closed" \
    >/dev/null 2>&1 </dev/null
  is "closed $closed: the command runs" $? 3
  "$DIBS" run y --store "sqlite://$file" -- true 2>"$dir/err"
  is "closed $closed: the store is intact" "$?$(cat "$dir/err")" 0
done
"$DIBS" run x -- sh -c '{ echo out; } 2>/dev/null || echo >"$0"' "$dir/unwritable" >&-
ok 'closed: the command also sees the closed stream' test -e "$dir/unwritable"
"$DIBS" ls >&- 2>"$dir/err" <&-
like 'closed: output that cannot be written is a failure' "$?$(cat "$dir/err")" "^119dibs: cannot write standard output"

# ---- The minder is stopped ----
out_file=/dev/null err_file=$dir/err
# stop_minder HOW: "stopped" uses a signal, which dibs can undo; "held" uses tracing, which dibs cannot undo.
stop_minder() {
  if [ "$1" = stopped ]; then
    kill -STOP "$minder" && until_true 5 is_stopped "$minder"
  else
    rm -f "$dir/held"
    "$HOLD_PROCESS" "$minder" >"$dir/held" &
    holder=$!
    later $holder
    until_true 5 filled "$dir/held"
  fi
}
for how in stopped held; do
  begin "minder-$how" --ttl 6s --grace 1s
  if ! stop_minder $how; then
    report 0 "minder $how # SKIP tracing is not permitted here"
    kill -KILL "$run" "$command"
    continue
  fi
  began=$(now_ms)
  "$DIBS" break "minder-$how" --now --quiet
  ok "minder $how: the command ends" until_true 5 gone "$command"
  took=$(($(now_ms) - began))
  ok "minder $how: within the ttl ($took ms)" [ "$took" -lt 6000 ]
  end_run
  is "minder $how: with 122" $? 122
  like "minder $how: the message" "$(cat "$dir/err")" '^dibs: the lease of .* was lost and dibs ended the command'
  ok "minder $how: the minder ends" until_true 5 gone "$minder"
done
begin stopped-for-a-while --ttl 3s
kill -STOP "$minder"
running() { ! is_stopped "$minder"; }
ok 'a stopped minder is continued' until_true 5 running
kill -TERM "$run"
end_run
is 'and passes signals on again' $? 143

# ---- dibs and the minder are killed together ----
out_file=/dev/null err_file=$dir/err
begin both --ttl 60s
# Stopped first, so that it cannot act between the two signals.
kill -STOP "$minder"
until_true 5 is_stopped "$minder"
kill -KILL "$run" "$minder"
ok 'both are killed: the kernel ends the command' until_true 5 gone "$command"
begin both-again --ttl 60s
kill -STOP "$run"
until_true 5 is_stopped "$run"
kill -KILL "$minder"
ok 'dibs is stopped, the minder killed: the kernel ends the command' until_true 5 gone "$command"
kill -KILL "$run"
done_testing
