/* SPDX-License-Identifier: MIT */
/*
 * The record of the anchor, as text:
 *
 *   dibs-tiers 1
 *   tier SCHEME auto|open|closed PERCENT up|down TURNED DWELL      one a tier, in their order
 *   rules fenced|strict breaker|no-breaker FALLBACK least-strict|no-least-strict PINNED|none LONGEST DWELL
 *   buckets 0-9,12 EPOCH TIER LIFE SINCE FROM                      each bucket once; EPOCH 0: none made
 *   end SUM
 *
 * The sum is FNV-1a 64 of all before its line.  So a line that is not known and a right sum is a newer version's, and
 * what is cut or changed is told from it.
 */
#include "tier/state.h"
#include "tier/words.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TIME_MAX ((uint64_t)INT64_MAX / 4) /* so that sums of times can't overflow */

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

/* Fixed for ever: it stands in what is stored. */
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

static bool alike(const struct dibs__tiers_mandate *a, const struct dibs__tiers_mandate *b) {
  return a->epoch == b->epoch && a->tier == b->tier && a->since == b->since && a->from == b->from &&
         memcmp(&a->life, &b->life, sizeof a->life) == 0;
}

/* The line of all that are like `first`, which is the first of them. */
static void write_alike(FILE *to, const struct dibs__tiers_state *state, uint32_t first) {
  const struct dibs__tiers_mandate *m = &state->mandates[first];
  const char *between = "buckets ";
  for (uint32_t b = first; b < DIBS__BUCKETS; b++) {
    if (!alike(m, &state->mandates[b])) continue;
    uint32_t last = b;
    while (last + 1 < DIBS__BUCKETS && alike(m, &state->mandates[last + 1])) last++;
    fprintf(to, "%s%" PRIu32, between, b);
    if (last > b) fprintf(to, "-%" PRIu32, last);
    between = ",";
    b = last;
  }
  fprintf(to, " %" PRIu32 " %" PRIu32 " ", m->epoch, m->tier);
  for (size_t i = 0; i < sizeof m->life.b; i++) fprintf(to, "%02x", m->life.b[i]);
  fprintf(to, " %" PRId64 " %" PRId64 "\n", m->since, m->from);
}

static void write_lines(FILE *to, const struct dibs__tiers_state *state) {
  fprintf(to, "dibs-tiers %d\n", DIBS__TIERS_FORMAT);
  for (uint32_t i = 0; i < state->count; i++) {
    const struct dibs__tiers_tier *tier = &state->tiers[i];
    fprintf(to, "tier %s %s %" PRIu32 " %s %" PRId64 " %" PRId64 "\n", tier->scheme, hands[tier->hand], tier->percent,
            tier->down ? "down" : "up", tier->turned, tier->dwell_ms);
  }
  write_rules(to, state);
  for (uint32_t b = 0; b < DIBS__BUCKETS; b++) {
    bool first = true;
    for (uint32_t before = 0; before < b && first; before++)
      first = !alike(&state->mandates[before], &state->mandates[b]);
    if (first) write_alike(to, state, b);
  }
}

char *dibs__tiers_write(const struct dibs__tiers_state *state, size_t *len) {
  char *text = NULL;
  *len = 0;
  FILE *to = open_memstream(&text, len);
  if (!to) return NULL;
  write_lines(to, state);
  bool fine = fflush(to) == 0; /* text and *len are right from here on */
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

/* Which of `words` it is; -1: none. */
static int which(dibs__str word, const char *const words[], int count) {
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
  int choice = which(dibs__words_next(words), (const char *const[]){no, yes}, 2);
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
  int hand = which(dibs__words_next(words), hands, 3);
  if (!is_scheme(scheme) || hand < 0 || !read_u32(words, 100, &tier->percent) ||
      !read_choice(words, "up", "down", &tier->down) || !read_time(words, &tier->turned) ||
      !read_time(words, &tier->dwell_ms))
    return false;
  memcpy(tier->scheme, scheme.p, scheme.len);
  tier->hand = (enum dibs__tiers_hand)hand;
  state->count++;
  return true;
}

static bool read_rules(struct dibs__words *words, struct dibs__tiers_state *state) {
  int strictness = which(dibs__words_next(words), strictnesses, 2);
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

static bool read_life(dibs__str word, dibs__life *life) {
  if (word.len != 2 * sizeof life->b) return false;
  for (uint32_t i = 0; i < word.len; i++) {
    char c = word.p[i];
    bool digit = c >= '0' && c <= '9', letter = c >= 'a' && c <= 'f';
    if (!digit && !letter) return false;
    life->b[i / 2] = (uint8_t)(life->b[i / 2] << 4 | (digit ? c - '0' : c - 'a' + 10));
  }
  return true;
}

/* "12" or "0-9": up to the comma, which is passed over. */
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

static bool read_buckets(struct dibs__words *words, struct dibs__tiers_state *state, struct dibs__buckets *seen) {
  dibs__str set = dibs__words_next(words);
  struct dibs__tiers_mandate m = {0};
  if (set.len == 0 || !read_u32(words, DIBS__EPOCH_MAX, &m.epoch) || !read_u32(words, DIBS__URI_TIERS - 1, &m.tier) ||
      !read_life(dibs__words_next(words), &m.life) || !read_time(words, &m.since) || !read_time(words, &m.from))
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

/* What must hold between the lines. */
static bool is_whole(const struct dibs__tiers_state *state, const struct dibs__buckets *seen, uint32_t rules) {
  if (state->count == 0 || rules != 1 || state->pinned >= (int32_t)state->count) return false;
  for (uint32_t b = 0; b < DIBS__BUCKETS; b++)
    if (!dibs__buckets_has(seen, b) || state->mandates[b].tier >= state->count) return false;
  return state->tiers[state->count - 1].percent == 100;
}

static dibs__status damaged(struct dibs__said *said, const char *what) {
  dibs__say(said,
            "what the anchor remembers of its tiers is damaged (%s): restore its record, or disband the tiers with "
            "\"dibs tier alone\" when nobody uses them",
            what);
  return DIBS_CORRUPT;
}

static dibs__status too_new(struct dibs__said *said, dibs__str what) {
  dibs__say(said, "what the anchor remembers of its tiers was written by a newer dibs (\"%.*s\"): update this one",
            (int)(what.len < 40 ? what.len : 40), what.p);
  return DIBS_TOO_NEW;
}

static dibs__status read_line(dibs__str line, struct dibs__tiers_state *state, struct dibs__buckets *seen,
                              uint32_t *rules, struct dibs__said *said) {
  struct dibs__words words = {line.p, line.p + line.len};
  dibs__str head = dibs__words_next(&words);
  bool fine;
  if (dibs__words_is(head, "tier"))
    fine = read_tier(&words, state);
  else if (dibs__words_is(head, "rules"))
    fine = ++*rules == 1 && read_rules(&words, state);
  else if (dibs__words_is(head, "buckets"))
    fine = read_buckets(&words, state, seen);
  else
    return head.len ? too_new(said, head) : damaged(said, "an empty line");
  if (!fine) return damaged(said, "a line can't be");
  /* A newer version may say more in a line of ours. */
  return words.at ? too_new(said, line) : DIBS_OK;
}

/* The first line: what format it is. */
static dibs__status read_format(const char **at, const char *end, struct dibs__said *said) {
  static const char magic[] = "dibs-tiers ";
  const char *newline = memchr(*at, '\n', (size_t)(end - *at));
  uint64_t format;
  if (!newline || (size_t)(newline - *at) < sizeof magic || memcmp(*at, magic, sizeof magic - 1) != 0)
    return damaged(said, "it does not begin as it should");
  dibs__str word = dibs__str_of(*at + sizeof magic - 1, (size_t)(newline - *at) - (sizeof magic - 1));
  if (!dibs__words_number(word, UINT32_MAX, &format) || format == 0) return damaged(said, "its format is no number");
  if (format > DIBS__TIERS_FORMAT) return too_new(said, dibs__str_of(*at, (size_t)(newline - *at)));
  *at = newline + 1;
  return DIBS_OK;
}

/* Takes the last line off, if its sum is right. */
static bool check_sum(const char *text, size_t *len) {
  enum { LINE = sizeof "end 0123456789abcdef\n" - 1 };
  char right[LINE + 1];
  if (*len < LINE) return false;
  *len -= LINE;
  snprintf(right, sizeof right, "end %016" PRIx64 "\n", sum_of(text, *len));
  return memcmp(text + *len, right, LINE) == 0 && (*len == 0 || text[*len - 1] == '\n');
}

dibs__status dibs__tiers_read(const char *text, size_t len, struct dibs__tiers_state *state, struct dibs__said *said) {
  *state = (struct dibs__tiers_state){.pinned = -1};
  struct dibs__buckets seen = {{0}};
  uint32_t rules = 0;
  const char *at = text;
  if (len == 0) return damaged(said, "it is empty");
  dibs__status status = read_format(&at, text + len, said);
  if (status == DIBS_OK && !check_sum(text, &len)) return damaged(said, "its sum is wrong");
  for (const char *end = text + len; status == DIBS_OK && at < end;) {
    const char *newline = memchr(at, '\n', (size_t)(end - at));
    if (!newline) return damaged(said, "a line has no end");
    status = read_line(dibs__str_of(at, (size_t)(newline - at)), state, &seen, &rules, said);
    at = newline + 1;
  }
  if (status != DIBS_OK) return status;
  return is_whole(state, &seen, rules) ? DIBS_OK : damaged(said, "something is missing");
}
