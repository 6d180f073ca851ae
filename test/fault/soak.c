/* SPDX-License-Identifier: MIT */
/*
 * A mixed load of any duration under which nothing may grow: memory, descriptors and threads of the processes, rows and
 * keys of the store.
 *
 *   soak URI [--seconds S] [--processes N] [--threads N] [--restart S] [--seed X]
 *
 * --restart: kills and starts the server of with.sh --private every S seconds.  "sqlite:" is a new file, "memory:" one
 * process.  In a URI '%' is the port of the first Redis of test/redlock/nodes.sh: "redis://...:%/0,...".
 * DIBS_SOAK_SECONDS replaces --seconds; the progress lines are also appended to the file DIBS_SOAK_PROGRESS:
 * script/test --soak MINUTES.
 *
 * After a warm-up (a third of the time, four minutes at most) the parent samples each number repeatedly.  A number
 * grows if the regression line through all samples rises by more than the tolerance over the rest of the run, and the
 * median of the last quarter exceeds that of the first quarter by more than the tolerance, too.  So neither a peak nor
 * a step early in the run counts as growth.
 */
#include "soak.h"

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum {
  PROCESSES_MAX = 8,
  LOOKS_MAX = 2048,
  NUMBERS_MAX = 3 + SOAK_TABLES,
  WARM_MAX_MS = 240000, /* the store sweeps every one to three minutes */
  SWEPT_S = 200,
  TOKENS_S = 3600 + SWEPT_S, /* what a call added is remembered for an hour */
  NEW_KEYS_S = 600,          /* a run of this length sees them */
  KEYS = 16,
  SMOKE_S = 60,      /* a shorter run has twice the tolerance: on a slow machine its warm-up ends too soon */
  LINES = 12,        /* progress lines of a run, at least one every 30 s */
  MEMORY_KB = 768,   /* tolerance for the memory of a process: arenas fill slowly */
  DESCRIPTORS = 3,   /* a process: a connection that is made again, a handle that is open at this moment */
  THREADS = 3,       /* a process, as above */
  ROWS = 200,        /* of a table or keys: rows that have ended and are swept a moment later; */
  ROWS_PERCENT = 50, /* and of the usual number */
  ENDS_MS = 60000
};

static struct {
  char uri[SOAK_URI], folder[64];
  uint32_t seconds, processes, threads, restart;
  uint64_t seed;
} plan = {.seconds = 12, .processes = 3, .threads = 3, .seed = 1};

struct number {
  char name[SOAK_TABLE];
  double tolerance, percent;
  uint32_t count;
  double at_s[LOOKS_MAX], value[LOOKS_MAX];
};
static struct number numbers[NUMBERS_MAX];
static uint32_t number_count;
static pid_t pids[PROCESSES_MAX];
static struct soak_done *done; /* shared with the processes */
static dibs__tick began;
static int bad;

static void wrong(const char *what) {
  printf("BROKEN  %s\n", what);
  bad++;
}
static double seconds(void) {
  return (double)(dibs__tick_now().ns - began.ns) / 1e9;
}

static uint64_t calls(enum soak_kind kind) {
  return atomic_load(&done->done[kind]);
}

/* ---- Looking ---- */

static void note(const char *name, double value, double tolerance, double percent) {
  uint32_t n = 0;
  while (n < number_count && strcmp(numbers[n].name, name) != 0) n++;
  if (n == NUMBERS_MAX) return;
  if (n == number_count) {
    numbers[number_count++] = (struct number){.tolerance = tolerance, .percent = percent};
    snprintf(numbers[n].name, SOAK_TABLE, "%s", name);
  }
  struct number *number = &numbers[n];
  if (number->count == LOOKS_MAX) return;
  number->at_s[number->count] = seconds();
  number->value[number->count++] = value;
}

static double latest(const char *name) {
  for (uint32_t n = 0; n < number_count; n++)
    if (strcmp(numbers[n].name, name) == 0 && numbers[n].count > 0) return numbers[n].value[numbers[n].count - 1];
  return 0;
}

/* One line of /proc/PID/status; 0: it has no such line. */
static long status_of(pid_t pid, const char *what) {
  char path[64], line[256];
  long value = 0;
  snprintf(path, sizeof path, "/proc/%d/status", (int)pid);
  FILE *file = fopen(path, "r");
  while (file && fgets(line, sizeof line, file))
    if (strncmp(line, what, strlen(what)) == 0) value = strtol(line + strlen(what), NULL, 10);
  if (file) fclose(file);
  return value;
}

static long descriptors_of(pid_t pid) {
  char path[64];
  long count = 0;
  snprintf(path, sizeof path, "/proc/%d/fd", (int)pid);
  DIR *dir = opendir(path);
  while (dir && readdir(dir)) count++;
  if (dir) closedir(dir);
  return count - 2; /* . and .. */
}

/* Rows that are swept some time after a call made them. */
struct swept {
  enum soak_kind kind; /* of the call */
  double within_s;
  double at_s[LOOKS_MAX], calls[LOOKS_MAX];
  uint32_t count;
};
static struct swept answers = {.kind = SOAK_once, .within_s = SWEPT_S};
static struct swept tokens = {.kind = SOAK_tasks, .within_s = TOKENS_S};

/* As many rows may exist as were made since then; more are overdue.  (Their number varies with the sweeps and with the
 * speed of the machine.) */
static double overdue(struct swept *s, double rows) {
  double now_s = seconds(), all = (double)calls(s->kind), before = 0;
  for (uint32_t i = 0; i < s->count && s->at_s[i] < now_s - s->within_s; i++) before = s->calls[i];
  if (s->count < LOOKS_MAX) {
    s->at_s[s->count] = now_s;
    s->calls[s->count++] = all;
  }
  return rows > all - before ? rows - (all - before) : 0;
}

static void look(void) {
  struct soak_rows rows;
  double memory = 0, descriptors = 0, threads = 0, processes = plan.processes;
  for (uint32_t p = 0; p < plan.processes; p++) {
    memory += (double)status_of(pids[p], "RssAnon:");
    threads += (double)status_of(pids[p], "Threads:");
    descriptors += (double)descriptors_of(pids[p]);
  }
  note("memory", memory, MEMORY_KB * processes, 0);
  note("descriptors", descriptors, DESCRIPTORS * processes, 0);
  note("threads", threads, THREADS * processes, 0);
  if (!soak_rows(plan.uri, &rows)) {
    if (!plan.restart) wrong("cannot count the rows of the store");
    return;
  }
  for (uint32_t t = 0; t < rows.tables; t++) {
    double count = (double)rows.count[t];
    if (strcmp(rows.table[t], "dibs_once") == 0 && plan.seconds >= NEW_KEYS_S)
      note("once, overdue", overdue(&answers, count), ROWS, ROWS_PERCENT);
    else if (strcmp(rows.table[t], "dibs_task_token") == 0)
      note("tokens, overdue", overdue(&tokens, count), ROWS, ROWS_PERCENT);
    else
      note(rows.table[t], count, ROWS, ROWS_PERCENT);
  }
}

static void print_progress_to(FILE *to) {
  bool tiers = strchr(plan.uri, ',') && strncmp(plan.uri, "redlock", 7) != 0;
  uint64_t all = 0;
  for (int kind = 0; kind < SOAK_KIND_COUNT; kind++) all += calls((enum soak_kind)kind);
  fprintf(to,
          "soak %.*s: %4.0f of %u s: %" PRIu64 " calls, %" PRIu64 " failed; %.1f MB, %.0f descriptors, %.0f threads;",
          tiers ? 5 : (int)strcspn(plan.uri, ":"), tiers ? "tiers" : plan.uri, seconds(), plan.seconds, all,
          atomic_load(&done->failed), latest("memory") / 1024, latest("descriptors"), latest("threads"));
  for (uint32_t n = 3; n < number_count; n++) {
    const char *name = numbers[n].name;
    if (latest(name) > 0) fprintf(to, " %s %.0f", strncmp(name, "dibs_", 5) == 0 ? name + 5 : name, latest(name));
  }
  fputc('\n', to);
}

static void print_progress(void) {
  const char *path = getenv("DIBS_SOAK_PROGRESS");
  FILE *file = path ? fopen(path, "a") : NULL;
  print_progress_to(stdout);
  if (file) print_progress_to(file);
  if (file) fclose(file);
}

/* ---- Judging ---- */

static int by_value(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return x < y ? -1 : x > y;
}
static double median(const double *values, uint32_t count) {
  double sorted[LOOKS_MAX];
  memcpy(sorted, values, count * sizeof *values);
  qsort(sorted, count, sizeof *sorted, by_value);
  return count > 0 ? sorted[count / 2] : 0;
}

/* How much the regression line through all points rises from the first to the last. */
static double rise(const double *at, const double *value, uint32_t count) {
  double n = count, x = 0, y = 0, xx = 0, xy = 0;
  for (uint32_t i = 0; i < count; i++) {
    double from = at[i] - at[0];
    x += from;
    y += value[i];
    xx += from * from;
    xy += from * value[i];
  }
  double divisor = n * xx - x * x;
  return divisor > 0 ? (n * xy - x * y) / divisor * (at[count - 1] - at[0]) : 0;
}

static void judge_number(const struct number *number, double warm_s) {
  uint32_t from = 0;
  while (from < number->count && number->at_s[from] < warm_s) from++;
  uint32_t count = number->count - from, quarter = count / 4;
  if (quarter < 1) {
    printf("BROKEN  %s was sampled only %u times\n", number->name, count);
    bad++;
    return;
  }
  const double *value = number->value + from;
  double usual = median(value, count), risen = rise(number->at_s + from, value, count);
  double first = median(value, quarter), last = median(value + count - quarter, quarter);
  double tolerance = (plan.seconds < SMOKE_S ? 2 : 1) * number->tolerance + usual * number->percent / 100;
  bool grows = risen > tolerance && last - first > tolerance;
  printf("  %-16s %10.0f, then %10.0f; trend %+8.0f of %.0f allowed%s\n", number->name, first, last, risen, tolerance,
         grows ? "  GROWS" : "");
  if (!grows) return;
  printf("BROKEN  %s grows\n", number->name);
  bad++;
}

static void judge(double warm_s) {
  static const char *const names[] = {
#define SOAK_KIND(name) #name,
      SOAK_KINDS(SOAK_KIND)
#undef SOAK_KIND
  };
  for (int kind = 0; kind < SOAK_KIND_COUNT; kind++)
    printf("%s%" PRIu64 " %s", kind ? ", " : "  ", calls((enum soak_kind)kind), names[kind]);
  printf("; %" PRIu64 " failed\n  %.0f s after a warm-up of %.0f s, in %u samples: the first quarter, then the last\n",
         atomic_load(&done->failed), seconds() - warm_s, warm_s, numbers[0].count);
  for (uint32_t n = 0; n < number_count; n++) judge_number(&numbers[n], warm_s);
  if (calls(SOAK_leases) == 0) wrong("no client had a lease");
}

/* ---- Processes ---- */

static bool spawn(uint32_t p, dibs__tick deadline) {
  char numbers_text[160];
  snprintf(numbers_text, sizeof numbers_text, "%u %u %u %" PRIu64 " %" PRId64, p + 1, plan.threads,
           plan.seconds < NEW_KEYS_S ? KEYS : 0, plan.seed, deadline.ns);
  fflush(stdout);
  pids[p] = fork();
  if (pids[p] == 0) {
    execl("/proc/self/exe", "soak", "--process", plan.uri, plan.folder, numbers_text, (char *)NULL);
    _exit(127);
  }
  return pids[p] > 0;
}

static struct soak_done *share(const char *folder) {
  char path[128];
  snprintf(path, sizeof path, "%s/done", folder);
  FILE *file = fopen(path, "a+");
  void *map = MAP_FAILED;
  if (file && ftruncate(fileno(file), sizeof *done) == 0)
    map = mmap(NULL, sizeof *done, PROT_READ | PROT_WRITE, MAP_SHARED, fileno(file), 0);
  if (file) fclose(file);
  return map == MAP_FAILED ? NULL : map;
}

static int run_process(char *argv[]) {
  struct soak_job job = {.process = 0};
  struct soak_done *counts = share(argv[3]);
  snprintf(job.uri, sizeof job.uri, "%s", argv[2]);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (!counts || sscanf(argv[4], "%u %u %u %" SCNu64 " %" SCNd64, &job.process, &job.threads, &job.keys, &job.seed,
                        &job.deadline.ns) != 5)
    return 2;
  return soak_load(&job, counts);
}

static void end_processes(void) {
  dibs__tick by = dibs__tick_add_ms(dibs__tick_now(), ENDS_MS);
  for (uint32_t p = 0; p < plan.processes; p++) {
    int status = 0;
    pid_t gone;
    while ((gone = waitpid(pids[p], &status, WNOHANG)) == 0 && dibs__tick_before(dibs__tick_now(), by)) dibs__nap_ms(5);
    if (gone == 0) {
      kill(pids[p], SIGABRT);
      waitpid(pids[p], &status, 0);
    }
    if (gone == 0 || !WIFEXITED(status) || WEXITSTATUS(status) != 0) wrong("a process did not end with status 0");
  }
}

static void restart_server(void) {
  const char *script = getenv("DIBS_TEST_SERVERS_SCRIPT"), *dir = getenv("DIBS_TEST_SERVERS_DIR");
  char command[512];
  snprintf(command, sizeof command, "'%s' kill --dir '%s' >/dev/null 2>&1 && '%s' start --dir '%s' >/dev/null 2>&1",
           script ? script : "false", dir ? dir : "", script ? script : "false", dir ? dir : "");
  if (system(command) != 0) wrong("cannot kill and start the server");
}

static void run(void) {
  int64_t all_ms = plan.seconds * INT64_C(1000), warm_ms = all_ms / 3 < WARM_MAX_MS ? all_ms / 3 : WARM_MAX_MS;
  int64_t pause_ms = all_ms / 60 > 10000 ? 10000 : all_ms / 60;
  dibs__tick deadline, now, tell_at, restart_at;
  began = dibs__tick_now();
  deadline = dibs__tick_add_ms(began, all_ms);
  tell_at = dibs__tick_add_ms(began, all_ms / LINES);
  restart_at = plan.restart ? dibs__tick_add_ms(began, plan.restart * INT64_C(1000)) : DIBS__TICK_NEVER;
  for (uint32_t p = 0; p < plan.processes; p++)
    if (!spawn(p, deadline)) wrong("cannot start a process");
  dibs__nap_ms(pause_ms);
  while (now = dibs__tick_now(), dibs__tick_before(dibs__tick_add_ms(now, pause_ms), deadline)) {
    if (dibs__tick_before(restart_at, now)) {
      restart_server();
      restart_at = dibs__tick_add_ms(dibs__tick_now(), plan.restart * INT64_C(1000));
    }
    look();
    if (dibs__tick_before(tell_at, now)) {
      print_progress();
      tell_at = dibs__tick_add_ms(now, all_ms / LINES < 30000 ? all_ms / LINES : 30000);
    }
    dibs__nap_ms(pause_ms);
  }
  end_processes();
  judge((double)warm_ms / 1000);
}

/* ---- The command line ---- */

/* Replaces '%' by the port of the Redis of nodes.sh. */
static bool make_uri(void) {
  const char *nodes = getenv("DIBS_REDLOCK_NODES");
  char *mark = strchr(plan.uri, '%'), rest[SOAK_URI];
  unsigned port;
  size_t length = strlen(plan.uri);
  snprintf(plan.folder, sizeof plan.folder, "/tmp/dibs-soak-XXXXXX");
  if (!mkdtemp(plan.folder)) return false;
  if (plan.uri[length - 1] == ':') snprintf(plan.uri + length, SOAK_URI - length, "%s/x.db", plan.folder);
  if (strncmp(plan.uri, "memory:", 7) == 0) plan.processes = 1;
  if (!mark) return true;
  if (!nodes || sscanf(nodes, "%*s %u", &port) != 1) return false;
  snprintf(rest, sizeof rest, "%s", mark + 1);
  snprintf(mark, SOAK_URI - (size_t)(mark - plan.uri), "%u%s", port, rest);
  return true;
}

static bool parse(int argc, char *argv[]) {
  const char *longer = getenv("DIBS_SOAK_SECONDS");
  struct {
    const char *name;
    uint32_t *to;
    unsigned long most;
  } options[] = {{"--seconds", &plan.seconds, 86400},
                 {"--processes", &plan.processes, PROCESSES_MAX},
                 {"--threads", &plan.threads, SOAK_THREADS},
                 {"--restart", &plan.restart, 86400}};
  if (argc < 2 || argc % 2 != 0 || !argv[1][0]) return false;
  snprintf(plan.uri, sizeof plan.uri, "%s", argv[1]);
  for (int i = 2; i < argc; i += 2) {
    char *end;
    errno = 0;
    unsigned long n = strtoul(argv[i + 1], &end, 10);
    bool known = strcmp(argv[i], "--seed") == 0;
    if (errno != 0 || argv[i + 1][0] < '0' || argv[i + 1][0] > '9' || *end || n == 0) return false;
    if (known) plan.seed = n;
    for (size_t o = 0; o < sizeof options / sizeof *options; o++)
      if (strcmp(argv[i], options[o].name) == 0 && n <= options[o].most) {
        *options[o].to = (uint32_t)n;
        known = true;
      }
    if (!known) return false;
  }
  if (longer) plan.seconds = (uint32_t)strtoul(longer, NULL, 10);
  return plan.seconds > 0;
}

int main(int argc, char *argv[]) {
  char command[128];
  if (argc == 5 && strcmp(argv[1], "--process") == 0) return run_process(argv);
  setvbuf(stdout, NULL, _IOLBF, 0);
  if (!parse(argc, argv) || !make_uri() || !(done = share(plan.folder))) {
    fputs("usage: soak URI [--seconds S] [--processes N] [--threads N] [--restart S] [--seed X]\n", stderr);
    return 2;
  }
  run();
  snprintf(command, sizeof command, "rm -rf %s", plan.folder);
  if (system(command) != 0) bad++;
  printf("soak: %s, seed %" PRIu64 "\n", bad ? "something is broken" : "nothing grows", plan.seed);
  return bad != 0;
}
