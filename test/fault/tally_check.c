/* SPDX-License-Identifier: MIT */
/*
 * The rules:
 *   acknowledged: a take that answered OK or REPLAY has a claim with the amount that it got; a give that did, a given
 * claim refused:      a take that answered FULL, UNAVAILABLE and the like has no claim unknown:      a take without an
 * answer (UNKNOWN, or its client was killed) has one claim or none strangers:    a client requested every claim, of
 * that stock, and at least its amount given:        a client requested to give every claim that is given counts: used
 * is the sum of the claims that are not given back limits:       used is within the limit, at the end and in each
 * reading
 */
#include "tally.h"

#include <dirent.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SHOWN_MAX = 20, NOT_HEARD = -1, NOT_REQUESTED = -2 };

struct requested {
  char claim[TALLY_CLAIM], stock[TALLY_STOCK];
  int64_t amount, got, gave;
  int take, give; /* statuses; NOT_HEARD: the client was killed before the answer; NOT_REQUESTED: no client requested a
                   * give */
  bool there;
};

struct check {
  struct requested *requested;
  size_t count, capacity;
  uint64_t seen;
  int broken;
};

static void broken(struct check *check, const char *rule, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
static void broken(struct check *check, const char *rule, const char *format, ...) {
  va_list args;
  if (++check->broken > SHOWN_MAX) return; /* the first ones are enough */
  printf("BROKEN  %s: ", rule);
  va_start(args, format);
  vprintf(format, args);
  va_end(args);
  putchar('\n');
}

/* ---- Reading ---- */

static int by_claim(const void *a, const void *b) {
  return strcmp(((const struct requested *)a)->claim, ((const struct requested *)b)->claim);
}

static struct requested *find(const struct check *check, const char *claim, size_t from) {
  struct requested key;
  snprintf(key.claim, sizeof key.claim, "%s", claim);
  return bsearch(&key, check->requested + from, check->count - from, sizeof key, by_claim);
}

static void add(struct check *check, const struct requested *requested) {
  if (check->count == check->capacity) {
    check->capacity = check->capacity ? 2 * check->capacity : 4096;
    check->requested = realloc(check->requested, check->capacity * sizeof *check->requested);
    if (!check->requested) abort();
  }
  check->requested[check->count++] = *requested;
}

/* Requests first, then their answers: the threads of a client write interleaved lines. */
static bool read_requests(struct check *check, FILE *file) {
  struct requested one = {.take = NOT_HEARD, .give = NOT_REQUESTED};
  char line[160];
  while (fgets(line, sizeof line, file))
    if (line[0] == 'T' && sscanf(line, "T %23s %39s %ld", one.stock, one.claim, &one.amount) == 3) add(check, &one);
  return !ferror(file);
}

static bool read_look(struct check *check, const char *line) {
  char stock[TALLY_STOCK];
  long used, limit;
  if (sscanf(line, "S %23s %ld %ld", stock, &used, &limit) != 3) return false;
  check->seen++;
  if (used < 0 || used > limit) broken(check, "limits", "a client read %s with %ld of %ld used", stock, used, limit);
  return true;
}

static bool read_ends(struct check *check, FILE *file, size_t from) {
  char line[160], claim[TALLY_CLAIM];
  while (fgets(line, sizeof line, file)) {
    int status = NOT_HEARD;
    long got = 0;
    bool ends = line[0] == 't' || line[0] == 'g';
    if (line[0] == 'T') continue;
    if (line[strlen(line) - 1] != '\n') return false; /* one write() is complete or missing */
    if (line[0] == 'S') {
      if (!read_look(check, line)) return false;
      continue;
    }
    if (ends ? sscanf(line + 1, "%39s %d %ld", claim, &status, &got) != 3 : sscanf(line + 1, "%*s %39s", claim) != 1)
      return false;
    struct requested *requested = find(check, claim, from);
    if (!requested) return false;
    if (line[0] == 't') {
      /* If a repetition after UNKNOWN is refused, that says nothing about the first attempt, which may still land. */
      bool taken = status == DIBS_OK || status == DIBS_REPLAY;
      if (requested->take != DIBS_UNKNOWN || taken) requested->take = status;
      requested->got = got;
    } else if (line[0] == 'G') {
      if (requested->give == NOT_REQUESTED) requested->give = NOT_HEARD;
    } else if (requested->give != DIBS_OK && requested->give != DIBS_REPLAY) {
      requested->give = status;
      requested->gave = got;
    }
  }
  return true;
}

static bool read_log(struct check *check, const char *path) {
  FILE *file = fopen(path, "r");
  size_t from = check->count;
  if (!file) return false;
  bool fine = read_requests(check, file);
  qsort(check->requested + from, check->count - from, sizeof *check->requested, by_claim);
  rewind(file);
  fine = fine && read_ends(check, file, from);
  fclose(file);
  return fine;
}

static bool read_logs(struct check *check, const char *folder) {
  DIR *dir = opendir(folder);
  bool fine = dir != NULL;
  for (struct dirent *entry; fine && (entry = readdir(dir));) {
    char path[512];
    if (strncmp(entry->d_name, "client-", 7) != 0) continue;
    snprintf(path, sizeof path, "%s/%s", folder, entry->d_name);
    fine = read_log(check, path);
    if (!fine) printf("BROKEN  cannot read %s\n", path);
  }
  if (dir) closedir(dir);
  if (check->count > 0) qsort(check->requested, check->count, sizeof *check->requested, by_claim);
  return fine;
}

/* ---- Comparing ---- */

static const char *outcome(int status) {
  return status == NOT_HEARD       ? "nobody heard"
         : status == NOT_REQUESTED ? "not asked"
                                   : dibs_status_name((dibs_status)status);
}

static void check_row(struct check *check, const struct tally_row *row) {
  struct requested *requested = find(check, row->claim, 0);
  if (!requested) {
    broken(check, "strangers", "the claim %s of %s: no client requested it", row->claim, row->stock);
    return;
  }
  if (requested->there) broken(check, "twice", "the claim %s exists twice", row->claim);
  requested->there = true;
  bool never = requested->give == DIBS_NOT_FOUND; /* given before it was taken: remembered as given, with no amount */
  if (strcmp(requested->stock, row->stock) != 0 ||
      (row->amount != requested->amount && (!row->given || row->amount != 0)))
    broken(check, "strangers", "the claim %s: %ld of %s were requested, %ld of %s exist", row->claim, requested->amount,
           requested->stock, row->amount, row->stock);
  bool given = requested->give == DIBS_OK || requested->give == DIBS_REPLAY;
  bool may_be_given = given || never || requested->give == NOT_HEARD || requested->give == DIBS_UNKNOWN;
  if ((given || never) && !row->given)
    broken(check, "acknowledged", "the claim %s was given back and still counts", row->claim);
  if (row->given && !may_be_given)
    broken(check, "given", "the claim %s is given back: %s", row->claim, outcome(requested->give));
}

static void check_take(struct check *check, const struct requested *requested, struct tally_sums *sums) {
  bool taken = requested->take == DIBS_OK || requested->take == DIBS_REPLAY;
  sums->takes++;
  sums->taken += taken;
  if (requested->give != NOT_REQUESTED) sums->gives++;
  sums->given += requested->give == DIBS_OK || requested->give == DIBS_REPLAY;
  if (taken) {
    if (requested->give == DIBS_NOT_FOUND)
      broken(check, "acknowledged", "the claim %s was taken, but the give did not find it", requested->claim);
    if (!requested->there)
      broken(check, "acknowledged", "the claim %s of %s was taken and is missing", requested->claim, requested->stock);
    if (requested->got != requested->amount)
      broken(check, "acknowledged", "the claim %s got %ld of %ld", requested->claim, requested->got, requested->amount);
    return;
  }
  switch (requested->take) {
  case NOT_HEARD:
    sums->killed++;
    sums->killed_in += requested->there;
    return;
  case DIBS_UNKNOWN:
    sums->unknown++;
    sums->unknown_in += requested->there;
    if (requested->give == DIBS_OK && !requested->there)
      broken(check, "acknowledged", "the claim %s is missing", requested->claim);
    return;
  case DIBS_UNAVAILABLE:
    sums->unavailable++;
    break;
  case DIBS_FULL:
    sums->refused++;
    break;
  default:
    broken(check, "answers", "the claim %s: %s", requested->claim, outcome(requested->take));
  }
  if (requested->there)
    broken(check, "refused", "the claim %s was answered %s and exists", requested->claim, outcome(requested->take));
}

static void check_stock(struct check *check, const struct tally_stock *stock, const struct tally_row *rows,
                        size_t count) {
  int64_t sum = 0;
  for (size_t i = 0; i < count; i++)
    if (!rows[i].given && strcmp(rows[i].stock, stock->name) == 0) sum += rows[i].amount;
  if (stock->used != sum)
    broken(check, "counts", "%s: used %ld of %ld, the sum of the claims is %ld", stock->name, stock->used, stock->limit,
           sum);
  if (stock->used < 0 || stock->used > stock->limit)
    broken(check, "limits", "%s: used %ld of %ld", stock->name, stock->used, stock->limit);
}

int tally_check(const char *folder, struct tally_row *rows, size_t row_count, const struct tally_stock *stocks,
                size_t stock_count, struct tally_sums *sums) {
  struct check check = {0};
  *sums = (struct tally_sums){0};
  if (!read_logs(&check, folder)) check.broken++;
  for (size_t i = 0; i < row_count; i++) check_row(&check, &rows[i]);
  for (size_t i = 0; i < check.count; i++) check_take(&check, &check.requested[i], sums);
  for (size_t i = 0; i < stock_count; i++) check_stock(&check, &stocks[i], rows, row_count);
  sums->seen = check.seen;
  free(check.requested);
  return check.broken;
}
