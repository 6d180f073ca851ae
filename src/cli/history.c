/* SPDX-License-Identifier: MIT */
/*
 * The history: `dibs history`, and the row that each run leaves.
 *
 * A row is written when the lease is released and everything was reported.  If the store does not take it within a
 * second it is dropped, with a note, and the exit status does not change.  A worker hands its rows to a thread that
 * writes them one after the other, so that no task waits for them.
 */
#include "history/history.h"
#include "base/duration.h"
#include "base/text.h"
#include "cli/cli.h"
#include "cli/run.h"
#include "info/info.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum {
  KEEP_MS = 1000,
  KEEP_LOST_MS = 200, /* after a loss: mostly the store does not answer, and the caller waits for us */
  QUEUED_MAX = 256,   /* rows of a worker that are not written; each has up to 4 KiB of output */
  LAST = 50
};

/* ---- The row of a run ---- */

bool dibs__cli_history_is_off(const struct cli_values *values) {
  const char *word = getenv("DIBS_HISTORY");
  return values->no_history || (word != NULL && strcmp(word, "off") == 0);
}

void dibs__cli_history_describe(const struct run *run, struct dibs__run_row *row) {
  int status = run->status;
  row->code = WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status);
  if (run->start_error != 0) {
    row->how = DIBS__RUN_NOT_RUN;
    row->code = run->start_error == ENOENT ? CLI_NOCMD : CLI_NOEXEC;
  } else if (run->lost || run->late || run->released == DIBS_LOST) {
    row->how = DIBS__RUN_LOST;
  } else if (run->overtime) {
    row->how = DIBS__RUN_OVERTIME;
  } else if (run->orphaned || WIFSIGNALED(status)) {
    row->how = DIBS__RUN_KILLED;
    if (!WIFSIGNALED(status)) row->code = SIGKILL;
  } else {
    row->how = row->code == 0 ? DIBS__RUN_DONE : DIBS__RUN_FAILED;
  }
}

static dibs__str join_words(char to[DIBS__RUN_COMMAND_MAX + 1], char *const *argv) {
  size_t len = 0;
  for (; *argv != NULL && len < DIBS__RUN_COMMAND_MAX; argv++) {
    int n = snprintf(to + len, DIBS__RUN_COMMAND_MAX + 1 - len, "%s%s", len > 0 ? " " : "", *argv);
    len += n > 0 ? (size_t)n : 0;
  }
  if (len > DIBS__RUN_COMMAND_MAX) len = dibs__utf8_cut(to, DIBS__RUN_COMMAND_MAX);
  return dibs__str_of(to, len);
}

void dibs__cli_run_keep(const struct run *run, const char *name) {
  char command[DIBS__RUN_COMMAND_MAX + 1], output[DIBS__RUN_OUTPUT_MAX];
  dibs__tick now = dibs__tick_now();
  dibs_error error = {0};
  if (run->kind == NULL) return;
  struct dibs__run_row row = {.name = dibs__str_of(name, strlen(name)),
                              .kind = dibs__str_of(run->kind, strlen(run->kind)),
                              .command = join_words(command, run->argv),
                              .fence = {dibs_lease_fence(run->lease).value},
                              .began_ms = dibs__tick_left_ms(run->began, now),
                              .ended_ms = dibs__tick_left_ms(run->ended, now)};
  dibs__cli_history_describe(run, &row);
  if (run->tee != NULL) row.output = dibs__str_of(output, dibs__cli_last_read(&run->tee->tail, output));
  dibs__tick by = dibs__tick_add_ms(now, row.how == DIBS__RUN_LOST ? KEEP_LOST_MS : KEEP_MS);
  dibs_status status = dibs__history_put(run->store, &row, by, &error);
  if (status == DIBS_OK || status == DIBS_UNSUPPORTED) return;
  dibs__cli_note(run->globals, "this run is not in the history: %s",
                 error.text[0] != '\0' ? error.text : dibs_status_text(status));
}

/* ---- The rows of a worker ---- */

struct queued_row {
  struct queued_row *next;
  struct dibs__run_row row; /* without its instants */
  dibs__tick began, ended;
  char output[DIBS__RUN_OUTPUT_MAX];
};

struct history_writer {
  /* Immutable after the start. */
  const struct cli_globals *globals;
  dibs_store *store;
  dibs__str name, command;
  char command_text[DIBS__RUN_COMMAND_MAX + 1];
  dibs__thread *thread;
  dibs__word word; /* wakes the thread */
  dibs__mutex lock;
  /* Guarded by the lock. */
  struct queued_row *first, *last;
  size_t count;
  uint64_t dropped;
  bool ending;
  dibs__tick end_at; /* when it is ending: the thread writes no longer than that */
  /* Of the thread. */
  bool failing; /* the latest row was not kept, which a note says */
};

/* Waits for a row, and takes it.  NULL: there is none, and none will come. */
static struct queued_row *next_row(struct history_writer *w, dibs__tick *by) {
  struct queued_row *queued;
  dibs__mutex_lock(&w->lock);
  while ((queued = w->first) == NULL && !w->ending) {
    uint32_t seen = atomic_load(&w->word);
    dibs__mutex_unlock(&w->lock);
    (void)dibs__word_wait(&w->word, seen, DIBS__TICK_NEVER, false);
    dibs__mutex_lock(&w->lock);
  }
  if (queued != NULL) {
    w->first = queued->next;
    if (w->first == NULL) w->last = NULL;
    w->count--;
  }
  *by = dibs__tick_add_ms(dibs__tick_now(), KEEP_MS);
  if (w->ending) *by = dibs__tick_min(*by, w->end_at);
  dibs__mutex_unlock(&w->lock);
  return queued;
}

static void count_dropped(struct history_writer *w) {
  dibs__mutex_lock(&w->lock);
  w->dropped++;
  dibs__mutex_unlock(&w->lock);
}

static void write_row(struct history_writer *w, struct queued_row *queued, dibs__tick by) {
  dibs_error error = {0};
  dibs__tick now = dibs__tick_now();
  dibs_status status = DIBS_TIMEOUT;
  queued->row.began_ms = dibs__tick_left_ms(queued->began, now);
  queued->row.ended_ms = dibs__tick_left_ms(queued->ended, now);
  if (dibs__tick_before(now, by)) status = dibs__history_put(w->store, &queued->row, by, &error);
  bool kept = status == DIBS_OK || status == DIBS_UNSUPPORTED;
  if (!kept) count_dropped(w);
  if (!kept && !w->failing)
    dibs__cli_note(w->globals, "the run of task %" PRIu64 " is not in the history: %s", queued->row.nr,
                   error.text[0] != '\0' ? error.text : dibs_status_text(status));
  w->failing = !kept;
}

static void write_rows(void *arg) {
  struct history_writer *w = arg;
  struct queued_row *queued;
  dibs__tick by;
  while ((queued = next_row(w, &by)) != NULL) {
    write_row(w, queued, by);
    free(queued);
  }
}

struct history_writer *dibs__cli_history_start(const struct cli_globals *g, dibs_store *store, const char *name,
                                               char *const *argv) {
  struct history_writer *w = calloc(1, sizeof *w);
  if (w != NULL) {
    w->globals = g;
    w->store = store;
    w->name = dibs__str_of(name, strlen(name));
    w->command = join_words(w->command_text, argv);
    dibs__mutex_init(&w->lock);
    w->thread = dibs__thread_start("dibs-history", write_rows, w);
    if (w->thread != NULL) return w;
    dibs__mutex_destroy(&w->lock);
    free(w);
  }
  dibs__cli_note(g, "no memory is left for the history: it gets no rows of this worker");
  return NULL;
}

/* false: the thread is too far behind. */
static bool push_row(struct history_writer *w, struct queued_row *queued) {
  dibs__mutex_lock(&w->lock);
  bool fits = w->count < QUEUED_MAX;
  if (fits) {
    if (w->last != NULL)
      w->last->next = queued;
    else
      w->first = queued;
    w->last = queued;
    w->count++;
    atomic_fetch_add(&w->word, 1);
  }
  dibs__mutex_unlock(&w->lock);
  dibs__word_wake(&w->word, 1, false);
  return fits;
}

void dibs__cli_history_add(struct history_writer *w, const struct run *run, const struct run_task *task) {
  struct queued_row *queued = calloc(1, sizeof *queued);
  if (queued != NULL) {
    queued->began = run->began;
    queued->ended = run->ended;
    queued->row = (struct dibs__run_row){.name = w->name,
                                         .kind = dibs__str_of("worker", strlen("worker")),
                                         .command = w->command,
                                         .fence = {task->fence},
                                         .nr = task->nr};
    dibs__cli_history_describe(run, &queued->row);
    if (queued->row.how == DIBS__RUN_FAILED && !task->failed) queued->row.how = DIBS__RUN_DONE;
    queued->row.output = dibs__str_of(queued->output, dibs__cli_last_read(&run->tail->tail, queued->output));
    if (push_row(w, queued)) return;
    free(queued);
  }
  count_dropped(w);
}

void dibs__cli_history_end(struct history_writer *w) {
  if (w == NULL) return;
  dibs__mutex_lock(&w->lock);
  w->ending = true;
  w->end_at = dibs__tick_add_ms(dibs__tick_now(), KEEP_MS);
  atomic_fetch_add(&w->word, 1);
  dibs__mutex_unlock(&w->lock);
  dibs__word_wake(&w->word, 1, false);
  dibs__thread_join(w->thread);
  if (w->dropped > 1) dibs__cli_note(w->globals, "%" PRIu64 " runs are not in the history", w->dropped);
  dibs__mutex_destroy(&w->lock);
  free(w);
}

/* ---- Instants ---- */

/* "2026-11-22", "2026-11-22 02:30", "2026-11-22T02:30:05", in the time zone of the reader. */
static bool read_date(const char *text, int64_t *ms) {
  static const char *const forms[] = {"%Y-%m-%d", "%Y-%m-%d %H:%M", "%Y-%m-%d %H:%M:%S", "%Y-%m-%dT%H:%M",
                                      "%Y-%m-%dT%H:%M:%S"};
  for (size_t i = 0; i < sizeof forms / sizeof *forms; i++) {
    struct tm local = {.tm_isdst = -1};
    const char *end = strptime(text, forms[i], &local);
    if (end == NULL || *end != '\0') continue;
    local.tm_isdst = -1;
    *ms = (int64_t)mktime(&local) * 1000;
    return *ms > 0;
  }
  return false;
}

/* A duration before now, or a date.  CLI_DONE, or CLI_USAGE after a message. */
static int read_when(const struct cli_globals *g, const char *option, const char *text, int64_t *ms) {
  char wrong[160];
  *ms = 0;
  if (text == NULL) return CLI_DONE;
  int64_t now_ms = dibs__wall_ms();
  if (dibs__duration_read(text, ms, wrong, sizeof wrong)) {
    *ms = *ms < now_ms ? now_ms - *ms : 1;
    return CLI_DONE;
  }
  if (read_date(text, ms)) return CLI_DONE;
  return dibs__cli_fail(g, CLI_USAGE, "INVALID",
                        "--%s: '%.40s' is neither a duration like 24h nor a date like 2026-11-22 or '2026-11-22 02:30'",
                        option, text);
}

static void write_when(char *to, size_t size, int64_t ms) {
  time_t at = (time_t)(ms / 1000);
  struct tm local;
  if (localtime_r(&at, &local) == NULL || strftime(to, size, "%d %b %H:%M:%S", &local) == 0) snprintf(to, size, "?");
}

/* ---- Output ---- */

static void write_end(char *to, size_t size, const dibs_run_info *run) {
  const char *name = dibs__history_end_name(run->how);
  bool numbered = run->how == DIBS_RUN_FAILED || run->how == DIBS_RUN_KILLED;
  if (name == NULL)
    snprintf(to, size, "?");
  else if (numbered)
    snprintf(to, size, "%s %" PRId32, name, run->code);
  else
    snprintf(to, size, "%s", name);
}

struct printing {
  struct cli_table *table; /* NULL: as JSON, or with the output */
  struct dibs__json json;
  size_t count;
  bool full; /* out of memory */
};

struct cells {
  char when[40], how[32], took[24], fence[24];
};

static void write_cells(struct cells *cells, const dibs_run_info *run) {
  write_when(cells->when, sizeof cells->when, run->began_ms);
  write_end(cells->how, sizeof cells->how, run);
  dibs__duration_write(cells->took, sizeof cells->took, run->ended_ms - run->began_ms);
  snprintf(cells->fence, sizeof cells->fence, "-");
  if (run->fence.value != 0) snprintf(cells->fence, sizeof cells->fence, "%" PRIu64, run->fence.value);
}

static int add_row(const dibs_run_info *run, void *user) {
  struct printing *p = user;
  struct cells c;
  write_cells(&c, run);
  const char *const cells[] = {c.when, run->name, run->kind, c.how, c.took, run->host, c.fence};
  for (size_t i = 0; i < sizeof cells / sizeof *cells; i++)
    if (!dibs__cli_table_add(p->table, cells[i])) p->full = true;
  p->count++;
  return p->full;
}

/* Each line of the output after two blanks.  A zero byte is shown as other control characters are. */
static void print_output(const char *output, size_t length) {
  for (const char *at = output, *end = output + length; at < end;) {
    const char *newline = memchr(at, '\n', (size_t)(end - at));
    size_t len = (size_t)((newline != NULL ? newline : end) - at);
    char line[DIBS__RUN_OUTPUT_MAX + 1];
    for (size_t i = 0; i < len; i++) line[i] = at[i] != '\0' ? at[i] : '?';
    line[len] = '\0';
    fputs("  ", stdout);
    dibs__cli_put(stdout, line, 0);
    fputc('\n', stdout);
    at += len + 1;
  }
}

static int print_run(const dibs_run_info *run, void *user) {
  struct printing *p = user;
  struct cells c;
  write_cells(&c, run);
  const char *const words[] = {c.when, run->name, run->kind, c.how, c.took, run->host};
  for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
    dibs__cli_put(stdout, words[i], 0);
    fputs("  ", stdout);
  }
  printf("fence %s\n", c.fence);
  fputs("  $ ", stdout);
  dibs__cli_put(stdout, run->command, 0);
  fputc('\n', stdout);
  print_output(run->output, run->output_length);
  p->count++;
  return 0;
}

static int json_run(const dibs_run_info *run, void *user) {
  struct printing *p = user;
  dibs__cli_list_begin(&p->json);
  dibs__json_open(&p->json, NULL, '{');
  dibs__info_run(&p->json, run);
  dibs__json_close(&p->json, '}');
  p->count++;
  return 0;
}

/* ---- dibs history ---- */

static bool narrows(const struct cli_values *v) {
  return v->failed || v->kind != NULL || v->prefix != NULL || v->since != NULL || v->until != NULL;
}

/* A misspelt name looks like a job that never ran. */
static void note_none(const struct cli_call *call, const char *name) {
  const struct cli_globals *g = &call->v.globals;
  if (narrows(&call->v))
    dibs__cli_note(g, "no run of '%s' matches; dibs history '%s' lists all that are kept", name, name);
  else
    dibs__cli_note(g, "no runs of '%s' are kept; dibs history lists those of all names", name);
}

static int list_runs(const struct cli_call *call, dibs_store *store, const dibs_runs_options *options) {
  static const char *const heads[] = {"=WHEN", "NAME", "-KIND", "=HOW", ">=TOOK", "*--WHERE", ">--FENCE", NULL};
  const struct cli_globals *g = &call->v.globals;
  struct printing p = {.json = {.out = stdout}};
  dibs_run_fn fn = g->json ? json_run : call->v.output ? print_run : add_row;
  dibs_error error = {0};
  bool off = false;
  if (fn == add_row && (p.table = dibs__cli_table_new(heads)) == NULL)
    return dibs__cli_fail(g, CLI_FAILED, "NO_MEMORY", "out of memory");
  dibs_status status = dibs__history_list(store, options, fn, &p, &off, &error);
  if (g->json) dibs__cli_list_end(&p.json, status == DIBS_OK);
  if (p.table != NULL && p.count > 0) dibs__cli_table_print(p.table, dibs__cli_columns(STDOUT_FILENO), stdout);
  dibs__cli_table_free(p.table);
  if (status != DIBS_OK) return dibs__cli_fail_status(g, status, &error, "cannot read the history");
  if (p.full) return dibs__cli_fail(g, CLI_FAILED, "NO_MEMORY", "out of memory; the list is incomplete");
  if (!off && p.count == 0 && options->name != NULL) note_none(call, options->name);
  if (off) dibs__cli_note(g, "the store keeps no runs since its history was switched off; see --keep-for");
  return dibs__cli_flush(g);
}

static int set_keep(const struct cli_call *call, dibs_store *store) {
  const struct cli_globals *g = &call->v.globals;
  const char *text = call->v.keep_for;
  dibs_error error = {0};
  char wrong[160];
  int64_t keep_ms = 0;
  bool off = strcmp(text, "off") == 0;
  if (!off && (!dibs__duration_read(text, &keep_ms, wrong, sizeof wrong) || keep_ms <= 0))
    return dibs__cli_fail(g, CLI_USAGE, "INVALID", "--keep-for: '%.40s' is neither a duration like 30d nor off", text);
  dibs_status status = dibs_runs_keep(store, keep_ms, &error);
  if (status != DIBS_OK) return dibs__cli_fail_status(g, status, &error, "cannot set the history");
  if (!g->json) return CLI_DONE;
  struct dibs__json j = {.out = stdout};
  dibs__json_open(&j, NULL, '{');
  dibs__json_int(&j, "keep_for_ms", keep_ms);
  dibs__json_close(&j, '}');
  return dibs__cli_flush(g);
}

static bool lists(const struct cli_values *v) {
  return narrows(v) || v->output || v->last != CLI_UNSET;
}

int dibs__cli_history(struct cli_call *call) {
  const struct cli_values *v = &call->v;
  const struct cli_globals *g = &v->globals;
  dibs_runs_options options = {.size = sizeof options,
                               .name = call->npos > 0 ? call->pos[0] : NULL,
                               .prefix = v->prefix,
                               .kind = v->kind,
                               .flags = v->failed ? DIBS_RUNS_FAILED : 0,
                               .most = v->last != CLI_UNSET ? (uint32_t)v->last : LAST};
  if (v->keep_for != NULL && (call->npos > 0 || lists(v)))
    return dibs__cli_fail(g, CLI_USAGE, "INVALID", "--keep-for sets how long the store keeps runs; give it alone");
  int code = read_when(g, "since", v->since, &options.since_ms);
  if (code == CLI_DONE) code = read_when(g, "until", v->until, &options.until_ms);
  dibs_store *store = NULL;
  if (code == CLI_DONE) code = dibs__cli_open(g, 0, &store);
  if (code != CLI_DONE) return code;
  code = v->keep_for != NULL ? set_keep(call, store) : list_runs(call, store, &options);
  dibs_close(store);
  return code;
}
