#!/bin/bash
# SPDX-License-Identifier: MIT
# rediss://: what is verified, and what each refusal says:  tls_test.sh DIBS
#
# A Redis of its own, with an authority of its own, and ports with a valid, an expired and a strict configuration.
set -u
dibs=$(realpath "$1")
for program in redis-server redis-cli openssl faketime; do
  command -v "$program" >/dev/null && continue
  [ "${DIBS_TEST_SERVERS:-}" != required ] || { echo "tls_test: $program is not installed" >&2; exit 1; }
  echo "1..0 # SKIP $program is not installed"
  exit 0
done
base=$(mktemp -d /tmp/dibs-test-tls.XXXXXX) || exit 1
finish() {
  local file
  for file in "$base"/*.pid; do [ -s "$file" ] && kill -9 "$(<"$file")" 2>/dev/null; done
  rm -rf "$base"
}
trap finish EXIT
trap 'exit 130' INT TERM
. "$(dirname "$0")/../support/says.sh"
# runs NAME CODE WORDS URI [ARG]...: a run on that store.
runs() { says "$1" "$2" "$3" run --wait 20s --store "$4" "${@:5}" name -- echo ran; }
port() {
  local p
  while :; do
    p=$((20000 + SRANDOM % 10000))
    (exec 3<>"/dev/tcp/127.0.0.1/$p") 2>/dev/null || { echo "$p"; return; }
  done
}

# ---- Certificates: NAME.key, NAME.pem ----

cd "$base" || exit 1
authority() {
  openssl ecparam -name prime256v1 -genkey -noout -out "$1.key" &&
    openssl req -x509 -new -key "$1.key" -subj "/CN=$1" -days 30 -out "$1.pem"
}
signed() { # signed NAME ALTERNATIVE-NAMES [COMMAND]...
  openssl ecparam -name prime256v1 -genkey -noout -out "$1.key" &&
    openssl req -new -key "$1.key" -subj "/CN=$1" -out "$1.csr" &&
    printf 'subjectAltName=%s\n' "$2" >"$1.ext" &&
    "${@:3}" openssl x509 -req -in "$1.csr" -days 1 -CA ours.pem -CAkey ours.key -set_serial "$SRANDOM" -extfile "$1.ext" \
      -out "$1.pem"
}
{ authority ours && authority theirs && signed server DNS:localhost,DNS:cache.example,IP:127.0.0.1 &&
  signed client DNS:client && signed old DNS:localhost,IP:127.0.0.1 faketime -f -9d; } >certificates.log 2>&1 ||
  { cat certificates.log >&2; exit 1; }

# ---- Servers ----

serve() { # serve NAME CERTIFICATE CLIENTS [LINE]...; sets $port
  local name=$1 end=$((SECONDS + 20))
  port=$(port)
  printf '%s\n' 'bind 127.0.0.1' 'port 0' "tls-port $port" "tls-cert-file $base/$2.pem" "tls-key-file $base/$2.key" \
    "tls-ca-cert-file $base/ours.pem" "tls-auth-clients $3" 'save ""' "dir $base" "pidfile $base/$name.pid" \
    "logfile $base/$name.log" 'daemonize yes' 'user default off' 'user app on >app-secret ~* &* +@all' "${@:4}" \
    >"$name.conf"
  redis-server "$name.conf" >/dev/null || exit 1
  until grep -q 'Ready to accept' "$name.log"; do
    [ "$SECONDS" -lt "$end" ] || { cat "$name.log" >&2; exit 1; }
    sleep 0.02
  done
}
serve plain server no
tls=$port
serve strict server yes
strict=$port
serve late old no
late=$port
serve twelve server yes 'tls-protocols "TLSv1.2"'
twelve=$port
plain=$(port)
redis-server --port "$plain" --bind 127.0.0.1 --save '' --daemonize yes --pidfile "$base/none.pid" --dir "$base" >/dev/null
until redis-cli -p "$plain" ping >/dev/null 2>&1; do sleep 0.02; done

at=rediss://app:app-secret@127.0.0.1
runs 'a certificate of a known authority' 0 ran "$at:$tls?ca=$base/ours.pem"
runs 'by the name of the host' 0 ran "rediss://app:app-secret@localhost:$tls?ca=$base/ours.pem"
runs 'by another of its names' 0 ran "$at:$tls?ca=$base/ours.pem&tls_name=cache.example"
runs 'an unknown authority' 123 'not trusted' "$at:$tls"
runs 'another authority' 123 'name its authority with ca=FILE' "$at:$tls?ca=$base/theirs.pem"
runs 'the name of another host' 123 'is not for "other.example"' "$at:$tls?ca=$base/ours.pem&tls_name=other.example"
runs 'a certificate that has expired' 123 'has expired' "$at:$late?ca=$base/ours.pem"
runs 'insecure=1 checks nothing, and warns' 0 'WARNING: insecure=1' "$at:$late?insecure=1"
# Its own certificate is not what the server refused.
runs 'insecure=1 and a server that wants a certificate' 123 'alert' "$at:$twelve?insecure=1&connect_timeout=500" --wait 1s
runs 'insecure=1 with an authority is a contradiction' 125 'ca= has no effect' "$at:$tls?insecure=1&ca=$base/ours.pem"
runs 'a wrong password' 123 'check the user and the password' "rediss://app:no-secret@127.0.0.1:$tls?ca=$base/ours.pem"
runs 'a server that wants a certificate' 123 'certificate' "$at:$strict?ca=$base/ours.pem&connect_timeout=500" --wait 1s
runs 'and gets it' 0 ran "$at:$strict?ca=$base/ours.pem&cert=$base/client.pem&key=$base/client.key"
runs 'a certificate without its key' 125 'both cert= and key=' "$at:$tls?ca=$base/ours.pem&cert=$base/client.pem"
runs 'the key of another certificate' 125 'key=' "$at:$tls?ca=$base/ours.pem&cert=$base/client.pem&key=$base/server.key"
runs 'an authority that is not there' 125 'No such file' "$at:$tls?ca=$base/none.pem"
runs 'an authority that is none' 125 'ca=' "$at:$tls?ca=$base/server.key"
runs 'TLS to a port without it' 123 'is this its port for TLS?' "rediss://127.0.0.1:$plain?ca=$base/ours.pem&connect_timeout=500" --wait 1s
runs 'no TLS to a port with it' 123 'a port for TLS needs rediss://' "redis://127.0.0.1:$tls?connect_timeout=500" --wait 1s
runs 'redis:// has no certificates' 125 'has no parameter ca' "redis://127.0.0.1:$plain?ca=$base/ours.pem"
runs 'a Unix socket' 125 'needs no TLS' "rediss:///?socket=/tmp/none"

# until_true COMMAND...: waits until it succeeds, for some time.
until_true() {
  local end=$((SECONDS + 60))
  until "$@"; do
    [ "$SECONDS" -lt "$end" ] || return 1
    sleep 0.05
  done
}
waits() { [[ $("$dibs" show --store "$uri" queue 2>&1) == *waits* ]]; }
uri="$at:$tls?ca=$base/ours.pem"
"$dibs" run --store "$uri" queue -- sh -c ': >held; for i in $(seq 1200); do [ ! -f go ] || exit 0; sleep 0.05; done' &
holder=$!
until_true test -f held
timeout 60 "$dibs" run --store "$uri" queue -- echo waited >waited 2>&1 &
waiter=$!
until_true waits
: >go
wait "$holder" "$waiter"
if [ "$(<waited)" = waited ]; then pass 'a waiter is notified'; else fail 'a waiter is notified' "$(<waited)"; fi

end_of_cases
