/* SPDX-License-Identifier: MIT */
#ifndef DIBS_TIER_STATE_H
#define DIBS_TIER_STATE_H
/*
 * What the anchor remembers of its tiers: one record, which every client reads, and writes by compare and set on its
 * version.  Pure functions make all decisions on mandates, on a copy of it.  A client that made a decision writes the
 * copy back; the decision counts only if the write succeeds.
 *
 * Times are the anchor's clock, in ms.
 *
 * A bucket's mandate names its tier and the incarnation of that tier's memory.  Its epoch grows with every change; no
 * two mandates of a bucket have the same epoch, on any tier.  The first epoch is above all that a Redis without tiers
 * gives (its clock in ms * 1024 as a whole fence), see dibs__tiers_first_epoch.
 */
#include "base/port.h"
#include "store/store.h"
#include "store/uri.h"

enum {
  DIBS__TIERS_FORMAT = 1,
  DIBS__TIERS_GRACE_MS = 300,                   /* a new epoch has this time to be installed before the next is made */
  DIBS__TIERS_CONFIRM_MS = 3000,                /* strict: how long a copy may be used after the anchor confirmed it */
  DIBS__TIERS_REPORT_MS = 1000,                 /* each client puts a report at this interval, */
  DIBS__TIERS_ACTIVE_MS = DIBS__REPORT_KEEP_MS, /* and counts for this time after its last report */
  DIBS__TIERS_DWELL_MS = 10000,                 /* buckets do not return to a tier sooner after they left it, */
  DIBS__TIERS_DWELL_MAX_MS =
      300000,                   /* and later each time that they leave it again soon after their return, up to this */
  DIBS__TIERS_RAISE_MAX = 1024, /* so many steps an anchor that is behind its records is raised by itself */
  /* A record that was restored to an older one lacks the epochs made since: this many are skipped (a mandate takes up
   * to four), or a fraction of the remaining ones, so that they never run out. */
  DIBS__TIERS_PASS_OVER = 4096,
  DIBS__TIERS_PASS_PART = 64
};

enum dibs__tiers_hand { DIBS__HAND_AUTO, DIBS__HAND_OPEN, DIBS__HAND_CLOSED };
enum dibs__tiers_strictness { DIBS__FENCED, DIBS__STRICT };

struct dibs__tiers_tier {
  char scheme[33];            /* "redis": clients with other tiers are refused */
  enum dibs__tiers_hand hand; /* OPEN: treated as down; CLOSED: never treated as down */
  uint32_t percent;           /* SCHEME.enabled: buckets below it may be here; always 100 for the last tier */
  bool down;                  /* by vote; ignored while the breaker flag is off or the hand is not AUTO */
  int64_t changed;            /* when `down` last changed; 0: never */
  int64_t dwell_ms;           /* how long it must be down before it may be up */
};

/* A tier that the bucket is moving away from, on purpose: it grants no free name, and its holders continue.  Each
 * client asks this tier first for a name, so a name is on one tier at a time, and no lease is lost. */
struct dibs__tiers_left {
  uint32_t epoch; /* 0: none */
  uint32_t tier;
  dibs__incarnation incarnation;
};

/* A record as it was read.  Versions restart when a backup is restored, so only versions with the same `repairs`
 * compare. */
struct dibs__tiers_read_at {
  int64_t repairs;
  uint64_t version;
};

/* The guard of the next write.  A version alone is used again after a restore, for other content. */
struct dibs__tiers_saved {
  uint64_t version, digest;
};

struct dibs__tiers_mandate {
  uint32_t epoch; /* 0: none was made yet */
  uint32_t tier;
  dibs__incarnation incarnation;
  int64_t since;
  int64_t from; /* strict: nothing is granted under it before this */
  struct dibs__tiers_left left;
};

struct dibs__tiers_state {
  uint32_t count;
  struct dibs__tiers_tier tiers[DIBS__URI_TIERS];
  enum dibs__tiers_strictness strictness;
  /* The flags of the whole, not of one tier. */
  bool breaker; /* circuit-breaker.enabled: tiers may be voted down */
  uint32_t
      fallback; /* SCHEME-fallback.enabled, fallback.enabled: percent of buckets that may leave a tier that is down */
  bool least_strict;  /* least-strict.enabled */
  int32_t pinned;     /* a person put all buckets on this tier; -1: no */
  int64_t longest_ms; /* strict: no longer ttl is granted before it is recorded here */
  int64_t dwell_ms;   /* a tier's first dwell time; DIBS__TIERS_DWELL_MS */
  /* A record that was restored to an older one (a backup, a replica that lagged) differs from a current one: in the
   * anchor's incarnation in which it was written (all zero: not known), in what clients and tiers have seen, and, among
   * clients, in the number of its repairs; `repaired` is the time of the last one. */
  dibs__incarnation anchor_incarnation;
  int64_t repairs, repaired; /* repaired 0: never, or a person has confirmed the record since */
  /* Since the record was repaired: it has the flags that were read at this.  A client that has read later flags
   * restores them, unless a person has set a flag or confirmed the record since (both numbers: DIBS__TIERS_SETTLED).
   * 0: only what the record itself has. */
  struct dibs__tiers_read_at flags_of;
  struct dibs__tiers_mandate mandates[DIBS__BUCKETS];
  /* Not in the record; set by the client that decides.  Wall-clock time minus the anchor's clock, which may start at
   * boot: first epochs must be above those that a Redis without tiers makes from wall-clock time. */
  int64_t wall_ahead_ms;
  /* Not in the record either.  The anchor draws fences of its own buckets by its clock (R43): the next epoch is above
   * this one. */
  uint32_t drawn[DIBS__BUCKETS];
};

/* A set of buckets. */
struct dibs__buckets {
  uint64_t bits[2];
};
static inline bool dibs__buckets_has(const struct dibs__buckets *set, uint32_t bucket) {
  return set->bits[bucket / 64] >> bucket % 64 & 1;
}
static inline void dibs__buckets_add(struct dibs__buckets *set, uint32_t bucket) {
  set->bits[bucket / 64] |= UINT64_C(1) << bucket % 64;
}

/* ---- The record ---- */

/* Reserved: a user's key has no control character. */
#define DIBS__TIERS_KEY "\001tiers"
#define DIBS__TIERS_SETTLED (INT64_MAX / 4)

/* The name of a scheme in the state and in flags: redis for rediss, and so on; other schemes are unchanged.  Two
 * clients whose members have the same schemes by this name have the same tiers. */
const char *dibs__tiers_scheme(const char *scheme);
/* All buckets on the first tier, fenced, breaker and fallback on, no mandate made.  schemes: as in URIs; 1 to
 * DIBS__URI_TIERS of them. */
void dibs__tiers_begin(struct dibs__tiers_state *state, const char *const schemes[], uint32_t count);
/* As lines of text; buckets with the same mandate share a line.  The last line is a checksum of all before it.
 * malloc'd, with a NUL at the end; NULL: no memory. */
char *dibs__tiers_write(const struct dibs__tiers_state *state, size_t *len);
/* CORRUPT (a wrong checksum, or impossible content), TOO_NEW (another format, or a line that this version does not
 * know: a client that does not understand all of it must not write it back), with a message.  If not OK, *state must
 * not be used. */
dibs__status dibs__tiers_read(const char *text, size_t len, struct dibs__tiers_state *state,
                              struct dibs__result *result);

/* For people: the tier that serves the bucket by the record; "" if it is not known. */
void dibs__tiers_who_serves(dibs__str text, uint32_t bucket, char *to, size_t size);

/* ---- Decisions ---- */

/* An epoch above all that a Redis without tiers has given up to now, and gives in the next hour (its clock may be ahead
 * of the anchor's).  No epoch is made below it: an anchor that lost its record begins above the epochs that it made at
 * up to about 20 a day.  1 if the clock is beyond the range of fences (2248). */
uint32_t dibs__tiers_first_epoch(int64_t now);

/* The epoch that was made, from `seen` at a tier: a tier that was left has the epoch below the mandate's that left it.
 */
static inline uint32_t dibs__tiers_made(uint32_t seen) {
  return seen + (seen & 1);
}
/* The mandate of this epoch was a strict one (tiers_impl.h). */
static inline bool dibs__tiers_tells_strict(uint32_t seen) {
  return seen != 0 && dibs__tiers_made(seen) % 4 == 2;
}

static inline bool dibs__tiers_before(const struct dibs__tiers_read_at *a, const struct dibs__tiers_read_at *b) {
  return a->repairs != b->repairs ? a->repairs < b->repairs : a->version < b->version;
}
/* When the flags of `state`, which was read as `version`, were read. */
struct dibs__tiers_read_at dibs__tiers_flags_at(const struct dibs__tiers_state *state, uint64_t version);
/* `state` was repaired without the flags that were read at `at`: these must be restored. */
bool dibs__tiers_owes_flags(const struct dibs__tiers_state *state, const struct dibs__tiers_read_at *at);
/* Copies flags, strictness, hands, pins and outages of `from`, and takes the longer ttl of both. */
void dibs__tiers_copy_flags(struct dibs__tiers_state *state, const struct dibs__tiers_state *from);

/* The tier that a bucket should be on.  The pinned one, regardless of all else; else the first that is rolled out to
 * this bucket (percent) and is up.  From a tier that is down (hand OPEN; or hand AUTO, voted down, and the breaker flag
 * on) the buckets below `fallback` move away; the others stay.  The last tier is rolled out to all buckets and is never
 * down. */
uint32_t dibs__tiers_wanted(const struct dibs__tiers_state *state, uint32_t bucket);

/* The last tier serves the bucket when all tiers are up and nothing is pinned. */
bool dibs__tiers_at_home(const struct dibs__tiers_state *state, uint32_t bucket);

/* The answer of a tier: it has `has` for a bucket whose mandate names it. */
enum dibs__tiers_verdict {
  DIBS__TIERS_JOIN,  /* this is the record's mandate */
  DIBS__TIERS_YOUNG, /* the record's mandate was made a moment ago and may be arriving: ask the tier again */
  DIBS__TIERS_MADE,  /* the next epoch was made, for has.incarnation: write the record, then install it once */
  DIBS__TIERS_SPENT, /* there is no next epoch */
  DIBS__TIERS_SERVER /* the anchor is more than RAISE_MAX behind a seen epoch: only a person may raise it (bump).  No
                        change */
};
/* The next epoch is above the record's, above the seen ones, and not below first_epoch.  In all of these, strict:
 * `from` is now + CONFIRM + longest, unless it is the bucket's first mandate and the tier has none either, or a
 * sequence was used up on a tier that lost nothing (next); fenced: 0. */
enum dibs__tiers_verdict dibs__tiers_told(struct dibs__tiers_state *state, uint32_t bucket, const dibs__mandate *has,
                                          int64_t now);
/* The epoch is used up, or a higher one was seen (above; 0: none): makes the next one, whatever the tier has.  MADE,
 * SPENT, SERVER. */
enum dibs__tiers_verdict dibs__tiers_next(struct dibs__tiers_state *state, uint32_t bucket, uint32_t above,
                                          const dibs__incarnation *incarnation, int64_t now);
/* The record was restored to an older one: makes the next epoch as above, and skips the epochs that may have been made
 * since.  MADE, SPENT. */
enum dibs__tiers_verdict dibs__tiers_pass_over(struct dibs__tiers_state *state, uint32_t bucket, uint32_t above,
                                               const dibs__incarnation *incarnation, int64_t now);
/* The same for a person's request, at any distance.  MADE, SPENT. */
enum dibs__tiers_verdict dibs__tiers_bump(struct dibs__tiers_state *state, uint32_t bucket, uint32_t above,
                                          const dibs__incarnation *incarnation, int64_t now);

/* The last tier serves the bucket as its own (R45), and has made an epoch itself, as it does in a new incarnation and
 * when a sequence is used up: this becomes the record's.  false: it is known, or is older than the record's. */
bool dibs__tiers_follow(struct dibs__tiers_state *state, uint32_t bucket, const dibs__mandate *has, int64_t now);
/* The tier that the bucket was moving away from is down, or has lost its holders: ends the move.  Makes the next epoch
 * where the bucket is, in that tier's incarnation.  MADE, SPENT. */
enum dibs__tiers_verdict dibs__tiers_left_lost(struct dibs__tiers_state *state, uint32_t bucket,
                                               const dibs__incarnation *incarnation, int64_t now);
/* By vote or by a person. */
bool dibs__tiers_is_down(const struct dibs__tiers_state *state, uint32_t tier);

/* Moves every bucket to the tier that it should be on.  incarnations[i] is tier i's, NULL if it cannot be reached (then
 * buckets do not move to it), and that of a bucket is in has[i]; has[i], NULL if not known, is what each of the
 * DIBS__BUCKETS has there (new epochs are above it; a bucket for which the result would be SERVER or SPENT stays).
 * *moved: the buckets for which a mandate was made, to be installed.  A tier that is up, and has the record's mandate,
 * is `left`: its leases end there.  As long as it has some, the bucket does not move again, except away from a tier
 * that is down or cannot be reached.  false: nothing changed. */
bool dibs__tiers_placement(struct dibs__tiers_state *state, const dibs__incarnation *const incarnations[],
                           const dibs__mandate *const has[], int64_t now, struct dibs__buckets *moved);
/* Should a bucket be on another tier?  *to: bit i if some bucket should move to tier i. */
bool dibs__tiers_astray(const struct dibs__tiers_state *state, uint32_t *to);

/* ---- Reports and votes ---- */

enum { DIBS__TIERS_HOST_MAX = 63, DIBS__TIERS_COUNTS_MAX = 16 };

/* One client's view, put each second and when its breaker changes. */
struct dibs__tiers_report {
  uint32_t count;
  struct {
    bool active; /* it used the tier, or tried to, in the last 10 s */
    bool down;   /* its breaker is open, and not because of the client's own password or configuration */
    bool well;   /* it reached the tier since it left it, and its breaker is closed */
    enum { DIBS__SEEN_CLOSED, DIBS__SEEN_OPEN, DIBS__SEEN_HALF_OPEN } breaker;
  } tiers[DIBS__URI_TIERS];
  char owner[DIBS_OWNER_MAX + 1];          /* "user@host:pid", for people */
  uint64_t counts[DIBS__TIERS_COUNTS_MAX]; /* state.h */
};
/* One line without its end: "1 a--c,--wc 12,0,3 user@host:pid".  Returns its length, at most DIBS__REPORT_MAX; 0: `to`
 * is too small.  Omits an owner that is not UTF-8 or has control characters. */
size_t dibs__tiers_report_write(const struct dibs__tiers_report *report, char *to, size_t size);
/* false: it is not a report, or one of another version; it does not count. */
bool dibs__tiers_report_read(dibs__str text, struct dibs__tiers_report *report);

struct dibs__tiers_tally {
  uint32_t clients;
  uint32_t active[DIBS__URI_TIERS];
  uint32_t down[DIBS__URI_TIERS]; /* of the active ones */
  uint32_t well[DIBS__URI_TIERS];
};
void dibs__tiers_tally(const struct dibs__tiers_report reports[], size_t count, struct dibs__tiers_tally *tally);

/* Sets a tier down if more than half of the clients active on it report it down (circuit-breaker.enabled, hand AUTO,
 * never the last tier), and up again when its dwell time has passed and more than half of all clients report it well.
 * A tier that is down although it must not be (flag off, hand CLOSED) becomes up.  The dwell time doubles, up to
 * DWELL_MAX, if a tier goes down within DWELL_MAX of its return; otherwise it starts from the beginning.  true: a tier
 * changed. */
bool dibs__tiers_vote(struct dibs__tiers_state *state, const struct dibs__tiers_tally *tally, int64_t now);

/* ---- Flags ---- */

/* The name of a tier for people: its scheme, with a number if several tiers have this scheme: redis, redis-2.  NULL:
 * the buffer is too small. */
const char *dibs__tiers_tier_name(const struct dibs__tiers_state *state, uint32_t tier, char *to, size_t size);
/* redis.enabled, circuit-breaker.enabled, mysql-fallback.enabled (also fallback.enabled), least-strict.enabled, by the
 * schemes of the state (rediss is redis; postgresql is postgres; mariadb is mysql; a second redis is redis-2).
 * X-fallback names the last tier, or any but the first: all are one number.  The nth one's name; NULL: no more, or the
 * buffer is too small. */
const char *dibs__tiers_flag_name(const struct dibs__tiers_state *state, size_t nth, char *to, size_t size);
/* Percent: 0 is off, 100 on.  INVALID (the message lists the flags; circuit-breaker and least-strict only accept 0 and
 * 100), OK. */
dibs__status dibs__tiers_flag_set(struct dibs__tiers_state *state, const char *name, uint32_t percent,
                                  struct dibs__result *result);
dibs__status dibs__tiers_flag_get(const struct dibs__tiers_state *state, const char *name, uint32_t *percent,
                                  struct dibs__result *result);

/* Reads words with one blank between, from a text that is not terminated: the form of the state and of reports. */

struct dibs__words {
  const char *at, *end; /* at NULL: the end was reached */
};

/* The text up to the next blank, which may be empty.  After the end: the empty text. */
dibs__str dibs__words_next(struct dibs__words *words);
bool dibs__words_is(dibs__str word, const char *text);
/* Decimal digits only, without a leading zero, at most `most`. */
bool dibs__words_number(dibs__str word, uint64_t most, uint64_t *number);

/* What a tiered store counts about its tiers in this process.  Atomic counters; the order is that of a report's counts.
 */

enum dibs__tiers_metric {                   /* appended only */
                          DIBS__M_ACQUIRED, /* leases granted, confirmed offers included */
                          DIBS__M_BUSY,     /* HELD, QUEUED */
                          DIBS__M_LOST,     /* LOST, MOVED of a renewal or release */
                          DIBS__M_FALLBACK, /* granted by another tier than the first */
                          DIBS__M_FAILED,   /* operations that a tier did not answer */
                          DIBS__M_STALE,    /* stale writes that records, stock and once refused */
                          DIBS__M_MOVES,    /* mandates that this process moved to another tier */
                          DIBS__M_EPOCHS, /* epochs that it made because a tier's memory was lost or an epoch used up */
                          DIBS__M_TURNS,  /* times a breaker opened */
                          DIBS__M_LEAST_STRICT, /* granted by the memory of the process alone */
                          DIBS__M_WENT_BACK,    /* times that it found an older record at the anchor, and repaired it */
                          DIBS__M_COUNT
};

#endif
