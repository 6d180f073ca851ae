#!/bin/bash
# SPDX-License-Identifier: MIT
# What the command does when its store breaks: before, while and after a command runs.  The fault shim is the breakage.
. "$(dirname "$0")/tap.sh"

file=$dir/dibs.db
faulty() { echo "fault+sqlite://$file?fault.nth=$1&fault.how=$2${3:+&fault.forever=1}"; }
"$DIBS" run x -- true # The file is there and whole.

# ---- 124: unknown ----
exits 124 'unknown, as often as it is asked' "$DIBS" run x --store "$(faulty 1 unknown-before forever)" -- echo ran
is 'unknown: nothing was run' "$out" ''
like 'unknown: said' "$err" '^dibs: .*"x".*asking again'
exits 124 'unknown, as an object' "$DIBS" run --json x --store "$(faulty 1 unknown-before forever)" -- true
like 'unknown, as an object: said' "$err" '"exit":124,"status":"UNKNOWN"'
for how in unknown-before unknown-after; do
  exits 0 "$how, once: asking again finds the same grant" "$DIBS" run x --store "$(faulty 1 $how)" -- echo ran
  is "$how, once: it ran" "$out" ran
  is "$how, once: nothing is left" "$("$DIBS" ls x)" ''
done

# ---- 123: unavailable ----
exits 123 'unavailable' "$DIBS" run x --store "$(faulty 1 unavailable forever)" -- echo ran
is 'unavailable: nothing was run' "$out" ''
like 'unavailable: said' "$err" '^dibs: .*"x".*nothing was done'
exits 123 'can not be opened' "$DIBS" ls --store "fault+sqlite://$file?fault.on=open&fault.nth=1"

# ---- while the command runs: it is ended before the lease can be somebody else's ----
began=$(now_ms)
exits 122 'renewals fail: the command is ended' "$DIBS" run x --ttl 3s --store "$(faulty 2 unavailable forever)" -- sleep 60
took=$(($(now_ms) - began))
ok "renewals fail: before the ttl is over ($took ms)" [ "$took" -lt 3000 ]
ok "renewals fail: not before it must ($took ms)" [ "$took" -gt 1000 ]
like 'renewals fail: said' "$err" "^dibs: the lease of 'x' was lost and the command was ended .*not renewed in time"
until_true 10 free x
exits 0 'one renewal fails: the next one does' "$DIBS" run x --ttl 3s --store "$(faulty 2 unavailable)" -- sleep 4

# ---- after it: its status is returned, and the lease ends by itself ----
exits 7 'the release fails: the status of the command' "$DIBS" run x --ttl 2s --store "$(faulty 2 unavailable forever)" -- sh -c 'exit 7'
like 'the release fails: said' "$err" '^dibs: '
ok 'the release fails: it is free when the ttl ends' until_true 10 free x

# ---- stores that can not be used, each left as it was ----
cp "$file" "$dir/newer.db"
printf '\0\377\377\377' | dd of="$dir/newer.db" bs=1 seek=60 conv=notrunc 2>/dev/null
cp "$dir/newer.db" "$dir/newer.copy"
exits 123 'made by a newer dibs' "$DIBS" ls --json --store "sqlite://$dir/newer.db"
like 'made by a newer dibs: said' "$err" '"status":"TOO_NEW"'
ok 'made by a newer dibs: left as it was' cmp "$dir/newer.db" "$dir/newer.copy"
exits 123 'a folder that is not there' "$DIBS" ls --store "sqlite://$dir/no/such/folder.db"
like 'a folder that is not there: said' "$err" '^dibs: .*folder'
exits 125 'no driver' "$DIBS" ls --store nosuch://host
like 'no driver: said' "$err" '^dibs: .*nosuch'
exits 125 'a parameter that is none' "$DIBS" ls --store "sqlite://$file?colour=red"
like 'a parameter that is none: said' "$err" '^dibs: .*colour'
if [ "$(id -u)" != 0 ]; then
  chmod 000 "$file"
  exits 123 'not permitted' "$DIBS" ls --json
  like 'not permitted: said' "$err" '"status":"DENIED"'
  chmod 600 "$file"
fi
done_testing
