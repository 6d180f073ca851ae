/* SPDX-License-Identifier: MIT */
/*
 * A storm on a topic: members are processes that join, leave, are stopped for longer than their ttl, and killed, while
 * the number of lanes changes.
 *
 *   lane_storm [--seconds N] [--seed N] [--unguarded] URI     "sqlite:" is a file of its own
 *   lane_storm member URI FILE [unguarded]                    a member, which the first form starts
 *
 * Each key has a record with the number of its effects so far.  The owner of a key's lane reads it under the lane's
 * lease, which seals it, and then writes number after number, under the lease, without looking whether it is still the
 * owner: so a member that was stopped writes late, and only the fence can refuse it.  In the end every number of every
 * key was written exactly once, in order, with fences that never decrease (lane_check.c).
 *
 * --unguarded writes without the lease: then the checker must find two owners, or the storm proves nothing (exit 0 when
 * it does).
 */
#include "base/port.h"
#include "dibs/lane.h"
#include "lane_check.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { TTL_MS = 1000, KEYS = 40, RUNNING_MAX = 5, MEMBERS_MAX = 4096, LANES_FIRST = 8, CALM_MS = 60000 };

static _Noreturn void die(const char *what, const char *why) {
  fprintf(stderr, "lane_storm: %s: %s\n", what, why);
  exit(2);
}

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
  dibs_store *store;
  int log;
  bool unguarded;
  pthread_mutex_t lock;
  struct owned *list;
  volatile sig_atomic_t leaves;
} me = {.lock = PTHREAD_MUTEX_INITIALIZER};

static void say(char what, uint64_t a, uint64_t b, uint64_t c) {
  char line[128];
  int length = snprintf(line, sizeof line, "%c %" PRIu64 " %" PRIu64 " %" PRIu64 " %" PRId64 "\n", what, a, b, c,
                        dibs__tick_now().ns);
  if (write(me.log, line, (size_t)length) != length) die("writing the log", strerror(errno));
}

static void gain(dibs_lane *lane, dibs_status status, void *user) {
  (void)status, (void)user;
  struct owned *o = calloc(1, sizeof *o);
  if (!o) die("gain", "no memory");
  o->lane = lane;
  o->number = dibs_lane_number(lane);
  o->lanes = dibs_lane_lanes(lane);
  o->fence = dibs_lane_fence(lane).value;
  say('G', o->number, o->lanes, o->fence);
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
  dibs_record_options options = {.size = sizeof options, .lease = lease};
  dibs_record *record = NULL;
  dibs_status status = dibs_record_get(me.store, name, &options, &record, NULL);
  *number = status == DIBS_OK && record->values[0].data ? strtoull(record->values[0].data, NULL, 10) : 0;
  if (status == DIBS_OK) dibs_record_free(record);
  return status == DIBS_NOT_FOUND ? DIBS_OK : status;
}

/* Writes the next number of the key.  false: the lane is not this member's any more. */
static bool write_next(struct owned *o, uint32_t key) {
  char name[24], text[24];
  name_key(key, name);
  uint64_t number = o->at[key] + 1;
  int length = snprintf(text, sizeof text, "%" PRIu64, number);
  dibs_value value = {text, (size_t)length};
  dibs_record_options options = {.size = sizeof options, .lease = dibs_lane_lease(o->lane)};
  if (me.unguarded) options = (dibs_record_options){.size = sizeof options, .flags = DIBS_UNCHECKED};
  say('T', key, number, o->fence);
  dibs_status status = dibs_record_put(me.store, name, &value, 1, &options, NULL, NULL);
  if (status == DIBS_OK) {
    o->at[key] = number;
    say('A', key, number, o->fence);
    return true;
  }
  o->sealed = false; /* whether it was written is to be read again */
  return status == DIBS_UNKNOWN || status == DIBS_UNAVAILABLE;
}

static bool seal(struct owned *o) {
  dibs_lease *lease = me.unguarded ? NULL : dibs_lane_lease(o->lane);
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
  say('D', o->number, o->lanes, o->fence);
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

static void stop(int signo) {
  (void)signo;
  me.leaves = 1;
}

static void run_member(dibs_lane_member *member) {
  while (!me.leaves || dibs_lane_leave(member, 0, NULL) != DIBS_OK) {
    pthread_mutex_lock(&me.lock);
    struct owned *list[LANES_FIRST * 8];
    size_t count = 0;
    for (struct owned *o = me.list; o && count < LANES_FIRST * 8; o = o->next) list[count++] = o;
    pthread_mutex_unlock(&me.lock);
    for (size_t i = 0; i < count; i++) work_on(list[i]);
    /* Without pauses it is nearly always stopped in the middle of its work. */
    if (!me.unguarded || count == 0) dibs__nap_ms(2);
  }
}

static int be_member(int argc, char *argv[]) {
  dibs_error error;
  if (argc < 4) die("member", "usage");
  me.log = open(argv[3], O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
  me.unguarded = argc > 4;
  if (me.log < 0) die(argv[3], strerror(errno));
  struct sigaction on_term = {.sa_handler = stop};
  sigaction(SIGTERM, &on_term, NULL);
  dibs_status status;
  while ((status = dibs_open(argv[2], NULL, &me.store, &error)) == DIBS_UNAVAILABLE) dibs__nap_ms(50);
  if (status != DIBS_OK) die("opening", error.text);
  dibs_lane_options o = {.size = sizeof o, .ttl_ms = TTL_MS, .on_gain = gain, .on_lose = lose};
  dibs_lane_member *member = NULL;
  while ((status = dibs_lane_join(me.store, "storm", &o, &member, &error)) != DIBS_OK) {
    if (status != DIBS_UNAVAILABLE && status != DIBS_UNKNOWN) die("joining", error.text);
    if (me.leaves) return 0;
    dibs__nap_ms(50);
  }
  run_member(member);
  dibs_lane_member_free(member);
  dibs_close(me.store);
  return 0;
}

/* ---- The parent ---- */

struct process {
  pid_t pid; /* 0: none */
  uint32_t nth;
  bool stopped;
  dibs__tick until; /* it is continued then */
};

static struct {
  const char *self, *uri;
  char folder[64];
  bool unguarded;
  uint64_t random;
  uint32_t started, killed, stopped, left, resized;
  struct process running[RUNNING_MAX];
} storm;

static uint32_t draw(uint32_t below) {
  storm.random = storm.random * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
  return (uint32_t)(storm.random >> 33) % below;
}

static void start(struct process *p) {
  char path[256], member[] = "member", unguarded[] = "unguarded", uri[1024];
  if (storm.started == MEMBERS_MAX) return;
  *p = (struct process){.nth = storm.started++};
  snprintf(path, sizeof path, "%s/%u", storm.folder, p->nth);
  snprintf(uri, sizeof uri, "%s", storm.uri);
  char *argv[] = {(char *)(uintptr_t)storm.self, member, uri, path, storm.unguarded ? unguarded : NULL, NULL};
  int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
  if (fd < 0 || posix_spawn(&p->pid, storm.self, NULL, NULL, argv, environ) != 0) die("starting", strerror(errno));
  close(fd);
}

/* Before the signal: what the member did until then counts, and what it had then may overlap. */
static void note_disturbed(const struct process *p) {
  char path[256];
  snprintf(path, sizeof path, "%s/%u", storm.folder, p->nth);
  int fd = open(path, O_WRONLY | O_APPEND | O_CLOEXEC);
  if (fd < 0 || write(fd, "P\n", 2) != 2) die(path, strerror(errno));
  close(fd);
}

static void wait_for(struct process *p) {
  int status = 0;
  while (waitpid(p->pid, &status, 0) < 0 && errno == EINTR) continue;
  if (WIFEXITED(status) && WEXITSTATUS(status) != 0) die("a member", "it ended with an error");
  if (WIFSIGNALED(status) && WTERMSIG(status) != SIGKILL) die("a member", "it crashed");
  p->pid = 0;
}

static void end_process(struct process *p, int signo) {
  if (signo == SIGKILL) note_disturbed(p);
  kill(p->pid, signo);
  if (p->stopped) kill(p->pid, SIGCONT);
  wait_for(p);
}

static void resize(dibs_store *store) {
  static const uint32_t sizes[] = {LANES_FIRST, 5, 13, 16};
  dibs_status status = dibs_lane_resize(store, "storm", sizes[draw(4)], 0, NULL);
  storm.resized += status == DIBS_OK || status == DIBS_TIMEOUT;
}

static void disturb(dibs_store *store) {
  struct process *p = &storm.running[draw(RUNNING_MAX)];
  uint32_t what = storm.unguarded ? 10 : draw(12);
  if (p->pid == 0) {
    start(p);
  } else if (p->stopped) {
    return;
  } else if (what < 3) {
    storm.left++;
    end_process(p, SIGTERM);
  } else if (what < 6) {
    storm.killed++;
    end_process(p, SIGKILL);
  } else if (what < 11) {
    storm.stopped++;
    note_disturbed(p);
    kill(p->pid, SIGSTOP);
    p->stopped = true;
    /* Unguarded: until others have surely got its lanes. */
    p->until = dibs__tick_add_ms(dibs__tick_now(), (storm.unguarded ? 2 : 1) * TTL_MS + (int64_t)draw(TTL_MS));
  } else {
    resize(store);
  }
}

static void continue_stopped(bool all) {
  for (size_t i = 0; i < RUNNING_MAX; i++) {
    struct process *p = &storm.running[i];
    if (p->pid == 0 || !p->stopped || (!all && dibs__tick_before(dibs__tick_now(), p->until))) continue;
    kill(p->pid, SIGCONT);
    p->stopped = false;
  }
}

/* The numbers in the records. */
static void read_all(dibs_store *store, uint64_t last[KEYS]) {
  me.store = store;
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
         storm.started, storm.left, storm.killed, storm.stopped, storm.resized, f.gains, f.acknowledged, f.unanswered);
  printf("twice %" PRIu64 ", missing %" PRIu64 ", fences that went back %" PRIu64 ", lanes with two owners %" PRIu64
         ", two numbers of lanes %" PRIu64 "\n",
         f.twice, f.missing, f.backward, f.overlaps, f.mixed);
  bool broken = f.twice > 0 || f.missing > 0 || f.backward > 0;
  if (f.acknowledged < KEYS || f.overlaps > 0 || f.mixed > 0) return 1;
  /* Each disturbed member may have left one write that was not answered. */
  if (!storm.unguarded && f.unanswered > (uint64_t)storm.killed + storm.stopped) return 1;
  return broken == storm.unguarded ? 0 : 1;
}

static int run_storm(int64_t seconds) {
  dibs_store *store = NULL;
  dibs_error error;
  if (dibs_open(storm.uri, NULL, &store, &error) != DIBS_OK) die("opening", error.text);
  dibs_lane_options o = {.size = sizeof o, .lanes = LANES_FIRST, .ttl_ms = TTL_MS, .on_gain = gain, .on_lose = lose};
  dibs_lane_member *member = NULL;
  me.log = open("/dev/null", O_WRONLY | O_CLOEXEC);
  if (dibs_lane_join(store, "storm", &o, &member, &error) != DIBS_OK) die("creating the topic", error.text);
  dibs_lane_member_free(member);
  for (int i = 0; i < 3; i++) start(&storm.running[i]);
  dibs__tick until = dibs__tick_add_ms(dibs__tick_now(), seconds * 1000);
  while (dibs__tick_before(dibs__tick_now(), until)) {
    dibs__nap_ms(50 + draw(300));
    continue_stopped(false);
    disturb(store);
  }
  continue_stopped(true);
  for (int i = 0; i < 2; i++)
    if (storm.running[i].pid == 0) start(&storm.running[i]);
  wait_until_all_go_on(store);
  for (size_t i = 0; i < RUNNING_MAX; i++)
    if (storm.running[i].pid != 0) end_process(&storm.running[i], SIGTERM);
  int code = judge(store);
  dibs_close(store);
  return code;
}

int main(int argc, char *argv[]) {
  char file[128], self[256];
  int64_t seconds = 8;
  if (argc > 1 && strcmp(argv[1], "member") == 0) return be_member(argc, argv);
  ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1);
  if (length < 0) die("self", strerror(errno));
  self[length] = '\0';
  storm.self = self;
  dibs__random(&storm.random, sizeof storm.random);
  int at = 1;
  for (; at < argc && strncmp(argv[at], "--", 2) == 0; at++) {
    if (strcmp(argv[at], "--unguarded") == 0)
      storm.unguarded = true;
    else if (strcmp(argv[at], "--seconds") == 0 && at + 1 < argc)
      seconds = strtoll(argv[++at], NULL, 10);
    else if (strcmp(argv[at], "--seed") == 0 && at + 1 < argc)
      storm.random = strtoull(argv[++at], NULL, 10);
  }
  if (at + 1 != argc) die("usage", "lane_storm [--seconds N] [--seed N] [--unguarded] URI");
  snprintf(storm.folder, sizeof storm.folder, "/tmp/dibs-lanes.XXXXXX");
  if (!mkdtemp(storm.folder)) die(storm.folder, strerror(errno));
  snprintf(file, sizeof file, "sqlite:%s/storm.db", storm.folder);
  storm.uri = strcmp(argv[at], "sqlite:") == 0 ? file : argv[at];
  printf("seed %" PRIu64 "\n", storm.random);
  fflush(stdout);
  int code = run_storm(seconds);
  char command[96];
  snprintf(command, sizeof command, "rm -rf %s", storm.folder);
  if (code == 0 && system(command) != 0) die(storm.folder, "can't be removed");
  if (code != 0) printf("FAILED: the logs are in %s\n", storm.folder);
  return code;
}
