#!/bin/bash
# SPDX-License-Identifier: MIT
# dibs relay: messages that other programs insert, delivered to a receiver that behaves as its paths say
# (test/support/http_server.py) and as lines of JSON.  $1: the URI of a store on a server; without it a file.
. "$(dirname "$0")/tap.sh"
uri=${1:-}
. "$(dirname "$0")/sql.sh"
[ -z "$uri" ] || export DIBS_STORE=$uri
export no_proxy='*'
d() { timeout -k 5 60 "$DIBS" "$@"; }

# ---- Messages and the receiver ----

add() { # add KIND PAYLOAD [KEY]
  sql "INSERT INTO dibs_task (kind, payload, serial) VALUES ('$1', $(bytes "$2"), $([ -n "${3:-}" ] && echo "'$3'" || echo NULL))"
}
add_many() { # add_many KIND COUNT [KEYS]: payloads from 1 to COUNT, with keys k0 k1 ...
  local i values=''
  for ((i = 1; i <= $2; i++)); do
    values+="${values:+,}('$1', $(bytes "$i"), $([ -n "${3:-}" ] && echo "'k$((i % $3))'" || echo NULL))"
    if ((i % 500 == 0 || i == $2)); then
      sql "INSERT INTO dibs_task (kind, payload, serial) VALUES $values"
      values=''
    fi
  done
}
states() { # of a kind, by number: 6 is done, 7 dead, 5 parked
  sql "SELECT state FROM (SELECT nr, state FROM dibs_task WHERE kind = '$1' UNION ALL SELECT nr, state FROM dibs_task_done WHERE kind = '$1') t ORDER BY nr" | xargs
}
count_state() { states "$1" | tr ' ' '\n' | grep -c "^$2\$"; }
errors() { sql "SELECT $(text_of e.text) FROM dibs_task_error e JOIN dibs_task_done t ON t.nr = e.nr WHERE t.kind = '$1' ORDER BY e.nr, e.fence"; }

# receiver LOG [CERTIFICATE KEY]: sets $port.  It ends with this script.
receivers=0
receiver() {
  receivers=$((receivers + 1))
  mkfifo "$dir/in$receivers"
  "$PYTHON" -B "$HTTP_SERVER" "$@" <"$dir/in$receivers" >"$dir/port$receivers" 2>"$dir/receiver.err" &
  later $!
  exec {held}>"$dir/in$receivers"
  until_true 10 filled "$dir/port$receivers" || report 1 'the receiver starts'
  port=$(cat "$dir/port$receivers")
}
# requests KIND EXPRESSION: prints it for each request of that kind in the log; r is the request, h its headers.
requests() {
  "$PYTHON" -c '
import json, sys
for line in open(sys.argv[1]):
    r = json.loads(line)
    h = r["headers"]
    if h["dibs-kind"] == sys.argv[2]: print(eval(sys.argv[3]))' "$dir/log" "$1" "$2"
}
url() { echo "http://127.0.0.1:$port/$1"; }
relay() { # relay KIND PATH [OPTION...]
  local kind=$1 path=$2
  shift 2
  d relay "$kind" --to "$(url "$path")" --once --timeout 1s "$@"
}

exits 0 'the store is created' d relay nothing --stdout --once
is 'without a message nothing is printed' "$out" ''
receiver "$dir/log"

# ---- As lines ----

add lines 'text "quoted" and é'
add lines '{"a": 1}' key-1
sql "INSERT INTO dibs_task (kind, payload, phase, priority) VALUES ('lines', $(hex ff00), 'step', -1)"
exits 0 'messages become lines' d relay lines --stdout --once
is 'one line each' "$(wc -l <<<"$out")" 3
is 'each is JSON' "$(while read -r line; do "$JSON_CHECK" <<<"$line" && echo fine; done <<<"$out" | xargs)" 'fine fine fine'
like 'a text' "$out" '"kind":"lines","key":"","phase":"","fence":[1-9][0-9]*,"attempt":1,"made":"20[0-9-]*T[0-9:.]*Z","payload":"text \\"quoted\\" and é"}$'
like 'a message with a key' "$out" '"key":"key-1",.*"payload":"\{\\"a\\": 1\}"\}$'
like 'other bytes are base64' "$out" '"phase":"step",.*"payload_base64":"/wA="\}$'
is 'they are done' "$(states lines)" '6 6 6'
exits 0 'and are not printed again' d relay lines --stdout --once
is 'nothing' "$out" ''

add_many full 50
exits 119 'standard output is full' sh -c '"$DIBS" relay full --stdout --once >/dev/full'
like 'and the reason' "$err" 'cannot write standard output: No space left'
is 'nothing is delivered' "$(count_state full 6)" 0
d relay full --stdout --once 2>/dev/null | sed 's/.*"payload":"\([0-9]*\)".*/\1/' | sort -n >"$dir/got"
is 'all are delivered later' "$(cat "$dir/got")" "$(seq 50)"
is 'without a failed try' "$(sql "SELECT count(*) FROM dibs_task_done WHERE kind = 'full' AND fails > 0")" 0

add_many closed 50
exits 119 'the reader has ended' bash -c 'exec 3> >(:); wait $!; exec "$DIBS" relay closed --stdout --once >&3 2>"$0"' "$dir/closed.err"
d relay closed --stdout --once 2>/dev/null | wc -l >"$dir/got"
ok 'what was not written comes later' test "$(($(cat "$dir/got") + 0))" -le 50
is 'and is done then' "$(count_state closed 6)" 50

# A reader that has stopped reading.
add_many stopped 3000
mkfifo "$dir/pipe"
exec 8<>"$dir/pipe"
"$DIBS" relay stopped --stdout --ttl 3s >"$dir/pipe" 2>"$dir/stopped.err" &
pid=$!
later $pid
sleep 5 # longer than a claim lasts
kill -TERM $pid
wait $pid
is 'TERM while the reader does not read' $? 0
written=$(timeout 1 cat <&8 | wc -l)
exec 8>&-
is 'what was written is done' "$(count_state stopped 6)" "$written"
is 'the rest was given back' "$(sql "SELECT count(*) FROM dibs_task WHERE kind = 'stopped' AND state < 2 AND fails = 0")" "$((3000 - written))"

# ---- By HTTP ----

add sent 'a payload' 'Kundé 1'
exits 0 'a message is sent' relay sent status/200 --header 'Content-Type: text/plain' --header 'X-More: yes'
nr=$(sql "SELECT nr FROM dibs_task_done WHERE kind = 'sent'")
is 'with its payload' "$(requests sent 'r["body"]')" 'a payload'
like 'and its headers' "$(requests sent 'h["idempotency-key"], h["dibs-task"], h["dibs-fence"], h["dibs-attempt"], h["dibs-key"], h["content-type"], h["x-more"]')" \
  "^\\('sent-$nr-[1-9][0-9]{12}', '$nr', '[1-9][0-9]*', '1', 'Kund%C3%A9%201', 'text/plain', 'yes'\\)\$"
like 'and counted' "$err" 'delivered 1 messages'
printf 'Authorization: Bearer secret\r\n\nX-Other: 2\n' >"$dir/headers"
add filed x
exits 0 'headers from a file' relay filed status/200 --header "@$dir/headers"
is 'are sent' "$(requests filed 'h["authorization"], h["x-other"], h["content-type"]')" "('Bearer secret', '2', 'application/octet-stream')"

sql "BEGIN; INSERT INTO dibs_task (kind, payload) VALUES ('undone', $(bytes never)); ROLLBACK;
  BEGIN; INSERT INTO dibs_task (kind, payload) VALUES ('undone', $(bytes once)); COMMIT"
exits 0 'a transaction that was rolled back' relay undone status/200
is 'sent nothing' "$(requests undone 'r["body"]')" once

for status in 301 400 404 410; do
  add "dead$status" x
  exits 0 "HTTP $status" relay "dead$status" "status/$status?Location=http://elsewhere/&body=no"
  is 'is dead at once' "$(states "dead$status")" 7
  like 'with the answer' "$(errors "dead$status")" "^HTTP $status.*: no\$"
  is 'and was sent once' "$(requests "dead$status" 1)" 1
done
for status in 408 425 500; do
  add "again$status" x
  exits 0 "HTTP $status" relay "again$status" "then/$status,200"
  until_true 10 sh -c "\"\$DIBS\" relay again$status --to $(url "then/$status,200") --once; [ \$(grep -c again$status-$(sql "SELECT max(nr) FROM (SELECT nr FROM dibs_task WHERE kind='again$status' UNION SELECT nr FROM dibs_task_done WHERE kind='again$status') t") '$dir/log') = 2 ]"
  is 'is tried again' "$(states "again$status")" 6
  is 'with one key' "$(requests "again$status" 'h["idempotency-key"]' | sort -u | wc -l)" 1
  is 'and a larger fence' "$(requests "again$status" 'h["dibs-attempt"] + " " + h["dibs-fence"]' |
    awk 'NR == 1 { first = $2 } { printf "%s %s ", $1, ($2 > first ? "larger" : "first") }')" '1 first 2 larger '
done

add later x
relay later 'then/429,200?Retry-After=2' 2>/dev/null
until_true 10 sh -c "\"\$DIBS\" relay later --to $(url 'then/429,200?Retry-After=2') --once 2>/dev/null; [ \$(grep -c '\"later-' '$dir/log') = 2 ]"
requests later 'r["at"]' | xargs >"$dir/at"
read -r first second <"$dir/at"
ok 'Retry-After is the least pause' test "$((second - first))" -ge 2000

for path in close reset garbage old short headers line continue hang drip; do
  add "bad-$path" x
  exits 0 "the receiver: $path" relay "bad-$path" "$path" --tries 1
  is 'a failed try' "$(states "bad-$path")" 7
  ok 'with a reason' test -n "$(errors "bad-$path")"
done
add nobody x
exits 0 'no receiver' d relay nobody --to http://127.0.0.1:1/ --tries 1 --once
like 'is a failed try' "$(errors nobody)" 'connect'

# A key whose message fails too often is parked, and the others continue.
for n in 1 2; do add keyed "first $n" bad; add keyed "other $n" good; done
exits 0 'a parked key' relay keyed status/500 --tries 1
exits 0 'its later messages wait' relay keyed status/200
is 'for a person' "$(states keyed)" '5 5 4 4'

# ---- To a command ----

add command 'for a command' key-9
exits 0 'a command gets a message' d relay command --once --exec "cat >'$dir/payload'; env >'$dir/env'"
is 'on its standard input' "$(cat "$dir/payload")" 'for a command'
like 'with its environment' "$(grep -E '^DIBS_(KIND|KEY|FENCE|ATTEMPT)=' "$dir/env" | sort | xargs)" \
  '^DIBS_ATTEMPT=1 DIBS_FENCE=[1-9][0-9]* DIBS_KEY=key-9 DIBS_KIND=command$'
is 'and it is delivered' "$(states command)" 6
for code in 1 75 85 86 87 255; do
  add "exit$code" x
  exits 0 "a command that exits with $code" d relay "exit$code" --once --tries 1 --exec "echo no luck; exit $code"
  is 'is a failed try' "$(states "exit$code")" 7
  like 'with its output' "$(errors "exit$code" | xargs)" 'no luck'
done

# ---- Order, and two relays ----

add_many ordered 24 4
for n in 1 2; do
  "$DIBS" relay ordered --to "$(url then/500,200)" >"$dir/ordered$n" 2>&1 &
  relays[n]=$!
  later $!
done
until_true 60 bash -c "[ \$(grep -c '\"ordered-' '$dir/log') -ge 48 ]"
until_true 10 test "$(count_state ordered 6)" = 24
kill -TERM "${relays[@]}"
wait "${relays[1]}"
is 'TERM ends a relay with 0' $? 0
wait "${relays[2]}"
is 'and another' $? 0
for key in 0 1 2 3; do
  is "k$key is in order, each message after the one before it" "$(requests ordered 'r["body"] if h["dibs-key"] == "k'$key'" else ""' | xargs -n 1 | uniq | xargs)" \
    "$(seq 1 24 | awk -v key="$key" '$1 % 4 == key' | xargs)"
done

add_many shared 400
"$DIBS" relay shared --to "$(url slow/2)" --once 2>/dev/null &
other=$!
later $other
exits 0 'two relays share messages' d relay shared --to "$(url slow/2)" --once
wait $other
is 'and send each once' "$(requests shared 'int(r["body"])' | sort -n)" "$(seq 400)"

# ---- A relay that is killed ----

add_many killed 1000
"$DIBS" relay killed --to "$(url slow/5)" --jobs 8 --ttl 1s 2>/dev/null &
pid=$!
later $pid
until_true 30 bash -c "[ \$(grep -c '\"killed-' '$dir/log') -ge 300 ]"
kill -KILL $pid
wait $pid 2>/dev/null
before=$(requests killed 1 | wc -l)
ok 'it is killed in the middle' test "$before" -lt 1000
all_done() {
  "$DIBS" relay killed --to "$(url status/200)" --ttl 1s --once 2>/dev/null
  [ "$(count_state killed 6)" = 1000 ]
}
ok 'another relay delivers the rest' until_true 30 all_done
is 'nothing is lost' "$(requests killed 'int(r["body"])' | sort -nu)" "$(seq 1000)"
twice=$(($(requests killed 1 | wc -l) - 1000))
ok "only what was in flight comes twice: $twice" test "$twice" -le 32
requests killed 'h["dibs-task"] + " " + h["dibs-fence"]' | sort -k 1,1n -s >"$dir/fences"
is 'with growing fences' "$(awk '$1 == task && $2 <= fence { print } { task = $1; fence = $2 }' "$dir/fences")" ''

# ---- TERM ----

add_many drained 40
"$DIBS" relay drained --to "$(url slow/400)" --jobs 4 2>"$dir/drained.err" &
pid=$!
later $pid
until_true 10 bash -c "[ \$(grep -c '\"drained-' '$dir/log') -ge 4 ]"
kill -TERM $pid
wait $pid
is 'TERM' $? 0
is 'finishes what has begun' "$(count_state drained 6)" "$(requests drained 1 | wc -l)"
is 'gives the rest back' "$(sql "SELECT count(*) FROM dibs_task WHERE kind = 'drained' AND state < 2 AND fails = 0")" "$((40 - $(count_state drained 6)))"

# ---- TLS ----

openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -keyout "$dir/tls.key" -out "$dir/tls.pem" \
  -subj /CN=localhost -addext 'subjectAltName=DNS:localhost' -days 2 2>/dev/null
receiver "$dir/log" "$dir/tls.pem" "$dir/tls.key"
add tls x
exits 0 'a certificate that nobody knows' d relay tls --to "https://localhost:$port/status/200" --once --tries 1
is 'is refused' "$(states tls)" 7
like 'with the reason' "$(errors tls)" 'certificate'
add tls2 x
exits 0 'with --ca' d relay tls2 --to "https://localhost:$port/status/200" --once --ca "$dir/tls.pem"
is 'it is accepted' "$(states tls2)" 6
add tls3 x
exits 0 'under another name' d relay tls3 --to "https://127.0.0.1:$port/status/200" --once --ca "$dir/tls.pem" --tries 1
is 'it is refused' "$(states tls3)" 7

# ---- Wrong calls ----

wrong() { # wrong PATTERN WORD...
  local pattern=$1
  shift
  exits 125 "dibs relay $*" "$DIBS" relay "$@"
  like 'and why' "$err" "$pattern"
}
wrong 'give exactly one of --to URL, --exec CMD and --stdout' x
wrong 'give exactly one of --to URL, --exec CMD and --stdout' x --stdout --to http://localhost/
wrong '--header is an option of --to' x --exec true --header 'A: b'
wrong '--batch: with --exec' x --exec true --batch 3
wrong '--stdout has no use for --jobs' x --stdout --jobs 2
wrong 'the URL can.t be used' x --to ftp://localhost/
wrong "cannot read the certificates in '/no/file'" x --to https://localhost/ --ca /no/file
wrong "'Secret' is not a header" x --to http://localhost/ --header 'Secret'
wrong "'Dibs-Fence' is a header that dibs sets itself" x --to http://localhost/ --header 'Dibs-Fence: 1'
wrong "cannot read '/no/file'" x --to http://localhost/ --header @/no/file
exits 125 'a bad value of a header' "$DIBS" relay x --to http://localhost/ --header $'Auth: secret\r\nX: y'
like 'is not shown' "$err" "'Auth' has a control character in its value\$"

# ---- Rows that people insert ----

refused() { ! sql "$1" >/dev/null 2>&1; }
for column in "serial) VALUES ('odd', '$(printf 'x%.0s' $(seq 4000))'" "phase) VALUES ('odd', '$(printf 'x%.0s' $(seq 4000))'" \
  "priority) VALUES ('odd', -9223372036854775807" "fence) VALUES ('odd', 9223372036854775807" \
  "priority) VALUES ('odd', 1001" "priority) VALUES ('odd', -1001" "tries) VALUES ('odd', -1" "tries) VALUES ('odd', 4294967296" \
  "state) VALUES ('odd', 6" "state) VALUES ('odd', -1" "rank) VALUES ('odd', 1" "rank) VALUES ('odd', -1" \
  "made) VALUES ('odd', -9223372036854775807" "due) VALUES ('odd', 9223372036854775807"; do
  ok "the INSERT of a row that would stop its kind fails: ${column%%)*}" refused "INSERT INTO dibs_task (kind, $column)"
done
ok 'the INSERT of a message without a kind fails' refused "INSERT INTO dibs_task (kind) VALUES ('')"
case $uri in
  mysql:*) ;; # it has no conditions about a column that it counts
  *) ok 'the INSERT of a number below 1 fails' refused "INSERT INTO dibs_task (nr, kind) VALUES (-1, 'odd')" ;;
esac
sql "INSERT INTO dibs_task (kind, tries, due) VALUES ('fit', 4294967295, -1)"
sql "INSERT INTO dibs_task (kind, priority, tries) VALUES ('fit', -1000, 0), ('fit', 1000, 1)"
is 'the smallest and largest values are fit' "$(d relay fit --stdout --once | wc -l)" 3
add odd fine
d relay odd --stdout --once >/dev/null
is 'and the others are delivered' "$(count_state odd 6)" 1

# ---- A store that permits nothing for a while ----

case $uri in
  postgres:*)
    add denied first
    "$DIBS" relay denied --stdout >"$dir/denied" 2>"$dir/denied.err" &
    relay=$!
    later "$relay"
    ok 'a relay delivers' until_true 20 grep -q first "$dir/denied"
    sql 'REVOKE UPDATE ON dibs_task FROM current_user'
    add denied second
    ok 'it reports that it may not' until_true 20 grep -q 'not permitted.*the relay tries again' "$dir/denied.err"
    sql 'GRANT UPDATE ON dibs_task TO current_user'
    ok 'and goes on as soon as it may' until_true 20 grep -q second "$dir/denied"
    ok 'and reports that' until_true 20 grep -q 'the store answers again' "$dir/denied.err"
    is 'with one message for each' "$(grep -c 'again$' "$dir/denied.err")" 2
    kill -TERM "$relay"
    wait "$relay"
    is 'it ends as usual' $? 0
    ;;
esac

if [ -n "$uri" ]; then
  case $uri in
    postgres:*) hold='SELECT pg_sleep(5)' ;;
    *) hold='SELECT sleep(5)' ;;
  esac
  for i in 1 2 3; do add held "$i"; done
  d worker --kind held --once --jobs 3 --timeout 2s --exec 'sleep 4' &
  worker=$!
  sleep 0.7
  nr=$(sql "SELECT min(nr) FROM dibs_task WHERE kind = 'held'")
  sql "BEGIN; SELECT nr FROM dibs_task WHERE nr = $nr FOR UPDATE; $hold; COMMIT" >/dev/null
  wait "$worker"
  is 'a row that another session holds delays no other one' \
    "$(sql "SELECT sum(fails) FROM dibs_task_done WHERE kind = 'held' AND nr <> $nr AND state = 6")" 0
fi
done_testing
