/* SPDX-License-Identifier: MIT */
#include "support/members.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

_Noreturn void die(const char *what, const char *why) {
  fprintf(stderr, "%s: %s: %s\n", program_invocation_short_name, what, why);
  exit(2);
}

/* ---- The parent ---- */

static uint64_t seed;

uint32_t members_draw(uint32_t below) {
  seed = seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
  return (uint32_t)(seed >> 33) % below;
}

void members_begin(struct members *all, int argc, char *argv[]) {
  static char file[128];
  int at = 1;
  *all = (struct members){.seconds = 8, .ttl_ms = 1000};
  dibs__random(&seed, sizeof seed);
  for (; at < argc && strncmp(argv[at], "--", 2) == 0; at++) {
    if (strcmp(argv[at], "--unguarded") == 0)
      all->unguarded = true;
    else if (strcmp(argv[at], "--seconds") == 0 && at + 1 < argc)
      all->seconds = strtoll(argv[++at], NULL, 10);
    else if (strcmp(argv[at], "--ttl") == 0 && at + 1 < argc)
      all->ttl_ms = strtoll(argv[++at], NULL, 10);
    else if (strcmp(argv[at], "--seed") == 0 && at + 1 < argc)
      seed = strtoull(argv[++at], NULL, 10);
    else
      break;
  }
  if (at + 1 != argc) die("usage", "[--seconds N] [--seed N] [--ttl MS] [--unguarded] URI");
  snprintf(all->folder, sizeof all->folder, "/tmp/dibs-members.XXXXXX");
  if (!mkdtemp(all->folder)) die(all->folder, strerror(errno));
  snprintf(file, sizeof file, "sqlite:%s/storm.db", all->folder);
  all->uri = strcmp(argv[at], "sqlite:") == 0 ? file : argv[at];
  printf("seed %" PRIu64 "\n", seed);
  fflush(stdout);
}

int members_end(struct members *all, int code) {
  char command[96];
  snprintf(command, sizeof command, "rm -rf %s", all->folder);
  if (code == 0 && system(command) != 0) die(all->folder, "can't be removed");
  if (code != 0) printf("FAILED: what the members wrote is in %s\n", all->folder);
  return code;
}

void member_start(struct members *all, struct member *p) {
  char path[256], self[] = "/proc/self/exe", member[] = "member", unguarded[] = "unguarded", uri[1024], ttl[24];
  if (all->started == MEMBERS_MAX) return;
  *p = (struct member){.nth = all->started++};
  snprintf(path, sizeof path, "%s/%u", all->folder, p->nth);
  snprintf(uri, sizeof uri, "%s", all->uri);
  snprintf(ttl, sizeof ttl, "%" PRId64, all->ttl_ms);
  char *argv[] = {program_invocation_name, member, uri, path, ttl, all->unguarded ? unguarded : NULL, NULL};
  int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600); /* it is there even if the member is killed at once */
  if (fd < 0 || posix_spawn(&p->pid, self, NULL, NULL, argv, environ) != 0) die("starting", strerror(errno));
  close(fd);
}

/* Before the signal: what the member did until then counts, and what it had then may overlap. */
static void note_disturbed(const struct members *all, const struct member *p) {
  char path[256];
  snprintf(path, sizeof path, "%s/%u", all->folder, p->nth);
  int fd = open(path, O_WRONLY | O_APPEND | O_CLOEXEC);
  if (fd < 0 || write(fd, "P 0 0 0 0\n", 10) != 10) die(path, strerror(errno));
  close(fd);
}

void member_end(struct members *all, struct member *p, int signo) {
  int status = 0;
  if (signo == SIGKILL) {
    note_disturbed(all, p);
    all->killed++;
  } else {
    all->left++;
  }
  kill(p->pid, signo);
  if (p->stopped) kill(p->pid, SIGCONT);
  while (waitpid(p->pid, &status, 0) < 0 && errno == EINTR) continue;
  if (WIFEXITED(status) && WEXITSTATUS(status) != 0) die("a member", "it ended with an error");
  /* A member that had not yet begun ends by SIGTERM. */
  if (WIFSIGNALED(status) && WTERMSIG(status) != signo) die("a member", "it crashed");
  p->pid = 0;
}

void member_stop(struct members *all, struct member *p, int64_t ms) {
  note_disturbed(all, p);
  all->stopped++;
  kill(p->pid, SIGSTOP);
  p->stopped = true;
  p->until = dibs__tick_add_ms(dibs__tick_now(), ms);
}

uint32_t members_stopped(const struct members *all) {
  uint32_t stopped = 0;
  for (size_t i = 0; i < MEMBERS_AT_ONCE; i++) stopped += all->at[i].stopped;
  return stopped;
}

void members_continue(struct members *all, bool every) {
  for (size_t i = 0; i < MEMBERS_AT_ONCE; i++) {
    struct member *p = &all->at[i];
    if (p->pid == 0 || !p->stopped || (!every && dibs__tick_before(dibs__tick_now(), p->until))) continue;
    kill(p->pid, SIGCONT);
    p->stopped = false;
  }
}

/* ---- A member ---- */

static volatile sig_atomic_t leaves;

static void leave(int signo) {
  (void)signo;
  leaves = 1;
}

bool member_leaves(void) {
  return leaves != 0;
}

bool member_is_meant(int argc, char *argv[]) {
  return argc > 1 && strcmp(argv[1], "member") == 0;
}

void member_begin(struct member_self *self, int argc, char *argv[]) {
  dibs_error error;
  dibs_status status;
  if (argc < 5) die("member", "usage");
  prctl(PR_SET_PDEATHSIG, SIGKILL); /* if the storm gives up */
  struct sigaction on_term = {.sa_handler = leave};
  sigaction(SIGTERM, &on_term, NULL);
  self->log = open(argv[3], O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
  self->ttl_ms = strtoll(argv[4], NULL, 10);
  self->unguarded = argc > 5;
  if (self->log < 0) die(argv[3], strerror(errno));
  while ((status = dibs_open(argv[2], NULL, &self->store, &error)) == DIBS_UNAVAILABLE && !leaves) dibs__nap_ms(50);
  if (status != DIBS_OK && leaves) exit(0);
  if (status != DIBS_OK) die("opening", error.text);
}

void member_say(const struct member_self *self, char what, uint64_t a, uint64_t b, uint64_t c) {
  char line[128];
  int length = snprintf(line, sizeof line, "%c %" PRIu64 " %" PRIu64 " %" PRIu64 " %" PRId64 "\n", what, a, b, c,
                        dibs__tick_now().ns);
  if (write(self->log, line, (size_t)length) != length) die("writing the log", strerror(errno));
}

/* ---- Both ---- */

dibs_status number_read(dibs_store *store, const char *name, dibs_lease *lease, uint64_t *number) {
  dibs_record_options options = {.size = sizeof options, .lease = lease};
  dibs_record *record = NULL;
  dibs_status status = dibs_record_get(store, name, &options, &record, NULL);
  *number = status == DIBS_OK && record->values[0].data ? strtoull(record->values[0].data, NULL, 10) : 0;
  if (status == DIBS_OK) dibs_record_free(record);
  return status == DIBS_NOT_FOUND ? DIBS_OK : status;
}

dibs_status number_write(dibs_store *store, const char *name, dibs_lease *lease, uint64_t number) {
  char text[24];
  int length = snprintf(text, sizeof text, "%" PRIu64, number);
  dibs_value value = {text, (size_t)length};
  dibs_record_options options = {.size = sizeof options, .lease = lease, .flags = lease ? 0 : DIBS_UNCHECKED};
  return dibs_record_put(store, name, &value, 1, &options, NULL, NULL);
}
