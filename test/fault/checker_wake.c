/* SPDX-License-Identifier: MIT */
/*
 * No lost wake-up: while a name is certainly free, no active waiter sleeps for longer than the bound.
 *
 * A name may be taken without a record of it: the server was unreachable, or a process was stopped or killed between
 * the store's grant and its own record, and the lease ends with its ttl; an offer to a stopped process passes on after
 * its time; a freed lease is released a little later.  All these count as taken.
 */
#include "checker.h"

#include <stdlib.h>

enum {
  FREED_MS = 300,  /* between dibs_lease_free and its release */
  BACK_MS = 3000,  /* beyond the ttl, after the server was unreachable: clients reconnect with growing pauses */
  LOST_MS = 2000,  /* beyond the ttl: offers to dead waiters, and noticing that they are dead */
  EXPIRES_MS = 100 /* beyond the ttl, for a killed holder */
};

struct span {
  int64_t from, to;
};

static int by_from(const void *a, const void *b) {
  const struct span *x = a, *y = b;
  return x->from < y->from ? -1 : x->from > y->from;
}

static int64_t later(int64_t at, int64_t ms) {
  return at + ms * DIBS__NS_PER_MS;
}

/* The latest instant at which the store had the lease back, if its party was not disturbed. */
static int64_t returned_by(const struct check *check, const struct incarnation *incarnation) {
  if (incarnation->released_at && (incarnation->release_status == DIBS_OK || incarnation->release_status == DIBS_LOST))
    return incarnation->released_at;
  if (incarnation->letting_at && !incarnation->released_at) return later(incarnation->letting_at, FREED_MS);
  if (incarnation->letting_at) return later(incarnation->letting_at, incarnation->ttl_ms + EXPIRES_MS);
  return check->over;
}

static size_t add_excuses(const struct check *check, const struct incarnation *incarnation, struct span *spans) {
  size_t count = 0;
  int64_t end = incarnation->gone_at       ? incarnation->gone_at
                : incarnation->released_at ? incarnation->released_at
                                           : check->over;
  for (size_t i = 0; i < check->disturbance_count; i++) {
    const struct disturbance *d = &check->disturbances[i];
    if (!check_concerns(d, incarnation) || d->from > later(end, FREED_MS) || d->to < incarnation->request_at) continue;
    if (d->party == 0) {
      spans[count++] = (struct span){d->from, later(d->to, incarnation->ttl_ms + BACK_MS)};
      continue;
    }
    int64_t longest = later(d->from, incarnation->ttl_ms + LOST_MS);
    spans[count++] = (struct span){d->from, d->to < longest ? later(d->to, FREED_MS) : longest};
  }
  return count;
}

/* The spans in which the name was taken, or may have been: sorted and joined. */
static struct span *taken_spans(const struct check *check, struct incarnation **lives, size_t count, size_t *spans) {
  struct span *all = malloc(((count + 1) * (1 + check->disturbance_count)) * sizeof *all);
  if (!all) abort();
  size_t n = 0;
  for (size_t i = 0; i < count; i++) {
    const struct incarnation *incarnation = lives[i];
    bool killed_holding = incarnation->grant_at != 0 && incarnation->letting_at == 0;
    if (incarnation->grant_at != 0 && !(killed_holding && check_disturbed(check, incarnation)))
      all[n++] = (struct span){incarnation->grant_at, returned_by(check, incarnation)};
    else if (incarnation->grant_at != 0)
      all[n++] = (struct span){incarnation->grant_at, later(incarnation->until, EXPIRES_MS)};
    n += add_excuses(check, incarnation, all + n);
  }
  qsort(all, n, sizeof *all, by_from);
  size_t kept = 0;
  for (size_t i = 0; i < n; i++) {
    if (kept > 0 && all[i].from <= all[kept - 1].to) {
      if (all[i].to > all[kept - 1].to) all[kept - 1].to = all[i].to;
    } else {
      all[kept++] = all[i];
    }
  }
  *spans = kept;
  return all;
}

/* Until when the request certainly waited. */
static int64_t waited_until(const struct check *check, const struct incarnation *incarnation) {
  if (incarnation->grant_at) return incarnation->grant_at;
  if (incarnation->gone_at) return incarnation->gone_at;
  for (size_t i = 0; i < check->disturbance_count; i++) {
    const struct disturbance *d = &check->disturbances[i];
    if (d->party == incarnation->party && d->to == INT64_MAX && d->from > incarnation->request_at) return d->from;
  }
  return check->over;
}

static void check_sleep(struct check *check, const struct incarnation *incarnation, int64_t from, int64_t to) {
  int64_t waits = waited_until(check, incarnation);
  if (from < incarnation->request_at) from = incarnation->request_at;
  if (to > waits) to = waits;
  if (to > check->over) to = check->over;
  if (to <= from) return;
  if (to - from > check->longest_sleep) check->longest_sleep = to - from;
  if (to - from > check->bounds->wake_ms * DIBS__NS_PER_MS)
    broken(check, "waking", "name-%u was free from %.3f ms, and party %u lease %u slept until %.3f ms",
           incarnation->name, check_ms(check, from), incarnation->party, incarnation->number, check_ms(check, to));
}

void check_wakes(struct check *check, uint16_t name, struct incarnation **lives, size_t count) {
  size_t spans;
  struct span *taken = taken_spans(check, lives, count, &spans);
  (void)name;
  for (size_t i = 0; i < count; i++) {
    const struct incarnation *incarnation = lives[i];
    if (incarnation->wait_ms == 0) continue;
    size_t low = 0, high = spans; /* the first span that ends after the request began */
    while (low < high) {
      size_t middle = (low + high) / 2;
      if (taken[middle].to > incarnation->request_at)
        high = middle;
      else
        low = middle + 1;
    }
    int64_t waits = waited_until(check, incarnation), free_from = low > 0 ? taken[low - 1].to : check->began;
    for (size_t s = low; s <= spans && free_from < waits; s++) {
      check_sleep(check, incarnation, free_from, s < spans ? taken[s].from : check->over);
      free_from = s < spans ? taken[s].to : INT64_MAX;
    }
  }
  free(taken);
}
