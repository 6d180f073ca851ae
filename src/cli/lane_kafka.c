/* SPDX-License-Identifier: MIT */
/*
 * `dibs lane kafka`: a member of a Kafka consumer group whose partitions are lanes.
 *
 * Kafka's group assigns partitions, and may give one to a second member while the first one, stopped for longer than
 * its session, still works.  So the right to work on a partition is a lease here, and the offset is a record that the
 * lease guards.  A thread for each assigned partition:
 *
 *   acquire its lease -> read the offset, which seals the record -> begin there -> for each message in its order:
 *   run the command; exit status 0: store the next offset under the lease -> (revoked, or the end) release
 *
 * After a loss it begins again with acquiring.  The main thread polls Kafka, dispatches the store's callbacks, and
 * waits for signals.
 */
#include "cli/lane.h"
#include "lane/kafka.h"
#include "store/locate.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
  JOBS = 32,
  POLL_MS = 50,      /* of Kafka, between two looks at signals and callbacks */
  TAKE_MS = 100,     /* a message, between two looks at the end */
  ACQUIRE_MS = 1000, /* a lease, likewise */
  AGAIN_MS = 100,    /* before a request that was not answered is repeated */
  PAUSE_MS = 1000,   /* before a command that failed is run again for its message; doubled each time, */
  PAUSE_MOST_MS = 30000,
  KEY_MAX = 1024 /* longer keys are not in the environment */
};

struct group {
  /* Immutable after the start. */
  const struct cli_values *v;
  const struct cli_globals *globals;
  const char *topic, *name;
  char *store_uri;
  dibs_store *store;
  const struct dibs__kafka_module *kafka;
  struct dibs__kafka_consumer *consumer;
  bool verbose;
  struct lane_commands commands;
  struct cli_signals signals;
  size_t jobs;
  /* The main thread's own. */
  struct partition *list;
  size_t running;
  char trouble[256]; /* of Kafka, of which a note was written */
};

/* An assignment of a partition, and its thread. */
struct partition {
  struct partition *next;
  struct group *group;
  int32_t number;
  char what[32], lease_name[DIBS_NAME_MAX + 1], record_key[DIBS_NAME_MAX + 1];
  dibs__thread *thread;
  int end_fd; /* readable: revoked, or dibs ends */
  _Atomic bool over;
  /* The thread's own. */
  size_t slot;
  dibs_lease *lease;
  int64_t offset; /* of the next message; -1: the first message of the partition */
};

static bool ends(const struct partition *p, int64_t ms) {
  struct pollfd fd = {.fd = p->end_fd, .events = POLLIN};
  return poll(&fd, 1, (int)ms) > 0;
}

/* ---- The lease and the offset ---- */

static bool acquire(struct partition *p) {
  const struct group *g = p->group;
  dibs_lease_options options = {
      .size = sizeof options, .ttl_ms = g->commands.ttl_ms, .wait_ms = ACQUIRE_MS, .owner = g->globals->owner};
  dibs_status before = DIBS_OK;
  while (!ends(p, 0) && g->commands.code == 0) {
    dibs_error error = {0};
    dibs_status status = dibs_acquire(g->store, p->lease_name, &options, &p->lease, &error);
    if (status == DIBS_OK) return true;
    if (status != DIBS_TIMEOUT && status != before) dibs__cli_note(g->globals, "%s: %s", p->what, error.text);
    before = status;
    if (status != DIBS_TIMEOUT && ends(p, AGAIN_MS)) return false;
  }
  return false;
}

static void release(struct partition *p) {
  (void)dibs_release(p->lease, NULL); /* what is not released ends with its ttl */
  dibs_lease_free(p->lease);
  p->lease = NULL;
}

/* false: the lease is lost, or the partition is to end. */
static bool read_offset(struct partition *p) {
  const struct group *g = p->group;
  dibs_record_options options = {.size = sizeof options, .lease = p->lease};
  for (;;) {
    dibs_record *record = NULL;
    dibs_error error = {0};
    dibs_status status = dibs_record_get(g->store, p->record_key, &options, &record, &error);
    if (status == DIBS_OK) {
      const char *text = record->values[0].data;
      p->offset = text != NULL && *text != '\0' ? strtoll(text, NULL, 10) : -1;
      dibs_record_free(record);
      return true;
    }
    if (status == DIBS_STALE || status == DIBS_LOST || !dibs_lease_alive(p->lease)) return false;
    dibs__cli_note(g->globals, "%s: %s", p->what, error.text);
    if (ends(p, PAUSE_MS)) return false;
  }
}

/* false: it was refused, or the lease ended before the store answered. */
static bool store_offset(const struct partition *p, int64_t offset) {
  const struct group *g = p->group;
  char text[24];
  dibs_value value = {text, (size_t)snprintf(text, sizeof text, "%" PRId64, offset)};
  dibs_record_options options = {.size = sizeof options, .lease = p->lease};
  for (;;) {
    dibs_error error = {0};
    dibs_status status = dibs_record_put(g->store, p->record_key, &value, 1, &options, NULL, &error);
    if (status == DIBS_OK) return true;
    dibs__cli_note(g->globals, "%s: offset %" PRId64 " is not stored: %s", p->what, offset, error.text);
    if ((status != DIBS_UNKNOWN && status != DIBS_UNAVAILABLE) || !dibs_lease_alive(p->lease)) return false;
    dibs__nap_ms(AGAIN_MS);
  }
}

/* ---- A message ---- */

static void add_number(char to[MINDER_TEXT_MAX], size_t *length, const char *name, int64_t number) {
  char text[24];
  snprintf(text, sizeof text, "%" PRId64, number);
  dibs__cli_run_variable(to, length, name, text);
}

static size_t environment(const struct partition *p, const struct dibs__kafka_message *m, char to[MINDER_TEXT_MAX]) {
  const struct group *g = p->group;
  char id[33] = "", ttl[32], held[CLI_HELD_MAX], key[KEY_MAX + 1] = "";
  size_t length = 0;
  (void)!dibs_lease_id(p->lease, id, NULL); /* of a lost lease: the command is ended before it begins */
  if (m->key != NULL && m->key_length <= KEY_MAX && memchr(m->key, '\0', m->key_length) == NULL)
    memcpy(key, m->key, m->key_length);
  dibs__cli_run_variable(to, &length, "DIBS_TOPIC", g->topic);
  add_number(to, &length, "DIBS_LANE", p->number);
  add_number(to, &length, "DIBS_OFFSET", m->offset);
  dibs__cli_run_variable(to, &length, "DIBS_KEY", key);
  dibs__cli_run_variable(to, &length, "DIBS_NAME", p->lease_name);
  dibs__cli_run_variable(to, &length, "DIBS_LEASE", id);
  add_number(to, &length, "DIBS_FENCE", (int64_t)dibs_lease_fence(p->lease).value);
  snprintf(ttl, sizeof ttl, "%" PRId64 "ms", g->commands.ttl_ms);
  dibs__cli_run_variable(to, &length, "DIBS_TTL", ttl);
  dibs__cli_run_variable(to, &length, "DIBS_SLOT", "");
  dibs__cli_run_variable(to, &length, "DIBS_STORE", g->store_uri);
  dibs__cli_outer_list(held);
  dibs__cli_run_variable(to, &length, "DIBS_HELD", held);
  return length;
}

/* Until the command has done the message, however often it fails: a later one of the same key must not overtake it.
 * false: the lease is lost, or the partition is to end. */
static bool do_message(struct partition *p, const struct dibs__kafka_message *m) {
  struct group *g = p->group;
  char text[MINDER_TEXT_MAX], how[80];
  int64_t pause_ms = PAUSE_MS;
  for (;;) {
    int status = 0, in = dibs__cli_input_file(m->payload, m->length);
    size_t length = environment(p, m, text);
    enum lane_end end = dibs__cli_lane_command(
        &g->commands,
        &(struct lane_command){.slot = p->slot, .what = p->what, .lease = p->lease, .in = in, .end_fd = p->end_fd},
        text, length, &status);
    if (in >= 0) close(in);
    if (end == LANE_COMMAND_ENDED && status == 0) return true;
    if (end != LANE_COMMAND_ENDED && end != LANE_COMMAND_NOT_STARTED) return false;
    dibs__cli_run_describe(how, sizeof how, status);
    if (end == LANE_COMMAND_ENDED)
      dibs__cli_note(g->globals, "%s: offset %" PRId64 ": %s; it is run again", p->what, m->offset, how);
    if (ends(p, pause_ms) || !dibs_lease_alive(p->lease)) return false;
    pause_ms = pause_ms * 2 < PAUSE_MOST_MS ? pause_ms * 2 : PAUSE_MOST_MS;
  }
}

/* The messages of the partition, under its lease.  Returns when the lease is lost, or the partition is to end. */
static void consume(struct partition *p) {
  const struct group *g = p->group;
  while (!g->kafka->begin(g->consumer, p->number, p->offset))
    if (ends(p, AGAIN_MS) || !dibs_lease_alive(p->lease)) return;
  if (g->verbose) dibs__cli_note(g->globals, "%s: owned, from offset %" PRId64 " on", p->what, p->offset);
  for (bool goes_on = true; goes_on && !ends(p, 0) && dibs_lease_alive(p->lease);) {
    struct dibs__kafka_message message;
    if (!g->kafka->take(g->consumer, p->number, TAKE_MS, &message)) continue;
    if (message.trouble[0] != '\0') {
      dibs__cli_note(g->globals, "%s: %s; offset %" PRId64 " is in the record '%s'", p->what, message.trouble,
                     p->offset, p->record_key);
      goes_on = !ends(p, PAUSE_MOST_MS);
    } else if (message.offset >= p->offset) {
      goes_on = do_message(p, &message) && store_offset(p, message.offset + 1);
      if (goes_on) p->offset = message.offset + 1;
    }
    g->kafka->drop(&message);
  }
}

static void work_partition(void *arg) {
  struct partition *p = arg;
  struct group *g = p->group;
  p->slot = dibs__cli_slot_take(&g->commands.slots);
  while (acquire(p)) {
    if (read_offset(p)) consume(p);
    release(p);
  }
  dibs__cli_slot_free(&g->commands.slots, p->slot);
  p->over = true;
}

/* ---- The main thread ---- */

/* CLI_DONE, or an exit code after a message. */
static int begin_partition(struct group *g, int32_t number) {
  if (g->running == g->jobs)
    return dibs__cli_fail(g->globals, CLI_USAGE, "INVALID",
                          "more than %zu partitions of '%s' are assigned: give a larger --jobs, or run more members",
                          g->jobs, g->topic);
  struct partition *p = calloc(1, sizeof *p);
  int fd = p != NULL ? dibs__notifier_open() : -1;
  if (fd >= 0) {
    *p = (struct partition){.next = g->list, .group = g, .number = number, .end_fd = fd};
    snprintf(p->what, sizeof p->what, "partition %" PRId32, number);
    snprintf(p->lease_name, sizeof p->lease_name, "kafka/%s/%s#%" PRId32, g->name, g->topic, number);
    snprintf(p->record_key, sizeof p->record_key, "kafka:%s/%s#%" PRId32, g->name, g->topic, number);
    p->thread = dibs__thread_start("dibs-lane", work_partition, p);
  }
  if (fd >= 0 && p->thread != NULL) {
    g->list = p;
    g->running++;
    return CLI_DONE;
  }
  if (fd >= 0) dibs__notifier_close(fd);
  free(p);
  return dibs__cli_fail(g->globals, CLI_FAILED, "NO_MEMORY", "no memory, thread or descriptor is left for partition %d",
                        (int)number);
}

static void end_partitions(const struct group *g, int32_t number) { /* -1: all */
  for (const struct partition *p = g->list; p != NULL; p = p->next)
    if (number < 0 || p->number == number) dibs__notifier_raise(p->end_fd);
}

/* Joins the threads that have ended; with `all`, waits for each. */
static void reap(struct group *g, bool all) {
  for (struct partition **at = &g->list; *at != NULL;) {
    struct partition *p = *at;
    if (!all && !p->over) {
      at = &p->next;
      continue;
    }
    *at = p->next;
    dibs__thread_join(p->thread);
    dibs__notifier_close(p->end_fd);
    free(p);
    g->running--;
  }
}

static int heed_event(struct group *g) {
  struct dibs__kafka_event event;
  g->kafka->poll(g->consumer, POLL_MS, &event);
  switch (event.what) {
  case DIBS__KAFKA_ASSIGNED:
    g->trouble[0] = '\0';
    return begin_partition(g, event.partition);
  case DIBS__KAFKA_REVOKED:
    end_partitions(g, event.partition);
    break;
  case DIBS__KAFKA_TROUBLE:
    /* It repeats itself while no broker answers. */
    if (strcmp(event.text, g->trouble) != 0) dibs__cli_note(g->globals, "Kafka: %s", event.text);
    memcpy(g->trouble, event.text, sizeof g->trouble);
    break;
  case DIBS__KAFKA_NOTHING:
    break;
  }
  return CLI_DONE;
}

static int work(struct group *g) {
  for (;;) {
    int code = heed_event(g), signo;
    if (code == CLI_DONE) code = g->commands.code;
    if (code != CLI_DONE) return code;
    if (g->commands.broken)
      return dibs__cli_fail(g->globals, CLI_FAILED, "", "a process that starts commands was killed or stopped");
    dibs_dispatch(g->store, 0);
    reap(g, false);
    while ((signo = dibs__cli_signals_next(&g->signals)) != 0)
      if (signo == SIGTERM || signo == SIGINT || signo == SIGHUP || signo == SIGQUIT) return CLI_DONE;
  }
}

static int check_call(const struct group *g) {
  const struct cli_values *v = g->v;
  if (v->brokers == NULL || v->group == NULL)
    return dibs__cli_fail(g->globals, CLI_USAGE, "INVALID", "--%s is missing; see dibs help lane",
                          v->brokers == NULL ? "brokers" : "group");
  if (strlen(v->group) + strlen(g->topic) + sizeof "kafka//#1234567890" > DIBS_NAME_MAX)
    return dibs__cli_fail(g->globals, CLI_USAGE, "INVALID",
                          "the names of the group and the topic are too long together");
  return CLI_DONE;
}

/* A store without records can't keep offsets: refused before a message is read. */
static int check_store(const struct group *g) {
  dibs_record_options options = {.size = sizeof options};
  dibs_record *record = NULL;
  dibs_error error = {0};
  char key[DIBS_NAME_MAX + 1];
  snprintf(key, sizeof key, "kafka:%s/%s#0", g->name, g->topic);
  dibs_status status = dibs_record_get(g->store, key, &options, &record, &error);
  if (status == DIBS_OK) dibs_record_free(record);
  return status == DIBS_OK || status == DIBS_NOT_FOUND ? CLI_DONE
                                                       : dibs__cli_fail_status(g->globals, status, &error, g->topic);
}

static int join(struct group *g) {
  static struct dibs__module module; /* stays loaded */
  dibs_lease_options reach = {.size = sizeof reach, .wait_ms = DIBS_FOREVER};
  char why[512];
  g->kafka = dibs__kafka_load(&module, why, sizeof why);
  if (g->kafka == NULL) return dibs__cli_fail(g->globals, CLI_USAGE, "UNSUPPORTED", "%s", why);
  int code = dibs__cli_reach(g->globals, &reach, &g->signals, &g->store);
  if (code == CLI_DONE) code = check_store(g);
  if (code != CLI_DONE) return code;
  g->store_uri = dibs__cli_store_uri(g->globals, g->store);
  if (g->store_uri == NULL) return dibs__cli_fail(g->globals, CLI_FAILED, "NO_MEMORY", "out of memory");
  const struct dibs__kafka_options o = {
      .brokers = g->v->brokers, .topic = g->topic, .group = g->name, .settings = g->v->settings.word};
  g->consumer = g->kafka->open(&o, why, sizeof why);
  return g->consumer != NULL ? CLI_DONE : dibs__cli_fail(g->globals, CLI_USAGE, "INVALID", "Kafka: %s", why);
}

int dibs__cli_lane_kafka(struct cli_call *call) {
  const struct cli_values *v = &call->v;
  char shell[] = "sh", option[] = "-c";
  char *by_shell[] = {shell, option, (char *)(uintptr_t)v->exec, NULL};
  struct group g = {.v = v,
                    .globals = &v->globals,
                    .topic = call->pos[1],
                    .name = v->group,
                    .commands = {.globals = &v->globals, .argv = v->exec != NULL ? by_shell : call->rest},
                    .verbose = v->verbose || isatty(STDERR_FILENO),
                    .jobs = v->jobs == CLI_UNSET ? JOBS : (size_t)v->jobs,
                    .signals = {.fd = -1}};
  int code = check_call(&g);
  if (code == CLI_DONE) code = dibs__cli_lane_times(&g.commands, v);
  if (code == CLI_DONE) code = dibs__cli_signals_open(g.globals, &g.signals);
  if (code == CLI_DONE)
    code = dibs__cli_slots_open(&g.commands.slots, g.globals, &g.signals.before, g.commands.argv, g.jobs);
  if (code == CLI_DONE) code = join(&g);
  if (g.consumer != NULL) {
    code = work(&g);
    end_partitions(&g, -1);
    reap(&g, true);
    g.kafka->close(g.consumer);
  }
  dibs_close(g.store);
  dibs__cli_slots_close(&g.commands.slots);
  dibs__locate_free(g.store_uri);
  if (g.signals.fd >= 0) dibs__cli_signals_close(&g.signals);
  return code;
}
