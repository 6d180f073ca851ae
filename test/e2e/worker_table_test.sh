#!/bin/bash
# SPDX-License-Identifier: MIT
# dibs worker --table: commands for rows of a table of the user's own.
. "$(dirname "$0")/tap.sh"
file=$dir/own.db
export DIBS_STORE=sqlite://$file
"$DIBS" ls >/dev/null
sql() { "$RUN_SQL" "$file" "$@"; }
sql 'CREATE TABLE gateway (id TEXT PRIMARY KEY, phase TEXT, step INTEGER DEFAULT 0, locked_at INTEGER NOT NULL
  DEFAULT 0, updated_at INTEGER NOT NULL DEFAULT 0, fence INTEGER, seen TEXT)' \
  "INSERT INTO gateway (id, phase) VALUES ('gw-1', 'Deleting'), ('gw-2', 'Deleting'), ('gw-3', 'Created')"
cat >"$dir/t.ini" <<'INI'
[gateway]
table = gateway
key = id
phase = phase
locked_at = locked_at
updated_at = updated_at
fence = fence
INI
# work PHASE COMMAND [OPTION...]: until no row in this phase is free.
work() {
  timeout 60 "$DIBS" worker --table "$dir/t.ini#gateway" --once --phase "$1" --exec "$2" "${@:3}" \
    >"$dir/worker.out" 2>"$dir/worker.err"
}
export RUN_SQL file

# The classic scene: one step for each claim, the next step is a column, and the last step sets the phase.
cat >"$dir/step" <<'END'
#!/bin/sh
mine="id = '$DIBS_KEY' AND fence = $DIBS_FENCE"
echo "$DIBS_TASK $DIBS_KIND $DIBS_PHASE $DIBS_FENCE ${DIBS_ATTEMPT-none} $(cat)" >>"$0.log"
"$RUN_SQL" "$file" "UPDATE gateway SET step = step + 1 WHERE $mine" \
  "UPDATE gateway SET phase = 'Deleted' WHERE step = 3 AND $mine"
END
chmod +x "$dir/step"
work Deleting "$dir/step"
is 'steps until the phase is another one: exit status' $? 0
is 'each row had its steps and is free' \
  "$(sql "SELECT id || ' ' || phase || ' ' || step || ' ' || coalesce(fence, 'none') || ' ' || locked_at FROM gateway ORDER BY id" | tr '\n' ';')" \
  'gw-1 Deleted 3 3 0;gw-2 Deleted 3 3 0;gw-3 Created 0 none 0;'
is 'what the command got' "$(grep gw-1 "$dir/step.log" | head -1)" 'gw-1 gateway Deleting 1 none '

work Created 'echo Checked >"$DIBS_NEXT_PHASE"'
is '0: the phase of DIBS_NEXT_PHASE' "$(sql "SELECT phase FROM gateway WHERE id = 'gw-3'")" Checked
work Checked 'echo Settled >"$DIBS_NEXT_PHASE"; exit 86'
is '86: the same' "$(sql "SELECT phase FROM gateway WHERE id = 'gw-3'")" Settled
sql "UPDATE gateway SET updated_at = (SELECT CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER) - 100000)"
work Settled 'exit 75'
is '75: locked for a tenth of its age' "$(sql "SELECT CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)
  - locked_at BETWEEN 19900 AND 25000 FROM gateway WHERE id = 'gw-3'")" 1
sql 'UPDATE gateway SET locked_at = 0'
work Settled 'echo the reason; exit 87'
is '87: the row keeps its phase' "$(sql "SELECT phase FROM gateway WHERE id = 'gw-3'")" Settled
like 'and the reason is printed' "$(cat "$dir/worker.err")" 'row gw-3: failed after .*exited with 87 the reason'
sql 'UPDATE gateway SET locked_at = 0'
work Settled 'echo Gone >"$DIBS_NEXT_PHASE"; sleep 2.5' --timeout 1s
is 'a command that takes longer than its claim' "$(sql "SELECT phase || ' ' || fence FROM gateway WHERE id = 'gw-3'")" \
  'Gone 5'

# A program without dibs takes the row over: the command is ended, and its verdict refused.
work Gone "trap '' TERM; echo begun >$dir/begun
  \"\$RUN_SQL\" \"\$file\" \"UPDATE gateway SET locked_at = locked_at + 500000\"; sleep 30; echo late >$dir/late" --timeout 1s
is 'a row that was taken over' "$(sql "SELECT phase FROM gateway WHERE id = 'gw-3'")" Gone
ok 'its command had begun' test -e "$dir/begun"
ok 'and was ended' test ! -e "$dir/late"

# ---- What is refused ----
sed -i 's/^locked_at = .*/locked_at = misspelt/' "$dir/t.ini"
"$DIBS" worker --table "$dir/t.ini" --exec true 2>"$dir/worker.err"
is 'a table that does not fit: exit status' $? 125
like 'it names the column' "$(cat "$dir/worker.err")" 'misspelt'
exits 125 'a kind and a table' "$DIBS" worker --kind x --table "$dir/t.ini" --exec true
like 'says so' "$err" '--kind or --table'
done_testing
