/* SPDX-License-Identifier: MIT */
/* What ran: rows of the family of runs, written after the fact. */
#include "history/history.h"
#include "base/text.h"
#include "handle/request.h"

#include <stdlib.h>
#include <string.h>

enum { PAGE = 200, TRIES = 3 };

typedef struct dibs__run_row row_t;

const char *dibs__history_end_name(uint32_t how) {
  static const char *const names[] = {
      [DIBS_RUN_DONE] = "done",         [DIBS_RUN_FAILED] = "failed", [DIBS_RUN_LOST] = "lost",
      [DIBS_RUN_OVERTIME] = "overtime", [DIBS_RUN_KILLED] = "killed", [DIBS_RUN_NOT_RUN] = "not run",
  };
  return how < sizeof names / sizeof *names ? names[how] : NULL;
}

static dibs_status check_family(dibs_store *store, dibs_error *error) {
  if (!store->outer && dibs__core_families(store->core) & 1u << DIBS__FAM_RUN) return DIBS_OK;
  return dibs__fail(error, DIBS_UNSUPPORTED, "%s keeps no history of runs: %s", store->shown,
                    store->outer ? "call it outside of a transaction" : dibs__database_advice(store));
}

static dibs_status explain(dibs_store *store, dibs_status status, const char *what, const char *name,
                           dibs_error *error) {
  char trouble[256] = "";
  if (status == DIBS_OK) return dibs__fine(error);
  if (status != DIBS_INVALID) return dibs__explain(store, status, what, name, error);
  dibs__core_trouble(store->core, trouble, sizeof trouble);
  return dibs__fail(error, status, "%s \"%s\" at %s: the store refused it%s%s", what, name, store->shown,
                    trouble[0] ? ": " : "", trouble);
}

/* ---- Keeping a run ---- */

static dibs__str keep(struct dibs__request *request, dibs__str text) {
  return dibs__request_keep(request, text.p, text.len);
}

static row_t cut_row(dibs_store *store, const row_t *given) {
  row_t row = *given;
  if (row.host.len == 0) row.host = dibs__str_of(store->owner, strlen(store->owner));
  if (row.command.len > DIBS__RUN_COMMAND_MAX)
    row.command.len = (uint32_t)dibs__utf8_cut(row.command.p, DIBS__RUN_COMMAND_MAX);
  if (row.output.len > DIBS__RUN_OUTPUT_MAX) {
    row.output.p += row.output.len - DIBS__RUN_OUTPUT_MAX;
    row.output.len = DIBS__RUN_OUTPUT_MAX;
  }
  return row;
}

static dibs_status put_once(dibs_store *store, const row_t *row, dibs__tick by) {
  size_t bytes = (size_t)row->name.len + row->kind.len + row->host.len + row->command.len + row->output.len;
  struct dibs__request *request = dibs__request_make(store, DIBS__FAM_RUN, NULL, bytes);
  if (!request) return DIBS_NO_MEMORY;
  request->run.keep_ms = -1;
  request->run.row = *row;
  request->run.row.name = keep(request, row->name);
  request->run.row.kind = keep(request, row->kind);
  request->run.row.host = keep(request, row->host);
  request->run.row.command = keep(request, row->command);
  request->run.row.output = keep(request, row->output);
  dibs_status status = dibs__request_carry_until(request, DIBS__RUN_PUT, by);
  dibs__request_drop(request);
  return status;
}

static dibs_status put(dibs_store *store, const row_t *given, dibs__tick by, dibs_error *error) {
  dibs_status status = check_family(store, error);
  if (status != DIBS_OK) return status;
  char name[DIBS_NAME_MAX + 1];
  row_t row = cut_row(store, given);
  dibs__random(row.id.b, sizeof row.id.b);
  status = DIBS_UNKNOWN;
  for (int i = 0; i < TRIES && status == DIBS_UNKNOWN && dibs__tick_before(dibs__tick_now(), by); i++)
    status = put_once(store, &row, by);
  memcpy(name, row.name.p, row.name.len);
  name[row.name.len] = '\0';
  return explain(store, status, "keeping the run of", name, error);
}

dibs_status dibs__history_put(dibs_store *store, const row_t *row, dibs__tick by, dibs_error *error) {
  dibs_status status = dibs__enter(store, "dibs_runs_add", error);
  if (status != DIBS_OK) return status;
  status = put(store, row, by, error);
  dibs__exit(store);
  return status;
}

static dibs__str str(const char *text) {
  return text ? dibs__str_of(text, strlen(text)) : (dibs__str){"", 0};
}

static int64_t ago_ms(int64_t now_ms, int64_t at_ms) {
  return at_ms > 0 && at_ms < now_ms ? now_ms - at_ms : 0;
}

static dibs_status check_run(const dibs_run_info *run, dibs_error *error) {
  if (!run || run->size != sizeof *run)
    return dibs__fail(error, DIBS_INVALID, "dibs_runs_add: run is NULL, or run.size is not sizeof(dibs_run_info)");
  dibs_status status = dibs__check_text(run->name, DIBS_NAME_MAX, "the name of the run", error);
  if (status == DIBS_OK) status = dibs__check_text(run->kind, DIBS_NAME_MAX, "the kind of the run", error);
  if (status == DIBS_OK && run->host && *run->host)
    status = dibs__check_text(run->host, DIBS_OWNER_MAX, "the host of the run", error);
  if (status != DIBS_OK) return status;
  if (!dibs__history_end_name(run->how))
    return dibs__fail(error, DIBS_INVALID, "how is %u: give DIBS_RUN_DONE to DIBS_RUN_NOT_RUN", run->how);
  if (run->output_length > 0 && !run->output)
    return dibs__fail(error, DIBS_INVALID, "output is NULL, and output_length is not 0");
  if (run->began_ms > 0 && run->ended_ms > 0 && run->began_ms > run->ended_ms)
    return dibs__fail(error, DIBS_INVALID, "the run ended before it began");
  return DIBS_OK;
}

dibs_status dibs_runs_add(dibs_store *store, const dibs_run_info *run, dibs_error *error) {
  dibs_status status = check_run(run, error);
  if (status != DIBS_OK) return status;
  int64_t now_ms = dibs__wall_ms();
  row_t row = {.name = str(run->name),
               .kind = str(run->kind),
               .host = str(run->host),
               .command = str(run->command),
               .output = dibs__str_of(run->output, run->output_length),
               .fence = {run->fence.value},
               .nr = run->task,
               .how = run->how,
               .code = run->code,
               .ended_ms = ago_ms(now_ms, run->ended_ms)};
  row.began_ms = run->began_ms > 0 ? ago_ms(now_ms, run->began_ms) : row.ended_ms;
  if (row.began_ms < row.ended_ms) row.began_ms = row.ended_ms;
  return dibs__history_put(store, &row, dibs__tick_add_ms(dibs__tick_now(), DIBS__IO_MS), error);
}

/* ---- Reading ---- */

/* A copy with a NUL after each text. */
struct texts {
  char name[DIBS_NAME_MAX + 1], kind[DIBS_NAME_MAX + 1], host[DIBS_OWNER_MAX + 1], command[DIBS__RUN_COMMAND_MAX + 1];
  char output[DIBS__RUN_OUTPUT_MAX + 1];
};

static const char *copy(char *to, size_t size, dibs__str from) {
  size_t len = from.len < size ? from.len : size - 1;
  if (len) memcpy(to, from.p, len);
  to[len] = '\0';
  return to;
}

static bool hand_out(const row_t *row, struct texts *texts, dibs_run_fn fn, void *user) {
  const dibs_run_info info = {.size = sizeof info,
                              .name = copy(texts->name, sizeof texts->name, row->name),
                              .kind = copy(texts->kind, sizeof texts->kind, row->kind),
                              .host = copy(texts->host, sizeof texts->host, row->host),
                              .command = copy(texts->command, sizeof texts->command, row->command),
                              .output = copy(texts->output, sizeof texts->output, row->output),
                              .output_length = row->output.len,
                              .fence = {row->fence.v},
                              .task = row->nr,
                              .how = row->how,
                              .code = row->code,
                              .began_ms = row->began_ms,
                              .ended_ms = row->ended_ms};
  return fn(&info, user) == 0;
}

static struct dibs__request *make_list(dibs_store *store, const dibs_runs_options *o, uint32_t most,
                                       const struct dibs__run_at *after) {
  dibs__str name = str(o->name), prefix = str(o->prefix), kind = str(o->kind);
  struct dibs__request *request =
      dibs__request_make(store, DIBS__FAM_RUN, NULL, (size_t)name.len + prefix.len + kind.len);
  if (!request) return NULL;
  request->run.name = keep(request, name);
  request->run.prefix = keep(request, prefix);
  request->run.kind = keep(request, kind);
  request->run.nr = o->task;
  request->run.failed = (o->flags & DIBS_RUNS_FAILED) != 0;
  request->run.since_ms = o->since_ms;
  request->run.before_ms = o->until_ms;
  request->run.most = most;
  if (!after || after->ended_ms == 0) return request;
  request->run.before_ms = after->ended_ms;
  request->run.before_id = after->id;
  return request;
}

struct listing {
  const dibs_runs_options *options;
  dibs_run_fn fn;
  void *user;
  uint32_t left; /* how many more may be listed */
  bool stopped, off;
  struct dibs__run_at last; /* of the page before; ended_ms 0: this is the first */
};

/* *more: there may be another page. */
static dibs_status list_page(dibs_store *store, struct listing *l, bool *more) {
  uint32_t most = l->left < PAGE ? l->left : PAGE;
  struct texts *texts = malloc(sizeof *texts);
  struct dibs__request *request = texts ? make_list(store, l->options, most, &l->last) : NULL;
  *more = false;
  if (!request) {
    free(texts);
    return DIBS_NO_MEMORY;
  }
  dibs_status status = dibs__request_carry(request, DIBS__RUN_LIST, dibs__tick_add_ms(dibs__tick_now(), DIBS__IO_MS));
  const struct dibs__run_op *op = &request->run;
  if (status == DIBS_OK) {
    l->off = op->off;
    for (uint32_t i = 0; i < op->got_count && !l->stopped; i++) {
      l->stopped = !hand_out(&op->got[i], texts, l->fn, l->user);
      l->last = (struct dibs__run_at){op->got[i].ended_ms, op->got[i].id};
      l->left--;
    }
    *more = op->got_count == most && !l->stopped && l->left > 0;
  }
  dibs__request_drop(request);
  free(texts);
  return status;
}

static dibs_status check_options(const dibs_runs_options *given, dibs_runs_options *o, dibs_error *error) {
  *o = (dibs_runs_options){.size = sizeof *o};
  if (given && (given->size < sizeof(size_t) || given->size > sizeof *o))
    return dibs__fail(error, DIBS_INVALID, "options.size is %zu: set it to sizeof(dibs_runs_options)", given->size);
  if (given) memcpy(o, given, given->size);
  dibs_status status = DIBS_OK;
  if (o->name) status = dibs__check_text(o->name, DIBS_NAME_MAX, "the name", error);
  if (status == DIBS_OK && o->prefix && *o->prefix)
    status = dibs__check_text(o->prefix, DIBS_NAME_MAX, "the prefix", error);
  if (status == DIBS_OK && o->kind) status = dibs__check_text(o->kind, DIBS_NAME_MAX, "the kind", error);
  if (status == DIBS_OK && (o->flags & ~(uint32_t)DIBS_RUNS_FAILED))
    status = dibs__fail(error, DIBS_INVALID, "options.flags is %#x: only DIBS_RUNS_FAILED is known", o->flags);
  if (status == DIBS_OK && o->task > INT64_MAX)
    status =
        dibs__fail(error, DIBS_INVALID, "options.task is %llu: no task has such a number", (unsigned long long)o->task);
  if (status == DIBS_OK && (o->since_ms < 0 || o->until_ms < 0))
    status = dibs__fail(error, DIBS_INVALID, "since_ms or until_ms is below 0");
  return status;
}

dibs_status dibs__history_page(dibs_store *store, const dibs_runs_options *options, struct dibs__run_at *at,
                               dibs_run_fn fn, void *user, bool *off, dibs_error *error) {
  dibs_runs_options o;
  *off = false;
  if (!fn) return dibs__fail(error, DIBS_INVALID, "dibs_runs: fn is NULL");
  dibs_status status = check_options(options, &o, error);
  if (status == DIBS_OK) status = dibs__enter(store, "dibs_runs", error);
  if (status != DIBS_OK) return status;
  status = check_family(store, error);
  if (status == DIBS_OK) {
    struct listing l = {.options = &o, .fn = fn, .user = user, .left = o.most ? o.most : UINT32_MAX, .last = *at};
    bool more = true;
    while (more && status == DIBS_OK) status = list_page(store, &l, &more);
    *off = l.off;
    *at = l.last;
    status = explain(store, status, "reading the runs of", o.name ? o.name : "", error);
  }
  dibs__exit(store);
  return status;
}

dibs_status dibs__history_list(dibs_store *store, const dibs_runs_options *options, dibs_run_fn fn, void *user,
                               bool *off, dibs_error *error) {
  struct dibs__run_at at = {.ended_ms = 0};
  return dibs__history_page(store, options, &at, fn, user, off, error);
}

dibs_status dibs_runs(dibs_store *store, const dibs_runs_options *options, dibs_run_fn fn, void *user,
                      dibs_error *error) {
  bool off;
  return dibs__history_list(store, options, fn, user, &off, error);
}

/* ---- The clock ---- */

static dibs_status read_clock(dibs_store *store, struct dibs__store_clock *clock, dibs__tick by, dibs_error *error) {
  const dibs_runs_options none = {.size = sizeof none, .until_ms = 1};
  dibs_status status = check_family(store, error);
  if (status != DIBS_OK) return status;
  struct dibs__request *request = make_list(store, &none, 1, NULL);
  if (!request) return dibs__fail(error, DIBS_NO_MEMORY, "out of memory for a request");
  clock->before = dibs__tick_now();
  status = dibs__request_carry(request, DIBS__RUN_LIST, by);
  clock->after = dibs__tick_now();
  if (status == DIBS_OK) clock->ms = request->run.now_ms;
  dibs__request_drop(request);
  return explain(store, status, "reading the clock of", store->shown, error);
}

dibs_status dibs__history_clock(dibs_store *store, struct dibs__store_clock *clock, dibs__tick by, dibs_error *error) {
  *clock = (struct dibs__store_clock){0};
  dibs_status status = dibs__enter(store, "dibs_runs", error);
  if (status != DIBS_OK) return status;
  status = read_clock(store, clock, by, error);
  dibs__exit(store);
  return status;
}

/* ---- The setting ---- */

dibs_status dibs_runs_keep(dibs_store *store, int64_t keep_ms, dibs_error *error) {
  if (keep_ms < -1 || keep_ms > DIBS_RUNS_KEEP_MAX_MS)
    return dibs__fail(error, DIBS_INVALID, "keep_ms is %lld: give 0 (none) to 10 years, or DIBS_RUNS_KEEP_DEFAULT",
                      (long long)keep_ms);
  dibs_status status = dibs__enter(store, "dibs_runs_keep", error);
  if (status != DIBS_OK) return status;
  status = check_family(store, error);
  if (status == DIBS_OK) {
    struct dibs__request *request = dibs__request_make(store, DIBS__FAM_RUN, NULL, 0);
    status = DIBS_NO_MEMORY;
    if (request) {
      request->run.keep_ms = keep_ms;
      status = dibs__request_carry_until(request, DIBS__RUN_SET, dibs__tick_add_ms(dibs__tick_now(), DIBS__IO_MS));
    }
    dibs__request_drop(request);
    status = explain(store, status, "setting how long runs are kept", "", error);
  }
  dibs__exit(store);
  return status;
}
