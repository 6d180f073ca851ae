# SPDX-License-Identifier: MIT
# Fences across a restore or a failover; source it after tap.sh. Each scene of a test draws fences of the same names and
# compares them as numbers.
names=(job backup report)

# draw WHAT: draws a fence of each name, and checks that all fences so far grow.
draw() {
  local name fence
  for name in "${names[@]}"; do
    fence=$("$DIBS" run "$name" --ttl 2s --wait 30s -- sh -c 'echo $DIBS_FENCE' 2>"$dir/draw.err") ||
      say "no fence of $name: $(cat "$dir/draw.err")"
    echo "${fence:-0}" >>"$dir/fences.$name"
  done
  ok "fences grow: $1" grow
}
grow() {
  local name
  for name in "${names[@]}"; do
    awk '$1 <= last { print FILENAME ": " $1 " after " last; bad = 1 } { last = $1 } END { exit bad }' "$dir/fences.$name" ||
      return 1
  done
}
begin() { # begin WHAT URI: another scene
  scene=$1
  rm -f "$dir"/fences.*
  export DIBS_STORE=$2
}
as() { local lease=$1; shift; env $(printf '%s' "$lease" | grep -v export | tr -d "'") "$@"; }

older_is_refused() {
  local new
  new=$("$DIBS" lock page --ttl 2s --wait 20s) || return 1
  as "$new" "$DIBS" record get page >/dev/null || return 1
  printf 'late' | as "$older" "$DIBS" record put page
  [ $? = 118 ]
}
settled() {
  draw "$scene, after the restore"
  draw "$scene, and on"
  ok "$scene: a sealed record refuses an older writer" older_is_refused
}
draw_on() {
  draw "$scene, after the dump"
  draw "$scene, and some more"
}

host_of() { local rest=${1#*@}; rest=${rest%%/*}; echo "${rest%%:*}"; }
port_of() { local rest=${1#*@}; rest=${rest%%/*}; echo "${rest#*:}"; }
serves() { # serves N M: so many buckets on each
  [ "$("$DIBS" tier status --json 2>/dev/null | grep -o '"buckets":[0-9]*' | tr -dc '0-9\n' | paste -sd' ')" = "$1 $2" ]
}
went_back() { "$DIBS" tier status | grep -q 'THE ANCHOR WENT BACK'; }
