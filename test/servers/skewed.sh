#!/bin/bash
# SPDX-License-Identifier: MIT
# Runs a test with a server of its own whose clock the test can move: skewed.sh redis|mariadb LIBRARY PROGRAM [ARG]...;
# @@ becomes the URI. The offset is in the file $DIBS_TEST_CLOCK; LIBRARY is loaded into the server and adds it.
set -u
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
server=$1
library=$(realpath "$2") || exit 1
shift 2
folder=$(mktemp -d "${TMPDIR:-/tmp}/dibs-test-skewed.XXXXXX") || exit 1
chmod 755 "$folder"
cp "$library" "$folder/clock.so" || exit 1 # where the user of the server can read it, too
trap '"$root/script/servers" remove --dir "$folder/servers" >/dev/null 2>&1; rm -rf "$folder"' EXIT
trap 'exit 130' INT TERM
export DIBS_TEST_CLOCK=$folder/clock
head -c 8 /dev/zero >"$DIBS_TEST_CLOCK"
chmod 644 "$DIBS_TEST_CLOCK"
LD_PRELOAD=$folder/clock.so "$root/script/servers" start --dir "$folder/servers" --until $$ "$server" >&2
case $? in
  0) ;;
  77)
    [ "${DIBS_TEST_SERVERS:-}" = required ] && exit 1
    exit 77
    ;;
  *) exit 1 ;;
esac
eval "$("$root/script/servers" env --dir "$folder/servers")"
case $server in
  redis) uri=$DIBS_TEST_REDIS ;;
  *) uri=mariadb://${DIBS_TEST_MYSQL#*://} ;;
esac
args=()
for arg; do args+=("${arg//@@/"$uri"}"); done
"${args[@]}"
