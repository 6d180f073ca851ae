/* SPDX-License-Identifier: MIT */
/* Counters in memory (R86 to R95): a map by key, and the ledger, a map by source.  Guards are rows of the ledger, too.
 */
#include "drivers/memory/memory_impl.h"
#include "store/counter.h"

#include <stdlib.h>
#include <string.h>

/* A counter. */
struct number {
  struct dibs__map_node link; /* of memory.counters; first */
  int64_t number;
  uint32_t len;
  char key[];
};

/* A row of the ledger. */
struct source {
  struct dibs__map_node link; /* of memory.sources; first */
  dibs__id id;
  uint64_t sequence; /* of a guard: its largest fence */
  int64_t until;
  size_t refused_len;
  uint8_t *refused; /* of the latest batch; NULL: no item was refused */
};

enum { SWEEP_FROM = 64 }; /* rows of the ledger, before old ones are searched */

static struct number *find_number(const struct dibs__memory *m, dibs__str key) {
  struct dibs__map_node *link = dibs__map_head(&m->counters, dibs__hash(key.p, key.len));
  for (; link; link = link->next) {
    struct number *n = (struct number *)link;
    if (dibs__str_equal(dibs__str_of(n->key, n->len), key)) return n;
  }
  return NULL;
}

static struct number *add_number(struct dibs__memory *m, dibs__str key) {
  struct number *n = calloc(1, sizeof *n + key.len + 1);
  if (!n) return NULL;
  n->len = key.len;
  memcpy(n->key, key.p, key.len);
  dibs__map_add(&m->counters, &n->link, dibs__hash(key.p, key.len));
  return n;
}

static struct source *find_source(const struct dibs__memory *m, const dibs__id *id) {
  struct dibs__map_node *link = dibs__map_head(&m->sources, dibs__hash(id->b, sizeof id->b));
  while (link && !dibs__id_equal(((struct source *)link)->id, *id)) link = link->next;
  return (struct source *)link;
}

void dibs__mem_sources_forget(struct dibs__memory *m, int64_t before) {
  struct dibs__map_node *next, *node = dibs__mem_next(&m->sources, NULL);
  for (; node; node = next) {
    next = dibs__mem_next(&m->sources, node);
    struct source *s = (struct source *)node;
    if (s->until > before) continue;
    dibs__map_remove(&m->sources, node);
    free(s->refused);
    free(s);
  }
}

void dibs__mem_rates_forget(struct dibs__memory *m, int64_t before) {
  struct dibs__map_node *next, *node = dibs__mem_next(&m->rates, NULL);
  for (; node; node = next) {
    next = dibs__mem_next(&m->rates, node);
    if (((struct dibs__mem_rate *)node)->full_ns / DIBS__NS_PER_MS >= before) continue;
    dibs__map_remove(&m->rates, node);
    free(node);
  }
}

void dibs__mem_counters_forget(struct dibs__memory *m) {
  struct dibs__map_node *next, *node = dibs__mem_next(&m->counters, NULL);
  for (; node; node = next) {
    next = dibs__mem_next(&m->counters, node);
    dibs__map_remove(&m->counters, node);
    free(node);
  }
  dibs__mem_sources_forget(m, INT64_MAX);
  dibs__mem_rates_forget(m, INT64_MAX);
}

static struct source *keep_source(struct dibs__memory *m, const dibs__id *id, int64_t now) {
  struct source *s = find_source(m, id);
  if (s) return s;
  if (m->sources.count >= SWEEP_FROM && m->sources.count >= m->sources_swept * 2) {
    dibs__mem_sources_forget(m, now);
    m->sources_swept = m->sources.count;
  }
  s = calloc(1, sizeof *s);
  if (!s) return NULL;
  s->id = *id;
  s->until = now + DIBS__COUNTER_KEEP_MS;
  dibs__map_add(&m->sources, &s->link, dibs__hash(id->b, sizeof id->b));
  return s;
}

/* ---- ADD ---- */

/* The rows of all items, to be freed, before any is changed: after that nothing fails half way.  NULL: no memory. */
static struct number **make_rows(struct dibs__memory *m, const struct dibs__counter_op *op) {
  struct number **rows = malloc(op->count * sizeof *rows);
  for (uint32_t i = 0; rows && i < op->count; i++) {
    rows[i] = find_number(m, op->items[i].key);
    if (!rows[i]) rows[i] = add_number(m, op->items[i].key);
    if (rows[i]) continue;
    free(rows);
    return NULL;
  }
  return rows;
}

static void replay(struct dibs__counter_op *op, const struct source *s) {
  op->op.status = DIBS_REPLAY;
  bool latest = s->sequence == op->sequence;
  dibs__counter_read_refused(op, s->refused, latest ? s->refused_len : 0);
}

static bool keep_refused(struct source *s, const struct dibs__counter_op *op) {
  uint8_t refused[DIBS__COUNTER_REFUSED_MAX];
  size_t len = dibs__counter_write_refused(op, refused);
  uint8_t *copy = len ? malloc(len) : NULL;
  if (len && !copy) return false;
  if (copy) memcpy(copy, refused, len);
  free(s->refused);
  s->refused = copy;
  s->refused_len = len;
  return true;
}

/* What each item will be answered; adds nothing. */
static void decide_items(struct number *const rows[], struct dibs__counter_op *op) {
  for (uint32_t i = 0; i < op->count; i++) {
    int64_t sum;
    op->items[i].status = __builtin_add_overflow(rows[i]->number, op->items[i].delta, &sum) ? DIBS_FULL : DIBS_OK;
  }
}

/* false: no memory, and nothing was added. */
static bool add_items(struct dibs__memory *m, struct dibs__counter_op *op, struct source *s) {
  struct number **rows = make_rows(m, op);
  if (!rows) return false;
  decide_items(rows, op);
  bool kept = keep_refused(s, op);
  for (uint32_t i = 0; kept && i < op->count; i++)
    if (op->items[i].status == DIBS_OK) rows[i]->number += op->items[i].delta;
  free(rows);
  return kept;
}

static void add_batch(struct dibs__memory *m, struct dibs__counter_op *op, int64_t now) {
  struct source *s = find_source(m, &op->source);
  if (s && s->sequence >= op->sequence) {
    replay(op, s);
    return;
  }
  const struct source *guard = op->fence.v ? keep_source(m, &op->guard, now) : NULL;
  op->op.status = DIBS_NO_MEMORY;
  if (op->fence.v && !guard) return;
  if (guard && guard->sequence > op->fence.v) {
    op->op.status = DIBS_STALE;
    return;
  }
  s = keep_source(m, &op->source, now);
  if (!s || !add_items(m, op, s)) return;
  s->sequence = op->sequence;
  s->until = now + dibs__counter_keep_ms(op);
  struct source *raised = op->fence.v ? find_source(m, &op->guard) : NULL;
  if (raised) {
    raised->sequence = op->fence.v;
    raised->until = now + dibs__counter_keep_ms(op);
  }
  op->op.status = DIBS_OK;
}

/* ---- READ, LIST ---- */

static void read_items(const struct dibs__memory *m, struct dibs__counter_op *op) {
  for (uint32_t i = 0; i < op->count; i++) {
    const struct number *n = find_number(m, op->items[i].key);
    op->items[i].status = n ? DIBS_OK : DIBS_NOT_FOUND;
    op->items[i].number = n ? n->number : 0;
  }
  op->op.status = DIBS_OK;
}

static int compare_rows(const void *left, const void *right) {
  const struct dibs__counter_row *a = left, *b = right;
  return dibs__str_before(a->key, b->key) ? -1 : dibs__str_before(b->key, a->key);
}

static void list_numbers(const struct dibs__memory *m, struct dibs__counter_op *op) {
  const struct dibs__list filter = {.prefix = op->prefix, .after = op->after};
  op->op.status = DIBS_OK;
  if (m->counters.count == 0) return;
  struct dibs__counter_row *rows = malloc(m->counters.count * sizeof *rows);
  if (!rows) {
    op->op.status = DIBS_NO_MEMORY;
    return;
  }
  size_t count = 0;
  for (const struct dibs__map_node *node = NULL; (node = dibs__mem_next(&m->counters, node));) {
    const struct number *n = (const struct number *)node;
    dibs__str key = dibs__str_of(n->key, n->len);
    if (dibs__list_has(&filter, key)) rows[count++] = (struct dibs__counter_row){key, n->number};
  }
  qsort(rows, count, sizeof *rows, compare_rows);
  dibs__counter_answer(op, rows, count < op->most ? count : op->most);
  free(rows);
}

/* ---- TAKE ---- */

DIBS__MODULE_API struct dibs__mem_rate *dibs__mem_rate_find(const struct dibs__memory *m, dibs__str key) {
  struct dibs__map_node *link = dibs__map_head(&m->rates, dibs__hash(key.p, key.len));
  for (; link; link = link->next) {
    struct dibs__mem_rate *r = (struct dibs__mem_rate *)link;
    if (dibs__str_equal(dibs__str_of(r->key, r->len), key)) return r;
  }
  return NULL;
}

DIBS__MODULE_API struct dibs__mem_rate *dibs__mem_rate_keep(struct dibs__memory *m, dibs__str key, int64_t now) {
  struct dibs__mem_rate *r = dibs__mem_rate_find(m, key);
  if (r) return r;
  if (m->rates.count >= SWEEP_FROM && m->rates.count >= m->rates_swept * 2) {
    dibs__mem_rates_forget(m, now);
    m->rates_swept = m->rates.count;
  }
  r = calloc(1, sizeof *r + key.len + 1);
  if (!r) return NULL;
  r->len = key.len;
  memcpy(r->key, key.p, key.len);
  dibs__map_add(&m->rates, &r->link, dibs__hash(key.p, key.len));
  return r;
}

static void take_tokens(struct dibs__memory *m, struct dibs__counter_op *op, int64_t now) {
  int64_t now_ns = now * DIBS__NS_PER_MS, step_ns = dibs__rate_step_ns(op), most_ns = now_ns + dibs__rate_span_ns(op);
  struct dibs__mem_rate *r = dibs__mem_rate_keep(m, op->key, now);
  if (!r) {
    op->op.status = DIBS_NO_MEMORY;
    return;
  }
  if (r->full_ns < now_ns) r->full_ns = now_ns;
  if (r->full_ns > most_ns) r->full_ns = most_ns;
  if (r->full_ns + step_ns > most_ns) {
    dibs__rate_refuse(op, r->full_ns - now_ns);
    return;
  }
  r->full_ns += step_ns;
  op->op.status = DIBS_OK;
}

DIBS__MODULE_API void dibs__mem_counter(struct dibs__memory *m, struct dibs__counter_op *op, int64_t now) {
  if (!dibs__counter_valid(op, false)) return;
  if (op->table)
    op->op.status = DIBS_UNSUPPORTED;
  else if (op->op.verb == DIBS__COUNTER_ADD)
    add_batch(m, op, now);
  else if (op->op.verb == DIBS__COUNTER_READ)
    read_items(m, op);
  else if (op->op.verb == DIBS__COUNTER_TAKE)
    take_tokens(m, op, now);
  else
    list_numbers(m, op);
}
