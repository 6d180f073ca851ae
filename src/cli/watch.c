/* SPDX-License-Identifier: MIT */
/*
 * `dibs watch`: looks each interval and shows what is different.  Two listings are compared name by name: a row is the
 * same if name, owner, process, mode, slot, fence and state are.  What came and went between two looks is not seen.
 */
#include "base/port.h"
#include "cli/acquire.h"
#include "cli/process.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { INTERVAL_MS = 500 };

struct watch {
  const struct cli_globals *globals;
  const char *name; /* NULL: all */
  dibs_store *store;
  int64_t interval_ms;
  int64_t to_go; /* changes until it ends; CLI_UNSET: no end */
  bool lines;    /* a line an event, not a table */
  bool first;
  struct cli_rows before, now;
};

static int compare(const void *left, const void *right) {
  const dibs_lease_info *a = &((const struct cli_row *)left)->info, *b = &((const struct cli_row *)right)->info;
  int by_name = strcmp(a->name, b->name);
  if (by_name != 0) return by_name;
  if (a->pid != b->pid) return a->pid < b->pid ? -1 : 1;
  int by_owner = strcmp(a->owner, b->owner);
  if (by_owner != 0) return by_owner;
  if (a->mode != b->mode) return a->mode < b->mode ? -1 : 1;
  if (a->fence != b->fence) return a->fence < b->fence ? -1 : 1;
  if (a->slot != b->slot) return a->slot < b->slot ? -1 : 1;
  if (a->state != b->state) return a->state < b->state ? -1 : 1;
  return 0;
}

static const char *word_of_new(uint32_t state) {
  switch (state) {
  case DIBS_HOLDS:
    return "granted";
  case DIBS_WAITS:
    return "waiting";
  case DIBS_OFFERED:
    return "offered";
  case DIBS_BREAKING:
    return "breaking";
  default:
    return "broken";
  }
}

/* A holder that is gone with hardly a moment left when it was last seen has probably let its ttl end. */
static const char *word_of_gone(const struct watch *w, const dibs_lease_info *info) {
  switch (info->state) {
  case DIBS_HOLDS:
    return info->left_ms <= w->interval_ms ? "expired" : "released";
  case DIBS_BREAKING:
    return "broken";
  case DIBS_BROKEN:
    return "forgotten";
  default:
    return "left";
  }
}

/* A waiter that is a holder now, or is offered the name, did not leave; nor did a holder that is being broken let go.
 */
static bool became(const struct watch *w, const struct cli_row *old) {
  if (old->info.state == DIBS_BROKEN) return false;
  for (size_t i = 0; i < w->now.count; i++) {
    const dibs_lease_info *a = &old->info, *b = &w->now.row[i].info;
    bool same_asker = strcmp(a->name, b->name) == 0 && a->pid == b->pid && strcmp(a->owner, b->owner) == 0;
    if (!same_asker) continue;
    if (a->state != DIBS_HOLDS && a->state != DIBS_BREAKING && b->state != DIBS_BROKEN) return true;
    if (a->state == DIBS_HOLDS && b->state == DIBS_BREAKING && a->fence == b->fence) return true;
  }
  return false;
}

static void print_event(struct watch *w, const struct cli_row *row, const char *event) {
  int64_t at_ms = dibs__wall_ms();
  if (w->globals->json) {
    struct cli_json j = {.out = stdout};
    dibs__cli_row_json(&j, row, event, at_ms);
  } else {
    printf("%lld.%03d %-9s ", (long long)(at_ms / 1000), (int)(at_ms % 1000), event);
    dibs__cli_put(stdout, row->name, 0);
    fputs("  ", stdout);
    dibs__cli_put(stdout, row->owner, 0);
    if (row->info.fence != 0) printf("  fence %llu", (unsigned long long)row->info.fence);
    putchar('\n');
  }
  if (w->to_go > 0) w->to_go--;
}

static void print_events(struct watch *w) {
  size_t i = 0, j = 0;
  while ((i < w->before.count || j < w->now.count) && w->to_go != 0) {
    int order = i == w->before.count ? 1 : j == w->now.count ? -1 : compare(&w->before.row[i], &w->now.row[j]);
    if (order == 0) {
      i++;
      j++;
    } else if (order < 0) {
      const struct cli_row *gone = &w->before.row[i++];
      if (!became(w, gone)) print_event(w, gone, word_of_gone(w, &gone->info));
    } else {
      const struct cli_row *fresh = &w->now.row[j++];
      print_event(w, fresh, word_of_new(fresh->info.state));
    }
  }
}

static bool differs(const struct watch *w) {
  if (w->first || w->before.count != w->now.count) return true;
  for (size_t i = 0; i < w->now.count; i++)
    if (compare(&w->before.row[i], &w->now.row[i]) != 0) return true;
  return false;
}

/* Draws over what was there: no flicker, and nothing left of a longer table. */
static void draw(struct watch *w, const struct cli_rows *in_line) {
  fputs("\033[H\033[J", stdout);
  if (in_line->count == 0)
    printf("nobody holds %s\n", w->name != NULL ? "it" : "anything");
  else
    dibs__cli_rows_table(in_line, dibs__cli_columns(STDOUT_FILENO), stdout);
  if (w->to_go > 0) w->to_go--;
}

static bool copy_rows(const struct cli_rows *from, struct cli_rows *to) {
  for (size_t i = 0; i < from->count && !to->full; i++) dibs__cli_rows_add(&from->row[i].info, to);
  return !to->full;
}

static int look(struct watch *w) {
  dibs_error error = {0};
  dibs_status status = w->name != NULL ? dibs_show(w->store, w->name, dibs__cli_rows_add, &w->now, &error)
                                       : dibs_list(w->store, NULL, dibs__cli_rows_add, &w->now, &error);
  if (status == DIBS_NOT_FOUND) status = DIBS_OK;
  if (status != DIBS_OK) return dibs__cli_fail_status(w->globals, status, &error, "the store can't be watched");
  struct cli_rows in_line = {0};
  if (w->now.full || !copy_rows(&w->now, &in_line)) {
    dibs__cli_rows_free(&in_line);
    return dibs__cli_fail(w->globals, CLI_FAILED, "NO_MEMORY", "out of memory; end some other program");
  }
  if (w->now.count > 1) qsort(w->now.row, w->now.count, sizeof *w->now.row, compare);
  if (w->lines)
    print_events(w);
  else if (differs(w))
    draw(w, &in_line);
  w->first = false;
  dibs__cli_rows_free(&in_line);
  dibs__cli_rows_free(&w->before);
  w->before = w->now;
  w->now = (struct cli_rows){0};
  return dibs__cli_flush(w->globals);
}

static int watch(struct watch *w, const struct cli_signals *signals, int alarm) {
  int code = CLI_DONE;
  while (code == CLI_DONE) {
    code = look(w);
    if (code != CLI_DONE || w->to_go == 0) break;
    dibs__cli_alarm_set(alarm, dibs__tick_add_ms(dibs__tick_now(), w->interval_ms));
    struct pollfd fds[] = {{signals->fd, POLLIN, 0}, {alarm, POLLIN, 0}};
    if (poll(fds, 2, -1) < 0 && errno != EINTR) break;
    int signo = dibs__cli_signals_next(signals);
    if (signo == SIGTSTP)
      raise(SIGSTOP);
    else if (signo == SIGWINCH || signo == SIGCONT)
      w->first = true;
    else if (signo != 0)
      code = CLI_SIGNAL + signo;
    dibs__cli_alarm_clear(alarm);
  }
  return code;
}

int dibs__cli_watch(struct cli_call *call) {
  const struct cli_globals *g = &call->v.globals;
  struct watch w = {.globals = g, .name = call->npos > 0 ? call->pos[0] : NULL, .first = true};
  w.interval_ms = call->v.interval_ms != CLI_UNSET ? call->v.interval_ms : INTERVAL_MS;
  w.to_go = call->v.count;
  w.lines = g->json || !isatty(STDOUT_FILENO);
  struct cli_signals signals;
  int code = dibs__cli_signals_open(g, &signals);
  if (code != CLI_DONE) return code;
  int alarm = dibs__cli_alarm_open();
  if (alarm < 0) code = dibs__cli_fail(g, CLI_FAILED, "", "no timer can be had: %s", strerror(errno));
  if (code == CLI_DONE) code = dibs__cli_open(g, 0, &w.store);
  if (code == CLI_DONE) code = watch(&w, &signals, alarm);
  dibs__cli_rows_free(&w.before);
  dibs__cli_rows_free(&w.now);
  dibs_close(w.store);
  if (alarm >= 0) close(alarm);
  dibs__cli_signals_close(&signals);
  return code;
}
