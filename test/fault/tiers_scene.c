/* SPDX-License-Identifier: MIT */
#include "tiers_scene.h"
#include "dibs/admin.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool nothing(struct run *run) {
  return bed_load(run);
}

/* ---- Redis ---- */

static bool redis_killed(struct run *run) {
  bed_print(run, "redis is killed");
  if (!bed_redis(run, 0, "kill") || !bed_granted(run) || !bed_load(run)) return false;
  uint32_t epoch = bed_epoch(run, 0);
  bed_print(run, "redis is started, empty");
  return bed_redis(run, 0, "start") && bed_newer(run, 0, epoch) && bed_load(run);
}

static bool redis_empty(struct run *run) {
  uint32_t epoch = bed_epoch(run, 0);
  bed_print(run, "redis is killed and started, empty");
  return bed_redis(run, 0, "kill") && bed_redis(run, 0, "start") && bed_newer(run, 0, epoch) && bed_load(run);
}

static bool redis_flushed(struct run *run) {
  for (int i = 0; i < 12 && !run->failed; i++) {
    if (!bed_redis_cli(run, 0, "FLUSHALL")) return false;
    dibs__nap_ms(run->phase_ms / 3);
  }
  return bed_granted(run);
}

static bool redis_old_dump(struct run *run) {
  const char *data = run->redis[0].dir;
  bed_print(run, "redis writes a dump");
  if (!bed_redis_cli(run, 0, "SAVE") ||
      !bed_shell(run, "cp '%s/redis/data/dump.rdb' '%s/old.rdb'", data, run->folder) || !bed_load(run))
    return false;
  uint32_t epoch = bed_epoch(run, 0);
  bed_print(run, "redis is killed, and started from the dump");
  return bed_redis(run, 0, "kill") && bed_shell(run, "cp '%s/old.rdb' '%s/redis/data/dump.rdb'", run->folder, data) &&
         bed_redis(run, 0, "start") && bed_newer(run, 0, epoch) && bed_load(run) &&
         bed_shell(run, "rm '%s/redis/data/dump.rdb'", data);
}

/* The second Redis replicates the first one through a proxy, and has its whole content. */
static bool follow(struct run *run, struct proxied *between) {
  char line[TEXT];
  const char *word = strstr(run->redis[0].admin, "admin:") + strlen("admin:");
  snprintf(line, sizeof line, "CONFIG SET masteruser admin masterauth '%.*s'", (int)strcspn(word, "@"), word);
  if (!bed_redis_cli(run, 1, line) || !bed_redis_cli(run, 0, "CONFIG SET repl-diskless-sync-delay 0")) return false;
  snprintf(line, sizeof line, "REPLICAOF 127.0.0.1 %u", (unsigned)proxied_port(between));
  if (!bed_redis_cli(run, 1, line)) return false;
  snprintf(line, sizeof line,
           "timeout 10 redis-cli -u '%.250s' --no-auth-warning INFO replication | grep -q master_link_status:up",
           run->redis[1].admin);
  dibs__tick by = dibs__tick_add_ms(dibs__tick_now(), run->soon_ms);
  while (system(line) != 0) {
    if (!dibs__tick_before(dibs__tick_now(), by)) return bed_fail(run, "the replica does not connect");
    dibs__nap_ms(TIERS_POLL_MS);
  }
  return true;
}

static bool say(struct run *run, struct proxied *proxied, const char *line) {
  char answer[PROXY_LINE];
  return proxied_say(proxied, line, answer) || bed_fail(run, "the proxy refused %s: %s", line, answer);
}

static bool fail_over(struct run *run, struct proxied *between) {
  uint32_t half = run->workers / 2;
  if (!say(run, between, "stall") || !bed_load(run) || !say(run, between, "refuse") || !say(run, between, "cut"))
    return false;
  bed_print(run, "the lagging replica becomes the master; workers 1 to %u use it, the others keep the old one", half);
  if (!bed_redis_cli(run, 1, "REPLICAOF NO ONE")) return false;
  for (uint32_t p = 1; p <= run->workers; p++)
    if (!bed_aim(run, p, 1, p <= half)) return false;
  if (!bed_granted(run) || !bed_load(run)) return false;
  bed_print(run, "the others use the new master, too");
  if (!bed_proxy(run, SIDE_REDIS, 0, "cut") || !bed_granted(run) || !bed_load(run)) return false;
  bed_print(run, "back to the old master, which was not restarted");
  return bed_aim(run, 0, 0, true) && bed_granted(run) && bed_load(run);
}

static bool redis_failover(struct run *run) {
  char to[64], why[PROXY_WHY];
  if (!run->redis[1].dir[0] && !bed_redis_start(run, 1)) return false;
  snprintf(to, sizeof to, "127.0.0.1:%u", (unsigned)run->redis[0].port);
  struct proxied *between = proxied_start(&(struct proxy_options){.to = to}, why);
  if (!between) return bed_fail(run, "%s", why);
  bool fine = follow(run, between) && bed_load(run) && fail_over(run, between);
  proxied_stop(between);
  return fine;
}

static bool redis_paused(struct run *run) {
  bed_print(run, "redis is stopped");
  if (!bed_redis(run, 0, "pause") || !bed_granted(run) || !bed_load(run)) return false;
  uint32_t epoch = bed_epoch(run, 0);
  bed_print(run, "redis continues");
  return bed_redis(run, 0, "resume") && bed_newer(run, 0, epoch) && bed_load(run);
}

static bool redis_cut_one(struct run *run) {
  bed_print(run, "worker 1 does not reach redis");
  if (!bed_proxy(run, SIDE_REDIS, 1, "half-open") || !bed_granted(run) || !bed_load(run) || !bed_load(run))
    return false;
  bed_print(run, "it does");
  return bed_proxy(run, SIDE_REDIS, 1, "pass") && bed_load(run);
}

static bool redis_cut_most(struct run *run) {
  uint32_t epoch = bed_epoch(run, 0);
  bed_print(run, "only worker 1 reaches redis");
  for (uint32_t p = 2; p <= run->workers; p++) {
    if (p % 2 == 0 && !bed_proxy(run, SIDE_REDIS, p, "half-open")) return false;
    if (p % 2 == 1 && (!bed_proxy(run, SIDE_REDIS, p, "refuse") || !bed_proxy(run, SIDE_REDIS, p, "cut"))) return false;
  }
  for (uint32_t p = run->workers; p > 0; p--)
    if (!bed_newer(run, p, epoch)) return false;
  if (!bed_load(run)) return false;
  epoch = bed_epoch(run, 0);
  bed_print(run, "all workers reach it again");
  return bed_proxy(run, SIDE_REDIS, 0, "pass") && bed_newer(run, 0, epoch) && bed_load(run);
}

static bool redis_password(struct run *run) {
  bed_print(run, "%s a wrong password of redis", run->most_odd ? "all workers but the last have" : "worker 1 has");
  if (!bed_redis_cli(run, 0, "ACL SETUSER odd resetpass '>another'") ||
      !bed_redis_cli(run, 0, "CLIENT KILL USER odd") || !bed_granted(run) || !bed_load(run) || !bed_load(run) ||
      !bed_load(run))
    return false;
  bed_print(run, "and the right password again");
  return bed_redis_cli(run, 0, "ACL SETUSER odd '>dibs-secret'") && bed_load(run);
}

/* ---- The anchor ---- */

static bool anchor_killed(struct run *run) {
  bed_print(run, "the anchor is killed");
  bed_note(run, REPORTED_STOP, 0);
  if (!bed_anchor(run, "kill") || !bed_load(run)) return false;
  if (!run->lone && !bed_granted(run)) return false;
  bool fine = bed_anchor(run, "start");
  bed_note(run, REPORTED_GO_ON, 0);
  bed_print(run, "the anchor is started");
  return fine && bed_granted(run) && bed_load(run);
}

static bool anchor_paused(struct run *run) {
  bed_print(run, "the anchor is stopped");
  bed_note(run, REPORTED_STOP, 0);
  bool fine = bed_anchor(run, "pause") && bed_load(run) && (run->lone || bed_granted(run)) && bed_load(run);
  fine = bed_anchor(run, "resume") && fine;
  bed_note(run, REPORTED_GO_ON, 0);
  bed_print(run, "the anchor continues");
  return fine && bed_granted(run) && bed_load(run);
}

static bool anchor_cut(struct run *run) {
  bool fine = true;
  bed_print(run, "worker 1 does not reach the anchor");
  bed_note(run, REPORTED_STOP, 1);
  fine = bed_proxy(run, SIDE_ANCHOR, 1, "half-open") && bed_granted(run) && bed_load(run);
  bed_print(run, "only worker %u reaches the anchor", run->workers);
  for (uint32_t p = 2; fine && p < run->workers; p++) {
    bed_note(run, REPORTED_STOP, p);
    fine = bed_proxy(run, SIDE_ANCHOR, p, "refuse") && bed_proxy(run, SIDE_ANCHOR, p, "cut");
  }
  fine = fine && bed_granted(run) && bed_load(run);
  bed_print(run, "all workers reach it again");
  fine = bed_proxy(run, SIDE_ANCHOR, 0, "pass") && fine;
  for (uint32_t p = 1; p < run->workers; p++) bed_note(run, REPORTED_GO_ON, p);
  return fine && bed_granted(run) && bed_load(run);
}

static bool anchor_password(struct run *run) {
  bool mysql = strncmp(run->anchor, "mysql", 5) == 0;
  bed_print(run, "worker 1 has a wrong password of the anchor");
  bed_note(run, REPORTED_STOP, 1);
  bool fine = bed_anchor_sql(run, mysql ? "ALTER USER odd@'127.0.0.1' IDENTIFIED BY 'another';"
                                        : "ALTER ROLE odd PASSWORD 'another';") &&
              bed_proxy(run, SIDE_ANCHOR, 1, "cut") && bed_granted(run) && bed_load(run) && bed_load(run);
  bed_print(run, "it has the right password");
  fine = bed_anchor_sql(run, mysql ? "ALTER USER odd@'127.0.0.1' IDENTIFIED BY 'dibs-secret';"
                                   : "ALTER ROLE odd PASSWORD 'dibs-secret';") &&
         fine;
  bed_note(run, REPORTED_GO_ON, 1);
  return fine && bed_load(run);
}

/* ---- Both servers, and the network ---- */

static bool both_killed(struct run *run) {
  bed_print(run, "redis and the anchor are killed");
  bed_note(run, REPORTED_STOP, 0);
  bool fine = bed_redis(run, 0, "kill") && bed_anchor(run, "kill") && (!run->least || bed_granted(run)) &&
              bed_load(run) && bed_anchor(run, "start");
  bed_note(run, REPORTED_GO_ON, 0);
  bed_print(run, "the anchor is started");
  if (!fine || !bed_granted(run) || !bed_load(run)) return false;
  uint32_t epoch = bed_epoch(run, 0);
  bed_print(run, "redis is started, empty");
  return bed_redis(run, 0, "start") && bed_newer(run, 0, epoch) && bed_load(run);
}

static bool both_paused(struct run *run) {
  bed_print(run, "redis and the anchor are stopped");
  bed_note(run, REPORTED_STOP, 0);
  bool fine = bed_redis(run, 0, "pause") && bed_anchor(run, "pause") && bed_load(run) && bed_load(run);
  bed_print(run, "redis continues, then the anchor");
  fine = bed_redis(run, 0, "resume") && fine && bed_load(run);
  fine = bed_anchor(run, "resume") && fine;
  bed_note(run, REPORTED_GO_ON, 0);
  return fine && bed_granted(run) && bed_load(run);
}

/* Stops workers past the ttl, at any point of their work. */
static bool holders_stopped(struct run *run) {
  for (uint32_t p = 1; p <= run->workers; p++) {
    bed_print(run, "worker %u is stopped for %lld ms", p, (long long)(run->job.ttl_ms * 3 / 2));
    if (!bed_stop(run, p, run->job.ttl_ms * 3 / 2) || !bed_granted(run)) return false;
  }
  return true;
}

static bool network(struct run *run) {
  static const struct {
    enum side side;
    const char *line;
  } steps[] = {
      {SIDE_REDIS, "delay 40"},
      {SIDE_REDIS, "cut"},
      {SIDE_REDIS, "cut-after-request times=8 EVALSHA"},
      {SIDE_REDIS, "cut-before-request nth=16 times=4 EVALSHA"},
      {SIDE_REDIS, "orphan-request nth=8 times=4 EVALSHA 300"},
      {SIDE_REDIS, "hold-request nth=16 times=4 EVALSHA 700"},
      {SIDE_ANCHOR, "delay 20"},
      {SIDE_ANCHOR, "cut"},
      {SIDE_ANCHOR, "cut-after-request nth=3 times=3 record-"},
      {SIDE_ANCHOR, "cut-before-request nth=9 times=3 record-"},
      {SIDE_ANCHOR, "orphan-request nth=3 times=3 record- 300"},
      {SIDE_ANCHOR, "hold-request nth=9 times=3 record- 700"},
  };
  for (size_t i = 0; i < sizeof steps / sizeof *steps; i++) {
    bed_print(run, "%s: %s", steps[i].side == SIDE_REDIS ? "redis" : "anchor", steps[i].line);
    for (uint32_t p = 1; p <= run->workers; p++)
      if ((p + i) % 2 == 0 && !bed_proxy(run, steps[i].side, p, steps[i].line)) return false;
    if (i % 2 == 1 && !bed_load(run)) return false;
  }
  int64_t fired[SIDES] = {bed_fired(run, SIDE_REDIS), bed_fired(run, SIDE_ANCHOR)};
  bed_print(run, "%lld requests to redis were broken, and %lld to the anchor", (long long)fired[SIDE_REDIS],
            (long long)fired[SIDE_ANCHOR]);
  if (fired[SIDE_REDIS] == 0 || (run->at[1].proxied[SIDE_ANCHOR] && fired[SIDE_ANCHOR] == 0))
    return bed_fail(run, "no request of one side was broken");
  return bed_proxy(run, SIDE_REDIS, 0, "pass") && bed_proxy(run, SIDE_ANCHOR, 0, "pass") && bed_granted(run) &&
         bed_load(run);
}

/* ---- By hand ---- */

static bool did(struct run *run, const char *what, dibs_status status, const dibs_error *error) {
  bed_print(run, "%s", what);
  return status == DIBS_OK || bed_fail(run, "%s: %s", what, error->text);
}

/* Faster than clients can follow; at the end all buckets are on Redis again. */
static bool to_and_fro(struct run *run, dibs_store *store) {
  static const uint32_t percents[] = {0, 30, 100, 50, 0, 100};
  dibs_error error;
  for (size_t i = 0; i < sizeof percents / sizeof *percents; i++) {
    char what[64];
    snprintf(what, sizeof what, "redis.enabled %u", percents[i]);
    if (!did(run, what, dibs_flag_set(store, "redis.enabled", percents[i], &error), &error)) return false;
    dibs__nap_ms(run->phase_ms / 6);
  }
  return bed_granted(run);
}

static bool by_hand(struct run *run) {
  static const char *const flags[] = {"redis.enabled", "fallback.enabled", "circuit-breaker.enabled"};
  dibs_store *store = bed_observer(run);
  dibs_error error;
  bool fine = store != NULL;
  uint32_t epoch = bed_epoch(run, 0);
  for (uint32_t percent = 0; fine && percent <= 100; percent += 50)
    for (size_t i = 0; fine && i < sizeof flags / sizeof *flags; i++)
      if (percent != 50 || i == 0) fine = did(run, flags[i], dibs_flag_set(store, flags[i], percent, &error), &error);
  fine = fine && bed_newer(run, 0, epoch) && to_and_fro(run, store) && bed_load(run);
  epoch = bed_epoch(run, 0);
  fine = fine &&
         did(run, "the breaker of redis opens", dibs_tier_switch(store, "redis", DIBS_HAND_OPEN, &error), &error) &&
         bed_newer(run, 0, epoch) && bed_load(run);
  epoch = bed_epoch(run, 0);
  fine = fine &&
         did(run, "redis works without help", dibs_tier_switch(store, "redis", DIBS_HAND_AUTO, &error), &error) &&
         bed_newer(run, 0, epoch) && bed_load(run);
  epoch = bed_epoch(run, 0);
  fine = fine && did(run, "all buckets move to the anchor", dibs_tier_move(store, "1", &error), &error) &&
         bed_newer(run, 0, epoch) && bed_load(run);
  epoch = bed_epoch(run, 0);
  return fine && did(run, "and back", dibs_tier_move(store, NULL, &error), &error) && bed_newer(run, 0, epoch) &&
         bed_load(run);
}

/* ---- All ---- */

const struct scene scenes[] = {
    {.name = "calm", .text = "nothing goes wrong", .act = nothing, .lone = true, .still = true},
    {.name = "redis-killed", .text = "Redis is killed, and later started, empty", .act = redis_killed},
    {.name = "redis-empty", .text = "Redis is killed and started at once, empty", .act = redis_empty},
    {.name = "redis-flushed", .text = "Redis is flushed repeatedly", .act = redis_flushed},
    {.name = "redis-old-dump", .text = "Redis is killed, and started from an old dump", .act = redis_old_dump},
    {.name = "redis-failover",
     .text = "a lagging replica becomes the master, some workers keep the old one; then all return to it",
     .act = redis_failover},
    {.name = "redis-paused", .text = "Redis is stopped and continues", .act = redis_paused},
    {.name = "redis-cut-one", .text = "one worker does not reach Redis", .act = redis_cut_one, .still = true},
    {.name = "redis-cut-most", .text = "only one worker reaches Redis", .act = redis_cut_most},
    {.name = "redis-password",
     .text = "one worker has a wrong password of Redis",
     .act = redis_password,
     .odd = 1u << SIDE_REDIS,
     .still = true},
    {.name = "redis-passwords",
     .text = "all workers but one have a wrong password of Redis",
     .act = redis_password,
     .odd = 1u << SIDE_REDIS,
     .most_odd = true,
     .still = true},
    {.name = "redis-empty-strict",
     .text = "Redis is killed and started at once, empty, and no two may hold",
     .act = redis_empty,
     .strict = true,
     .plain = true},
    {.name = "anchor-killed", .text = "the anchor is killed and started", .act = anchor_killed, .lone = true},
    {.name = "anchor-paused", .text = "the anchor is stopped and continues", .act = anchor_paused, .lone = true},
    {.name = "anchor-cut", .text = "one worker, then all but one, do not reach the anchor", .act = anchor_cut},
    {.name = "anchor-password",
     .text = "one worker has a wrong password of the anchor",
     .act = anchor_password,
     .odd = 1u << SIDE_ANCHOR,
     .still = true},
    {.name = "both-killed", .text = "Redis and the anchor are killed and started", .act = both_killed},
    {.name = "both-killed-least",
     .text = "Redis and the anchor are killed and started, and each worker continues alone meanwhile",
     .act = both_killed,
     .least = true},
    {.name = "both-paused", .text = "Redis and the anchor are stopped and continue", .act = both_paused},
    {.name = "holders-stopped", .text = "workers are stopped past the ttl", .act = holders_stopped, .lone = true},
    {.name = "flags", .text = "flags and tiers are switched by hand", .act = by_hand},
    {.name = "storm", .text = "two random failures at once, drawn from the seed", .act = scene_anything},
    {.name = "network", .text = "requests are delayed, cut, and cut after they were sent", .act = network},
};
const size_t scene_count = sizeof scenes / sizeof *scenes;
