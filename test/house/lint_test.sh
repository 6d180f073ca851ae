#!/bin/sh
# SPDX-License-Identifier: MIT
# The style linter goes red on a bad sample of each rule, and stays green on what looks like one but is not.
#   lint_test.sh SOURCE_DIR
set -u
top=$1
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
n=0
spdx='/* SPDX-License-Identifier: MIT */'

verdict() { # verdict GOOD? NAME
  n=$((n + 1))
  if [ "$1" = 0 ]; then
    echo "ok $n - $2"
  else
    echo "not ok $n - $2"
    sed 's/^/# /' "$tmp/out" | head -20
  fi
}

fresh() {
  rm -rf "$tmp/tree"
  mkdir -p "$tmp/tree/src/base" "$tmp/tree/src/lease" "$tmp/tree/src/store" "$tmp/tree/src/drivers" \
    "$tmp/tree/src/cli" "$tmp/tree/test/contract" "$tmp/tree/script"
  printf '%s\nint dibs__one(void);\n' "$spdx" >"$tmp/tree/src/base/one.h"
}

# red RULE FILE [LINE...]: the sample makes just this rule fire, on this file.
red() {
  rule=$1
  file=$2
  shift 2
  fresh
  printf '%s\n' "$spdx" "$@" >"$tmp/tree/$file"
  red_now "$rule" "$file" "$rule: $*"
}
red_now() {
  "$top/script/lint-style" "$tmp/tree" >"$tmp/out" 2>&1
  code=$?
  [ "$code" = 1 ] && grep -q "^$2:[0-9]*: $1: " "$tmp/out" && ! grep -qv ": $1: " "$tmp/out"
  verdict $? "$(printf '%.60s' "$3" | tr '\n#' '  ')"
}
# green FILE LINE...
green() {
  file=$1
  shift
  fresh
  printf '%s\n' "$spdx" "$@" >"$tmp/tree/$file"
  "$top/script/lint-style" "$tmp/tree" >"$tmp/out" 2>&1
  verdict $? "fine: $(printf '%.60s' "$*" | tr '\n#' '  ')"
}
body() { # a function of N lines in all
  echo 'int dibs__long(int a) {'
  i=2
  while [ "$i" -lt "$1" ]; do
    echo '  a++;'
    i=$((i + 1))
  done
  echo '}'
}

echo 1..38
red banned-call src/base/x.c 'void f(void) { strcpy(a, b); }'
red banned-call src/cli/x.c 'void f(void) { sprintf(a, "x"); }'
red banned-call src/cli/x.c 'void f(void) { signal(SIGINT, g); }'
red banned-call test/x.c 'void f(void) { strcat(a, b); }'
green test/x.c 'void f(void) { signal(SIGPIPE, g); }'
red banned-call src/lease/x.c 'void f(void) { exit(1); }'
green src/cli/x.c 'void f(void) { exit(1); }'
green src/base/x.c 'void f(void) { a.signal(1); b->system(2); }'
green src/base/x.c 'void f(void) { puts("strcpy(a, b)"); } /* strcpy(a) */'
green src/base/x.c '/* a' '   strcpy(b)' '*/' 'int x;'
green src/base/x.c 'void f(void) { my_strcpy(a, b); int signal = 1; }'
red base-only src/lease/x.c 'void f(void) { clock_gettime(CLOCK_BOOTTIME, &t); }'
red base-only src/cli/x.c 'void f(void) { return time(NULL); }'
red base-only src/store/x.c 'void f(void) { pthread_create(&t, 0, g, 0); }'
red base-only src/drivers/x.c 'void f(void) { nanosleep(&t, 0); }'
red base-only src/lease/x.c 'void f(void) { if (fork() == 0) g(); }'
green src/base/x.c 'void f(void) { clock_gettime(CLOCK_BOOTTIME, &t); pthread_create(&t, 0, g, 0); }'
green test/x.c 'void f(void) { fork(); }'
green src/lease/x.c 'void f(void) { uptime(1); int time = 2; }'
red own-room src/cli/x.c 'void f(void) { sqlite3_step(s); }'
red arrow src/base/x.c '#include "store/store.h"'
red arrow src/drivers/x.c '#include "lease/lease.h"'
red arrow src/lease/x.c '#include "drivers/sqlite_side.h"'
red arrow src/store/x.c '#include "../lease/lease.h"'
green src/cli/x.c '#include "drivers/x.h"' '#include "lease/x.h"'
green src/lease/x.c '#include "store/store.h"' '#include "base/port.h"' '#include "dibs.h"' '#include "near.h"'
red engine-name src/lease/x.c 'int f(void) { return g("sqlite"); }'
red engine-name src/store/x.c 'int dibs__Redis_driver;'
green src/lease/x.c '/* as PostgreSQL does */' 'int x;'
red reserved src/base/x.c 'int __mine;'
red reserved src/base/x.c '#define _MINE 1'
green src/base/x.c '_Static_assert(1, "x");' 'int dibs__x(void) __attribute__((pure));'

fresh
echo 'int x;' >"$tmp/tree/src/base/x.c"
red_now spdx src/base/x.c 'spdx: a file without the line'
fresh
printf '#!/bin/sh\necho\n' >"$tmp/tree/script/x"
red_now spdx script/x 'spdx: a script without the line'
fresh
{ echo "$spdx"; yes '' | head -800; } >"$tmp/tree/src/base/x.c"
red_now file-length src/base/x.c 'file-length: 801 lines'
red function-length src/base/x.c "$(body 61)"
green src/base/x.c "$(body 60)" '' '/* flat: one table */' "$(body 90)" 'static const int t[] = {' "$(yes '1,' | head -90)" '};'
fresh
printf '%s\n' "$spdx" '/*' ' *  R1  one' ' *  R2  two' ' */' >"$tmp/tree/src/store/store.h"
printf '%s\n' "$spdx" '/* R1, R22 */' >"$tmp/tree/test/contract/x.c"
red_now contract src/store/store.h 'contract: a requirement without a test'
