# shellcheck shell=bash
# SPDX-License-Identifier: MIT
# What the tests of doctor share; source it with DIBS set.
. "$(dirname "${BASH_SOURCE[0]}")/../e2e/tap.sh"

# says CODE WHAT URI PATTERN...: doctor exits with CODE, within half a minute, and each pattern is in its output.
says() {
  local code=$1 what=$2 pattern
  exits "$code" "$what" timeout 30 "$DIBS" doctor --store "$3"
  for pattern in "${@:4}"; do like "$what: $pattern" "$out" "$pattern"; done
  case $out$err in *dibs-secret*) report 1 "$what: the password is shown" ;; esac
}
# shows PATTERN [URI]: doctor's output has it.
shows() { timeout 30 "$DIBS" doctor --store "${2:-$DIBS_STORE}" 2>/dev/null | grep -Eq -- "$1"; }
