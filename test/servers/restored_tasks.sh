# SPDX-License-Identifier: MIT
# Tasks across a restore; source it after tap.sh. A worker keeps two claims that the restored backup does not know: of a
# task that the backup has, and of a task that was lost, whose number the next task gets. Another worker claims the tasks
# with these numbers. The first worker's verdicts must be refused, and those of the second worker count.

number() { sed -n "s/.*\"$1\":\([0-9]*\).*/\1/p" "$2"; }

# A worker that ends its tasks when the file $dir/go.NAME exists.
restored_worker() { # restored_worker NAME
  "$DIBS" worker --kind restored --jobs 2 --timeout 2m --json --exec \
    "echo \$DIBS_TASK \$DIBS_FENCE \$(cat) >>'$dir/claims.$1'; while [ ! -e '$dir/go.$1' ]; do sleep 0.05; done" \
    >"$dir/counts.$1" 2>"$dir/worker.err" &
}
has_claims() { [ -e "$dir/claims.$1" ] && [ "$(wc -l <"$dir/claims.$1")" = 2 ]; }
running() { [ "$("$DIBS" task counts restored --json | sed 's/.*"claimed":\([0-9]*\).*/\1/')" = "$1" ]; }

restored_tasks() { # restored_tasks DUMP RESTORE
  local first second
  begin "tasks, $1, $2" "$uri"
  rm -f "$dir"/claims.* "$dir"/go.*
  "$DIBS" task cancel --kind restored >/dev/null 2>&1
  "$DIBS" task add restored known >/dev/null
  ok "$scene: dump" "$1"
  restored_worker first
  first=$!
  ok "$scene: a task after the dump" "$DIBS" task add restored lost
  ok "$scene: the first worker has both tasks" until_true 20 has_claims first
  ok "$scene: restore" "$2"
  ok "$scene: a task is added" until_true 20 "$DIBS" task add restored new
  restored_worker second
  second=$!
  ok "$scene: the second worker has the tasks of the restored store" until_true 60 has_claims second
  is "$scene: with the same numbers" "$(cut -d ' ' -f 1 "$dir/claims.second" | sort -n | xargs)" \
    "$(cut -d ' ' -f 1 "$dir/claims.first" | sort -n | xargs)"
  is "$scene: and larger fences" "$(sort -n "$dir"/claims.first "$dir"/claims.second |
    awk '$1 == task && $2 <= fence { print } { task = $1; fence = $2 }')" ''
  touch "$dir/go.first"
  kill -TERM "$first"
  wait "$first"
  is "$scene: no verdict of the first worker is accepted" "$(number done "$dir/counts.first")" 0
  ok "$scene: the second one still has its claims" running 2
  touch "$dir/go.second"
  kill -TERM "$second"
  wait "$second"
  is "$scene: its verdicts are accepted" "$(number done "$dir/counts.second")" 2
}
