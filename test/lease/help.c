/* SPDX-License-Identifier: MIT */
#include "help.h"

#include "drivers/wrap/shim.h"
#include "store/registry.h"

#include <dirent.h>
#include <stdio.h>
#include <unistd.h>

enum { STORES_MAX = 64 };

static const char *base = "memory:";
static struct {
  char uri[512], shimmed[768], folder[64];
  dibs_store *stores[STORES_MAX];
} bed;
static uint32_t cases;
static _Atomic uint32_t overs;

/* ---- The case ---- */

void lease_begin(int argc, char *argv[]) {
  if (argc > 1) base = argv[1];
  if (argc > 2) cmocka_set_test_filter(argv[2]);
  unsetenv("DIBS_STORE");
  dibs__driver_add(&dibs__trace_driver);
  dibs__driver_add(&dibs__fault_driver);
  dibs__driver_add(&dibs__latency_driver);
}

bool case_in_memory(void) {
  return strstr(base, "memory:") != NULL;
}

bool case_keeps_records(void) {
  return strncmp(base, "redis", 5) != 0;
}

bool case_at_server(void) {
  return strstr(base, "://") != NULL;
}

bool case_by_majority(void) {
  return strncmp(base, "redlock", 7) == 0;
}

const char *case_scheme(void) {
  static char scheme[32];
  snprintf(scheme, sizeof scheme, "%.*s", (int)(strcspn(base, ":") + 1), base);
  return scheme;
}

int case_begin(void **state) {
  (void)state;
  memset(&bed, 0, sizeof bed);
  if (case_in_memory()) {
    snprintf(bed.uri, sizeof bed.uri, "%scase-%u", base, ++cases);
    return 0;
  }
  if (case_at_server()) { /* tables of its own; the caller that created the database drops it */
    const char *word = strncmp(base, "postgres", 8) == 0 ? "schema" : "prefix";
    snprintf(bed.uri, sizeof bed.uri, "%s%c%s=l%u_%u_", base, strchr(base, '?') ? '&' : '?', word, dibs__process_id(),
             ++cases);
    return 0;
  }
  snprintf(bed.folder, sizeof bed.folder, "/tmp/dibs-lease-XXXXXX");
  if (!mkdtemp(bed.folder)) return -1;
  /* "sqlite:##1,sqlite:##2": several tiers, one file for each */
  size_t len = 0, end = strcspn(base, "#");
  if (!base[end]) len = (size_t)snprintf(bed.uri, sizeof bed.uri, "%s%s/x.db", base, bed.folder);
  for (const char *at = base; base[end] && *at && len + sizeof bed.folder < sizeof bed.uri; at++)
    if (*at != '#')
      bed.uri[len++] = *at;
    else if (at[1] != '#')
      len += (size_t)snprintf(bed.uri + len, sizeof bed.uri - len, "%s/x", bed.folder);
  return 0;
}

int case_end(void **state) {
  (void)state;
  for (size_t i = 0; i < STORES_MAX; i++)
    if (bed.stores[i]) close_store(bed.stores[i]);
  if (!bed.folder[0]) return 0;
  char command[96];
  snprintf(command, sizeof command, "rm -rf %s", bed.folder);
  return system(command);
}

const char *case_uri(void) {
  return bed.uri;
}

const char *shimmed(const char *shim, const char *params) {
  /* With several tiers: before the first, which has these parameters. */
  int head = (int)(strchr(base, '#') ? strcspn(bed.uri, ",") : strlen(bed.uri));
  const char *between = !*params ? "" : memchr(bed.uri, '?', (size_t)head) ? "&" : "?";
  snprintf(bed.shimmed, sizeof bed.shimmed, "%s+%.*s%s%s%s", shim, head, bed.uri, between, params, bed.uri + head);
  return bed.shimmed;
}

dibs_store *open_uri(const char *uri, uint32_t flags) {
  dibs_store_options o = {.size = sizeof o, .flags = flags};
  dibs_store *store = NULL;
  dibs_error error;
  if (dibs_open(uri, &o, &store, &error) != DIBS_OK) fail_msg("opening %s: %s", uri, error.text);
  size_t at = 0;
  while (at < STORES_MAX && bed.stores[at]) at++;
  assert_true(at < STORES_MAX);
  bed.stores[at] = store;
  return store;
}

dibs_store *open_store(void) {
  return open_uri(bed.uri, 0);
}

void close_store(dibs_store *store) {
  for (size_t i = 0; i < STORES_MAX; i++)
    if (bed.stores[i] == store) bed.stores[i] = NULL;
  dibs_close(store);
}

/* ---- Leases ---- */

dibs_lease *take_as(dibs_store *store, const char *name, options how) {
  dibs_lease *lease = NULL;
  dibs_error error;
  if (dibs_acquire(store, name, &how, &lease, &error) != DIBS_OK) fail_msg("taking %s: %s", name, error.text);
  assert_non_null(lease);
  return lease;
}

dibs_status request_as(dibs_store *store, const char *name, options how) {
  dibs_lease *lease = NULL;
  dibs_status status = dibs_acquire(store, name, &how, &lease, NULL);
  if (status == DIBS_OK)
    give(lease);
  else
    assert_null(lease);
  return status;
}

void give(dibs_lease *lease) {
  dibs_error error;
  if (dibs_release(lease, &error) != DIBS_OK) fail_msg("releasing %s: %s", dibs_lease_name(lease), error.text);
  dibs_lease_free(lease);
}

/* ---- Callers in threads ---- */

static void *call(void *arg) {
  struct caller *caller = arg;
  caller->began = dibs__tick_now();
  caller->status = dibs_acquire(caller->store, caller->name, &caller->how, &caller->lease, &caller->error);
  caller->ended = dibs__tick_now();
  atomic_store(&caller->over, atomic_fetch_add(&overs, 1) + 1);
  return NULL;
}

void caller_start(struct caller *caller, dibs_store *store, const char *name, options how) {
  *caller = (struct caller){.store = store, .name = name, .how = how};
  assert_int_equal(pthread_create(&caller->thread, NULL, call, caller), 0);
}

dibs_status caller_join(struct caller *caller) {
  UNTIL(atomic_load(&caller->over) != 0);
  assert_int_equal(pthread_join(caller->thread, NULL), 0);
  return caller->status;
}

/* ---- Acquisitions that complete later ---- */

void later_done(dibs_lease *lease, dibs_status status, const dibs_error *error, void *user) {
  struct later *later = user;
  (void)lease;
  later->error = *error;
  assert_int_equal(error->status, status);
  assert_int_equal(error->text[0] == '\0', status == DIBS_OK);
  atomic_store(&later->status, (int)status);
  atomic_store(&later->over, atomic_fetch_add(&overs, 1) + 1);
  atomic_fetch_add(&later->calls, 1);
}

void later_start(struct later *later, dibs_store *store, const char *name, options how) {
  dibs_error error;
  *later = (struct later){.status = -1};
  if (dibs_acquire_start(store, name, &how, later_done, later, &later->lease, &error) != DIBS_OK)
    fail_msg("starting to acquire %s: %s", name, error.text);
}

dibs_status later_wait(struct later *later) {
  UNTIL(atomic_load(&later->calls) != 0);
  assert_int_equal(atomic_load(&later->calls), 1);
  return (dibs_status)atomic_load(&later->status);
}

void count_loss(dibs_lease *lease, dibs_status status, const dibs_error *error, void *user) {
  assert_non_null(strstr(error->text, dibs_lease_name(lease)));
  struct told *told = user;
  atomic_store(&told->status, (int)status);
  atomic_store(&told->lease, lease);
  atomic_fetch_add(&told->calls, 1);
}

/* ---- Time ---- */

int64_t ms_since(dibs__tick then) {
  return (dibs__tick_now().ns - then.ns) / DIBS__NS_PER_MS;
}

/* ---- Inspection ---- */

struct tally {
  uint32_t state, count;
};

static int tally(const dibs_lease_info *info, void *user) {
  struct tally *t = user;
  t->count += info->state == t->state;
  return 0;
}

uint32_t rows_of(dibs_store *store, const char *name, uint32_t state) {
  struct tally t = {.state = state};
  dibs_error error;
  dibs_status status = dibs_show(store, name, tally, &t, &error);
  if (status != DIBS_OK && status != DIBS_NOT_FOUND) fail_msg("showing %s: %s", name, error.text);
  return t.count;
}

uint32_t threads_now(void) {
  uint32_t count = 0;
  DIR *tasks = opendir("/proc/self/task");
  assert_non_null(tasks);
  for (struct dirent *entry; (entry = readdir(tasks));) count += entry->d_name[0] != '.';
  closedir(tasks);
  return count;
}
