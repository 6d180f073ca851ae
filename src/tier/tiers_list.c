/* SPDX-License-Identifier: MIT */
/*
 * Listing: of each name what the tier says that has its bucket; what another tier remembers of it is no lease any more.
 * With one tier in use rows pass through; with several they are kept, sorted by name, and given then.
 */
#include "tier/tiers_parts.h"

struct row {
  struct dibs__lease_row row; /* its texts are in the same memory */
  size_t nth;
  char text[];
};

struct listing {
  struct tiers *t;
  const struct dibs__list *list;
  uint32_t tier;
  bool keeps, no_memory;
  int stopped;
  struct row **rows;
  size_t count, room;
};

static bool keep(struct listing *l, const struct dibs__lease_row *row) {
  if (l->count == l->room) {
    size_t room = l->room ? 2 * l->room : 64;
    struct row **more = realloc(l->rows, room * sizeof(struct row *));
    if (!more) return false;
    l->rows = more;
    l->room = room;
  }
  struct row *made = malloc(sizeof *made + row->name.len + row->owner.len + 1);
  if (!made) return false;
  made->row = *row;
  made->nth = l->count;
  memcpy(made->text, row->name.p, row->name.len);
  if (row->owner.len) memcpy(made->text + row->name.len, row->owner.p, row->owner.len);
  made->row.name.p = made->text;
  made->row.owner.p = made->text + row->name.len;
  l->rows[l->count++] = made;
  return true;
}

static int take(const struct dibs__lease_row *row, void *user) {
  struct listing *l = user;
  dibs__mutex_lock(&l->t->lock);
  bool theirs = l->t->here[dibs__bucket(row->name)].tier == l->tier;
  dibs__mutex_unlock(&l->t->lock);
  if (!theirs) return 0;
  if (!l->keeps) return l->stopped = l->list->row(row, l->list->user);
  l->no_memory = l->no_memory || !keep(l, row);
  return l->no_memory;
}

static int by_name(const void *a, const void *b) {
  const struct row *x = *(struct row *const *)a, *y = *(struct row *const *)b;
  size_t len = x->row.name.len < y->row.name.len ? x->row.name.len : y->row.name.len;
  int order = memcmp(x->row.name.p, y->row.name.p, len);
  if (order == 0 && x->row.name.len != y->row.name.len) order = x->row.name.len < y->row.name.len ? -1 : 1;
  return order ? order : x->nth < y->nth ? -1 : 1;
}

/* Which tiers have something of it. */
static uint32_t which(struct listing *l) {
  uint32_t set = 0;
  dibs__mutex_lock(&l->t->lock);
  for (uint32_t b = 0; b < DIBS__BUCKETS; b++)
    if (l->t->here[b].mandate.epoch) set |= 1u << l->t->here[b].tier;
  if (l->list->name.len) set = 1u << l->t->here[dibs__bucket(l->list->name)].tier;
  dibs__mutex_unlock(&l->t->lock);
  return set;
}

static dibs__status list_tier(struct listing *l, struct tiers_session *s, dibs__tick by, struct dibs__said *said) {
  struct tier *tier = &l->t->tiers[l->tier];
  struct dibs__session **inner = &s->inner[l->tier];
  struct dibs__list list = *l->list;
  list.row = take;
  list.user = l;
  dibs__status status = *inner ? DIBS_OK : dibs__tier_call(tier, inner, NULL, 0, by, said);
  if (status == DIBS_OK) status = tier->store->driver->list(*inner, &list, by, said);
  if (status != DIBS_OK && said->dead) dibs__tier_hang_up(tier, inner);
  said->dead = false;
  return status;
}

dibs__status dibs__tiers_list(struct dibs__session *session, const struct dibs__list *list, dibs__tick by,
                              struct dibs__said *said) {
  struct listing l = {.t = tiers_of(session->store), .list = list};
  *said = (struct dibs__said){.sent = dibs__tick_now()};
  uint32_t set = which(&l);
  dibs__status status = DIBS_OK;
  l.keeps = (set & (set - 1)) != 0;
  for (l.tier = 0; l.tier < TIERS_ALL && status == DIBS_OK && !l.stopped; l.tier++)
    if (set >> l.tier & 1) status = list_tier(&l, (struct tiers_session *)session, by, said);
  if (status == DIBS_OK && l.no_memory) status = DIBS_NO_MEMORY;
  if (l.count > 0) qsort(l.rows, l.count, sizeof l.rows[0], by_name);
  for (size_t i = 0; i < l.count; i++) {
    if (status == DIBS_OK && !l.stopped) l.stopped = list->row(&l.rows[i]->row, list->user);
    free(l.rows[i]);
  }
  free(l.rows);
  return status;
}
