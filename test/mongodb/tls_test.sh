#!/bin/bash
# SPDX-License-Identifier: MIT
# A MongoDB server with accounts and TLS: what is verified, and what each refusal says.
#   tls_test.sh DIBS URI    (with.sh --private --tls: URI has an account and its password, and ca=FILE)
set -u
dibs=$1 uri=$2
count=0 failures=0
pass() { count=$((count + 1)) && echo "ok $count - $1"; }
fail() {
  count=$((count + 1)) failures=$((failures + 1))
  echo "not ok $count - $1"
  printf '%s\n' "${@:2}" | sed 's/^/#   /'
}
# says NAME CODE WORDS URI: dibs run ends with CODE and prints WORDS, and no password.
says() {
  local name=$1 code=$2 words=$3 got said
  said=$(timeout 60 "$dibs" run --wait "${wait:-20s}" --store "$4" name -- echo ran 2>&1)
  got=$?
  if [ "$got" -ne "$code" ]; then
    fail "$name" "exit $got, not $code: $said"
  elif [[ $said != *"$words"* ]]; then
    fail "$name" "it says: $said"
  elif [[ $said == *-secret* ]]; then
    fail "$name" "the password is in: $said"
  else
    pass "$name"
  fi
}
folder=$(mktemp -d "${TMPDIR:-/tmp}/dibs-test-mongodb.XXXXXX")
trap 'rm -rf "$folder"' EXIT
trap 'exit 130' INT TERM
at=${uri%%\?*} ca=$DIBS_TEST_SERVERS_CA plain=$DIBS_TEST_MONGODB
openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -subj /CN=other -days 1 -keyout "$folder/key" \
  -out "$folder/other" 2>/dev/null || { echo "1..0 # SKIP openssl makes no certificate"; exit 0; }
: >"$folder/empty"

says 'a certificate of a known authority' 0 ran "$uri"
says 'by the name of the host' 0 ran "${uri/127.0.0.1/localhost}"
says 'with the names of MongoDB' 0 ran "$at?tls=true&tlsCAFile=$ca"
says 'without a check, if you want it so' 0 ran "$at?tls=true&tlsAllowInvalidCertificates=true"
says 'an unknown authority' 123 'name its authority with ca=FILE' "$at?tls=true"
says 'another authority' 123 'certificate verify failed' "$at?ca=$folder/other"
says 'a wrong password' 123 'Authentication failed' "${uri/dibs-secret/wrong-secret}"
says 'no account' 123 'requires authentication' "${uri/dibs:dibs-secret@/}"
says 'an authority that is not there' 125 'No such file' "$at?ca=$folder/none"
says 'two authorities' 125 'ca= has no effect with tlsCAFile=' "$at?ca=$ca&tlsCAFile=$ca"
says 'an authority and no TLS' 125 'ca= has no effect with tls=false' "$at?ca=$ca&tls=false"
says 'an authority and no check' 125 'ca= has no effect with tlsAllow' "$at?ca=$ca&tlsAllowInvalidCertificates=true"
# What may become right by itself is tried again until the end of the wait.
wait=2s
says 'an authority that is none' 123 'are ca= and tlsCertificateKeyFile= files in PEM form?' "$at?ca=$folder/empty"
says 'no TLS to a port with it' 123 'a server with TLS needs tls=true or ca=FILE' "$at"
says 'TLS to a port without it' 123 'does this port have TLS?' "$plain?ca=$ca"

echo "1..$count"
[ "$failures" -eq 0 ]
