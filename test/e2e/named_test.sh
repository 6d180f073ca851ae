#!/bin/bash
# SPDX-License-Identifier: MIT
# A store that is named by a section of an INI file: by an option, by the environment, and from another folder.
. "$(dirname "$0")/tap.sh"

unset DIBS_STORE
mkdir -p "$dir/conf" "$dir/away"
(umask 077 && cat >"$dir/conf/app.ini") <<'END'
[store]
store = sqlite:plain.db
[live]
store = sqlite:first.db,sqlite:anchor.db
tiers.strictness = strict
END
cd "$dir" || exit 1
tells() { "$DIBS" tier status --json "$@" | grep -o '"strictness":"[a-z-]*"'; }

exits 0 'a lease' "$DIBS" run x --store conf/app.ini -- true
ok 'its file is beside the INI file' test -s "$dir/conf/plain.db"
exits 0 'tiers' "$DIBS" run x --store conf/app.ini#live -- true
ok 'their files, too' test -s "$dir/conf/first.db" -a -s "$dir/conf/anchor.db"
is 'and nothing is in the working folder' "$(compgen -G "$dir/*.db")" ''
is 'a key of tiers has effect' "$(tells --store "$dir/conf/app.ini#live")" '"strictness":"strict"'
is 'by DIBS_STORE' "$(DIBS_STORE=conf/app.ini#live tells)" '"strictness":"strict"'

# ---- In another folder ----
looks='cd "$0" && "$DIBS" show y --json | grep -o "\"state\":\"holds\""; echo "$DIBS_STORE"'
for where in conf/app.ini conf/app.ini#live; do
  exits 0 "$where: the command changes its folder" "$DIBS" run y --store "$where" -- sh -c "$looks" "$dir/away"
  is "$where: and finds the lease and its store" "$out" "\"state\":\"holds\"
$dir/$where"
  exits 0 "$where: also by DIBS_STORE" env "DIBS_STORE=$where" "$DIBS" run y -- sh -c "$looks" "$dir/away"
  is "$where: it finds the lease, too" "$out" "\"state\":\"holds\"
$dir/$where"
done
exits 0 'tiers of files without a folder' "$DIBS" run y --store sqlite:one.db,sqlite:two.db -- sh -c "$looks" "$dir/away"
is 'tiers of files: absolute paths' "$out" "\"state\":\"holds\"
sqlite://$dir/one.db,sqlite://$dir/two.db"
lease=$("$DIBS" lock z --ttl 1h --store conf/app.ini#live)
like 'lock prints an absolute path' "$lease" "^DIBS_STORE='?$dir/conf/app.ini#live"
exits 0 'and unlock finds it from another folder' bash -c 'eval "$1"; cd "$0" && exec "$DIBS" unlock' "$dir/away" "$lease"

# ---- Mistakes ----
exits 125 'no such section' "$DIBS" ls --store conf/app.ini#nowhere
like 'no such section: the message' "$err" '^dibs: .*conf/app.ini has no section \[nowhere\]'
exits 123 'no such file' "$DIBS" ls --store conf/none.ini#live
like 'no such file: the message' "$err" "^dibs: can't read .*conf/none.ini: No such file"
printf '[live]\nstroe = mysql://app:hunter2@db/app\n' >"$dir/typo.ini"
exits 125 'an unknown key' "$DIBS" ls --json --store typo.ini#live
like 'an unknown key: the message' "$err" '"status":"INVALID".*typo.ini:2: the key .stroe. is unknown'
is 'an unknown key: no password' "$(printf '%s' "$err" | grep -c hunter2)" 0
printf '[live]\nmysql://app:hunter2@db/app\n' >"$dir/typo.ini"
exits 125 'a value without its key' "$DIBS" ls --store typo.ini#live
is 'a value without its key: no password' "$(printf '%s' "$err" | grep -c hunter2)" 0
printf '[live]\nstore = sqlite:a.db,sqlite:b.db\ntiers.strictnes = strict\n' >"$dir/typo.ini"
exits 125 'an unknown key of tiers' "$DIBS" ls --store typo.ini#live
like 'an unknown key of tiers: the message' "$err" '^dibs: typo.ini#live: .*tiers.strictnes\b'
printf '[live]\nstore = sqlite:a.db\ntiers.wait = 3\n' >"$dir/typo.ini"
exits 125 'a key of tiers for one store' "$DIBS" ls --store typo.ini#live
like 'a key of tiers for one store: the message' "$err" '^dibs: typo.ini#live: .*tiers\. parameters need several stores'
exits 125 'neither a URI nor a file' "$DIBS" ls --store app.conf#live
like 'neither: the message shows the form' "$err" 'FILE\.ini#SECTION'
done_testing
