/* SPDX-License-Identifier: MIT */
/* Runs in memory (R80 to R83): a map by id; a listing sorts them all. */
#include "drivers/memory/memory_impl.h"
#include "store/run.h"

#include <stdlib.h>
#include <string.h>

struct kept_run {
  struct dibs__map_node link; /* of memory.runs; first */
  struct dibs__run_row row;   /* its instants are ms since 1970 */
  int64_t until;
  char texts[];
};

typedef struct kept_run kept_run;

static uint64_t hash_of(const dibs__id *id) {
  return dibs__hash(id->b, sizeof id->b);
}

static const kept_run *find_run(const struct dibs__memory *m, const dibs__id *id) {
  struct dibs__map_node *link = dibs__map_head(&m->runs, hash_of(id));
  while (link && !dibs__id_equal(((kept_run *)link)->row.id, *id)) link = link->next;
  return (const kept_run *)link;
}

void dibs__mem_runs_forget(struct dibs__memory *m, int64_t before) {
  struct dibs__map_node *next, *node = dibs__mem_next(&m->runs, NULL);
  for (; node; node = next) {
    next = dibs__mem_next(&m->runs, node);
    if (((kept_run *)node)->until > before) continue;
    dibs__map_remove(&m->runs, node);
    free(node);
  }
}

static dibs__str keep_text(char **to, dibs__str text) {
  dibs__str kept = {*to, text.len};
  if (text.len) memcpy(*to, text.p, text.len);
  *to += text.len;
  return kept;
}

static kept_run *copy_run(const struct dibs__run_row *from) {
  size_t bytes = (size_t)from->name.len + from->kind.len + from->host.len + from->command.len + from->output.len;
  kept_run *r = calloc(1, sizeof *r + bytes + 1);
  if (!r) return NULL;
  char *to = r->texts;
  r->row = *from;
  r->row.name = keep_text(&to, from->name);
  r->row.kind = keep_text(&to, from->kind);
  r->row.host = keep_text(&to, from->host);
  r->row.command = keep_text(&to, from->command);
  r->row.output = keep_text(&to, from->output);
  return r;
}

static int64_t keep_ms(const struct dibs__memory *m, const struct dibs__run_op *op) {
  int64_t setting = m->run_keep_ms < 0 ? DIBS__RUN_KEEP_MS : m->run_keep_ms;
  return setting == 0 || op->keep_ms < 0 ? setting : op->keep_ms;
}

static dibs__status put_run(struct dibs__memory *m, const struct dibs__run_op *op, int64_t now) {
  int64_t keep = keep_ms(m, op);
  if (keep == 0 || find_run(m, &op->row.id)) return DIBS_OK;
  kept_run *r = copy_run(&op->row);
  if (!r) return DIBS_NO_MEMORY;
  r->until = keep > INT64_MAX - now ? INT64_MAX : now + keep;
  r->row.began_ms = now + m->run_wall_ms - op->row.began_ms;
  r->row.ended_ms = now + m->run_wall_ms - op->row.ended_ms;
  dibs__map_add(&m->runs, &r->link, hash_of(&r->row.id));
  return DIBS_OK;
}

/* ---- Listing ---- */

/* The latest end first, then the largest id. */
static int compare_places(int64_t a_ms, const dibs__id *a, int64_t b_ms, const dibs__id *b) {
  if (a_ms != b_ms) return a_ms < b_ms ? 1 : -1;
  return -memcmp(a->b, b->b, sizeof a->b);
}

static int compare_rows(const void *left, const void *right) {
  const struct dibs__run_row *a = left, *b = right;
  return compare_places(a->ended_ms, &a->id, b->ended_ms, &b->id);
}

static bool begins_with(dibs__str name, dibs__str prefix) {
  return name.len >= prefix.len && (prefix.len == 0 || memcmp(name.p, prefix.p, prefix.len) == 0);
}

static bool matches(const struct dibs__run_op *op, const struct dibs__run_row *row) {
  static const dibs__id none = {{0}};
  if (op->name.len && !dibs__str_equal(op->name, row->name)) return false;
  if (op->kind.len && !dibs__str_equal(op->kind, row->kind)) return false;
  if (op->nr && row->nr != op->nr) return false;
  if (!begins_with(row->name, op->prefix) || (op->failed && row->how == DIBS__RUN_DONE)) return false;
  if (op->since_ms && row->ended_ms < op->since_ms) return false;
  if (!op->before_ms) return true;
  if (dibs__id_equal(op->before_id, none)) return row->ended_ms < op->before_ms;
  return compare_places(op->before_ms, &op->before_id, row->ended_ms, &row->id) < 0;
}

static void list_runs(const struct dibs__memory *m, struct dibs__run_op *op, int64_t now) {
  op->off = m->run_keep_ms == 0;
  op->now_ms = now + m->run_wall_ms;
  op->op.status = DIBS_OK;
  if (m->runs.count == 0) return;
  struct dibs__run_row *rows = malloc(m->runs.count * sizeof *rows);
  if (!rows) {
    op->op.status = DIBS_NO_MEMORY;
    return;
  }
  size_t count = 0;
  for (const struct dibs__map_node *node = NULL; (node = dibs__mem_next(&m->runs, node));) {
    const kept_run *r = (const kept_run *)node;
    if (r->until > now && matches(op, &r->row)) rows[count++] = r->row;
  }
  qsort(rows, count, sizeof *rows, compare_rows);
  dibs__run_answer(op, rows, count < op->most ? count : op->most);
  free(rows);
}

void dibs__mem_run(struct dibs__memory *m, struct dibs__run_op *op, int64_t now) {
  if (!dibs__run_valid(op)) return;
  op->op.status = DIBS_OK;
  if (op->op.verb == DIBS__RUN_PUT)
    op->op.status = put_run(m, op, now);
  else if (op->op.verb == DIBS__RUN_LIST)
    list_runs(m, op, now);
  else
    m->run_keep_ms = op->keep_ms;
}
