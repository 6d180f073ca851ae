/* SPDX-License-Identifier: MIT */
/* The output of a command on its way: see cli.h. */
#include "cli/cli.h"
#include "cli/run.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
  AHEAD = 65536,     /* read before it is written: a pipe's worth */
  READ_ONCE = 16384, /* in one call */
  LAST_READS = 128   /* after the command's end; any process that still writes then was left running by it */
};

int dibs__cli_tee_open(struct tee *tee, const struct cli_globals *g, int ends[CAPTURED_STREAMS]) {
  *tee = (struct tee){.stream = {{.from = -1, .to = STDOUT_FILENO}, {.from = -1, .to = STDERR_FILENO}}};
  dibs__cli_captured_begin(&tee->captured);
  ends[CAPTURED_OUT] = ends[CAPTURED_ERR] = -1;
  for (int i = 0; i < CAPTURED_STREAMS; i++) {
    int both[2];
    if (pipe2(both, O_CLOEXEC) != 0)
      return dibs__cli_fail(g, CLI_FAILED, "", "cannot create a pipe for the command's output: %s", strerror(errno));
    fcntl(both[0], F_SETFL, O_NONBLOCK);
    tee->stream[i].from = both[0];
    ends[i] = both[1];
  }
  return CLI_DONE;
}

static void end_reading(struct tee_stream *s) {
  if (s->from >= 0) close(s->from);
  s->from = -1;
}

void dibs__cli_tee_close(struct tee *tee) {
  for (int i = 0; i < CAPTURED_STREAMS; i++) {
    end_reading(&tee->stream[i]);
    free(tee->stream[i].pending);
    tee->stream[i].pending = NULL;
  }
  dibs__cli_captured_free(&tee->captured);
}

/* ---- Reading ---- */

/* false: out of memory; the output is kept, but not passed on. */
static bool append(struct tee_stream *s, const char *bytes, size_t len) {
  if (s->at > 0) {
    memmove(s->pending, s->pending + s->at, s->len);
    s->at = 0;
  }
  if (s->len + len > s->capacity) {
    size_t capacity = s->capacity * 2 + len;
    char *pending = realloc(s->pending, capacity);
    if (pending == NULL) return false;
    s->pending = pending;
    s->capacity = capacity;
  }
  memcpy(s->pending + s->len, bytes, len);
  s->len += len;
  return true;
}

/* false: there is no more output for now, or at all. */
static bool read_some(struct tee *tee, int nr) {
  struct tee_stream *s = &tee->stream[nr];
  char bytes[READ_ONCE];
  ssize_t got;
  if (s->from < 0) return false;
  do got = read(s->from, bytes, sizeof bytes);
  while (got < 0 && errno == EINTR);
  if (got < 0 && errno == EAGAIN) return false;
  if (got <= 0) {
    end_reading(s);
    return false;
  }
  dibs__cli_last_add(&tee->tail, bytes, (size_t)got);
  if (!tee->tail_only) dibs__cli_captured_add(&tee->captured, nr, bytes, (size_t)got);
  if (s->broken == 0 && !append(s, bytes, (size_t)got)) s->broken = ENOMEM;
  return true;
}

/* ---- Writing ---- */

static void write_some(struct tee_stream *s, size_t most) {
  ssize_t sent = dibs__cli_write_now(s->to, s->pending + s->at, s->len < most ? s->len : most);
  if (sent < 0 && errno == EAGAIN) return;
  if (sent < 0) {
    s->broken = errno;
    s->len = 0;
    return;
  }
  s->at += (size_t)sent;
  s->len -= (size_t)sent;
}

void dibs__cli_tee_request(const struct tee *tee, struct pollfd polls[TEE_POLLS]) {
  for (int i = 0; i < CAPTURED_STREAMS; i++) {
    const struct tee_stream *s = &tee->stream[i];
    polls[2 * i] = (struct pollfd){.fd = s->len < AHEAD ? s->from : -1, .events = POLLIN};
    polls[2 * i + 1] = (struct pollfd){.fd = s->len > 0 ? s->to : -1, .events = POLLOUT};
  }
}

void dibs__cli_tee_step(struct tee *tee, const struct pollfd polls[TEE_POLLS]) {
  for (int i = 0; i < CAPTURED_STREAMS; i++) {
    struct tee_stream *s = &tee->stream[i];
    if (polls[2 * i].revents != 0) read_some(tee, i);
    /* A writable pipe takes so much; if both streams are one pipe, the second write may find it full. */
    if (polls[2 * i + 1].revents != 0 && s->len > 0) write_some(s, PIPE_BUF);
  }
}

void dibs__cli_tee_finish(struct tee *tee) {
  for (int i = 0; i < CAPTURED_STREAMS; i++)
    for (int reads = 0; reads < LAST_READS && read_some(tee, i); reads++) continue;
}

int dibs__cli_tee_flush(struct tee *tee, const struct cli_globals *g) {
  int error = 0;
  for (int i = 0; i < CAPTURED_STREAMS; i++) {
    struct tee_stream *s = &tee->stream[i];
    while (s->len > 0) {
      struct pollfd ready = {.fd = s->to, .events = POLLOUT};
      if (poll(&ready, 1, -1) < 0 && errno != EINTR) break;
      write_some(s, PIPE_BUF);
    }
    if (s->broken != 0 && s->broken != EPIPE && s->broken != EBADF) error = s->broken;
  }
  if (error == 0) return CLI_DONE;
  return dibs__cli_fail(g, CLI_FAILED, "", "cannot pass on the command's output: %s", strerror(error));
}

/* ---- The last bytes ---- */

void dibs__cli_last_add(struct cli_last *tail, const char *bytes, size_t len) {
  for (size_t i = len > sizeof tail->bytes ? len - sizeof tail->bytes : 0; i < len; i++)
    tail->bytes[(tail->seen + i) % sizeof tail->bytes] = bytes[i];
  tail->seen += len;
}

size_t dibs__cli_last_read(const struct cli_last *tail, char to[DIBS__RUN_OUTPUT_MAX]) {
  size_t len = tail->seen < sizeof tail->bytes ? (size_t)tail->seen : sizeof tail->bytes;
  for (size_t i = 0; i < len; i++) to[i] = tail->bytes[(tail->seen - len + i) % sizeof tail->bytes];
  return len;
}
