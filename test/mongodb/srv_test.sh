#!/bin/bash
# SPDX-License-Identifier: MIT
# mongodb+srv://: the DNS says which hosts a name has.  A name server of the test's own (dns.py) answers, in a mount
# namespace whose resolv.conf names it.  That needs root.
#   srv_test.sh DIBS URI
set -u
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
if [ -z "${DIBS_TEST_SRV_INSIDE:-}" ]; then
  if [ "$(id -u)" -ne 0 ] || ! unshare -m true 2>/dev/null; then
    echo '1..0 # SKIP only root can give this test a resolv.conf of its own'
    exit 0
  fi
  DIBS_TEST_SRV_INSIDE=1 exec unshare -m bash "$here/srv_test.sh" "$@"
fi
dibs=$1 uri=$2
count=0 failures=0
pass() { count=$((count + 1)) && echo "ok $count - $1"; }
fail() {
  count=$((count + 1)) failures=$((failures + 1))
  echo "not ok $count - $1"
  printf '%s\n' "${@:2}" | sed 's/^/#   /'
}
folder=$(mktemp -d "${TMPDIR:-/tmp}/dibs-test-srv.XXXXXX")
started=()
end() {
  local pid
  exec 3>&-
  for pid in "${started[@]}"; do kill "$pid" 2>/dev/null; done
  rm -rf "$folder"
}
trap end EXIT
abandon() {
  echo "1..0 # SKIP $1"
  exit 0
}

# ---- The name server, and the files that lead to it ----

domain=example.test
address=127.$((SRANDOM % 100 + 101)).$((SRANDOM % 250 + 1)).$((SRANDOM % 250 + 1))
printf 'nameserver %s\n' "$address" >"$folder/resolv.conf"
echo 'hosts: files' >"$folder/nsswitch.conf"
{ echo '127.0.0.1 localhost'; printf "127.0.0.1 %s.$domain\n" a b c; } >"$folder/hosts"
mount --make-rprivate / 2>/dev/null || abandon 'its mounts would be seen by other programs'
for file in resolv.conf nsswitch.conf hosts; do
  mount --bind "$folder/$file" "/etc/$file" || abandon "it can't mount its own /etc/$file"
done

# server NAME ARG...: starts a program, and waits for its first line, which is in $line.
server() {
  mkfifo "$folder/$1.out"
  python3 -u "${@:2}" >"$folder/$1.out" 2>"$folder/$1.err" 3>&- &
  started+=($!)
  read -r -t 60 line <"$folder/$1.out" || { cat "$folder/$1.err" >&2; abandon "its $1 does not start"; }
}
zone() { # zone NAME JSON...: what the name server knows
  local text='' name
  while [ $# -gt 0 ]; do
    name=$1
    text+="${text:+,}\"$name\": $2"
    shift 2
  done
  printf '{%s}\n' "$text" >"$folder/zone.new"
  mv "$folder/zone.new" "$folder/zone"
}
zone
server dns "$here/dns.py" "$address" "$folder/zone"
dns=$!

# says NAME CODE WORDS ARG...: dibs ends with CODE and prints WORDS, and no password.
says() {
  local name=$1 code=$2 words=$3 got said
  said=$(timeout 120 "$dibs" "${@:4}" 2>&1)
  got=$?
  if [ "$got" -ne "$code" ]; then
    fail "$name" "exit $got, not $code: $said"
  elif [[ $said != *"$words"* ]]; then
    fail "$name" "it says: $said"
  elif [[ $said == *secret* ]]; then
    fail "$name" "the password is in: $said"
  else
    pass "$name"
  fi
}
port=${uri##*:}
port=${port%%/*}
prefix=srv$$_$SRANDOM
srv=mongodb+srv://db.$domain
plain="tls=false&prefix=${prefix}_"
record=_mongodb._tcp.db.$domain
run() { echo run --store "$srv/dibs?$plain"; }
look() { echo ls --store "$srv/dibs?$plain"; } # run would try until the store answers
# shellcheck disable=SC2046  # several words
{
  # ---- Hosts ----
  zone "$record" "{\"SRV\": [[\"a.$domain\", $port]]}"
  says 'a lease on the host that the DNS names' 0 ran $(run) job -- echo ran
  says 'it is the server of mongodb://' 0 job history --store "${uri}?prefix=${prefix}_"
  server closed "$here/listen.py" heard "$folder/closed"
  closed=$line
  kill $! # nobody listens there now
  zone "$record" "{\"SRV\": [[\"b.$domain\", $closed], [\"c.$domain\", $closed]]}"
  says 'the first of two hosts is tried' 123 "b.$domain:$closed" $(look)
  says 'and the second' 123 '[Failed to connect to target host: c.' $(look)
  many=
  for i in $(seq 40); do many+="[\"h$i.a-long-label-of-a-host.$domain\", $closed], "; done
  printf "127.0.0.1 h%s.a-long-label-of-a-host.$domain\n" $(seq 40) >>"$folder/hosts"
  zone "$record" "{\"SRV\": [$many [\"c.$domain\", $closed]]}"
  says 'more hosts than a packet has' 123 "h1.a-long-label-of-a-host.$domain:$closed" $(look)
  zone "$record" "{\"SRV\": [[\"A.Example.TEST\", $port]]}"
  says 'the domain in capitals' 0 ran $(run) job -- echo ran
  says 'a name with a dot at its end' 0 ran run --store "mongodb+srv://db.$domain./dibs?$plain" job -- echo ran

  # ---- What the DNS must not say ----
  for foreign in a.example.org example.test xexample.test "a.$domain.evil.test"; do
    zone "$record" "{\"SRV\": [[\"a.$domain\", $port], [\"$foreign\", $port]]}"
    says "a host of another domain, $foreign" 123 'of another domain' $(look)
  done
  zone "$record" "{\"SRV\": [[\"a.$domain\", 0]]}"
  says 'a host with port 0' 123 'which are none of a MongoDB' $(look)
  zone "$record" '"damaged"'
  says 'a damaged answer' 123 damaged $(look)
  zone
  says 'a name that does not exist' 123 "there is no SRV record $record" $(look)
  zone "$record" '{}'
  says 'a name without SRV records' 123 "there is no SRV record $record" $(look)
  zone "$record" '"fails"'
  says 'a name server that fails' 123 'no name server answers' $(look)
  zone "$record" '"silent"'
  from=$(date +%s%N)
  says 'a name server that does not answer' 123 'no name server answers' $(look)
  took=$((($(date +%s%N) - from) / 1000000))
  # Three tries of a second each.  The system's own limit is ten seconds for each question, and libmongoc has none.
  if [ $took -lt 9500 ]; then pass 'and the error comes soon'; else fail 'and the error comes soon' "after $took ms"; fi

  # ---- TXT ----
  hosts="{\"SRV\": [[\"a.$domain\", $port]]}"
  txt() { zone "$record" "$hosts" "db.$domain" "$1"; }
  txt '{"TXT": [["replicaSet=rs7"]]}'
  says 'TXT names a replica set, which this server is not' 123 'is replicaSet= its name' $(look)
  txt '{"TXT": [["auth", "Source=admin&loadBalanced=false"]]}'
  says 'TXT in two parts' 0 ran $(run) job -- echo ran
  txt '{"TXT": [["authSource=admin"], ["authSource=admin"]]}'
  says 'two TXT records' 123 'several TXT records' $(look)
  txt '{"TXT": [["authSource=%zz"]]}'
  says 'TXT with a damaged value' 123 'which are none of a MongoDB' $(look)
  for other in tls=false authMechanism=PLAIN nonsense; do
    txt "{\"TXT\": [[\"$other\"]]}"
    says "TXT with $other" 123 'another option' $(look)
  done
  txt '{"TXT": [["loadBalanced=true"]]}'
  says 'a load balancer' 125 'load balancer' $(look)
  txt '"silent"'
  says 'TXT is not answered' 123 'no name server answers' $(look)

  # ---- What a client sends first: TLS, and where its user is ----
  # first NAME TXT PARAMETERS: $heard is what it sent.
  first() {
    server "$1" "$here/listen.py" heard "$folder/heard.$1"
    zone "$record" "{\"SRV\": [[\"a.$domain\", $line]]}" "db.$domain" "$2"
    timeout 60 "$dibs" ls --store "mongodb+srv://ann:secret@db.$domain/?$3" >"$folder/said.$1" 2>&1
    for _ in $(seq 200); do # the listener writes its file after it has closed the connection
      [ -s "$folder/heard.$1" ] && break
      sleep 0.05
    done
    heard=$(tr '\0' '.' <"$folder/heard.$1" 2>/dev/null | LC_ALL=C tr -c ' -~' '.')
    bytes=$(od -An -tx1 -N1 "$folder/heard.$1" 2>/dev/null | tr -d ' ')
  }
  first tls '{}' 'prefix=x'
  if [ "$bytes" = 16 ]; then pass 'TLS is on'; else fail 'TLS is on' "first byte: $bytes"; fi
  first plain '{}' 'tls=false'
  if [ "$bytes" ] && [ "$bytes" != 16 ]; then pass 'tls=false'; else fail 'tls=false' "first byte: $bytes"; fi
  first from_txt '{"TXT": [["authSource=of_txt"]]}' 'tls=false'
  if [[ $heard == *of_txt.ann* ]]; then pass 'authSource of TXT'; else fail 'authSource of TXT' "$heard"; fi
  first from_uri '{"TXT": [["authSource=of_txt"]]}' 'tls=false&authSource=of_uri'
  if [[ $heard == *of_uri.ann* ]]; then pass "the URI's own authSource"; else fail "the URI's own authSource" "$heard"; fi

  # ---- URIs ----
  zone "$record" "$hosts"
  says 'a port' 125 'without a port' run --store "$srv:27017/?$plain" job -- true
  says 'two names' 125 'one name' run --store "$srv,db2.$domain/?$plain" job -- true
  says 'a name of two labels' 125 'in a domain' run --store "mongodb+srv://$domain/?$plain" job -- true
  says 'an address' 125 'without a port' run --store 'mongodb+srv://[::1]/' job -- true
  says 'no name' 125 'needs a name' run --store 'mongodb+srv:///dibs' job -- true
  says 'one host only' 125 directConnection run --store "$srv/?$plain&directConnection=true" job -- true
  says 'a bad parameter' 125 tlsCA run --store "$srv/?tls=false&tlsCA=x" job -- true
  says 'claims=0' 125 'from 1 to 1000' run --store "$uri?claims=0" job -- true
  says 'as one of several tiers' 125 'tiers' run --store "$srv,sqlite:$folder/x.db" job -- true

  # ---- The cluster moves, and the DNS is down, while a lease is held ----
  server old "$here/listen.py" passed "$port"
  old=$!
  zone "$record" "{\"SRV\": [[\"b.$domain\", $line]]}"
  mkfifo "$folder/fifo"
  "$dibs" run --ttl 8s --store "$srv/dibs?$plain&connections=1" moving -- cat "$folder/fifo" >"$folder/moving" 2>&1 &
  holder=$!
  started+=($holder)
  exec 3>"$folder/fifo" # after the name is held
  held() { [[ $("$dibs" ls --store "$uri?prefix=${prefix}_" 2>&1) == *moving* ]]; }
  renewals() { # the lease is held under new renewals for longer than its time
    local by=$((SECONDS + 11))
    while [ $SECONDS -lt $by ]; do
      sleep 0.5
      held || return 1
    done
  }
  server new "$here/listen.py" passed "$port"
  new=$!
  zone "$record" "{\"SRV\": [[\"c.$domain\", $line]]}"
  kill "$old"
  if renewals; then pass 'a lease continues on the new host'; else fail 'a lease continues on the new host' "$(<"$folder/moving")"; fi
  # Its connection breaks while no name server runs, and at first it can't connect: its client is a new one afterwards.
  kill "$dns" "$new"
  left() { "$dibs" ls --store "$uri?prefix=${prefix}_" --json 2>&1 | grep -o '"left_ms": *[0-9]*' | grep -o '[0-9]*$'; }
  late= # a renewal was due at 5,300 ms
  for _ in $(seq 200); do
    late=$(left)
    [ "${late:-9999}" -lt 5000 ] && break
    sleep 0.05
  done
  server again "$here/listen.py" passed "$port" "$line"
  if renewals; then pass 'and while the DNS is down'; else fail 'and while the DNS is down' "$late: $(<"$folder/moving")"; fi
  exec 3>&-
  wait "$holder"
  code=$?
  if [ $code -eq 0 ]; then pass 'it was not lost'; else fail 'it was not lost' "exit $code: $(<"$folder/moving")"; fi
}
echo "1..$count"
exit $((failures > 0))
