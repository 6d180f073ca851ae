/* SPDX-License-Identifier: MIT */
/*
 * A storm on a topic: members are processes that join, leave, are stopped for longer than their ttl, and killed, while
 * the number of lanes changes.
 *
 * The command line and the processes are those of support/members.h.
 *
 * Each key has a record with the number of its effects so far.  The owner of a key's lane reads it under the lane's
 * lease, which seals it, and then writes number after number, under the lease, without looking whether it is still the
 * owner: so a member that was stopped writes late, and only the fence can refuse it.  In the end every number of every
 * key was written exactly once, in order, with fences that never decrease (lane_check.c).
 *
 * --unguarded writes without the lease: then the checker must find two owners, or the storm proves nothing (exit 0 when
 * it does).
 */
#include "dibs/lane.h"
#include "lane_check.h"
#include "support/members.h"

#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { KEYS = 40, LANES_FIRST = 8, CALM_MS = 60000 };

/* ---- A member ---- */

struct owned {
  struct owned *next;
  dibs_lane *lane;
  uint32_t number, lanes;
  uint64_t fence;
  bool sealed; /* the numbers of its keys are read */
  _Atomic bool ends;
  uint64_t at[KEYS]; /* the last number of each of its keys */
};

static struct {
  struct member_self self;
  pthread_mutex_t lock;
  struct owned *list;
} me = {.lock = PTHREAD_MUTEX_INITIALIZER};

static void gain(dibs_lane *lane, dibs_status status, void *user) {
  (void)status, (void)user;
  struct owned *o = calloc(1, sizeof *o);
  if (!o) die("gain", "no memory");
  o->lane = lane;
  o->number = dibs_lane_number(lane);
  o->lanes = dibs_lane_lanes(lane);
  o->fence = dibs_lane_fence(lane).value;
  member_say(&me.self, 'G', o->number, o->lanes, o->fence);
  pthread_mutex_lock(&me.lock);
  o->next = me.list;
  me.list = o;
  pthread_mutex_unlock(&me.lock);
}

static void lose(dibs_lane *lane, dibs_status status, void *user) {
  (void)status, (void)user;
  pthread_mutex_lock(&me.lock);
  for (struct owned *o = me.list; o; o = o->next)
    if (o->lane == lane) o->ends = true;
  pthread_mutex_unlock(&me.lock);
}

static void name_key(uint32_t key, char to[24]) {
  snprintf(to, 24, "key-%" PRIu32, key);
}

static bool has_key(const struct owned *o, uint32_t key) {
  char name[24];
  name_key(key, name);
  return dibs_lane_of(name, strlen(name), o->lanes) == o->number;
}

static dibs_status read_key(dibs_lease *lease, uint32_t key, uint64_t *number) {
  char name[24];
  name_key(key, name);
  return number_read(me.self.store, name, lease, number);
}

/* Writes the next number of the key.  false: the lane is not this member's any more. */
static bool write_next(struct owned *o, uint32_t key) {
  char name[24];
  uint64_t number = o->at[key] + 1;
  name_key(key, name);
  /* Here it is often stopped: in the middle of a commit it would stop the others of a SQLite file, too. */
  if (me.self.unguarded) dibs__nap_ms(40);
  member_say(&me.self, 'T', key, number, o->fence);
  dibs_status status = number_write(me.self.store, name, me.self.unguarded ? NULL : dibs_lane_lease(o->lane), number);
  if (status == DIBS_OK) {
    o->at[key] = number;
    member_say(&me.self, 'A', key, number, o->fence);
    return true;
  }
  o->sealed = false; /* whether it was written is to be read again */
  return status == DIBS_UNKNOWN || status == DIBS_UNAVAILABLE;
}

static bool seal(struct owned *o) {
  dibs_lease *lease = me.self.unguarded ? NULL : dibs_lane_lease(o->lane);
  for (uint32_t key = 0; key < KEYS; key++) {
    if (!has_key(o, key)) continue;
    dibs_status status = read_key(lease, key, &o->at[key]);
    if (status == DIBS_UNKNOWN || status == DIBS_UNAVAILABLE) return true;
    if (status != DIBS_OK) return false;
  }
  o->sealed = true;
  return true;
}

static void give_back(struct owned *o) {
  member_say(&me.self, 'D', o->number, o->lanes, o->fence);
  pthread_mutex_lock(&me.lock);
  struct owned **at = &me.list;
  while (*at != o) at = &(*at)->next;
  *at = o->next;
  dibs_lane_release(o->lane); /* under the lock: a later lane may have the same address */
  pthread_mutex_unlock(&me.lock);
  free(o);
}

/* One number of each key of the lane.  It does not look at `ends` in between: that makes late writes more likely. */
static void work_on(struct owned *o) {
  bool ours = !o->ends;
  if (ours && !o->sealed) ours = seal(o);
  for (uint32_t key = 0; key < KEYS && ours && o->sealed; key++) {
    if (!has_key(o, key)) continue;
    ours = write_next(o, key);
  }
  if (!ours) give_back(o);
}

static void run_member(dibs_lane_member *member) {
  while (!member_leaves() || dibs_lane_leave(member, 0, NULL) != DIBS_OK) {
    pthread_mutex_lock(&me.lock);
    struct owned *list[LANES_FIRST * 8];
    size_t count = 0;
    for (struct owned *o = me.list; o && count < LANES_FIRST * 8; o = o->next) list[count++] = o;
    pthread_mutex_unlock(&me.lock);
    for (size_t i = 0; i < count; i++) work_on(list[i]);
    dibs__nap_ms(2);
  }
}

static int be_member(int argc, char *argv[]) {
  dibs_error error;
  dibs_status status;
  member_begin(&me.self, argc, argv);
  dibs_lane_options o = {.size = sizeof o, .ttl_ms = me.self.ttl_ms, .on_gain = gain, .on_lose = lose};
  dibs_lane_member *member = NULL;
  while ((status = dibs_lane_join(me.self.store, "storm", &o, &member, &error)) != DIBS_OK) {
    if (status != DIBS_UNAVAILABLE && status != DIBS_UNKNOWN) die("joining", error.text);
    if (member_leaves()) return 0;
    dibs__nap_ms(50);
  }
  run_member(member);
  dibs_lane_member_free(member);
  dibs_close(me.self.store);
  return 0;
}

/* ---- The parent ---- */

static struct members storm;
static uint32_t resized;

static void resize(dibs_store *store) {
  static const uint32_t sizes[] = {LANES_FIRST, 5, 13, 16};
  dibs_status status = dibs_lane_resize(store, "storm", sizes[members_draw(4)], 0, NULL);
  resized += status == DIBS_OK || status == DIBS_TIMEOUT;
}

static void disturb(dibs_store *store) {
  struct member *p = &storm.at[members_draw(MEMBERS_AT_ONCE)];
  uint32_t what = storm.unguarded ? 10 : members_draw(12);
  if (p->pid == 0)
    member_start(&storm, p);
  else if (p->stopped || (storm.unguarded && members_stopped(&storm) >= 2)) /* others are to get its lanes */
    return;
  else if (what < 6)
    member_end(&storm, p, what < 3 ? SIGTERM : SIGKILL);
  else if (what < 11) /* unguarded: until others have surely got its lanes */
    member_stop(&storm, p, (storm.unguarded ? 2 : 1) * storm.ttl_ms + (int64_t)members_draw((uint32_t)storm.ttl_ms));
  else
    resize(store);
}

/* The numbers in the records. */
static void read_all(dibs_store *store, uint64_t last[KEYS]) {
  me.self.store = store;
  for (uint32_t key = 0; key < KEYS; key++) {
    dibs_status status;
    for (int i = 0; (status = read_key(NULL, key, &last[key])) != DIBS_OK && i < 100; i++) dibs__nap_ms(100);
    if (status != DIBS_OK) die("reading a record", dibs_status_name(status));
  }
}

/* When nobody is disturbed any more, every key goes on. */
static void wait_until_all_go_on(dibs_store *store) {
  uint64_t before[KEYS], now[KEYS];
  dibs__tick by = dibs__tick_add_ms(dibs__tick_now(), CALM_MS);
  read_all(store, before);
  for (bool all = false; !all;) {
    dibs__nap_ms(100);
    read_all(store, now);
    all = true;
    for (uint32_t key = 0; key < KEYS; key++) all = all && now[key] > before[key];
    if (!all && !dibs__tick_before(dibs__tick_now(), by)) die("in calm", "a key does not go on");
  }
}

static int judge(dibs_store *store) {
  uint64_t last[KEYS];
  struct lane_facts f;
  read_all(store, last);
  if (!lane_check(storm.folder, storm.started, last, KEYS, &f)) die("checking", "a log can't be read");
  printf("members %u (left %u, killed %u, stopped %u), changes of P %u, lanes gained %" PRIu64 ", effects %" PRIu64
         ", unanswered %" PRIu64 "\n",
         storm.started, storm.left, storm.killed, storm.stopped, resized, f.gains, f.acknowledged, f.unanswered);
  printf("twice %" PRIu64 ", missing %" PRIu64 ", fences that went back %" PRIu64 ", lanes with two owners %" PRIu64
         ", two numbers of lanes %" PRIu64 "\n",
         f.twice, f.missing, f.backward, f.overlaps, f.mixed);
  bool broken = f.twice > 0 || f.missing > 0 || f.backward > 0;
  if (f.acknowledged < KEYS || f.overlaps > 0 || f.mixed > 0) return 1;
  /* Each disturbed member may have left one write that was not answered. */
  if (!storm.unguarded && f.unanswered > (uint64_t)storm.killed + storm.stopped) return 1;
  return broken == storm.unguarded ? 0 : 1;
}

static int run_storm(void) {
  dibs_store *store = NULL;
  dibs_error error;
  if (dibs_open(storm.uri, NULL, &store, &error) != DIBS_OK) die("opening", error.text);
  dibs_lane_options o = {
      .size = sizeof o, .lanes = LANES_FIRST, .ttl_ms = storm.ttl_ms, .on_gain = gain, .on_lose = lose};
  dibs_lane_member *member = NULL;
  me.self.log = open("/dev/null", O_WRONLY | O_CLOEXEC);
  if (dibs_lane_join(store, "storm", &o, &member, &error) != DIBS_OK) die("creating the topic", error.text);
  dibs_lane_member_free(member);
  for (int i = 0; i < 3; i++) member_start(&storm, &storm.at[i]);
  dibs__tick until = dibs__tick_add_ms(dibs__tick_now(), storm.seconds * 1000);
  while (dibs__tick_before(dibs__tick_now(), until)) {
    dibs__nap_ms(50 + members_draw(300));
    members_continue(&storm, false);
    disturb(store);
  }
  members_continue(&storm, true);
  for (int i = 0; i < 2; i++)
    if (storm.at[i].pid == 0) member_start(&storm, &storm.at[i]);
  wait_until_all_go_on(store);
  for (size_t i = 0; i < MEMBERS_AT_ONCE; i++)
    if (storm.at[i].pid != 0) member_end(&storm, &storm.at[i], SIGTERM);
  int code = judge(store);
  dibs_close(store);
  return code;
}

int main(int argc, char *argv[]) {
  if (member_is_meant(argc, argv)) return be_member(argc, argv);
  members_begin(&storm, argc, argv);
  return members_end(&storm, run_storm());
}
