/* SPDX-License-Identifier: MIT */
#ifndef DIBS_TIER_STATE_H
#define DIBS_TIER_STATE_H
/*
 * What the anchor remembers of its tiers: one record, read by everybody, written by compare and set on its version.
 * All decisions of DESIGN 7 about mandates are made here on a copy of it, by pure functions; whoever made a decision
 * writes the copy back, and has made it only if that was accepted.
 *
 * Times are the anchor's clock, in ms.
 *
 * A bucket's mandate names its tier and the life of that tier's memory.  Its epoch only grows, by every change; no two
 * mandates of a bucket, on whatever tier, share one.  The first is above what a lone Redis gives (its clock in ms *
 * 1024 as a whole fence), see dibs__tiers_first_epoch.
 */
#include "store/uri.h"

enum {
  DIBS__TIERS_FORMAT = 1,
  DIBS__TIERS_GRACE_MS = 300,        /* a freshly made epoch gets so long to arrive before the next is made */
  DIBS__TIERS_CONFIRM_MS = 3000,     /* strict: how long a copy may be used after the anchor confirmed it */
  DIBS__TIERS_REPORT_MS = 1000,      /* each client reports so often, */
  DIBS__TIERS_ACTIVE_MS = 10000,     /* and counts so long after its last report */
  DIBS__TIERS_DWELL_MS = 10000,      /* a tier that was left is not returned to sooner, */
  DIBS__TIERS_DWELL_MAX_MS = 300000, /* and later each time that it is left again soon after its return, up to this */
  DIBS__TIERS_RAISE_MAX = 1024       /* so many steps an anchor that is behind its records is raised by itself */
};

enum dibs__tiers_hand { DIBS__HAND_AUTO, DIBS__HAND_OPEN, DIBS__HAND_CLOSED };
enum dibs__tiers_strictness { DIBS__FENCED, DIBS__STRICT };

struct dibs__tiers_tier {
  char scheme[33];            /* "redis": clients whose tiers are others are refused */
  enum dibs__tiers_hand hand; /* OPEN: as if it were down; CLOSED: never taken for down */
  uint32_t percent;           /* SCHEME.enabled: buckets below it may be here; of the last tier always 100 */
  bool down;                  /* by vote; means nothing while the breaker flag is off or the hand is not AUTO */
  int64_t turned;             /* down or up again since; 0: it never turned */
  int64_t dwell_ms;           /* how long it must be down before it may be up */
};

struct dibs__tiers_mandate {
  uint32_t epoch; /* 0: none was made yet */
  uint32_t tier;
  dibs__life life;
  int64_t since;
  int64_t from; /* strict: nothing is granted under it before */
};

struct dibs__tiers_state {
  uint32_t count;
  struct dibs__tiers_tier tiers[DIBS__URI_TIERS];
  enum dibs__tiers_strictness strictness;
  /* The flags that are not a tier's. */
  bool breaker; /* circuit-breaker.enabled: tiers may be voted down */
  uint32_t
      fallback; /* SCHEME-fallback.enabled, fallback.enabled: percent of buckets that may leave a tier that is down */
  bool least_strict;  /* least-strict.enabled */
  int32_t pinned;     /* all buckets on this tier, by hand; -1: not */
  int64_t longest_ms; /* strict: no ttl is granted above it before it is recorded here */
  int64_t dwell_ms;   /* what a tier's dwell time begins with; DIBS__TIERS_DWELL_MS */
  struct dibs__tiers_mandate mandates[DIBS__BUCKETS];
  /* Not in the record; set by who decides.  How much later it is for people than by the anchor's clock, which may begin
   * at boot: first epochs must be above what a lone Redis gives by its own. */
  int64_t wall_ahead_ms;
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

/* Reserved: no user's key has a control character. */
#define DIBS__TIERS_KEY "\001tiers"

/* What a scheme is called in the state and in flags: redis for rediss, and so on; itself for others.  Two clients whose
 * members' schemes are the same by this name have the same tiers. */
const char *dibs__tiers_scheme(const char *scheme);
/* All on the first tier, fenced, breaker and fallback on, no mandate made.  schemes: as in URIs; 1 to DIBS__URI_TIERS
 * of them. */
void dibs__tiers_begin(struct dibs__tiers_state *state, const char *const schemes[], uint32_t count);
/* As lines of text; buckets that are alike share one.  The last line is a sum of all before it.  malloc'd, with a NUL
 * behind; NULL: no memory. */
char *dibs__tiers_write(const struct dibs__tiers_state *state, size_t *len);
/* CORRUPT (the sum is not right, or what it says can't be), TOO_NEW (another format, or a line that this version does
 * not know: whoever does not understand all of it must not write it back), with words.  Not OK: *state is not to be
 * used. */
dibs__status dibs__tiers_read(const char *text, size_t len, struct dibs__tiers_state *state, struct dibs__said *said);

/* ---- Decisions ---- */

/* Above what a lone Redis has given up to now, and gives in the next hour (its clock may be ahead of the anchor's).  No
 * epoch is made below it: an anchor that forgot everything begins above what it had made at no more than about 20 a
 * day.  1 when the clock is beyond what fences can tell (2248). */
uint32_t dibs__tiers_first_epoch(int64_t now);

/* Which tier a bucket should be on.  The pinned one, whatever else; else the first that is rolled out to this bucket
 * (percent) and is up.  A tier that is down (hand OPEN; or hand AUTO, voted down, and the breaker flag on) is left by
 * the buckets below `fallback`; the others stay on it.  The last tier is rolled out to all and never down. */
uint32_t dibs__tiers_wanted(const struct dibs__tiers_state *state, uint32_t bucket);

/* A tier answered for a bucket whose mandate names it, that it has `has`. */
enum dibs__tiers_verdict {
  DIBS__TIERS_JOIN,  /* it is what stands */
  DIBS__TIERS_YOUNG, /* what stands was made a moment ago, and may be on its way: ask the tier again */
  DIBS__TIERS_MADE,  /* the next epoch was made, for has.life: write, then install it once */
  DIBS__TIERS_SPENT, /* there is no next epoch */
  DIBS__TIERS_FAR    /* the anchor is more than RAISE_MAX behind what was seen: only by hand (bump).  Nothing changed */
};
/* The next epoch is above the standing one, above what is given as seen, and not below first_epoch.  In all of these:
 * strict: `from` is now + CONFIRM + longest, unless it is the bucket's first mandate and the tier has none either, or
 * a sequence was used up on a tier that lost nothing (next); fenced: 0. */
enum dibs__tiers_verdict dibs__tiers_told(struct dibs__tiers_state *state, uint32_t bucket, const dibs__mandate *has,
                                          int64_t now);
/* The epoch is used up, or something was seen under a higher one (above; 0: none): the next is made whatever the tier
 * has.  MADE, SPENT, FAR. */
enum dibs__tiers_verdict dibs__tiers_next(struct dibs__tiers_state *state, uint32_t bucket, uint32_t above,
                                          const dibs__life *life, int64_t now);
/* The same by hand: as far as it takes.  MADE, SPENT. */
enum dibs__tiers_verdict dibs__tiers_bump(struct dibs__tiers_state *state, uint32_t bucket, uint32_t above,
                                          const dibs__life *life, int64_t now);

/* Puts every bucket on the tier that it should be on and is not: lives[i] is that of tier i, NULL if it can't be
 * reached (then it gets no bucket: they stay), has[i], NULL where it is not known, what each of the DIBS__BUCKETS has
 * there (new epochs are above it; one for which that would be FAR, or SPENT, stays).  *moved: those for which a mandate
 * was made, to be installed.  false: nothing was moved, nothing changed. */
bool dibs__tiers_place(struct dibs__tiers_state *state, const dibs__life *const lives[],
                       const dibs__mandate *const has[], int64_t now, struct dibs__buckets *moved);
/* Is there a bucket that should be elsewhere?  *to: some bucket should be moved to tier i, bit i. */
bool dibs__tiers_astray(const struct dibs__tiers_state *state, uint32_t *to);

/* ---- Reports and votes ---- */

enum { DIBS__TIERS_HOST_MAX = 63, DIBS__TIERS_COUNTS_MAX = 16 };

/* What one client says of itself, each second and when its breaker turns. */
struct dibs__tiers_report {
  uint32_t count;
  struct {
    bool active; /* it used the tier, or tried to, in the last 10 s */
    bool down;   /* its breaker is open, and not for its own password or configuration */
    bool well;   /* it reached the tier since it left it, and its breaker is closed */
    enum { DIBS__SEEN_CLOSED, DIBS__SEEN_OPEN, DIBS__SEEN_HALF_OPEN } breaker;
  } tiers[DIBS__URI_TIERS];
  char owner[DIBS_OWNER_MAX + 1];          /* "user@host:pid", for people */
  uint64_t counts[DIBS__TIERS_COUNTS_MAX]; /* metrics.h */
};
/* One line without its end: "1 a--c,--wc 12,0,3 user@host:pid".  Its length, at most DIBS__REPORT_MAX; 0: `to` is too
 * small.  An owner with anything else than UTF-8 without control characters is left out. */
size_t dibs__tiers_report_write(const struct dibs__tiers_report *report, char *to, size_t size);
/* false: it is not one, or of another version; it does not count. */
bool dibs__tiers_report_read(dibs__str text, struct dibs__tiers_report *report);

struct dibs__tiers_tally {
  uint32_t clients;
  uint32_t active[DIBS__URI_TIERS];
  uint32_t down[DIBS__URI_TIERS]; /* of those that are active */
  uint32_t well[DIBS__URI_TIERS];
};
void dibs__tiers_tally(const struct dibs__tiers_report reports[], size_t count, struct dibs__tiers_tally *tally);

/* Turns tiers down that more than half of those active on it report down (circuit-breaker.enabled, hand AUTO, never
 * the last), and up again when their dwell time is over and more than half of all clients find it well.  A tier that is
 * down although it can't be (flag off, hand CLOSED) is up.  The dwell time doubles, up to DWELL_MAX, when a tier goes
 * down within DWELL_MAX of having come back; else it begins anew.  true: something turned. */
bool dibs__tiers_vote(struct dibs__tiers_state *state, const struct dibs__tiers_tally *tally, int64_t now);

/* ---- Flags ---- */

/* What a tier is called by people: its scheme, with its number if there are several of that: redis, redis-2.  NULL: it
 * does not fit. */
const char *dibs__tiers_tier_name(const struct dibs__tiers_state *state, uint32_t tier, char *room, size_t size);
/* redis.enabled, circuit-breaker.enabled, mysql-fallback.enabled (also fallback.enabled), least-strict.enabled, by the
 * schemes that the state has (rediss is redis; postgresql is postgres; mariadb is mysql; a second redis is redis-2).
 * X-fallback names the last tier, or any but the first: it is one number.  The nth one's name; NULL: no more, or it
 * does not fit. */
const char *dibs__tiers_flag_name(const struct dibs__tiers_state *state, size_t nth, char *room, size_t size);
/* Percent: 0 is off, 100 on.  INVALID (said lists the flags that there are; circuit-breaker and least-strict know only
 * 0 and 100), OK. */
dibs__status dibs__tiers_flag_set(struct dibs__tiers_state *state, const char *name, uint32_t percent,
                                  struct dibs__said *said);
dibs__status dibs__tiers_flag_get(const struct dibs__tiers_state *state, const char *name, uint32_t *percent,
                                  struct dibs__said *said);

#endif
