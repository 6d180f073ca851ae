/* SPDX-License-Identifier: MIT */
/*
 * `dibs once KEY -- CMD...`: runs CMD once in the fleet, and says the same again to whoever asks later: what it wrote,
 * on the same streams, and its status.
 *
 * What is an answer: a command that came to its end by itself, with whatever status.  One that was killed, or that we
 * were asked to end, has not answered: it is as if it had crashed, and the next call runs it again.
 */
#include "guard/once.h"
#include "cli/run.h"
#include "cli/tee.h"

#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* What a shell makes of a command in it that was killed by signal N: 128 + N. */
enum { SHELL_SIGNAL_FIRST = 129, SHELL_SIGNAL_LAST = 192 };

struct once {
  struct run run; /* first */
  const struct cli_values *values;
  const char *key;
  struct tee tee;
  int64_t keep_ms;
  struct dibs__once_answer answer;
};

/* ---- Saying it again ---- */

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
  uint64_t written[KEPT_STREAMS], left_out;
  bool kept;
};

static void report(const struct once *once, const struct report *r) {
  struct cli_json j = {.out = stderr};
  if (!once->run.globals->json) return;
  dibs__cli_json_open(&j, NULL, '{');
  dibs__cli_json_text(&j, "command", "once");
  dibs__cli_json_int(&j, "exit", r->code);
  dibs__cli_json_text(&j, "status", r->status);
  dibs__cli_json_text(&j, "key", once->key);
  dibs__cli_json_bool(&j, "kept", r->kept);
  if (r->fence != 0) dibs__cli_json_uint(&j, "fence", r->fence);
  dibs__cli_json_int(&j, "took_ms", r->took_ms);
  dibs__cli_json_int(&j, "age_ms", r->age_ms);
  dibs__cli_json_int(&j, "left_ms", r->left_ms);
  dibs__cli_json_uint(&j, "stdout", r->written[KEPT_OUT]);
  dibs__cli_json_uint(&j, "stderr", r->written[KEPT_ERR]);
  dibs__cli_json_uint(&j, "left_out", r->left_out);
  dibs__cli_json_close(&j, '}');
}

static void note_left_out(const struct once *once, uint64_t left_out, const char *when) {
  if (left_out == 0) return;
  dibs__cli_note(once->run.globals, "'%s' wrote more than the %d bytes that can be kept; the last %" PRIu64 " bytes %s",
                 once->key, DIBS_RECORD_MAX, left_out, when);
}

static int not_ours(const struct once *once) {
  return dibs__cli_fail(once->run.globals, CLI_FAILED, "",
                        "the answer of '%s' was not kept by dibs once: it can't be said again; take another key, or "
                        "--forget it",
                        once->key);
}

static int replay(const struct once *once) {
  const struct cli_globals *g = once->run.globals;
  struct told told;
  if (!dibs__cli_told_read(once->answer.data, once->answer.length, &told)) return not_ours(once);
  size_t at = 0, len;
  int stream;
  const char *bytes;
  bool gone[KEPT_STREAMS] = {false, false};
  while (dibs__cli_told_next(&told, &at, &stream, &bytes, &len)) {
    if (gone[stream] || write_all(stream == KEPT_OUT ? STDOUT_FILENO : STDERR_FILENO, bytes, len)) continue;
    if (errno != EPIPE)
      return dibs__cli_fail(g, CLI_FAILED, "", "what '%s' wrote can't be written: %s", once->key, strerror(errno));
    gone[stream] = true; /* nobody reads it */
  }
  note_left_out(once, told.left_out, "are not here");
  report(once, &(struct report){.code = told.status,
                                .status = "REPLAY",
                                .took_ms = told.took_ms,
                                .age_ms = once->answer.age_ms,
                                .left_ms = once->answer.left_ms,
                                .written = {told.written[KEPT_OUT], told.written[KEPT_ERR]},
                                .left_out = told.left_out,
                                .kept = true});
  return told.status;
}

/* It failed, and is to be tried again. */
static bool again(const struct once *once) {
  struct told told;
  return once->values->retry && dibs__cli_told_read(once->answer.data, once->answer.length, &told) && told.status != 0;
}

static void drop_answer(struct once *once) {
  free(once->answer.data);
  once->answer = (struct dibs__once_answer){0};
}

/* ---- What came of it ---- */

/* Why it is no answer; NULL: it is one. */
static const char *no_answer(const struct once *once) {
  int status = once->run.status;
  int code = dibs__cli_run_code(status);
  if (WIFSIGNALED(status)) return "it was killed";
  if (code >= SHELL_SIGNAL_FIRST && code <= SHELL_SIGNAL_LAST) return "something in it was killed";
  if (once->run.ended_by != 0 && code != 0) return "it was asked to end";
  if (once->values->retry && code != 0) return "it failed";
  return NULL;
}

static int keep(struct once *once, int code, struct report *r) {
  const struct cli_globals *g = once->run.globals;
  size_t length = 0;
  dibs_error error = {0};
  dibs_status status = DIBS_NO_MEMORY;
  char *whole = dibs__cli_kept_whole(&once->tee.kept, code, r->took_ms, &length);
  if (whole != NULL)
    status = dibs__once_store(once->run.store, once->key, once->run.lease, once->keep_ms, whole, length, &once->answer,
                              &error);
  free(whole);
  r->kept = status == DIBS_OK;
  r->left_ms = once->keep_ms;
  if (status == DIBS_OK) return code;
  return dibs__cli_fail(g, dibs__cli_exit_of(status), dibs_status_name(status),
                        "'%s' ran and exited with %d, but its answer %s: %s", once->key, code,
                        status == DIBS_UNKNOWN ? "may not be kept" : "is not kept",
                        error.text[0] != '\0' ? error.text : dibs_status_text(status));
}

static int finish(struct once *once) {
  struct run *run = &once->run;
  const struct cli_globals *g = run->globals;
  struct report r = {.status = "OK",
                     .fence = dibs_lease_fence(run->lease),
                     .took_ms = dibs__tick_left_ms(run->began, dibs__tick_now())};
  bool ran = run->start_error == 0 && !run->orphaned && !run->lost && !run->late;
  int code = ran ? dibs__cli_run_code(run->status) : CLI_DONE;
  const char *why_not = ran ? no_answer(once) : NULL;
  dibs__cli_tee_finish(&once->tee);
  bool keeps = ran && why_not == NULL;
  r.code = keeps ? keep(once, code, &r) : code;
  if (!keeps) dibs__once_leave(run->store, once->key, run->lease);
  dibs_status released = dibs_release(run->lease, NULL);
  /* From here on a signal may end us: whoever reads what we write may be slow. */
  sigprocmask(SIG_SETMASK, &run->signals.before, NULL);
  int flushed = dibs__cli_tee_flush(&once->tee, g);
  int trouble = dibs__cli_run_trouble(run, keeps ? DIBS_OK : released);
  if (trouble != CLI_DONE) return trouble;
  for (int i = 0; i < KEPT_STREAMS; i++) r.written[i] = once->tee.kept.written[i];
  if (why_not != NULL)
    dibs__cli_note(g, "'%s': %s; nothing is kept, and the next call runs it again", once->key, why_not);
  if (r.kept) {
    r.left_out = once->tee.kept.left_out;
    note_left_out(once, r.left_out, "will be missing when it is said again");
  }
  if (flushed != CLI_DONE) return flushed;
  if (keeps == r.kept) report(once, &r);
  return r.code;
}

/* ---- The way there ---- */

static int under_lease(struct once *once) {
  struct run *run = &once->run;
  dibs_error error = {0};
  dibs_status status = dibs__once_begin(run->store, once->key, run->lease, &once->answer, &error);
  if (status == DIBS_REPLAY && again(once)) {
    drop_answer(once);
    status = dibs_once_forget(run->store, once->key, &error);
    if (status == DIBS_OK || status == DIBS_NOT_FOUND)
      status = dibs__once_begin(run->store, once->key, run->lease, &once->answer, &error);
  }
  int code = status == DIBS_OK ? dibs__cli_run_command(run) : CLI_DONE;
  if (status == DIBS_OK && code == CLI_DONE) return finish(once);
  dibs_release(run->lease, NULL);
  if (status == DIBS_REPLAY) return replay(once);
  return status == DIBS_OK ? code : dibs__cli_fail_status(run->globals, status, &error, once->key);
}

static int in_store(struct once *once) {
  struct run *run = &once->run;
  dibs_error error = {0};
  int code = dibs__cli_open(run->globals, DIBS_STORE_LOOP, &run->store);
  if (code != CLI_DONE) return code;
  dibs_status status = dibs__once_check(run->store, once->key, &error);
  if (status == DIBS_OK) status = dibs__once_read(run->store, once->key, &once->answer, &error);
  if (status == DIBS_OK && !again(once)) {
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

static int forget(const struct cli_call *call) {
  const struct cli_globals *g = &call->v.globals;
  const char *key = call->pos[0];
  dibs_store *store = NULL;
  dibs_error error = {0};
  int code = dibs__cli_open(g, 0, &store);
  if (code != CLI_DONE) return code;
  dibs_status status = dibs_once_forget(store, key, &error);
  if (status != DIBS_OK) code = dibs__cli_fail_status(g, status, &error, key);
  if (status == DIBS_OK && g->json) {
    struct cli_json j = {.out = stdout};
    dibs__cli_json_open(&j, NULL, '{');
    dibs__cli_json_text(&j, "key", key);
    dibs__cli_json_bool(&j, "forgotten", true);
    dibs__cli_json_close(&j, '}');
    code = dibs__cli_flush(g);
  }
  dibs_close(store);
  return code;
}

int dibs__cli_once(struct cli_call *call) {
  const struct cli_values *v = &call->v;
  const char *key = call->pos[0];
  if (v->forget && call->nrest > 0)
    return dibs__cli_fail(&v->globals, CLI_USAGE, "INVALID", "--forget runs nothing; leave the command out");
  if (v->forget) return forget(call);
  struct once once = {.values = v, .key = key, .keep_ms = v->keep_ms == CLI_UNSET ? DIBS__ONCE_KEEP_MS : v->keep_ms};
  char name[DIBS_NAME_MAX + 1];
  int ends[KEPT_STREAMS];
  int code = dibs__cli_tee_open(&once.tee, &v->globals, ends);
  if (strlen(key) <= DIBS_NAME_MAX) /* else it is refused by whom it is given to */
    dibs__once_name(key, name);
  else
    snprintf(name, sizeof name, "%.*s", DIBS_NAME_MAX, key);
  once.run = (struct run){.globals = &v->globals,
                          .name = name,
                          .argv = call->rest,
                          .out = ends[KEPT_OUT],
                          .err = ends[KEPT_ERR],
                          .tee = &once.tee};
  if (code == CLI_DONE) {
    code = dibs__cli_run_begin(&once.run, v);
    for (int i = 0; i < KEPT_STREAMS; i++) close(ends[i]);
    /* Whoever reads our output may be gone before the command is done; it is kept all the same. */
    struct sigaction ignore = {.sa_handler = SIG_IGN}, before;
    sigaction(SIGPIPE, &ignore, &before);
    if (code == CLI_DONE) code = in_store(&once);
    sigaction(SIGPIPE, &before, NULL);
    dibs__cli_run_end(&once.run);
  }
  dibs__cli_tee_close(&once.tee);
  return code;
}
