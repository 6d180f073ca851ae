# shellcheck shell=bash
# SPDX-License-Identifier: MIT
# The cases of a test of messages; source it with dibs=COMMAND.  Unlike test/e2e/tap.sh it makes no folder and no store.
# The test ends with `end_of_cases`.
# shellcheck disable=SC2154
count=0 failures=0
pass() { count=$((count + 1)) && echo "ok $count - $1"; }
fail() { # fail NAME LINE...
  count=$((count + 1)) failures=$((failures + 1))
  echo "not ok $count - $1"
  printf '%s\n' "${@:2}" | sed 's/^/#   /'
}
# says NAME CODE WORDS ARG...: dibs ends with CODE and prints WORDS, and no password.
says() {
  local name=$1 code=$2 words=$3 got said
  said=$(timeout 60 "$dibs" "${@:4}" 2>&1)
  got=$?
  if [ "$got" -ne "$code" ]; then
    fail "$name" "exit $got, not $code: $said"
  elif [[ $said != *"$words"* ]]; then
    fail "$name" "it says: $said"
  elif [[ $said == *secret* ]]; then
    fail "$name" "the password is in: $said"
  else
    pass "$name"
  fi
}
end_of_cases() {
  echo "1..$count"
  [ "$failures" -eq 0 ]
}
