/* SPDX-License-Identifier: MIT */
/* `dibs unlock` and `dibs renew`: for a lease that `dibs lock` left. */
#include "cli/cli.h"
#include "store/locate.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The store, and the lease that the caller names: NULL where that fails. */
static int open_lease(const struct cli_call *call, const struct cli_lease_in *in, dibs_store **store,
                      dibs_lease **lease) {
  *store = NULL;
  *lease = NULL;
  int code = dibs__cli_open(&call->v.globals, 0, store);
  return code == CLI_DONE ? dibs__cli_lease_adopt(call, *store, in, lease) : code;
}

int dibs__cli_unlock(struct cli_call *call) {
  const struct cli_globals *g = &call->v.globals;
  struct cli_lease_in in;
  int code = dibs__cli_lease_in(call, 0, &in);
  if (code != CLI_DONE) return code;
  dibs_store *store;
  dibs_lease *lease;
  code = open_lease(call, &in, &store, &lease);
  if (code == CLI_DONE) {
    dibs_error error = {0};
    dibs_status status = dibs_release(lease, &error);
    if (status != DIBS_OK) code = dibs__cli_fail_status(g, status, &error, in.name);
  }
  if (code == CLI_DONE && g->json) {
    struct dibs__json j = {.out = stdout};
    dibs__json_open(&j, NULL, '{');
    dibs__json_text(&j, "name", in.name);
    dibs__json_bool(&j, "released", true);
    dibs__json_close(&j, '}');
    code = dibs__cli_flush(g);
  }
  dibs_lease_free(lease);
  dibs_close(store);
  return code;
}

int dibs__cli_renew(struct cli_call *call) {
  const struct cli_globals *g = &call->v.globals;
  struct cli_lease_in in;
  int code = dibs__cli_lease_in(call, 0, &in);
  if (code != CLI_DONE) return code;
  int64_t ttl_ms = call->v.ttl_ms != CLI_UNSET ? call->v.ttl_ms : in.ttl_ms;
  if (ttl_ms == CLI_UNSET) ttl_ms = DIBS_TTL_DEFAULT_MS;
  if (ttl_ms < DIBS_TTL_MIN_MS || ttl_ms > DIBS_TTL_MAX_MS)
    return dibs__cli_fail(g, CLI_USAGE, "INVALID", "DIBS_TTL is not between 100ms and 24h; give --ttl");
  dibs_store *store;
  dibs_lease *lease;
  code = open_lease(call, &in, &store, &lease);
  if (code == CLI_DONE) {
    dibs_error error = {0};
    dibs_status status = dibs_renew(lease, ttl_ms, &error);
    if (status != DIBS_OK) code = dibs__cli_fail_status(g, status, &error, in.name);
  }
  if (code == CLI_DONE && g->json) {
    struct dibs__json j = {.out = stdout};
    dibs__json_open(&j, NULL, '{');
    dibs__json_text(&j, "name", in.name);
    dibs__json_uint(&j, "fence", in.fence);
    dibs__json_int(&j, "ttl_ms", ttl_ms);
    dibs__json_int(&j, "left_ms", dibs_lease_left_ms(lease));
    dibs__json_close(&j, '}');
    code = dibs__cli_flush(g);
  }
  /* Freeing a renewed handle would release the lease.  A handle with an unknown outcome must not release it either. */
  if (lease != NULL && code != CLI_LOST) (void)!dibs_lease_detach(lease, NULL);
  dibs_lease_free(lease);
  dibs_close(store);
  return code;
}

/* `dibs break`: takes a name from its holder by force. */

/* A live holder releases within this time; after it dibs prints the holder for which it waits. */
enum { PATIENCE_MS = 1000 };

struct breaking {
  dibs__word ended; /* goes up when it has ended */
  dibs_status status;
  dibs_error *error;
};

static void end_breaking(dibs_status status, const dibs_error *error, void *user) {
  struct breaking *b = user;
  b->status = status;
  *b->error = *error;
  atomic_fetch_add(&b->ended, 1);
  dibs__word_wake(&b->ended, 1, false);
}

/* One break: after a second one the next holder would lose the name, too.  `b` lasts until dibs_close. */
static dibs_status break_and_say(const struct cli_globals *g, dibs_store *store, const char *name,
                                 const dibs_break_options *options, struct breaking *b) {
  dibs_error begun = {0}; /* end_breaking may write the other one before this call returns */
  dibs_status status = dibs_break_start(store, name, options, end_breaking, b, &begun);
  if (status != DIBS_OK) {
    *b->error = begun;
    return status;
  }
  dibs__tick by = dibs__tick_add_ms(dibs__tick_now(), PATIENCE_MS);
  while (atomic_load(&b->ended) == 0 && dibs__tick_before(dibs__tick_now(), by))
    (void)dibs__word_wait(&b->ended, 0, by, false);
  if (atomic_load(&b->ended) == 0 && options->wait_ms != 0) {
    dibs__cli_note_holder(g, store, name, "waiting until the holder releases");
    dibs__cli_note(g, "dibs break --now does not wait; then two may hold the name until the old holder notices");
  }
  while (atomic_load(&b->ended) == 0) (void)dibs__word_wait(&b->ended, 0, DIBS__TICK_NEVER, false);
  return b->status;
}

int dibs__cli_break(struct cli_call *call) {
  const struct cli_globals *g = &call->v.globals;
  const char *name = call->pos[0];
  if (call->v.now && call->v.wait_ms != CLI_UNSET)
    return dibs__cli_fail(g, CLI_USAGE, "INVALID", "--now does not wait; give --now or --wait, not both");
  dibs_store *store = NULL;
  int code = dibs__cli_open(g, 0, &store);
  if (code != CLI_DONE) return code;
  dibs_break_options options = {.size = sizeof options, .who = g->owner};
  options.flags = call->v.now ? DIBS_BREAK_NOW : 0;
  options.wait_ms = call->v.now ? 0 : call->v.wait_ms != CLI_UNSET ? call->v.wait_ms : DIBS_FOREVER;
  dibs_error error = {0};
  struct breaking breaking = {.error = &error};
  dibs_status status = break_and_say(g, store, name, &options, &breaking);
  if (status != DIBS_OK) {
    code = dibs__cli_fail_status(g, status, &error, name);
  } else if (g->json) {
    struct dibs__json j = {.out = stdout};
    dibs__json_open(&j, NULL, '{');
    dibs__json_text(&j, "name", name);
    dibs__json_bool(&j, "broken", true);
    dibs__json_bool(&j, "now", call->v.now);
    dibs__json_close(&j, '}');
    code = dibs__cli_flush(g);
  } else if (call->v.now) {
    dibs__cli_note(g, "'%s' is free; its old holder may continue for up to a third of its ttl, until it notices", name);
  }
  dibs_close(store);
  return code;
}

/* `dibs lock`: acquires, leaves the lease to unlock and renew, and prints what they need. */

/* As a shell reads it back. */
static void print_quoted(FILE *out, const char *key, const char *value) {
  fprintf(out, "%s='", key);
  for (; *value != '\0'; value++) {
    if (*value == '\'')
      fputs("'\\''", out);
    else
      putc(*value, out);
  }
  fputs("'\n", out);
}

static void print_lines(FILE *out, const struct cli_globals *g, const dibs_lease *lease, const char *id, int64_t ttl_ms,
                        bool counted, const char *uri) {
  char held[CLI_HELD_MAX];
  dibs__cli_outer_list(held);
  print_quoted(out, "DIBS_NAME", dibs_lease_name(lease));
  fprintf(out, "DIBS_LEASE=%s\nDIBS_FENCE=%" PRIu64 "\nDIBS_TTL=%" PRId64 "ms\n", id, dibs_lease_fence(lease).value,
          ttl_ms);
  if (counted) fprintf(out, "DIBS_SLOT=%" PRIu32 "\n", dibs_lease_slot(lease));
  if (*held != '\0') print_quoted(out, "DIBS_HELD", held);
  if (g->store_given) print_quoted(out, "DIBS_STORE", uri);
  fprintf(out, "export DIBS_NAME DIBS_LEASE DIBS_FENCE DIBS_TTL%s%s%s\n", counted ? " DIBS_SLOT" : "",
          *held != '\0' ? " DIBS_HELD" : "", g->store_given ? " DIBS_STORE" : "");
}

void dibs__cli_lock_failed(const struct cli_globals *g, int code) {
  if (g->json) return;
  struct cli_line line;
  if (!dibs__cli_line_open(&line)) return;
  fprintf(line.out, "(exit %d)\n", code);
  (void)dibs__cli_line_send(&line, STDOUT_FILENO, CLI_ERROR_MS);
}

static void print_json(FILE *out, const dibs_lease *lease, const char *id, const dibs_lease_options *options,
                       const char *shown) {
  struct dibs__json j = {.out = out};
  dibs__json_open(&j, NULL, '{');
  dibs__json_text(&j, "name", dibs_lease_name(lease));
  dibs__json_text(&j, "lease", id);
  dibs__json_uint(&j, "fence", dibs_lease_fence(lease).value);
  dibs__json_int(&j, "ttl_ms", options->ttl_ms);
  dibs__json_text(&j, "mode", dibs__cli_mode_name(options->mode));
  if (options->mode == DIBS_COUNTED) {
    dibs__json_uint(&j, "slots", options->slots);
    dibs__json_uint(&j, "slot", dibs_lease_slot(lease));
  }
  dibs__json_text(&j, "store", shown);
  dibs__json_text(&j, "tier", dibs_lease_tier(lease));
  dibs__json_close(&j, '}');
}

/* The handle is detached and the output is lost: only this process can still release the lease. */
static void take_back(dibs_store *store, const char *name, const char *id, uint64_t fence,
                      const dibs_lease_options *options) {
  dibs_lease *lease = NULL;
  dibs_lease_options again = *options;
  again.id = NULL;
  if (dibs_lease_adopt(store, name, id, (dibs_fence){fence}, &again, &lease, NULL) == DIBS_OK)
    dibs_release(lease, NULL);
  dibs_lease_free(lease);
}

/* Prints nothing before the lease is detached, because a store whose leases end with this process refuses that. */
static int hand_over(const struct cli_globals *g, dibs_store *store, dibs_lease *lease,
                     const dibs_lease_options *options) {
  char id[33];
  dibs_error error = {0};
  dibs_status status = dibs_lease_id(lease, id, &error);
  if (status != DIBS_OK || !dibs_lease_alive(lease))
    return dibs__cli_fail(g, CLI_LOST, "LOST", "the lease of '%s' was lost at once; nothing is held, try again",
                          dibs_lease_name(lease));
  char *uri = dibs__cli_store_uri(g, store);
  struct cli_line line;
  if (uri == NULL || !dibs__cli_line_open(&line)) {
    dibs__locate_free(uri);
    return dibs__cli_fail(g, CLI_FAILED, "NO_MEMORY", "out of memory; nothing is held");
  }
  if (g->json)
    print_json(line.out, lease, id, options, dibs_store_uri(store));
  else
    print_lines(line.out, g, lease, id, options->ttl_ms, options->mode == DIBS_COUNTED, uri);
  dibs__locate_free(uri);
  status = dibs_lease_detach(lease, &error);
  bool sent = dibs__cli_line_send(&line, status == DIBS_OK ? STDOUT_FILENO : -1, CLI_ERROR_MS);
  if (status != DIBS_OK) return dibs__cli_fail_status(g, status, &error, "the lease was lost at once");
  if (sent) return CLI_DONE;
  int why = errno;
  take_back(store, dibs_lease_name(lease), id, dibs_lease_fence(lease).value, options);
  return dibs__cli_fail(g, CLI_FAILED, "", "cannot write standard output: %s; nothing is held", strerror(why));
}

static int acquire_and_leave(struct cli_call *call) {
  const struct cli_globals *g = &call->v.globals;
  dibs_lease_options options;
  int code = dibs__cli_lease_options(&call->v, &options);
  if (code != CLI_DONE) return code;
  if (g->store_given && *g->store && !g->json && dibs__locate_has_secret(g->store))
    return dibs__cli_fail(g, CLI_USAGE, "INVALID",
                          "dibs lock would print the password in --store; name the store with DIBS_STORE, with "
                          "dibs.ini or with --store FILE.ini#SECTION");
  /* No renewal may fall due between the last reading of the clock and detaching. */
  options.flags = DIBS_NO_RENEW;
  struct cli_signals signals;
  code = dibs__cli_signals_open(g, &signals);
  if (code != CLI_DONE) return code;
  dibs_store *store = NULL;
  dibs_lease *lease = NULL;
  code = dibs__cli_reach(g, &options, &signals, &store);
  if (code == CLI_DONE) code = dibs__cli_acquire(g, store, call->pos[0], &options, &signals, &lease);
  if (code == CLI_DONE) {
    code = hand_over(g, store, lease, &options);
    if (code != CLI_DONE) dibs_release(lease, NULL);
  }
  dibs_lease_free(lease);
  dibs_close(store);
  dibs__cli_signals_close(&signals);
  return code;
}

int dibs__cli_lock(struct cli_call *call) {
  int code = acquire_and_leave(call);
  if (code != CLI_DONE) dibs__cli_lock_failed(&call->v.globals, code);
  return code;
}
