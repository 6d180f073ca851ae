/* SPDX-License-Identifier: MIT */
/* `dibs lock`: acquires, prints what unlock and renew need, and leaves the lease to them. */
#include "cli/acquire.h"
#include "cli/cli.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* As a shell reads it back. */
static void print_quoted(const char *key, const char *value) {
  printf("%s='", key);
  for (; *value != '\0'; value++) {
    if (*value == '\'')
      fputs("'\\''", stdout);
    else
      putchar(*value);
  }
  puts("'");
}

static void print_lines(const struct cli_globals *g, const dibs_lease *lease, const char *id, int64_t ttl_ms,
                        bool counted, const char *uri) {
  print_quoted("DIBS_NAME", dibs_lease_name(lease));
  printf("DIBS_LEASE=%s\nDIBS_FENCE=%" PRIu64 "\nDIBS_TTL=%" PRId64 "ms\n", id, dibs_lease_fence(lease), ttl_ms);
  if (counted) printf("DIBS_SLOT=%" PRIu32 "\n", dibs_lease_slot(lease));
  if (g->store_given) print_quoted("DIBS_STORE", uri);
  printf("export DIBS_NAME DIBS_LEASE DIBS_FENCE DIBS_TTL%s%s\n", counted ? " DIBS_SLOT" : "",
         g->store_given ? " DIBS_STORE" : "");
}

static void print_json(const dibs_lease *lease, const char *id, const dibs_lease_options *options, const char *shown) {
  struct cli_json j = {.out = stdout};
  dibs__cli_json_open(&j, NULL, '{');
  dibs__cli_json_text(&j, "name", dibs_lease_name(lease));
  dibs__cli_json_text(&j, "lease", id);
  dibs__cli_json_uint(&j, "fence", dibs_lease_fence(lease));
  dibs__cli_json_int(&j, "ttl_ms", options->ttl_ms);
  dibs__cli_json_text(&j, "mode", dibs__cli_mode_name(options->mode));
  if (options->mode == DIBS_COUNTED) {
    dibs__cli_json_uint(&j, "slots", options->slots);
    dibs__cli_json_uint(&j, "slot", dibs_lease_slot(lease));
  }
  dibs__cli_json_text(&j, "store", shown);
  dibs__cli_json_text(&j, "tier", dibs_lease_tier(lease));
  dibs__cli_json_close(&j, '}');
}

/* Prints while the lease is still ours to release: nobody could if what is printed were lost. */
static int hand_over(const struct cli_globals *g, dibs_store *store, dibs_lease *lease,
                     const dibs_lease_options *options) {
  char id[33];
  dibs_error error = {0};
  dibs_status status = dibs_lease_id(lease, id, &error);
  if (status != DIBS_OK || !dibs_lease_alive(lease))
    return dibs__cli_fail(g, CLI_LOST, "LOST", "the lease of '%s' was lost at once; nothing is held, try again",
                          dibs_lease_name(lease));
  char *uri = dibs__cli_store_uri(g, store);
  if (uri == NULL) return dibs__cli_fail(g, CLI_FAILED, "NO_MEMORY", "out of memory; nothing is held");
  if (g->json)
    print_json(lease, id, options, dibs_store_uri(store));
  else
    print_lines(g, lease, id, options->ttl_ms, options->mode == DIBS_COUNTED, uri);
  free(uri);
  int code = dibs__cli_flush(g);
  if (code != CLI_DONE) return code;
  status = dibs_lease_detach(lease, &error);
  return status == DIBS_OK ? CLI_DONE : dibs__cli_fail_status(g, status, &error, "the lease was lost at once");
}

int dibs__cli_lock(struct cli_call *call) {
  const struct cli_globals *g = &call->v.globals;
  dibs_lease_options options;
  int code = dibs__cli_lease_options(&call->v, &options);
  if (code != CLI_DONE) return code;
  /* The gap between the last look at the clock and the detaching must not be one in which a renewal is due. */
  options.flags = DIBS_NO_RENEW;
  struct cli_signals signals;
  code = dibs__cli_signals_open(g, &signals);
  if (code != CLI_DONE) return code;
  dibs_store *store = NULL;
  dibs_lease *lease = NULL;
  code = dibs__cli_open(g, DIBS_STORE_LOOP, &store);
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
