#!/bin/bash
# SPDX-License-Identifier: MIT
# Relays of one outbox under failures: the receiver accepts, refuses, is slow and breaks connections at random
# (test/support/http_server.py), relays are killed and are stopped for longer than a claim lasts, and the server is
# killed, all while messages are added.  At the end each message is delivered or dead, none is lost or was invented, and
# those with a key arrived in their order (test/support/outbox_check.py).
#   $1: the URI of a store on a server; without it a file
#   with.sh --private: the server may be killed
. "$(dirname "$0")/tap.sh"
uri=${1:-}
. "$(dirname "$0")/sql.sh"
[ -z "$uri" ] || export DIBS_STORE=$uri
export no_proxy='*' PGCONNECT_TIMEOUT=5
relays=4 storm_s=12 batches=60 rest_s=100
d() { timeout -k 5 60 "$DIBS" "$@"; }
echo "# RANDOM=${seed:=$RANDOM}"
RANDOM=$seed

# ---- The program that adds messages, each batch in a transaction with a row of its own table ----

# Whether batch $1 is committed: the answer to a COMMIT may be lost.
is_added() { [ "$(sql "SELECT count(*) FROM storm_batch WHERE nr = $1" 2>/dev/null)" = 1 ]; }
add_batch() { # add_batch NR END PAYLOAD...
  local nr=$1 end=$2 payload key tries values=''
  shift 2
  for payload; do
    key=${payload##* } tries=100000
    case $payload in doomed*) tries=2 ;; esac
    [ "$key" != - ] && key="'$key'" || key=NULL
    values+="${values:+,}('storm', $(bytes "$payload"), $key, $tries)"
  done
  sql "BEGIN; INSERT INTO storm_batch VALUES ($nr);
    INSERT INTO dibs_task (kind, payload, serial, tries) VALUES $values; $end" >/dev/null 2>&1
}
add_all() {
  local batch i payloads by
  for ((batch = 1; batch <= batches; batch++)); do
    payloads=()
    for i in 0 1 2 3 4 5 6 7 8 9; do
      case $i in
        [0-5]) payloads+=("$batch.$i k$(((batch + i) % 8))") ;;
        *) payloads+=("$batch.$i -") ;;
      esac
    done
    ((batch % 12 == 0)) && payloads+=("doomed $batch -")
    ((batch == 20)) && payloads+=("bad $batch poisoned")
    ((batch > 15 && batch < 30)) && payloads+=("$batch.p poisoned")
    ((batch % 6 == 0)) && add_batch $((-batch)) ROLLBACK "never $batch -"
    printf '%s\n' "${payloads[@]}" >>"$dir/added"
    by=$(($(now_ms) + 60000))
    until add_batch "$batch" COMMIT "${payloads[@]}" || is_added "$batch"; do
      [ "$(now_ms)" -lt "$by" ] || return 1
      sleep 0.1
    done
    sleep "0.$(printf '%03d' $((storm_s * 800 / batches)))"
  done
}

# ---- Relays, and what happens to them ----

pids=() kills=0 stops=0 restarts=0
start_relay() {
  "$DIBS" relay storm --to "$url" --jobs 3 --ttl 1s --timeout 2s 2>>"$dir/relay$1.err" &
  pids[$1]=$!
  later $!
}
kill_relay() {
  kill -KILL "${pids[$1]}" 2>/dev/null
  wait "${pids[$1]}" 2>/dev/null
}
server() { "$DIBS_TEST_SERVERS_SCRIPT" "$1" --dir "$DIBS_TEST_SERVERS_DIR" >/dev/null 2>&1; }
restart_server() {
  server kill && server start && return
  report 1 'the server is killed, and starts'
}
harm() { # harm NTH
  local victim=$((RANDOM % relays)) i
  if [ -n "$uri" ] && (($1 % 6 == 3)); then
    restarts=$((restarts + 1))
    restart_server
  elif ((RANDOM % 2)); then
    kills=$((kills + 1))
    kill_relay $victim
    start_relay $victim
  else
    kill -STOP "${pids[victim]}" 2>/dev/null && stops=$((stops + 1))
    sleep "1.$(printf '%02d' $((RANDOM % 80)))"
    kill -CONT "${pids[victim]}" 2>/dev/null
  fi
  # A relay that found no server when it began has ended.
  for ((i = 0; i < relays; i++)); do alive "${pids[i]}" || start_relay $i; done
}

# ---- The storm ----

exits 0 'the store is created' d task counts
ok 'and a table of the program' sql 'CREATE TABLE storm_batch (nr INTEGER PRIMARY KEY)'
mkfifo "$dir/in"
"$PYTHON" -B "$HTTP_SERVER" "$dir/log" <"$dir/in" >"$dir/port" 2>"$dir/receiver.err" &
later $!
exec 8>"$dir/in"
ok 'the receiver starts' until_true 20 filled "$dir/port"
url=http://127.0.0.1:$(cat "$dir/port")/storm/$storm_s

add_all &
adding=$!
later $adding
for ((i = 0; i < relays; i++)); do start_relay $i; done
until_true 30 filled "$dir/log"
end=$(($(now_ms) + storm_s * 1000))
for ((nth = 0; $(now_ms) < end || nth < 8; nth++)); do
  harm $nth
  sleep "0.$(printf '%03d' $((100 + RANDOM % 400)))"
done
ok 'all messages are added' wait $adding

# ---- The rest, in calm ----

open_rows() { sql "SELECT count(*) FROM dibs_task WHERE kind = 'storm' AND (serial IS NULL OR serial <> 'poisoned')" 2>/dev/null; }
poisoned() { sql "SELECT count(*) FROM dibs_task WHERE kind = 'storm' AND serial = 'poisoned' AND state = 5" 2>/dev/null; }
calm() { # Those that failed wait for up to a minute: they are tried at once.
  local i
  for ((i = 0; i < relays; i++)); do alive "${pids[i]}" || start_relay $i; done
  d task retry --kind storm --state waiting >/dev/null 2>&1
  [ "$(open_rows)" = 0 ] && [ "$(poisoned)" = 1 ]
}
ok 'each message without the poisoned key is delivered or dead' until_true $rest_s calm
is 'nothing behind the poisoned message was delivered' "$(grep -c '"body": "2[0-9]\.p poisoned"' "$dir/log")" 0
takes_term() { # It blocks the signal, and reads it from a descriptor.
  local mask
  mask=$(awk '/^SigBlk/ { print $2 }' "/proc/$1/status")
  (((0x$mask >> 14) & 1))
}
for ((i = 0; i < relays; i++)); do
  until_true 20 takes_term "${pids[i]}"
  kill -TERM "${pids[i]}"
  wait "${pids[i]}"
  is 'a relay ends as usual' $? 0
done
exits 0 'the poisoned message is retried' d task retry --kind storm --state parked
exits 0 'by a relay whose receiver accepts it' d relay storm --to "${url%/*}/0?fair" --once --ttl 5s
row="CONCAT(state, ' ', $(text_of payload))"
[ -n "$uri" ] || row="state || ' ' || payload"
sql "SELECT $row FROM dibs_task WHERE kind = 'storm' UNION ALL SELECT $row FROM dibs_task_done WHERE kind = 'storm'" >"$dir/ends"
exits 0 'the rules are kept' "$PYTHON" -B "$OUTBOX_CHECK" "$dir/log" "$dir/added" "$dir/ends"
say "$out" "$kills relays were killed, $stops stopped; the server was killed $restarts times"
ok 'it was a storm' test $((kills + stops + restarts)) -ge 5
like 'messages that were accepted came again' "$out" ' [1-9][0-9]* accepted more than once'
like 'and some are dead' "$out" ' [1-9][0-9]* dead'
done_testing
