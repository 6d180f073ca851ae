/* SPDX-License-Identifier: MIT */
/*
 * `dibs cron`: a process of a fleet that shares a crontab, with commands for its firings.
 *
 * The library decides what is due, and which firings this process runs (dibs/cron.h).  Here are the file, which is read
 * again when it changes, and signals.  The order: signals are blocked and a launcher for each command is forked while
 * there is one thread; then the store is opened, and the library's threads are started.
 */
#include "cli/cron.h"
#include "history/history.h"
#include "info/info.h"
#include "store/locate.h"
#include "task/crontab_kept.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum {
  JOBS_AT_ONCE = 16,
  POLL_MS = 1000,     /* between two looks at the file, and for trouble */
  POLL_ENDING_MS = 20 /* between two looks whether the last command has ended */
};

/* A crontab as it was read: of a file, or of the store. */
struct source {
  const struct cli_globals *globals;
  const char *path;                   /* NULL: of the store */
  const char *shown;                  /* the path, or the name */
  const char *name;                   /* of the fleet */
  char version[DIBS_VERSION_MAX + 1]; /* of the store; "": there is none */
  struct timespec changed;
  off_t size;
  ino_t inode;
  char zone[128];
  char *text;
  dibs_cron_table table;
};

/* ---- The file ---- */

/* The zone of jobs without one: as cron has it. */
static void find_zone(char *to, size_t size) {
  static const char folder[] = "zoneinfo/";
  char target[PATH_MAX];
  const char *named = getenv("TZ");
  if (named != NULL && *named == ':') named++;
  snprintf(to, size, "%s", named != NULL && *named != '\0' ? named : "UTC");
  if (named != NULL) return;
  ssize_t got = readlink("/etc/localtime", target, sizeof target - 1);
  if (got <= 0) return;
  target[got] = '\0';
  const char *at = strstr(target, folder);
  if (at != NULL) snprintf(to, size, "%s", at + sizeof folder - 1);
}

/* malloc'd; NULL and errno. */
static char *read_file(const char *path, size_t *length, struct stat *st) {
  int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
  char *text = NULL;
  *length = 0;
  if (fd < 0) return NULL;
  if (fstat(fd, st) != 0) goto out;
  errno = !S_ISREG(st->st_mode) ? EINVAL : EFBIG;
  if (!S_ISREG(st->st_mode) || st->st_size > DIBS_CRON_TABLE_MAX) goto out;
  text = malloc(DIBS_CRON_TABLE_MAX + 1);
  for (ssize_t got = 1; text != NULL && got > 0 && *length <= DIBS_CRON_TABLE_MAX;) {
    got = read(fd, text + *length, DIBS_CRON_TABLE_MAX + 1 - *length);
    if (got < 0 && errno == EINTR) {
      got = 1;
      continue;
    }
    if (got < 0) {
      free(text);
      text = NULL;
    } else {
      *length += (size_t)got;
    }
  }
out:
  close(fd);
  return text;
}

static void note_flaw(uint32_t line, const char *message, void *user) {
  const struct source *s = user;
  dibs__cli_note(s->globals, "%s:%" PRIu32 ": %s", s->shown, line, message);
}

static void use_text(struct source *s, char *text, size_t length) {
  free(s->text);
  s->text = text;
  s->table = (dibs_cron_table){
      .size = sizeof s->table, .text = text, .length = length, .zone = s->zone, .on_error = note_flaw, .user = s};
}

/* 0, or errno: then the source is as before. */
static int read_source(struct source *s) {
  size_t length;
  struct stat st;
  char *text = read_file(s->path, &length, &st);
  if (text == NULL) return errno;
  find_zone(s->zone, sizeof s->zone);
  use_text(s, text, length);
  s->changed = st.st_mtim;
  s->size = st.st_size;
  s->inode = st.st_ino;
  return 0;
}

/* Reads it again if it has changed.  0, or errno: then the source is as before. */
static int reread_source(struct source *s, bool *is_new) {
  struct stat st;
  *is_new = false;
  if (stat(s->path, &st) != 0 || access(s->path, R_OK) != 0) return errno;
  if (st.st_mtim.tv_sec == s->changed.tv_sec && st.st_mtim.tv_nsec == s->changed.tv_nsec && st.st_size == s->size &&
      st.st_ino == s->inode)
    return 0;
  int error = read_source(s);
  *is_new = error == 0;
  return error;
}

/* Reads the crontab that is in the store.  OK: also if there is none, which has no jobs. */
static dibs_status read_stored(struct source *s, dibs_store *store, bool *is_new, dibs_error *error) {
  struct dibs__crontab_kept kept;
  dibs_status status = dibs__crontab_load(store, s->name, &kept, error);
  *is_new = false;
  if (status == DIBS_OK && !kept.stored) { /* a copy of the file of other nodes is for people */
    free(kept.text);
    status = DIBS_NOT_FOUND;
  }
  if (status == DIBS_NOT_FOUND) kept = (struct dibs__crontab_kept){.text = calloc(1, 1)};
  if ((status != DIBS_OK && status != DIBS_NOT_FOUND) || kept.text == NULL) {
    free(kept.text);
    return status == DIBS_OK || status == DIBS_NOT_FOUND ? DIBS_NO_MEMORY : status;
  }
  *is_new = s->text == NULL || strcmp(s->version, kept.version) != 0;
  snprintf(s->version, sizeof s->version, "%s", kept.version);
  snprintf(s->zone, sizeof s->zone, "%s", kept.zone[0] ? kept.zone : "UTC");
  if (*is_new)
    use_text(s, kept.text, kept.length);
  else
    free(kept.text);
  return DIBS_OK;
}

/* The nodes of one file share its name: "jobs.cron".  path NULL: it is read when the store is open. */
static int open_source(const struct cli_globals *g, const char *path, const char *name, struct source *s) {
  const char *slash = path != NULL ? strrchr(path, '/') : NULL;
  if (name == NULL) name = slash != NULL ? slash + 1 : path;
  *s = (struct source){.globals = g, .path = path, .shown = path != NULL ? path : name, .name = name};
  if (*name == '\0' || strlen(name) > DIBS_CRON_NAME_MAX)
    return dibs__cli_fail(g, CLI_USAGE, "INVALID", "the name of the crontab has 1 to %d bytes; give one with --name",
                          DIBS_CRON_NAME_MAX);
  int error = path != NULL ? read_source(s) : 0;
  if (error == 0) return CLI_DONE;
  return dibs__cli_fail(g, CLI_USAGE, "INVALID", "cannot read the crontab %s: %s", path, strerror(error));
}

/* ---- A node ---- */

struct node {
  struct cron_pool pool; /* first */
  const struct cli_values *v;
  struct source source;
  struct cli_signals signals;
  dibs_store *store;
  dibs_cron *cron;
  int unread, unread_noted; /* errno of the latest look at the file, and that of which a note was written; 0: none */
  dibs_status trouble;      /* of which a note was written */
  uint64_t history_lost;    /* runs of which a note says that they are not in the history */
  bool kept, unkept_noted;  /* the crontab is in the store; a note says that it is not */
};

static uint64_t count_jobs(const struct node *n) {
  dibs_cron_counts counts = DIBS_CRON_COUNTS_INIT;
  (void)!dibs_cron_count(n->cron, &counts, NULL);
  return counts.jobs;
}

static int start_node(struct node *n) {
  const struct cli_globals *g = n->pool.globals;
  dibs_lease_options reach = {.size = sizeof reach, .wait_ms = DIBS_FOREVER};
  dibs_error error = {0};
  int code = dibs__cli_reach(g, &reach, &n->signals, &n->store);
  if (code != CLI_DONE) return code;
  n->pool.store_uri = dibs__cli_store_uri(g, n->store);
  if (n->pool.store_uri == NULL) return dibs__cli_fail(g, CLI_FAILED, "NO_MEMORY", "out of memory");
  if (n->source.path == NULL) {
    bool is_new;
    dibs_status status = read_stored(&n->source, n->store, &is_new, &error);
    if (status != DIBS_OK) return dibs__cli_fail_status(g, status, &error, "cannot read the crontab in the store");
  }
  const dibs_cron_options options = {.size = sizeof options,
                                     .table = &n->source.table,
                                     .threads = (uint32_t)n->pool.slots.count,
                                     .flags = dibs__cli_history_is_off(n->v) ? DIBS_CRON_NO_HISTORY : 0,
                                     .claim_ms = CRON_CLAIM_MS,
                                     .owner = g->owner,
                                     .work = dibs__cli_cron_work,
                                     .user = &n->pool};
  dibs_status status = dibs_cron_start(n->store, n->source.name, &options, &n->cron, &error);
  if (status != DIBS_OK) return dibs__cli_fail_status(g, status, &error, "cannot run the jobs");
  dibs__cli_note(g, "%s: %" PRIu64 " jobs%s", n->source.shown, count_jobs(n),
                 n->source.path == NULL && !n->source.version[0] ? "; the store has no crontab with this name yet"
                                                                 : "");
  return CLI_DONE;
}

/* Reports once that the file can't be read, and that it can again.  Only the second look in a row counts: an editor
 * removes the file for a moment. */
static void note_unread(struct node *n, int unread) {
  bool lasts = unread == n->unread;
  n->unread = unread;
  if (!lasts || unread == n->unread_noted) return;
  n->unread_noted = unread;
  if (unread != 0)
    dibs__cli_note(n->pool.globals, "cannot read the crontab %s: %s; the jobs stay as they are", n->source.path,
                   strerror(unread));
  else
    dibs__cli_note(n->pool.globals, "the crontab %s can be read again", n->source.path);
}

/* For people and tools without the file.  No firing depends on it, so one note is enough. */
static void keep_table(struct node *n) {
  dibs_error error = {0};
  if (n->kept || n->trouble != DIBS_OK || n->source.path == NULL) return;
  n->kept = dibs__crontab_keep(n->store, n->source.name, &n->source.table, &error) == DIBS_OK;
  if (!n->kept && !n->unkept_noted)
    dibs__cli_note(n->pool.globals, "dibs serve cannot show the crontab: %s", error.text);
  n->unkept_noted = !n->kept;
}

/* A store that does not answer leaves the jobs as they are; watch_trouble reports it. */
static void look_at_source(struct node *n) {
  dibs_error error = {0};
  bool is_new = false;
  if (n->source.path != NULL)
    note_unread(n, reread_source(&n->source, &is_new));
  else if (n->trouble == DIBS_OK)
    (void)read_stored(&n->source, n->store, &is_new, &error);
  if (!is_new) return;
  n->kept = false;
  if (dibs_cron_replace(n->cron, &n->source.table, &error) == DIBS_OK)
    dibs__cli_note(n->pool.globals, "read %s again: %" PRIu64 " jobs", n->source.shown, count_jobs(n));
  else
    dibs__cli_note(n->pool.globals, "cannot use the new %s: %s", n->source.shown, error.text);
}

/* Says once when the store does not answer, and when it does again. */
static void watch_trouble(struct node *n) {
  const struct cli_globals *g = n->pool.globals;
  dibs_cron_counts counts = DIBS_CRON_COUNTS_INIT;
  dibs_error error = {0};
  dibs_cron_trouble(n->cron, &error);
  if (error.status != DIBS_OK && n->trouble == DIBS_OK)
    dibs__cli_note(g, "%s; dibs cron tries again", error.text);
  else if (error.status == DIBS_OK && n->trouble != DIBS_OK)
    dibs__cli_note(g, "%s answers again", dibs_store_uri(n->store));
  n->trouble = error.status;
  if (dibs_cron_count(n->cron, &counts, NULL) != DIBS_OK || counts.history_lost == n->history_lost) return;
  dibs__cli_note(g, "%" PRIu64 " runs are not in the history: the store did not take them in time",
                 counts.history_lost - n->history_lost);
  n->history_lost = counts.history_lost;
}

/* Waits for a signal, or for `ms`.  true: a signal asks to end. */
static bool wait_for_signal(const struct node *n, int ms) {
  struct pollfd fds[] = {{n->signals.fd, POLLIN, 0}, {n->pool.wake_fd, POLLIN, 0}};
  int signo;
  if (poll(fds, 2, ms) > 0 && fds[1].revents != 0) dibs__notifier_lower(n->pool.wake_fd);
  while ((signo = dibs__cli_signals_next(&n->signals)) != 0) {
    if (signo == SIGTSTP) raise(SIGSTOP);
    if (signo == SIGTERM || signo == SIGINT || signo == SIGQUIT || signo == SIGHUP) return true;
  }
  return false;
}

/* Fires and claims no more, and waits for the commands; a signal ends them. */
static void drain(struct node *n) {
  dibs_cron_counts counts = DIBS_CRON_COUNTS_INIT;
  if (dibs_cron_stop(n->cron, 0, NULL) == DIBS_OK) return;
  (void)!dibs_cron_count(n->cron, &counts, NULL);
  if (counts.running > 0)
    dibs__cli_note(n->pool.globals, "ending: waiting for %" PRIu64 " command%s; a second signal ends %s",
                   counts.running, counts.running == 1 ? "" : "s", counts.running == 1 ? "it" : "them");
  while (dibs_cron_stop(n->cron, 0, NULL) == DIBS_TIMEOUT)
    if (wait_for_signal(n, POLL_ENDING_MS)) dibs__notifier_raise(n->pool.end_fd);
}

static int run_node(struct node *n) {
  while (!n->pool.broken && !wait_for_signal(n, POLL_MS)) {
    look_at_source(n);
    watch_trouble(n);
    keep_table(n);
  }
  drain(n);
  watch_trouble(n);
  if (!n->pool.broken) return CLI_DONE;
  return dibs__cli_fail(n->pool.globals, CLI_FAILED, "",
                        "a process of the node that starts commands was killed or stopped; start the node again");
}

static int run_with_slots(struct node *n) {
  struct cron_pool *pool = &n->pool;
  size_t jobs = n->v->jobs != CLI_UNSET ? (size_t)n->v->jobs : JOBS_AT_ONCE;
  int code = dibs__cli_slots_open(&pool->slots, pool->globals, &n->signals.before, NULL, jobs);
  pool->end_fd = dibs__notifier_open();
  pool->wake_fd = dibs__notifier_open();
  if (code == CLI_DONE && (pool->end_fd < 0 || pool->wake_fd < 0))
    code = dibs__cli_fail(pool->globals, CLI_FAILED, "", "no file descriptor is left");
  if (code == CLI_DONE) code = start_node(n);
  if (code == CLI_DONE) code = run_node(n);
  dibs_cron_free(n->cron);
  dibs_close(n->store);
  dibs__locate_free(pool->store_uri);
  dibs__cli_slots_close(&pool->slots);
  if (pool->end_fd >= 0) dibs__notifier_close(pool->end_fd);
  if (pool->wake_fd >= 0) dibs__notifier_close(pool->wake_fd);
  return code;
}

static int run_as_node(const struct cli_call *call) {
  struct node n = {.pool = {.globals = &call->v.globals}, .v = &call->v, .signals = {.fd = -1}};
  int code = open_source(n.pool.globals, call->npos > 0 ? call->pos[0] : NULL, call->v.name, &n.source);
  if (code == CLI_DONE) code = dibs__cli_signals_open(n.pool.globals, &n.signals);
  if (code == CLI_DONE) code = run_with_slots(&n);
  if (n.signals.fd >= 0) dibs__cli_signals_close(&n.signals);
  free(n.source.text);
  return code;
}

/* ---- ls ---- */

static void write_local(char *to, size_t size, int64_t ms) {
  time_t at = (time_t)(ms / 1000);
  struct tm local;
  if (ms < 0 || localtime_r(&at, &local) == NULL || strftime(to, size, "%d %b %H:%M:%S", &local) == 0)
    snprintf(to, size, "-");
}

struct printing {
  struct cli_table *table; /* NULL: as JSON */
  struct dibs__json json;
  bool full; /* out of memory */
};

static int add_job(const dibs_cron_info *job, void *user) {
  struct printing *p = user;
  char next[40], last[40], how[40] = "-", missed[24], skipped[24];
  write_local(next, sizeof next, job->next_ms);
  write_local(last, sizeof last, job->last_ms);
  if (job->last_ms >= 0) snprintf(how, sizeof how, "%s", dibs__history_end_name(job->last_how));
  if (job->last_ms >= 0 && job->last_how == DIBS_RUN_FAILED)
    snprintf(how, sizeof how, "failed %" PRId32, job->last_code);
  snprintf(missed, sizeof missed, "%" PRIu64, job->missed);
  snprintf(skipped, sizeof skipped, "%" PRIu64, job->skipped);
  const char *const cells[] = {job->name, job->schedule, next, last, how, missed, skipped};
  for (size_t i = 0; i < sizeof cells / sizeof *cells; i++)
    if (!dibs__cli_table_add(p->table, cells[i])) p->full = true;
  return p->full;
}

static int json_job(const dibs_cron_info *job, void *user) {
  struct dibs__json *j = &((struct printing *)user)->json;
  dibs__cli_list_begin(j);
  dibs__json_open(j, NULL, '{');
  dibs__info_cron_job(j, job);
  dibs__json_close(j, '}');
  return 0;
}

static int list_jobs(struct source *s, dibs_store *store) {
  static const char *const heads[] = {"NAME", "*-SCHEDULE", "=NEXT", "=LAST", "=HOW", ">--MISSED", ">--SKIPPED", NULL};
  const struct cli_globals *g = s->globals;
  struct printing p = {.json = {.out = stdout}};
  dibs_error error = {0};
  if (!g->json && (p.table = dibs__cli_table_new(heads)) == NULL)
    return dibs__cli_fail(g, CLI_FAILED, "NO_MEMORY", "out of memory");
  dibs_status status = dibs_cron_list(store, s->name, &s->table, g->json ? json_job : add_job, &p, &error);
  if (g->json) dibs__cli_list_end(&p.json, status == DIBS_OK);
  if (p.table != NULL && status == DIBS_OK) dibs__cli_table_print(p.table, dibs__cli_columns(STDOUT_FILENO), stdout);
  dibs__cli_table_free(p.table);
  if (status != DIBS_OK) return dibs__cli_fail_status(g, status, &error, "cannot read the state of the jobs");
  if (p.full) return dibs__cli_fail(g, CLI_FAILED, "NO_MEMORY", "out of memory; the list is incomplete");
  return dibs__cli_flush(g);
}

/* ---- run ---- */

static int fire_by_hand(struct source *s, dibs_store *store, const char *name) {
  const struct cli_globals *g = s->globals;
  uint64_t nr;
  dibs_error error = {0};
  dibs_status status = dibs_cron_fire(store, s->name, &s->table, name, &nr, &error);
  if (status == DIBS_NOT_FOUND)
    return dibs__cli_fail(g, CLI_ABSENT, "NOT_FOUND", "%s has no job '%s'; see dibs cron ls %s", s->shown, name,
                          s->shown);
  if (status == DIBS_HELD)
    return dibs__cli_fail(g, CLI_BUSY, "HELD", "'%s' is still running, and its firings do not overlap", name);
  if (status != DIBS_OK) return dibs__cli_fail_status(g, status, &error, name);
  if (g->json) {
    struct dibs__json j = {.out = stdout};
    dibs__json_open(&j, NULL, '{');
    dibs__json_text(&j, "job", name);
    dibs__json_uint(&j, "task", nr);
    dibs__json_close(&j, '}');
  } else {
    printf("%" PRIu64 "\n", nr);
  }
  return dibs__cli_flush(g);
}

/* ---- dibs cron ---- */

static int on_store(const struct cli_call *call, bool lists) {
  struct source source = {.text = NULL};
  dibs_store *store = NULL;
  int at = lists ? 1 : 2; /* of the file */
  bool is_new;
  dibs_error error = {0};
  int code = open_source(&call->v.globals, call->npos > at ? call->pos[at] : NULL, call->v.name, &source);
  if (code == CLI_DONE) code = dibs__cli_open(&call->v.globals, 0, &store);
  if (code == CLI_DONE && source.path == NULL) {
    dibs_status status = read_stored(&source, store, &is_new, &error);
    if (status != DIBS_OK) code = dibs__cli_fail_status(&call->v.globals, status, &error, "cannot read the crontab");
  }
  if (code == CLI_DONE) code = lists ? list_jobs(&source, store) : fire_by_hand(&source, store, call->pos[1]);
  dibs_close(store);
  free(source.text);
  return code;
}

int dibs__cli_cron(struct cli_call *call) {
  const struct cli_globals *g = &call->v.globals;
  const char *word = call->npos > 0 ? call->pos[0] : "";
  bool lists = strcmp(word, "ls") == 0, fires = strcmp(word, "run") == 0;
  int wanted = lists ? 2 : fires ? 3 : 1;
  bool of_store = call->v.name != NULL && call->npos == wanted - 1;
  if (call->npos != wanted && !of_store)
    return dibs__cli_fail(g, CLI_USAGE, "INVALID",
                          "write dibs cron FILE, dibs cron ls FILE, or dibs cron run JOB FILE; --name NAME in place of "
                          "FILE is a crontab in the store");
  return lists || fires ? on_store(call, lists) : run_as_node(call);
}
