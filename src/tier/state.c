/* SPDX-License-Identifier: MIT */
#include "tier/state.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

dibs__str dibs__words_next(struct dibs__words *words) {
  if (!words->at) return (dibs__str){NULL, 0};
  const char *begin = words->at, *blank = memchr(begin, ' ', (size_t)(words->end - begin));
  words->at = blank ? blank + 1 : NULL;
  return dibs__str_of(begin, (size_t)((blank ? blank : words->end) - begin));
}

bool dibs__words_is(dibs__str word, const char *text) {
  size_t len = strlen(text);
  return word.len == len && memcmp(word.p ? word.p : "", text, len) == 0;
}

bool dibs__words_number(dibs__str word, uint64_t most, uint64_t *number) {
  *number = 0;
  if (word.len == 0 || (word.len > 1 && word.p[0] == '0')) return false;
  uint64_t sum = 0;
  for (uint32_t i = 0; i < word.len; i++) {
    if (word.p[i] < '0' || word.p[i] > '9') return false;
    uint64_t digit = (uint64_t)(word.p[i] - '0');
    if (sum > (most - digit) / 10 || digit > most) return false;
    sum = sum * 10 + digit;
  }
  *number = sum;
  return true;
}

/*
 * Which tier serves a bucket, and under which epoch.
 *
 * Two rules always hold.  Every change of a bucket's mandate has a larger epoch than all earlier ones, and than any
 * seen at its new tier; and an epoch is made for one incarnation of one tier, so it cannot be installed anywhere else.
 * Only the client that made it installs it, once.
 */

/* A fence is epoch * 2^32 + seq; a Redis without tiers gives ms * 2^10. */
enum { MS_PER_EPOCH_BITS = 22 };

uint32_t dibs__tiers_first_epoch(int64_t now) {
  /* +2: at least 70 minutes ahead of the anchor's clock. */
  uint64_t epoch = now < 0 ? 0 : ((uint64_t)now >> MS_PER_EPOCH_BITS) + 2;
  return epoch == 0 || epoch > DIBS__EPOCH_MAX ? 1 : (uint32_t)epoch;
}

static uint32_t larger(uint32_t a, uint32_t b) {
  return a > b ? a : b;
}

/* ---- The tier that a bucket should be on ---- */

static bool may_be_down(const struct dibs__tiers_state *state, uint32_t tier) {
  return state->breaker && state->tiers[tier].hand == DIBS__HAND_AUTO && tier + 1 < state->count;
}

bool dibs__tiers_is_down(const struct dibs__tiers_state *state, uint32_t tier) {
  return state->tiers[tier].hand == DIBS__HAND_OPEN || (state->tiers[tier].down && may_be_down(state, tier));
}

uint32_t dibs__tiers_wanted(const struct dibs__tiers_state *state, uint32_t bucket) {
  assert(state->count > 0 && bucket < DIBS__BUCKETS);
  if (state->pinned >= 0) return (uint32_t)state->pinned;
  for (uint32_t i = 0; i + 1 < state->count; i++) {
    if (bucket >= state->tiers[i].percent) continue;
    if (!dibs__tiers_is_down(state, i) || bucket >= state->fallback) return i;
  }
  return state->count - 1;
}

bool dibs__tiers_at_home(const struct dibs__tiers_state *state, uint32_t bucket) {
  for (uint32_t i = 0; i + 1 < state->count; i++)
    if (bucket < state->tiers[i].percent) return false;
  return true;
}

bool dibs__tiers_astray(const struct dibs__tiers_state *state, uint32_t *to) {
  *to = 0;
  for (uint32_t b = 0; b < DIBS__BUCKETS; b++) {
    uint32_t wanted = dibs__tiers_wanted(state, b);
    if (wanted != state->mandates[b].tier) *to |= UINT32_C(1) << wanted;
  }
  return *to != 0;
}

/* ---- The next epoch ---- */

/* Strict: when no lease that was granted before can still be held. */
static int64_t end_of_all_leases(const struct dibs__tiers_state *state, int64_t now) {
  return now + DIBS__TIERS_CONFIRM_MS + state->longest_ms;
}

struct change {
  uint32_t tier, above;
  const dibs__incarnation *incarnation;
  bool by_hand; /* at any distance; also of a bucket without a mandate: then no anchor is behind */
  bool kept;    /* the tier lost nothing: its holders stay visible */
  struct dibs__tiers_left left;
};

/* The highest epoch under which the record knows of grants: its own epoch, and those that the anchor drew by its clock.
 */
static uint32_t highest_known_epoch(const struct dibs__tiers_state *state, uint32_t bucket) {
  return larger(state->mandates[bucket].epoch, state->drawn[bucket]);
}

static enum dibs__tiers_verdict change_mandate(struct dibs__tiers_state *state, uint32_t bucket,
                                               const struct change *change, int64_t now) {
  struct dibs__tiers_mandate *m = &state->mandates[bucket];
  uint32_t floor = dibs__tiers_first_epoch(now + state->wall_ahead_ms),
           behind = larger(highest_known_epoch(state, bucket), floor);
  if (!change->by_hand && change->above > behind && change->above - behind > DIBS__TIERS_RAISE_MAX)
    return DIBS__TIERS_SERVER;
  uint32_t seen = larger(highest_known_epoch(state, bucket), change->above);
  if (seen >= DIBS__EPOCH_MAX) return DIBS__TIERS_SPENT;
  int64_t from = 0;
  if (state->strictness == DIBS__STRICT) {
    from = end_of_all_leases(state, now);
    /* A wait in progress continues; no longer than it can be needed, should the clock have been stepped back. */
    if (change->kept) from = m->from < from ? m->from : from;
  }
  *m = (struct dibs__tiers_mandate){
      larger(seen + 1, floor), change->tier, *change->incarnation, now, from, change->left};
  return DIBS__TIERS_MADE;
}

/* In both directions: a clock that was stepped back must not make clients wait for the length of the step. */
static bool is_young(const struct dibs__tiers_mandate *m, int64_t now) {
  return m->epoch != 0 && now < m->since + DIBS__TIERS_GRACE_MS && now > m->since - DIBS__TIERS_GRACE_MS;
}

enum dibs__tiers_verdict dibs__tiers_told(struct dibs__tiers_state *state, uint32_t bucket, const dibs__mandate *has,
                                          int64_t now) {
  assert(bucket < DIBS__BUCKETS);
  struct dibs__tiers_mandate *m = &state->mandates[bucket];
  bool same_incarnation = memcmp(&m->incarnation, &has->incarnation, sizeof m->incarnation) == 0;
  if (m->epoch != 0 && has->epoch == m->epoch && same_incarnation) return DIBS__TIERS_JOIN;
  /* It is above the record's epoch, so this record did not make it, and no install in flight can change that. */
  if (is_young(m, now) && has->epoch <= m->epoch) return DIBS__TIERS_YOUNG;
  /* Only a bucket that was never served need not wait.  One epoch too low in the present incarnation may be an install
   * that came late, after the memory was flushed: it proves nothing. */
  struct change change = {m->tier, has->epoch, &has->incarnation, m->epoch == 0, m->epoch == 0 && has->epoch == 0,
                          m->left};
  return change_mandate(state, bucket, &change, now);
}

static enum dibs__tiers_verdict next_epoch_of(struct dibs__tiers_state *state, uint32_t bucket, uint32_t above,
                                              const dibs__incarnation *incarnation, int64_t now, bool by_hand) {
  assert(bucket < DIBS__BUCKETS);
  struct dibs__tiers_mandate *m = &state->mandates[bucket];
  /* A higher epoch than the record's was seen: this record is an old one, and lacks the epochs made since. */
  bool kept = above <= m->epoch && memcmp(&m->incarnation, incarnation, sizeof *incarnation) == 0;
  struct change change = {m->tier, above, incarnation, by_hand, kept, m->left};
  return change_mandate(state, bucket, &change, now);
}

enum dibs__tiers_verdict dibs__tiers_next(struct dibs__tiers_state *state, uint32_t bucket, uint32_t above,
                                          const dibs__incarnation *incarnation, int64_t now) {
  return next_epoch_of(state, bucket, above, incarnation, now, false);
}

enum dibs__tiers_verdict dibs__tiers_pass_over(struct dibs__tiers_state *state, uint32_t bucket, uint32_t above,
                                               const dibs__incarnation *incarnation, int64_t now) {
  assert(bucket < DIBS__BUCKETS);
  const struct dibs__tiers_mandate *m = &state->mandates[bucket];
  uint32_t floor = dibs__tiers_first_epoch(now + state->wall_ahead_ms);
  uint32_t seen = larger(larger(highest_known_epoch(state, bucket), above), floor), pass = DIBS__TIERS_PASS_OVER;
  if (seen >= DIBS__EPOCH_MAX) return DIBS__TIERS_SPENT;
  if (pass > (DIBS__EPOCH_MAX - seen) / DIBS__TIERS_PASS_PART) pass = (DIBS__EPOCH_MAX - seen) / DIBS__TIERS_PASS_PART;
  struct change change = {.tier = m->tier, .above = seen + pass, .incarnation = incarnation, .by_hand = true};
  return change_mandate(state, bucket, &change, now);
}

enum dibs__tiers_verdict dibs__tiers_bump(struct dibs__tiers_state *state, uint32_t bucket, uint32_t above,
                                          const dibs__incarnation *incarnation, int64_t now) {
  return next_epoch_of(state, bucket, above, incarnation, now, true);
}

bool dibs__tiers_follow(struct dibs__tiers_state *state, uint32_t bucket, const dibs__mandate *has, int64_t now) {
  assert(bucket < DIBS__BUCKETS);
  struct dibs__tiers_mandate *m = &state->mandates[bucket];
  bool same_incarnation = memcmp(&m->incarnation, &has->incarnation, sizeof m->incarnation) == 0;
  if (has->epoch < m->epoch || (has->epoch == m->epoch && same_incarnation)) return false;
  int64_t from =
      state->strictness == DIBS__STRICT && m->epoch && !same_incarnation ? end_of_all_leases(state, now) : m->from;
  *m = (struct dibs__tiers_mandate){
      .epoch = has->epoch, .tier = state->count - 1, .incarnation = has->incarnation, .from = from};
  return true;
}

enum dibs__tiers_verdict dibs__tiers_left_lost(struct dibs__tiers_state *state, uint32_t bucket,
                                               const dibs__incarnation *incarnation, int64_t now) {
  assert(bucket < DIBS__BUCKETS);
  struct dibs__tiers_mandate *m = &state->mandates[bucket];
  struct change change = {.tier = m->tier, .incarnation = incarnation};
  return change_mandate(state, bucket, &change, now);
}

/* Can the tier participate in the move?  It can if it has the record's mandate. */
static bool can_be_left(const struct dibs__tiers_state *state, const struct dibs__tiers_mandate *m,
                        const dibs__mandate *has) {
  if (m->epoch == 0 || !has || dibs__tiers_is_down(state, m->tier)) return false;
  return has->epoch == m->epoch && memcmp(&has->incarnation, &m->incarnation, sizeof m->incarnation) == 0;
}

bool dibs__tiers_placement(struct dibs__tiers_state *state, const dibs__incarnation *const incarnations[],
                           const dibs__mandate *const has[], int64_t now, struct dibs__buckets *moved) {
  bool any = false;
  *moved = (struct dibs__buckets){{0}};
  for (uint32_t b = 0; b < DIBS__BUCKETS; b++) {
    struct dibs__tiers_mandate *m = &state->mandates[b];
    uint32_t wanted = dibs__tiers_wanted(state, b);
    if (wanted == m->tier || !incarnations[wanted]) continue;
    uint32_t above = has[wanted] ? has[wanted][b].epoch : 0;
    bool leaves = can_be_left(state, m, has[m->tier] ? &has[m->tier][b] : NULL);
    /* One tier to ask first is enough: the next move waits until the latest one has ended, even if that one was not
     * installed yet. */
    if (m->left.epoch && has[m->tier] && !dibs__tiers_is_down(state, m->tier)) continue;
    bool kept = leaves || (m->epoch == 0 && above == 0);
    const dibs__incarnation *incarnation = has[wanted] ? &has[wanted][b].incarnation : incarnations[wanted];
    struct change change = {wanted, above, incarnation, m->epoch == 0, kept, {0}};
    if (leaves) change.left = (struct dibs__tiers_left){m->epoch, m->tier, m->incarnation};
    if (change_mandate(state, b, &change, now) != DIBS__TIERS_MADE) continue;
    dibs__buckets_add(moved, b);
    any = true;
  }
  return any;
}

/* ---- Flags that a repaired record lacks ---- */

struct dibs__tiers_read_at dibs__tiers_flags_at(const struct dibs__tiers_state *state, uint64_t version) {
  bool told = state->flags_of.version != 0 && state->flags_of.version != DIBS__TIERS_SETTLED;
  if (told || version == 0) return told ? state->flags_of : (struct dibs__tiers_read_at){0};
  return (struct dibs__tiers_read_at){state->repairs, version};
}

bool dibs__tiers_owes_flags(const struct dibs__tiers_state *state, const struct dibs__tiers_read_at *at) {
  return at->version && state->repairs > at->repairs && dibs__tiers_before(&state->flags_of, at) &&
         (state->repaired || state->flags_of.version);
}

void dibs__tiers_copy_flags(struct dibs__tiers_state *state, const struct dibs__tiers_state *from) {
  assert(state->count == from->count);
  memcpy(state->tiers, from->tiers, sizeof state->tiers);
  state->strictness = from->strictness;
  state->breaker = from->breaker;
  state->fallback = from->fallback;
  state->least_strict = from->least_strict;
  state->pinned = from->pinned;
  state->dwell_ms = from->dwell_ms;
  if (from->longest_ms > state->longest_ms) state->longest_ms = from->longest_ms;
}

/* ---- Votes ---- */

void dibs__tiers_tally(const struct dibs__tiers_report reports[], size_t count, struct dibs__tiers_tally *tally) {
  *tally = (struct dibs__tiers_tally){.clients = (uint32_t)count};
  for (size_t r = 0; r < count; r++)
    for (uint32_t i = 0; i < reports[r].count; i++) {
      tally->active[i] += reports[r].tiers[i].active;
      tally->down[i] += reports[r].tiers[i].active && reports[r].tiers[i].down;
      tally->well[i] += reports[r].tiers[i].well;
    }
}

static void goes_down(struct dibs__tiers_tier *tier, int64_t begins_with, int64_t now) {
  int64_t most = begins_with > DIBS__TIERS_DWELL_MAX_MS ? begins_with : DIBS__TIERS_DWELL_MAX_MS;
  bool soon = tier->changed != 0 && now - tier->changed < DIBS__TIERS_DWELL_MAX_MS;
  int64_t doubled = tier->dwell_ms > most / 2 ? most : tier->dwell_ms * 2;
  tier->dwell_ms = soon && doubled > begins_with ? doubled : begins_with;
  tier->down = true;
  tier->changed = now;
}

static void comes_up(struct dibs__tiers_tier *tier, int64_t now) {
  tier->down = false;
  tier->changed = now;
}

/* Has it ended, or was the clock stepped back so far that it would never end? */
static bool dwelt(const struct dibs__tiers_tier *tier, int64_t now) {
  return now >= tier->changed + tier->dwell_ms || now < tier->changed - tier->dwell_ms;
}

bool dibs__tiers_vote(struct dibs__tiers_state *state, const struct dibs__tiers_tally *tally, int64_t now) {
  bool changed = false;
  for (uint32_t i = 0; i < state->count; i++) {
    struct dibs__tiers_tier *tier = &state->tiers[i];
    bool was = tier->down;
    if (!may_be_down(state, i)) {
      /* A tier opened by hand keeps its state for the time when the hand is AUTO again. */
      if (was && tier->hand != DIBS__HAND_OPEN) comes_up(tier, now);
    } else if (!was) {
      if (tally->down[i] * 2 > tally->active[i]) goes_down(tier, state->dwell_ms, now);
    } else if (dwelt(tier, now) && tally->well[i] * 2 > tally->clients) {
      comes_up(tier, now);
    }
    changed = changed || tier->down != was;
  }
  return changed;
}

/*
 * The record of the anchor, as text:
 *
 *     dibs-tiers 1
 *     tier SCHEME auto-or-open-or-closed PERCENT up-or-down CHANGED DWELL      a line for each tier, in order
 *     rules STRICTNESS BREAKER FALLBACK LEAST-STRICT PINNED-or-none LONGEST DWELL
 *     anchor INCARNATION REPAIRS REPAIRED [REPAIRS VERSION]         not in older records; flags_of, if repaired
 *     buckets 0-9,12 EPOCH TIER INCARNATION SINCE FROM [left EPOCH TIER INCARNATION]   EPOCH 0: none made
 *     end CHECKSUM
 *
 * Each bucket is in one line.  STRICTNESS is fenced or strict, BREAKER breaker or no-breaker, LEAST-STRICT least-strict
 * or no-least-strict.  The checksum is FNV-1a 64 of all before its line.  So a line that is not known, with a right
 * checksum, is of a newer version; a text that was cut or changed has a wrong checksum.
 */

#define TIME_MAX ((uint64_t)DIBS__TIERS_SETTLED) /* so that sums of times cannot overflow */

static const char *const hands[] = {"auto", "open", "closed"};
static const char *const strictnesses[] = {"fenced", "strict"};

const char *dibs__tiers_scheme(const char *scheme) {
  static const char *const others[][2] = {{"rediss", "redis"}, {"postgresql", "postgres"}, {"mariadb", "mysql"}};
  for (size_t i = 0; i < sizeof others / sizeof others[0]; i++)
    if (strcmp(scheme, others[i][0]) == 0) return others[i][1];
  return scheme;
}

void dibs__tiers_begin(struct dibs__tiers_state *state, const char *const schemes[], uint32_t count) {
  assert(count >= 1 && count <= DIBS__URI_TIERS);
  *state = (struct dibs__tiers_state){.count = count,
                                      .strictness = DIBS__FENCED,
                                      .breaker = true,
                                      .fallback = 100,
                                      .pinned = -1,
                                      .dwell_ms = DIBS__TIERS_DWELL_MS};
  for (uint32_t i = 0; i < count; i++) {
    struct dibs__tiers_tier *tier = &state->tiers[i];
    snprintf(tier->scheme, sizeof tier->scheme, "%s", dibs__tiers_scheme(schemes[i]));
    tier->percent = 100;
    tier->dwell_ms = DIBS__TIERS_DWELL_MS;
  }
}

/* ---- Writing ---- */

/* Never changes: stored records contain it. */
static uint64_t sum_of(const char *text, size_t len) {
  uint64_t sum = UINT64_C(0xcbf29ce484222325);
  for (size_t i = 0; i < len; i++) sum = (sum ^ (uint8_t)text[i]) * UINT64_C(0x100000001b3);
  return sum;
}

static void write_rules(FILE *to, const struct dibs__tiers_state *state) {
  fprintf(to, "rules %s %s %" PRIu32 " %s ", strictnesses[state->strictness], state->breaker ? "breaker" : "no-breaker",
          state->fallback, state->least_strict ? "least-strict" : "no-least-strict");
  if (state->pinned < 0)
    fputs("none", to);
  else
    fprintf(to, "%" PRId32, state->pinned);
  fprintf(to, " %" PRId64 " %" PRId64 "\n", state->longest_ms, state->dwell_ms);
}

static bool lefts_equal(const struct dibs__tiers_left *a, const struct dibs__tiers_left *b) {
  return a->epoch == b->epoch && a->tier == b->tier &&
         memcmp(&a->incarnation, &b->incarnation, sizeof a->incarnation) == 0;
}

static bool mandates_equal(const struct dibs__tiers_mandate *a, const struct dibs__tiers_mandate *b) {
  return a->epoch == b->epoch && a->tier == b->tier && a->since == b->since && a->from == b->from &&
         memcmp(&a->incarnation, &b->incarnation, sizeof a->incarnation) == 0 && lefts_equal(&a->left, &b->left);
}

static void write_incarnation(FILE *to, const dibs__incarnation *incarnation) {
  for (size_t i = 0; i < sizeof incarnation->b; i++) fprintf(to, "%02x", incarnation->b[i]);
}

/* The line of all buckets with the mandate of `first`, which is the first of them. */
static void write_equal_buckets(FILE *to, const struct dibs__tiers_state *state, uint32_t first) {
  const struct dibs__tiers_mandate *m = &state->mandates[first];
  const char *between = "buckets ";
  for (uint32_t b = first; b < DIBS__BUCKETS; b++) {
    if (!mandates_equal(m, &state->mandates[b])) continue;
    uint32_t last = b;
    while (last + 1 < DIBS__BUCKETS && mandates_equal(m, &state->mandates[last + 1])) last++;
    fprintf(to, "%s%" PRIu32, between, b);
    if (last > b) fprintf(to, "-%" PRIu32, last);
    between = ",";
    b = last;
  }
  fprintf(to, " %" PRIu32 " %" PRIu32 " ", m->epoch, m->tier);
  write_incarnation(to, &m->incarnation);
  fprintf(to, " %" PRId64 " %" PRId64, m->since, m->from);
  if (m->left.epoch) {
    fprintf(to, " left %" PRIu32 " %" PRIu32 " ", m->left.epoch, m->left.tier);
    write_incarnation(to, &m->left.incarnation);
  }
  fputc('\n', to);
}

static void write_lines(FILE *to, const struct dibs__tiers_state *state) {
  fprintf(to, "dibs-tiers %d\n", DIBS__TIERS_FORMAT);
  for (uint32_t i = 0; i < state->count; i++) {
    const struct dibs__tiers_tier *tier = &state->tiers[i];
    fprintf(to, "tier %s %s %" PRIu32 " %s %" PRId64 " %" PRId64 "\n", tier->scheme, hands[tier->hand], tier->percent,
            tier->down ? "down" : "up", tier->changed, tier->dwell_ms);
  }
  write_rules(to, state);
  fputs("anchor ", to);
  write_incarnation(to, &state->anchor_incarnation);
  fprintf(to, " %" PRId64 " %" PRId64, state->repairs, state->repaired);
  if (state->flags_of.repairs || state->flags_of.version)
    fprintf(to, " %" PRId64 " %" PRIu64, state->flags_of.repairs, state->flags_of.version);
  fputc('\n', to);
  for (uint32_t b = 0; b < DIBS__BUCKETS; b++) {
    bool first = true;
    for (uint32_t before = 0; before < b && first; before++)
      first = !mandates_equal(&state->mandates[before], &state->mandates[b]);
    if (first) write_equal_buckets(to, state, b);
  }
}

char *dibs__tiers_write(const struct dibs__tiers_state *state, size_t *len) {
  char *text = NULL;
  *len = 0;
  FILE *to = open_memstream(&text, len);
  if (!to) return NULL;
  write_lines(to, state);
  bool fine = fflush(to) == 0; /* from here on text and *len are valid */
  if (fine) {
    uint64_t sum = sum_of(text, *len);
    fprintf(to, "end %016" PRIx64 "\n", sum);
    fine = !ferror(to);
  }
  if (fclose(to) == 0 && fine) return text;
  free(text);
  *len = 0;
  return NULL;
}

/* ---- Reading ---- */

/* The index of the word in `words`; -1: it is none of them. */
static int index_of_word(dibs__str word, const char *const words[], int count) {
  for (int i = 0; i < count; i++)
    if (dibs__words_is(word, words[i])) return i;
  return -1;
}

static bool read_u32(struct dibs__words *words, uint32_t most, uint32_t *to) {
  uint64_t number;
  bool fine = dibs__words_number(dibs__words_next(words), most, &number);
  *to = (uint32_t)number;
  return fine;
}

static bool read_time(struct dibs__words *words, int64_t *to) {
  uint64_t number;
  bool fine = dibs__words_number(dibs__words_next(words), TIME_MAX, &number);
  *to = (int64_t)number;
  return fine;
}

static bool read_choice(struct dibs__words *words, const char *no, const char *yes, bool *to) {
  int choice = index_of_word(dibs__words_next(words), (const char *const[]){no, yes}, 2);
  *to = choice == 1;
  return choice >= 0;
}

static bool is_scheme(dibs__str word) {
  if (word.len == 0 || word.len >= sizeof((struct dibs__tiers_tier *)NULL)->scheme) return false;
  for (uint32_t i = 0; i < word.len; i++) {
    char c = word.p[i];
    if (!(c >= 'a' && c <= 'z') && !(c >= '0' && c <= '9') && c != '-' && c != '.') return false;
  }
  return true;
}

static bool read_tier(struct dibs__words *words, struct dibs__tiers_state *state) {
  if (state->count == DIBS__URI_TIERS) return false;
  struct dibs__tiers_tier *tier = &state->tiers[state->count];
  dibs__str scheme = dibs__words_next(words);
  int hand = index_of_word(dibs__words_next(words), hands, 3);
  if (!is_scheme(scheme) || hand < 0 || !read_u32(words, 100, &tier->percent) ||
      !read_choice(words, "up", "down", &tier->down) || !read_time(words, &tier->changed) ||
      !read_time(words, &tier->dwell_ms))
    return false;
  memcpy(tier->scheme, scheme.p, scheme.len);
  tier->hand = (enum dibs__tiers_hand)hand;
  state->count++;
  return true;
}

static bool read_rules(struct dibs__words *words, struct dibs__tiers_state *state) {
  int strictness = index_of_word(dibs__words_next(words), strictnesses, 2);
  if (strictness < 0 || !read_choice(words, "no-breaker", "breaker", &state->breaker) ||
      !read_u32(words, 100, &state->fallback) ||
      !read_choice(words, "no-least-strict", "least-strict", &state->least_strict))
    return false;
  state->strictness = (enum dibs__tiers_strictness)strictness;
  dibs__str pinned = dibs__words_next(words);
  uint64_t number = 0;
  if (!dibs__words_is(pinned, "none") && !dibs__words_number(pinned, DIBS__URI_TIERS - 1, &number)) return false;
  state->pinned = dibs__words_is(pinned, "none") ? -1 : (int32_t)number;
  return read_time(words, &state->longest_ms) && read_time(words, &state->dwell_ms);
}

static bool read_incarnation(dibs__str word, dibs__incarnation *incarnation) {
  if (word.len != 2 * sizeof incarnation->b) return false;
  for (uint32_t i = 0; i < word.len; i++) {
    char c = word.p[i];
    bool digit = c >= '0' && c <= '9', letter = c >= 'a' && c <= 'f';
    if (!digit && !letter) return false;
    incarnation->b[i / 2] = (uint8_t)(incarnation->b[i / 2] << 4 | (digit ? c - '0' : c - 'a' + 10));
  }
  return true;
}

/* "12" or "0-9": up to the comma, which is skipped. */
static bool read_range(const char **at, const char *end, uint32_t *first, uint32_t *last) {
  const char *comma = memchr(*at, ',', (size_t)(end - *at)), *stop = comma ? comma : end;
  const char *dash = memchr(*at, '-', (size_t)(stop - *at));
  uint64_t from, to;
  bool fine = dibs__words_number(dibs__str_of(*at, (size_t)((dash ? dash : stop) - *at)), DIBS__BUCKETS - 1, &from);
  to = from;
  if (dash)
    fine = fine && dibs__words_number(dibs__str_of(dash + 1, (size_t)(stop - dash - 1)), DIBS__BUCKETS - 1, &to);
  *first = (uint32_t)from;
  *last = (uint32_t)to;
  *at = comma ? comma + 1 : NULL;
  return fine && from <= to;
}

static bool read_anchor(struct dibs__words *words, struct dibs__tiers_state *state) {
  bool fine = read_incarnation(dibs__words_next(words), &state->anchor_incarnation) &&
              read_time(words, &state->repairs) && read_time(words, &state->repaired);
  if (!fine || !words->at) return fine;
  return read_time(words, &state->flags_of.repairs) &&
         dibs__words_number(dibs__words_next(words), TIME_MAX, &state->flags_of.version);
}

static bool read_left(struct dibs__words *words, struct dibs__tiers_left *left) {
  struct dibs__words ahead = *words;
  if (!ahead.at || !dibs__words_is(dibs__words_next(&ahead), "left")) return true;
  *words = ahead;
  return read_u32(words, DIBS__EPOCH_MAX, &left->epoch) && left->epoch != 0 &&
         read_u32(words, DIBS__URI_TIERS - 1, &left->tier) &&
         read_incarnation(dibs__words_next(words), &left->incarnation);
}

static bool read_buckets(struct dibs__words *words, struct dibs__tiers_state *state, struct dibs__buckets *seen) {
  dibs__str set = dibs__words_next(words);
  struct dibs__tiers_mandate m = {0};
  if (set.len == 0 || !read_u32(words, DIBS__EPOCH_MAX, &m.epoch) || !read_u32(words, DIBS__URI_TIERS - 1, &m.tier) ||
      !read_incarnation(dibs__words_next(words), &m.incarnation) || !read_time(words, &m.since) ||
      !read_time(words, &m.from) || !read_left(words, &m.left))
    return false;
  for (const char *at = set.p; at;) {
    uint32_t first, last;
    if (!read_range(&at, set.p + set.len, &first, &last)) return false;
    for (uint32_t b = first; b <= last; b++) {
      if (dibs__buckets_has(seen, b)) return false;
      dibs__buckets_add(seen, b);
      state->mandates[b] = m;
    }
  }
  return true;
}

/* Conditions between the lines. */
static bool is_whole(const struct dibs__tiers_state *state, const struct dibs__buckets *seen, uint32_t rules) {
  if (state->count == 0 || rules != 1 || state->pinned >= (int32_t)state->count) return false;
  for (uint32_t b = 0; b < DIBS__BUCKETS; b++)
    if (!dibs__buckets_has(seen, b) || state->mandates[b].tier >= state->count ||
        state->mandates[b].left.tier >= state->count)
      return false;
  return state->tiers[state->count - 1].percent == 100;
}

static dibs__status damaged(struct dibs__result *result, const char *what) {
  dibs__set_message(
      result,
      "the anchor's record of its tiers is damaged (%s): restore it, or run \"dibs tier dissolve\" when no "
      "client uses the tiers",
      what);
  return DIBS_CORRUPT;
}

static dibs__status too_new(struct dibs__result *result, dibs__str what) {
  dibs__set_message(result, "a newer dibs wrote the anchor's record of its tiers (\"%.*s\"): update this dibs",
                    (int)(what.len < 40 ? what.len : 40), what.p);
  return DIBS_TOO_NEW;
}

static dibs__status read_line(dibs__str line, struct dibs__tiers_state *state, struct dibs__buckets *seen,
                              uint32_t *rules, struct dibs__result *result) {
  struct dibs__words words = {line.p, line.p + line.len};
  dibs__str head = dibs__words_next(&words);
  bool fine;
  if (dibs__words_is(head, "tier"))
    fine = read_tier(&words, state);
  else if (dibs__words_is(head, "rules"))
    fine = ++*rules == 1 && read_rules(&words, state);
  else if (dibs__words_is(head, "anchor"))
    fine = read_anchor(&words, state);
  else if (dibs__words_is(head, "buckets"))
    fine = read_buckets(&words, state, seen);
  else
    return head.len ? too_new(result, head) : damaged(result, "an empty line");
  if (!fine) return damaged(result, "a line is invalid");
  /* A newer version may write more words in a known line. */
  return words.at ? too_new(result, line) : DIBS_OK;
}

/* The first line: the format. */
static dibs__status read_format(const char **at, const char *end, struct dibs__result *result) {
  static const char magic[] = "dibs-tiers ";
  const char *newline = memchr(*at, '\n', (size_t)(end - *at));
  uint64_t format;
  if (!newline || (size_t)(newline - *at) < sizeof magic || memcmp(*at, magic, sizeof magic - 1) != 0)
    return damaged(result, "its first line is wrong");
  dibs__str word = dibs__str_of(*at + sizeof magic - 1, (size_t)(newline - *at) - (sizeof magic - 1));
  if (!dibs__words_number(word, UINT32_MAX, &format) || format == 0)
    return damaged(result, "its format is not a number");
  if (format > DIBS__TIERS_FORMAT) return too_new(result, dibs__str_of(*at, (size_t)(newline - *at)));
  *at = newline + 1;
  return DIBS_OK;
}

/* Removes the last line, if its checksum is right. */
static bool check_sum(const char *text, size_t *len) {
  enum { LINE = sizeof "end 0123456789abcdef\n" - 1 };
  char right[LINE + 1];
  if (*len < LINE) return false;
  *len -= LINE;
  snprintf(right, sizeof right, "end %016" PRIx64 "\n", sum_of(text, *len));
  return memcmp(text + *len, right, LINE) == 0 && (*len == 0 || text[*len - 1] == '\n');
}

dibs__status dibs__tiers_read(const char *text, size_t len, struct dibs__tiers_state *state,
                              struct dibs__result *result) {
  *state = (struct dibs__tiers_state){.pinned = -1};
  struct dibs__buckets seen = {{0}};
  uint32_t rules = 0;
  const char *at = text;
  if (len == 0) return damaged(result, "it is empty");
  dibs__status status = read_format(&at, text + len, result);
  if (status == DIBS_OK && !check_sum(text, &len)) return damaged(result, "its checksum is wrong");
  for (const char *end = text + len; status == DIBS_OK && at < end;) {
    const char *newline = memchr(at, '\n', (size_t)(end - at));
    if (!newline) return damaged(result, "a line has no end");
    status = read_line(dibs__str_of(at, (size_t)(newline - at)), state, &seen, &rules, result);
    at = newline + 1;
  }
  if (status != DIBS_OK) return status;
  return is_whole(state, &seen, rules) ? DIBS_OK : damaged(result, "a line is missing");
}

void dibs__tiers_who_serves(dibs__str text, uint32_t bucket, char *to, size_t size) {
  struct dibs__tiers_state *state = calloc(1, sizeof *state);
  struct dibs__result result;
  to[0] = '\0';
  bool fine = state && bucket < DIBS__BUCKETS && dibs__tiers_read(text.p, text.len, state, &result) == DIBS_OK;
  if (fine && state->mandates[bucket].tier + 1 < state->count &&
      !dibs__tiers_tier_name(state, state->mandates[bucket].tier, to, size))
    to[0] = '\0';
  free(state);
}
