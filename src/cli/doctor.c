/* SPDX-License-Identifier: MIT */
/* `dibs doctor`: is the store fit to be used, and is this machine?  Each finding is a line; trouble says what to do. */
#include "cli/doctor.h"
#include "base/port.h"

#include <errno.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/pidfd.h>
#include <unistd.h>

enum {
  ROUNDS = 15,
  SLOW_US = 50000, /* a lease that costs more than this turns every short job into a long one */
  STEPS = 3
};

void dibs__cli_doctor_say(struct doctor *d, const char *check, const char *next, const char *format, ...) {
  char text[900];
  va_list args;
  va_start(args, format);
  vsnprintf(text, sizeof text, format, args);
  va_end(args);
  d->trouble = d->trouble || next != NULL;
  if (d->globals->json) {
    dibs__cli_json_open(&d->json, NULL, '{');
    dibs__cli_json_text(&d->json, "check", check);
    dibs__cli_json_bool(&d->json, "fine", next == NULL);
    dibs__cli_json_text(&d->json, "found", text);
    dibs__cli_json_text(&d->json, "next", next);
    dibs__cli_json_close(&d->json, '}');
    return;
  }
  printf("%s  %-8s ", next == NULL ? "fine   " : "TROUBLE", check);
  dibs__cli_put(stdout, text, 0);
  putchar('\n');
  if (next != NULL) printf("         %-8s -> %s\n", "", next);
}

static void check_machine(struct doctor *d) {
  char boot[37];
  if (dibs__boot_id(boot))
    dibs__cli_doctor_say(d, "boot", NULL, "boot id %s", boot);
  else
    dibs__cli_doctor_say(d, "boot", "mount /proc: the embedded store tells one boot from another by it",
                         "the kernel's boot id can't be read");
  int64_t offset_ns = dibs__boot_clock_offset_ns();
  dibs__tick first = dibs__tick_now(), second = dibs__tick_now();
  if (dibs__tick_before(second, first))
    dibs__cli_doctor_say(d, "clock", "look for a kernel or hypervisor update: leases are timed by this clock",
                         "the boot-time clock went backwards");
  else if (offset_ns != 0)
    dibs__cli_doctor_say(d, "clock", NULL, "boot-time clock, in a time namespace %lld s off: share no store outside it",
                         (long long)(offset_ns / 1000000000));
  else
    dibs__cli_doctor_say(d, "clock", NULL, "boot-time clock, which suspending the machine does not stop");
  int fd = pidfd_open(getpid(), 0);
  int error = errno;
  if (fd >= 0) close(fd);
  bool proc = access("/proc/self/stat", R_OK) == 0;
  if (fd >= 0 && proc)
    dibs__cli_doctor_say(d, "minder", NULL, "dibs run can end a command with all that it started");
  else
    dibs__cli_doctor_say(d, "minder", "mount /proc and allow pidfd_open: else dibs run ends the command's group only",
                         "%s", proc ? strerror(error) : "/proc can't be read");
}

static int count_row(const dibs_lease_info *info, void *user) {
  size_t *counts = user;
  counts[info->state == DIBS_WAITS || info->state == DIBS_OFFERED]++;
  return 0;
}

static void check_list(struct doctor *d, dibs_store *store) {
  size_t counts[2] = {0, 0};
  dibs_error error = {0};
  dibs_status status = dibs_list(store, NULL, count_row, counts, &error);
  if (status == DIBS_OK)
    dibs__cli_doctor_say(d, "leases", NULL, "%zu held, %zu waiting", counts[0], counts[1]);
  else
    dibs__cli_doctor_say(d, "leases", "see the message", "%s", error.text);
}

static int by_size(const void *a, const void *b) {
  int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
  return (x > y) - (x < y);
}

/* Microseconds of each step, added to us[step][round]. */
static dibs_status one_round(dibs_store *store, const char *name, int64_t us[STEPS][ROUNDS], size_t round,
                             dibs_error *error) {
  dibs_lease_options options = {.size = sizeof options, .flags = DIBS_NO_RENEW};
  dibs_lease *lease = NULL;
  dibs__tick at[STEPS + 1];
  at[0] = dibs__tick_now();
  dibs_status status = dibs_acquire(store, name, &options, &lease, error);
  at[1] = dibs__tick_now();
  if (status == DIBS_OK) status = dibs_renew(lease, 0, error);
  at[2] = dibs__tick_now();
  if (status == DIBS_OK) status = dibs_release(lease, error);
  at[3] = dibs__tick_now();
  dibs_lease_free(lease);
  for (size_t i = 0; i < STEPS; i++) us[i][round] = (at[i + 1].ns - at[i].ns) / 1000;
  return status;
}

static void check_lease(struct doctor *d, dibs_store *store) {
  static const char *const words[STEPS] = {"acquire", "renew", "release"};
  int64_t us[STEPS][ROUNDS];
  char id[33], name[64];
  dibs__cli_draw_id(id);
  snprintf(name, sizeof name, "dibs.doctor.%s", id);
  dibs_error error = {0};
  dibs_status status = DIBS_OK;
  for (size_t i = 0; i < ROUNDS && status == DIBS_OK; i++) status = one_round(store, name, us, i, &error);
  if (status != DIBS_OK) {
    dibs__cli_doctor_say(d, "lease", "see the message; without this nothing works", "%s", error.text);
    return;
  }
  int64_t total = 0;
  for (size_t i = 0; i < STEPS; i++) {
    qsort(us[i], ROUNDS, sizeof us[i][0], by_size);
    total += us[i][ROUNDS / 2];
    dibs__cli_doctor_say(d, words[i], NULL, "%lld us, at worst %lld us of %d", (long long)us[i][ROUNDS / 2],
                         (long long)us[i][ROUNDS - 1], ROUNDS);
  }
  if (total > SLOW_US)
    dibs__cli_doctor_say(d, "speed", "is the disk or the machine overloaded? see iostat and top",
                         "a lease costs %lld ms", (long long)(total / 1000));
}

const char *dibs__cli_doctor_next(dibs_status status) {
  switch (status) {
  case DIBS_INVALID:
    return "mend the URI: --store, or DIBS_STORE";
  case DIBS_DENIED:
    return "see the message; of a file: run as who owns it, or create it with ?mode=0660 for a group";
  case DIBS_UNSUPPORTED:
    return "see the message; of a file: choose a local file system";
  case DIBS_CORRUPT:
    return "see the message; of a file: move it away (it is left as it was) and let dibs create another";
  case DIBS_TOO_NEW:
    return "install the dibs that made it, or a later one";
  default:
    return "see the message, and try again";
  }
}

static void check_store(struct doctor *d) {
  const struct cli_globals *g = d->globals;
  dibs_store_options options = {.size = sizeof options, .owner = g->owner};
  dibs_error error = {0};
  dibs_store *store = NULL;
  dibs__tick before = dibs__tick_now();
  dibs_status status = dibs_open(g->store, &options, &store, &error);
  int64_t us = (dibs__tick_now().ns - before.ns) / 1000;
  if (status != DIBS_OK) {
    dibs__cli_doctor_say(d, "store", dibs__cli_doctor_next(status), "%s", error.text);
    return;
  }
  dibs__cli_doctor_say(d, "store", NULL, "%s, opened in %lld us", dibs_store_uri(store), (long long)us);
  check_lease(d, store);
  check_list(d, store);
  dibs__cli_doctor_tiers(d, store);
  /* After the lease: by now the file is open. */
  dibs__cli_doctor_file(d);
  dibs_close(store);
}

int dibs__cli_doctor(struct cli_call *call) {
  const struct cli_globals *g = &call->v.globals;
  struct doctor d = {.globals = g, .json = {.out = stdout}};
  if (g->json) {
    dibs__cli_json_open(&d.json, NULL, '{');
    dibs__cli_json_text(&d.json, "version", dibs_version());
    dibs__cli_json_open(&d.json, "checks", '[');
  } else {
    dibs__cli_doctor_say(&d, "dibs", NULL, "version %s", dibs_version());
  }
  check_machine(&d);
  dibs__cli_doctor_members(&d);
  check_store(&d);
  if (g->json) {
    dibs__cli_json_close(&d.json, ']');
    dibs__cli_json_bool(&d.json, "fine", !d.trouble);
    dibs__cli_json_close(&d.json, '}');
  }
  int code = dibs__cli_flush(g);
  if (code != CLI_DONE || !d.trouble) return code;
  return dibs__cli_fail(g, CLI_TROUBLE, "", "doctor found trouble; what to do stands behind each ->");
}
