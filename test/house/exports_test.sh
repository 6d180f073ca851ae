#!/bin/sh
# SPDX-License-Identifier: MIT
# The functions that dibs.h and dibs/*.h declare are exported, listed in the version script and described in dibs.h(3);
# nothing else is exported.
#   exports_test.sh SOURCE_DIR LIBDIBS CORE_ARCHIVE PAGE
set -u
top=$1
library=$2
archive=$3
page=$4
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
n=0

ok() { # ok NAME FILE: passes if the file, a list of mistakes, is empty
  n=$((n + 1))
  if [ -s "$2" ]; then
    echo "not ok $n - $1"
    sed 's/^/# /' "$2" | head -20
  else
    echo "ok $n - $1"
  fi
}

for header in "$top"/include/dibs.h "$top"/include/dibs/*.h; do ${CC:-cc} -E -P -I"$top/include" "$header"; done | sed 's/(\*/ /g' | grep -o '\bdibs_[a-z0-9_]* *(' | tr -d ' (' | sort -u >"$tmp/declared"
nm -D --defined-only "$library" | awk '{ print $NF }' >"$tmp/symbols"
# nm prints a name without a version node bare; a node itself is a symbol of kind A.
sed -n 's/@@*DIBS_[0-9].*//p' "$tmp/symbols" | grep -v '^DIBS_' | sort -u >"$tmp/exported"
sed -n '/^DIBS_[0-9]/,/^}/s/^ *\([a-z][a-z0-9_]*\);.*/\1/p' "$top/src/libdibs.map" | sort -u >"$tmp/listed"
sed -n 's/^\.\(It \)\{0,1\}Fn \(dibs_[a-z0-9_]*\).*/\2/p' "$page" | sort | uniq -c | awk '$1 >= 2 { print $2 }' |
  sort -u >"$tmp/described"

echo 1..8
if [ "$(wc -l <"$tmp/declared")" -gt 30 ]; then : >"$tmp/few"; else cp "$tmp/declared" "$tmp/few"; fi
ok 'the header was parsed' "$tmp/few"
comm -23 "$tmp/declared" "$tmp/exported" >"$tmp/wrong"
ok 'every declared function is exported' "$tmp/wrong"
comm -13 "$tmp/declared" "$tmp/exported" >"$tmp/wrong"
ok 'every exported function is declared' "$tmp/wrong"
comm -3 "$tmp/declared" "$tmp/listed" >"$tmp/wrong"
ok 'src/libdibs.map lists exactly these' "$tmp/wrong"
comm -23 "$tmp/declared" "$tmp/described" >"$tmp/wrong"
ok 'dibs.h(3) has a prototype and a description of each' "$tmp/wrong"
grep -v '@@*DIBS_[0-9.]*$\|^DIBS_[0-9.]*$\|^DIBS_[0-9.]*@@DIBS_[0-9.]*$' "$tmp/symbols" |
  grep -v 'dibs__[a-z0-9_]*@@*DIBS_MODULE_1$\|^DIBS_MODULE_1\(@@DIBS_MODULE_1\)\{0,1\}$' >"$tmp/wrong"
ok 'nothing else is exported, except to modules' "$tmp/wrong"
sed -n 's/^ *X(\([A-Z_]*\), \([0-9]*\), "\(.*\)").*/DIBS_\1 \2 \3/p' "$top/include/dibs.h" >"$tmp/statuses"
awk '/^\.It Dv DIBS_[A-Z_]* No [0-9]+$/ { name = $3; number = $5; getline text; print name, number, text }' \
  "$page" >"$tmp/documented"
diff "$tmp/statuses" "$tmp/documented" >"$tmp/wrong" 2>&1
[ -s "$tmp/statuses" ] || echo 'no status found in dibs.h' >"$tmp/wrong"
ok 'the table of statuses is the one in dibs.h' "$tmp/wrong"
nm -g --defined-only "$archive" | awk 'NF == 3 && $3 !~ /^dibs_/ { print $3 }' | grep -v '^__\(odr_asan\|asan\|tsan\)' >"$tmp/wrong"
ok 'names that are not static begin with dibs_ or dibs__' "$tmp/wrong"
