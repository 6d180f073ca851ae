#!/bin/bash
# SPDX-License-Identifier: MIT
# Reading commands write nothing, neither in the database nor in Redis: the whole content of both is the same before and
# after each. Opening a store creates empty tables; these exist before the first command.
#   reading_test.sh DATABASE     script/servers env sets DIBS_TEST_REDIS
. "$(dirname "$0")/../e2e/tap.sh"
: "${DIBS_TEST_REDIS:?is a Redis}"

alone=$1 prefix=reading$$
tiers="$DIBS_TEST_REDIS?prefix=$prefix,$alone"
authority=${alone#*://} user=${authority%%:*}
rest=${authority#*:} password=${rest%%@*}
place=${rest#*@} host=${place%%:*}
port=${place#*:} database=${place##*/}
port=${port%%/*} database=${database%%\?*}

content() { # All rows of the database, and all keys of ours with what they hold.
  case $alone in
    mysql:* | mariadb:*)
      MYSQL_PWD=$password mariadb-dump --skip-comments --skip-opt --no-create-info --extended-insert=FALSE \
        --order-by-primary --hex-blob -h "$host" -P "$port" -u "$user" "$database"
      ;;
    *)
      PGPASSWORD=$password pg_dump --data-only --inserts -h "$host" -p "$port" -U "$user" "$database" |
        grep -v '^\\\(un\)\?restrict' | sort
      ;;
  esac || echo "can't dump: $RANDOM"
  redis-cli -u "$DIBS_TEST_REDIS" --scan --pattern "$prefix*" 2>/dev/null | sort | while read -r key; do
    echo "$key $(redis-cli -u "$DIBS_TEST_REDIS" --no-raw dump "$key" 2>/dev/null)"
  done
}
keys() { content | grep -c "^$prefix"; }
rows() { content | grep -c '^INSERT'; }

# reads WHAT: runs each reading command on the tiers and on the database.
reads() {
  local before after words store
  local -a stores=("$tiers")
  [ "$1" = 'used alone' ] && stores+=("$alone")
  before=$(content)
  for store in "${stores[@]}"; do
    for words in ls 'ls --json' 'show held' stats doctor 'tier status' 'tier status --json' 'flag ls' \
      'flag get redis.enabled' 'tier strictness' 'watch --count 1 --interval 50ms'; do
      # shellcheck disable=SC2086  # words are meant
      DIBS_STORE=$store timeout 1.5 "$DIBS" $words >"$dir/read" 2>&1
      after=$(content)
      is "$1: $words of ${store%%:*} writes nothing" "$(diff <(echo "$before") <(echo "$after") | head -n 4)" ''
      before=$after
    done
  done
}

exits 0 'the first status of tiers' "$DIBS" tier status --store "$tiers"
is 'Redis stays empty' "$(keys)" 0
reads 'unused'
is 'still nothing' "$(keys)" 0

exits 0 'a lease on the database alone' env DIBS_STORE="$alone" "$DIBS" lock held --ttl 1h
reads 'used alone'
is 'Redis still stays empty' "$(keys)" 0
like 'the tiers list leases of the database' "$("$DIBS" ls --store "$tiers")" '^held +holds'
exits 0 'the database works alone' "$DIBS" run other --try --store "$alone" -- true
like 'tier status: Redis serves nothing yet' "$("$DIBS" tier status --store "$tiers")" '^redis +up +0 +0%'

exits 0 'a lease through tiers' env DIBS_STORE="$tiers" "$DIBS" lock second --ttl 1h
exits 0 'also then' "$DIBS" run other --try --store "$alone" -- true
is 'and Redis serves nothing' "$(keys)" 0
reads 'tiers at 0 percent'

exits 0 'rolled out' "$DIBS" flag set redis.enabled on --store "$tiers"
exits 0 'a lease on Redis' env DIBS_STORE="$tiers" "$DIBS" lock third --ttl 1h
ok 'Redis has keys' test "$(keys)" -gt 0
ok 'the database, too' test "$(rows)" -gt 0
reads 'tiers at 100 percent'
done_testing
