/* SPDX-License-Identifier: MIT */
/*
 * Pause: a holder is stopped (SIGSTOP, as by a debugger, a hypervisor or a full swap) past its ttl, wakes, and writes
 * the result that it computed before.  The holder adds 1 to a number, the next one adds 5.
 *
 * The holder is a separate process; it reports its steps in a page of shared memory.
 */
#include "lab/lab.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { ADDS_LATE = 1, ADDS_NEXT = 5, STEP_MS = 30000, TEXT_MAX = 400 };

struct guard {
  const char *key, *title, *text;
  bool fenced;   /* writes carry the lease's fence */
  bool sealed;   /* reads raise the record's */
  bool between;  /* the late write comes between the other's read and write */
  bool promised; /* no addition is lost */
  bool service;  /* the number is at the service of --gate, and not in a record */
};
static const struct guard guards[] = {
    {"plain", "A plain lease", "The lease names the only writer; nothing checks that when the write arrives.", false,
     false, false, false, false},
    {"fenced", "A fence", "The record stores the largest fence that it has seen, and refuses smaller ones.", true,
     false, false, true, false},
    {"unsealed", "A fence, but the new holder has only read",
     "The record has not seen the new fence yet: it accepts the late write between the other's read and write.", true,
     false, true, false, false},
    {"sealed", "Sealed before reading",
     "Reading raises the record's fence in the same step, so the record refuses older writers before anything is read.",
     true, true, true, true, false},
    {"gate", "A gate in front of a service",
     "The service checks nothing. The gate refuses requests with a fence below the largest that it has seen, also in a "
     "read.",
     true, true, true, true, true},
};
/* The last one needs --gate. */
enum { GUARDS = sizeof guards / sizeof *guards };

static const struct lab_column columns[] = {
    {"guard", "guard", LAB_TEXT},  {"late_write", "the late write", LAB_TEXT},
    {"value", "value", LAB_COUNT}, {"should_be", "should be", LAB_COUNT},
    {"lost", "lost", LAB_COUNT},   {"verdict", "verdict", LAB_TEXT},
};

enum { STARTING, HOLDS, WROTE, FAILED };
struct page {
  /* Immutable once the holder runs. */
  uint32_t guard;
  int64_t ttl_ms;
  char name[64], key[64], url[LAB_URL_MAX + 1];
  /* The holder's. */
  dibs__word state;
  uint64_t fence;
  int64_t read;
  int32_t answer; /* of the late write */
  bool alive;     /* the answer of dibs_lease_alive when it woke */
  char why[512];
  /* The lab's. */
  dibs__word go;
};

struct scene {
  struct lab *lab;
  const struct guard *guard;
  struct page *page;
  int fd, pid;
  dibs_store *store;
  dibs_lease *lease;
  struct lab_timeline *timeline;
  int64_t base; /* the number before all additions */
  bool wrote;   /* the next holder's write was acknowledged */
};

/* ---- Both sides ---- */

static struct lab_service service_of(const struct page *page, const dibs_lease *lease) {
  return (struct lab_service){page->url, page->name, lease ? dibs_lease_fence(lease).value : 0};
}

static dibs_status read_value(dibs_store *store, const struct guard *guard, const struct page *page, dibs_lease *lease,
                              int64_t *value, dibs_error *error) {
  dibs_record_options options = {.size = sizeof options, .lease = guard->sealed ? lease : NULL};
  dibs_record *record;
  struct lab_service service = service_of(page, lease);
  if (guard->service) return dibs__lab_service_read(&service, value, error);
  dibs_status status = dibs_record_get(store, page->key, &options, &record, error);
  *value = 0;
  if (status != DIBS_OK) return status;
  if (record->count && record->values[0].data) *value = strtoll(record->values[0].data, NULL, 10);
  dibs_record_free(record);
  return status;
}

static dibs_status write_value(dibs_store *store, const struct guard *guard, const struct page *page, dibs_lease *lease,
                               int64_t number, dibs_error *error) {
  char text[24];
  struct lab_service service = service_of(page, lease);
  if (guard->service) return dibs__lab_service_write(&service, number, error);
  snprintf(text, sizeof text, "%lld", (long long)number);
  dibs_value value = {.data = text, .length = strlen(text)};
  dibs_record_options options = {.size = sizeof options};
  if (guard->fenced && lease)
    options.lease = lease;
  else
    options.flags = DIBS_UNCHECKED;
  return dibs_record_put(store, page->key, &value, 1, &options, NULL, error);
}

/* ---- The holder that is stopped ---- */

static void say_state(struct page *page, uint32_t state) {
  atomic_store(&page->state, state);
  dibs__word_wake(&page->state, 1, true);
}

static bool hold_lease(struct page *page, dibs_store **store, dibs_lease **lease) {
  dibs_error error = {0};
  dibs_lease_options options = {.size = sizeof options, .ttl_ms = page->ttl_ms, .wait_ms = 0, .owner = "lab: stopped"};
  dibs_status status = dibs_open(secure_getenv("DIBS_STORE"), NULL, store, &error);
  if (status == DIBS_OK) status = dibs_acquire(*store, page->name, &options, lease, &error);
  if (status == DIBS_OK) {
    page->fence = dibs_lease_fence(*lease).value;
    status = read_value(*store, &guards[page->guard], page, *lease, &page->read, &error);
  }
  snprintf(page->why, sizeof page->why, "%s", error.text);
  return status == DIBS_OK;
}

static int holder(struct page *page) {
  dibs_store *store = NULL;
  dibs_lease *lease = NULL;
  bool fine = hold_lease(page, &store, &lease);
  say_state(page, fine ? HOLDS : FAILED);
  while (fine && atomic_load(&page->go) == 0) dibs__word_wait(&page->go, 0, DIBS__TICK_NEVER, true);
  if (fine) {
    dibs_error error = {0};
    page->alive = dibs_lease_alive(lease) != 0;
    page->answer = (int32_t)write_value(store, &guards[page->guard], page, lease, page->read + ADDS_LATE, &error);
    snprintf(page->why, sizeof page->why, "%s", error.text);
    say_state(page, WROTE);
  }
  dibs_lease_free(lease);
  dibs_close(store);
  return fine ? 0 : 1;
}

int dibs__lab_pause_helper(int argc, char **argv) {
  struct page *page = dibs__lab_shared_of(argc, argv, sizeof *page);
  return page ? holder(page) : 1;
}

/* ---- The lab's side ---- */

static void add_step(struct scene *s, int side, enum lab_mood mood, const char *does, const char *gets) {
  dibs__lab_step(&s->lab->sheet, s->timeline, side, mood, does, gets);
}

/* A record begins with 0, the number of a service with what it is. */
static bool find_base(struct scene *s) {
  dibs_error error = {0};
  dibs_status status = s->guard->service ? read_value(s->store, s->guard, s->page, NULL, &s->base, &error)
                                         : write_value(s->store, s->guard, s->page, NULL, 0, &error);
  return status == DIBS_OK || dibs__lab_fail(s->lab, "%s", error.text);
}

static bool start_holder(struct scene *s) {
  struct lab *lab = s->lab;
  if (!(s->page = dibs__lab_shared_make(lab, sizeof *s->page, &s->fd))) return false;
  s->page->guard = (uint32_t)(s->guard - guards);
  s->page->ttl_ms = lab->ttl_ms;
  snprintf(s->page->name, sizeof s->page->name, "lab/%u/%s", lab->run, s->guard->key);
  snprintf(s->page->key, sizeof s->page->key, "lab/%u/%s", lab->run, s->guard->key);
  if (lab->gate) snprintf(s->page->url, sizeof s->page->url, "%s", lab->gate);
  if (!find_base(s)) return false;
  return dibs__lab_spawn_sharing(lab, "pause", s->fd, &s->pid);
}

static bool await_holder(struct scene *s, uint32_t wanted) {
  dibs__tick by = dibs__tick_add_ms(dibs__tick_now(), STEP_MS);
  struct page *page = s->page;
  for (;;) {
    uint32_t state = atomic_load(&page->state);
    if (state == wanted) return true;
    dibs__tick now = dibs__tick_now();
    if (dibs__lab_ended(s->lab)) return false;
    if (state == FAILED) return dibs__lab_fail(s->lab, "the holder: %s", page->why);
    if (!dibs__tick_before(now, by))
      return dibs__lab_fail(s->lab, "the holder did not report for %d s", STEP_MS / 1000);
    if (waitpid(s->pid, NULL, WNOHANG) == s->pid) {
      s->pid = 0;
      return dibs__lab_fail(s->lab, "the holder ended too early");
    }
    dibs__word_wait(&page->state, state, dibs__tick_add_ms(now, 100), true);
  }
}

static bool stop_holder(struct scene *s) {
  char text[TEXT_MAX];
  int status = 0;
  if (!await_holder(s, HOLDS)) return false;
  snprintf(text, sizeof text, "holds the lease, fence %llu; reads %lld", (unsigned long long)s->page->fence,
           (long long)s->page->read);
  add_step(s, 0, LAB_PLAIN, text, s->guard->sealed ? "sealed by the read" : "");
  if (kill(s->pid, SIGSTOP)) return dibs__lab_fail(s->lab, "cannot stop the holder: %s", strerror(errno));
  while (waitpid(s->pid, &status, WUNTRACED) < 0 && errno == EINTR) continue;
  if (!WIFSTOPPED(status)) {
    s->pid = 0;
    return dibs__lab_fail(s->lab, "the holder ended instead of stopping");
  }
  add_step(s, 0, LAB_PLAIN, "SIGSTOP", "is stopped, and notices nothing");
  return true;
}

static bool take_over(struct scene *s) {
  struct lab *lab = s->lab;
  char text[TEXT_MAX];
  dibs_error error = {0};
  dibs_lease_options options = {
      .size = sizeof options, .ttl_ms = 30000, .wait_ms = lab->ttl_ms * 3 + STEP_MS, .owner = "lab: next"};
  dibs__tick from = dibs__tick_now();
  if (dibs_acquire(s->store, s->page->name, &options, &s->lease, &error) != DIBS_OK)
    return dibs__lab_fail(lab, "%s", error.text);
  int64_t waited = (dibs__tick_now().ns - from.ns) / DIBS__NS_PER_MS;
  snprintf(text, sizeof text, "waits %.1f s until the lease has expired, then holds the name, fence %llu",
           (double)waited / 1000, (unsigned long long)dibs_lease_fence(s->lease).value);
  add_step(s, 1, LAB_PLAIN, text, "");
  if (dibs_lease_fence(s->lease).value <= s->page->fence) {
    lab->sheet.broken = true;
    add_step(s, 1, LAB_BAD, "", "the fence has not grown");
  }
  return true;
}

static bool next_reads(struct scene *s, int64_t *value) {
  char text[TEXT_MAX];
  dibs_error error = {0};
  if (read_value(s->store, s->guard, s->page, s->lease, value, &error) != DIBS_OK)
    return dibs__lab_fail(s->lab, "%s", error.text);
  snprintf(text, sizeof text, "reads %lld", (long long)*value);
  add_step(s, 1, LAB_PLAIN, text, s->guard->sealed ? "sealed by the read" : "");
  return true;
}

static bool next_writes(struct scene *s, int64_t value) {
  char text[TEXT_MAX];
  dibs_error error = {0};
  dibs_status status = write_value(s->store, s->guard, s->page, s->lease, value + ADDS_NEXT, &error);
  s->wrote = status == DIBS_OK;
  snprintf(text, sizeof text, "adds %d: writes %lld", ADDS_NEXT, (long long)value + ADDS_NEXT);
  add_step(s, 1, s->wrote ? LAB_PLAIN : LAB_BAD, text, s->wrote ? "OK" : error.text);
  return true;
}

static bool late_write(struct scene *s) {
  struct page *page = s->page;
  char text[TEXT_MAX], gets[sizeof page->why + 32];
  atomic_store(&page->go, 1);
  dibs__word_wake(&page->go, 1, true);
  if (kill(s->pid, SIGCONT)) return dibs__lab_fail(s->lab, "cannot continue the holder: %s", strerror(errno));
  add_step(s, 0, LAB_PLAIN, "SIGCONT", "wakes, and continues");
  if (!await_holder(s, WROTE)) return false;
  bool done = page->answer == DIBS_OK, meant = !s->guard->promised;
  snprintf(text, sizeof text, "adds %d: writes %lld", ADDS_LATE, (long long)page->read + ADDS_LATE);
  if (done)
    snprintf(gets, sizeof gets, "OK; dibs_lease_alive() would have answered %d", page->alive);
  else
    snprintf(gets, sizeof gets, "%s: %s", dibs_status_name((dibs_status)page->answer), page->why);
  add_step(s, 0, done ? (meant ? LAB_EXPECTED : LAB_BAD) : LAB_GOOD, text, gets);
  return true;
}

static bool perform(struct scene *s) {
  int64_t value = 0;
  if (!start_holder(s) || !stop_holder(s) || !take_over(s) || !next_reads(s, &value)) return false;
  return s->guard->between ? late_write(s) && next_writes(s, value) : next_writes(s, value) && late_write(s);
}

static void end_scene(struct scene *s) {
  dibs_lease_free(s->lease);
  if (s->pid) {
    kill(s->pid, SIGKILL);
    while (waitpid(s->pid, NULL, 0) < 0 && errno == EINTR) continue;
  }
  if (s->page) {
    dibs_record_options options = {.size = sizeof options, .flags = DIBS_UNCHECKED};
    dibs_error error;
    if (!s->guard->service && dibs_record_remove(s->store, s->page->key, &options, NULL, &error) != DIBS_OK)
      dibs__lab_note(&s->lab->sheet, "The record %s could not be removed: %s", s->page->key, error.text);
  }
  dibs__lab_shared_drop(s->page, sizeof *s->page, s->fd);
}

static bool judge_writes(struct scene *s, struct lab_table *table) {
  struct lab_sheet *sheet = &s->lab->sheet;
  const struct guard plain = {.service = s->guard->service};
  dibs_error error = {0};
  int64_t value;
  if (read_value(s->store, &plain, s->page, NULL, &value, &error) != DIBS_OK)
    return dibs__lab_fail(s->lab, "%s", error.text);
  bool late = s->page->answer == DIBS_OK;
  int64_t should = s->base + (s->wrote ? ADDS_NEXT : 0) + (late ? ADDS_LATE : 0), lost = should - value;
  bool fine = lost == 0 && s->wrote && !late && s->page->answer == DIBS_STALE;
  enum lab_mood mood = fine ? LAB_GOOD : s->guard->promised || s->lab->strict ? LAB_BAD : LAB_EXPECTED;
  if (mood == LAB_BAD) sheet->broken = true;
  dibs__lab_put_sum(sheet, s->timeline, table, s->guard->title, late, value, should, mood);
  return true;
}

bool dibs__lab_pause(struct lab *lab) {
  struct lab_sheet *s = &lab->sheet;
  dibs_error error = {0};
  dibs_store *store;
  bool fine = true;
  s->experiment = "pause";
  if (strncmp(lab->uri, "memory:", 7) == 0)
    return dibs__lab_fail(lab, "a store in memory belongs to its process; pause needs a store that processes share");
  dibs__lab_title(
      s, "A holder that was stopped",
      "A process holds a lease, reads a number, and is stopped for longer than its ttl. Another process gets the lease "
      "and changes the number. Then the first process wakes and writes the result that it computed before.");
  dibs__lab_fact_number(s, "ttl_ms", "The ttl of the lease", (double)lab->ttl_ms, "ms");
  if (dibs_open(lab->uri, NULL, &store, &error) != DIBS_OK) return dibs__lab_fail(lab, "%s", error.text);
  struct lab_table *table = dibs__lab_table(s, "guards", "Guards", "", columns, sizeof columns / sizeof *columns);
  lab->steps = lab->gate ? GUARDS : GUARDS - 1;
  for (size_t i = 0; fine && i < lab->steps && !dibs__lab_ended(lab); i++) {
    struct scene scene = {.lab = lab, .guard = &guards[i], .fd = -1, .store = store};
    lab->step++;
    lab->run++;
    dibs__lab_report_progress(lab, guards[i].title, 2, 0, 0, 0, 0);
    scene.timeline = dibs__lab_timeline(s, guards[i].key, guards[i].title, guards[i].text,
                                        "the process that is stopped", "the next process");
    fine = (perform(&scene) && judge_writes(&scene, table)) || dibs__lab_ended(lab);
    end_scene(&scene);
  }
  dibs_close(store);
  return fine;
}
