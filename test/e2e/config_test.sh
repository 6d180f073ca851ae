#!/bin/bash
# SPDX-License-Identifier: MIT
# Which store a command uses if it names none: DIBS_STORE, the user's dibs.ini, the system's, the default file. Root has
# no dibs.ini of its own, so the test reads the user's files as another user, and the system's file if it can replace
# /etc.
. "$(dirname "$0")/tap.sh"
exits 125 'an empty DIBS_STORE' env DIBS_STORE= "$DIBS" ls
like 'an empty DIBS_STORE: the message' "$err" '^dibs: DIBS_STORE is empty'
exits 125 'an empty --store' "$DIBS" ls --store ''
exits 125 'an empty --store=' "$DIBS" ls --store=
exits 0 'a command without a store ignores DIBS_STORE' env DIBS_STORE= "$DIBS" version
exits 125 'run with an empty DIBS_STORE' env DIBS_STORE= "$DIBS" run x -- true

# as_user COMMAND...: without DIBS_STORE, not as root.
chmod 711 "$dir"
mkdir -p "$dir/home/config/dibs" "$dir/home/state" "$dir/home/.config/dibs"
config=$dir/home/config/dibs/dibs.ini
user=()
if [ "$(id -u)" = 0 ]; then
  user=(setpriv --reuid 65534 --regid 65534 --clear-groups)
  # The command under test may be in a folder that only root can read.
  mkdir "$dir/bin"
  cp "$DIBS" "$dir/bin"
  DIBS=$dir/bin/dibs
fi
mine() { [ "$(id -u)" != 0 ] || chown -R 65534:65534 "$dir/home"; }
as_user() {
  mine
  env -u DIBS_STORE HOME="$dir/home" XDG_CONFIG_HOME="$dir/home/config" XDG_STATE_HOME="$dir/home/state" "${user[@]}" "$@"
}
names_it() { as_user "$DIBS" doctor "$@" | sed -n 's/^[a-zA-Z]* *named by //p'; }
if ! as_user true 2>/dev/null; then
  report 0 'the files of a user # SKIP cannot become another user'
else
  is 'nothing: the default file' "$(names_it)" 'nothing; the default file'
  ok 'nothing: the default file exists' test -s "$dir/home/state/dibs/dibs.db"
  printf '[store]\nstore = sqlite:mine.db\n' >"$config"
  is 'the file of the user' "$(names_it)" "your dibs.ini: $config"
  ok 'the file of the user: its store is beside it' test -s "$dir/home/config/dibs/mine.db"
  is 'DIBS_STORE of the command names the file' "$(as_user "$DIBS" run x -- sh -c 'echo "$DIBS_STORE"')" "$config"
  is 'DIBS_STORE precedes the file' "$(as_user env DIBS_STORE="sqlite://$dir/home/env.db" "$DIBS" doctor | grep -c 'named by DIBS_STORE$')" 1
  is '--store precedes DIBS_STORE' "$(as_user env DIBS_STORE=x:y "$DIBS" doctor --store "sqlite://$dir/home/opt.db" | grep -c 'named by --store$')" 1
  cp "$config" "$dir/home/.config/dibs/dibs.ini"
  is 'without XDG_CONFIG_HOME' "$(as_user env -u XDG_CONFIG_HOME "$DIBS" doctor | grep -o 'your dibs.ini: .*')" \
    "your dibs.ini: $dir/home/.config/dibs/dibs.ini"
  is 'a relative XDG_CONFIG_HOME is ignored' \
    "$(as_user env XDG_CONFIG_HOME=config "$DIBS" doctor | grep -o 'your dibs.ini: .*')" "your dibs.ini: $dir/home/.config/dibs/dibs.ini"
  rm "$dir/home/.config/dibs/dibs.ini"

  # An existing file is never skipped.
  printf '[other]\nstore = sqlite:mine.db\n' >"$config"
  exits 125 'no [store] in it' as_user "$DIBS" ls
  like 'no [store] in it: the message' "$err" "dibs.ini has no section \[store\]: add it"
  exits 116 'no [store] in it: doctor' as_user "$DIBS" doctor
  like 'no [store] in it: doctor names the file' "$out" "named by your dibs.ini: $config"
  like 'no [store] in it: doctor says what to do' "$out" '-> correct the store's URI'
  printf '[store]\nstore = postgres://app:hunter2@127.0.0.1:1/x\n' >"$config"
  chmod 644 "$config"
  exits 123 'a password that others may read' as_user "$DIBS" ls
  like 'a password that others may read: the message' "$err" 'other users can read the password in .*chmod 600'
  chmod 600 "$config"
  # The driver may be missing here.
  as_user "$DIBS" ls >"$dir/ls" 2>&1
  is 'a password that only its owner can read is accepted' "$(grep -c 'other users can read' "$dir/ls")" 0
  like 'a password that only its owner can read: the store is opened' "$(cat "$dir/ls")" 'postgres|driver'
  is 'the password is not printed' "$(grep -c hunter2 "$dir/ls")" 0
  printf '[store]\nstore = sqlite:mine.db\n' >"$config"
  chmod 666 "$config"
  exits 123 'a file that everybody may write' as_user "$DIBS" ls
  chmod 000 "$config"
  exits 123 'a file that cannot be read' as_user "$DIBS" ls
  rm "$config"
  mkfifo "$config"
  exits 125 'a FIFO is not waited for' as_user timeout 5 "$DIBS" ls
  rm "$config"

  # The system's file: these processes have their own /etc.
  cat >"$dir/covered" <<'SH'
mount -t tmpfs none /etc/dibs 2>/dev/null || { mount -t tmpfs none /mnt && mkdir -p /etc/dibs && mount -t tmpfs none /etc/dibs; } || exit 99
printf '[store]\nstore = sqlite://%s/home/system.db\n' "$1" >/etc/dibs/dibs.ini
chmod 644 /etc/dibs/dibs.ini
shift
exec "$@"
SH
  made=
  [ -d /etc/dibs ] || { mkdir /etc/dibs 2>/dev/null && made=1; }
  covered() { unshare -m sh "$dir/covered" "$dir" "$@"; }
  if [ -d /etc/dibs ] && covered true 2>/dev/null; then
    mine
    is 'the file of the system' "$(env -u DIBS_STORE HOME="$dir/home" unshare -m sh "$dir/covered" "$dir" "${user[@]}" \
      "$DIBS" doctor | grep -o "the system's dibs.ini.*")" "the system's dibs.ini: /etc/dibs/dibs.ini"
    ok 'the file of the system: its store' test -s "$dir/home/system.db"
  else
    report 0 'the file of the system # SKIP cannot replace /etc/dibs'
  fi
  [ -z "$made" ] || rmdir /etc/dibs
fi
done_testing
