#!/bin/bash
# SPDX-License-Identifier: MIT
# Messages of PostgreSQL stores for mistakes, and accepted URIs: refusals_test.sh DIBS URI.
# URI is a database of the test's own; the test puts poolers before it.
set -u
dibs=$1
uri=$2
. "$(dirname "$0")/../support/says.sh"
database=${uri##*/}
place=${uri#*@}
place=${place%%/*}
host=${place%%:*} port=${place##*:}

# runs NAME CODE WORDS URI: a run on that store.
runs() { says "$1" "$2" "$3" run --wait 1s --store "$4" refusals -- echo ran; }
sql() { PGOPTIONS="-c client_min_messages=warning" psql -X -q -A -t -v ON_ERROR_STOP=1 "$@"; }

runs 'a store is created on first use' 0 ran "$uri"
runs 'another schema and prefix' 0 ran "$uri?schema=other&prefix=x_"
where=$(sql "$uri" <<<"SELECT string_agg(schemaname || '.' || tablename, ' ') FROM pg_tables WHERE tablename LIKE '%\_meta'")
# The role has the name of the first schema, which is therefore in its path.
if [[ $where == *dibs.dibs_meta* && $where == *other.x_meta* ]]; then pass 'each has tables of its own'; else
  fail 'each has tables of its own' "$where"
fi
runs 'another schema, the same prefix' 0 ran "$uri?schema=third"
where=$(sql "$uri" <<<"SELECT count(*) FROM pg_tables WHERE schemaname = 'third'")
if [ "$where" -gt 5 ]; then pass 'it is not confused with the first'; else fail 'it is not mistaken for the first' "$where"; fi
runs 'an unreachable host is skipped' 0 ran "${uri/@/@127.0.0.1:1,}"
runs 'a wrong password' 123 'password authentication failed for user "dibs"' "${uri/dibs-secret/wrong-secret}"
runs 'no password' 123 'no password supplied' "${uri/:dibs-secret/}"
runs 'no such database' 125 'database "nowhere" does not exist' "${uri%/*}/nowhere"
runs 'nobody listens' 123 'Connection refused' "postgres://dibs:dibs-secret@127.0.0.1:1/x"
runs 'no such parameter' 125 'has no parameter nonsense' "$uri?nonsense=1"
runs 'TLS on a server without it' 123 'SSL was required' "$uri?sslmode=require"
runs 'hosts in two places' 125 'names hosts both' "$uri?host=/tmp"
runs 'no such lock' 125 'is not rows or advisory' "$uri?lock=nonsense"

sql "$uri" <<<"ALTER ROLE dibs IN DATABASE $database SET default_transaction_read_only = on"
runs 'a role that may only read' 123 'read-only' "$uri"
sql "$uri" <<<"BEGIN READ WRITE; ALTER ROLE dibs IN DATABASE $database RESET default_transaction_read_only; COMMIT"

sql "$uri" <<<"REVOKE ALL ON dibs.dibs_name FROM dibs"
runs 'a revoked right' 123 'permission denied for table dibs_name' "$uri"
sql "$uri" <<<"GRANT ALL ON dibs.dibs_name TO dibs"
runs 'and granted again' 0 ran "$uri"

sql "$uri" <<<"UPDATE dibs.dibs_meta SET version = 1000"
runs 'tables of a newer dibs' 123 'newer dibs' "$uri"
sql "$uri" <<<"DROP SCHEMA dibs CASCADE"

# ---- Poolers ----

folder=$(mktemp -d "${TMPDIR:-/tmp}/dibs-pooler.XXXXXX")
pooler=
end() {
  [ -z "$pooler" ] || kill "$pooler" 2>/dev/null
  rm -rf "$folder"
}
trap end EXIT

# begin_pooler MODE: at $pooled.  If the port is in use, tries the next one.
begin_pooler() {
  local mode=$1 as=() tries
  for ((tries = 0; tries < 8; tries++)); do
    local at=$((20000 + (RANDOM % 10000)))
    cat >"$folder/ini" <<END_OF_INI
[databases]
$database = host=$host port=$port dbname=$database user=dibs password=dibs-secret
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = $at
unix_socket_dir =
auth_type = any
pool_mode = $mode
default_pool_size = 20
END_OF_INI
    chmod -R a+rX "$folder"
    [ "$(id -u)" -ne 0 ] || as=(setpriv --reuid=postgres --regid=postgres --clear-groups)
    "${as[@]}" pgbouncer "$folder/ini" >"$folder/log" 2>&1 &
    pooler=$!
    for _ in $(seq 200); do
      if grep -q 'process up' "$folder/log"; then
        pooled="postgres://dibs:dibs-secret@127.0.0.1:$at/$database"
        return 0
      fi
      kill -0 "$pooler" 2>/dev/null || break
      sleep 0.05
    done
    wait "$pooler"
    pooler=
  done
  return 1
}
end_pooler() {
  kill "$pooler" && wait "$pooler"
  pooler=
}

export PATH=$PATH:/usr/sbin
if command -v pgbouncer >/dev/null; then
  begin_pooler transaction || fail 'pgbouncer begins' "$(cat "$folder/log")"
  runs 'a pooler of transactions is refused' 125 'may give each transaction another server process' "$pooled"
  for i in 1 2 3 4; do timeout 20 "$dibs" run --store "$pooled" "x$i" -- true 2>/dev/null & done
  runs 'also for session locks' 125 'may give each transaction another server process' "$pooled?lock=advisory&schema=locks"
  runs 'also for several clients at once' 125 'may give each transaction another server process' "$pooled"
  for job in $(jobs -p); do [ "$job" = "$pooler" ] || wait "$job"; done
  end_pooler
  left=$(sql "$uri" <<<"SELECT count(*) FROM pg_namespace WHERE nspname = 'dibs'")
  if [ "$left" = 0 ]; then pass 'nothing was created through it'; else fail 'nothing was made through it' "$left"; fi
  begin_pooler session || fail 'pgbouncer begins' "$(cat "$folder/log")"
  runs 'a pooler of sessions is accepted' 0 ran "$pooled"
  runs 'also for session locks' 0 ran "$pooled?lock=advisory&schema=locks"
  end_pooler
else
  count=$((count + 1))
  echo "ok $count - poolers # SKIP pgbouncer is not installed"
fi

# The last case: afterwards no client can connect.
sql "$uri" <<<"ALTER DATABASE $database CONNECTION LIMIT 0"
runs 'all connections are in use' 123 'too many connections' "$uri"

end_of_cases
