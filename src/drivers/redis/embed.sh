#!/bin/sh
# SPDX-License-Identifier: MIT
# Prints a script as a text of C: embed.sh NAME.lua
#
#   const char dibs__redis_lua_NAME[] = "...";
set -eu
name=$(basename "$1" .lua)
printf '/* Made from %s by embed.sh. */\nextern const char dibs__redis_lua_%s[];\nconst char dibs__redis_lua_%s[] =\n' \
  "$name.lua" "$name" "$name"
sed 's/\\/\\\\/g; s/"/\\"/g; s/^/  "/; s/$/\\n"/' "$1"
echo '  "";'
