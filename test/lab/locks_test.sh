#!/bin/bash
# SPDX-License-Identifier: MIT
# Strategies of the lab whose lock is in another store than the row: sound ones count right, broken ones are shown broken.
#   nodes.sh 3 locks_test.sh TAP.SH [URI]     the row's store; without a URI an embedded one
# LAB_TABLES counts the lab's tables, WITH is with.sh, for another database of the same server.
. "$1"
[ -z "${2:-}" ] || export DIBS_STORE=$2
: "${DIBS_REDLOCK_NODES:?comes from nodes.sh}" "${LAB_TABLES:?}" "${JSON_CHECK:?}" "${WITH:?}" "${PAGE_CHECK:?}"
scheme=${DIBS_STORE%%:*}
ports=$(awk 'NF { print $2 }' <<<"$DIBS_REDLOCK_NODES")
hosts=$(sed 's/^/127.0.0.1:/' <<<"$ports" | paste -sd,)
redis=redis://dibs:dibs-secret@127.0.0.1:$(head -n 1 <<<"$ports")/0
redlock=redlock://dibs:dibs-secret@$hosts/1

lab() { "$DIBS" lab "$@" --json; }
value() { # value STRATEGY KEY
  printf '%s' "$out" | grep -o "{\"strategy\":\"$1\"[^}]*}" | head -n 1 | sed -n "s/.*\"$2\":\"\{0,1\}\([^,\"}]*\).*/\1/p"
}
sound() { # sound STRATEGY...
  local strategy
  for strategy; do
    is "$strategy lets in as many as there are seats" "$(value "$strategy" accepted)/$(value "$strategy" counted)" 6/6
    is "$strategy is judged" "$(value "$strategy" verdict)" correct
    is "$strategy answers all" "$(value "$strategy" refused)" 18
  done
}
broken() { # broken STRATEGY...
  local strategy
  for strategy; do
    is "$strategy breaks, as expected" "$(value "$strategy" mood)" expected
    ok "$strategy accepts too many, or does not count some" \
      [ $(($(value "$strategy" over_capacity) + $(value "$strategy" lost_updates))) -gt 0 ]
  done
}

exits 0 'a race with locks in Redis' lab race --users 24 --seats 6 --locks "$redis" --locks "$redlock" --html "$dir/locks.html"
json_fine() { "$JSON_CHECK" <"$dir/out"; }
ok 'it is JSON' json_fine
sound redis-spin redis-lease redlock coalesced pessimistic
case $scheme in
  mysql | postgres*)
    sound get-lock
    broken get-lock-early transaction-order none
    like 'dibs leases as locks of the server need another database' "$out" \
      'session-lease was omitted: it needs --locks mysql://.* in another database'
    ;;
  *)
    is 'an embedded store has no lock of a server' "$(value get-lock verdict)" ''
    # SQLite refuses a transaction whose snapshot is old, so the order does not break there.
    is 'a lock inside the transaction costs retries on SQLite' "$(value transaction-order mood)" ''
    ;;
esac
like 'the stores of the locks are reported, without passwords' "$out" "\"locks\":\"redis://dibs:\\*\\*\\*@127.0.0.1:[0-9]+/0, redlock://"
is 'no password is shown' "$(cat "$dir/out" "$dir/err" "$dir/locks.html" | grep -c dibs-secret)" 0
ok 'the report is well-formed and loads nothing' "$PAGE_CHECK" "$dir/locks.html"
ok 'no table remains' [ "$("$LAB_TABLES")" = 0 ]

exits 0 'users in processes' lab race --users 12 --seats 5 --processes 3 --strategies redis-lease,redis-spin --locks "$redis"
is 'have their locks in common' "$(value redis-lease counted)/$(value redis-spin counted)" 5/5

exits 0 'throughput' lab throughput --users 6 --seconds 0.5 --seats 1000000 --strategies coalesced,redis-spin,redis-lease \
  --locks "$redis"
is 'counts right under locks in Redis' "$(value redis-spin verdict)/$(value redis-lease verdict)" correct/correct
ok 'and books' [ "$(value redis-lease per_second | cut -d . -f 1)" -gt 0 ]

case $scheme in
  mysql | postgres*)
    exits 0 'the locks of the server need no --locks' lab race --users 12 --seats 5 --strategies get-lock
    is 'and count right' "$(value get-lock counted)/$(value get-lock verdict)" 5/correct
    case $scheme in
      mysql) variable=DIBS_TEST_MYSQL lock=named ;;
      *) variable=DIBS_TEST_POSTGRES lock=advisory ;;
    esac
    exits 0 'leases of dibs as locks of the server, in another database' "$WITH" --own "$variable" "$DIBS" lab race \
      --users 12 --seats 5 --strategies session-lease,get-lock --locks "{}?lock=$lock" --json
    is 'they count right' "$(value session-lease counted)/$(value get-lock counted)" 5/5
    exits 125 'in the same database they are refused' lab race --strategies session-lease --locks "$DIBS_STORE?lock=$lock"
    like 'with the reason' "$err" 'session-lease needs --locks .*, in another database than the rows'
    ;;
esac

# ---- Refusals ----
exits 125 'a strategy whose lock has no store' lab race --strategies redlock --locks "$redis"
like 'it says which one' "$err" 'redlock needs --locks redlock://HOST,HOST,HOST'
exits 125 'a store that has no locks for the lab' lab race --locks sqlite:///x
like 'it lists the stores' "$err" "'sqlite:...' is not a store for locks"
exits 123 'a Redis that cannot be reached' lab race --users 2 --seats 1 --strategies redis-spin --locks redis://127.0.0.1:1
like 'is named before the race' "$err" 'redis-spin cannot take its lock: redis://127.0.0.1:1'
ok 'no table remains' [ "$("$LAB_TABLES")" = 0 ]
done_testing
