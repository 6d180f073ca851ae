#!/bin/bash
# SPDX-License-Identifier: MIT
# A command never outlives its lease: dibs is stopped, dibs is killed, the minder is killed, the lease is broken; with
# commands that ignore TERM, and with grandchildren that leave the group and the session.
. "$(dirname "$0")/tap.sh"

# The command of a run: writes its pid, starts a grandchild that leaves the session and one whose parent ends, and
# waits.  $0 is the folder; $1 is "stubborn" when TERM shall not end any of them.
cat >"$dir/family" <<'SH'
[ "${2:-}" = stubborn ] && trap '' TERM
exec >/dev/null 2>&1
# Ends by itself if no process ends it.
linger='i=0; while [ $((i += 1)) -lt 180 ]; do sleep 1; done'
setsid sh -c 'echo $$ >"$0/session.tmp"; mv "$0/session.tmp" "$0/session"; '"$linger" "$1" &
sh -c 'sh -c "$1" "$0" &' "$1" 'echo $$ >"$0/orphan.tmp"; mv "$0/orphan.tmp" "$0/orphan"; '"$linger"
echo $$ >"$1/command.tmp"
mv "$1/command.tmp" "$1/command"
eval "$linger"
SH

all_there() { filled "$dir/command" && filled "$dir/session" && filled "$dir/orphan"; }
# begin STUBBORN OPTIONS...: sets run, command, session, orphan, minder.
begin() {
  local stubborn=$1
  shift
  rm -f "$dir/command" "$dir/session" "$dir/orphan"
  "$DIBS" run name "$@" -- sh "$dir/family" "$dir" "$stubborn" 2>"$dir/err" &
  run=$!
  later "$run"
  until_true 20 all_there || say "the command did not start: $(cat "$dir/err")"
  command=$(cat "$dir/command") session=$(cat "$dir/session") orphan=$(cat "$dir/orphan")
  minder=$(minder_of "$run")
  later "$command" "$session" "$orphan"
}
family_gone() { gone "$command" && gone "$session" && gone "$orphan"; }
# No client may be granted the name while a process of the family lives: another run waits for the grant and checks.
next_holder_is_alone() {
  "$DIBS" run name --wait 60s -- sh -c '
    for pid; do
      [ -d "/proc/$pid" ] && ! grep -q "^State:.*Z" "/proc/$pid/status" 2>/dev/null && echo "pid $pid lives"
    done' look "$command" "$session" "$orphan" >"$dir/look" 2>&1
  is "$1: the next holder finds none of them" "$(cat "$dir/look")" ''
}

for stubborn in polite stubborn; do
  # dibs is killed.
  begin $stubborn --ttl 4s
  kill -KILL "$run"
  next_holder_is_alone "$stubborn, dibs is killed"
  ok "$stubborn, dibs is killed: its minder ends, too" until_true 10 gone "$minder"
  like "$stubborn, dibs is killed: the minder's message" "$(cat "$dir/err")" "^dibs: dibs was killed while .*'name'"
  wait "$run" 2>/dev/null

  # dibs is stopped for longer than the lease lasts.
  begin $stubborn --ttl 4s
  kill -STOP "$run"
  next_holder_is_alone "$stubborn, dibs is stopped"
  kill -CONT "$run"
  wait "$run"
  is "$stubborn, dibs is stopped: it exits with 122 when it continues" $? 122
  like "$stubborn, dibs is stopped: the message" "$(cat "$dir/err")" "^dibs: the lease of 'name' was lost and .*could not renew it in time"
  is "$stubborn, dibs is stopped: one line" "$(wc -l <"$dir/err")" 1

  # The minder is killed.
  begin $stubborn --ttl 20s
  kill -KILL "$minder"
  ok "$stubborn, the minder is killed: dibs ends the command" until_true 15 family_gone
  wait "$run"
  is "$stubborn, the minder is killed: dibs exits with 119" $? 119
  like "$stubborn, the minder is killed: the message" "$(cat "$dir/err")" "^dibs: the minder of 'name' was killed"
  ok "$stubborn, the minder is killed: the lease is released" free name

  # A command breaks the lease.
  begin $stubborn --ttl 20s --grace 1s
  began=$(now_ms)
  ok "$stubborn, broken: break ends when the holder has released" "$DIBS" break name --wait 15s --owner 'the boss'
  took=$(($(now_ms) - began))
  ok "$stubborn, broken: no process remains" family_gone
  wait "$run"
  is "$stubborn, broken: dibs exits 122" $? 122
  like "$stubborn, broken: dibs names the author of the break" "$(cat "$dir/err")" "lost and dibs ended the command .*the boss broke it"
  ok "$stubborn, broken: long before the ttl ends ($took ms)" [ "$took" -lt 12000 ]

  # The whole tree is stopped past the ttl: it cannot act, and ends when it continues.
  begin $stubborn --ttl 1s
  kill -STOP "$run" "$minder" "$command" "$session" "$orphan"
  ok "$stubborn, all stopped: the name is free when the ttl ends" "$DIBS" run name --wait 30s -- true
  kill -CONT "$minder" "$run"
  ok "$stubborn, all stopped: it ends when it continues" until_true 15 family_gone
  wait "$run"
  is "$stubborn, all stopped: dibs exits 122" $? 122
done

# TERM gives the command time to clean up, but not more than the grace.
"$DIBS" run tidy --ttl 10s --grace 3s -- sh -c 'trap "echo tidied >\"$0/tidied\"; exit 0" TERM; echo >"$0/up"
  while :; do sleep 0.1; done' "$dir" 2>"$dir/err" &
run=$!
later $run
until_true 20 filled "$dir/up" || until_true 1 test -e "$dir/up"
"$DIBS" break tidy --quiet
wait $run
is 'a command that cleans up on TERM: still 122' $? 122
is 'a command that cleans up on TERM: it had the time' "$(cat "$dir/tidied" 2>&1)" tidied
like 'a command that cleans up on TERM: the message has its status' "$(cat "$dir/err")" 'the command exited with 0'

# dibs can also end a stopped command.
"$DIBS" run stopped --ttl 3s -- sh -c 'echo $$ >"$0/pid"; while :; do sleep 1; done' "$dir" 2>"$dir/err" &
run=$!
later $run
until_true 20 filled "$dir/pid"
command=$(cat "$dir/pid")
kill -STOP "$command"
until_true 10 is_stopped "$command"
sleep_past=$(($(now_ms) + 3500))
past() { [ "$(now_ms)" -gt "$sleep_past" ]; }
until_true 5 past
ok 'a command that a signal stopped keeps its lease' holds stopped
"$DIBS" break stopped --quiet
wait $run
is 'a stopped command is ended by a break' $? 122
ok 'a stopped command ends' gone "$command"
done_testing
