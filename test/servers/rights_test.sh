#!/bin/bash
# SPDX-License-Identifier: MIT
# A missing right is DENIED, with the engine's message; it does not look like an unreachable server.
# rights_test.sh VARIABLE, which has the URI of a private server (with.sh --private).
. "$(dirname "$0")/../e2e/tap.sh"
uri=${!1}
export DIBS_STORE=$uri
engine=${uri%%:*}

case $engine in
  postgres)
    admin() { PGOPTIONS='-c client_min_messages=warning' psql -X -q -A -t -v ON_ERROR_STOP=1 "$DIBS_TEST_POSTGRES_ADMIN"; }
    take() { admin <<<"REVOKE $1 ON ALL TABLES IN SCHEMA dibs FROM dibs"; }
    grant() { admin <<<"GRANT $1 ON ALL TABLES IN SCHEMA dibs TO dibs"; }
    forbid_making() { admin <<<"DROP SCHEMA dibs CASCADE; ALTER DATABASE dibs OWNER TO admin"; }
    words='permission denied'
    # The GRANTs of doc/outbox.md, and what this server withdraws from everybody.
    make_shop() { admin <<<"CREATE ROLE shop LOGIN PASSWORD 'shop'; GRANT CONNECT ON DATABASE dibs TO shop;
      GRANT USAGE ON SCHEMA dibs TO shop; GRANT INSERT ON dibs.dibs_task TO shop"; }
    shop() { psql -X -q -A -t -v ON_ERROR_STOP=1 "${uri/dibs:dibs-secret/shop:shop}" -c "SET search_path TO dibs" -c "$1"; }
    show_number() { admin <<<'GRANT SELECT (nr) ON dibs.dibs_task TO shop'; }
    insert="INSERT INTO dibs_task (kind, payload, serial, uniq) VALUES ('orders', convert_to('seven', 'UTF8'), 'ann', 'u')"
    number='RETURNING nr'
    ;;
  mysql)
    admin() {
      local rest=${DIBS_TEST_MYSQL_ADMIN#*://*:}
      MYSQL_PWD=${rest%%@*} mariadb --no-defaults -N --socket="$DIBS_TEST_SERVERS_DIR/mariadb/mariadb.sock" -u admin
    }
    take() { admin <<<"REVOKE $1 ON dibs.* FROM dibs@'127.0.0.1'"; }
    grant() { admin <<<"GRANT $1 ON dibs.* TO dibs@'127.0.0.1'"; }
    forbid_making() { admin <<<"DROP DATABASE dibs; CREATE DATABASE dibs;
      REVOKE CREATE ON dibs.* FROM dibs@'127.0.0.1'"; }
    words='command denied|access denied'
    make_shop() { admin <<<"CREATE USER shop@localhost IDENTIFIED BY 'shop'; GRANT INSERT ON dibs.dibs_task TO shop@localhost"; }
    shop() {
      MYSQL_PWD=shop mariadb --no-defaults -N --socket="$DIBS_TEST_SERVERS_DIR/mariadb/mariadb.sock" -u shop dibs -e "$1"
    }
    show_number() { true; }
    insert="INSERT INTO dibs_task (kind, payload, serial, uniq) VALUES ('orders', 'seven', 'ann', 'u')"
    number='; SELECT LAST_INSERT_ID()'
    ;;
esac

# said WHAT COMMAND...: checks that it was refused only because of a missing right.
said() {
  local what=$1 got
  shift
  err=$("$DIBS" --json "$@" 2>&1 >/dev/null </dev/null)
  got=$?
  like "$what: DENIED" "$err" '"status":"DENIED"'
  like "$what: the engine's words" "$err" "$words"
  [ "$got" = 123 ] || report 1 "$what: exit 123, not $got"
  case $err in
    *'be reached'* | *dibs-secret*) report 1 "$what: $err" ;;
  esac
}

ok 'the tables are created' "$DIBS" run n -- true
ok 'a stock' "$DIBS" stock set seats 10
for right in INSERT UPDATE SELECT; do
  take "$right"
  said "without $right: run" run n -- true
  [ $right = UPDATE ] || said "without $right: once" once "key $right" -- true
  said "without $right: record put" record put "key $right" --force
  [ $right = SELECT ] || said "without $right: stock take" stock take seats
  [ $right != SELECT ] || said "without $right: ls" ls
  [ $right != SELECT ] || like "without $right: what was refused" "$err" "can't read the tables of dibs in"
  grant "$right"
  ok "with $right again" "$DIBS" run n -- true
done

take DELETE
exits 0 'without DELETE: the work is done' "$DIBS" run last --ttl 1s -- true
grant DELETE

if [ "$engine" = postgres ]; then
  # A database whose encoding lacks most of Unicode: only characters that it lacks are refused.
  admin <<<"CREATE DATABASE latin OWNER dibs ENCODING 'LATIN1' TEMPLATE template0 LC_COLLATE 'C' LC_CTYPE 'C'"
  latin=${uri%/*}/latin
  ok 'a database in LATIN1: ASCII' "$DIBS" run --store "$latin" n -- true
  is 'a database in LATIN1: its own letters' \
    "$("$DIBS" run --store "$latin" 'Bär' -- "$DIBS" ls --store "$latin" --json | grep -o '"name":"[^"]*"')" '"name":"Bär"'
  for command in 'run 日本 -- true' 'once 日本 -- true' 'stock set 日本 1' 'record put 日本 --force'; do
    # shellcheck disable=SC2086
    err=$("$DIBS" --json ${command%% *} --store "$latin" ${command#* } 2>&1 </dev/null)
    like "a database in LATIN1: $command is refused" "$err" '"status":"(UNSUPPORTED|INVALID)"'
    like "a database in LATIN1: $command, with the engine's message" "$err" 'has no equivalent in encoding'
  done
fi

# A program that may only add messages.
ok 'a user that may only insert' make_shop
ok 'it adds a message' shop "$insert"
ok 'not a second one with the unique text' eval '! shop "$insert"'
show_number
like 'it learns the number' "$(shop "${insert/\'u\'/\'v\'} $number")" '^[1-9][0-9]*$'
for statement in 'SELECT payload FROM dibs_task' 'DELETE FROM dibs_task' 'UPDATE dibs_task SET state = 6'; do
  ok "it may not: ${statement%% *}" eval '! shop "$statement"'
done
is 'its messages are delivered' "$("$DIBS" relay orders --stdout --once 2>/dev/null | grep -c '"payload":"seven"')" 2

forbid_making
said 'without CREATE: run' run n -- true
done_testing
