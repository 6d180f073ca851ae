#!/bin/sh
# SPDX-License-Identifier: MIT
# dibs.h is enough by itself, twice included, for old and new C and C++, with every warning an error.
#   header_test.sh INCLUDE_DIR
set -u
include=$1
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
n=0

cat >"$tmp/use.c" <<'C'
#include "dibs.h"
#include "dibs.h"

static void done(dibs_lease *lease, dibs_status status, void *user) {
  (void)lease;
  (void)status;
  (void)user;
}

dibs_status use(dibs_store *store, dibs_lease **lease, dibs_error *error);
dibs_status use(dibs_store *store, dibs_lease **lease, dibs_error *error) {
  dibs_lease_options options = {sizeof(dibs_lease_options), DIBS_COUNTED, 3, DIBS_NO_RENEW, 0, DIBS_TTL_DEFAULT_MS,
                                DIBS_FOREVER, NULL, NULL, done, NULL};
  dibs_store_options opening = {sizeof(dibs_store_options), DIBS_STORE_LOOP, NULL, NULL};
  dibs_status status = dibs_open("memory:", &opening, &store, error);
  if (status != DIBS_OK) return status;
  return dibs_acquire(store, "name", &options, lease, error);
}
C
cp "$tmp/use.c" "$tmp/use.cc"
# A C++ compiler is asked for what C can't say: that nothing here is a keyword of its own.
cat >>"$tmp/use.cc" <<'C'
namespace {
struct guard {
  dibs_lease *lease;
  ~guard() { dibs_lease_free(lease); }
};
} // namespace
int scope(dibs_lease *lease);
int scope(dibs_lease *lease) {
  guard held = {lease};
  return dibs_lease_alive(held.lease);
}
C

# try NAME COMPILER ARGS...
try() {
  name=$1
  shift
  n=$((n + 1))
  if ! command -v "$1" >/dev/null 2>&1; then
    echo "ok $n - $name # SKIP no $1 here"
  elif "$@" -Wall -Wextra -Wpedantic -Werror -I"$include" -c -o "$tmp/use.o" >"$tmp/out" 2>&1; then
    echo "ok $n - $name"
  else
    echo "not ok $n - $name"
    sed 's/^/# /' "$tmp/out"
  fi
}

echo 1..7
try 'C99, gcc' gcc -std=c99 "$tmp/use.c"
try 'C17, gcc, conversions' gcc -std=c17 -Wconversion -Wshadow -Wundef "$tmp/use.c"
try 'C99, clang' clang -std=c99 "$tmp/use.c"
try 'C++11, g++' g++ -std=c++11 "$tmp/use.cc"
try 'C++17, g++' g++ -std=c++17 -Wold-style-cast "$tmp/use.cc"
try 'C++20, g++' g++ -std=c++20 "$tmp/use.cc"
try 'C++17, clang++' clang++ -std=c++17 "$tmp/use.cc"
