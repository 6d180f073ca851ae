/* SPDX-License-Identifier: MIT */
/*
 * A storm of requests at one store, and the check of what its clients believed (belief.h).
 *
 *   storm URI [--seconds S] [--processes N] [--threads N] [--names N] [--seed X] [--fault HOW] [--proxy] [--calm]
 *             [--away pause|kill] [--tiers] [--strict] [--counted] [--keep]
 *
 * Beside the clients (storm_client.c) the parent stops processes past their ttls, continues them, kills them and starts
 * others.
 *
 *   --fault HOW   loses answers inside the clients (fault.h): unknown-before, unknown-after, dead, dead-after
 *   --proxy       each process reaches its servers through proxies that cut requests before and after they arrive,
 * delay them, and fall silent
 *   --away HOW    stops the server past the ttl, or kills and starts it: the server of with.sh --private, or one of the
 *                 servers of test/redlock/nodes.sh
 *   --tiers       URI is the anchor; the Redis of nodes.sh is the first tier.  --strict: no two may hold
 *   --counted     all leases are counted, and on every other name some are exclusive
 *   --calm        stops and kills no process
 *   --keep        keeps the folder with the beliefs, as after a failed run
 *
 * The printed seed draws the same actions again; real processes and servers have their own timing.  Exit status 0: no
 * rule was broken.
 */
#include "storm.h"
#include "drivers/wrap/shim.h"
#include "proxy.h"
#include "store/registry.h"

#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum {
  PROCESSES_MAX = 16,
  SIDES = 2,
  HANGS_MS = 60000,
  STOP_SPAN_MS = 2000,
  AWAY_MS = 1500,
  ROUNDS = 4 /* on a slow machine a run may end before the first grant */
};

static struct {
  char uri[STORM_URI], folder[64];
  const char *fault, *away;
  uint32_t seconds, processes, threads, names;
  uint64_t seed;
  bool calm, proxy, tiers, strict, counted, keep;
} plan = {.seconds = 8, .processes = 3, .threads = 6, .names = 8, .seed = 1};
static dibs__tick deadline;
static struct beliefs *notes; /* events */
static uint64_t chances;
static int bad; /* what the parent could not do, or what it found wrong */

struct child {
  pid_t pid;
  uint32_t number;
  struct proxied *proxied[SIDES]; /* NULL: none */
  dibs__tick well_at;             /* when the process continues, or its proxies pass again; 0: it works */
  struct belief_event *event;
  bool stopped;
};
static struct child children[PROCESSES_MAX];
static uint32_t spawned;

static void wrong(const char *what) {
  printf("BROKEN  %s\n", what);
  bad++;
}

/* ---- URIs ---- */

static void append(char *uri, const char *parameters) {
  size_t length = strlen(uri);
  snprintf(uri + length, STORM_URI - length, "%c%s", strchr(uri, '?') ? '&' : '?', parameters);
}

/* "sqlite:" and "memory:" get a path of their own. */
static bool make_path(void) {
  size_t length;
  snprintf(plan.folder, sizeof plan.folder, "/tmp/dibs-storm-XXXXXX");
  if (!mkdtemp(plan.folder)) return false;
  length = strlen(plan.uri);
  if (length > 0 && plan.uri[length - 1] == ':')
    snprintf(plan.uri + length, sizeof plan.uri - length, "%s%s", plan.folder,
             strncmp(plan.uri, "sqlite:", 7) == 0 ? "/x.db" : "");
  return true;
}

static bool in_memory(void) {
  return strncmp(plan.uri, "memory:", 7) == 0;
}

/* Starts a proxy before the server after the @ of a URI; `uri` then leads through it. false: the URI has no such
 * server. */
static bool lead_through(char uri[STORM_URI], struct proxied **proxied) {
  char *scheme = strstr(uri, "://"), *at = strrchr(uri, '@'), to[128], why[PROXY_WHY], rest[512];
  char *host = at ? at + 1 : scheme ? scheme + 3 : uri;
  size_t length = scheme ? strcspn(host, "/?") : 0;
  if (length == 0) return true; /* a file */
  snprintf(to, sizeof to, "%.*s", (int)length, host);
  snprintf(rest, sizeof rest, "%s", host + length);
  enum frame_protocol protocol = strncmp(uri, "redis", 5) == 0      ? FRAME_REDIS
                                 : strncmp(uri, "mysql", 5) == 0    ? FRAME_MYSQL
                                 : strncmp(uri, "postgres", 8) == 0 ? FRAME_POSTGRES
                                                                    : FRAME_RAW;
  *proxied = proxied_start(&(struct proxy_options){.to = to, .protocol = protocol}, why);
  if (!*proxied) {
    wrong(why);
    return false;
  }
  snprintf(host, STORM_URI - (size_t)(host - uri), "127.0.0.1:%u%s", (unsigned)proxied_port(*proxied), rest);
  return true;
}

static bool first_node(char folder[128], unsigned *port, uint32_t nth) {
  const char *nodes = getenv("DIBS_REDLOCK_NODES");
  for (uint32_t n = 0; nodes && *nodes; n++) {
    bool found = sscanf(nodes, "%127s %u", folder, port) == 2;
    if (n == nth) return found;
    nodes = strchr(nodes, '\n') ? strchr(nodes, '\n') + 1 : "";
  }
  return false;
}

static bool make_uri(struct child *child, char uri[STORM_URI]) {
  char anchor[STORM_URI], folder[128], parameters[160];
  unsigned port;
  snprintf(uri, STORM_URI, "%s", plan.uri);
  if (plan.tiers) {
    memcpy(anchor, uri, sizeof anchor);
    if (!first_node(folder, &port, 0)) return false;
    snprintf(uri, STORM_URI, "redis://dibs:dibs-secret@127.0.0.1:%u/0", port);
    if (plan.proxy && !lead_through(uri, &child->proxied[1])) return false;
    if (plan.proxy && !lead_through(anchor, &child->proxied[0])) return false;
    size_t length = strlen(uri);
    snprintf(uri + length, STORM_URI - length, ",%s", anchor);
    append(uri,
           plan.strict ? "tiers.wait=300&tiers.dwell=1000&tiers.strictness=strict" : "tiers.wait=300&tiers.dwell=1000");
  } else if (plan.proxy && !lead_through(uri, &child->proxied[0])) {
    return false;
  }
  if (!plan.fault) return true;
  memmove(uri + 6, uri, strlen(uri) + 1);
  memcpy(uri, "fault+", 6);
  snprintf(parameters, sizeof parameters,
           "fault.on=run,connect&fault.rate=40&fault.how=%s&fault.events=100&fault.seed=%" PRIu64, plan.fault,
           plan.seed * 31 + child->number);
  append(uri, parameters);
  return true;
}

/* ---- Processes ---- */

static void fill_job(struct storm_job *job, const char *uri, uint32_t number) {
  *job = (struct storm_job){.process = number,
                            .threads = plan.threads,
                            .names = plan.names,
                            .seed = plan.seed,
                            .deadline = deadline,
                            .counted = plan.counted};
  memcpy(job->folder, plan.folder, sizeof job->folder);
  snprintf(job->uri, sizeof job->uri, "%s", uri);
}

static void stop_proxies(struct child *child) {
  for (int side = 0; side < SIDES; side++) {
    if (child->proxied[side]) proxied_stop(child->proxied[side]);
    child->proxied[side] = NULL;
  }
}

static void spawn(struct child *child) {
  char uri[STORM_URI], numbers[160];
  *child = (struct child){.number = ++spawned};
  if (!make_uri(child, uri)) {
    wrong("a process has no proxy to its store");
    return;
  }
  snprintf(numbers, sizeof numbers, "%u %u %u %" PRIu64 " %" PRId64 " %d", child->number, plan.threads, plan.names,
           plan.seed, deadline.ns, plan.counted);
  fflush(stdout);
  child->pid = fork();
  if (child->pid == 0) {
    execl("/proc/self/exe", "storm", "--process", uri, plan.folder, numbers, (char *)NULL);
    _exit(127);
  }
  if (child->pid < 0) wrong("cannot start a process");
}

static int run_process(char *argv[]) {
  struct storm_job job = {.process = 0};
  int counted;
  snprintf(job.uri, sizeof job.uri, "%s", argv[2]);
  snprintf(job.folder, sizeof job.folder, "%s", argv[3]);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (sscanf(argv[4], "%u %u %u %" SCNu64 " %" SCNd64 " %d", &job.process, &job.threads, &job.names, &job.seed,
             &job.deadline.ns, &counted) != 6)
    return 2;
  job.counted = counted != 0;
  return storm_process(&job);
}

static void tell_proxies(struct child *child, const char *line) {
  char answer[PROXY_LINE];
  for (int side = 0; side < SIDES; side++)
    if (child->proxied[side] && !proxied_say(child->proxied[side], line, answer)) wrong(answer);
}

static void restore(struct child *child) {
  if (child->stopped)
    kill(child->pid, SIGCONT);
  else
    tell_proxies(child, "pass");
  belief_event_over(child->event);
  child->well_at = DIBS__TICK_ZERO;
  child->stopped = false;
}

static void disturb(void) {
  static const char *const lines[] = {"cut",
                                      "cut-after-request times=6 name-",
                                      "cut-before-request times=4 name-",
                                      "orphan-request nth=2 times=3 name- 400",
                                      "hold-request nth=2 times=3 name- 900",
                                      "half-open"};
  struct child *child = &children[storm_below(&chances, plan.processes)];
  uint32_t kind = storm_below(&chances, 100);
  if (child->well_at.ns != 0 || child->pid <= 0) return;
  if (child->proxied[0] && (kind < 60 || plan.calm)) {
    child->event = belief_event(notes, BELIEF_STOPPED, child->number, 0);
    tell_proxies(child, lines[storm_below(&chances, sizeof lines / sizeof *lines)]);
  } else if (plan.calm) {
    return;
  } else if (kind < 85) {
    child->event = belief_event(notes, BELIEF_STOPPED, child->number, 0);
    child->stopped = true;
    kill(child->pid, SIGSTOP);
  } else {
    belief_event(notes, BELIEF_STOPPED, child->number, 0); /* until `pass` */
    kill(child->pid, SIGKILL);
    waitpid(child->pid, NULL, 0);
    stop_proxies(child);
    spawn(child);
    return;
  }
  child->well_at = dibs__tick_add_ms(dibs__tick_now(), 200 + storm_below(&chances, STOP_SPAN_MS));
}

/* ---- The server ---- */

static bool control_server(const char *folder, const char *verb) {
  const char *script = getenv("DIBS_TEST_SERVERS_SCRIPT");
  char command[512];
  if (!script) script = getenv("DIBS_REDLOCK_SERVERS");
  if (!script || !folder) return false;
  snprintf(command, sizeof command, "'%s' %s --dir '%s' >/dev/null", script, verb, folder);
  return system(command) == 0;
}

static void disturb_server(void) {
  char node[128];
  unsigned port;
  const char *folder = getenv("DIBS_TEST_SERVERS_DIR");
  bool kills = strcmp(plan.away, "kill") == 0;
  if (first_node(node, &port, plan.tiers ? 0 : storm_below(&chances, 3))) folder = node;
  struct belief_event *event = belief_event(notes, BELIEF_AWAY, 0, 0);
  bool fine = control_server(folder, kills ? "kill" : "pause");
  dibs__nap_ms(kills ? storm_below(&chances, 300) : AWAY_MS + storm_below(&chances, 500));
  fine = control_server(folder, kills ? "start" : "resume") && fine;
  belief_event_over(event);
  if (!fine) wrong("cannot stop and start the server");
}

/* ---- The run ---- */

static void look_after(void) {
  dibs__tick next = dibs__tick_add_ms(dibs__tick_now(), 300);
  dibs__tick outage = dibs__tick_add_ms(next, plan.seconds > 10 ? 2000 : plan.seconds * 400);
  while (dibs__tick_before(dibs__tick_now(), deadline)) {
    dibs__nap_ms(10);
    dibs__tick now = dibs__tick_now();
    for (uint32_t c = 0; c < plan.processes; c++)
      if (children[c].well_at.ns != 0 && dibs__tick_before(children[c].well_at, now)) restore(&children[c]);
    if (dibs__tick_before(now, next)) continue;
    if (plan.away && dibs__tick_before(outage, now)) {
      disturb_server();
      outage = dibs__tick_add_ms(dibs__tick_now(), 4000 + storm_below(&chances, 1000));
    } else {
      disturb();
    }
    next = dibs__tick_add_ms(dibs__tick_now(), 100 + storm_below(&chances, 500));
  }
}

/* To find the cause: the name and the system call of each thread, and with gdb its stack. */
static void print_threads(pid_t pid) {
  char command[400];
  snprintf(
      command, sizeof command,
      "for t in /proc/%d/task/*; do echo \"# $(cat $t/comm) $(cat $t/syscall)\"; done 2>&1; ! command -v gdb >/dev/null"
      " || timeout 30 gdb -p %d -batch -ex 'thread apply all bt 16' 2>/dev/null | grep '^#\\|^Thread'",
      (int)pid, (int)pid);
  fflush(stdout);
  if (system(command) != 0) printf("# the threads of process %d can't be read\n", (int)pid);
}

static void end_processes(void) {
  dibs__tick by = dibs__tick_add_ms(dibs__tick_now(), HANGS_MS);
  for (uint32_t c = 0; c < plan.processes; c++)
    if (children[c].well_at.ns != 0) restore(&children[c]);
  for (uint32_t c = 0; c < plan.processes; c++) {
    int status = 0;
    pid_t pid = children[c].pid, gone;
    if (pid <= 0) continue;
    while ((gone = waitpid(pid, &status, WNOHANG)) == 0 && dibs__tick_before(dibs__tick_now(), by)) dibs__nap_ms(5);
    if (gone == 0) {
      print_threads(pid);
      kill(pid, SIGABRT); /* leaves a core file if the system is configured for it */
      waitpid(pid, &status, 0);
      wrong("a process hangs; killing it");
    } else if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
      printf("BROKEN  process %u ended with status %#x\n", children[c].number, (unsigned)status);
      bad++;
    }
    stop_proxies(&children[c]);
  }
}

static void run_storm(void) {
  struct storm_job job;
  deadline = dibs__tick_add_ms(dibs__tick_now(), plan.seconds * INT64_C(1000));
  if (in_memory()) {
    struct child alone = {.number = ++spawned};
    char uri[STORM_URI];
    make_uri(&alone, uri);
    fill_job(&job, uri, alone.number);
    bad += storm_process(&job) != 0;
  } else {
    for (uint32_t c = 0; c < plan.processes; c++) spawn(&children[c]);
    look_after();
    end_processes();
  }
}

/* Returns the number of beliefs. */
static uint64_t judge(void) {
  bool session = strstr(plan.uri, "lock=advisory") || strstr(plan.uri, "lock=named");
  struct belief_rules rules = {.session = session, .moves = plan.tiers && !plan.strict, .forgets = plan.tiers};
  struct belief_sums sums;
  int broken = beliefs_check(plan.folder, &rules, &sums);
  printf("storm: %" PRIu64 " requests of %u processes, %" PRIu64 " with an id that was used before; %" PRIu64
         " beliefs, %" PRIu64 " of them right after another client's, %" PRIu64 " lost for a reason, %" PRIu64
         " pairs excused; %d broken\n",
         sums.requested, sums.processes, sums.repeated, sums.believed, sums.followed, sums.lost, sums.excused, broken);
  bad += broken != 0;
  return sums.believed;
}

/* ---- The command line ---- */

static bool number(const char *text, uint64_t most, uint64_t *to) {
  char *end;
  errno = 0;
  *to = strtoull(text, &end, 10);
  return errno == 0 && *text >= '0' && *text <= '9' && !*end && *to > 0 && *to <= most;
}

static bool parse_flag(const char *name) {
  struct {
    const char *name;
    bool *to;
  } flags[] = {{"--calm", &plan.calm},     {"--proxy", &plan.proxy},     {"--tiers", &plan.tiers},
               {"--strict", &plan.strict}, {"--counted", &plan.counted}, {"--keep", &plan.keep}};
  for (size_t f = 0; f < sizeof flags / sizeof *flags; f++)
    if (strcmp(name, flags[f].name) == 0) return *flags[f].to = true;
  return false;
}

static bool parse_option(const char *name, const char *value) {
  struct {
    const char *name;
    uint32_t *to, most;
  } options[] = {{"--seconds", &plan.seconds, 86400},
                 {"--processes", &plan.processes, PROCESSES_MAX},
                 {"--threads", &plan.threads, STORM_THREADS},
                 {"--names", &plan.names, BELIEF_NAMES}};
  uint64_t n = 0;
  if (strcmp(name, "--fault") == 0) return (plan.fault = value) != NULL;
  if (strcmp(name, "--away") == 0)
    return (plan.away = value) != NULL && (strcmp(value, "pause") == 0 || strcmp(value, "kill") == 0);
  if (!value) return false;
  if (strcmp(name, "--seed") == 0) return number(value, UINT64_MAX, &plan.seed);
  for (size_t o = 0; o < sizeof options / sizeof *options; o++)
    if (strcmp(name, options[o].name) == 0 && number(value, options[o].most, &n)) {
      *options[o].to = (uint32_t)n;
      return true;
    }
  return false;
}

static bool parse(int argc, char *argv[]) {
  if (argc < 2) return false;
  snprintf(plan.uri, sizeof plan.uri, "%s", argv[1]);
  for (int i = 2; i < argc; i++) {
    if (parse_flag(argv[i])) continue;
    if (!parse_option(argv[i], i + 1 < argc ? argv[i + 1] : NULL)) return false;
    i++;
  }
  return true;
}

int main(int argc, char *argv[]) {
  char command[128];
  dibs__driver_add(&dibs__fault_driver);
  if (argc == 5 && strcmp(argv[1], "--process") == 0) return run_process(argv);
  setvbuf(stdout, NULL, _IOLBF, 0);
  if (!parse(argc, argv) || !make_path()) {
    fputs(
        "usage: storm URI [--seconds S] [--processes N] [--threads N] [--names N] [--seed X] [--fault HOW] [--proxy]\n"
        "             [--calm] [--away pause|kill] [--tiers] [--strict] [--counted] [--keep]\n",
        stderr);
    return 2;
  }
  printf("storm: %s%.*s, %u processes x %u threads, %u names, %u s, seed %" PRIu64 "\n",
         plan.tiers ? "redis before " : "", (int)strcspn(plan.uri, ":/"), plan.uri, in_memory() ? 1 : plan.processes,
         plan.threads, plan.names, plan.seconds, plan.seed);
  chances = plan.seed;
  notes = beliefs_open(plan.folder, 0, false);
  bool proved = false;
  for (int round = 0; notes && !proved && bad == 0 && round < ROUNDS; round++) {
    run_storm();
    proved = judge() > 0;
  }
  if (!proved && bad == 0) wrong("no client was granted a lease");
  beliefs_close(notes);
  if (bad > 0) {
    printf("storm: something is broken; beliefs in %s, seed %" PRIu64 "\n", plan.folder, plan.seed);
    return 1;
  }
  snprintf(command, sizeof command, "rm -rf %s", plan.folder);
  return plan.keep || system(command) == 0 ? 0 : 1;
}
