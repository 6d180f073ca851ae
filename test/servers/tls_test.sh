#!/bin/bash
# SPDX-License-Identifier: MIT
# The TLS parameters of a store's URI: tls_test.sh VARIABLE. The variable has the URI of a private server with TLS
# (with.sh --private --tls), $PLAIN that of a server of the same engine without TLS.
. "$(dirname "$0")/../e2e/tap.sh"
plain=$PLAIN with=${!1}
engine=${with%%:*}
servers=$DIBS_TEST_SERVERS_DIR ca=$DIBS_TEST_SERVERS_CA

# The administrator of the server with TLS.
admin() {
  case $engine in
    postgres) psql -X -q -A -t -v ON_ERROR_STOP=1 "$DIBS_TEST_POSTGRES_ADMIN" ;;
    mysql)
      local rest=${DIBS_TEST_MYSQL_ADMIN#*://*:}
      MYSQL_PWD=${rest%%@*} mariadb --no-defaults -N --socket="$servers/mariadb/mariadb.sock" -u admin
      ;;
  esac
}

# clear URI, encrypted URI: a run on that store connects, and its connections are in clear text or encrypted.
run_with() { "$DIBS" run --store "$1" tls -- "${@:2}"; }
if [ "$engine" = postgres ]; then
  word() {
    case $1 in
      off) echo sslmode=disable ;;
      prefer) echo sslmode=prefer ;;
      on) echo sslmode=require ;;
      verify) echo sslmode=verify-full ;;
      ca) echo "sslmode=verify-full&sslrootcert=$2" ;;
    esac
  }
  used() { admin <<<"SELECT string_agg(DISTINCT ssl::text, ' ') FROM pg_stat_ssl JOIN pg_stat_activity USING (pid)
    WHERE application_name = 'dibs'"; }
  export -f used admin
  export engine
  encrypted() { [ "$(run_with "$1" bash -c used)" = true ]; }
  clear() { [ "$(run_with "$1" bash -c used)" = false ]; }
  refused_words='does not support SSL' ca_words='certificate verify failed|root certificate' host_words='server certificate for "elsewhere.example"'
else
  word() {
    case $1 in
      ca) echo "ssl=verify&ssl_ca=$2" ;;
      *) echo "ssl=$1" ;;
    esac
  }
  require() { admin <<<"ALTER USER dibs@'127.0.0.1' REQUIRE $1"; }
  encrypted() {
    require SSL
    run_with "$1" true
    local got=$?
    require NONE
    return $got
  }
  clear() { ! encrypted "$1" && run_with "$1" true; }
  refused_words='offers no TLS' ca_words='certificate' host_words='[Hh]ost ?name|[Vv]alidation of SSL server certificate'
fi
unset PGSSLMODE PGSSLROOTCERT

# refused WHAT WORDS URI
refused() {
  exits 123 "$1" "$DIBS" run --store "$3" tls -- true
  like "$1: the message" "$err" "$2"
  case $err in
    *secret*) report 1 "$1: without the password" ;;
    *) report 0 "$1: without the password" ;;
  esac
}

ok 'no parameter: TLS if the server offers it' encrypted "$with"
ok 'off: none' clear "$with?$(word off)"
ok 'prefer: if the server offers it' encrypted "$with?$(word prefer)"
ok 'on: always' encrypted "$with?$(word on)"
ok 'verify, with the authority: always' encrypted "$with?$(word ca "$ca")"

ok 'a server without TLS: no parameter' run_with "$plain" true
ok 'a server without TLS: off' run_with "$plain?$(word off)" true
ok 'a server without TLS: prefer' run_with "$plain?$(word prefer)" true
refused 'a server without TLS: on' "$refused_words" "$plain?$(word on)"
refused 'a server without TLS: verify' "$refused_words|$ca_words" "$plain?$(word ca "$ca")"

# An authority that signed none of these certificates.
openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -keyout "$dir/other.key" -subj '/CN=other' \
  -days 2 -out "$dir/other.pem" 2>"$dir/openssl" || say "$(cat "$dir/openssl")"
refused 'another authority' "$ca_words" "$with?$(word ca "$dir/other.pem")"
refused 'an unknown authority' "$ca_words" "$with?$(word verify)"

if [ "$engine" = mysql ]; then
  exits 125 'a certificate that would not be checked' "$DIBS" ls --store "$with?ssl=on&ssl_ca=$ca"
  like 'is refused, with the right parameter' "$err" 'ssl=verify'
fi

# The same server with a certificate for another host.
server=$engine
[ "$engine" = postgres ] || server=mariadb
openssl req -new -key "$servers/$server/server.key" -subj /CN=elsewhere 2>"$dir/openssl" |
  openssl x509 -req -days 2 -CA "$ca" -CAkey "${ca%.pem}.key" -set_serial 7 \
    -extfile <(echo 'subjectAltName=DNS:elsewhere.example') >"$dir/elsewhere.pem" 2>>"$dir/openssl" &&
  cat "$dir/elsewhere.pem" >"$servers/$server.pem"
if [ "$engine" = postgres ]; then
  admin <<<'SELECT pg_reload_conf()' >"$dir/reload"
  with_host=${with#*@} with_host=${with_host%%/*}
  shown() { openssl s_client -starttls postgres -connect "$with_host" </dev/null 2>/dev/null | grep -q elsewhere; }
  ok 'the server shows another certificate' until_true 10 shown
else
  ok 'the server shows another certificate' admin <<<'FLUSH SSL'
fi
refused 'the wrong host name' "$host_words" "$with?$(word ca "$ca")"
ok 'on: does not check' encrypted "$with?$(word on)"

done_testing
