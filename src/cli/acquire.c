/* SPDX-License-Identifier: MIT */
/* Opening the store, and turning options into those of the library. */
#include "base/duration.h"
#include "base/port.h"
#include "base/text.h"
#include "cli/cli.h"
#include "handle/handle.h"
#include "store/locate.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <unistd.h>

enum { CWD_MAX = 4096 };

static int open_by(const struct cli_globals *globals, uint32_t flags, dibs__tick by, dibs_store **store) {
  dibs_store_options options = {.size = sizeof options, .flags = flags, .owner = globals->owner};
  dibs_error error = {0};
  dibs_status status = dibs__open_by(globals->store, &options, by, store, &error);
  if (status == DIBS_OK) return CLI_DONE;
  return dibs__cli_fail_status(globals, status, &error, "cannot open the store");
}

int dibs__cli_open(const struct cli_globals *globals, uint32_t flags, dibs_store **store) {
  return open_by(globals, flags, DIBS__TICK_ZERO, store);
}

int dibs__cli_open_within(const struct cli_globals *globals, int64_t *wait_ms, dibs_store **store) {
  dibs__tick began = dibs__tick_now();
  bool limited = *wait_ms > 0;
  int code = open_by(globals, 0, limited ? dibs__tick_add_ms(began, *wait_ms) : DIBS__TICK_ZERO, store);
  int64_t left_ms = limited ? dibs__tick_left_ms(dibs__tick_now(), dibs__tick_add_ms(began, *wait_ms)) : 0;
  if (limited) *wait_ms = left_ms > 0 ? left_ms : 1;
  return code;
}

int dibs__cli_table(const struct cli_call *call, dibs_table **table) {
  char file[CWD_MAX];
  const char *given = call->v.table, *mark = given != NULL ? strrchr(given, '#') : NULL;
  dibs_error error = {0};
  *table = NULL;
  if (given == NULL) return CLI_DONE;
  size_t length = mark != NULL ? (size_t)(mark - given) : strlen(given);
  if (length == 0 || length >= sizeof file)
    return dibs__cli_fail(&call->v.globals, CLI_USAGE, "INVALID", "--table: '%.60s' is not FILE or FILE#SECTION",
                          given);
  memcpy(file, given, length);
  file[length] = '\0';
  dibs_status status = dibs_table_read(file, mark != NULL ? mark + 1 : NULL, table, &error);
  if (status == DIBS_OK) return CLI_DONE;
  /* A missing file or section is a mistake in the arguments, not an unreachable store. */
  int code = status == DIBS_NO_MEMORY ? CLI_FAILED : CLI_USAGE;
  return dibs__cli_fail(&call->v.globals, code, dibs_status_name(status), "--table: %s", error.text);
}

char *dibs__cli_store_uri(const struct cli_globals *globals, const dibs_store *store) {
  const char *uri = globals->store;
  char cwd[CWD_MAX], *name = NULL, *whole;
  enum dibs__named_by by;
  struct dibs__result result = {.text = ""};
  /* Names the file that names the store; dibs_store_uri shows no password. */
  if (uri == NULL && dibs__locate_default(&name, &by, &result) == DIBS_OK && by != DIBS__BY_DEFAULT) uri = name;
  if (uri == NULL) uri = dibs_store_uri(store);
  whole = getcwd(cwd, sizeof cwd) != NULL ? dibs__locate_from(uri, cwd) : strdup(uri);
  dibs__locate_free(name);
  return whole;
}

int dibs__cli_lease_options(const struct cli_values *values, dibs_lease_options *options) {
  const struct cli_globals *g = &values->globals;
  *options = (dibs_lease_options){.size = sizeof *options, .owner = g->owner};
  if (values->shared && values->slots != CLI_UNSET)
    return dibs__cli_fail(g, CLI_USAGE, "INVALID", "--shared and --slots exclude each other; give one of them");
  if (values->try_once && values->wait_ms != CLI_UNSET)
    return dibs__cli_fail(g, CLI_USAGE, "INVALID", "--try and --wait exclude each other; give one of them");
  if (values->shared) options->mode = DIBS_SHARED;
  if (values->slots != CLI_UNSET) {
    options->mode = DIBS_COUNTED;
    options->slots = (uint32_t)values->slots;
  }
  options->ttl_ms = values->ttl_ms != CLI_UNSET ? values->ttl_ms : DIBS_TTL_DEFAULT_MS;
  options->wait_ms = values->try_once ? 0 : values->wait_ms != CLI_UNSET ? values->wait_ms : DIBS_FOREVER;
  return CLI_DONE;
}

void dibs__cli_draw_id(char id[33]) {
  uint8_t bytes[16];
  dibs__random(bytes, sizeof bytes);
  dibs__hex_write(bytes, id);
}

/*
 * The lease that unlock, renew and record use.  The id is a secret: it comes from the environment or from standard
 * input, and never from arguments, which ps shows to every user.
 */

static int read_stdin(const struct cli_globals *g, struct cli_lease_in *lease) {
  char text[CLI_LEASE_IN_MAX], why[160];
  size_t n = 0;
  for (;;) {
    ssize_t got = read(STDIN_FILENO, text + n, sizeof text - n);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return dibs__cli_fail(g, CLI_FAILED, "", "cannot read standard input: %s", strerror(errno));
    if (got == 0) break;
    n += (size_t)got;
    if (n == sizeof text)
      return dibs__cli_fail(
          g, CLI_USAGE, "INVALID",
          "standard input is too long for a lease as dibs lock prints it; pipe the output of dibs lock alone");
  }
  if (dibs__cli_lease_parse(text, n, lease, why, sizeof why)) return CLI_DONE;
  return dibs__cli_fail(g, CLI_USAGE, "INVALID", "standard input is not a lease as dibs lock prints it: %s", why);
}

static int from_environment(const struct cli_globals *g, bool want_id, struct cli_lease_in *lease) {
  static const char *const keys[] = {"DIBS_LEASE", "DIBS_FENCE", "DIBS_TTL", "DIBS_NAME"};
  char why[160] = "";
  for (size_t i = want_id ? 0 : 3; i < sizeof keys / sizeof *keys; i++) {
    const char *value = getenv(keys[i]);
    if (i == 3 && lease->name[0] != '\0') continue;
    if (value != NULL && *value != '\0' && !dibs__cli_lease_keep(keys[i], value, lease, why, sizeof why))
      return dibs__cli_fail(g, CLI_USAGE, "INVALID", "%s in the environment: %s", keys[i], why);
  }
  return CLI_DONE;
}

/* The id belongs to one lease.  NULL or "": its name is not known. */
static int check_name(const struct cli_globals *g, const char *name, const char *theirs) {
  if (theirs == NULL || *theirs == '\0' || strcmp(name, theirs) == 0) return CLI_DONE;
  return dibs__cli_fail(g, CLI_USAGE, "INVALID", "the lease is for '%.255s', not for '%.255s'; nothing was done",
                        theirs, name);
}

int dibs__cli_lease_in(const struct cli_call *call, int first_pos, struct cli_lease_in *lease) {
  const struct cli_globals *g = &call->v.globals;
  const char *name = NULL;
  bool from_stdin = false;
  bool reads_lease = call->command->main != dibs__cli_record; /* a record's content may come on standard input */
  *lease = (struct cli_lease_in){.ttl_ms = CLI_UNSET};
  for (int i = first_pos; i < call->npos; i++) {
    const char *word = call->pos[i];
    if (strcmp(word, "-") == 0)
      from_stdin = true;
    else if (dibs__cli_is_id(word) || name != NULL)
      return dibs__cli_fail(g, CLI_USAGE, "INVALID",
                            "do not pass the id of a lease as an argument, because ps shows arguments to every user: "
                            "pass it as DIBS_LEASE in the environment, or on standard input with '-'");
    else
      name = word;
  }
  int code = from_stdin ? read_stdin(g, lease) : CLI_DONE;
  if (code == CLI_DONE && name != NULL) code = check_name(g, name, from_stdin ? lease->name : getenv("DIBS_NAME"));
  if (code == CLI_DONE && name != NULL && strlen(name) <= DIBS_NAME_MAX)
    memcpy(lease->name, name, strlen(name) + 1);
  else if (code == CLI_DONE && name != NULL)
    code = dibs__cli_fail(g, CLI_USAGE, "INVALID", "the name is longer than %d bytes", DIBS_NAME_MAX);
  if (code == CLI_DONE) code = from_environment(g, !from_stdin, lease);
  if (code != CLI_DONE) return code;
  if (!lease->has_id && !reads_lease)
    return dibs__cli_fail(g, CLI_USAGE, "INVALID",
                          "which lease? run this command under dibs run NAME -- ..., or set DIBS_LEASE to the id of a "
                          "lease (eval \"$(dibs lock NAME)\" does)");
  if (!lease->has_id)
    return dibs__cli_fail(g, CLI_USAGE, "INVALID",
                          "which lease? set DIBS_LEASE to its id (eval \"$(dibs lock NAME)\" does), or pipe the output "
                          "of dibs lock to dibs %s -",
                          g->command);
  if (!lease->has_fence)
    return dibs__cli_fail(g, CLI_USAGE, "INVALID", "the fence is missing: dibs lock prints it as DIBS_FENCE");
  if (lease->name[0] == '\0')
    return dibs__cli_fail(g, CLI_USAGE, "INVALID", "which name? give it as an argument or as DIBS_NAME");
  return CLI_DONE;
}

int dibs__cli_lease_adopt(const struct cli_call *call, dibs_store *store, const struct cli_lease_in *in,
                          dibs_lease **lease) {
  const struct cli_globals *g = &call->v.globals;
  dibs_lease_options options = {.size = sizeof options, .owner = g->owner, .flags = DIBS_NO_RENEW};
  options.ttl_ms = call->v.ttl_ms != CLI_UNSET ? call->v.ttl_ms : in->ttl_ms != CLI_UNSET ? in->ttl_ms : 0;
  /* Only exclusive leases have a fence; of the others the id alone tells them apart. */
  if (in->fence == 0) options.mode = DIBS_SHARED;
  dibs_error error = {0};
  dibs_status status = dibs_lease_adopt(store, in->name, in->id, (dibs_fence){in->fence}, &options, lease, &error);
  if (status == DIBS_OK) return CLI_DONE;
  return dibs__cli_fail_status(g, status, &error, "this is not a lease");
}

/*
 * The leases that this process runs under, innermost first: the one of DIBS_NAME, DIBS_LEASE, DIBS_FENCE, then those of
 * DIBS_HELD, which has a word for each:
 *
 *   ID:FENCE:MODE:NAME    MODE is x, s or c; blanks and % of NAME are %xx
 *
 * They are hints.  Whether a lease still holds its name, and in this very store, the store tells by the secret id.
 */

enum { WORD_MAX = 3 * DIBS_NAME_MAX + 64 };
static const char mode_letters[] = {[DIBS_EXCLUSIVE] = 'x', [DIBS_SHARED] = 's', [DIBS_COUNTED] = 'c'};

static bool read_innermost(struct cli_outer *outer) {
  struct cli_lease_in in = {.ttl_ms = CLI_UNSET};
  char why[160];
  static const char *const keys[] = {"DIBS_NAME", "DIBS_LEASE", "DIBS_FENCE"};
  for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
    const char *value = getenv(keys[i]), *slot = getenv("DIBS_SLOT");
    if (value == NULL || *value == '\0' || !dibs__cli_lease_keep(keys[i], value, &in, why, sizeof why)) return false;
    outer->mode = slot != NULL && *slot != '\0' ? DIBS_COUNTED : DIBS_SHARED;
  }
  if (in.fence != 0) outer->mode = DIBS_EXCLUSIVE;
  memcpy(outer->name, in.name, sizeof outer->name);
  memcpy(outer->id, in.id, sizeof outer->id);
  outer->fence = in.fence;
  return true;
}

static int hex(char c) {
  const char *digits = "0123456789abcdef", *at = c != '\0' ? strchr(digits, c) : NULL;
  return at != NULL ? (int)(at - digits) : -1;
}

static bool read_name(const char *at, const char *end, char name[DIBS_NAME_MAX + 1]) {
  size_t n = 0;
  for (; at < end && n < DIBS_NAME_MAX; at++) {
    name[n] = *at;
    if (*at == '%') {
      int high = end - at > 2 ? hex(at[1]) : -1, low = high >= 0 ? hex(at[2]) : -1;
      if (low < 0) return false;
      name[n] = (char)(high * 16 + low);
      at += 2;
    }
    n++;
  }
  name[n] = '\0';
  return at == end && n > 0;
}

/* The next word of DIBS_HELD; *at moves past it.  false: there is none, or it is damaged. */
static bool read_word(const char **at, struct cli_outer *outer) {
  const char *from = *at + strspn(*at, " "), *end = from + strcspn(from, " ");
  char fence[24] = "", letter;
  int length = 0;
  *at = end;
  if (end - from >= WORD_MAX || sscanf(from, "%32[0-9a-f]:%20[0-9]:%c:%n", outer->id, fence, &letter, &length) != 3)
    return false;
  const char *mode = memchr(mode_letters, letter, sizeof mode_letters);
  if (length == 0 || mode == NULL || !dibs__cli_is_id(outer->id) ||
      !dibs__cli_number(fence, (UINT64_C(1) << 53) - 1, &outer->fence))
    return false;
  outer->mode = (dibs_mode)(mode - mode_letters);
  return read_name(from + length, end, outer->name);
}

/* "" when it is not set. */
static const char *outer_held_list(void) {
  const char *held = getenv("DIBS_HELD");
  return held != NULL ? held : "";
}

bool dibs__cli_outer_find(const char *name, struct cli_outer *outer) {
  if (read_innermost(outer) && strcmp(outer->name, name) == 0) return true;
  for (const char *at = outer_held_list(); *at != '\0';)
    if (read_word(&at, outer) && strcmp(outer->name, name) == 0) return true;
  return false;
}

static void add_word(struct dibs__text *text, const struct cli_outer *outer) {
  dibs__text_addf(text, "%s%s:%" PRIu64 ":%c:", text->len > 0 ? " " : "", outer->id, outer->fence,
                  mode_letters[outer->mode]);
  for (const char *c = outer->name; *c != '\0'; c++)
    if (*c == ' ' || *c == '%')
      dibs__text_addf(text, "%%%02x", (unsigned)(unsigned char)*c);
    else
      dibs__text_add(text, c, 1);
}

void dibs__cli_outer_list(char held[CLI_HELD_MAX]) {
  struct cli_outer outer, inner;
  struct dibs__text text;
  bool has_inner = read_innermost(&inner);
  dibs__text_begin(&text, held, CLI_HELD_MAX);
  if (has_inner) add_word(&text, &inner);
  for (const char *at = outer_held_list(); *at != '\0' && text.len + WORD_MAX < CLI_HELD_MAX;)
    if (read_word(&at, &outer) && (!has_inner || strcmp(outer.id, inner.id) != 0)) add_word(&text, &outer);
}

/* ---- Does it still hold? ---- */

struct outer_grants {
  const struct cli_outer *outer;
  int64_t ttl_ms; /* so long that no holder's lease becomes shorter by it */
  bool same_fence;
  bool no_fence; /* an exclusive holder whose fence the store does not list: a session lock */
};

static int outer_grants_at(const dibs_lease_info *info, void *user) {
  struct outer_grants *outer_grants = user;
  if (info->state != DIBS_HOLDS && info->state != DIBS_BREAKING) return 0;
  if (info->ttl_ms > outer_grants->ttl_ms) outer_grants->ttl_ms = info->ttl_ms;
  if (info->left_ms > outer_grants->ttl_ms) outer_grants->ttl_ms = info->left_ms;
  outer_grants->no_fence = outer_grants->no_fence || (info->fence.value == 0 && info->mode == DIBS_EXCLUSIVE);
  outer_grants->same_fence =
      outer_grants->same_fence || (info->fence.value != 0 && info->fence.value == outer_grants->outer->fence);
  return 0;
}

/* The outer lease has a store of the same name.  Only the innermost lease has its store in the environment, but
 * DIBS_STORE is inherited with the others, too. */
static bool same_store(const struct cli_globals *g) {
  const char *theirs = getenv("DIBS_STORE");
  return theirs != NULL && g->store != NULL && strcmp(theirs, g->store) == 0;
}

bool dibs__cli_outer_holds(const struct cli_globals *g, dibs_store *store, const struct cli_outer *outer) {
  struct outer_grants outer_grants = {.outer = outer, .ttl_ms = DIBS_TTL_MIN_MS};
  if (dibs_show(store, outer->name, outer_grants_at, &outer_grants, NULL) != DIBS_OK) return false;
  if (same_store(g) && (outer_grants.same_fence || outer_grants.no_fence)) return true;
  if (outer->mode == DIBS_EXCLUSIVE && !outer_grants.same_fence) return false;
  if (outer_grants.ttl_ms > DIBS_TTL_MAX_MS) outer_grants.ttl_ms = DIBS_TTL_MAX_MS;
  /* The id proves it: in another store the same name may have the same fence. */
  dibs_lease_options options = {
      .size = sizeof options, .mode = outer->mode, .flags = DIBS_NO_RENEW, .ttl_ms = outer_grants.ttl_ms};
  if (outer->mode == DIBS_COUNTED) options.slots = 1;
  dibs_lease *lease = NULL;
  if (dibs_lease_adopt(store, outer->name, outer->id, (dibs_fence){outer->fence}, &options, &lease, NULL) != DIBS_OK)
    return false;
  dibs_status status = dibs_renew(lease, outer_grants.ttl_ms, NULL);
  /* Freeing a handle that may hold the lease would release it. */
  if (status != DIBS_LOST) (void)!dibs_lease_detach(lease, NULL);
  dibs_lease_free(lease);
  return status == DIBS_OK;
}

/*
 * Acquiring: one blocking try, which suffices for a free name; then a wait that signals can end.  However the wait
 * ends, dibs leaves the queue before it ends, so that nobody waits for a dead process.
 */

/* A repeated request after an unknown outcome finds the same grant; dibs gives up on a store that keeps breaking. */
enum { REQUEST_AGAIN = 3 };

/* On a terminal dibs prints the holder after this time. */
enum { PATIENCE_MS = 1500 };

/* The first and the longest pause between two tries to reach a server. */
enum { RETRY_MS = 50, RETRY_MOST_MS = 1000 };

static const int caught[] = {SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGWINCH, SIGTSTP, SIGCONT};

int dibs__cli_signals_open(const struct cli_globals *g, struct cli_signals *signals) {
  sigset_t set, block;
  sigemptyset(&set);
  for (size_t i = 0; i < sizeof caught / sizeof *caught; i++) {
    struct sigaction action;
    bool ignored = sigaction(caught[i], NULL, &action) == 0 && action.sa_handler == SIG_IGN;
    if (!ignored) sigaddset(&set, caught[i]);
  }
  /* If SIGCHLD were ignored, the kernel would drop the status of children. */
  struct sigaction plain = {.sa_handler = SIG_DFL};
  sigaction(SIGCHLD, &plain, NULL);
  block = set;
  sigaddset(&block, SIGTTOU); /* process.c */
  sigaddset(&block, SIGPIPE); /* a reader that is gone must not end the holder of a lease */
  sigprocmask(SIG_BLOCK, &block, &signals->before);
  signals->fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
  if (signals->fd >= 0) return CLI_DONE;
  sigprocmask(SIG_SETMASK, &signals->before, NULL);
  return dibs__cli_fail(g, CLI_FAILED, "", "cannot receive signals: %s", strerror(errno));
}

void dibs__cli_signals_close(struct cli_signals *signals) {
  if (signals->fd >= 0) close(signals->fd);
  signals->fd = -1;
  static const struct timespec at_once;
  sigset_t broken;
  sigemptyset(&broken);
  sigaddset(&broken, SIGPIPE);
  while (sigtimedwait(&broken, NULL, &at_once) > 0) continue;
  sigprocmask(SIG_SETMASK, &signals->before, NULL);
}

int dibs__cli_signals_next(const struct cli_signals *signals) {
  struct signalfd_siginfo info;
  ssize_t got;
  do got = read(signals->fd, &info, sizeof info);
  while (got < 0 && errno == EINTR);
  return got == (ssize_t)sizeof info ? (int)info.ssi_signo : 0;
}

/* The signal that ends the wait, or 0. */
static int next_ending_signal(const struct cli_signals *signals) {
  int signo;
  while ((signo = dibs__cli_signals_next(signals)) != 0) {
    if (signo == SIGTSTP)
      raise(SIGSTOP); /* keeps its position in the queue while it is stopped */
    else if (signo != SIGWINCH && signo != SIGCONT)
      return signo;
  }
  return 0;
}

/* ---- A server that can't be reached ---- */

static int give_up(const struct cli_globals *g, const char *what, int signo) {
  return dibs__cli_fail(g, CLI_SIGNAL + signo, "CANCELLED", "gave up waiting for %s: %s", what, strsignal(signo));
}

/* Sleeps between two tries.  The signal that ended it, or 0. */
static int pause_for(const struct cli_signals *signals, int64_t ms) {
  struct pollfd fd = {signals->fd, POLLIN, 0};
  return poll(&fd, 1, (int)ms) > 0 ? next_ending_signal(signals) : 0;
}

/* The rest of the wait, as wait_ms; at least 1, so that it remains a wait. */
static int64_t left_of(int64_t wait_ms, dibs__tick began) {
  if (wait_ms == DIBS_FOREVER) return wait_ms;
  int64_t left_ms = wait_ms - dibs__tick_left_ms(began, dibs__tick_now());
  return left_ms > 1 ? left_ms : 1;
}

struct retry {
  dibs__tick began;
  int64_t wait_ms, pause_ms;
};

/* Is there time for another try?  If so, it sleeps until then; *ended_by is the signal that ended the sleep. */
static bool try_again(const struct cli_globals *g, struct retry *retry, const struct cli_signals *signals,
                      dibs_status status, const dibs_error *error, int *ended_by) {
  int64_t left_ms = left_of(retry->wait_ms, retry->began);
  if (status != DIBS_UNAVAILABLE || retry->wait_ms == 0 || left_ms == 1 || !dibs__locate_has_server(g->store))
    return false;
  char span[24] = "until it answers";
  if (retry->wait_ms != DIBS_FOREVER) dibs__duration_write(span, sizeof span, retry->wait_ms);
  if (retry->pause_ms == 0)
    dibs__cli_note(g, "%s; trying again%s %s", error->text, retry->wait_ms != DIBS_FOREVER ? " for" : "", span);
  retry->pause_ms = retry->pause_ms == 0 ? RETRY_MS : retry->pause_ms * 2;
  if (retry->pause_ms > RETRY_MOST_MS) retry->pause_ms = RETRY_MOST_MS;
  *ended_by = pause_for(signals, left_ms != DIBS_FOREVER && left_ms < retry->pause_ms ? left_ms : retry->pause_ms);
  return *ended_by == 0;
}

int dibs__cli_reach(const struct cli_globals *g, dibs_lease_options *options, const struct cli_signals *signals,
                    dibs_store **store) {
  dibs_store_options how = {.size = sizeof how, .flags = DIBS_STORE_LOOP, .owner = g->owner};
  struct retry retry = {.began = dibs__tick_now(), .wait_ms = options->wait_ms};
  dibs_status status;
  dibs_error error = {0};
  int ended_by = 0;
  do status = dibs_open(g->store, &how, store, &error);
  while (status != DIBS_OK && try_again(g, &retry, signals, status, &error, &ended_by));
  if (ended_by != 0) return give_up(g, "the store", ended_by);
  if (status != DIBS_OK) return dibs__cli_fail_status(g, status, &error, "cannot open the store");
  if (options->wait_ms > 0 && retry.pause_ms > 0) options->wait_ms = left_of(options->wait_ms, retry.began);
  return CLI_DONE;
}

/* ---- A name that is held ---- */

struct wait {
  bool over;
  dibs_status status;
  dibs_error error;
};

static void wait_over(dibs_lease *lease, dibs_status status, const dibs_error *error, void *user) {
  (void)lease;
  struct wait *wait = user;
  wait->over = true;
  wait->status = status;
  wait->error = *error;
}

enum { HOLDER_TEXT = DIBS_OWNER_MAX + 128 };

struct whom {
  char owner[DIBS_OWNER_MAX + 1];
  uint32_t pid;
  int64_t age_ms;
  size_t holders, waiters;
};

static int count_whom(const dibs_lease_info *info, void *user) {
  struct whom *whom = user;
  if (info->state == DIBS_WAITS) whom->waiters++;
  if (info->state != DIBS_HOLDS && info->state != DIBS_BREAKING) return 0;
  if (whom->holders++ > 0) return 0;
  snprintf(whom->owner, sizeof whom->owner, "%s", info->owner);
  whom->pid = info->pid;
  whom->age_ms = info->age_ms;
  return 0;
}

/* "held by Ann, pid 7, for 2m05s and 2 more", "held by ann@host:7 for 2m05s".  false: there is no holder, or the store
 * does not list it. */
static bool describe_holder(dibs_store *store, const char *name, char *to, size_t size, struct whom *whom) {
  *whom = (struct whom){.pid = 0};
  if (dibs_show(store, name, count_whom, whom, NULL) != DIBS_OK || whom->holders == 0) return false;
  char span[24], process[24] = "", others[40] = "";
  dibs__duration_write(span, sizeof span, whom->age_ms);
  if (whom->pid != 0) snprintf(process, sizeof process, ", pid %lu,", (unsigned long)whom->pid);
  if (whom->holders > 1) snprintf(others, sizeof others, " and %zu more", whom->holders - 1);
  snprintf(to, size, "held by %s%s for %s%s", whom->owner, process, span, others);
  return true;
}

static void note_wait(const struct cli_globals *g, dibs_store *store, const char *name) {
  struct whom whom;
  char holder[HOLDER_TEXT];
  if (describe_holder(store, name, holder, sizeof holder, &whom))
    dibs__cli_note(g, "waiting for '%s', %s; waiters: %zu", name, holder, whom.waiters);
}

void dibs__cli_note_holder(const struct cli_globals *g, dibs_store *store, const char *name, const char *doing) {
  struct whom whom;
  char holder[HOLDER_TEXT];
  if (describe_holder(store, name, holder, sizeof holder, &whom)) dibs__cli_note(g, "%s '%s', %s", doing, name, holder);
}

/* Returns the signal that ended the wait, or 0; *status is the outcome in either case.  `why`: the reason for the wait
 * if that is not a holder; otherwise "". */
static int wait_for(const struct cli_globals *g, dibs_store *store, dibs_lease *lease, struct wait *wait,
                    const struct cli_signals *signals, const char *why, dibs_status *status) {
  int ended_by = 0, patience_ms = isatty(STDERR_FILENO) || *why != '\0' ? PATIENCE_MS : -1;
  struct pollfd fds[] = {{dibs_fd(store), POLLIN, 0}, {signals->fd, POLLIN, 0}};
  while (!wait->over) {
    /* The answer to a cancelled wait comes through the first descriptor alone. */
    int ready = poll(fds, ended_by == 0 ? 2 : 1, patience_ms);
    if (ready < 0 && errno != EINTR) break;
    dibs_dispatch(store, 0);
    if (ready == 0) {
      if (!wait->over && *why != '\0')
        dibs__cli_note(g, "waiting: %s", why);
      else if (!wait->over)
        note_wait(g, store, dibs_lease_name(lease));
      patience_ms = -1;
    }
    if (ended_by == 0 && (fds[1].revents & POLLIN) != 0) {
      ended_by = next_ending_signal(signals);
      if (ended_by != 0) dibs_acquire_cancel(lease);
    }
  }
  *status = wait->over ? wait->status : DIBS_CANCELLED;
  return ended_by;
}

/* The name is held, and this process runs under the lease that holds it: a wait would never end. */
static bool held_by_outer(const struct cli_globals *g, dibs_store *store, const char *name) {
  struct cli_outer outer;
  return dibs__cli_outer_find(name, &outer) && dibs__cli_outer_holds(g, store, &outer);
}

/* A wait, and its outcome. */
struct request {
  const struct cli_globals *g;
  dibs_store *store;
  const char *name;
  const struct cli_signals *signals;
  dibs_lease *lease;
  int ended_by; /* a signal; 0: none */
  bool own;     /* it is held by the lease that this process runs under */
  dibs_error error;
};

static dibs_status send_request(struct request *a, const dibs_lease_options *options) {
  dibs_lease_options once = *options;
  once.wait_ms = 0;
  dibs_status status = dibs_acquire(a->store, a->name, &once, &a->lease, &a->error);
  /* If a tier does not answer, wait: the names may move to the next tier. */
  bool away = status == DIBS_UNAVAILABLE;
  a->own = status == DIBS_HELD && held_by_outer(a->g, a->store, a->name);
  if ((status != DIBS_HELD && !away) || a->own || options->wait_ms == 0) return status;
  struct wait wait = {.status = DIBS_CANCELLED};
  dibs_error why = a->error;
  status = dibs_acquire_start(a->store, a->name, options, wait_over, &wait, &a->lease, &a->error);
  if (status != DIBS_OK) return status;
  a->ended_by = wait_for(a->g, a->store, a->lease, &wait, a->signals, away ? why.text : "", &status);
  if (a->ended_by != 0 && status == DIBS_OK) dibs_release(a->lease, NULL);
  if (a->ended_by == 0 && status == DIBS_OK) return status;
  dibs_lease_free(a->lease);
  a->lease = NULL;
  a->error = wait.error;
  return status;
}

static int fail_own_lease(const struct cli_globals *g, const char *name, bool tried) {
  bool runs = strcmp(g->command, "run") == 0;
  return dibs__cli_fail(g, tried ? CLI_BUSY : CLI_USAGE, dibs_status_name(tried ? DIBS_HELD : DIBS_INVALID),
                        "'%s' is held by the lease under which this command runs (DIBS_LEASE), so it can't be acquired "
                        "until that lease ends%s",
                        name, runs ? "; --reenter runs the command under that lease" : "");
}

static int fail_acquire(const struct cli_globals *g, dibs_store *store, const char *name,
                        const dibs_lease_options *options, dibs_status status, const dibs_error *error) {
  const char *word = dibs_status_name(status);
  int code = dibs__cli_exit_of(status);
  struct whom whom;
  char span[24], holder[HOLDER_TEXT];
  dibs__duration_write(span, sizeof span, options->wait_ms);
  if (status != DIBS_HELD && status != DIBS_TIMEOUT) return dibs__cli_fail_status(g, status, error, name);
  if (!describe_holder(store, name, holder, sizeof holder, &whom))
    snprintf(holder, sizeof holder, "held by another owner");
  if (status == DIBS_HELD) return dibs__cli_fail(g, code, word, "'%s' is %s; --wait waits for it", name, holder);
  return dibs__cli_fail(g, code, word, "'%s' was still held after %s; it is %s; see dibs show", name, span, holder);
}

int dibs__cli_acquire(const struct cli_globals *g, dibs_store *store, const char *name, dibs_lease_options *options,
                      const struct cli_signals *signals, dibs_lease **lease) {
  char id[33], what[DIBS_NAME_MAX + 3];
  dibs__cli_draw_id(id);
  struct request a = {.g = g, .store = store, .name = name, .signals = signals};
  struct retry retry = {.began = dibs__tick_now(), .wait_ms = options->wait_ms};
  dibs_lease_options how = *options;
  dibs_status status;
  how.id = id;
  do {
    if (options->wait_ms > 0) how.wait_ms = left_of(options->wait_ms, retry.began);
    status = DIBS_UNKNOWN;
    for (int i = 0; i < REQUEST_AGAIN && status == DIBS_UNKNOWN && a.ended_by == 0; i++)
      status = send_request(&a, &how);
  } while (a.ended_by == 0 && try_again(g, &retry, signals, status, &a.error, &a.ended_by));
  *lease = a.ended_by == 0 && status == DIBS_OK ? a.lease : NULL;
  if (*lease == NULL) dibs_lease_free(a.lease);
  if (a.ended_by != 0) {
    snprintf(what, sizeof what, "'%s'", name);
    return give_up(g, what, a.ended_by);
  }
  if (a.own) return fail_own_lease(g, name, options->wait_ms == 0);
  if (status != DIBS_OK) return fail_acquire(g, store, name, options, status, &a.error);
  if (strcmp(dibs_lease_tier(*lease), "memory") == 0)
    dibs__cli_note(
        g,
        "every tier is down: '%s' is granted from the memory of this process alone; another process may hold it, too",
        name);
  return CLI_DONE;
}
