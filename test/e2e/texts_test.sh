#!/bin/bash
# SPDX-License-Identifier: MIT
# The command with the strings of test/hostile ($HOSTILE prints them): each is a distinct name, key, claim and owner,
# and is returned unchanged; bytes that are not text are refused; no output controls or misleads a terminal.
. "$(dirname "$0")/tap.sh"
: "${HOSTILE:?names the program that prints the strings}" "${JSON_CHECK:?}"
[ $# = 0 ] || export DIBS_STORE=$1

mapfile -d '' -t short < <("$HOSTILE" short)
mapfile -d '' -t long < <("$HOSTILE" long)
mapfile -d '' -t bad < <("$HOSTILE" bad)
# Every Nth, beginning with the first: each needs one process or more.
some() { # some LIST STEP: into $picked
  local -n from=$1
  local i
  picked=()
  for ((i = 0; i < ${#from[@]}; i += $2)); do picked+=("${from[i]}"); done
}

wrong=()
check() { wrong=(); }
none() { # none WHAT: nothing was wrong since check
  if [ ${#wrong[@]} = 0 ]; then report 0 "$1"; else
    report 1 "$1"
    say "${#wrong[@]} were wrong:" "${wrong[@]:0:10}"
  fi
}

# ---- Each is a distinct name: lock, show, ls, unlock ----

check
names=("${short[@]}" "${long[@]}")
locks=$dir/locks
mkdir "$locks"
for i in "${!names[@]}"; do
  "$DIBS" lock --ttl 10m "--owner=${short[(i * 7 + 3) % ${#short[@]}]}" -- "${names[i]}" >"$locks/$i" 2>"$dir/err" ||
    wrong+=("lock ${names[i]@Q}: $(cat "$dir/err")")
  (
    # shellcheck disable=SC1090
    . "$locks/$i"
    [ "${DIBS_NAME-}" = "${names[i]}" ]
  ) || wrong+=("DIBS_NAME of ${names[i]@Q}: $(grep NAME "$locks/$i")")
done
none 'each is locked separately, and a shell reads its name back'

check
"$DIBS" ls --json >"$dir/ls" || wrong+=('ls --json failed')
"$JSON_CHECK" <"$dir/ls" >/dev/null || wrong+=('ls --json is not JSON')
[ "$("$DIBS" ls | wc -l)" = $((${#names[@]} + 1)) ] || wrong+=("ls prints $("$DIBS" ls | wc -l) lines")
LC_ALL=C "$DIBS" ls | LC_ALL=C grep -q $'[\x01-\x09\x0b-\x1f\x7f]' && wrong+=('ls prints control characters')
"$DIBS" ls | LC_ALL=C grep -q $'\xe2\x80[\xa8-\xae]\|\xe2\x81[\xa6-\xa9]' && wrong+=('ls prints characters that reverse text')
none 'ls shows each on its own line, without control characters'

check
some names 5
for name in "${picked[@]}"; do
  "$DIBS" show --json -- "$name" >"$dir/show" 2>&1 || wrong+=("show ${name@Q}: $(cat "$dir/show")")
  "$JSON_CHECK" <"$dir/show" >/dev/null || wrong+=("show --json ${name@Q}")
  [ "$(grep -o '"state":"holds"' "$dir/show" | wc -l)" = 1 ] || wrong+=("${name@Q} has not one holder")
  "$DIBS" run --try -- "$name" -- true 2>/dev/null
  [ $? = 120 ] || wrong+=("run ${name@Q} did not find it held")
done
none 'each has one holder'

check
for i in "${!names[@]}"; do
  "$DIBS" unlock - <"$locks/$i" 2>"$dir/err" || wrong+=("unlock ${names[i]@Q}: $(cat "$dir/err")")
done
[ "$("$DIBS" ls --json)" = '[]' ] || wrong+=("left: $("$DIBS" ls --json | head -c 300)")
none 'each is unlocked with the output of lock'

# ---- run, record, stock, once, break ----

check
some names 4
for name in "${picked[@]}"; do
  # shellcheck disable=SC2016
  got=$("$DIBS" run -- "$name" -- sh -c 'printf %s. "$DIBS_NAME"' 2>"$dir/err")
  [ "$got" = "$name." ] || wrong+=("run ${name@Q}: ${got@Q} $(cat "$dir/err")")
done
none 'run passes the name to the command unchanged'

check
for name in "${picked[@]}"; do
  printf '%s' "$name" | "$DIBS" record put --force -- "$name" >/dev/null 2>"$dir/err" ||
    wrong+=("record put ${name@Q}: $(cat "$dir/err")")
done
for name in "${picked[@]}"; do
  got=$("$DIBS" record get -- "$name" && echo .)
  [ "$got" = "$name." ] || wrong+=("record ${name@Q}: ${got@Q}")
done
none 'each is the key of a record'

check
claims=()
"$DIBS" stock set seats 1000 >/dev/null || wrong+=('stock set')
some short 3
for claim in "${picked[@]}"; do
  "$DIBS" stock take seats --claim="$claim" >/dev/null 2>"$dir/err" || wrong+=("take ${claim@Q}: $(cat "$dir/err")")
  claims+=("$claim")
done
for claim in "${claims[@]}"; do
  "$DIBS" stock take seats --claim="$claim" --json >"$dir/out" 2>&1
  grep -q REPLAY "$dir/out" || wrong+=("take ${claim@Q} again: $(cat "$dir/out")")
  "$JSON_CHECK" <"$dir/out" >/dev/null || wrong+=("take --json ${claim@Q}")
done
"$DIBS" stock show seats --json | grep -q "\"used\":${#claims[@]}," || wrong+=("$("$DIBS" stock show seats --json)")
none 'each claim counts once and separately'

check
some short 6
for key in "${picked[@]}"; do
  for round in 1 2; do
    # shellcheck disable=SC2016
    got=$("$DIBS" once -- "$key" -- sh -c 'printf "%s." "$1"' sh "$key$round" 2>"$dir/err")
    [ "$got" = "${key}1." ] || wrong+=("once ${key@Q}: ${got@Q} $(cat "$dir/err")")
  done
done
none 'each is a key whose answer is kept'

check
for name in "${picked[@]}"; do
  "$DIBS" lock --ttl 10m -- "$name" >"$dir/lock" || wrong+=("lock ${name@Q}")
  "$DIBS" break --now "--owner=$name" -- "$name" 2>"$dir/err" || wrong+=("break ${name@Q}: $(cat "$dir/err")")
  "$DIBS" show --json -- "$name" | "$JSON_CHECK" >/dev/null || wrong+=("show --json of a break ${name@Q}")
done
none 'each is broken separately'

# ---- Bytes that are not text ----

check
printf '%s' ours >"$dir/in"
for text in "${bad[@]}"; do
  [ -n "$text" ] || continue # an empty argument is another mistake
  for call in 'run --try -- @ -- false' 'lock -- @' 'show -- @' 'ls -- @' 'break -- @' 'once -- @ -- false' \
    'record get -- @' 'record put --force -- @' 'stock set -- @ 1' 'stock take -- @' 'run --try --owner=@ n -- false' \
    'stock take seats --claim=@'; do
    words=()
    for word in $call; do words+=("${word//@/"$text"}"); done
    "$DIBS" "${words[@]}" >"$dir/out" 2>"$dir/err" <"$dir/in"
    got=$?
    [ $got = 125 ] || wrong+=("$call, ${text@Q}: exit $got: $(cat "$dir/err")")
    LC_ALL=C grep -q $'[^ -~]' "$dir/err" && wrong+=("$call, ${text@Q}: prints $(cat -v "$dir/err")")
  done
done
none 'bytes that are not text are refused with a message that is safe for a terminal'

check
"$DIBS" ls --json >"$dir/ls"
[ "$(cat "$dir/ls")" = '[]' ] || wrong+=("$(cat "$dir/ls")")
"$DIBS" stock show seats --json | grep -q "\"used\":${#claims[@]}," || wrong+=("$("$DIBS" stock show seats --json)")
none 'and change nothing'

# shellcheck disable=SC2016
got=$(USER=$'b\xff\x1b[2J\xc3\xa4' "$DIBS" run n -- sh -c '"$DIBS" ls --json' 2>&1)
like 'a USER that is not text makes a printable owner' "$got" '"owner":"b\?\?\[2Jä@'
done_testing
