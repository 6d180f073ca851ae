#!/bin/bash
# SPDX-License-Identifier: MIT
# Dump, continue, restore: the fences before the dump, between dump and restore, and afterwards grow, and a sealed
# record refuses older writers. For a store alone, and for the anchor of tiers. doc/backups.md describes the same by
# hand.
#   backups_test.sh postgres|mariadb|redis|sqlite [SCENES]     SCENES: living, tasks
#   with.sh --private sets DIBS_TEST_... and the servers' script and folder; sqlite needs none
. "$(dirname "$0")/../e2e/tap.sh"
. "$(dirname "$0")/fences.sh"
. "$(dirname "$0")/living.sh"
. "$(dirname "$0")/restored_tasks.sh"
engine=$1
script=${DIBS_TEST_SERVERS_SCRIPT:-} place=${DIBS_TEST_SERVERS_DIR:-}
server() { "$script" "$1" --dir "$place" "$engine" >/dev/null 2>&1; }
around() { # around DUMP BETWEEN RESTORE
  draw "$scene, before the dump"
  older=$("$DIBS" lock page --ttl 3s --wait 20s)
  ok "$scene: dump" "$1"
  $2
  ok "$scene: restore" "$3"
}
# ---- Ways to dump and restore ----

case $engine in
  postgres)
    uri=$DIBS_TEST_POSTGRES
    sql() { psql -X -q -A -t -v ON_ERROR_STOP=1 "$uri" "$@"; }
    dump() { pg_dump --clean --if-exists -n dibs "$uri" >"$dir/dump.sql"; }
    # In one transaction: a client that lives on writes no row between two statements. Again after a deadlock with it.
    restore() { sql -1 -f "$dir/dump.sql" || sql -1 -f "$dir/dump.sql" || sql -1 -f "$dir/dump.sql"; }
    dump_data() { pg_dump --data-only -n dibs "$uri" >"$dir/data.sql"; }
    restore_data() {
      local tables
      tables=$(sql -c "SELECT string_agg('dibs.' || tablename, ', ') FROM pg_tables WHERE schemaname = 'dibs'")
      sql -c "TRUNCATE $tables" && sql -f "$dir/data.sql"
    }
    empty() { sql -c 'DROP SCHEMA dibs CASCADE'; }
    ;;
  mariadb)
    uri=$DIBS_TEST_MYSQL
    client=("--no-defaults" "-h" "$(host_of "$uri")" "-P" "$(port_of "$uri")" "-u" dibs)
    export MYSQL_PWD=dibs-secret
    sql() { mariadb "${client[@]}" dibs "$@"; }
    dump() { mariadb-dump "${client[@]}" --no-tablespaces dibs >"$dir/dump.sql"; }
    # Again if a client that lives on wrote its row between DROP TABLE and INSERT.
    restore() { sql <"$dir/dump.sql" || sql <"$dir/dump.sql" || sql <"$dir/dump.sql"; }
    dump_data() { mariadb-dump "${client[@]}" --no-tablespaces --no-create-info dibs >"$dir/data.sql"; }
    restore_data() {
      local table
      for table in $(sql -N -B -e 'SHOW TABLES'); do sql -e "DELETE FROM $table" || return 1; done
      sql <"$dir/data.sql"
    }
    empty() {
      local table
      for table in $(sql -N -B -e 'SHOW TABLES'); do sql -e "DROP TABLE $table" || return 1; done
    }
    ;;
  redis)
    uri=$DIBS_TEST_REDIS
    cli() { REDISCLI_AUTH=$(<"$place/admin-password") redis-cli -h 127.0.0.1 -p "$(port_of "$uri")" --user admin "$@"; }
    dump() { cli SAVE && cp "$place/redis/data/dump.rdb" "$dir/dump.rdb"; }
    restore() { server kill && cp "$dir/dump.rdb" "$place/redis/data/dump.rdb" && server start; }
    empty() { server kill && rm -f "$place/redis/data/dump.rdb" && server start; }
    ;;
esac
# A copy of the folder of a stopped server.
copy() { server stop && rm -rf "$dir/copy" && cp -a "$place/$engine/data" "$dir/copy" && server start; }
put_back() { server stop && rm -rf "$place/$engine/data" && cp -a "$dir/copy" "$place/$engine/data" && server start; }
# A lagging replica: it has the state of its creation, and replaces the other server.
promote() {
  server kill && rm -rf "$place/$engine/data" && cp -a "$dir/copy" "$place/$engine/data" || return 1
  : >"$place/$engine/data/standby.signal"
  chown --reference="$place/$engine/data" "$place/$engine/data/standby.signal"
  server start || return 1
  PGPASSWORD=$(<"$place/admin-password") psql -X -q -h 127.0.0.1 -p "$(port_of "$uri")" -U admin dibs \
    -c 'SELECT pg_promote()' >/dev/null
}

# ---- Tiers ----

tiers() { # tiers WHAT NAME
  begin "$1" "sqlite://$dir/$2.db,$uri"
  exits 0 "$scene: begin" "$DIBS" flag set sqlite.enabled on
}
move_to_anchor() {
  "$DIBS" tier move "$anchor"
  ok "$scene: all buckets are on the anchor" serves 0 100
  draw_on
}
move_there_and_back() {
  move_to_anchor
  "$DIBS" tier move auto
  ok "$scene: and back" serves 100 0
  draw "$scene, back again"
}
as_anchor() { # as_anchor DUMP RESTORE
  anchor=$engine
  [ "$engine" != mariadb ] || anchor=mysql
  tiers "anchor, moved, $1" "first$RANDOM"
  around "$1" move_to_anchor "$2"
  settled
  ok "$scene: status tells" went_back
  exits 0 "$scene: confirmed" "$DIBS" tier bump
  ok "$scene: and tells no more" eval '! went_back'
  draw "$scene, after the bump"
  exits 0 "$scene: dissolve" "$DIBS" tier dissolve --force
  export DIBS_STORE=$uri
  draw "$scene, the anchor alone"
  export DIBS_STORE=sqlite://$dir/none.db
}

# A rule that is set after the dump survives its restore: only a command makes a fleet less strict.
stays_strict() {
  tiers "anchor, strict since" strict
  around dump be_strict restore
  draw "$scene, after the restore"
  is "$scene: it is still strict" "$("$DIBS" tier strictness)" strict
  exits 0 "$scene: dissolve" "$DIBS" tier dissolve --force
}
be_strict() {
  "$DIBS" tier strictness strict
  draw "$scene, strict"
}

# A restore that nothing reveals: only the anchor used epochs since then, and its whole server is restored.
bump_cures() {
  tiers "anchor, copied whole" whole
  "$DIBS" tier move "$anchor"
  ok "$scene: all buckets are on the anchor" serves 0 100
  around copy bump_twice put_back
  exits 0 "$scene: bump" "$DIBS" tier bump
  settled
  exits 0 "$scene: dissolve" "$DIBS" tier dissolve --force
}

# A client that keeps running knows rules that were set since the backup.
lives_on() { # lives_on URI BACKUP RESTORE [FIRST]...
  local first
  for first in "${@:4}"; do
    begin "anchor, a client lives on, $first first, $3" "sqlite://$dir/living-$first-$3.db,$1"
    exits 0 "$scene: begin" "$DIBS" flag set sqlite.enabled on
    living "$first" "$2" "$3"
    exits 0 "$scene: dissolve" "$DIBS" tier dissolve --force
  done
  [ "$2" != true ] || return
  begin "anchor, a person is first, $3" "sqlite://$dir/person-$3.db,$1"
  exits 0 "$scene: begin" "$DIBS" flag set sqlite.enabled on
  settles "$2" "$3"
  exits 0 "$scene: dissolve" "$DIBS" tier dissolve --force
}
bump_twice() {
  "$DIBS" tier bump
  draw "$scene, a bump later"
}

# ---- Scenes ----

case $engine,${2:-} in
  postgres,living | mariadb,living)
    # A client that is stopped within a transaction keeps locks on tables, for which a restore would wait.
    cut() { server kill && server start; }
    cut_restore() { cut && restore; }
    cut_empty() { cut && empty; }
    lives_on "$uri" dump cut_restore client another
    lives_on "$uri" true cut_empty another
    ;;
  sqlite,living)
    keep() { sqlite3 "$dir/alone.db" ".backup $dir/alone.bak"; }
    # .restore gives up after 0.3 s while another process writes.
    in_place() { until_true 20 sqlite3 "$dir/alone.db" ".restore $dir/alone.bak"; }
    # A checkpoint that truncates the log needs every lock: its first column is 1 if it does not get them.
    no_locks() {
      local file
      for file in "${DIBS_STORE%%,*}" "${DIBS_STORE##*,}"; do
        case $(sqlite3 "${file#sqlite://}" 'PRAGMA wal_checkpoint(TRUNCATE)') in 0*) ;; *) return 1 ;; esac
      done
    }
    lives_on "sqlite://$dir/alone.db" keep in_place client another
    ;;
  *,living) ;;
  sqlite,tasks)
    uri=sqlite://$dir/alone.db
    keep() { sqlite3 "$dir/alone.db" ".backup $dir/alone.bak"; }
    in_place() { until_true 20 sqlite3 "$dir/alone.db" ".restore $dir/alone.bak"; }
    restored_tasks keep in_place
    ;;
  *,tasks)
    restored_tasks dump restore
    restored_tasks copy put_back
    ;;
  postgres, | mariadb,)
    for way in 'dump restore' 'dump_data restore_data' 'copy put_back'; do
      begin "alone, $way" "$uri"
      # shellcheck disable=SC2086
      set -- $way
      around "$1" draw_on "$2"
      settled
    done
    begin 'alone, bump' "$uri"
    draw "$scene, before"
    last=$(tail -n 1 "$dir/fences.job")
    exits 0 "$scene: bump of a store alone" "$DIBS" tier bump
    draw "$scene, after"
    exits 0 "$scene: bump above a fence" "$DIBS" tier bump $((last + 5000000000000))
    draw "$scene, above"
    ok "$scene: it is above" test "$(tail -n 1 "$dir/fences.job")" -gt $((last + 5000000000000))
    if [ "$engine" = postgres ]; then
      begin 'alone, a replica that lagged' "$uri"
      around copy draw_on promote
      settled
    fi
    begin 'alone, empty' "$uri"
    draw "$scene, before"
    ok "$scene: made again" empty
    as_anchor dump restore
    as_anchor copy put_back
    [ "$engine" != postgres ] || as_anchor copy promote
    bump_cures
    [ "$engine" != postgres ] || stays_strict
    ;;
  redis,)
    older_is_refused() { true; } # Redis keeps no records
    begin 'alone, dump restore' "$uri"
    around dump draw_on restore
    settled
    ok "$scene: empty" empty
    draw "$scene, empty"
    # As a tier: its old dump is another incarnation.
    export DIBS_STORE=sqlite://$dir/none.db
    begin 'tier, dump restore' "$uri?prefix=t,sqlite://$dir/anchor.db"
    exits 0 "$scene: begin" "$DIBS" flag set redis.enabled on
    around dump draw_on restore
    settled
    # The anchor is a file: restored in place.
    anchor=sqlite
    begin 'tier of a file, the file restored' "$uri?prefix=u,sqlite://$dir/file.db"
    exits 0 "$scene: begin" "$DIBS" flag set redis.enabled on
    keep() { sqlite3 "$dir/file.db" ".backup $dir/file.bak"; }
    back() { sqlite3 "$dir/file.db" ".restore $dir/file.bak"; }
    around keep move_to_anchor back
    settled
    ok "$scene: status tells" went_back
    ;;
  sqlite,)
    uri=sqlite://$dir/alone.db
    keep() { sqlite3 "$dir/alone.db" ".backup $dir/alone.bak"; }
    # .restore gives up after 0.3 s while another process writes.
    in_place() { until_true 20 sqlite3 "$dir/alone.db" ".restore $dir/alone.bak"; }
    swapped() { rm -f "$dir"/alone.db "$dir"/alone.db-wal "$dir"/alone.db-shm && cp "$dir/alone.bak" "$dir/alone.db"; }
    folder() { rm -rf "$dir/folder" && mkdir "$dir/folder" && cp -a "$dir"/alone.db* "$dir/folder"; }
    folder_back() { rm -f "$dir"/alone.db* && cp -a "$dir/folder"/* "$dir" && rm -f "$dir/alone.db-dibs"; }
    for way in 'keep in_place' 'keep swapped' 'folder folder_back'; do
      begin "alone, $way" "$uri"
      # shellcheck disable=SC2086
      set -- $way
      around "$1" draw_on "$2"
      settled
    done
    there() {
      "$DIBS" tier move sqlite-2
      ok "$scene: all buckets are on the anchor" serves 0 100
      draw_on
    }
    for way in 'keep in_place' 'keep swapped'; do
      # shellcheck disable=SC2086
      set -- $way
      begin "anchor, $way" "sqlite://$dir/first-$2.db,sqlite://$dir/alone.db"
      exits 0 "$scene: begin" "$DIBS" flag set sqlite.enabled on
      around "$1" there "$2"
      settled
      exits 0 "$scene: dissolve" "$DIBS" tier dissolve --force
      for member in "sqlite://$dir/alone.db" "sqlite://$dir/first-$2.db" "sqlite://$dir/alone.db"; do
        export DIBS_STORE=$member
        [ "$member" = "$uri" ] || draw "$scene, ${member##*/} alone"
      done
    done
    ;;
esac
done_testing
