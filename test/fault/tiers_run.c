/* SPDX-License-Identifier: MIT */
/*
 * A run over tiers: workers use a tiered store of its own Redis and a database, while failures are injected.
 *
 *   tiers SCENE ANCHOR [--seconds S] [--phase MS] [--workers N] [--threads N] [--names N] [--ttl MS] [--hold MS]
 *         [--pause MS] [--seed N] [--no-seal | --no-fence] [--strict | --least-strict] [--lone] [--keep]
 *
 * --seconds: repeats the scene for this time.  --no-seal, --no-fence: the run must lose increments without these.
 * --strict: no two may hold; --least-strict: each worker continues alone while all servers are unreachable.  --lone:
 * the anchor alone, without tiers.  --keep: keeps the histories.  Exit status 0: no rule was broken.
 */
#include "belief.h"
#include "dibs.h"
#include "support/records.h"
#include "tiers_scene.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ADD_MS = 40000, IDLE_MS = 15000, SOON_MS = 30000, BITE_MS = 60000 };

static struct {
  uint32_t seconds, phase, workers, threads, names, ttl, hold, pause, seed;
  bool lone, keep, strict, least;
  enum tiers_how how;
  const struct scene *scene;
} plan = {.phase = 800, .workers = 4, .threads = 2, .names = 6, .ttl = 1000, .hold = 20, .pause = 10, .seed = 1};
static struct run run;
static uint64_t counts[DIBS_TIERS_COUNTS]; /* of all clients */

/* ---- The anchor, without a proxy ---- */

/* Creates its tables.  On a busy machine this may take longer than one call waits. */
static bool open_anchor(dibs_store **store) {
  dibs_error error;
  dibs__tick by = dibs__tick_add_ms(dibs__tick_now(), ADD_MS);
  while (dibs_open(run.anchor, NULL, store, &error) != DIBS_OK) {
    if (error.status != DIBS_UNAVAILABLE || !dibs__tick_before(dibs__tick_now(), by))
      return bed_fail(&run, "%s", error.text);
    dibs__nap_ms(50);
  }
  return true;
}

static bool prepare_anchor(void) {
  dibs_store *store = NULL;
  if (!open_anchor(&store)) return false;
  dibs_close(store);
  return true;
}

static int64_t number(dibs_store *store, const char *what, uint16_t name) {
  char key[TIERS_KEY], *data = NULL;
  size_t length;
  dibs_error error;
  tiers_key(key, what, run.folder, name);
  dibs_status status = record_load(store, key, &data, &length, NULL, &error);
  int64_t n = data ? strtoll(data, NULL, 10) : 0;
  free(data);
  if (status != DIBS_OK && status != DIBS_NOT_FOUND) bed_fail(&run, "%s", error.text);
  return n;
}

static bool read_finals(int64_t finals[TIERS_NAMES], int64_t plains[TIERS_NAMES]) {
  dibs_store *store = NULL;
  if (!open_anchor(&store)) return false;
  for (uint16_t name = 0; name < TIERS_NAMES; name++) {
    finals[name] = number(store, "record", name);
    plains[name] = number(store, "plain", name);
  }
  dibs_close(store);
  return true;
}

/* A user with the same rights for one worker alone. */
static bool make_odd(void) {
  bool mysql = strncmp(run.anchor, "mysql", 5) == 0;
  char sql[TEXT];
  const char *slash = strrchr(run.anchor, '/'), *name = slash ? slash + 1 : "";
  int length = (int)strcspn(name, "?");
  if (run.odd >> SIDE_REDIS & 1)
    return bed_redis_cli(&run, 0, "ACL SETUSER odd on '>dibs-secret' '~*' '&*' +@all -@dangerous +info +client +keys");
  if (mysql)
    snprintf(sql, sizeof sql,
             "CREATE USER IF NOT EXISTS odd@'127.0.0.1' IDENTIFIED BY 'dibs-secret';\n"
             "GRANT ALL PRIVILEGES ON %.*s.* TO odd@'127.0.0.1';",
             length, name);
  else
    snprintf(sql, sizeof sql, "CREATE ROLE odd LOGIN PASSWORD 'dibs-secret' IN ROLE dibs;");
  return bed_anchor_sql(&run, sql);
}

/* ---- The run ---- */

/* Repeats the scene for the requested time; a run that must lose increments ends after the first loss. */
static bool act(void) {
  dibs__tick now = dibs__tick_now(), until = dibs__tick_add_ms(now, plan.seconds * INT64_C(1000));
  dibs__tick bitten_by = dibs__tick_add_ms(now, plan.how == HOW_FENCED ? 0 : BITE_MS);
  bool again;
  do {
    dibs__nap_ms(run.phase_ms);
    if (!plan.scene->act(&run) || run.failed) return false;
    now = dibs__tick_now();
    again = dibs__tick_before(now, until) || (dibs__tick_before(now, bitten_by) && bed_twice(&run) == 0);
  } while (again);
  return true;
}

/* Reads the clients' counts before they end. */
static void count_moves(void) {
  dibs_tiers_info info = {.size = sizeof info};
  dibs_error error;
  if (run.lone || !bed_observer(&run)) return;
  if (dibs_tiers(run.observer, &info, NULL, NULL, NULL, &error) != DIBS_OK) {
    bed_fail(&run, "%s", error.text);
    return;
  }
  memcpy(counts, info.all, sizeof counts);
}

static dibs__tick running_at; /* all workers are running */

static int note_left(const dibs_tier_info *tier, void *user) {
  if (tier->tier > 0 || tier->leaving > 0) *(uint32_t *)user += tier->buckets + tier->leaving;
  return 0;
}

/* On a busy machine a worker that starts may find the first tier too slow, and leave it for a while. */
static bool all_at_first_tier(void) {
  dibs__tick by = dibs__tick_add_ms(dibs__tick_now(), ADD_MS);
  dibs_error error;
  if (!bed_observer(&run)) return false;
  for (;;) {
    uint32_t elsewhere = 0;
    if (dibs_tiers(run.observer, NULL, note_left, NULL, &elsewhere, &error) != DIBS_OK)
      return bed_fail(&run, "%s", error.text);
    if (elsewhere == 0) break;
    if (!dibs__tick_before(dibs__tick_now(), by))
      return bed_fail(&run, "%u buckets are not at the first tier", elsewhere);
    dibs__nap_ms(TIERS_POLL_MS);
  }
  dibs_close(run.observer); /* it is no client of the scene */
  run.observer = NULL;
  return bed_all_add(&run, ADD_MS);
}

static bool go(void) {
  if (plan.scene->odd && !make_odd()) return false;
  if (!prepare_anchor()) return false;
  /* From the start: on a busy machine the first mandate may be installed so late that another worker has already moved
   * the bucket, and a lease under it is then lost early. */
  if (!plan.scene->still && !belief_event(run.notes, BELIEF_AWAY, 0, 0)) return false;
  if (!bed_spawn(&run)) return false;
  if (!bed_all_add(&run, ADD_MS)) return false;
  if (plan.scene->still && !run.lone && !all_at_first_tier()) return false;
  bed_print(&run, "all workers are running");
  running_at = dibs__tick_now();
  bool fine = act();
  bed_note(&run, REPORTED_MARK, 0);
  fine = fine && bed_all_add(&run, ADD_MS);
  count_moves();
  bed_note(&run, REPORTED_OVER, 0);
  bed_print(&run, "the run is over");
  return fine;
}

static void report(const struct tiers_sums *sums) {
  printf("tiers %s%s: %" PRIu64 " increments acknowledged, %" PRIu64 " unknown, %" PRIu64 " refused; %" PRIu64
         " leases of %" PRIu64 " requested\n",
         plan.scene->name,
         plan.how == HOW_NO_SEAL    ? ", no seals"
         : plan.how == HOW_NO_FENCE ? ", no fences"
                                    : "",
         sums->acknowledged, sums->unknown, sums->refused, sums->grants, sums->requests);
  printf("  highest fence %" PRIu64 ", of %u epochs; %" PRIu64
         " were granted under an older epoch after a newer one was seen\n",
         sums->highest, sums->epochs, sums->behind);
  if (!run.lone)
    printf("  %" PRIu64 " moves of buckets, %" PRIu64 " epochs after a lost memory, %" PRIu64
           " breakers opened, %" PRIu64 " leases of a tier other than the first\n",
           counts[DIBS_TIERS_MOVES], counts[DIBS_TIERS_EPOCHS], counts[DIBS_TIERS_TURNS], counts[DIBS_TIERS_FALLBACK]);
  if (plan.least) printf("  %" PRIu64 " leases by the memory of a process alone\n", sums->alone);
  printf("  %" PRIu64 " beliefs, %" PRIu64 " of them soon after another one ended\n", sums->believed, sums->followed);
  printf("  the longest time without a grant was %lld ms, from %.3f s on\n", (long long)sums->idle_ms,
         (double)sums->idle_at_ms / 1000.0);
  printf("  plain counters lost %" PRIu64 " of %" PRIu64, sums->plain_lost, sums->plain);
  if (plan.how != HOW_FENCED) printf("; records lost %" PRIu64, sums->lost);
  printf("\n");
}

static int judge(bool fine) {
  int64_t finals[TIERS_NAMES] = {0}, plains[TIERS_NAMES] = {0};
  struct tiers_sums sums;
  struct tiers_bounds bounds = {.how = plan.how,
                                .strict = plan.strict,
                                .session = strstr(run.anchor, "lock=named") || strstr(run.anchor, "lock=advisory"),
                                .least = plan.least,
                                .plain = plan.scene->plain && plan.how == HOW_FENCED,
                                .still = plan.scene->still,
                                .still_from = running_at.ns,
                                .idle_ms = plan.strict ? 2 * IDLE_MS : IDLE_MS,
                                .parties = run.workers,
                                .excused = run.gone};
  if (!read_finals(finals, plains)) return 1;
  int broken = tiers_check(run.folder, &bounds, finals, plains, &sums);
  report(&sums);
  if (sums.believed == 0) {
    printf("BROKEN  no worker believed to hold a lease\n");
    broken++;
  }
  if (plan.scene->least && sums.alone == 0) {
    printf("BROKEN  no worker continued alone\n");
    broken++;
  }
  if (plan.how != HOW_FENCED && sums.lost == 0) {
    printf("BROKEN  nothing was lost: this run cannot detect a loss\n");
    broken++;
  }
  return broken + !fine + run.failed;
}

/* ---- The command line ---- */

static bool parse_number(const char *text, uint32_t most, uint32_t *to) {
  char *end;
  errno = 0;
  unsigned long n = strtoul(text, &end, 10);
  if (errno != 0 || *text < '0' || *text > '9' || *end || n > most) return false;
  *to = (uint32_t)n;
  return true;
}

static bool parse_option(const char *name, const char *value, bool *took) {
  struct {
    const char *name;
    uint32_t *to, most;
  } options[] = {{"--seconds", &plan.seconds, 86400},
                 {"--phase", &plan.phase, 60000},
                 {"--workers", &plan.workers, TIERS_PARTIES - 1},
                 {"--threads", &plan.threads, TIERS_THREADS},
                 {"--names", &plan.names, TIERS_NAMES},
                 {"--ttl", &plan.ttl, 60000},
                 {"--hold", &plan.hold, 60000},
                 {"--pause", &plan.pause, 60000},
                 {"--seed", &plan.seed, UINT32_MAX}};
  *took = false;
  if (strcmp(name, "--no-seal") == 0) return plan.how = HOW_NO_SEAL, true;
  if (strcmp(name, "--no-fence") == 0) return plan.how = HOW_NO_FENCE, true;
  if (strcmp(name, "--lone") == 0) return plan.lone = true;
  if (strcmp(name, "--strict") == 0) return plan.strict = true;
  if (strcmp(name, "--least-strict") == 0) return plan.least = true;
  if (strcmp(name, "--keep") == 0) return plan.keep = true;
  *took = true;
  for (size_t o = 0; o < sizeof options / sizeof *options; o++)
    if (strcmp(name, options[o].name) == 0) return value && parse_number(value, options[o].most, options[o].to);
  return false;
}

static bool parse(int argc, char *argv[]) {
  if (argc < 3) return false;
  for (size_t s = 0; s < scene_count; s++)
    if (strcmp(argv[1], scenes[s].name) == 0) plan.scene = &scenes[s];
  if (!plan.scene) return false;
  snprintf(run.anchor, sizeof run.anchor, "%s", argv[2]);
  for (int i = 3; i < argc; i++) {
    bool took;
    if (!parse_option(argv[i], i + 1 < argc ? argv[i + 1] : NULL, &took)) return false;
    i += took;
  }
  run.lone = plan.lone;
  run.odd = plan.scene->odd;
  run.most_odd = plan.scene->most_odd;
  /* A tier that is left again soon after its return stays unused for twice as long. */
  run.soon_ms = SOON_MS + plan.seconds * INT64_C(1000);
  run.workers = plan.workers;
  run.phase_ms = plan.phase;
  run.chance = plan.seed;
  run.job = (struct tiers_job){.threads = plan.threads,
                               .names = plan.names,
                               .ttl_ms = plan.ttl,
                               .hold_ms = plan.hold,
                               .pause_ms = plan.pause,
                               .how = plan.how,
                               .seed = plan.seed};
  /* The breaker opens soon and the client returns to a tier soon, so that short runs see both. */
  plan.strict = plan.strict || plan.scene->strict;
  plan.least = run.least = plan.least || plan.scene->least;
  snprintf(run.parameters, sizeof run.parameters, "tiers.wait=300&tiers.dwell=1000%s",
           plan.strict  ? "&tiers.strictness=strict"
           : plan.least ? "&tiers.strictness=least-strict"
                        : "");
  return plan.workers > 0 && plan.names > 0 && plan.threads > 0 && (!plan.lone || plan.scene->lone);
}

/* URI FOLDER "NUMBERS" */
static int work(char *argv[]) {
  struct tiers_job job = {0};
  long long ttl, hold, pause;
  int how;
  snprintf(job.uri, sizeof job.uri, "%s", argv[2]);
  snprintf(job.folder, sizeof job.folder, "%s", argv[3]);
  if (sscanf(argv[4], "%u %u %u %lld %lld %lld %d %" SCNu64, &job.party, &job.threads, &job.names, &ttl, &hold, &pause,
             &how, &job.seed) != 8)
    return 2;
  job.ttl_ms = ttl;
  job.hold_ms = hold;
  job.pause_ms = pause;
  job.how = (enum tiers_how)how;
  return tiers_worker(&job);
}

static int usage(void) {
  fputs("usage: tiers SCENE ANCHOR [--seconds S] [--phase MS] [--workers N] [--threads N] [--names N] [--ttl MS]\n"
        "             [--hold MS] [--pause MS] [--seed N] [--no-seal | --no-fence] [--strict | --least-strict]\n"
        "             [--lone] [--keep]\n",
        stderr);
  for (size_t s = 0; s < scene_count; s++) fprintf(stderr, "  %-20s %s\n", scenes[s].name, scenes[s].text);
  return 2;
}

int main(int argc, char *argv[]) {
  if (argc == 5 && strcmp(argv[1], "--worker") == 0) return work(argv);
  if (!parse(argc, argv)) return usage();
  setvbuf(stdout, NULL, _IOLBF, 0);
  printf("tiers %s: %s; %u workers x %u threads, %u names, seed %u\n", plan.scene->name, plan.scene->text, plan.workers,
         plan.threads, plan.names, plan.seed);
  bool begun = bed_begin(&run);
  int bad = !begun || !go();
  bad += bed_end_workers(&run);
  if (begun) bad = judge(bad == 0);
  if (bad && begun) printf("tiers: something is broken; histories in %s, seed %u\n", run.folder, plan.seed);
  bed_end(&run, bad || plan.keep);
  return bad != 0;
}
