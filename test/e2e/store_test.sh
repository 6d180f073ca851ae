#!/bin/bash
# SPDX-License-Identifier: MIT
# Failures of the store before, while and after a command runs.  The fault shim injects them.
. "$(dirname "$0")/tap.sh"

file=$dir/dibs.db
faulty() { echo "fault+sqlite://$file?fault.nth=$1&fault.how=$2${3:+&fault.forever=1}"; }
"$DIBS" run x -- true # The file exists and is complete.

# ---- 124: unknown ----
exits 124 'unknown, for every attempt' "$DIBS" run x --store "$(faulty 1 unknown-before forever)" -- echo ran
is 'unknown: nothing was run' "$out" ''
like 'unknown: the message' "$err" '^dibs: .*"x".*repeating the call'
exits 124 'unknown, as an object' "$DIBS" run --json x --store "$(faulty 1 unknown-before forever)" -- true
like 'unknown, as an object: the message' "$err" '"exit":124,"status":"UNKNOWN"'
for how in unknown-before unknown-after; do
  exits 0 "$how, once: a repetition finds the same grant" "$DIBS" run x --store "$(faulty 1 $how)" -- echo ran
  is "$how, once: it ran" "$out" ran
  is "$how, once: nothing remains held" "$("$DIBS" ls x)" ''
done

# ---- 123: unavailable ----
exits 123 'unavailable, for the whole wait' "$DIBS" run x --wait 1s --store "$(faulty 1 unavailable forever)" -- echo ran
is 'unavailable: nothing was run' "$out" ''
like 'unavailable: the message' "$err" '^dibs: .*"x".*nothing changed'
exits 123 'a store that cannot be opened' "$DIBS" ls --store "fault+sqlite://$file?fault.on=open&fault.nth=1"

# ---- while the command runs: it ends before another client can get the lease ----
began=$(now_ms)
exits 122 'renewals fail: the command is ended' "$DIBS" run x --ttl 3s --store "$(faulty 2 unavailable forever)" -- sleep 60
took=$(($(now_ms) - began))
ok "renewals fail: before the ttl ends ($took ms)" [ "$took" -lt 3000 ]
ok "renewals fail: not before it must ($took ms)" [ "$took" -gt 1000 ]
like 'renewals fail: the message' "$err" "^dibs: the lease of 'x' was lost and dibs ended the command .*could not renew it in time"
until_true 10 free x
exits 0 'one renewal fails: the next one does' "$DIBS" run x --ttl 3s --store "$(faulty 2 unavailable)" -- sleep 4

# ---- after it: its status is returned, and the lease ends by itself ----
exits 7 'the release fails: the status of the command' "$DIBS" run x --ttl 2s --store "$(faulty 2 unavailable forever)" -- sh -c 'exit 7'
like 'the release fails: the message' "$err" '^dibs: '
ok 'the release fails: it is free when the ttl ends' until_true 10 free x

# ---- a change of tasks whose answer is lost: repeated only without a limit ----
left() { "$DIBS" task ls --kind lost --json | grep -o '"task":' | wc -l; }
for i in 1 2 3 4 5 6; do "$DIBS" task add lost "$i" >/dev/null; done
"$DIBS" task cancel --kind lost >/dev/null
exits 124 'purge --count, the answer is lost' "$DIBS" task purge --kind lost --count 2 --store "$(faulty 1 unknown-after)"
like 'purge --count: the message' "$err" '^dibs: .*up to 2 more tasks'
is 'purge --count: no more than two' "$(left)" 4
exits 0 'purge at a rate, an answer is lost' "$DIBS" task purge --kind lost --rate 2 --store "$(faulty 1 unknown-after)"
is 'purge at a rate: all' "$(left)" 0
exits 124 'purge at a rate, each answer is lost' "$DIBS" task purge --kind lost --rate 2 --store "$(faulty 1 unknown-before forever)"

# ---- unusable stores, which stay unchanged ----
cp "$file" "$dir/newer.db"
printf '\0\377\377\377' | dd of="$dir/newer.db" bs=1 seek=60 conv=notrunc 2>/dev/null
cp "$dir/newer.db" "$dir/newer.copy"
exits 123 'created by a newer dibs' "$DIBS" ls --json --store "sqlite://$dir/newer.db"
like 'created by a newer dibs: the message' "$err" '"status":"TOO_NEW"'
ok 'created by a newer dibs: unchanged' cmp "$dir/newer.db" "$dir/newer.copy"
exits 123 'a missing folder' "$DIBS" ls --store "sqlite://$dir/no/such/folder.db"
like 'a missing folder: the message' "$err" '^dibs: .*folder'
exits 125 'no driver' "$DIBS" ls --store nosuch://host
like 'no driver: the message' "$err" '^dibs: .*nosuch'
exits 125 'an unknown parameter' "$DIBS" ls --store "sqlite://$file?colour=red"
like 'an unknown parameter: the message' "$err" '^dibs: .*colour'
if [ "$(id -u)" != 0 ]; then
  chmod 000 "$file"
  exits 123 'not permitted' "$DIBS" ls --json
  like 'not permitted: the message' "$err" '"status":"DENIED"'
  chmod 600 "$file"
fi
done_testing
