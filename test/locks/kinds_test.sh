#!/bin/bash
# SPDX-License-Identifier: MIT
# Leases of a schema are either rows or locks of the server: the first lease decides, and the other kind is refused.
#
#   kinds_test.sh DIBS postgres|mysql URI
DIBS=$1 engine=$2 uri=$3
dir=$(mktemp -d "${TMPDIR:-/tmp}/dibs-kinds.XXXXXX") || exit 1
trap 'rm -rf "$dir"' EXIT
n=0
report() { # STATUS WHAT
  n=$((n + 1))
  if [ "$1" = 0 ]; then echo "ok $n - $2"; else echo "not ok $n - $2"; fi
}
exits() { # CODE WHAT COMMAND...
  local wanted=$1 what=$2 got
  shift 2
  "$@" >"$dir/out" 2>"$dir/err" </dev/null
  got=$?
  [ "$got" = "$wanted" ]
  report $? "$what"
  [ "$got" = "$wanted" ] || { echo "# exit $got: $*"; sed 's/^/#   /' "$dir/err"; }
}
says() { grep -q -- "$2" "$dir/err"; report $? "$1"; }
case $engine in
  postgres)
    kind=advisory
    sql() { psql -q -v ON_ERROR_STOP=1 "$uri" -c "$1" >/dev/null; }
    meta() { echo "dibs.$1meta"; }
    ;;
  *)
    kind=named
    parts='s|mysql://([^:]*):([^@]*)@([^:]*):([0-9]*)/([^?]*).*|\1 \2 \3 \4 \5|'
    read -r user password host port database < <(sed -E "$parts" <<<"$uri")
    sql() { MYSQL_PWD=$password mariadb -h "$host" -P "$port" -u "$user" "$database" -e "$1"; }
    meta() { echo "$1meta"; }
    ;;
esac
rows() { echo "$uri?prefix=$1"; }
locks() { echo "$uri?prefix=$1&lock=$kind"; }

# ---- The first lease decides; listing does not ----
exits 0 'ls of rows' "$DIBS" ls --store "$(rows a_)"
exits 0 'ls of locks' "$DIBS" ls --store "$(locks a_)"
exits 0 'the first lease is a lock' "$DIBS" run n --store "$(locks a_)" -- true
exits 123 'then rows are refused' "$DIBS" run n --store "$(rows a_)" -- true
says 'with the reason and the next step' "lock=$kind"
exits 0 'stock still works' "$DIBS" stock set s 3 --store "$(rows a_)"
exits 0 'the first lease is a row' "$DIBS" run n --store "$(rows b_)" -- true
exits 123 'then locks are refused' "$DIBS" run n --store "$(locks b_)" -- true
says 'with the reason' 'rows'
exits 123 'and again by another process' "$DIBS" run other --store "$(locks b_)" -- true
exits 0 'rows still work' "$DIBS" run n --store "$(rows b_)" -- true

# ---- Both begin at once: one kind wins ----
for round in 1 2 3 4 5; do
  p=c${round}_
  "$DIBS" ls --store "$(rows $p)" >/dev/null
  pids=()
  for i in 1 2 3; do
    "$DIBS" run n --wait 20s --store "$(rows $p)" -- true 2>/dev/null & pids+=($!)
    "$DIBS" run n --wait 20s --store "$(locks $p)" -- true 2>/dev/null & pids+=($!)
  done
  codes=()
  for pid in "${pids[@]}"; do wait "$pid"; codes+=($?); done
  all="${codes[*]}"
  [ "$all" = '0 123 0 123 0 123' ] || [ "$all" = '123 0 123 0 123 0' ]
  report $? "at once, round $round: $all"
done

# ---- Created by a dibs without kinds ----
"$DIBS" run held --store "$(rows d_)" -- sh -c "touch '$dir/up'; while [ ! -e '$dir/end' ]; do sleep 0.05; done" &
holder=$!
until [ -e "$dir/up" ]; do sleep 0.05; done
sql "UPDATE $(meta d_) SET boot = NULL"
exits 123 'not decided, but a row is held' "$DIBS" run n --store "$(locks d_)" -- true
says 'with the reason' 'held'
touch "$dir/end"
wait "$holder"
report $? 'its holder keeps the lease'
exits 0 'after it ends, locks may use the schema' "$DIBS" run n --store "$(locks d_)" -- true
exits 123 'and rows may not' "$DIBS" run n --store "$(rows d_)" -- true
sql "UPDATE $(meta d_) SET boot = NULL"
exits 0 'the schema is switched back' "$DIBS" run n --store "$(rows d_)" -- true
exits 123 'and locks may not' "$DIBS" run n --store "$(locks d_)" -- true

# ---- Leases that ls cannot see ----
exits 0 'ls of locks' "$DIBS" ls --store "$(locks a_)"
says 'names what it does not list' 'other processes'
exits 0 'ls of rows' "$DIBS" ls --store "$(rows b_)"
[ ! -s "$dir/err" ]
report $? 'says nothing'
echo "1..$n"
