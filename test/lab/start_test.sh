#!/bin/bash
# SPDX-License-Identifier: MIT
# `dibs lab` and `dibs bench` start dibs-lab: which program, with which arguments, and the message without one.
#   start_test.sh TAP.SH
. "$1"
unset DIBS_STORE

mkdir "$dir/bin" "$dir/path" "$dir/empty"
cp "$DIBS" "$dir/bin/dibs" && DIBS=$dir/bin/dibs
system=$PATH
program() { # program FILE: prints its own name and each word on a line of its own
  printf '#!/bin/bash\nprintf "%%s\\n" "${0##*/bin/}" "$@"\nexit 7\n' >"$1" && chmod +x "$1"
}

# ---- Without dibs-lab ----
for command in 'lab race' 'bench lease'; do
  # shellcheck disable=SC2086  # two words
  exits 127 "$command without dibs-lab" env PATH=$dir/empty "$DIBS" $command
  like 'and the message names the package' "$err" "^dibs: dibs ${command% *} needs .* install the package dibs-lab$"
done
exits 127 'with --json' env PATH=$dir/empty "$DIBS" lab race --json
like 'as an object' "$err" '^\{"command":"lab","exit":127,"status":"","message":".*dibs-lab"\}$'
exits 0 'help does not need it' env PATH=$dir/empty "$DIBS" help lab

# ---- In PATH, and beside dibs ----
: >"$dir/path/dibs-lab"
exits 126 'a file that is not a program' env PATH=$dir/path "$DIBS" lab race
like 'the message names it' "$err" '^dibs: cannot start dibs-lab: '
program "$dir/path/dibs-lab"
exits 7 'dibs-lab in PATH is started, and its exit code returned' env PATH=$dir/path:$system "$DIBS" lab race --users 3
is 'with the arguments' "$out" "$(printf '%s\n' "$dir/path/dibs-lab" lab -- race --users 3)"
program "$dir/bin/dibs-lab"
exits 7 'dibs-lab beside dibs precedes it' env PATH=$dir/path:$system "$DIBS" bench lease
is 'and is the one of the folder' "$out" "$(printf '%s\n' dibs-lab bench -- lease)"
ln -s "$DIBS" "$dir/path/dibs"
exits 7 'also if dibs is called through a link' env PATH=$dir/path:$system dibs bench lease
is 'beside the target of the link' "$out" "$(printf '%s\n' dibs-lab bench -- lease)"

# ---- Arguments ----
"$DIBS" --json lab --store 'sqlite:///a b' race --owner=me --quiet --html -x -- --json --store >"$dir/words"
is 'common options come first, all others after --' "$(cat "$dir/words")" \
  "$(printf '%s\n' dibs-lab lab '--store=sqlite:///a b' --owner=me --json --quiet -- race --html -x --json --store)"
done_testing
