/* SPDX-License-Identifier: MIT */
/* The launchers of the commands of a pool: see job.h. */
#include "cli/job.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { AGAIN_MS = 1000 };

int dibs__cli_slots_open(struct job_slots *slots, const struct cli_globals *g, const sigset_t *mask, char *const *argv,
                         size_t count) {
  *slots = (struct job_slots){.list = calloc(count, sizeof *slots->list)};
  if (slots->list == NULL) return dibs__cli_fail(g, CLI_FAILED, "NO_MEMORY", "out of memory");
  dibs__mutex_init(&slots->lock);
  int code = CLI_DONE;
  for (; slots->count < count && code == CLI_DONE; slots->count += code == CLI_DONE)
    code = dibs__cli_launcher_start(g, mask, argv, &slots->list[slots->count].launcher);
  return code;
}

void dibs__cli_slots_close(struct job_slots *slots) {
  if (slots->list == NULL) return;
  for (size_t i = 0; i < slots->count; i++) dibs__cli_launcher_end(&slots->list[i].launcher);
  free(slots->list);
  dibs__mutex_destroy(&slots->lock);
}

size_t dibs__cli_slot_take(struct job_slots *slots) {
  size_t i = 0;
  dibs__mutex_lock(&slots->lock);
  while (i + 1 < slots->count && slots->list[i].busy) i++; /* there are as many slots as threads */
  slots->list[i].busy = true;
  dibs__mutex_unlock(&slots->lock);
  return i;
}

void dibs__cli_slot_free(struct job_slots *slots, size_t slot) {
  dibs__mutex_lock(&slots->lock);
  slots->list[slot].busy = false;
  dibs__mutex_unlock(&slots->lock);
}

struct run dibs__cli_slot_run(const struct job_slots *slots, size_t slot, const struct cli_globals *g,
                              struct tail_pipe *tail, int end_fd) {
  return (struct run){.globals = g,
                      .signals = {.fd = -1},
                      .minder = {-1, -1},
                      .tty = -1,
                      .out = -1,
                      .err = -1,
                      .tail = tail,
                      .orphans = slots->list[slot].launcher.pid,
                      .end_fd = end_fd,
                      .alarm = dibs__cli_alarm_open()};
}

void dibs__cli_slots_pause(struct job_slots *slots, const struct cli_globals *g, const char *what, int error,
                           int end_fd) {
  struct pollfd ends = {.fd = end_fd, .events = POLLIN};
  if (atomic_exchange(&slots->start_error, error) != error)
    dibs__cli_note(g, "cannot start a command for %s: %s; it is given back", what, strerror(error));
  if (end_fd >= 0) (void)poll(&ends, 1, AGAIN_MS);
}

int dibs__cli_input_file(const char *bytes, size_t length) {
  int fd = memfd_create("dibs-input", MFD_CLOEXEC);
  for (size_t at = 0; fd >= 0 && at < length;) {
    ssize_t sent = write(fd, bytes + at, length - at);
    if (sent < 0 && errno == EINTR) continue;
    if (sent > 0) {
      at += (size_t)sent;
      continue;
    }
    int error = errno;
    close(fd);
    errno = error;
    return -1;
  }
  if (fd >= 0) lseek(fd, 0, SEEK_SET);
  return fd;
}
