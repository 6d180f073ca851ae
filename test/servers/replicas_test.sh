#!/bin/bash
# SPDX-License-Identifier: MIT
# A streaming replica lags, the primary is killed, and the replica is promoted: it does not know the grants of that
# time. Fences still grow, a sealed record refuses older writers, and an anchor of tiers does not get less strict. The
# old primary returns as the replica of the new one for the next scene. doc/backups.md describes the same by hand.
#   replicas_test.sh postgres|mariadb|redis
#   with.sh --private sets DIBS_TEST_... and the servers' script and folder
. "$(dirname "$0")/../e2e/tap.sh"
. "$(dirname "$0")/fences.sh"
. "$(dirname "$0")/living.sh"
. "$(dirname "$0")/sentinel.sh"
engine=$1
script=$DIBS_TEST_SERVERS_SCRIPT primary=$DIBS_TEST_SERVERS_DIR
base=$(mktemp -d "${TMPDIR:-/tmp}/dibs-test-replica.XXXXXX") || exit 1
chmod 711 "$base"
replica=$base/replica
end() {
  finish
  "$script" remove --dir "$base/replica" >/dev/null 2>&1
  "$script" remove --dir "$base/first" >/dev/null 2>&1
  rm -rf "$base"
}
trap end EXIT
servers() { "$script" "$1" --dir "$2" "${@:3}" "$engine"; }
uri_of() { # uri_of FOLDER
  (
    unset DIBS_TEST_POSTGRES DIBS_TEST_MYSQL DIBS_TEST_REDIS
    eval "$("$script" env --dir "$1" "$engine")"
    case $engine in
      postgres) echo "$DIBS_TEST_POSTGRES" ;;
      mariadb) echo "$DIBS_TEST_MYSQL" ;;
      redis) echo "$DIBS_TEST_REDIS" ;;
    esac
  )
}
address() { echo "127.0.0.1:$(port_of "$(uri_of "$1")")"; }

# Its clients name both servers, so that they find the active one.
both() {
  local one
  one=$(uri_of "$primary")
  echo "${one%@*}@$(address "$primary"),$(address "$replica")/dibs"
}
follow() { servers follow "$replica" --of "$primary" --until $$; }
lag() { servers lag "$replica"; }
killed() { servers kill "$primary"; }
# The old primary is removed: data that only it has must not return.
promote() {
  local other=$primary
  servers promote "$replica" && servers remove "$other" || return 1
  primary=$replica replica=$other
}

# content FOLDER: a digest of all rows of dibs there; for Redis the offset of its replication stream.
content() {
  local admin at
  admin=$(<"$1/admin-password") at=$(address "$1")
  case $engine in
    postgres) pg_dump --data-only -n dibs "postgres://admin:$admin@$at/dibs" | grep -v '^\\' | md5sum ;;
    mariadb) MYSQL_PWD=$admin mariadb-dump --no-defaults --skip-comments -h 127.0.0.1 -P "${at#*:}" -u admin dibs | md5sum ;;
    redis) REDISCLI_AUTH=$admin redis-cli -h 127.0.0.1 -p "${at#*:}" --user admin INFO replication |
      grep '^master_repl_offset' ;;
  esac
}
streams() { [ "$(content "$replica")" = "$(content "$primary")" ]; }
lags() { ! streams; }

# A client that keeps running and holds NAME.
stay() { # stay NAME
  "$DIBS" run "$1" --ttl 3s --wait 20s -- sleep 120 2>"$dir/$1.err" &
  client=$!
  later "$client"
  ok "$scene: a client holds $1" until_true 20 holds "$1"
}
told() { # told NAME: it held what nobody knows of any more
  wait "$client"
  is "$scene: the holder of $1 learns that it lost it" "$?" 122
}

# replicated WHAT: begins a scene whose primary has a new replica.
replicated() {
  scene=$1
  ok "$scene: a replica is made" follow
}
before() {
  draw "$scene, before"
  ok "$scene: it streams" until_true 20 streams
  exits 123 "$scene: the replica grants nothing" env DIBS_STORE="$(uri_of "$replica")" "$DIBS" run job --try -- true
  ok "$scene: it receives nothing more" lag
}
lagging() {
  draw "$scene, it lags"
  draw "$scene, and some more"
  older=$("$DIBS" lock page --ttl 3s --wait 20s)
  ok "$scene: the replica has none of these" lags
}
fail_over() {
  ok "$scene: the primary is killed" killed
  ok "$scene: the replica is promoted" promote
}

alone() {
  replicated 'alone'
  begin "$scene" "$(both)"
  before
  stay report-of-the-lag
  lagging
  fail_over
  settled
  told report-of-the-lag
}

# The primary was restored from its dump while the replica lagged: that is a new incarnation, like the promotion, and
# both begin the same epoch. Only the clock keeps the fences of the replica above those of the primary.
restore_primary() {
  local admin at
  admin=$(<"$primary/admin-password") at=$(address "$primary")
  case $engine in
    postgres) pg_dump --clean --if-exists -n dibs "postgres://admin:$admin@$at/dibs" >"$dir/dump.sql" &&
      psql -X -q -v ON_ERROR_STOP=1 "postgres://admin:$admin@$at/dibs" -f "$dir/dump.sql" ;;
    mariadb)
      export MYSQL_PWD=$admin
      mariadb-dump --no-defaults -h 127.0.0.1 -P "${at#*:}" -u admin dibs >"$dir/dump.sql" &&
        mariadb --no-defaults -h 127.0.0.1 -P "${at#*:}" -u admin dibs <"$dir/dump.sql"
      ;;
  esac
}
restored_since() {
  replicated 'alone, the primary was restored'
  begin "$scene" "$(both)"
  before
  ok "$scene: from its dump" restore_primary
  lagging
  fail_over
  settled
}

# The only case that needs a command: a bump that the replica did not receive.
raised_since() {
  local largest
  replicated 'alone, raised by hand'
  begin "$scene" "$(both)"
  before
  exits 0 "$scene: while it lags" "$DIBS" tier bump
  like "$scene: a warning names replicas" "$err" 'replica'
  lagging
  largest=$(tail -q -n 1 "$dir"/fences.* | sort -n | tail -n 1)
  fail_over
  exits 0 "$scene: above the largest fence" "$DIBS" tier bump "$largest"
  settled
}

# ---- Tiers: a Redis first, and the replicated database as the anchor ----

strictness() { "$DIBS" tier strictness; }
tiers() { # tiers WHAT
  replicated "anchor, $1"
  begin "$scene" "$first?prefix=${1%% *},$(both)"
  exits 0 "$scene: begin" "$DIBS" flag set redis.enabled on
  draw "$scene, begun"
  ok "$scene: Redis serves all buckets" until_true 10 serves 100 0
}
put_right() {
  ok "$scene: status tells" went_back
  like "$scene: doctor reports it" "$("$DIBS" doctor)" 'the anchor went back'
  exits 0 "$scene: confirmed" "$DIBS" tier bump
  ok "$scene: and tells no more" eval '! went_back'
  draw "$scene, after the bump"
  exits 0 "$scene: dissolve" "$DIBS" tier dissolve --force
  export DIBS_STORE
  DIBS_STORE=$(uri_of "$primary")
  draw "$scene, the anchor alone"
}

# The buckets moved to the anchor while the replica lagged; for the replica, Redis serves them.
# (A bucket whose move to Redis has not ended yet moves back after that; a client that keeps running does this by itself,
# and here none runs. A lease that ended at the anchor less than 15 s ago delays it.)
all_moved() { "$DIBS" tier move "$anchor" && serves 0 100; }
moved_since() {
  tiers 'moved since'
  before
  ok "$scene: all buckets are on the anchor" until_true 40 all_moved
  lagging
  fail_over
  settled
  put_right
}
# The tiers became strict while the replica lagged; Redis remembers that. The replica's flags stay, because no client
# knows newer ones.
strict_since() {
  tiers 'strict since'
  before
  exits 0 "$scene: strict" "$DIBS" tier strictness strict
  lagging
  fail_over
  draw "$scene, after the failover"
  is "$scene: it is still strict" "$(strictness)" strict
  settled
  put_right
}
# Rules that were set while the replica lagged; a client that keeps running knows them.
receives_no_more() { until_true 20 streams && lag; }
replace() { killed && promote; }
lives_on() { # lives_on FIRST
  tiers "a client lives on, $1 first"
  first_tier=redis living "$1" receives_no_more replace
  exits 0 "$scene: dissolve" "$DIBS" tier dissolve --force
}

# ---- Redis: by hand, and by a sentinel ----

# The sentinel promotes the replica.
sentinel_promotes() {
  local other=$primary
  until_true 40 sentinel_has "$(port_of "$(uri_of "$replica")")" || return 1
  rm -f "$replica/redis/of"
  servers remove "$other" || return 1
  primary=$replica replica=$other
}
by_sentinel() { # by_sentinel WHAT [ANCHOR]
  replicated "sentinel, $1"
  rm -rf "$base/sentinel"
  sentinel "$base/sentinel" "$primary" "$(port_of "$(uri_of "$primary")")"
  begin "$scene" "redis://dibs:dibs-secret@127.0.0.1:$sentinel_port/0?sentinel=main&prefix=s$#${2:+,$2}"
  [ $# -eq 1 ] || exits 0 "$scene: begin" "$DIBS" flag set redis.enabled on
  before
  ok "$scene: the sentinel knows the replica" until_true 30 sentinel_knows "$(port_of "$(uri_of "$replica")")"
  lagging
  ok "$scene: the primary is killed" killed
  ok "$scene: the sentinel promotes the replica" sentinel_promotes
  settled
  [ $# -eq 1 ] || ok "$scene: the tier is up again" until_true 30 serves 100 0
  [ $# -eq 1 ] || draw "$scene, on Redis again"
  kill "$sentinel_pid"
  wait "$sentinel_pid" 2>/dev/null
}

case $engine in
  postgres | mariadb)
    anchor=$engine
    [ "$engine" != mariadb ] || anchor=mysql
    "$script" start --dir "$base/first" --until $$ redis >/dev/null || exit 1
    first=$(engine=redis uri_of "$base/first")
    alone
    restored_since
    raised_since
    moved_since
    strict_since
    lives_on client
    lives_on another
    ;;
  redis)
    older_is_refused() { true; } # Redis keeps no records
    both() { uri_of "$primary"; }
    replicated 'alone, by hand'
    begin "$scene" "$(both)"
    before
    lagging
    fail_over
    DIBS_STORE=$(both)
    settled
    by_sentinel 'alone'
    by_sentinel 'before a file' "sqlite://$dir/anchor.db"
    ;;
esac
done_testing
