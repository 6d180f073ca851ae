# shellcheck shell=bash
# SPDX-License-Identifier: MIT
# What the tests of doctor share; source it with DIBS set.
. "$(dirname "${BASH_SOURCE[0]}")/../e2e/tap.sh"

# says CODE WHAT URI PATTERN...: doctor exits with CODE, each time within half a minute, and each pattern is in its output; soon,
# because a busy machine may make a server look silent for a moment.
says() {
  local code=$1 what=$2 uri=$3 pattern
  shift 3
  until_true 40 agrees "$code" "$uri" "$@"
  exits "$code" "$what" timeout 30 "$DIBS" doctor --store "$uri"
  for pattern; do like "$what: $pattern" "$out" "$pattern"; done
  case $out$err in *dibs-secret*) report 1 "$what: the password is shown" ;; esac
}
agrees() { # agrees CODE URI PATTERN...
  local code=$1 said got pattern
  said=$(timeout 30 "$DIBS" doctor --store "$2" 2>&1)
  got=$?
  [ "$got" = "$code" ] || return 1
  for pattern in "${@:3}"; do grep -Eq -- "$pattern" <<<"$said" || return 1; done
}
# shows PATTERN [URI]: doctor's output has it.
shows() { timeout 30 "$DIBS" doctor --store "${2:-$DIBS_STORE}" 2>/dev/null | grep -Eq -- "$1"; }
