/* SPDX-License-Identifier: MIT */
/*
 * The rules:
 *   acknowledged: a take that answered OK or REPLAY has its claim there, with what it got; a give, given
 *   refused:      FULL, UNAVAILABLE and the like have no claim there
 *   unknown:      UNKNOWN, and what a killed client did not live to hear, once or not at all
 *   strangers:    every claim there was asked for, of that stock, and no more of it than was asked for
 *   given:        nothing is given that nobody wanted to give
 *   counts:       used is the sum of the claims not given back
 *   limits:       used is within the limit, at the end and whenever somebody looked
 */
#include "tally.h"

#include <dirent.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SHOWN_MAX = 20, NOT_HEARD = -1, NOT_ASKED = -2 };

struct asked {
  char claim[TALLY_CLAIM], stock[TALLY_STOCK];
  int64_t amount, got, gave;
  int take, give; /* statuses; NOT_HEARD: nobody lived to tell; NOT_ASKED: a give that was not wanted */
  bool there;
};

struct check {
  struct asked *asked;
  size_t count, room;
  uint64_t seen;
  int broken;
};

static void broken(struct check *check, const char *rule, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
static void broken(struct check *check, const char *rule, const char *format, ...) {
  va_list args;
  if (++check->broken > SHOWN_MAX) return; /* the first ones tell */
  printf("BROKEN  %s: ", rule);
  va_start(args, format);
  vprintf(format, args);
  va_end(args);
  putchar('\n');
}

/* ---- Reading ---- */

static int by_claim(const void *a, const void *b) {
  return strcmp(((const struct asked *)a)->claim, ((const struct asked *)b)->claim);
}

static struct asked *find(const struct check *check, const char *claim, size_t from) {
  struct asked key;
  snprintf(key.claim, sizeof key.claim, "%s", claim);
  return bsearch(&key, check->asked + from, check->count - from, sizeof key, by_claim);
}

static void add(struct check *check, const struct asked *asked) {
  if (check->count == check->room) {
    check->room = check->room ? 2 * check->room : 4096;
    check->asked = realloc(check->asked, check->room * sizeof *check->asked);
    if (!check->asked) abort();
  }
  check->asked[check->count++] = *asked;
}

/* Asks first, then what came of them: a client's threads write in between each other. */
static bool read_asks(struct check *check, FILE *file) {
  struct asked one = {.take = NOT_HEARD, .give = NOT_ASKED};
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
  if (used < 0 || used > limit) broken(check, "limits", "%s was seen with %ld of %ld used", stock, used, limit);
  return true;
}

static bool read_ends(struct check *check, FILE *file, size_t from) {
  char line[160], claim[TALLY_CLAIM];
  while (fgets(line, sizeof line, file)) {
    int status = NOT_HEARD;
    long got = 0;
    bool ends = line[0] == 't' || line[0] == 'g';
    if (line[0] == 'T') continue;
    if (line[strlen(line) - 1] != '\n') return false; /* one write is all or nothing */
    if (line[0] == 'S') {
      if (!read_look(check, line)) return false;
      continue;
    }
    if (ends ? sscanf(line + 1, "%39s %d %ld", claim, &status, &got) != 3 : sscanf(line + 1, "%*s %39s", claim) != 1)
      return false;
    struct asked *asked = find(check, claim, from);
    if (!asked) return false;
    if (line[0] == 't') {
      /* Asked again after UNKNOWN, a refusal says nothing of the first one, which may still land. */
      bool taken = status == DIBS_OK || status == DIBS_REPLAY;
      if (asked->take != DIBS_UNKNOWN || taken) asked->take = status;
      asked->got = got;
    } else if (line[0] == 'G') {
      if (asked->give == NOT_ASKED) asked->give = NOT_HEARD;
    } else if (asked->give != DIBS_OK && asked->give != DIBS_REPLAY) {
      asked->give = status;
      asked->gave = got;
    }
  }
  return true;
}

static bool read_log(struct check *check, const char *path) {
  FILE *file = fopen(path, "r");
  size_t from = check->count;
  if (!file) return false;
  bool fine = read_asks(check, file);
  qsort(check->asked + from, check->count - from, sizeof *check->asked, by_claim);
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
    if (!fine) printf("BROKEN  %s can't be read\n", path);
  }
  if (dir) closedir(dir);
  if (check->count > 0) qsort(check->asked, check->count, sizeof *check->asked, by_claim);
  return fine;
}

/* ---- Comparing ---- */

static const char *told(int status) {
  return status == NOT_HEARD   ? "nobody heard"
         : status == NOT_ASKED ? "not asked"
                               : dibs_status_name((dibs_status)status);
}

static void check_row(struct check *check, const struct tally_row *row) {
  struct asked *asked = find(check, row->claim, 0);
  if (!asked) {
    broken(check, "strangers", "the claim %s of %s: nobody asked for it", row->claim, row->stock);
    return;
  }
  if (asked->there) broken(check, "twice", "the claim %s is there twice", row->claim);
  asked->there = true;
  bool never = asked->give == DIBS_NOT_FOUND; /* given before it was taken: remembered as that, with no amount */
  if (strcmp(asked->stock, row->stock) != 0 || (row->amount != asked->amount && (!row->given || row->amount != 0)))
    broken(check, "strangers", "the claim %s: %ld of %s were asked for, %ld of %s are there", row->claim, asked->amount,
           asked->stock, row->amount, row->stock);
  bool given = asked->give == DIBS_OK || asked->give == DIBS_REPLAY;
  bool may_be_given = given || never || asked->give == NOT_HEARD || asked->give == DIBS_UNKNOWN;
  if ((given || never) && !row->given)
    broken(check, "acknowledged", "the claim %s was given back; it counts", row->claim);
  if (row->given && !may_be_given)
    broken(check, "given", "the claim %s is given back: %s", row->claim, told(asked->give));
}

static void check_take(struct check *check, const struct asked *asked, struct tally_sums *sums) {
  bool taken = asked->take == DIBS_OK || asked->take == DIBS_REPLAY;
  sums->takes++;
  sums->taken += taken;
  if (asked->give != NOT_ASKED) sums->gives++;
  sums->given += asked->give == DIBS_OK || asked->give == DIBS_REPLAY;
  if (taken) {
    if (asked->give == DIBS_NOT_FOUND)
      broken(check, "acknowledged", "the claim %s was taken, and not found when it was given", asked->claim);
    if (!asked->there)
      broken(check, "acknowledged", "the claim %s of %s was taken; it is gone", asked->claim, asked->stock);
    if (asked->got != asked->amount)
      broken(check, "acknowledged", "the claim %s got %ld of %ld", asked->claim, asked->got, asked->amount);
    return;
  }
  switch (asked->take) {
  case NOT_HEARD:
    sums->killed++;
    sums->killed_in += asked->there;
    return;
  case DIBS_UNKNOWN:
    sums->unknown++;
    sums->unknown_in += asked->there;
    if (asked->give == DIBS_OK && !asked->there) broken(check, "acknowledged", "the claim %s is gone", asked->claim);
    return;
  case DIBS_UNAVAILABLE:
    sums->unavailable++;
    break;
  case DIBS_FULL:
    sums->refused++;
    break;
  default:
    broken(check, "answers", "the claim %s: %s", asked->claim, told(asked->take));
  }
  if (asked->there)
    broken(check, "refused", "the claim %s was answered %s; it is there", asked->claim, told(asked->take));
}

static void check_stock(struct check *check, const struct tally_stock *stock, const struct tally_row *rows,
                        size_t count) {
  int64_t sum = 0;
  for (size_t i = 0; i < count; i++)
    if (!rows[i].given && strcmp(rows[i].stock, stock->name) == 0) sum += rows[i].amount;
  if (stock->used != sum)
    broken(check, "counts", "%s: used %ld of %ld, the claims are %ld", stock->name, stock->used, stock->limit, sum);
  if (stock->used < 0 || stock->used > stock->limit)
    broken(check, "limits", "%s: used %ld of %ld", stock->name, stock->used, stock->limit);
}

int tally_check(const char *folder, struct tally_row *rows, size_t row_count, const struct tally_stock *stocks,
                size_t stock_count, struct tally_sums *sums) {
  struct check check = {0};
  *sums = (struct tally_sums){0};
  if (!read_logs(&check, folder)) check.broken++;
  for (size_t i = 0; i < row_count; i++) check_row(&check, &rows[i]);
  for (size_t i = 0; i < check.count; i++) check_take(&check, &check.asked[i], sums);
  for (size_t i = 0; i < stock_count; i++) check_stock(&check, &stocks[i], rows, row_count);
  sums->seen = check.seen;
  free(check.asked);
  return check.broken;
}
