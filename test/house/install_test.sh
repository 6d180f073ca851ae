#!/bin/sh
# SPDX-License-Identifier: MIT
# `meson install` installs everything that a program needs: pkg-config, headers, library, command, pages, completions.
#   install_test.sh BUILD_DIR PREFIX LIBDIR [ASAN?]
set -u
build=$1
prefix=$2
libdir=$3
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
n=0
dest=$tmp/root

ok() { # ok NAME COMMAND...
  name=$1
  shift
  n=$((n + 1))
  if "$@" >"$tmp/out" 2>&1; then
    echo "ok $n - $name"
  else
    echo "not ok $n - $name"
    head -30 "$tmp/out" | sed 's/^/# /'
  fi
}

# The program opens a store in memory, acquires a lease and checks its fence.
cat >"$tmp/use.c" <<'C'
#include <dibs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int main(void) {
  dibs_store *store;
  dibs_lease *lease;
  dibs_error error;
  if (strcmp(dibs_version(), EXPECTED) != 0) return 1;
  if (dibs_open("memory:", NULL, &store, &error) != DIBS_OK) return puts(error.text), 2;
  if (dibs_acquire(store, "name", NULL, &lease, &error) != DIBS_OK) return puts(error.text), 3;
  if (dibs_lease_fence(lease).value == 0 || !dibs_lease_alive(lease)) return 4;
  if (dibs_release(lease, &error) != DIBS_OK) return puts(error.text), 5;
  dibs_lease_free(lease);
  dibs_close(store);
  return 0;
}
C
cp "$tmp/use.c" "$tmp/use.cc"

export PKG_CONFIG_SYSROOT_DIR="$dest" PKG_CONFIG_PATH="$dest$prefix/$libdir/pkgconfig"
export LD_LIBRARY_PATH="$dest$prefix/$libdir"
flags() { pkg-config --cflags --libs dibs; }
there() {
  for file; do
    [ -s "$dest$prefix/$file" ] || {
      echo "not installed: $prefix/$file"
      return 1
    }
  done
}
compile() { # compile COMPILER SOURCE OUT
  # shellcheck disable=SC2046
  "$1" -Wall -Wextra -Werror -DEXPECTED="\"$(pkg-config --modversion dibs)\"" -o "$3" "$2" $(flags)
}
same_soname() { objdump -p "$dest$prefix/$libdir/libdibs.so" | grep 'SONAME.*libdibs\.so\.0$'; }
# The program of EXAMPLES in dibs.h(3), as a reader copies it.
example() {
  sed -n '/^\.Sh EXAMPLES/,/^\.Ed/p' "$dest$prefix/share/man/man3/dibs.h.3" | sed '1,/^\.Bd/d;/^\.Ed/d;s/\\-/-/g;s/\\e/\\/g' >"$tmp/page.c"
  grep -q dibs_record_put "$tmp/page.c" && compile gcc "$tmp/page.c" "$tmp/page" && DIBS_STORE="sqlite://$tmp/page.db" "$tmp/page"
}
answers() { "$dest$prefix/bin/dibs" version | grep -F "$(pkg-config --modversion dibs)"; }
clean() { # no file that only a build needs
  ! find "$dest" -name '*.a' -o -name 'store.h' | grep .
}

echo 1..13
ok 'installs' meson install -C "$build" --no-rebuild --destdir "$dest" --quiet
ok 'header, library, pkg-config file' there include/dibs.h include/dibs/admin.h include/dibs/postgres.h include/dibs/mysql.h include/dibs/sqlite.h include/dibs/task.h include/dibs/cron.h include/dibs/counter.h include/dibs/lane.h include/dibs/transaction.h include/dibs/kafka.h "$libdir/libdibs.so" "$libdir/pkgconfig/dibs.pc"
ok 'the soname is libdibs.so.0' same_soname
ok 'nothing internal is installed' clean
ok 'manual pages' there share/man/man3/dibs.h.3 share/man/man1/dibs.1
ok 'completions' there share/bash-completion/completions/dibs share/zsh/site-functions/_dibs \
  share/fish/vendor_completions.d/dibs.fish
ok 'the command answers' answers
ok 'and finds dibs-lab' "$dest$prefix/bin/dibs" lab --help
ok 'a C program compiles' compile gcc "$tmp/use.c" "$tmp/c"
ok 'and runs' "$tmp/c"
ok 'a C++ program compiles' compile g++ "$tmp/use.cc" "$tmp/cc"
ok 'and runs' "$tmp/cc"
ok 'the example of dibs.h(3) compiles and runs' example
