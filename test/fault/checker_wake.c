/* SPDX-License-Identifier: MIT */
/*
 * No lost wake-up: while a name is surely free, nobody who is awake sleeps for longer than the bound.
 *
 * A name may be taken though nobody told of it: the server was away, or somebody was stopped or killed between the
 * store's grant and its own note, and the lease ends with its ttl; an offer to one who is stopped passes on after its
 * time; a lease that was freed is released a little later.  All these count as taken.
 */
#include "checker.h"

#include <stdlib.h>

enum {
  FREED_MS = 300,  /* between dibs_lease_free and its release */
  BACK_MS = 3000,  /* beyond the ttl, after the server was away: connections are made again, with pauses that grow */
  LOST_MS = 2000,  /* beyond the ttl: offers to those who are gone, and finding that they are */
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

/* When the store had it back at the latest, if its party was not disturbed. */
static int64_t had_until(const struct check *check, const struct life *life) {
  if (life->released_at && (life->release_status == DIBS_OK || life->release_status == DIBS_LOST))
    return life->released_at;
  if (life->letting_at && !life->released_at) return later(life->letting_at, FREED_MS);
  if (life->letting_at) return later(life->letting_at, life->ttl_ms + EXPIRES_MS);
  return check->over;
}

static size_t add_excuses(const struct check *check, const struct life *life, struct span *spans) {
  size_t count = 0;
  int64_t end = life->gone_at ? life->gone_at : life->released_at ? life->released_at : check->over;
  for (size_t i = 0; i < check->disturbance_count; i++) {
    const struct disturbance *d = &check->disturbances[i];
    if (!check_concerns(d, life) || d->from > later(end, FREED_MS) || d->to < life->ask_at) continue;
    if (d->party == 0) {
      spans[count++] = (struct span){d->from, later(d->to, life->ttl_ms + BACK_MS)};
      continue;
    }
    int64_t longest = later(d->from, life->ttl_ms + LOST_MS);
    spans[count++] = (struct span){d->from, d->to < longest ? later(d->to, FREED_MS) : longest};
  }
  return count;
}

/* When the name was taken, or may have been: sorted, joined. */
static struct span *taken_spans(const struct check *check, struct life **lives, size_t count, size_t *spans) {
  struct span *all = malloc(((count + 1) * (1 + check->disturbance_count)) * sizeof *all);
  if (!all) abort();
  size_t n = 0;
  for (size_t i = 0; i < count; i++) {
    const struct life *life = lives[i];
    bool killed_holding = life->grant_at != 0 && life->letting_at == 0;
    if (life->grant_at != 0 && !(killed_holding && check_disturbed(check, life)))
      all[n++] = (struct span){life->grant_at, had_until(check, life)};
    else if (life->grant_at != 0)
      all[n++] = (struct span){life->grant_at, later(life->until, EXPIRES_MS)};
    n += add_excuses(check, life, all + n);
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

/* Until when it surely waited. */
static int64_t waited_until(const struct check *check, const struct life *life) {
  if (life->grant_at) return life->grant_at;
  if (life->gone_at) return life->gone_at;
  for (size_t i = 0; i < check->disturbance_count; i++) {
    const struct disturbance *d = &check->disturbances[i];
    if (d->party == life->party && d->to == INT64_MAX && d->from > life->ask_at) return d->from;
  }
  return check->over;
}

static void check_sleep(struct check *check, const struct life *life, int64_t from, int64_t to) {
  int64_t waits = waited_until(check, life);
  if (from < life->ask_at) from = life->ask_at;
  if (to > waits) to = waits;
  if (to > check->over) to = check->over;
  if (to <= from) return;
  if (to - from > check->longest_sleep) check->longest_sleep = to - from;
  if (to - from > check->bounds->wake_ms * DIBS__NS_PER_MS)
    broken(check, "waking", "name-%u was free from %.3f ms, and party %u lease %u slept until %.3f ms", life->name,
           check_ms(check, from), life->party, life->number, check_ms(check, to));
}

void check_wakes(struct check *check, uint16_t name, struct life **lives, size_t count) {
  size_t spans;
  struct span *taken = taken_spans(check, lives, count, &spans);
  (void)name;
  for (size_t i = 0; i < count; i++) {
    const struct life *life = lives[i];
    if (life->wait_ms == 0) continue;
    size_t low = 0, high = spans; /* the first span that ends after it asked */
    while (low < high) {
      size_t middle = (low + high) / 2;
      if (taken[middle].to > life->ask_at)
        high = middle;
      else
        low = middle + 1;
    }
    int64_t waits = waited_until(check, life), free_from = low > 0 ? taken[low - 1].to : check->began;
    for (size_t s = low; s <= spans && free_from < waits; s++) {
      check_sleep(check, life, free_from, s < spans ? taken[s].from : check->over);
      free_from = s < spans ? taken[s].to : INT64_MAX;
    }
  }
  free(taken);
}
