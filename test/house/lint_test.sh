#!/bin/sh
# SPDX-License-Identifier: MIT
# The linters of style and of words report a bad sample of each rule, and accept samples that only look bad.
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
  for folder in base lease store drivers drivers/sqlite drivers/mysql tier cli unheard; do
    mkdir -p "$tmp/tree/src/$folder"
  done
  mkdir -p "$tmp/tree/test/contract" "$tmp/tree/script" "$tmp/tree/model" "$tmp/tree/doc/decisions"
  printf '%s\nint dibs__one(void);\n' "$spdx" >"$tmp/tree/src/base/one.h"
}

# red RULE FILE [LINE...]: the sample makes exactly this rule fire, in this file.
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

echo 1..93
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
red arrow src/lease/x.c '#include "drivers/sqlite/side.h"'
red arrow src/store/x.c '#include "../lease/lease.h"'
red arrow src/cli/x.c '#include "drivers/x.h"'
red arrow src/cli/x.c '#include "guard/guard_impl.h"'
red arrow src/tier/x.c '#include "lease/lease.h"'
red arrow src/unheard/x.c '#include "base/port.h"'
red arrow src/drivers/sqlite/x.c '#include "drivers/memory/memory.h"'
red arrow src/drivers/mysql/x.c '#include "drivers/server/server_impl.h"'
green src/drivers/mysql/x.c '#include "drivers/server/server.h"' '#include "drivers/mysql/mysql_impl.h"' '#include "sql/wire.h"'
green src/cli/x.c '#include "guard/guard.h"' '#include "store/uri.h"' '#include "cli/cli.h"'
green src/lease/x.c '#include "store/store.h"' '#include "base/port.h"' '#include "dibs.h"' '#include "near.h"'
red engine-name src/lease/x.c 'int f(void) { return g("sqlite"); }'
red engine-name src/store/x.c 'int dibs__Redis_driver;'
red engine-name src/tier/x.c 'int f(void) { return g("redis"); }'
red engine-name src/drivers/sqlite/x.c 'int f(void) { return g("sqlite", "mysql"); }'
green src/drivers/sqlite/x.c 'int f(void) { return g("sqlite"); }'
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

# ---- Words ----

words() { # words CODE NAME FILE TEXT: the text as that file
  fresh
  mkdir -p "$tmp/tree/doc/man"
  printf "$4\n" >"$tmp/tree/$3"
  case $3 in src/*) set -- "$@" "$3" ;; *) set -- "$1" "$2" "$3" "$4" ;; esac
  code=$1 name=$2 file=$3
  shift 4
  "$top/script/lint-words" "$tmp/tree" "$@" >"$tmp/out" 2>&1
  [ $? = "$code" ] && { [ "$code" = 0 ] || { [ "$(wc -l <"$tmp/out")" = 1 ] && grep -q "^$file:[0-9]*: words: " "$tmp/out"; }; }
  verdict $? "words: $name"
}
for phrase in 'the holder is told' 'it is said' 'is as good' 'begins anew' 'the version that stands' 'leave it away' \
  'there are no 3 left' 'of its own accord' 'the one behind it' 'it came to nothing' 'takes part' 'this goes by time' \
  'asks for it' 'it lets go' 'it is away' 'one that waits' 'see what is there' 'for whoever comes' 'works as ever' \
  'found by the way' 'it is kept back' 'it lets in two' "it is nobody's lease" 'a waiter is passed over' 'two ids told apart' \
  'a server being away'; do
  words 1 "$phrase" README.md "A text: $phrase."
done
words 1 'across a line' doc/x.md 'The holder is\ntold.'
words 1 'first word' README.md 'Leases end. Who holds one, hurries.'
words 0 'a question' README.md 'Who holds it?'
words 0 'across a paragraph' README.md 'This holder is\n\ntold.'
words 0 'across a sentence' README.md 'The file is behind. It grows.'
words 0 'stands for' README.md 'A dash stands for standard input.'
words 0 'code' README.md 'See `is told`.\n\n```\nit stands\n```'
words 1 'a manual page' doc/man/x.1 '.Sh NAME\nWhoever comes.'
words 0 'a literal block' doc/man/x.1 '.Bd -literal\nit stands\n.Ed'
words 1 'a string of C' src/base/x.c 'f("it stands");'
words 1 'a comment of C' src/base/x.c '/* The holder\n * is told. */'
words 0 'code of C' src/base/x.c 'int stands = is(told);'
# The paths that are checked by default.
words 1 'a decision' doc/decisions/1.md 'A lease begins anew.'
words 1 'a comment of a test' test/contract/x.c '/* It stands. */'
words 1 'a comment of a test script' test/contract/x.sh '#!/bin/sh\n# It stands.'
words 1 'a comment of a script' script/test '#!/bin/sh\n# It stands.'
words 1 'a comment of a model' model/x.pml '/* It stands. */'
words 0 'code of a model' model/x.pml 'bool stands = true;'
fresh
rm -r "$tmp/tree/src"
"$top/script/lint-words" "$tmp/tree" >"$tmp/out" 2>&1
[ $? = 2 ]
verdict $? 'words: no file is an error'
