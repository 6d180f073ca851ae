/* SPDX-License-Identifier: MIT */
/*
 * Groups: before an element of a group runs, the name or record it is about is copied; if one of the group fails, the
 * copies take the places of what they were made from.  All memory is taken beforehand, so undoing can't fail.  Fences
 * that were drawn stay drawn.
 */
#include "drivers/memory_parts.h"

#include <stdlib.h>
#include <string.h>

typedef struct dibs__mem_claim claim;
typedef struct dibs__mem_name name;
typedef struct dibs__mem_record record;

struct dibs__mem_saved {
  struct dibs__mem_saved *next;
  bool is_record;
  name *n;       /* the copy, NULL if there was none */
  claim *claims; /* copies, chained by `after` */
  record *r;
  uint32_t len;
  char text[]; /* of the name or key */
};

static dibs__str text_of(const struct dibs__mem_saved *s) {
  return dibs__str_of(s->text, s->len);
}

static bool save_row(struct dibs__mem_saved *s, const struct dibs__mem_row *row) {
  for (const claim *c = row->first; c; c = c->after) {
    claim *twin = malloc(sizeof *c + c->owner_len + 1);
    if (!twin) return false;
    memcpy(twin, c, sizeof *c + c->owner_len + 1);
    twin->name = s->n;
    twin->before = NULL;
    twin->after = s->claims;
    s->claims = twin;
  }
  return true;
}

static bool save_name(struct dibs__mem_saved *s, const name *n) {
  s->n = calloc(1, sizeof *n + n->len + 1);
  if (!s->n) return false;
  s->n->link.hash = n->link.hash;
  s->n->soonest = INT64_MAX;
  s->n->exact = true;
  s->n->len = n->len;
  memcpy(s->n->text, n->text, n->len);
  if (n->breaks) {
    s->n->breaks = malloc(DIBS__MEM_BREAKS * sizeof *n->breaks);
    if (!s->n->breaks) return false;
    memcpy(s->n->breaks, n->breaks, DIBS__MEM_BREAKS * sizeof *n->breaks);
    s->n->break_count = n->break_count;
  }
  return save_row(s, &n->holders) && save_row(s, &n->offered) && save_row(s, &n->waiting) && save_row(s, &n->asleep);
}

static bool save_record(struct dibs__mem_saved *s, const record *r) {
  s->r = malloc(sizeof *r + r->key_len + 1);
  if (!s->r) return false;
  memcpy(s->r, r, sizeof *r + r->key_len + 1);
  if (!r->data) return true;
  s->r->data = malloc((size_t)r->data_len + 1);
  if (s->r->data) memcpy(s->r->data, r->data, (size_t)r->data_len + 1);
  return s->r->data != NULL;
}

bool dibs__mem_save(struct dibs__memory *m, const struct dibs__op *op, struct dibs__mem_saved **saved) {
  bool is_record = op->family == DIBS__FAM_RECORD;
  dibs__str text = is_record ? ((const struct dibs__record_op *)op)->key : ((const struct dibs__lease_op *)op)->name;
  for (const struct dibs__mem_saved *s = *saved; s; s = s->next)
    if (s->is_record == is_record && dibs__str_equal(text_of(s), text)) return true;
  struct dibs__mem_saved *s = calloc(1, sizeof *s + text.len + 1);
  if (!s) return false;
  s->next = *saved;
  *saved = s;
  s->is_record = is_record;
  s->len = text.len;
  if (text.len) memcpy(s->text, text.p, text.len);
  if (is_record) {
    const record *r = dibs__mem_record_find(m, text);
    return !r || save_record(s, r);
  }
  const name *n = dibs__mem_name_find(m, text);
  return !n || save_name(s, n);
}

static void empty_row(struct dibs__memory *m, const struct dibs__mem_row *row) {
  while (row->first) dibs__mem_claim_remove(m, row->first);
}

static void restore_name(struct dibs__memory *m, struct dibs__mem_saved *s) {
  name *n = dibs__mem_name_find(m, text_of(s));
  if (n) {
    empty_row(m, &n->holders);
    empty_row(m, &n->offered);
    empty_row(m, &n->waiting);
    empty_row(m, &n->asleep);
    free(n->breaks);
    n->breaks = NULL;
    dibs__mem_name_drop_if_idle(m, n);
  }
  if (!s->n) return;
  dibs__map_add(&m->names, &s->n->link, s->n->link.hash);
  while (s->claims) {
    claim *c = s->claims;
    s->claims = c->after;
    c->after = NULL;
    dibs__mem_claim_link(m, c);
  }
  s->n = NULL;
}

void dibs__mem_restore(struct dibs__memory *m, struct dibs__mem_saved **saved) {
  for (struct dibs__mem_saved *s = *saved; s; s = s->next) {
    if (!s->is_record) {
      restore_name(m, s);
      continue;
    }
    record *r = dibs__mem_record_find(m, text_of(s));
    if (r) dibs__mem_record_remove(m, r);
    if (s->r) dibs__map_add(&m->records, &s->r->link, s->r->link.hash);
    s->r = NULL;
  }
  dibs__mem_forget_saved(saved);
}

void dibs__mem_forget_saved(struct dibs__mem_saved **saved) {
  while (*saved) {
    struct dibs__mem_saved *s = *saved;
    *saved = s->next;
    while (s->claims) {
      claim *c = s->claims;
      s->claims = c->after;
      free(c);
    }
    if (s->n) free(s->n->breaks);
    free(s->n);
    if (s->r) free(s->r->data);
    free(s->r);
    free(s);
  }
}
