#!/bin/sh
# SPDX-License-Identifier: MIT
# Each public header compiles alone, and all of them together, included twice, in old and new C and C++, with every
# warning an error.
#   header_test.sh INCLUDE_DIR
set -u
include=$1
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
n=0

cat >"$tmp/use.c" <<'C'
#include "dibs/admin.h"
#include "dibs.h"
#include "dibs.h"
#include "dibs/admin.h"
#include "dibs/counter.h"
#include "dibs/cron.h"
#include "dibs/lane.h"
#include "dibs/mysql.h"
#include "dibs/postgres.h"
#include "dibs/sqlite.h"
#include "dibs/task.h"

static void done(dibs_lease *lease, dibs_status status, const dibs_error *error, void *user) {
  (void)error;
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
cat >>"$tmp/use.c" <<'C'
size_t sizes(void);
size_t sizes(void) {
  dibs_store_options store = DIBS_STORE_OPTIONS_INIT;
  dibs_lease_options lease = DIBS_LEASE_OPTIONS_INIT;
  dibs_break_options breaking = DIBS_BREAK_OPTIONS_INIT;
  dibs_table_options table = DIBS_TABLE_OPTIONS_INIT;
  dibs_record_options record = DIBS_RECORD_OPTIONS_INIT;
  dibs_record_result written = DIBS_RECORD_RESULT_INIT;
  dibs_update_options update = DIBS_UPDATE_OPTIONS_INIT;
  dibs_stock_options stock = DIBS_STOCK_OPTIONS_INIT;
  dibs_stock_result taken = DIBS_STOCK_RESULT_INIT;
  dibs_once_options once = DIBS_ONCE_OPTIONS_INIT;
  dibs_tiers_info tiers = DIBS_TIERS_INFO_INIT;
  dibs_task_options task = DIBS_TASK_OPTIONS_INIT;
  dibs_task_new new_task = DIBS_TASK_NEW_INIT;
  dibs_claim_options claim = DIBS_CLAIM_OPTIONS_INIT;
  dibs_task_end end = DIBS_TASK_END_INIT;
  dibs_worker_options worker = DIBS_WORKER_OPTIONS_INIT;
  dibs_worker_counts counts = DIBS_WORKER_COUNTS_INIT;
  dibs_task_filter filter = DIBS_TASK_FILTER_INIT;
  dibs_kind_options of_kind = DIBS_KIND_OPTIONS_INIT;
  dibs_cron_job job = DIBS_CRON_JOB_INIT;
  dibs_cron_table jobs = DIBS_CRON_TABLE_INIT;
  dibs_cron_options cron = DIBS_CRON_OPTIONS_INIT;
  dibs_cron_counts firings = DIBS_CRON_COUNTS_INIT;
  dibs_counter_options addition = DIBS_COUNTER_OPTIONS_INIT;
  dibs_counter_value value = DIBS_COUNTER_VALUE_INIT;
  dibs_lane_options lane = DIBS_LANE_OPTIONS_INIT;
  dibs_lane_counts lanes = DIBS_LANE_COUNTS_INIT;
  dibs_lane_topic_info topic = DIBS_LANE_TOPIC_INFO_INIT;
  return job.size + jobs.size + cron.size + firings.size + store.size + lease.size + breaking.size + table.size + record.size + written.size + update.size + stock.size +
         taken.size + once.size + tiers.size + task.size + new_task.size + claim.size + end.size + worker.size +
         counts.size + filter.size + of_kind.size + addition.size + value.size + lane.size + lanes.size + topic.size;
}
C
# The C++ compiler also checks that no name is a keyword of C++.
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

echo 1..29
for header in dibs.h dibs/admin.h dibs/postgres.h dibs/mysql.h dibs/sqlite.h dibs/task.h dibs/cron.h dibs/counter.h dibs/lane.h dibs/transaction.h dibs/kafka.h; do
  printf '#include "%s"\n' "$header" >"$tmp/alone.c"
  cp "$tmp/alone.c" "$tmp/alone.cc"
  try "$header alone, C99" gcc -std=c99 "$tmp/alone.c"
  try "$header alone, C++11" g++ -std=c++11 "$tmp/alone.cc"
done
try 'C99, gcc' gcc -std=c99 "$tmp/use.c"
try 'C17, gcc, conversions' gcc -std=c17 -Wconversion -Wshadow -Wundef "$tmp/use.c"
try 'C99, clang' clang -std=c99 "$tmp/use.c"
try 'C++11, g++' g++ -std=c++11 "$tmp/use.cc"
try 'C++17, g++' g++ -std=c++17 -Wold-style-cast "$tmp/use.cc"
try 'C++20, g++' g++ -std=c++20 "$tmp/use.cc"
try 'C++17, clang++' clang++ -std=c++17 "$tmp/use.cc"
