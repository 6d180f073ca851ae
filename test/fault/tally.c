/* SPDX-License-Identifier: MIT */
/*
 * Clients with many threads take and give on a hot row and some others, while a parent kills clients and the server
 * with kill -9 in the middle of their batches (and also stops the server, cleanly or not).  Afterwards every claim is
 * accounted for: tally_check.c has the rules.
 *
 *   tally URI [--clients N] [--threads N] [--client-kills N] [--server-kills N] [--cuts N] [--seed N] [--fault HOW]
 *
 * script/servers kills a server (with.sh --private).  --cuts: the clients connect through a proxy that cuts connections
 * before a request, after it, or before it lands late.  --fault: failures of the driver (drivers/wrap/fault.h).
 * Exit status 0: no rule was broken.
 */
#include "tally.h"
#include "support/stats.h"

#include "base/port.h"
#include "drivers/wrap/shim.h"
#include "fault/proxy.h"
#include "guard/record_bed.h"
#include "store/registry.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum {
  CLIENTS_MAX = 16,
  PARTIES_MAX = 256, /* clients, including those that replaced killed ones */
  THREADS_MAX = 64,
  OWNED_MAX = 8,   /* claims that a thread holds at a time */
  WAIT_MS = 1000,  /* of a call: shorter than a server is unreachable */
  WARM = 150,      /* takes of a client before it is disturbed */
  BACK_MS = 10000, /* every client makes progress within this time */
  WARM_MS = 40000, /* on a busy machine */
  LATE_MS = 200,   /* delay of a late request */
  END_MS = 30000
};

static const struct {
  const char *name;
  int64_t limit;
} stocks[] = {{"hot", 150}, {"wide", 10000000}, {"cold-1", 40}, {"cold-2", 40}, {"cold-3", 40}};
enum { STOCKS = sizeof stocks / sizeof stocks[0] };

static struct {
  uint32_t clients, threads, client_kills, server_kills, cuts;
  uint64_t seed;
  const char *fault;
} plan = {.clients = 3, .threads = 24, .client_kills = 4, .server_kills = 3, .seed = 1};

/* Between all processes. */
static struct shared {
  _Atomic uint32_t stop;
  _Atomic uint64_t acknowledged[PARTIES_MAX], batches, operations;
} * shared;
static char folder[64], client_uri[512];

static uint32_t below(uint64_t *seed, uint32_t n) {
  uint64_t z = (*seed += UINT64_C(0x9e3779b97f4a7c15));
  z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
  z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
  return (uint32_t)((z ^ (z >> 31)) % n);
}

/* ---- A client ---- */

struct owned {
  char claim[TALLY_CLAIM];
  const char *stock;
};

struct thread {
  dibs_store *store;
  uint32_t party, number, requested;
  uint64_t seed;
  int log;
  struct owned owned[OWNED_MAX];
  size_t owned_count;
};

static void write_line(const struct thread *t, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void write_line(const struct thread *t, const char *format, ...) {
  char line[160];
  va_list args;
  va_start(args, format);
  int n = vsnprintf(line, sizeof line, format, args);
  va_end(args);
  if (write(t->log, line, (size_t)n) != n) _exit(3);
}

static void give(struct thread *t, const struct owned *owned) {
  dibs_stock_options how = {.size = sizeof how, .wait_ms = WAIT_MS};
  dibs_stock_result came = {.size = sizeof came};
  write_line(t, "G %s %s 0\n", owned->stock, owned->claim);
  dibs_status status = dibs_stock_give(t->store, owned->stock, owned->claim, &how, &came, NULL);
  write_line(t, "g %s %d %lld\n", owned->claim, (int)status, (long long)came.got);
}

static dibs_status take(struct thread *t, const struct owned *owned, int64_t amount) {
  dibs_stock_options how = {.size = sizeof how, .claim = owned->claim, .wait_ms = WAIT_MS};
  dibs_stock_result came = {.size = sizeof came};
  dibs_status status = dibs_stock_take(t->store, owned->stock, amount, &how, &came, NULL);
  write_line(t, "t %s %d %lld\n", owned->claim, (int)status, (long long)came.got);
  if (status == DIBS_OK) atomic_fetch_add(&shared->acknowledged[t->party], 1);
  return status;
}

static const char *some_stock(uint64_t *seed) {
  uint32_t chance = below(seed, 100);
  return stocks[chance < 50 ? 0 : chance < 80 ? 1 : 2 + below(seed, STOCKS - 2)].name;
}

static void look(struct thread *t, const char *stock) {
  dibs_stock_result seen = {.size = sizeof seen};
  if (dibs_stock_show(t->store, stock, NULL, &seen, NULL) == DIBS_OK)
    write_line(t, "S %s %lld %lld\n", stock, (long long)seen.used, (long long)seen.limit);
}

static void do_something(struct thread *t) {
  struct owned one = {.stock = some_stock(&t->seed)};
  if (below(&t->seed, 100) < 15) {
    look(t, one.stock);
    return;
  }
  if (t->owned_count == OWNED_MAX || (t->owned_count > 0 && below(&t->seed, 100) < 35)) {
    size_t which = below(&t->seed, (uint32_t)t->owned_count);
    give(t, &t->owned[which]);
    t->owned[which] = t->owned[--t->owned_count];
    return;
  }
  int64_t amount = 1 + below(&t->seed, 3);
  snprintf(one.claim, sizeof one.claim, "p%03u-%02u-%u", t->party, t->number, ++t->requested);
  write_line(t, "T %s %s %lld\n", one.stock, one.claim, (long long)amount);
  dibs_status status = take(t, &one, amount);
  for (uint32_t again = 0; status == DIBS_UNKNOWN && again < below(&t->seed, 6); again++)
    status = take(t, &one, amount);
  bool kept = status == DIBS_OK || status == DIBS_REPLAY;
  if (kept && strcmp(one.stock, stocks[1].name) != 0) t->owned[t->owned_count++] = one;
  /* Gives without knowing whether the take happened. */
  if (status == DIBS_UNKNOWN && below(&t->seed, 100) < 50) give(t, &one);
}

static void run_thread(void *arg) {
  struct thread *t = arg;
  while (!atomic_load(&shared->stop)) do_something(t);
}

static int run_client(uint32_t party) {
  static struct thread threads[THREADS_MAX];
  dibs__thread *running[THREADS_MAX];
  dibs_store *store = NULL;
  dibs_error error = {0};
  char path[128], uri[640];
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  snprintf(path, sizeof path, "%s/client-%u.log", folder, party);
  int log = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  if (log < 0) return 3;
  snprintf(uri, sizeof uri, "%s", client_uri);
  if (plan.fault)
    snprintf(uri, sizeof uri, "fault+%s?fault.rate=50&fault.how=%s&fault.seed=%u", client_uri, plan.fault, party);
  /* A client retries while the server is unreachable. */
  while (dibs_open(uri, NULL, &store, &error) != DIBS_OK) {
    if (error.status != DIBS_UNAVAILABLE || atomic_load(&shared->stop)) {
      fprintf(stderr, "tally: client %u: %s: %s\n", party, dibs_status_name(error.status), error.text);
      return 2;
    }
    dibs__nap_ms(20);
  }
  for (uint32_t i = 0; i < plan.threads; i++) {
    threads[i] = (struct thread){
        .store = store, .party = party, .number = i, .seed = plan.seed * 1000003 + party * 101 + i, .log = log};
    running[i] = dibs__thread_start("tally", run_thread, &threads[i]);
    if (!running[i]) return 2;
  }
  for (uint32_t i = 0; i < plan.threads; i++) dibs__thread_join(running[i]);
  struct stats stats = stats_of(store);
  atomic_fetch_add(&shared->batches, stats.batches);
  atomic_fetch_add(&shared->operations, stats.operations);
  dibs_close(store);
  return 0;
}

/* ---- The parent ---- */

static struct client {
  pid_t pid;
  uint32_t party;
} clients[CLIENTS_MAX];
static uint32_t parties;

static bool spawn(struct client *client) {
  if (parties + 1 >= PARTIES_MAX) return false;
  client->party = ++parties;
  fflush(stdout);
  client->pid = fork();
  if (client->pid == 0) _exit(run_client(client->party));
  return client->pid > 0;
}

/* Waits until each running client has `more` additional takes. Returns the ms that this took; -1: it did not happen. */
static int64_t all_make_progress(uint64_t more, int64_t by_ms) {
  uint64_t had[CLIENTS_MAX];
  dibs__tick from = dibs__tick_now(), by = dibs__tick_add_ms(from, by_ms);
  for (uint32_t c = 0; c < plan.clients; c++) had[c] = atomic_load(&shared->acknowledged[clients[c].party]);
  for (uint32_t c = 0; c < plan.clients;) {
    if (atomic_load(&shared->acknowledged[clients[c].party]) >= had[c] + more) {
      c++;
      continue;
    }
    if (!dibs__tick_before(dibs__tick_now(), by)) return -1;
    dibs__nap_ms(2);
  }
  return (dibs__tick_now().ns - from.ns) / DIBS__NS_PER_MS;
}

static bool expect_progress(const char *after) {
  int64_t ms = all_make_progress(1, BACK_MS);
  if (ms < 0)
    printf("BROKEN  progress: after %s, a client took nothing for %d ms\n", after, BACK_MS);
  else
    printf("        after %s all clients make progress within %lld ms\n", after, (long long)ms);
  return ms >= 0;
}

static bool kill_client(uint64_t *seed) {
  struct client *client = &clients[below(seed, plan.clients)];
  kill(client->pid, SIGKILL);
  waitpid(client->pid, NULL, 0);
  return spawn(client) && expect_progress("the death of a client");
}

static bool control_server(const char *verb) {
  const char *script = getenv("DIBS_TEST_SERVERS_SCRIPT"), *at = getenv("DIBS_TEST_SERVERS_DIR");
  char command[512];
  if (!script || !at) {
    printf("BROKEN  DIBS_TEST_SERVERS_SCRIPT and _DIR are not set: run it by with.sh --private\n");
    return false;
  }
  snprintf(command, sizeof command, "'%s' %s --dir '%s' >/dev/null", script, verb, at);
  return system(command) == 0;
}

/* Kills the server, ends it cleanly, or stops it, so that requests land when their clients no longer wait. */
static bool kill_server(uint64_t *seed) {
  static const char *const hows[][3] = {{"kill", "start", "the start of the killed server"},
                                        {"pause", "resume", "the resume of the paused server"},
                                        {"stop", "start", "the start of the stopped server"}};
  static size_t turns;
  const char *const *how = hows[turns++ % 3];
  if (!control_server(how[0])) return false;
  dibs__nap_ms(below(seed, 2 * WAIT_MS)); /* shorter and longer than the time limit of a call */
  return control_server(how[1]) && expect_progress(how[2]);
}

/* The clients connect to the proxy instead of the server. */
static struct proxied *proxy;
static bool begin_proxy(void) {
  char to[128], why[PROXY_WHY];
  const char *uri = case_uri(), *at = strchr(uri, '@'), *path = at ? strchr(at, '/') : NULL;
  snprintf(client_uri, sizeof client_uri, "%s", uri);
  if (plan.cuts == 0) return true;
  if (!path) return false;
  snprintf(to, sizeof to, "%.*s", (int)(path - at - 1), at + 1);
  bool mysql = strcmp(engine->scheme, "mysql") == 0;
  proxy = proxied_start(&(struct proxy_options){.to = to, .protocol = mysql ? FRAME_MYSQL : FRAME_POSTGRES}, why);
  if (!proxy) return printf("BROKEN  the proxy: %s\n", why), false;
  snprintf(client_uri, sizeof client_uri, "%.*s127.0.0.1:%u%s", (int)(at + 1 - uri), uri, proxied_port(proxy), path);
  return true;
}

/* Cuts one request of a batch on the hot row or the wide row. */
static bool cut(uint64_t *seed) {
  static const char *const hows[] = {"cut-before-request", "cut-after-request", "orphan-request"};
  char line[128], late[16] = "", answer[PROXY_LINE];
  uint32_t how = below(seed, 3);
  if (how == 2) snprintf(late, sizeof late, " %u", 1 + below(seed, LATE_MS));
  snprintf(line, sizeof line, "%s nth=%u %s%s", hows[how], 1 + below(seed, 20), stocks[below(seed, 2)].name, late);
  int64_t fired = proxied_stat(proxy, "fired");
  if (!proxied_say(proxy, line, answer)) return printf("BROKEN  the proxy: %s: %s\n", line, answer), false;
  dibs__tick by = dibs__tick_add_ms(dibs__tick_now(), WARM_MS);
  while (proxied_stat(proxy, "fired") == fired && dibs__tick_before(dibs__tick_now(), by)) dibs__nap_ms(1);
  return proxied_stat(proxy, "fired") > fired && all_make_progress(1, BACK_MS) >= 0;
}

static bool end_proxy(void) {
  if (!proxy) return true;
  dibs__tick by = dibs__tick_add_ms(dibs__tick_now(), BACK_MS);
  while (proxied_stat(proxy, "doomed") > 0 && dibs__tick_before(dibs__tick_now(), by)) dibs__nap_ms(2);
  bool landed = proxied_stat(proxy, "doomed") == 0;
  proxied_stop(proxy);
  return landed;
}

static bool disturb(void) {
  uint64_t seed = plan.seed;
  uint32_t client_kills = plan.client_kills, server_kills = plan.server_kills;
  for (uint32_t c = 0; c < plan.cuts; c++)
    if (!cut(&seed)) return printf("BROKEN  progress: after cut %u\n", c), false;
  while (client_kills + server_kills > 0) {
    if (all_make_progress(WARM, WARM_MS) < 0) {
      printf("BROKEN  progress: a client has fewer than %d takes after %d ms\n", WARM, WARM_MS);
      return false;
    }
    dibs__nap_ms(below(&seed, 100));
    bool server = below(&seed, client_kills + server_kills) < server_kills;
    *(server ? &server_kills : &client_kills) -= 1;
    if (!(server ? kill_server(&seed) : kill_client(&seed))) return false;
  }
  return all_make_progress(WARM, WARM_MS) >= 0;
}

/* Returns how many did not end with status 0. */
static int end_clients(void) {
  int bad = 0;
  dibs__tick by = dibs__tick_add_ms(dibs__tick_now(), END_MS);
  for (uint32_t c = 0; c < plan.clients; c++) {
    int status = 0;
    pid_t gone;
    while ((gone = waitpid(clients[c].pid, &status, WNOHANG)) == 0 && dibs__tick_before(dibs__tick_now(), by))
      dibs__nap_ms(5);
    if (gone == clients[c].pid && WIFEXITED(status) && WEXITSTATUS(status) == 0) continue;
    printf("BROKEN  client %u %s (%#x)\n", clients[c].party, gone == 0 ? "hangs" : "ended badly", (unsigned)status);
    if (gone == 0) kill(clients[c].pid, SIGABRT);
    bad++;
  }
  return bad;
}

/* ---- The rows of the database ---- */

static const char *table(const char *name) {
  static char text[64];
  snprintf(text, sizeof text, "%sdibs_%s", strcmp(engine->scheme, "postgres") == 0 ? "dibs." : "", name);
  return text;
}

/* Reads the claims of one party from one cell. */
static size_t read_party(uint32_t party, struct tally_row *rows, size_t capacity) {
  bool mysql = strcmp(engine->scheme, "mysql") == 0, postgres = strcmp(engine->scheme, "postgres") == 0;
  const char *list = mysql      ? "GROUP_CONCAT(claim, ' ', stock, ' ', amount, ' ', given)"
                     : postgres ? "string_agg(claim || ' ' || stock || ' ' || amount || ' ' || given, ',')"
                                : "group_concat(claim || ' ' || stock || ' ' || amount || ' ' || given)";
  if (mysql) sql("SET SESSION group_concat_max_len = 1 << 30");
  const char *text = cell("SELECT COALESCE(%s, '') FROM %s WHERE claim LIKE 'p%03u-%%'", list, table("claim"), party);
  size_t count = 0;
  for (const char *at = text; *at && count < capacity; count++) {
    struct tally_row *row = &rows[count];
    int given = 0, length = 0;
    if (sscanf(at, "%39s %23s %ld %d%n", row->claim, row->stock, &row->amount, &given, &length) != 4) {
      printf("BROKEN  cannot read the claim %.60s\n", at);
      exit(1);
    }
    row->given = given != 0;
    at += length;
    at += *at == ',';
  }
  return count;
}

static int compare(void) {
  size_t all = (size_t)atoll(cell("SELECT COUNT(*) FROM %s", table("claim"))), count = 0;
  struct tally_row *rows = calloc(all + 1, sizeof *rows);
  struct tally_stock now[STOCKS];
  struct tally_sums sums;
  if (!rows) abort();
  for (uint32_t p = 1; p <= parties; p++) count += read_party(p, rows + count, all - count);
  for (size_t i = 0; i < STOCKS; i++) {
    now[i].limit = stocks[i].limit;
    snprintf(now[i].name, sizeof now[i].name, "%s", stocks[i].name);
    now[i].used = atoll(cell("SELECT used FROM %s WHERE name = '%s'", table("stock"), stocks[i].name));
  }
  int broken = tally_check(folder, rows, count, now, STOCKS, &sums);
  if (count != all) printf("BROKEN  strangers: %zu of %zu claims belong to no client\n", all - count, all);
  broken += count != all;
  free(rows);
  printf("tally: %llu looks, %llu takes: %llu taken, %llu full, %llu unavailable, %llu unknown (%llu of them in), %llu "
         "unheard (%llu "
         "in); %llu gives, %llu acknowledged; %.1f a batch\n",
         (unsigned long long)sums.seen, (unsigned long long)sums.takes, (unsigned long long)sums.taken,
         (unsigned long long)sums.refused, (unsigned long long)sums.unavailable, (unsigned long long)sums.unknown,
         (unsigned long long)sums.unknown_in, (unsigned long long)sums.killed, (unsigned long long)sums.killed_in,
         (unsigned long long)sums.gives, (unsigned long long)sums.given,
         (double)atomic_load(&shared->operations) / (double)(atomic_load(&shared->batches) + 1));
  return broken;
}

/* ---- The command line ---- */

static bool parse(int argc, char *argv[]) {
  struct {
    const char *name;
    uint32_t *to, most;
  } options[] = {{"--clients", &plan.clients, CLIENTS_MAX},
                 {"--threads", &plan.threads, THREADS_MAX},
                 {"--client-kills", &plan.client_kills, 100},
                 {"--server-kills", &plan.server_kills, 100},
                 {"--cuts", &plan.cuts, 10000}};
  for (int i = 2; i < argc; i += 2) {
    bool known = i + 1 < argc && strcmp(argv[i], "--seed") == 0;
    if (known) plan.seed = strtoull(argv[i + 1], NULL, 10);
    if (i + 1 < argc && strcmp(argv[i], "--fault") == 0) {
      plan.fault = argv[i + 1];
      known = true;
    }
    for (size_t o = 0; !known && i + 1 < argc && o < sizeof options / sizeof options[0]; o++) {
      if (strcmp(argv[i], options[o].name) != 0) continue;
      *options[o].to = (uint32_t)strtoul(argv[i + 1], NULL, 10);
      known = *options[o].to <= options[o].most;
    }
    if (!known) return false;
  }
  return argc > 1;
}

static bool set_limits(void) {
  dibs_store *store = NULL;
  bool fine = dibs_open(case_uri(), NULL, &store, &reported) == DIBS_OK;
  for (size_t i = 0; fine && i < STOCKS; i++)
    fine = dibs_stock_set(store, stocks[i].name, stocks[i].limit, NULL, NULL, &reported) == DIBS_OK;
  if (!fine) printf("BROKEN  %s\n", reported.text);
  dibs_close(store);
  return fine;
}

static int run(void) {
  snprintf(folder, sizeof folder, "/tmp/dibs-tally-XXXXXX");
  shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (shared == MAP_FAILED || !mkdtemp(folder) || !set_limits() || !begin_proxy()) return 1;
  printf("tally: %u clients x %u threads, kills %u clients and %u servers, %u cuts, seed %llu\n", plan.clients,
         plan.threads, plan.client_kills, plan.server_kills, plan.cuts, (unsigned long long)plan.seed);
  for (uint32_t c = 0; c < plan.clients; c++)
    if (!spawn(&clients[c])) return 1;
  int bad = !disturb();
  atomic_store(&shared->stop, 1);
  bad += end_clients();
  bad += !end_proxy();
  return bad ? bad : compare();
}

int main(int argc, char *argv[]) {
  if (!parse(argc, argv)) {
    fputs("usage: tally URI [--clients N] [--threads N] [--client-kills N] [--server-kills N] [--seed N]\n"
          "             [--cuts N] [--fault HOW]\n",
          stderr);
    return 2;
  }
  dibs__driver_add(&dibs__fault_driver);
  bed_begin(2, argv);
  case_begin(NULL);
  int broken = run();
  if (broken) {
    printf("tally: %d rules broken; the clients' logs are in %s, seed %llu\n", broken, folder,
           (unsigned long long)plan.seed);
    return 1;
  }
  case_end(NULL);
  char command[128];
  snprintf(command, sizeof command, "rm -rf '%s'", folder);
  return system(command) == 0 ? 0 : 1;
}
