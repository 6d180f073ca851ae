/* SPDX-License-Identifier: MIT */
/* `dibs once`: see below. */
#include "cli/cli.h"
#include "cli/run.h"
#include "guard/guard.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/*
 * `dibs once KEY -- CMD...`: runs CMD once in the fleet, and repeats its result to later callers: its output, on the
 * same streams, and its status.
 *
 * A command has a result if it ended by itself, with any status.  If it was killed, or if a signal asked dibs to end
 * it, it has none, as after a crash, and the next call runs it again.
 */

/* A shell's status for a command that signal N killed: 128 + N. */
enum { SHELL_SIGNAL_FIRST = 129, SHELL_SIGNAL_LAST = 192 };

struct once {
  struct run run; /* first */
  const struct cli_values *values;
  const char *key;
  struct tee tee;
  int64_t keep_ms;
  struct dibs__once_answer answer;
};

/* ---- Repeating a result ---- */

static bool write_all(int fd, const char *bytes, size_t len) {
  while (len > 0) {
    ssize_t sent = write(fd, bytes, len);
    if (sent < 0 && errno == EAGAIN) {
      struct pollfd ready = {.fd = fd, .events = POLLOUT};
      (void)poll(&ready, 1, -1);
      continue;
    }
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0) return false;
    bytes += sent;
    len -= (size_t)sent;
  }
  return true;
}

struct report {
  int code;
  const char *status;
  uint64_t fence; /* 0: none */
  int64_t took_ms, age_ms, left_ms;
  uint64_t written[CAPTURED_STREAMS], left_out;
  bool captured;
};

static void report_json(const struct once *once, const struct report *r) {
  struct cli_line line;
  if (!once->run.globals->json || !dibs__cli_line_open(&line)) return;
  struct dibs__json j = {.out = line.out};
  dibs__json_open(&j, NULL, '{');
  dibs__json_text(&j, "command", "once");
  dibs__json_int(&j, "exit", r->code);
  dibs__json_text(&j, "status", r->status);
  dibs__json_text(&j, "key", once->key);
  dibs__json_bool(&j, "kept", r->captured);
  if (r->fence != 0) dibs__json_uint(&j, "fence", r->fence);
  dibs__json_int(&j, "duration_ms", r->took_ms);
  dibs__json_int(&j, "age_ms", r->age_ms);
  dibs__json_int(&j, "left_ms", r->left_ms);
  dibs__json_uint(&j, "stdout", r->written[CAPTURED_OUT]);
  dibs__json_uint(&j, "stderr", r->written[CAPTURED_ERR]);
  dibs__json_uint(&j, "left_out", r->left_out);
  dibs__json_close(&j, '}');
  (void)dibs__cli_line_send(&line, STDERR_FILENO, CLI_ERROR_MS);
}

static void note_left_out(const struct once *once, uint64_t left_out, const char *when) {
  if (left_out == 0) return;
  dibs__cli_note(once->run.globals, "'%s' wrote more than the %d bytes that can be kept; the last %" PRIu64 " bytes %s",
                 once->key, DIBS_RECORD_MAX, left_out, when);
}

static int fail_foreign_result(const struct once *once) {
  return dibs__cli_fail(
      once->run.globals, CLI_FAILED, "",
      "cannot repeat the result of '%s', because dibs once did not store it; use another key, or --forget", once->key);
}

static int replay(const struct once *once) {
  const struct cli_globals *g = once->run.globals;
  struct captured_result result;
  if (!dibs__cli_captured_read(once->answer.data, once->answer.length, &result)) return fail_foreign_result(once);
  size_t at = 0, len;
  int stream;
  const char *bytes;
  bool gone[CAPTURED_STREAMS] = {false, false};
  while (dibs__cli_captured_next(&result, &at, &stream, &bytes, &len)) {
    if (gone[stream] || write_all(stream == CAPTURED_OUT ? STDOUT_FILENO : STDERR_FILENO, bytes, len)) continue;
    if (errno != EPIPE && errno != EBADF)
      return dibs__cli_fail(g, CLI_FAILED, "", "cannot write the output of '%s': %s", once->key, strerror(errno));
    gone[stream] = true; /* it has no reader */
  }
  note_left_out(once, result.left_out, "are missing");
  report_json(once, &(struct report){.code = result.status,
                                     .status = "REPLAY",
                                     .took_ms = result.took_ms,
                                     .age_ms = once->answer.age_ms,
                                     .left_ms = once->answer.left_ms,
                                     .written = {result.written[CAPTURED_OUT], result.written[CAPTURED_ERR]},
                                     .left_out = result.left_out,
                                     .captured = true});
  return result.status;
}

/* It failed, and --retry runs it again. */
static bool should_retry(const struct once *once) {
  struct captured_result result;
  return once->values->retry && dibs__cli_captured_read(once->answer.data, once->answer.length, &result) &&
         result.status != 0;
}

static void drop_answer(struct once *once) {
  free(once->answer.data);
  once->answer = (struct dibs__once_answer){0};
}

/* ---- The outcome ---- */

/* The reason why there is no result; NULL: there is one. */
static const char *no_answer(const struct once *once) {
  int status = once->run.status;
  int code = dibs__cli_run_code(status);
  if (WIFSIGNALED(status)) return "a signal killed it";
  if (code >= SHELL_SIGNAL_FIRST && code <= SHELL_SIGNAL_LAST) return "a signal killed a process in it";
  if (once->run.ended_by != 0 && code != 0) return "a signal asked it to end";
  if (once->values->retry && code != 0) return "it failed";
  return NULL;
}

static int store_result(struct once *once, int code, struct report *r) {
  const struct cli_globals *g = once->run.globals;
  size_t length = 0;
  dibs_error error = {0};
  dibs_status status = DIBS_NO_MEMORY;
  char *whole = dibs__cli_captured_whole(&once->tee.captured, code, r->took_ms, &length);
  if (whole != NULL)
    status = dibs__once_store(once->run.store, once->key, once->run.lease, once->keep_ms, whole, length, &once->answer,
                              &error);
  free(whole);
  r->captured = status == DIBS_OK;
  r->left_ms = once->keep_ms;
  if (status == DIBS_OK) return code;
  return dibs__cli_fail(g, dibs__cli_exit_of(status), dibs_status_name(status),
                        "'%s' ran and exited with %d, but its result %s: %s", once->key, code,
                        status == DIBS_UNKNOWN ? "may not be stored" : "is not stored",
                        error.text[0] != '\0' ? error.text : dibs_status_text(status));
}

static int finish_once(struct once *once) {
  struct run *run = &once->run;
  const struct cli_globals *g = run->globals;
  struct report r = {.status = "OK",
                     .fence = dibs_lease_fence(run->lease).value,
                     .took_ms = dibs__tick_left_ms(run->began, dibs__tick_now())};
  bool ran = run->start_error == 0 && !run->orphaned && !run->lost && !run->late;
  int code = ran ? dibs__cli_run_code(run->status) : CLI_DONE;
  const char *why_not = ran ? no_answer(once) : NULL;
  dibs__cli_tee_finish(&once->tee);
  bool keeps = ran && why_not == NULL;
  r.code = keeps ? store_result(once, code, &r) : code;
  if (!keeps) dibs__once_leave(run->store, once->key, run->lease);
  dibs_status released = run->released = dibs_release(run->lease, NULL);
  /* From here on a signal may end dibs, because the reader of its output may be slow. */
  sigprocmask(SIG_SETMASK, &run->signals.before, NULL);
  int flushed = dibs__cli_tee_flush(&once->tee, g);
  int trouble = dibs__cli_run_trouble(run, keeps ? DIBS_OK : released);
  if (trouble != CLI_DONE) return trouble;
  for (int i = 0; i < CAPTURED_STREAMS; i++) r.written[i] = once->tee.captured.written[i];
  if (why_not != NULL)
    dibs__cli_note(g, "'%s': %s; nothing is kept, and the next call runs it again", once->key, why_not);
  if (r.captured) {
    r.left_out = once->tee.captured.left_out;
    note_left_out(once, r.left_out, "will be missing when it is repeated");
  }
  if (flushed != CLI_DONE) return flushed;
  if (keeps == r.captured) report_json(once, &r);
  return r.code;
}

/* ---- Acquiring and running ---- */

static int under_lease(struct once *once) {
  struct run *run = &once->run;
  dibs_error error = {0};
  dibs_status status = dibs__once_begin(run->store, once->key, run->lease, &once->answer, &error);
  if (status == DIBS_REPLAY && should_retry(once)) {
    drop_answer(once);
    status = dibs_once_forget(run->store, once->key, &error);
    if (status == DIBS_OK || status == DIBS_NOT_FOUND)
      status = dibs__once_begin(run->store, once->key, run->lease, &once->answer, &error);
  }
  int code = status == DIBS_OK ? dibs__cli_run_command(run) : CLI_DONE;
  if (status == DIBS_OK && code == CLI_DONE) {
    code = finish_once(once);
    dibs__cli_run_keep(run, once->key);
    return code;
  }
  dibs_release(run->lease, NULL);
  if (status == DIBS_REPLAY) return replay(once);
  return status == DIBS_OK ? code : dibs__cli_fail_status(run->globals, status, &error, once->key);
}

static int in_store(struct once *once) {
  struct run *run = &once->run;
  dibs_error error = {0};
  int code = dibs__cli_reach(run->globals, &run->options, &run->signals, &run->store);
  if (code != CLI_DONE) return code;
  dibs_status status = dibs__once_check(run->store, once->key, &error);
  if (status == DIBS_OK) status = dibs__once_read(run->store, once->key, &once->answer, &error);
  if (status == DIBS_OK && !should_retry(once)) {
    code = replay(once);
  } else if (status == DIBS_OK || status == DIBS_NOT_FOUND) {
    drop_answer(once);
    code = dibs__cli_acquire(run->globals, run->store, run->name, &run->options, &run->signals, &run->lease);
    if (code == CLI_DONE) code = under_lease(once);
  } else {
    code = dibs__cli_fail_status(run->globals, status, &error, once->key);
  }
  drop_answer(once);
  dibs_lease_free(run->lease);
  dibs_close(run->store);
  return code;
}

static int forget_key(const struct cli_call *call) {
  const struct cli_globals *g = &call->v.globals;
  const char *key = call->pos[0];
  dibs_store *store = NULL;
  dibs_error error = {0};
  int code = dibs__cli_open(g, 0, &store);
  if (code != CLI_DONE) return code;
  dibs_status status = dibs_once_forget(store, key, &error);
  if (status != DIBS_OK) code = dibs__cli_fail_status(g, status, &error, key);
  if (status == DIBS_OK && g->json) {
    struct dibs__json j = {.out = stdout};
    dibs__json_open(&j, NULL, '{');
    dibs__json_text(&j, "key", key);
    dibs__json_bool(&j, "forgotten", true);
    dibs__json_close(&j, '}');
    code = dibs__cli_flush(g);
  }
  dibs_close(store);
  return code;
}

int dibs__cli_once(struct cli_call *call) {
  const struct cli_values *v = &call->v;
  const char *key = call->pos[0];
  if (v->forget && call->nrest > 0)
    return dibs__cli_fail(&v->globals, CLI_USAGE, "INVALID", "--forget runs nothing; omit the command");
  if (v->forget) return forget_key(call);
  struct once once = {.values = v, .key = key, .keep_ms = v->keep_ms == CLI_UNSET ? DIBS__ONCE_KEEP_MS : v->keep_ms};
  char name[DIBS_NAME_MAX + 1];
  int ends[CAPTURED_STREAMS];
  int code = dibs__cli_tee_open(&once.tee, &v->globals, ends);
  if (strlen(key) <= DIBS_NAME_MAX) /* otherwise the library refuses it */
    dibs__once_name(key, name);
  else
    snprintf(name, sizeof name, "%.*s", DIBS_NAME_MAX, key);
  once.run = (struct run){.globals = &v->globals,
                          .name = name,
                          .argv = call->rest,
                          .out = ends[CAPTURED_OUT],
                          .err = ends[CAPTURED_ERR],
                          .tee = &once.tee,
                          .kind = dibs__cli_history_is_off(v) ? NULL : "once"};
  if (code == CLI_DONE) {
    code = dibs__cli_run_begin(&once.run, v);
    for (int i = 0; i < CAPTURED_STREAMS; i++) close(ends[i]);
    /* The reader of the output may disappear before the command ends; the output is still kept. */
    struct sigaction ignore = {.sa_handler = SIG_IGN}, before;
    sigaction(SIGPIPE, &ignore, &before);
    if (code == CLI_DONE) code = in_store(&once);
    sigaction(SIGPIPE, &before, NULL);
    dibs__cli_run_end(&once.run);
  }
  dibs__cli_tee_close(&once.tee);
  return code;
}
