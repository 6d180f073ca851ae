/* SPDX-License-Identifier: MIT */
/* Reports: what each client said last. */
#include "drivers/memory_parts.h"

#include <stdlib.h>
#include <string.h>

typedef struct dibs__mem_report report;

static uint64_t hash_of(const dibs__id *id) {
  return dibs__hash(id->b, sizeof id->b);
}

static report *find(const struct dibs__memory *m, const dibs__id *id) {
  struct dibs__map_node *link = dibs__map_head(&m->reports, hash_of(id));
  while (link && memcmp(((report *)link)->id.b, id->b, sizeof id->b) != 0) link = link->next;
  return (report *)link;
}

static void drop(struct dibs__memory *m, report *r) {
  if (!r) return;
  dibs__map_remove(&m->reports, &r->link);
  free(r);
}

void dibs__mem_reports_forget(struct dibs__memory *m, int64_t now, int64_t keep_ms) {
  struct dibs__map_node *next, *node = dibs__mem_next(&m->reports, NULL);
  for (; node; node = next) {
    next = dibs__mem_next(&m->reports, node);
    if (now - ((report *)node)->seen > keep_ms) drop(m, (report *)node);
  }
}

static bool put(struct dibs__memory *m, const struct dibs__report_op *op, int64_t now) {
  report *r = find(m, &op->id);
  if (!r) {
    r = calloc(1, sizeof *r);
    if (!r) return false;
    r->id = op->id;
    dibs__map_add(&m->reports, &r->link, hash_of(&op->id));
  }
  r->seen = now;
  r->len = op->data.len;
  if (r->len) memcpy(r->data, op->data.p, r->len);
  return true;
}

static bool hand_out(const struct dibs__memory *m, struct dibs__report_op *op, int64_t now) {
  size_t count = 0, bytes = 0;
  const struct dibs__map_node *node = NULL;
  while ((node = dibs__mem_next(&m->reports, node)) && count < DIBS__REPORTS_MAX) {
    if (now - ((const report *)node)->seen > op->keep_ms) continue;
    count++;
    bytes += ((const report *)node)->len;
  }
  if (count == 0) return true;
  op->got = malloc(count * sizeof *op->got + bytes);
  if (!op->got) return false;
  char *at = (char *)(op->got + count);
  for (node = NULL; op->got_count < count;) {
    node = dibs__mem_next(&m->reports, node);
    const report *r = (const report *)node;
    if (now - r->seen > op->keep_ms) continue;
    memcpy(at, r->data, r->len);
    op->got[op->got_count++] =
        (struct dibs__report){.id = r->id, .age_ms = now - r->seen, .data = dibs__str_of(at, r->len)};
    at += r->len;
  }
  return true;
}

void dibs__mem_report(struct dibs__memory *m, struct dibs__report_op *op, int64_t now) {
  bool puts = op->op.verb == DIBS__REPORT_PUT, drops = op->op.verb == DIBS__REPORT_DROP;
  op->got = NULL;
  op->got_count = 0;
  op->op.status = DIBS_INVALID;
  if (op->op.verb > DIBS__REPORT_DROP || (!drops && op->keep_ms <= 0) || (puts && op->data.len > DIBS__REPORT_MAX))
    return;
  bool enough = true;
  if (drops) drop(m, find(m, &op->id));
  if (puts) dibs__mem_reports_forget(m, now, op->keep_ms);
  if (puts) enough = put(m, op, now);
  if (!drops && (!puts || op->want)) enough = enough && hand_out(m, op, now);
  op->op.status = enough ? DIBS_OK : DIBS_NO_MEMORY;
}
