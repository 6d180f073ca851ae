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

exits 0 'the rows are listed' "$DIBS" task ls --table "$dir/t.ini#gateway"
is 'by their keys' "$(awk 'NR > 1 {print $1, $3, $4}' <<<"$out" | xargs)" 'gw-1 ready Deleted gw-2 ready Deleted gw-3 ready Created'
sql "UPDATE gateway SET locked_at = (SELECT CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER) - 5000) WHERE id = 'gw-2'"
listed() { "$DIBS" task ls --table "$dir/t.ini#gateway" --json "$@" | grep -o '"row":"[^"]*"' | xargs; }
is 'those that are claimed' "$(listed --state claimed)" 'row:gw-2'
is 'for as long as a claim lasts' "$(listed --state claimed --timeout 2s)" ''
is 'those in a phase' "$(listed --phase Created)" 'row:gw-3'
is 'at most so many' "$(listed --count 1)" 'row:gw-1'
exits 0 'one row' "$DIBS" task show gw-2 --table "$dir/t.ini#gateway"
like 'as it is' "$out" "^row gw-2
table gateway
state claimed
phase Deleted
fence 3
"
exits 0 'the same as JSON' "$DIBS" task show gw-2 --table "$dir/t.ini#gateway" --json
like 'it is valid' "$("$JSON_CHECK" <<<"$out" && echo "$out")" '^\{"row":"gw-2","state":"claimed","phase":"Deleted","fence":3,'
exits 117 'no such row' "$DIBS" task show gw-9 --table "$dir/t.ini#gateway"
exits 125 'a filter that rows do not have' "$DIBS" task ls --table "$dir/t.ini#gateway" --error x
like 'is refused' "$err" 'have no number, kind, serial text and error'
exits 125 'a timeout is for a table' "$DIBS" task ls --timeout 1s
sql 'UPDATE gateway SET locked_at = 0'
sql "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 1203) INSERT INTO gateway (id, phase) SELECT 'many-' || i, 'Many' FROM n"
is 'many rows are listed once' "$(listed --phase Many | tr ' ' '\n' | sort -u | wc -l) $(listed --phase Many | wc -w)" '1203 1203'
sql "DELETE FROM gateway WHERE phase = 'Many'"

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
work Settled 'echo Gone >"$DIBS_NEXT_PHASE"; sleep 4.5' --timeout 3s
is 'a command that takes longer than its claim' "$(sql "SELECT phase || ' ' || fence FROM gateway WHERE id = 'gw-3'")" \
  'Gone 5'

# A program without dibs takes the row over: the command is ended, and its verdict refused.
work Gone "trap '' TERM; echo begun >$dir/begun
  \"\$RUN_SQL\" \"\$file\" \"UPDATE gateway SET locked_at = locked_at + 500000\"; sleep 30; echo late >$dir/late" --timeout 3s
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
