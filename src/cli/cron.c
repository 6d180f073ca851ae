/* SPDX-License-Identifier: MIT */
/*
 * `dibs cron`: a node of a fleet that shares a crontab.
 *
 * Each node reads the file, decides by the store's clock which firings are due, adds them as tasks, and claims and runs
 * tasks.  The nodes need no leader: the store keeps each firing once.  A node that finds that others were faster waits
 * a little the next time, so that a fleet of many nodes does not add each firing many times for nothing.
 */
#include "cli/cron.h"
#include "base/date.h"
#include "base/duration.h"
#include "history/history.h"
#include "store/locate.h"

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
  LOOK_MS = 1000,   /* at the file, and for tasks of other nodes */
  CLOCK_MS = 10000, /* between two reads of the store's clock */
  CLOCK_BY_MS = 5000,
  AGAIN_MS = 1000, /* after a failure of the store */
  FOLLOW_MS = 250, /* at most, behind the nodes that are faster */
  LISTED = 1000    /* runs that are read for the last one of each job */
};

/* One file, as it was read. */
struct source {
  const char *path;
  char space[DIBS__CRON_SPACE_MAX + 1];
  struct timespec changed;
  off_t size;
  ino_t inode;
  struct dibs__crontab *tab;
};

struct node {
  const struct cli_globals *globals;
  struct source source;
  struct cron_works works;
  struct cli_signals signals;
  struct dibs__cron_state known;
  dibs_store *store;
  bool has_clock, follows, draining;
  const char *trouble; /* what failed the last time that it was tried; NULL: nothing */
  int64_t offset_ms;   /* the store's clock, less the tick's */
  dibs__tick clock_at, look_at, claim_at, decide_at;
};

/* ---- The file ---- */

/* Every store that keeps tasks has this clock. */
static dibs_status ask_clock(dibs_store *store, struct dibs__store_clock *clock, dibs_error *error) {
  dibs_status status = dibs__history_clock(store, clock, dibs__tick_add_ms(dibs__tick_now(), CLOCK_BY_MS), error);
  if (status == DIBS_UNSUPPORTED)
    snprintf(error->text, sizeof error->text,
             "%s keeps no tasks, which the firings are: use a database, or add one as its last tier (STORE,DATABASE)",
             dibs_store_uri(store));
  return status;
}

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
  if (!S_ISREG(st->st_mode) || st->st_size > DIBS__CRONTAB_MAX) goto out;
  text = malloc(DIBS__CRONTAB_MAX + 1);
  for (ssize_t got = 1; text != NULL && got > 0 && *length <= DIBS__CRONTAB_MAX;) {
    got = read(fd, text + *length, DIBS__CRONTAB_MAX + 1 - *length);
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

static void report_flaws(const struct cli_globals *g, const struct source *s) {
  for (size_t i = 0; i < s->tab->flaw_count; i++)
    dibs__cli_note(g, "%s:%u: %s", s->path, s->tab->flaws[i].line, s->tab->flaws[i].message);
}

/* CLI_DONE, or an exit code after a message. */
static int read_source(const struct cli_globals *g, struct source *s) {
  char zone[128];
  size_t length;
  struct stat st;
  char *text = read_file(s->path, &length, &st);
  if (text == NULL)
    return dibs__cli_fail(g, CLI_USAGE, "INVALID", "cannot read the crontab %s: %s", s->path, strerror(errno));
  find_zone(zone, sizeof zone);
  struct dibs__crontab *tab = dibs__crontab_read(text, length, zone);
  free(text);
  if (tab == NULL) return dibs__cli_fail(g, CLI_FAILED, "NO_MEMORY", "out of memory for the crontab %s", s->path);
  dibs__crontab_free(s->tab);
  s->tab = tab;
  s->changed = st.st_mtim;
  s->size = st.st_size;
  s->inode = st.st_ino;
  report_flaws(g, s);
  return CLI_DONE;
}

static bool has_changed(const struct source *s) {
  struct stat st;
  if (stat(s->path, &st) != 0) return false; /* an editor may replace it just now */
  return st.st_mtim.tv_sec != s->changed.tv_sec || st.st_mtim.tv_nsec != s->changed.tv_nsec || st.st_size != s->size ||
         st.st_ino != s->inode;
}

/* The nodes of one file share its name: "jobs.cron". */
static int open_source(const struct cli_globals *g, const char *path, const char *name, struct source *s) {
  const char *slash = strrchr(path, '/');
  if (name == NULL) name = slash != NULL ? slash + 1 : path;
  *s = (struct source){.path = path};
  if (*name == '\0' || strlen(name) > DIBS__CRON_SPACE_MAX)
    return dibs__cli_fail(g, CLI_USAGE, "INVALID", "the name of the crontab has 1 to %d bytes; give one with --name",
                          DIBS__CRON_SPACE_MAX);
  snprintf(s->space, sizeof s->space, "%s", name);
  return read_source(g, s);
}

/* ---- The store's clock ---- */

static int64_t store_now(const struct node *n) {
  return dibs__tick_now().ns / DIBS__NS_PER_MS + n->offset_ms;
}

/* Never ahead of the store: an instant may fire a little late, and not early. */
static int64_t offset_of(const struct dibs__store_clock *clock) {
  return clock->ms - clock->after.ns / DIBS__NS_PER_MS - 1;
}

/* Once for each kind of trouble, until that succeeds again. */
static void note_trouble(struct node *n, const char *what, const dibs_error *error) {
  if (n->trouble == NULL) dibs__cli_note(n->globals, "cannot %s: %s; dibs cron tries again", what, error->text);
  if (n->trouble == NULL) n->trouble = what;
}

static void note_calm(struct node *n, const char *what) {
  if (n->trouble != what) return;
  dibs__cli_note(n->globals, "can %s again", what);
  n->trouble = NULL;
}

static const char reading[] = "read the store's clock", adding[] = "add the firings that are due",
                  claiming[] = "claim firings";

static void read_clock(struct node *n) {
  struct dibs__store_clock clock;
  dibs_error error = {0};
  dibs_status status = ask_clock(n->store, &clock, &error);
  n->clock_at = dibs__tick_add_ms(dibs__tick_now(), status == DIBS_OK ? CLOCK_MS : AGAIN_MS);
  if (status != DIBS_OK) {
    note_trouble(n, reading, &error);
    return;
  }
  note_calm(n, reading);
  n->offset_ms = offset_of(&clock);
  n->has_clock = true;
}

/* ---- What is due ---- */

/* The line of the job in what this node knows; NULL: it knows none. */
static struct dibs__cron_line *line_of(const struct node *n, const struct dibs__cron_job *job) {
  return dibs__cron_state_find(&n->known, dibs__cron_job_digest(job));
}

static int64_t next_of(const struct node *n, const struct dibs__cron_job *job) {
  const struct dibs__cron_line *line = line_of(n, job);
  return line == NULL ? 0 : dibs__cron_next(job, line->decided_ms);
}

/* The first instant of all jobs that is not decided yet; 0: a job is new. */
static int64_t first_due(const struct node *n) {
  int64_t first = INT64_MAX;
  for (size_t i = 0; i < n->source.tab->job_count; i++) {
    int64_t next = next_of(n, &n->source.tab->jobs[i]);
    if (next < first) first = next;
  }
  return first;
}

/* Replaces what this node knows by what all know, but never by an earlier decision of a job. */
static void learn(struct node *n, struct dibs__cron_state *all) {
  for (size_t i = 0; i < n->known.count; i++) {
    const struct dibs__cron_line *mine = &n->known.lines[i];
    struct dibs__cron_line *line = dibs__cron_state_find(all, mine->job);
    if (line != NULL && line->decided_ms < mine->decided_ms) line->decided_ms = mine->decided_ms;
  }
  dibs__cron_state_free(&n->known);
  n->known = *all;
  *all = (struct dibs__cron_state){0};
}

struct deciding {
  struct node *node;
  struct dibs__cron_line *changes;
  size_t count;
  dibs_error error;
};

/* false: the store failed, and nothing of this job is decided. */
static bool fire_job(struct deciding *d, const struct dibs__cron_job *job, const struct dibs__cron_decision *decision,
                     struct dibs__cron_line *change) {
  for (size_t i = 0; i < decision->count; i++) {
    bool skipped;
    uint64_t nr;
    if (dibs__cron_fire(d->node->store, d->node->source.space, job, &decision->due[i], false, &skipped, &nr,
                        &d->error) != DIBS_OK)
      return false;
    change->skipped += skipped;
  }
  return true;
}

/* A new job does not fire for the past. */
static bool decide_job(struct deciding *d, const struct dibs__cron_job *job, int64_t now_ms) {
  static struct dibs__cron_decision decision;
  const struct dibs__cron_line *line = line_of(d->node, job);
  struct dibs__cron_line change = {.job = dibs__cron_job_digest(job), .decided_ms = now_ms};
  if (line != NULL) {
    if (dibs__cron_next(job, line->decided_ms) > now_ms) return true;
    dibs__cron_decide(job, line->decided_ms, now_ms, &decision);
    change.decided_ms = decision.decided_ms;
    change.missed = decision.missed;
    change.last_missed = decision.last_missed;
    if (!fire_job(d, job, &decision, &change)) return false;
  }
  d->changes[d->count++] = change;
  return true;
}

static bool decide_all(struct deciding *d, int64_t now_ms) {
  const struct dibs__crontab *tab = d->node->source.tab;
  bool fine = true;
  for (size_t i = 0; i < tab->job_count && fine; i++) fine = decide_job(d, &tab->jobs[i], now_ms);
  return fine;
}

/* First what others have decided meanwhile is read; then the rest is decided, added, and kept.  If a node dies in
 * between, another one decides the same again. */
static void decide(struct node *n) {
  struct dibs__cron_state all;
  struct deciding d = {.node = n};
  dibs_status status = dibs__cron_load(n->store, n->source.space, &all, &d.error);
  if (status == DIBS_OK) learn(n, &all);
  dibs__cron_state_free(&all);
  int64_t now_ms = store_now(n);
  if (status == DIBS_OK && first_due(n) > now_ms) {
    n->follows = true; /* another node has decided all of it */
    return;
  }
  if (status == DIBS_OK && (d.changes = calloc(n->source.tab->job_count + 1, sizeof *d.changes)) == NULL)
    status = DIBS_NO_MEMORY;
  bool fired = status == DIBS_OK && decide_all(&d, now_ms);
  if (d.count > 0) {
    all = (struct dibs__cron_state){0};
    size_t kept;
    status = dibs__cron_save(n->store, n->source.space, d.changes, d.count, now_ms, &all, &kept, &d.error);
    if (status == DIBS_OK) {
      n->follows = kept == 0;
      learn(n, &all);
    }
    fired = fired && status == DIBS_OK;
    dibs__cron_state_free(&all);
  }
  free(d.changes);
  n->claim_at = dibs__tick_now();
  if (fired) {
    note_calm(n, adding);
    return;
  }
  note_trouble(n, adding, &d.error);
  n->decide_at = dibs__tick_add_ms(dibs__tick_now(), AGAIN_MS);
}

/* When to decide next, by this machine's clock. */
static void plan_decision(struct node *n) {
  int64_t due_ms = first_due(n), behind_ms = 0;
  uint32_t draw;
  if (n->source.tab->job_count == 0 || due_ms == INT64_MAX) {
    n->decide_at = DIBS__TICK_NEVER;
    return;
  }
  if (n->follows) {
    dibs__random(&draw, sizeof draw);
    behind_ms = (int64_t)(draw % FOLLOW_MS);
  }
  int64_t in_ms = due_ms - store_now(n) + behind_ms;
  n->decide_at = dibs__tick_add_ms(dibs__tick_now(), in_ms > 0 ? in_ms : 0);
}

/* ---- The loop ---- */

static void look_at_file(struct node *n) {
  n->look_at = dibs__tick_add_ms(dibs__tick_now(), LOOK_MS);
  if (!has_changed(&n->source) || read_source(n->globals, &n->source) != CLI_DONE) return;
  dibs__cli_note(n->globals, "read %s again: %zu jobs", n->source.path, n->source.tab->job_count);
  plan_decision(n);
}

static void claim(struct node *n) {
  dibs_error error = {0};
  bool more;
  dibs_status status = dibs__cli_cron_claim(&n->works, n->source.tab, &more, &error);
  n->claim_at = dibs__tick_add_ms(dibs__tick_now(), more ? 0 : LOOK_MS);
  if (status != DIBS_OK)
    note_trouble(n, claiming, &error);
  else
    note_calm(n, claiming);
}

static void do_due(struct node *n) {
  if (!n->draining && !dibs__tick_before(dibs__tick_now(), n->look_at)) look_at_file(n);
  if (!dibs__tick_before(dibs__tick_now(), n->clock_at)) {
    bool had = n->has_clock;
    read_clock(n);
    if (n->has_clock && (!had || n->decide_at.ns != DIBS__TICK_NEVER.ns)) plan_decision(n);
  }
  if (!n->draining && n->has_clock && !dibs__tick_before(dibs__tick_now(), n->decide_at)) {
    n->decide_at = DIBS__TICK_ZERO;
    decide(n);
    if (n->decide_at.ns == DIBS__TICK_ZERO.ns) plan_decision(n);
  }
  if (!n->draining && n->works.count < n->works.most && !dibs__tick_before(dibs__tick_now(), n->claim_at)) claim(n);
  dibs__cli_cron_step(&n->works);
}

static void heed_signals(struct node *n) {
  int signo;
  while ((signo = dibs__cli_signals_next(&n->signals)) != 0) {
    if (signo == SIGTSTP) raise(SIGSTOP);
    if (signo != SIGTERM && signo != SIGINT && signo != SIGQUIT && signo != SIGHUP) continue;
    if (n->draining) dibs__cli_cron_end_all(&n->works);
    if (!n->draining && n->works.count > 0)
      dibs__cli_note(n->globals, "ending: waits for %zu commands; the same signal again ends them", n->works.count);
    n->draining = true;
  }
}

static dibs__tick next_due(const struct node *n) {
  dibs__tick due = dibs__tick_min(n->clock_at, dibs__cli_cron_due(&n->works));
  if (n->draining) return due;
  due = dibs__tick_min(due, n->look_at);
  if (n->has_clock) due = dibs__tick_min(due, n->decide_at);
  return n->works.count < n->works.most ? dibs__tick_min(due, n->claim_at) : due;
}

static int run_node(struct node *n) {
  size_t most = 2 + n->works.most * CRON_POLLS;
  struct pollfd *polls = calloc(most, sizeof *polls);
  int alarm = dibs__cli_alarm_open(), code = CLI_DONE;
  if (polls == NULL || alarm < 0) code = dibs__cli_fail(n->globals, CLI_FAILED, "", "cannot create a timer");
  while (code == CLI_DONE && !(n->draining && n->works.count == 0)) {
    do_due(n);
    if (n->draining && n->works.count == 0) break;
    dibs__cli_alarm_set(alarm, next_due(n));
    polls[0] = (struct pollfd){alarm, POLLIN, 0};
    polls[1] = (struct pollfd){n->signals.fd, POLLIN, 0};
    dibs__cli_cron_request(&n->works, polls + 2);
    if (poll(polls, 2 + n->works.count * CRON_POLLS, -1) < 0 && errno != EINTR) break;
    dibs__cli_alarm_clear(alarm);
    heed_signals(n);
    n->draining = n->draining || n->works.broken;
  }
  if (alarm >= 0) close(alarm);
  free(polls);
  if (!n->works.broken) return code;
  return dibs__cli_fail(n->globals, CLI_FAILED, "",
                        "the process that starts commands was killed or stopped; the node has ended, start it again");
}

static int open_node(struct node *n, const struct cli_call *call) {
  dibs_lease_options options = {.size = sizeof options, .wait_ms = DIBS_FOREVER};
  int code = dibs__cli_reach(n->globals, &options, &n->signals, &n->store);
  if (code != CLI_DONE) return code;
  n->works.globals = n->globals;
  n->works.store = n->store;
  n->works.most = call->v.jobs != CLI_UNSET ? (size_t)call->v.jobs : JOBS_AT_ONCE;
  n->works.no_history = dibs__cli_history_is_off(&call->v);
  n->works.store_uri = dibs__cli_store_uri(n->globals, n->store);
  if (n->works.store_uri == NULL) return dibs__cli_fail(n->globals, CLI_FAILED, "NO_MEMORY", "out of memory");
  dibs__cron_kind(n->source.space, n->works.kind);
  struct dibs__store_clock clock;
  dibs_error error = {0};
  dibs_status status = ask_clock(n->store, &clock, &error);
  if (status == DIBS_UNSUPPORTED) return dibs__cli_fail_status(n->globals, status, &error, "cannot keep firings");
  dibs__cli_note(n->globals, "%s: %zu jobs", n->source.path, n->source.tab->job_count);
  return CLI_DONE;
}

static int run_as_node(const struct cli_call *call) {
  struct node n = {.globals = &call->v.globals, .signals = {.fd = -1}};
  struct launcher launcher = {-1, -1};
  int code = open_source(n.globals, call->pos[0], call->v.name, &n.source);
  if (code == CLI_DONE) code = dibs__cli_signals_open(n.globals, &n.signals);
  if (code == CLI_DONE) code = dibs__cli_launcher_start(n.globals, &n.signals.before, NULL, &launcher);
  n.works.launcher = &launcher;
  if (code == CLI_DONE) code = open_node(&n, call);
  if (code == CLI_DONE) code = run_node(&n);
  dibs__locate_free(n.works.store_uri);
  dibs_close(n.store);
  dibs__cli_launcher_end(&launcher);
  if (n.signals.fd >= 0) dibs__cli_signals_close(&n.signals);
  dibs__cron_state_free(&n.known);
  dibs__crontab_free(n.source.tab);
  return code;
}

/* ---- ls ---- */

struct last {
  const struct dibs__crontab *tab;
  struct job_end {
    bool known;
    int64_t began_ms;
    uint32_t how;
    int32_t code;
  } * ends; /* of each job */
};

static int see_run(const dibs_run_info *run, void *user) {
  struct last *last = user;
  for (size_t i = 0; i < last->tab->job_count; i++) {
    if (last->ends[i].known || strcmp(last->tab->jobs[i].name, run->name) != 0) continue;
    last->ends[i] = (struct job_end){true, run->began_ms, run->how, run->code};
  }
  return 0;
}

static void write_local(char *to, size_t size, int64_t ms) {
  time_t at = (time_t)(ms / 1000);
  struct tm local;
  if (ms == INT64_MAX || ms <= 0 || localtime_r(&at, &local) == NULL ||
      strftime(to, size, "%d %b %H:%M:%S", &local) == 0)
    snprintf(to, size, "-");
}

struct job_row {
  const struct dibs__cron_job *job;
  int64_t next_ms;
  struct dibs__cron_line line;
  struct job_end end;
};

static bool add_job(struct cli_table *table, const struct job_row *r) {
  char next[40], last[40], how[40] = "-", missed[24], skipped[24];
  write_local(next, sizeof next, r->next_ms);
  write_local(last, sizeof last, r->end.known ? r->end.began_ms : 0);
  if (r->end.known) snprintf(how, sizeof how, "%s", dibs__history_end_name(r->end.how));
  if (r->end.known && r->end.how == DIBS_RUN_FAILED) snprintf(how, sizeof how, "failed %" PRId32, r->end.code);
  snprintf(missed, sizeof missed, "%" PRIu64, r->line.missed);
  snprintf(skipped, sizeof skipped, "%" PRIu64, r->line.skipped);
  const char *const cells[] = {r->job->name, r->job->text, next, last, how, missed, skipped};
  for (size_t i = 0; i < sizeof cells / sizeof *cells; i++)
    if (!dibs__cli_table_add(table, cells[i])) return false;
  return true;
}

static void json_job(struct cli_json *j, const struct job_row *r) {
  dibs__cli_json_open(j, NULL, '{');
  dibs__cli_json_text(j, "name", r->job->name);
  dibs__cli_json_text(j, "schedule", r->job->text);
  dibs__cli_json_text(j, "zone", r->job->zone_name);
  dibs__cli_json_known(j, "next_ms", r->next_ms, r->next_ms != INT64_MAX);
  dibs__cli_json_known(j, "last_ms", r->end.began_ms, r->end.known);
  dibs__cli_json_text(j, "last", r->end.known ? dibs__history_end_name(r->end.how) : NULL);
  dibs__cli_json_known(j, "last_code", r->end.code, r->end.known);
  dibs__cli_json_uint(j, "missed", r->line.missed);
  dibs__cli_json_known(j, "last_missed_ms", r->line.last_missed, r->line.missed > 0);
  dibs__cli_json_uint(j, "skipped", r->line.skipped);
  dibs__cli_json_close(j, '}');
}

static int print_jobs(const struct cli_globals *g, const struct last *last, const struct dibs__cron_state *state,
                      int64_t now_ms) {
  static const char *const heads[] = {"NAME", "*-SCHEDULE", "=NEXT", "=LAST", "=HOW", ">--MISSED", ">--SKIPPED", NULL};
  struct cli_table *table = g->json ? NULL : dibs__cli_table_new(heads);
  struct cli_json j = {.out = stdout};
  bool fine = g->json || table != NULL;
  if (g->json) dibs__cli_json_open(&j, NULL, '[');
  for (size_t i = 0; i < last->tab->job_count && fine; i++) {
    const struct dibs__cron_job *job = &last->tab->jobs[i];
    const struct dibs__cron_line *line = dibs__cron_state_find(state, dibs__cron_job_digest(job));
    struct job_row row = {.job = job, .next_ms = dibs__cron_next(job, now_ms), .end = last->ends[i]};
    if (line != NULL) row.line = *line;
    if (g->json)
      json_job(&j, &row);
    else
      fine = add_job(table, &row);
  }
  if (g->json) dibs__cli_json_close(&j, ']');
  if (table != NULL) dibs__cli_table_print(table, dibs__cli_columns(STDOUT_FILENO), stdout);
  dibs__cli_table_free(table);
  return fine ? dibs__cli_flush(g) : dibs__cli_fail(g, CLI_FAILED, "NO_MEMORY", "out of memory");
}

static int list_jobs(const struct cli_globals *g, const struct source *s, dibs_store *store) {
  struct dibs__store_clock clock = {0};
  struct dibs__cron_state state = {0};
  struct last last = {.tab = s->tab, .ends = calloc(s->tab->job_count + 1, sizeof *last.ends)};
  dibs_runs_options options = {.size = sizeof options, .kind = "cron", .most = LISTED};
  dibs_error error = {0};
  dibs_status status = last.ends != NULL ? DIBS_OK : DIBS_NO_MEMORY;
  if (status == DIBS_OK) status = ask_clock(store, &clock, &error);
  if (status == DIBS_OK) status = dibs_runs(store, &options, see_run, &last, &error);
  if (status == DIBS_OK) status = dibs__cron_load(store, s->space, &state, &error);
  int code = status == DIBS_OK ? print_jobs(g, &last, &state, clock.ms)
                               : dibs__cli_fail_status(g, status, &error, "cannot read the state of the jobs");
  dibs__cron_state_free(&state);
  free(last.ends);
  return code;
}

/* ---- run ---- */

static int fire_by_hand(const struct cli_globals *g, const struct source *s, dibs_store *store, const char *name) {
  const struct dibs__cron_job *job = NULL;
  struct dibs__store_clock clock;
  bool skipped;
  uint64_t nr;
  dibs_error error = {0};
  for (size_t i = 0; i < s->tab->job_count; i++)
    if (strcmp(s->tab->jobs[i].name, name) == 0) job = &s->tab->jobs[i];
  if (job == NULL)
    return dibs__cli_fail(g, CLI_ABSENT, "NOT_FOUND", "%s has no job '%s'; see dibs cron ls %s", s->path, name,
                          s->path);
  dibs_status status = ask_clock(store, &clock, &error);
  const struct dibs__cron_due due = {.at_ms = clock.ms / 1000 * 1000};
  if (status == DIBS_OK) status = dibs__cron_fire(store, s->space, job, &due, true, &skipped, &nr, &error);
  if (status != DIBS_OK) return dibs__cli_fail_status(g, status, &error, name);
  if (skipped)
    return dibs__cli_fail(g, CLI_BUSY, "HELD", "'%s' is still running, and its firings do not overlap", name);
  if (g->json) {
    struct cli_json j = {.out = stdout};
    dibs__cli_json_open(&j, NULL, '{');
    dibs__cli_json_text(&j, "job", name);
    dibs__cli_json_uint(&j, "task", nr);
    dibs__cli_json_close(&j, '}');
  } else {
    printf("%" PRIu64 "\n", nr);
  }
  return dibs__cli_flush(g);
}

/* ---- dibs cron ---- */

static int on_store(const struct cli_call *call, bool lists) {
  const struct cli_globals *g = &call->v.globals;
  struct source source = {.tab = NULL};
  dibs_store *store = NULL;
  int code = open_source(g, call->pos[lists ? 1 : 2], call->v.name, &source);
  if (code == CLI_DONE) code = dibs__cli_open(g, 0, &store);
  if (code == CLI_DONE) code = lists ? list_jobs(g, &source, store) : fire_by_hand(g, &source, store, call->pos[1]);
  dibs_close(store);
  dibs__crontab_free(source.tab);
  return code;
}

int dibs__cli_cron(struct cli_call *call) {
  const struct cli_globals *g = &call->v.globals;
  bool lists = strcmp(call->pos[0], "ls") == 0, fires = strcmp(call->pos[0], "run") == 0;
  int wanted = lists ? 2 : fires ? 3 : 1;
  if (call->npos != wanted)
    return dibs__cli_fail(g, CLI_USAGE, "INVALID",
                          "write dibs cron FILE, dibs cron ls FILE, or dibs cron run JOB FILE");
  return lists || fires ? on_store(call, lists) : run_as_node(call);
}
