#!/bin/bash
# SPDX-License-Identifier: MIT
# --wait also limits the time for reaching the server; services wait for it.
#   reach_test.sh VARIABLE KIND: with.sh --private has started the server of that kind
. "$(dirname "$0")/tap.sh"
store=${!1} kind=$2
: "${DIBS_TEST_SERVERS_SCRIPT:?names the script that starts and kills it}"
server() { "$DIBS_TEST_SERVERS_SCRIPT" "$1" --dir "$DIBS_TEST_SERVERS_DIR" "$kind" >/dev/null 2>&1; }
export DIBS_STORE=$store
waits_for_it() { grep -q 'trying again' "$dir/err.$1"; }

exits 0 'the server runs' "$DIBS" run n --try -- true
ok 'the server is killed' server kill
began=$(now_ms)
exits 123 '--wait 1s ends' "$DIBS" run n --wait 1s -- true
took=$(($(now_ms) - began))
ok "--wait 1s: not before ($took ms)" [ "$took" -ge 900 ]
ok "--wait 1s: nor long after ($took ms)" [ "$took" -lt 8000 ]
like '--wait 1s: the message' "$err" 'trying again for 1s'
is '--wait 1s: no password' "$(printf '%s' "$err" | grep -c secret)" 0
exits 123 '--try does not wait' "$DIBS" run n --try -- true
is '--try does not wait: one line' "$(printf '%s\n' "$err" | wc -l)" 1
exits 123 'a command that does not wait for a name does not wait for the store' "$DIBS" ls
exits 123 'lock' "$DIBS" lock n --wait 100ms
is 'lock: it fails in eval' "$out" '(exit 123)'

for how in '--wait 60s' ''; do
  # shellcheck disable=SC2086  # words are meant
  "$DIBS" run n $how -- sh -c 'echo ran' >"$dir/out.$kind" 2>"$dir/err.$kind" &
  run=$!
  later $run
  ok "run $how: it waits for the server" until_true 10 waits_for_it "$kind"
  ok "run $how: the server is started" server restart
  wait $run
  is "run $how: it runs" "$?$(cat "$dir/out.$kind")" 0ran
  ok 'the server is killed' server kill
done
"$DIBS" run n -- true 2>"$dir/err.$kind" &
run=$!
later $run
until_true 10 waits_for_it "$kind"
kill -TERM $run
wait $run
is 'a signal ends the wait for the server' $? 143
like 'a signal ends the wait for the server: the message' "$(cat "$dir/err.$kind")" 'gave up waiting for the store'

# ---- Services ----
if [ "$kind" != redis ]; then
  exits 123 'worker --once does not wait' "$DIBS" worker --kind k --once --exec true
  exits 123 'relay --once does not wait' "$DIBS" relay k --stdout --once
  "$DIBS" worker --kind k --exec true --verbose 2>"$dir/err.worker" &
  worker=$!
  "$DIBS" relay r --stdout >"$dir/lines" 2>"$dir/err.relay" &
  relay=$!
  later $worker $relay
  ok 'worker waits for the server' until_true 10 waits_for_it worker
  ok 'relay waits for the server' until_true 10 waits_for_it relay
  ok 'the server is started' server restart
  nr=$("$DIBS" task add k x --wait 60s)
  ok 'the worker works' until_true 60 grep -q "task $nr: done" "$dir/err.worker"
  "$DIBS" task add r line >/dev/null
  ok 'the relay delivers' until_true 60 grep -q '"line"' "$dir/lines"
  kill -TERM $worker $relay
  wait $worker
  is 'the worker ends with 0' $? 0
  wait $relay
  is 'the relay ends with 0' $? 0
  ok 'the server is killed' server kill
  "$DIBS" worker --kind k --exec true 2>"$dir/err.worker" &
  worker=$!
  later $worker
  until_true 10 waits_for_it worker
  kill -TERM $worker
  wait $worker
  is 'a signal ends the wait of a worker' $? 143

  # The store is unreachable when a verdict has to be sent, and stays so: the claim would last for minutes.
  ok 'the server is started' server restart
  nr=$("$DIBS" task add away x --wait 60s)
  "$DIBS" worker --kind away --timeout 10m --drain 1s --exec "touch $dir/away.begun; until [ -e $dir/away.go ]; do sleep 0.05; done" \
    2>"$dir/err.worker" &
  worker=$!
  later $worker
  ok 'its command runs' until_true 60 test -e "$dir/away.begun"
  ok 'the server is killed' server kill
  touch "$dir/away.go"
  began=$(now_ms)
  kill -TERM $worker
  wait $worker
  code=$?
  took=$(($(now_ms) - began))
  like 'TERM: the worker gives up on the store, with 123 or 124' "$code" '^12[34]$'
  ok "and soon ($took ms)" [ "$took" -lt 60000 ]
  like 'and says so' "$(cat "$dir/err.worker")" 'gave up sending how 1 task ended: it can be claimed again within 10m'

  # And a relay, which waits for its reader until then.
  ok 'the server is started' server restart
  mkfifo "$dir/lines.fifo"
  exec 7<>"$dir/lines.fifo"
  dd if=/dev/zero of="$dir/lines.fifo" bs=4096 count=64 oflag=nonblock conv=notrunc status=none 2>/dev/null
  "$DIBS" task add fifo line --wait 60s >/dev/null
  "$DIBS" relay fifo --stdout --ttl 10m >"$dir/lines.fifo" 2>"$dir/err.relay" &
  relay=$!
  later $relay
  claimed() { "$DIBS" task ls --kind fifo --state claimed | grep -q .; }
  ok 'its message is claimed' until_true 60 claimed
  ok 'the server is killed' server kill
  cat <&7 >"$dir/lines.read" &
  later $!
  ok 'and delivered' until_true 60 grep -aq '"line"' "$dir/lines.read"
  signalled() { ! kill -TERM $relay 2>/dev/null; }
  ok 'TERM, more than once: the relay gives up on the store soon, too' until_true 60 signalled
  wait $relay
  like 'and says so' "$(cat "$dir/err.relay")" 'not recorded: 1'
  exec 7>&-
fi

# ---- Session locks, which belong to the process that holds them ----
if [ "$kind" = redis ]; then
  done_testing
  exit
fi
ok 'the server is started' server restart
case $store in *\?*) join='&' ;; *) join='?' ;; esac
[ "$kind" = postgres ] && word=advisory || word=named
# In a schema or under a prefix of their own, because the cases before use rows.
export DIBS_STORE="$store${join}lock=$word&$([ "$word" = named ] && echo prefix=locks_ || echo schema=locks)"
exits 125 'lock of a session lock is refused' "$DIBS" lock n --wait 20s
is 'lock of a session lock: only the failure is printed' "$out" '(exit 125)'
like 'lock of a session lock: the message' "$err" "session lock belongs to the connection of this process"
exits 0 'and nothing remains held' "$DIBS" run n --wait 10s -- true
exits 125 'a session lock within itself' timeout 20 "$DIBS" run n -- "$DIBS" run n -- true
exits 125 'a session lock, --at-least' "$DIBS" run n --at-least 1s -- true
like 'a session lock, --at-least: the message' "$err" '^dibs: --at-least needs leases that stay'
exits 0 'a session lock, --reenter' timeout 20 "$DIBS" run n -- "$DIBS" run n --reenter -- true
done_testing
