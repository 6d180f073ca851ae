#!/bin/sh
# SPDX-License-Identifier: MIT
# Prints a script as a text of C: embed.sh NAME.lua
#
#   const char dibs__redis_lua_NAME[] = "...";
#
# Constants, which are locals in capitals with a number or a text ('local OK, HELD = 0, 1'), are put in their places and
# are gone: else each function of a script would catch those that it names anew with each call, which is a tenth of what
# a call costs the server.
set -eu
name=$(basename "$1" .lua)
printf '/* Made from %s by embed.sh. */\nextern const char dibs__redis_lua_%s[];\nconst char dibs__redis_lua_%s[] =\n' \
  "$name.lua" "$name" "$name"
awk '
  # false: not a line of constants alone.
  function learn(line,    names, values, n, m, i, a, b) {
    if (line !~ /^ *local [A-Z][A-Z_]+(, [A-Z][A-Z_]+)* = /) return 0
    sub(/ *--.*/, "", line)
    names = values = line
    sub(/^ *local /, "", names)
    sub(/ = .*/, "", names)
    sub(/^[^=]* = /, "", values)
    n = split(names, a, /, /)
    m = split(values, b, /, /)
    if (n != m) return 0
    for (i = 1; i <= m; i++) if (b[i] !~ /^([0-9]+|\047[^\047]*\047)$/) return 0
    for (i = 1; i <= n; i++) known[a[i]] = b[i]
    return 1
  }
  # Neither in texts nor in comments.
  function put(line,    out, word) {
    out = ""
    while (match(line, /[A-Za-z_][A-Za-z_0-9]*|\047[^\047]*\047|\042[^\042]*\042|--.*/)) {
      word = substr(line, RSTART, RLENGTH)
      out = out substr(line, 1, RSTART - 1) (word in known ? known[word] : word)
      line = substr(line, RSTART + RLENGTH)
    }
    return out line
  }
  { print learn($0) ? "" : put($0) }
' "$1" | sed 's/\\/\\\\/g; s/"/\\"/g; s/^/  "/; s/$/\\n"/'
echo '  "";'
