#!/bin/bash
# SPDX-License-Identifier: MIT
# Files and symbols that pages and comments name exist: names_test.sh ROOT
#
# Pages are CONTRIBUTING.md and doc/internals/; decisions describe the code of their time and are not checked.
cd "$1" || exit 1
pages=(CONTRIBUTING.md doc/internals/*.md)
mapfile -t sources < <(find include src test bench -name '*.[ch]' | sort)
count=0
report() { # report CODE WHAT [MISSING]
  count=$((count + 1))
  if [ "$1" = 0 ]; then echo "ok $count - $2"; else echo "not ok $count - $2"; sed 's/^/#   /' <<<"$3"; fi
}

# Every file of the tree, and each suffix of its path: src/lease/cohort.c, lease/cohort.c, cohort.c.
files=$(find . -type f -not -path './.git/*' -not -path './build/*' | sed 's#^\./##' |
  awk '{ print; while (sub("^[^/]*/", "")) print }' | sort -u)
# The symbols of the sources: words of the code without comments.
symbols=$(awk '
  FNR == 1 { inside = 0 }
  {
    line = $0
    while (1) {
      if (inside) { at = index(line, "*/"); if (!at) { line = ""; break } line = substr(line, at + 2); inside = 0 }
      at = index(line, "/*")
      if (!at) break
      print substr(line, 1, at - 1)
      line = substr(line, at + 2)
      inside = 1
    }
    if (!inside) print line
  }' "${sources[@]}" src/libdibs.map | grep -oE '\b(dibs|DIBS)_[A-Za-z0-9_]+' | sort -u)

# comments: those of the sources, as PATH: TEXT.
comments() {
  awk '
    FNR == 1 { inside = 0 }
    {
      line = $0
      text = ""
      while (1) {
        if (inside) {
          at = index(line, "*/")
          if (!at) { text = text " " line; break }
          text = text " " substr(line, 1, at - 1)
          line = substr(line, at + 2)
          inside = 0
        }
        at = index(line, "/*")
        if (!at) break
        line = substr(line, at + 2)
        inside = 1
      }
      if (text != "") print FILENAME ":" FNR ": " text
    }' "${sources[@]}"
}
text() { grep -nH '' "${pages[@]}"; comments; }

# Files of other projects or of the user do not exist here: each exception has its reason.
#   NAME.lua, cmocka.h
#   and the reader's own programs and scripts in examples
exceptions='NAME(_impl)?\\.(lua|h)$|^cmocka\\.h$|^(app|job|work|mine)\\.(c|h|sh)$'

# Both read lines of PATH:LINE:TEXT.
missing_files() {
  awk -v exceptions="$exceptions" '
  NR == FNR { have[$0] = 1; next }
  {
    rest = $0
    match(rest, /^[^:]*:[0-9]+:/)
    where = substr(rest, 1, RLENGTH)
    rest = substr(rest, RLENGTH + 1)
    while (match(rest, /[A-Za-z0-9_.\/-]*[A-Za-z0-9_]\.(c|h|lua|sh|build|pml|map)/)) {
      before = RSTART > 1 ? substr(rest, RSTART - 1, 1) : " "
      name = substr(rest, RSTART, RLENGTH)
      rest = substr(rest, RSTART + RLENGTH)
      if (rest ~ /^[A-Za-z0-9_]/ || before ~ /[<~$*}{]/) continue
      sub(/^\.\//, "", name)
      sub(/^(\.\.\/)+/, "", name)
      if (name in have || name ~ exceptions || name ~ /^\//) continue
      print where " no such file: " name
    }
  }' <(printf '%s\n' "$files") -
}
missing_symbols() {
  awk '
  NR == FNR { have[$0] = 1; next }
  {
    rest = $0
    match(rest, /^[^:]*:[0-9]+:/)
    where = substr(rest, 1, RLENGTH)
    rest = substr(rest, RLENGTH + 1)
    while (match(rest, /(dibs__|DIBS__|dibs_|DIBS_)[A-Za-z0-9_]+/)) {
      before = RSTART > 1 ? substr(rest, RSTART - 1, 1) : " "
      name = substr(rest, RSTART, RLENGTH)
      rest = substr(rest, RSTART + RLENGTH)
      # Skips a prefix ("dibs__core_*", "DIBS_STORE_..."), an environment variable, a table or a key of dibs.
      if (rest ~ /^(\*|\.\.\.|\{)/ || name ~ /_$|_NAME$/ || before ~ /[A-Za-z0-9_$.\/-]/) continue
      if (name ~ /^dibs__/ || name ~ /^DIBS__/ || rest ~ /^\(/) if (!(name in have)) print where " no such symbol: " name
    }
  }' <(printf '%s\n' "$symbols") -
}

missing=$(text | missing_files)
report "$([ -z "$missing" ]; echo $?)" 'files that pages and comments name exist' "$missing"
missing=$(text | missing_symbols)
report "$([ -z "$missing" ]; echo $?)" 'symbols that pages and comments name exist' "$missing"

# Both checks can fail.
found=$(echo 'page:1: see src/lease/nowhere.c and cohort.c' | missing_files)
report "$([ "$found" = 'page:1: no such file: src/lease/nowhere.c' ]; echo $?)" 'a missing file is reported' "$found"
found=$(echo 'page:1: dibs_open() calls dibs__nothing_has_this' | missing_symbols)
report "$([ "$found" = 'page:1: no such symbol: dibs__nothing_has_this' ]; echo $?)" 'a missing symbol is reported' "$found"
echo "1..$count"
