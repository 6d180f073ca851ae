#!/bin/bash
# SPDX-License-Identifier: MIT
# `dibs lock` in a shell: nothing runs without the lock, and no lock remains that no process can release.
. "$(dirname "$0")/tap.sh"
"$DIBS" lock taken --ttl 1h >"$dir/taken"
busy='lock taken --try --quiet'

# ---- eval of an empty string succeeds ----
for shell in bash dash zsh 'ksh' 'busybox sh'; do
  # shellcheck disable=SC2086  # words are meant
  command -v ${shell%% *} >/dev/null || continue
  # shellcheck disable=SC2086
  exits 120 "$shell: work does not run without the lock" $shell -c 'eval "$("$DIBS" '"$busy"')" && echo worked'
  is "$shell: the work did not run" "$out" ''
  # shellcheck disable=SC2086
  exits 120 "$shell, set -e: it ends the script" $shell -ec 'eval "$("$DIBS" '"$busy"')"; echo worked'
  is "$shell, set -e: it did" "$out" ''
  # shellcheck disable=SC2086
  exits 0 "$shell: with the lock the work runs" $shell -ec 'eval "$("$DIBS" lock free)" && echo worked; "$DIBS" unlock'
  is "$shell: the work did run" "$out" worked
  # shellcheck disable=SC2086
  exits 120 "$shell: the form for a missing dibs command" $shell -c 'l=$("$DIBS" '"$busy"') && eval "$l" && echo worked'
done
for wrong in 'lock' 'lock x --nonsense' 'lock x --ttl 5' 'lock x --shared --slots 2' 'lock x --store bogus://x' "lock ''" \
  'lock x --store ""' 'lock x y'; do
  exits 125 "dibs $wrong fails in eval" bash -c "eval \"\$(\"\$DIBS\" $wrong 2>/dev/null)\" && echo worked"
  is "dibs $wrong: nothing runs" "$out" ''
done
exits 121 'timed out' bash -c 'eval "$("$DIBS" lock taken --wait 50ms --quiet)" && echo worked'
exits 120 '--json prints nothing for eval' "$DIBS" lock taken --try --json
is '--json: nothing' "$out" ''
(eval "$("$DIBS" lock taken 2>/dev/null)" && echo worked; echo $? >"$dir/code") &
later $!
until_true 20 waits taken
pid=$("$DIBS" ls --json taken | grep -o '"state":"waits".*' | grep -o '"pid":[0-9]*' | grep -o '[0-9]*')
kill -TERM "$pid"
until_true 20 filled "$dir/code"
is 'a signal ends the wait' "$(cat "$dir/code")" 143

# ---- A lock that no process can release ----
exits 119 'closed output' sh -c '"$DIBS" lock closed --ttl 1h >&-'
ok 'closed output: nothing is held' free closed
exits 119 'full output' sh -c '"$DIBS" lock full --ttl 1h >/dev/full'
ok 'full output: nothing is held' free full
# dibs waits until the reader has gone, and writes then.
"$DIBS" lock piped --ttl 1h >"$dir/lease"
mkfifo "$dir/pipe"
(trap - PIPE; "$DIBS" lock piped --ttl 1h >"$dir/pipe" 2>"$dir/err"; echo $? >"$dir/piped") &
later $!
exec 8<"$dir/pipe"
until_true 20 waits piped
exec 8<&-
"$DIBS" unlock - <"$dir/lease"
until_true 20 filled "$dir/piped"
is 'a pipe without a reader' "$(cat "$dir/piped")" 119
ok 'a pipe without a reader: nothing is held' free piped

# ---- Another name ----
exits 125 'unlock of another name' bash -c 'eval "$("$DIBS" lock mine)" && "$DIBS" unlock taken'
like 'unlock of another name: the message' "$err" "^dibs: the lease is for 'mine', not for 'taken'; nothing was done"
ok 'unlock of another name: both are held' holds mine
ok 'unlock of another name: the other, too' holds taken
exits 125 'by standard input' sh -c '"$DIBS" unlock other - <"$0"' "$dir/taken"
exits 125 'renew of another name' sh -c '"$DIBS" renew other - <"$0"' "$dir/taken"
exits 0 'the same name' sh -c '"$DIBS" unlock taken - <"$0"' "$dir/taken"

# ---- A password is not printed ----
secret='postgres://app:hunter2@127.0.0.1:1/x'
exits 125 'a password in --store' "$DIBS" lock x --store "$secret"
is 'a password in --store: it fails in eval' "$out" '(exit 125)'
like 'a password in --store: the message names the alternatives' "$err" 'DIBS_STORE.*dibs.ini'
is 'a password in --store: not repeated' "$(printf '%s' "$out$err" | grep -c hunter2)" 0
exits 123 'a password in DIBS_STORE is accepted' env DIBS_STORE="$secret" "$DIBS" lock x --try
is 'a password in DIBS_STORE: not printed' "$(printf '%s' "$out$err" | grep -c hunter2)" 0
(umask 077 && printf '[live]\nstore = sqlite:live.db\n' >"$dir/app.ini")
like 'a file is named' "$("$DIBS" lock x --store "$dir/app.ini#live")" "^DIBS_STORE='$dir/app.ini#live'"

# ---- The holder in messages, and the wait of break ----
"$DIBS" lock held --ttl 8s --owner Ann >/dev/null
exits 120 '--try' "$DIBS" run held --try -- true
like '--try names the holder' "$err" "^dibs: 'held' is held by Ann for [0-9.]+m?s; --wait waits for it"
exits 0 'break waits' "$DIBS" break held
like 'break names the holder that it waits for' "$err" "^dibs: waiting until the holder releases 'held', held by Ann for"
like 'and how not to wait' "$err" 'dibs break --now does not wait'
is 'break is recorded once' "$("$DIBS" show held | grep -c broken)" 1
"$DIBS" run quick -- sleep 30 2>/dev/null &
later $!
until_true 20 holds quick
exits 0 'break of a responsive holder' "$DIBS" break quick
is 'break of a responsive holder: silent' "$err" ''
done_testing
