#!/bin/bash
# SPDX-License-Identifier: MIT
# A MongoDB server with accounts and TLS: what is verified, and what each refusal says.
#   tls_test.sh DIBS URI    (with.sh --private --tls: URI has an account and its password, and ca=FILE)
set -u
dibs=$1 uri=$2
. "$(dirname "$0")/../support/says.sh"
# runs NAME CODE WORDS URI: a run on that store.
runs() { says "$1" "$2" "$3" run --wait "${wait:-20s}" --store "$4" name -- echo ran; }
folder=$(mktemp -d "${TMPDIR:-/tmp}/dibs-test-mongodb.XXXXXX")
trap 'rm -rf "$folder"' EXIT
trap 'exit 130' INT TERM
at=${uri%%\?*} ca=$DIBS_TEST_SERVERS_CA plain=$DIBS_TEST_MONGODB
openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -subj /CN=other -days 1 -keyout "$folder/key" \
  -out "$folder/other" 2>/dev/null || { echo "1..0 # SKIP openssl makes no certificate"; exit 0; }
: >"$folder/empty"

runs 'a certificate of a known authority' 0 ran "$uri"
runs 'by the name of the host' 0 ran "${uri/127.0.0.1/localhost}"
runs 'with the names of MongoDB' 0 ran "$at?tls=true&tlsCAFile=$ca"
runs 'without a check, if you want it so' 0 ran "$at?tls=true&tlsAllowInvalidCertificates=true"
runs 'an unknown authority' 123 'name its authority with ca=FILE' "$at?tls=true"
runs 'another authority' 123 'certificate verify failed' "$at?ca=$folder/other"
runs 'a wrong password' 123 'Authentication failed' "${uri/dibs-secret/wrong-secret}"
runs 'no account' 123 'requires authentication' "${uri/dibs:dibs-secret@/}"
runs 'an authority that is not there' 125 'No such file' "$at?ca=$folder/none"
runs 'two authorities' 125 'ca= has no effect with tlsCAFile=' "$at?ca=$ca&tlsCAFile=$ca"
runs 'an authority and no TLS' 125 'ca= has no effect with tls=false' "$at?ca=$ca&tls=false"
runs 'an authority and no check' 125 'ca= has no effect with tlsAllow' "$at?ca=$ca&tlsAllowInvalidCertificates=true"
# What may become right by itself is tried again until the end of the wait.
wait=2s
runs 'an authority that is none' 123 'are ca= and tlsCertificateKeyFile= files in PEM form?' "$at?ca=$folder/empty"
runs 'no TLS to a port with it' 123 'a server with TLS needs tls=true or ca=FILE' "$at"
runs 'TLS to a port without it' 123 'does this port have TLS?' "$plain?ca=$ca"

end_of_cases
