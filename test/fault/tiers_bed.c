/* SPDX-License-Identifier: MIT */
#include "tiers_bed.h"
#include "belief.h"

#include <inttypes.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { ENDS_MS = 30000 };

bool bed_fail(struct run *run, const char *format, ...) {
  va_list args;
  run->failed = true;
  printf("BROKEN  ");
  va_start(args, format);
  vprintf(format, args);
  va_end(args);
  putchar('\n');
  return false;
}

void bed_print(const struct run *run, const char *format, ...) {
  va_list args;
  printf("%8.3f  ", (double)(dibs__tick_now().ns - run->began.ns) / 1e9);
  va_start(args, format);
  vprintf(format, args);
  va_end(args);
  putchar('\n');
  fflush(stdout);
}

/* ---- Servers ---- */

bool bed_shell(struct run *run, const char *format, ...) {
  char command[2048];
  va_list args;
  va_start(args, format);
  vsnprintf(command, sizeof command, format, args);
  va_end(args);
  return system(command) == 0 || bed_fail(run, "this failed: %s", command);
}

static const char *script(struct run *run) {
  const char *at = getenv("DIBS_TEST_SERVERS_SCRIPT");
  if (!at) bed_fail(run, "DIBS_TEST_SERVERS_SCRIPT is not set (script/servers env)");
  return at;
}

/* The value of one variable of script/servers env. */
static bool request_env(struct run *run, const char *dir, const char *variable, char to[TEXT]) {
  char command[TEXT], line[TEXT], head[64];
  snprintf(command, sizeof command, "'%s' env --dir '%s'", script(run), dir);
  snprintf(head, sizeof head, "export %s='", variable);
  FILE *file = popen(command, "r");
  bool found = false;
  while (file && fgets(line, sizeof line, file)) {
    if (strncmp(line, head, strlen(head)) != 0) continue;
    line[strcspn(line, "\n") - 1] = '\0';
    snprintf(to, TEXT, "%s", line + strlen(head));
    found = true;
  }
  return file && pclose(file) == 0 && found;
}

static uint16_t port_of(const char *uri) {
  const char *at = strrchr(uri, '@'), *colon = at ? strchr(at, ':') : NULL;
  return colon ? (uint16_t)strtoul(colon + 1, NULL, 10) : 0;
}

bool bed_redis_start(struct run *run, size_t nth) {
  struct redis *redis = &run->redis[nth];
  char folder[sizeof run->folder];
  memcpy(folder, run->folder, sizeof folder);
  snprintf(redis->dir, sizeof redis->dir, "%s/servers-%zu", folder, nth);
  if (!script(run) || !bed_shell(run, "'%s' start --dir '%s' --until %d redis >'%s/redis-%zu.log' 2>&1", script(run),
                                 redis->dir, (int)getpid(), run->folder, nth))
    return false;
  if (!request_env(run, redis->dir, "DIBS_TEST_REDIS_ADMIN", redis->admin))
    return bed_fail(run, "%s does not print the address of its Redis", redis->dir);
  redis->port = port_of(redis->admin);
  return true;
}

bool bed_redis(struct run *run, size_t nth, const char *verb) {
  return bed_shell(run, "'%s' %s --dir '%s' redis >>'%s/redis-%zu.log' 2>&1", script(run), verb, run->redis[nth].dir,
                   run->folder, nth);
}

bool bed_redis_cli(struct run *run, size_t nth, const char *words) {
  return bed_shell(run, "timeout 10 redis-cli -e -u '%s' --no-auth-warning %s >>'%s/redis-%zu.log' 2>&1",
                   run->redis[nth].admin, words, run->folder, nth);
}

bool bed_anchor(struct run *run, const char *verb) {
  const char *dir = getenv("DIBS_TEST_SERVERS_DIR");
  return bed_shell(run, "'%s' %s --dir '%s' >>'%s/anchor.log' 2>&1", script(run), verb, dir ? dir : "/nonexistent",
                   run->folder);
}

bool bed_anchor_sql(struct run *run, const char *sql) {
  bool mysql = strncmp(run->anchor, "mysql", 5) == 0;
  const char *admin = getenv(mysql ? "DIBS_TEST_MYSQL_ADMIN" : "DIBS_TEST_POSTGRES_ADMIN"), *word;
  if (!admin || !(word = strstr(admin, "://admin:")))
    return bed_fail(run, "the URI of the anchor's administrator is not set");
  word += strlen("://admin:");
  if (mysql)
    return bed_shell(run,
                     "MYSQL_PWD='%.*s' timeout 10 mariadb --no-defaults -h 127.0.0.1 -P %u -u admin "
                     ">>'%s/anchor.log' 2>&1 <<'END'\n%s\nEND",
                     (int)strcspn(word, "@"), word, (unsigned)port_of(admin), run->folder, sql);
  return bed_shell(run, "timeout 10 psql -X -q -v ON_ERROR_STOP=1 '%s' >>'%s/anchor.log' 2>&1 <<'END'\n%s\nEND", admin,
                   run->folder, sql);
}

/* ---- Workers ---- */

void bed_note(struct run *run, enum what what, uint32_t party) {
  history_say(run->mine, (struct reported){.what = what, .at = dibs__tick_now().ns, .lease = party});
}

bool bed_begin(struct run *run) {
  snprintf(run->folder, sizeof run->folder, "/tmp/dibs-tiers-XXXXXX");
  if (!mkdtemp(run->folder)) return bed_fail(run, "cannot create a folder in /tmp");
  run->mine = history_make(run->folder, 0);
  run->notes = beliefs_open(run->folder, 0, false);
  if (strcmp(run->anchor, "sqlite:") == 0) snprintf(run->anchor, sizeof run->anchor, "sqlite:%s/x.db", run->folder);
  run->began = dibs__tick_now();
  return run->mine && run->notes && (run->lone || bed_redis_start(run, 0));
}

/* Adds a proxy before the server after the @ of a URI, and makes the URI through it. */
static bool add_proxy(struct run *run, struct worker *worker, enum side side, const char *uri, char through[TEXT]) {
  const char *at = strrchr(uri, '@'), *path = at ? strchr(at, '/') : NULL;
  char to[128], why[PROXY_WHY];
  snprintf(through, TEXT, "%s", uri);
  if (!path) return true; /* a file */
  snprintf(to, sizeof to, "%.*s", (int)(path - at - 1), at + 1);
  enum frame_protocol protocol = side == SIDE_REDIS                 ? FRAME_REDIS
                                 : strncmp(uri, "mysql", 5) == 0    ? FRAME_MYSQL
                                 : strncmp(uri, "postgres", 8) == 0 ? FRAME_POSTGRES
                                                                    : FRAME_RAW;
  worker->proxied[side] = proxied_start(&(struct proxy_options){.to = to, .protocol = protocol}, why);
  if (!worker->proxied[side]) return bed_fail(run, "%s", why);
  snprintf(through, TEXT, "%.*s127.0.0.1:%u%s", (int)(at + 1 - uri), uri, (unsigned)proxied_port(worker->proxied[side]),
           path);
  return true;
}

dibs_store *bed_observer(struct run *run) {
  char uri[1536];
  dibs_error error;
  snprintf(uri, sizeof uri, "redis://dibs:dibs-secret@127.0.0.1:%u/0,%s%s%s", (unsigned)run->redis[0].port, run->anchor,
           strchr(run->anchor, '?') ? "&" : "?", run->parameters);
  if (!run->observer && dibs_open(uri, NULL, &run->observer, &error) != DIBS_OK) bed_fail(run, "%s", error.text);
  return run->observer;
}

static bool make_uri(struct run *run, uint32_t party) {
  struct worker *worker = &run->at[party];
  char redis[TEXT], through[SIDES][TEXT], anchor[TEXT];
  bool odd = party == 1 || (run->most_odd && party < run->workers);
  const char *user = run->odd >> SIDE_REDIS & 1 && odd ? "odd" : "dibs", *rest = strchr(run->anchor, '@');
  snprintf(anchor, sizeof anchor, "%s", run->anchor);
  if (run->odd >> SIDE_ANCHOR & 1 && odd && rest)
    snprintf(anchor, sizeof anchor, "%.*s://odd:dibs-secret%s", (int)strcspn(run->anchor, ":"), run->anchor, rest);
  if (!add_proxy(run, worker, SIDE_ANCHOR, anchor, through[SIDE_ANCHOR])) return false;
  if (run->lone) {
    snprintf(worker->uri, sizeof worker->uri, "%s", through[SIDE_ANCHOR]);
    return true;
  }
  snprintf(redis, sizeof redis, "redis://%s:dibs-secret@127.0.0.1:%u/0", user, (unsigned)run->redis[0].port);
  if (!add_proxy(run, worker, SIDE_REDIS, redis, through[SIDE_REDIS])) return false;
  snprintf(worker->uri, sizeof worker->uri, "%s,%s%s%s", through[SIDE_REDIS], through[SIDE_ANCHOR],
           strchr(run->anchor, '?') ? "&" : "?", run->parameters);
  return true;
}

static bool spawn(struct run *run, uint32_t party) {
  struct worker *worker = &run->at[party];
  struct tiers_job job = run->job;
  char numbers[160];
  if (!make_uri(run, party)) return false;
  snprintf(numbers, sizeof numbers, "%u %u %u %lld %lld %lld %d %" PRIu64, party, job.threads, job.names,
           (long long)job.ttl_ms, (long long)job.hold_ms, (long long)job.pause_ms, (int)job.how, job.seed);
  fflush(stdout);
  worker->pid = fork();
  if (worker->pid == 0) {
    execl("/proc/self/exe", "tiers", "--worker", worker->uri, run->folder, numbers, (char *)NULL);
    _exit(127);
  }
  return worker->pid > 0 || bed_fail(run, "cannot start a process");
}

bool bed_spawn(struct run *run) {
  for (uint32_t p = 1; p <= run->workers; p++)
    if (!spawn(run, p)) return false;
  return true;
}

bool bed_proxy(struct run *run, enum side side, uint32_t party, const char *line) {
  char answer[PROXY_LINE];
  for (uint32_t p = 1; p <= run->workers; p++) {
    struct proxied *proxied = run->at[p].proxied[side];
    if ((party != 0 && p != party) || !proxied) continue;
    if (!proxied_say(proxied, line, answer)) return bed_fail(run, "the proxy refused %s: %s", line, answer);
  }
  return true;
}

int64_t bed_fired(struct run *run, enum side side) {
  int64_t all = 0;
  for (uint32_t p = 1; p <= run->workers; p++)
    if (run->at[p].proxied[side]) all += proxied_stat(run->at[p].proxied[side], "fired");
  return all;
}

bool bed_aim(struct run *run, uint32_t party, size_t nth, bool cut) {
  char line[64];
  snprintf(line, sizeof line, "to 127.0.0.1:%u", (unsigned)run->redis[nth].port);
  return bed_proxy(run, SIDE_REDIS, party, line) && (!cut || bed_proxy(run, SIDE_REDIS, party, "cut"));
}

bool bed_stop(struct run *run, uint32_t party, int64_t ms) {
  if (run->at[party].pid <= 0) return true; /* the worker was killed */
  bed_note(run, REPORTED_STOP, party);
  if (kill(run->at[party].pid, SIGSTOP) != 0) return bed_fail(run, "cannot stop worker %u", party);
  dibs__nap_ms(ms);
  kill(run->at[party].pid, SIGCONT);
  bed_note(run, REPORTED_GO_ON, party);
  return true;
}

bool bed_kill(struct run *run, uint32_t party) {
  struct worker *worker = &run->at[party];
  if (worker->pid <= 0 || run->workers + 1 == TIERS_PARTIES) return true;
  dibs__tick by = dibs__tick_add_ms(dibs__tick_now(), run->soon_ms);
  kill(worker->pid, SIGKILL);
  waitpid(worker->pid, NULL, 0);
  worker->pid = 0;
  run->gone |= 1u << party;
  uint32_t another = ++run->workers;
  if (!spawn(run, another)) return false;
  while (bed_grants(run, another), !run->seen[another]) {
    if (!dibs__tick_before(dibs__tick_now(), by)) return bed_fail(run, "worker %u does not start", another);
    dibs__nap_ms(TIERS_POLL_MS);
  }
  return true;
}

int bed_end_workers(struct run *run) {
  int bad = 0;
  dibs__tick by = dibs__tick_add_ms(dibs__tick_now(), ENDS_MS);
  for (uint32_t p = 1; p <= run->workers; p++)
    if (run->at[p].pid > 0) kill(run->at[p].pid, SIGTERM);
  for (uint32_t p = 1; p <= run->workers; p++) {
    int status = 0;
    pid_t pid = run->at[p].pid, gone;
    if (pid <= 0) continue;
    while ((gone = waitpid(pid, &status, WNOHANG)) == 0 && dibs__tick_before(dibs__tick_now(), by)) dibs__nap_ms(5);
    if (gone == 0) {
      printf("BROKEN  worker %u does not end; killing it\n", p);
      kill(pid, SIGABRT); /* leaves a core file if the system is configured for it */
      waitpid(pid, &status, 0);
    } else if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
      printf("BROKEN  worker %u ended with status %#x\n", p, (unsigned)status);
    } else {
      continue;
    }
    bad++;
  }
  return bad;
}

void bed_end(struct run *run, bool keep) {
  dibs_close(run->observer);
  beliefs_close(run->notes);
  for (uint32_t p = 1; p <= run->workers; p++)
    for (int side = 0; side < SIDES; side++)
      if (run->at[p].proxied[side]) proxied_stop(run->at[p].proxied[side]);
  for (size_t nth = 0; nth < REDIS_COUNT; nth++)
    if (run->redis[nth].dir[0])
      bed_shell(run, "'%s' remove --dir '%s' >/dev/null 2>&1", script(run), run->redis[nth].dir);
  if (!keep) bed_shell(run, "rm -rf '%s'", run->folder);
}
