/* SPDX-License-Identifier: MIT */
/*
 * Which lease unlock, renew and record speak of.  The id is a secret: it comes from the environment or from standard
 * input, and never from arguments, which ps shows to everybody.
 */
#include "cli/cli.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int read_stdin(const struct cli_globals *g, struct cli_lease_in *lease) {
  char text[CLI_LEASE_IN_MAX], why[160];
  size_t n = 0;
  for (;;) {
    ssize_t got = read(STDIN_FILENO, text + n, sizeof text - n);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return dibs__cli_fail(g, CLI_FAILED, "", "standard input can't be read: %s", strerror(errno));
    if (got == 0) break;
    n += (size_t)got;
    if (n == sizeof text)
      return dibs__cli_fail(g, CLI_USAGE, "INVALID", "standard input is too long for a lease as dibs lock prints it");
  }
  if (dibs__cli_lease_parse(text, n, lease, why, sizeof why)) return CLI_DONE;
  return dibs__cli_fail(g, CLI_USAGE, "INVALID", "standard input is no lease as dibs lock prints it: %s", why);
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

int dibs__cli_lease_in(const struct cli_call *call, int first_pos, struct cli_lease_in *lease) {
  const struct cli_globals *g = &call->v.globals;
  const char *name = NULL;
  bool from_stdin = false;
  *lease = (struct cli_lease_in){.ttl_ms = CLI_UNSET};
  for (int i = first_pos; i < call->npos; i++) {
    const char *word = call->pos[i];
    if (strcmp(word, "-") == 0)
      from_stdin = true;
    else if (dibs__cli_is_id(word) || name != NULL)
      return dibs__cli_fail(g, CLI_USAGE, "INVALID",
                            "an id never stands among the arguments, which ps shows to everybody: hand it over as "
                            "DIBS_LEASE in the environment, or on standard input with '-'");
    else
      name = word;
  }
  int code = from_stdin ? read_stdin(g, lease) : CLI_DONE;
  if (code == CLI_DONE && name != NULL && strlen(name) <= DIBS_NAME_MAX)
    memcpy(lease->name, name, strlen(name) + 1);
  else if (code == CLI_DONE && name != NULL)
    code = dibs__cli_fail(g, CLI_USAGE, "INVALID", "the name is longer than %d bytes", DIBS_NAME_MAX);
  if (code == CLI_DONE) code = from_environment(g, !from_stdin, lease);
  if (code != CLI_DONE) return code;
  if (!lease->has_id)
    return dibs__cli_fail(
        g, CLI_USAGE, "INVALID",
        "which lease? put its id into DIBS_LEASE (eval \"$(dibs lock NAME)\" does), or pipe what dibs "
        "lock printed to dibs %s -",
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
  dibs_status status = dibs_lease_adopt(store, in->name, in->id, in->fence, &options, lease, &error);
  if (status == DIBS_OK) return CLI_DONE;
  return dibs__cli_fail_status(g, status, &error, "this can't be a lease");
}
