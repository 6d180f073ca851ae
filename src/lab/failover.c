/* SPDX-License-Identifier: MIT */
/*
 * Failover: users add 1 to numbers under leases of a store with two tiers, a Redis and an embedded anchor, while the
 * Redis is killed and later started again, empty.  Each user acquires a lease, reads the number with it (which seals
 * the record), writes the sum with it, and releases.  At the end the numbers must equal the acknowledged additions, and
 * the fences of each name must have grown from one tier to the next.
 *
 * Four stores of one process are four clients of the tiers: each has its own connections, breaker and vote.
 */
#include "lab/locks.h"
#include "lab/own.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
  CLIENTS = 4,
  NAMES = 20,
  BIN_MS = 100,
  BINS = 6000, /* ten minutes; later ones are not drawn */
  TTL_MS = 3000,
  WAIT_MS = 5000,
  PHASE_BOUND_MS = 60000, /* for a tier to take over */
  LOOK_MS = 50,
  TEXT_MAX = 400
};

enum tier { REDIS, ANCHOR, TIERS };
enum era { BEFORE, DOWN, AFTER, ERAS };

static const struct lab_column columns[] = {
    {"phase", "while Redis", LAB_TEXT},      {"seconds", "seconds", LAB_RATE},
    {"per_second", "leases/s", LAB_RATE},    {"redis", "by Redis", LAB_COUNT},
    {"anchor", "by the anchor", LAB_COUNT},  {"failed", "refused or late", LAB_COUNT},
    {"gap_ms", "longest gap, ms", LAB_COUNT}};
static const struct lab_column sum_columns[] = {{"check", "check", LAB_TEXT},
                                                {"acknowledged", "acknowledged", LAB_COUNT},
                                                {"counted", "counted", LAB_COUNT},
                                                {"unknown", "unknown outcomes", LAB_COUNT},
                                                {"lost_leases", "leases lost", LAB_COUNT},
                                                {"stale", "writes refused", LAB_COUNT},
                                                {"lost", "lost", LAB_COUNT},
                                                {"verdict", "verdict", LAB_TEXT}};

/* A name's fences in one era: 0 is none. */
struct fences {
  _Atomic uint64_t least, most;
};

struct failover {
  struct lab *lab;
  struct lab_own_redis own;
  dibs_store *store[CLIENTS];
  dibs__tick from;
  _Atomic bool stop;
  _Atomic uint32_t era;
  _Atomic uint64_t acknowledged, unknown, stale, losses, bins[BINS][TIERS];
  _Atomic uint64_t granted[ERAS][TIERS], failed[ERAS];
  _Atomic int64_t last_ns, gap_ns[ERAS];
  struct fences fences[NAMES][ERAS];
  _Atomic uint32_t troubled; /* 1: `why` is set; only the first user sets it */
  char why[LAB_WHY_MAX];
};
struct worker {
  struct failover *f;
  dibs_store *store;
  dibs__thread *thread;
  uint32_t random;
};

/* ---- A user ---- */

static void lower(_Atomic uint64_t *at, uint64_t value) {
  uint64_t seen = atomic_load(at);
  while ((seen == 0 || value < seen) && !atomic_compare_exchange_weak(at, &seen, value)) continue;
}

static void raise_to(_Atomic uint64_t *at, uint64_t value) {
  uint64_t seen = atomic_load(at);
  while (value > seen && !atomic_compare_exchange_weak(at, &seen, value)) continue;
}

/* `era`: when the request was sent; a grant that began in another one may be of either. */
static void count_grant(struct failover *f, uint32_t name, dibs_lease *lease, uint32_t era) {
  enum tier tier = strncmp(dibs_lease_tier(lease), "redis", 5) == 0 ? REDIS : ANCHOR;
  int64_t now = dibs__tick_now().ns, last = atomic_exchange(&f->last_ns, now), gap = now - last;
  uint32_t ended = atomic_load(&f->era);
  int64_t bin = (now - f->from.ns) / DIBS__NS_PER_MS / BIN_MS, seen = atomic_load(&f->gap_ns[ended]);
  while (gap > seen && !atomic_compare_exchange_weak(&f->gap_ns[ended], &seen, gap)) continue;
  if (bin >= 0 && bin < BINS) atomic_fetch_add(&f->bins[bin][tier], 1);
  atomic_fetch_add(&f->granted[ended][tier], 1);
  if (era != ended || (tier == REDIS) != (era != DOWN)) return;
  lower(&f->fences[name][era].least, dibs_lease_fence(lease).value);
  raise_to(&f->fences[name][era].most, dibs_lease_fence(lease).value);
}

static void set_why(struct failover *f, const char *text) {
  uint32_t nobody = 0;
  if (atomic_compare_exchange_strong(&f->troubled, &nobody, 1)) snprintf(f->why, sizeof f->why, "%s", text);
}

static void record_key(const struct failover *f, uint32_t name, char key[LAB_KEY_MAX]) {
  snprintf(key, LAB_KEY_MAX, "lab/%u/failover-%u", f->lab->run, name);
}

static dibs_status get_number(dibs_store *store, const char *key, dibs_lease *lease, int64_t *number,
                              dibs_error *error) {
  dibs_record_options options = {.size = sizeof options, .lease = lease};
  dibs_record *record;
  *number = 0;
  dibs_status status = dibs_record_get(store, key, &options, &record, error);
  if (status != DIBS_OK) return status == DIBS_NOT_FOUND && !lease ? DIBS_OK : status;
  if (record->count && record->values[0].data) *number = strtoll(record->values[0].data, NULL, 10);
  dibs_record_free(record);
  return DIBS_OK;
}

static dibs_status add_one(dibs_store *store, const char *key, dibs_lease *lease, dibs_error *error) {
  char text[24];
  int64_t number;
  dibs_status status = get_number(store, key, lease, &number, error);
  if (status != DIBS_OK) return status == DIBS_UNKNOWN ? DIBS_UNAVAILABLE : status; /* nothing was added */
  int length = snprintf(text, sizeof text, "%" PRId64, number + 1);
  dibs_value value = {.data = text, .length = (size_t)length};
  dibs_record_options options = {.size = sizeof options, .lease = lease};
  return dibs_record_put(store, key, &value, 1, &options, NULL, error);
}

static void count_loss(dibs_lease *lease, dibs_status status, const dibs_error *error, void *user) {
  struct failover *f = user;
  (void)lease;
  (void)status;
  (void)error;
  atomic_fetch_add(&f->losses, 1);
}

static void work_once(struct worker *w) {
  struct failover *f = w->f;
  dibs_error error = {0};
  char key[LAB_KEY_MAX];
  dibs_lease *lease;
  /* With on_lost an offer is confirmed before the call returns: until then, the tier of a lease is not known. */
  dibs_lease_options options = {
      .size = sizeof options, .ttl_ms = TTL_MS, .wait_ms = WAIT_MS, .owner = "lab", .on_lost = count_loss, .user = f};
  w->random = w->random * 1664525u + 1013904223u;
  uint32_t name = (w->random >> 8) % NAMES, era = atomic_load(&f->era);
  record_key(f, name, key);
  dibs_status status = dibs_acquire(w->store, key, &options, &lease, &error);
  if (status != DIBS_OK) {
    atomic_fetch_add(&f->failed[atomic_load(&f->era)], 1);
    dibs__nap_ms(5);
    return;
  }
  count_grant(f, name, lease, era);
  status = add_one(w->store, key, lease, &error);
  if (status == DIBS_OK)
    atomic_fetch_add(&f->acknowledged, 1);
  else if (status == DIBS_UNKNOWN)
    atomic_fetch_add(&f->unknown, 1);
  else if (status == DIBS_STALE || status == DIBS_LOST)
    atomic_fetch_add(&f->stale, 1);
  else
    set_why(f, error.text);
  dibs_lease_free(lease); /* releases it */
}

static void body(void *arg) {
  struct worker *w = arg;
  while (!atomic_load_explicit(&w->f->stop, memory_order_relaxed)) work_once(w);
}

/* ---- The course of events ---- */

static double seconds_now(const struct failover *f) {
  return (double)(dibs__tick_now().ns - f->from.ns) / 1e9;
}

static void say(struct failover *f, struct lab_timeline *timeline, int side, enum lab_mood mood, const char *does,
                const char *gets) {
  char text[TEXT_MAX];
  snprintf(text, sizeof text, "%.1f s: %s", seconds_now(f), does);
  dibs__lab_step(&f->lab->sheet, timeline, side, mood, text, gets);
}

/* Looks on for `ms`, or with `tier` until that tier has granted a lease in this era. */
static bool look_on(struct failover *f, const char *what, int64_t ms, int tier) {
  dibs__tick by = dibs__tick_add_ms(dibs__tick_now(), tier < 0 ? ms : PHASE_BOUND_MS);
  uint32_t era = atomic_load(&f->era);
  while (!dibs__lab_ended(f->lab)) {
    if (tier >= 0 && atomic_load(&f->granted[era][tier]) > 0) return true;
    if (!dibs__tick_before(dibs__tick_now(), by)) return tier < 0;
    dibs__lab_report_progress(f->lab, what, 0, (int64_t)(seconds_now(f) * 1000), 0, atomic_load(&f->acknowledged), 0);
    int64_t left = dibs__tick_left_ms(dibs__tick_now(), by);
    dibs__nap_ms(left < LOOK_MS ? left : LOOK_MS);
  }
  return false;
}

static bool run_phases(struct failover *f, struct lab_timeline *timeline, double ends[ERAS]) {
  struct lab *lab = f->lab;
  say(f, timeline, 0, LAB_PLAIN, "serves all names", "");
  if (!look_on(f, "Redis serves", lab->ms / 3, -1)) return false;
  if (atomic_load(&f->granted[BEFORE][REDIS]) == 0) return dibs__lab_fail(lab, "the lab's own Redis granted no lease");
  ends[BEFORE] = seconds_now(f);
  lab->step++;
  say(f, timeline, 0, LAB_PLAIN, "SIGKILL", "does not answer");
  dibs__lab_own_redis_kill(&f->own);
  atomic_store(&f->era, DOWN);
  if (!look_on(f, "Redis is down", 0, ANCHOR))
    return dibs__lab_ended(lab) || dibs__lab_fail(lab, "the anchor has not taken over in %d s", PHASE_BOUND_MS / 1000);
  say(f, timeline, 1, LAB_PLAIN, "the anchor grants the first lease", "more than half of the clients voted Redis down");
  if (!look_on(f, "Redis is down", lab->ms / 3, -1)) return false;
  say(f, timeline, 0, LAB_PLAIN, "is started again", "it is empty");
  if (!dibs__lab_own_redis_start(lab, &f->own)) return false;
  ends[DOWN] = seconds_now(f);
  lab->step++;
  atomic_store(&f->era, AFTER);
  if (!look_on(f, "Redis is back", 0, REDIS))
    return dibs__lab_ended(lab) || dibs__lab_fail(lab, "no client returned to Redis in %d s", PHASE_BOUND_MS / 1000);
  say(f, timeline, 1, LAB_PLAIN, "Redis grants leases again", "after its dwell time, under a new epoch");
  bool fine = look_on(f, "Redis is back", lab->ms / 3, -1);
  ends[AFTER] = seconds_now(f);
  return fine;
}

/* ---- The results ---- */

/* Names with a fence that is not larger than one of an earlier era. */
static uint32_t out_of_order(struct failover *f) {
  uint32_t count = 0;
  for (uint32_t n = 0; n < NAMES; n++) {
    uint64_t most = 0;
    bool wrong = false;
    for (uint32_t e = 0; e < ERAS; e++) {
      uint64_t least = atomic_load(&f->fences[n][e].least);
      wrong = wrong || (least && least <= most);
      if (least) most = atomic_load(&f->fences[n][e].most);
    }
    count += wrong;
  }
  return count;
}

static void add_phases(struct failover *f, const double ends[ERAS]) {
  static const char *const names[ERAS] = {"serves", "is down", "is back, empty"};
  struct lab_sheet *s = &f->lab->sheet;
  struct lab_table *table =
      dibs__lab_table(s, "phases", "Leases by tier", "", columns, sizeof columns / sizeof *columns);
  double begin = 0;
  for (uint32_t e = 0; e < ERAS && ends[e] > 0; e++) {
    uint64_t redis = atomic_load(&f->granted[e][REDIS]), anchor = atomic_load(&f->granted[e][ANCHOR]);
    dibs__lab_put_text(s, table, LAB_PLAIN, names[e]);
    dibs__lab_put(s, table, ends[e] - begin);
    dibs__lab_put(s, table, (double)(redis + anchor) / (ends[e] - begin));
    dibs__lab_put(s, table, (double)redis);
    dibs__lab_put(s, table, (double)anchor);
    dibs__lab_put(s, table, (double)atomic_load(&f->failed[e]));
    dibs__lab_put(s, table, (double)(atomic_load(&f->gap_ns[e]) / DIBS__NS_PER_MS));
    begin = ends[e];
  }
}

static void add_plot(struct failover *f, double end) {
  static const char *const names[TIERS] = {"Redis", "anchor"};
  struct lab_sheet *s = &f->lab->sheet;
  struct lab_plot *plot = dibs__lab_plot(s, "over_time", LAB_LINES, "Leases per second, by the tier that granted them",
                                         "The Redis is killed after the first third, and returns after the second.");
  if (plot) {
    plot->x_title = "seconds";
    plot->y_title = "leases/s";
  }
  size_t last = (size_t)(end * 1000 / BIN_MS), each = 1 + last / LAB_SAMPLES;
  for (size_t t = 0; t < TIERS; t++) {
    struct lab_series *series = dibs__lab_series(s, plot, names[t], LAB_PLAIN);
    for (size_t i = 0; i + each <= last && i + each <= BINS; i += each) {
      uint64_t count = 0;
      for (size_t n = i; n < i + each; n++) count += atomic_load(&f->bins[n][t]);
      dibs__lab_point(s, series, ((double)i + (double)each / 2) * BIN_MS / 1000,
                      (double)count * 1000 / (double)(each * BIN_MS));
    }
  }
}

static bool add_sums(struct failover *f) {
  struct lab_sheet *s = &f->lab->sheet;
  dibs_error error = {0};
  int64_t counted = 0, acknowledged = (int64_t)atomic_load(&f->acknowledged);
  int64_t unknown = (int64_t)atomic_load(&f->unknown);
  for (uint32_t n = 0; n < NAMES; n++) {
    char key[LAB_KEY_MAX];
    int64_t number;
    record_key(f, n, key);
    if (get_number(f->store[0], key, NULL, &number, &error) != DIBS_OK) return dibs__lab_fail(f->lab, "%s", error.text);
    counted += number;
  }
  uint32_t wrong = out_of_order(f);
  int64_t lost = acknowledged > counted ? acknowledged - counted : 0;
  bool fine = lost == 0 && counted <= acknowledged + unknown && acknowledged > 0;
  struct lab_table *table =
      dibs__lab_table(s, "sums", "Was anything lost?", "", sum_columns, sizeof sum_columns / sizeof *sum_columns);
  if (!fine || wrong) s->broken = true;
  dibs__lab_put_text(s, table, LAB_PLAIN, "additions");
  dibs__lab_put(s, table, (double)acknowledged);
  dibs__lab_put(s, table, (double)counted);
  dibs__lab_put(s, table, (double)unknown);
  dibs__lab_put(s, table, (double)atomic_load(&f->losses));
  dibs__lab_put(s, table, (double)atomic_load(&f->stale));
  dibs__lab_put(s, table, (double)lost);
  dibs__lab_put_text(s, table, fine ? LAB_GOOD : LAB_BAD, fine ? "nothing was lost" : "BROKEN");
  dibs__lab_put_text(s, table, LAB_PLAIN, "fences grow from tier to tier");
  for (int i = 0; i < 5; i++) dibs__lab_put(s, table, (double)NAN);
  dibs__lab_put(s, table, wrong);
  dibs__lab_put_text(s, table, wrong ? LAB_BAD : LAB_GOOD, wrong ? "BROKEN" : "correct");
  return true;
}

/* ---- The experiment ---- */

static bool run_workers(struct failover *f, struct lab_timeline *timeline, double ends[ERAS]) {
  struct lab *lab = f->lab;
  uint32_t users = lab->users[0], started = 0;
  struct worker *workers = calloc(users, sizeof *workers);
  if (!workers) return dibs__lab_fail(lab, "out of memory for %u users", users);
  f->from = dibs__tick_now();
  atomic_store(&f->last_ns, f->from.ns);
  for (; started < users; started++) {
    workers[started] = (struct worker){.f = f, .store = f->store[started % CLIENTS], .random = started * 2654435761u};
    workers[started].thread = dibs__thread_start("dibs-lab-user", body, &workers[started]);
    if (!workers[started].thread) break;
  }
  bool fine = started == users ? run_phases(f, timeline, ends) : dibs__lab_fail(lab, "cannot start %u threads", users);
  atomic_store(&f->stop, true);
  for (uint32_t i = 0; i < started; i++) dibs__thread_join(workers[i].thread);
  free(workers);
  return fine;
}

static bool open_clients(struct failover *f) {
  dibs_error error = {0};
  for (int i = 0; i < CLIENTS; i++)
    if (dibs__lab_own_tiers_open(&f->own, &f->store[i], &error) != DIBS_OK)
      return dibs__lab_fail(f->lab, "%s", error.text);
  return true;
}

bool dibs__lab_failover(struct lab *lab) {
  struct lab_sheet *s = &lab->sheet;
  double ends[ERAS] = {0};
  struct failover *f = calloc(1, sizeof *f);
  if (!f) return dibs__lab_fail(lab, "out of memory");
  f->lab = lab;
  lab->run++;
  lab->steps = ERAS;
  lab->step = 1;
  s->experiment = "failover";
  dibs__lab_title(s, "Redis is killed under load",
                  "Users add 1 to numbers, each under a lease. Redis grants the leases until it is killed; then the "
                  "anchor does, until Redis is back. Records check the fences of the leases.");
  dibs__lab_fact_number(s, "users", "Users", lab->users[0], "");
  dibs__lab_fact_number(s, "clients", "Clients (stores with their own vote)", CLIENTS, "");
  dibs__lab_fact_number(s, "seconds", "Seconds", (double)lab->ms / 1000, "");
  bool fine = dibs__lab_own_redis_start(lab, &f->own) && open_clients(f);
  if (fine) {
    struct lab_timeline *timeline =
        dibs__lab_timeline(s, "course", "The course of events", "", "Redis", "the clients and the anchor");
    fine = run_workers(f, timeline, ends);
    add_phases(f, ends);
    add_plot(f, seconds_now(f));
    fine = add_sums(f) && fine;
    if (f->why[0]) dibs__lab_note(s, "An addition failed: %s", f->why);
    dibs__lab_note(s,
                   "The lab started a Redis of its own; the anchor is an embedded store, which also has the numbers. "
                   "The tiers return sooner than by default (tiers.dwell=1000).");
  }
  for (int i = 0; i < CLIENTS; i++) dibs_close(f->store[i]);
  dibs__lab_own_redis_end(&f->own);
  free(f);
  return fine || dibs__lab_ended(lab);
}
