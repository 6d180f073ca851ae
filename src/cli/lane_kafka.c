/* SPDX-License-Identifier: MIT */
/*
 * `dibs lane kafka`: a member of a Kafka consumer group (dibs/kafka.h) that runs a command for each message.
 *
 * With --sql the standard output of the command is statements of SQL, which take effect in one transaction with the
 * offset.  Without it the offset is stored after the command has ended with 0.  The main thread dispatches the store's
 * callbacks and waits for signals.
 */
#include "cli/lane.h"
#include "dibs/kafka.h"
#include "lane/kafka.h"
#include "store/locate.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
  JOBS = 32,
  POLL_MS = 50,      /* between two looks at callbacks and commands that can't be started */
  KEY_MAX = 1024,    /* longer keys are not in the environment */
  SQL_MAX = 16 << 20 /* bytes of statements for one message: they are in memory */
};

struct group {
  /* Immutable after the start. */
  const struct cli_values *v;
  const struct cli_globals *globals;
  const char *topic;
  char *store_uri;
  dibs_store *store;
  dibs_kafka_member *member;
  bool verbose;
  struct lane_commands commands;
  struct cli_signals signals;
  size_t jobs;
};

/* ---- The command of a message ---- */

static void add_number(char to[MINDER_TEXT_MAX], size_t *length, const char *name, int64_t number) {
  char text[24];
  snprintf(text, sizeof text, "%" PRId64, number);
  dibs__cli_run_variable(to, length, name, text);
}

static size_t environment(const struct group *g, const dibs_kafka_message *m, char to[MINDER_TEXT_MAX]) {
  char id[33] = "", ttl[32], held[CLI_HELD_MAX], key[KEY_MAX + 1] = "";
  size_t length = 0;
  (void)!dibs_lease_id(m->lease, id, NULL); /* of a lost lease: the command is ended before it begins */
  if (m->key != NULL && m->key_length <= KEY_MAX && memchr(m->key, '\0', m->key_length) == NULL)
    memcpy(key, m->key, m->key_length);
  dibs__cli_run_variable(to, &length, "DIBS_TOPIC", g->topic);
  add_number(to, &length, "DIBS_LANE", m->partition);
  add_number(to, &length, "DIBS_OFFSET", m->offset);
  dibs__cli_run_variable(to, &length, "DIBS_KEY", key);
  dibs__cli_run_variable(to, &length, "DIBS_NAME", dibs_lease_name(m->lease));
  dibs__cli_run_variable(to, &length, "DIBS_LEASE", id);
  add_number(to, &length, "DIBS_FENCE", (int64_t)m->fence.value);
  snprintf(ttl, sizeof ttl, "%" PRId64 "ms", g->commands.ttl_ms);
  dibs__cli_run_variable(to, &length, "DIBS_TTL", ttl);
  dibs__cli_run_variable(to, &length, "DIBS_SLOT", "");
  dibs__cli_run_variable(to, &length, "DIBS_STORE", g->store_uri);
  dibs__cli_outer_list(held);
  dibs__cli_run_variable(to, &length, "DIBS_HELD", held);
  return length;
}

/* What the command wrote, as a text; malloc'd.  NULL, after a note: it can't be SQL, or there is no memory. */
static char *read_statements(const struct group *g, const char *what, int fd) {
  struct stat file;
  if (fstat(fd, &file) != 0 || file.st_size > SQL_MAX) {
    dibs__cli_note(g->globals, "%s: the command wrote more than %d bytes of SQL", what, SQL_MAX);
    return NULL;
  }
  size_t size = (size_t)file.st_size, at = 0;
  char *text = malloc(size + 1);
  ssize_t got = 1;
  while (text != NULL && at < size && got > 0) {
    got = pread(fd, text + at, size - at, (off_t)at);
    if (got > 0) at += (size_t)got;
    if (got < 0 && errno == EINTR) got = 1;
  }
  if (text != NULL) text[at] = '\0';
  if (text != NULL && at == size && strlen(text) == size) return text;
  dibs__cli_note(g->globals, "%s: %s", what,
                 text == NULL ? "out of memory" : "the command wrote a NUL byte, which SQL does not have");
  free(text);
  return NULL;
}

/* The statements of the command, in the transaction that the library commits with the offset. */
static dibs_status run_statements(const struct group *g, const char *what, const dibs_kafka_message *m, int fd) {
  char *text = read_statements(g, what, fd);
  if (text == NULL) return DIBS_INVALID;
  dibs_error error = {0};
  dibs_status status = dibs_transaction_begin(m->transaction, &error);
  if (status == DIBS_OK && text[strspn(text, " \t\r\n;")] != '\0')
    status = dibs_transaction_sql(m->transaction, text, &error);
  if (status != DIBS_OK) dibs__cli_note(g->globals, "%s: offset %" PRId64 ": %s", what, m->offset, error.text);
  free(text);
  return status;
}

/* With 0 a command has done its message, also if it got TERM in the middle: to do it again would repeat its effects.
 * The offset is stored under the lease in any case. */
static dibs_status judge(const struct group *g, const char *what, const dibs_kafka_message *m, enum lane_end end,
                         int status) {
  char how[80];
  if ((end == LANE_COMMAND_ENDED || end == LANE_COMMAND_STOPPED) && status == 0) return DIBS_OK;
  if (end != LANE_COMMAND_ENDED) return end == LANE_COMMAND_LOST ? DIBS_LOST : DIBS_CANCELLED;
  dibs__cli_run_describe(how, sizeof how, status);
  dibs__cli_note(g->globals, "%s: offset %" PRId64 ": %s; it is run again", what, m->offset, how);
  return DIBS_UNAVAILABLE;
}

static dibs_status do_message(const dibs_kafka_message *m, void *user) {
  struct group *g = user;
  char text[MINDER_TEXT_MAX], what[32];
  int status = 0, in = dibs__cli_input_file(m->value, m->value_length);
  int out = g->v->sql ? memfd_create("dibs-output", MFD_CLOEXEC) : 0;
  snprintf(what, sizeof what, "partition %" PRId32, m->partition);
  const struct lane_command command = {.slot = dibs__cli_slot_take(&g->commands.slots),
                                       .what = what,
                                       .lease = m->lease,
                                       .in = in,
                                       .out = out,
                                       .end_fd = dibs__kafka_end_fd(m)};
  size_t length = environment(g, m, text);
  enum lane_end end = dibs__cli_lane_command(&g->commands, &command, text, length, &status);
  dibs__cli_slot_free(&g->commands.slots, command.slot);
  dibs_status done = judge(g, what, m, end, status);
  if (done == DIBS_OK && g->v->sql) done = run_statements(g, what, m, out);
  if (in >= 0) close(in);
  if (out > 0) close(out);
  return done;
}

static void print_note(int32_t partition, dibs_status status, const char *text, void *user) {
  const struct group *g = user;
  if (status == DIBS_FULL || status == DIBS_LOST || (status == DIBS_OK && !g->verbose)) return;
  if (partition < 0)
    dibs__cli_note(g->globals, "%s", text);
  else
    dibs__cli_note(g->globals, "partition %" PRId32 ": %s", partition, text);
}

/* ---- The main thread ---- */

static int check_member(const struct group *g) {
  dibs_error error;
  dibs_kafka_trouble(g->member, &error);
  if (error.status == DIBS_OK) return CLI_DONE;
  if (error.status == DIBS_FULL)
    return dibs__cli_fail(g->globals, CLI_USAGE, "INVALID", "%s: give a larger --jobs, or run more members",
                          error.text);
  return dibs__cli_fail_status(g->globals, error.status, &error, g->topic);
}

static int work(struct group *g) {
  struct pollfd fd = {.fd = g->signals.fd, .events = POLLIN};
  for (;;) {
    int code = check_member(g), signo;
    if (code == CLI_DONE) code = g->commands.code;
    if (code != CLI_DONE) return code;
    if (g->commands.broken)
      return dibs__cli_fail(g->globals, CLI_FAILED, "", "a process that starts commands was killed or stopped");
    dibs_dispatch(g->store, 0);
    (void)poll(&fd, 1, POLL_MS);
    while ((signo = dibs__cli_signals_next(&g->signals)) != 0)
      if (signo == SIGTERM || signo == SIGINT || signo == SIGHUP || signo == SIGQUIT) return CLI_DONE;
  }
}

static int check_call(const struct group *g) {
  const struct cli_values *v = g->v;
  if (v->brokers != NULL && v->group != NULL) return CLI_DONE;
  return dibs__cli_fail(g->globals, CLI_USAGE, "INVALID", "--%s is missing; see dibs help lane",
                        v->brokers == NULL ? "brokers" : "group");
}

static int join(struct group *g) {
  dibs_lease_options reach = {.size = sizeof reach, .wait_ms = DIBS_FOREVER};
  int code = dibs__cli_reach(g->globals, &reach, &g->signals, &g->store);
  if (code != CLI_DONE) return code;
  g->store_uri = dibs__cli_store_uri(g->globals, g->store);
  if (g->store_uri == NULL) return dibs__cli_fail(g->globals, CLI_FAILED, "NO_MEMORY", "out of memory");
  const dibs_kafka_options options = {.size = sizeof options,
                                      .topic = g->topic,
                                      .brokers = g->v->brokers,
                                      .group = g->v->group,
                                      .settings = g->v->settings.word,
                                      .ttl_ms = g->commands.ttl_ms,
                                      .owner = g->globals->owner,
                                      .most = (uint32_t)g->jobs,
                                      .flags = g->v->sql ? 0 : DIBS_KAFKA_NO_TRANSACTION,
                                      .on_message = do_message,
                                      .on_note = print_note,
                                      .user = g};
  dibs_error error = {0};
  dibs_status status = dibs_kafka_join(g->store, &options, &g->member, &error);
  return status == DIBS_OK ? CLI_DONE : dibs__cli_fail_status(g->globals, status, &error, g->topic);
}

int dibs__cli_lane_kafka(struct cli_call *call) {
  const struct cli_values *v = &call->v;
  char shell[] = "sh", option[] = "-c";
  char *by_shell[] = {shell, option, (char *)(uintptr_t)v->exec, NULL};
  struct group g = {.v = v,
                    .globals = &v->globals,
                    .topic = call->pos[1],
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
  if (g.member != NULL) code = work(&g);
  dibs_kafka_leave(g.member);
  dibs_close(g.store);
  dibs__cli_slots_close(&g.commands.slots);
  dibs__locate_free(g.store_uri);
  if (g.signals.fd >= 0) dibs__cli_signals_close(&g.signals);
  return code;
}
