/* SPDX-License-Identifier: MIT */
/* `dibs unlock` and `dibs renew`: for a lease that `dibs lock` left. */
#include "cli/cli.h"

#include <inttypes.h>
#include <string.h>

int dibs__cli_unlock(struct cli_call *call) {
  const struct cli_globals *g = &call->v.globals;
  struct cli_lease_in in;
  int code = dibs__cli_lease_in(call, 0, &in);
  if (code != CLI_DONE) return code;
  dibs_store *store = NULL;
  dibs_lease *lease = NULL;
  code = dibs__cli_open(g, 0, &store);
  if (code == CLI_DONE) code = dibs__cli_lease_adopt(call, store, &in, &lease);
  if (code == CLI_DONE) {
    dibs_error error = {0};
    dibs_status status = dibs_release(lease, &error);
    if (status != DIBS_OK) code = dibs__cli_fail_status(g, status, &error, in.name);
  }
  if (code == CLI_DONE && g->json) {
    struct cli_json j = {.out = stdout};
    dibs__cli_json_open(&j, NULL, '{');
    dibs__cli_json_text(&j, "name", in.name);
    dibs__cli_json_bool(&j, "released", true);
    dibs__cli_json_close(&j, '}');
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
    return dibs__cli_fail(g, CLI_USAGE, "INVALID", "DIBS_TTL is not from 100ms to 24h; give --ttl");
  dibs_store *store = NULL;
  dibs_lease *lease = NULL;
  code = dibs__cli_open(g, 0, &store);
  if (code == CLI_DONE) code = dibs__cli_lease_adopt(call, store, &in, &lease);
  if (code == CLI_DONE) {
    dibs_error error = {0};
    dibs_status status = dibs_renew(lease, ttl_ms, &error);
    if (status != DIBS_OK) code = dibs__cli_fail_status(g, status, &error, in.name);
  }
  if (code == CLI_DONE && g->json) {
    struct cli_json j = {.out = stdout};
    dibs__cli_json_open(&j, NULL, '{');
    dibs__cli_json_text(&j, "name", in.name);
    dibs__cli_json_uint(&j, "fence", in.fence);
    dibs__cli_json_int(&j, "ttl_ms", ttl_ms);
    dibs__cli_json_int(&j, "left_ms", dibs_lease_left_ms(lease));
    dibs__cli_json_close(&j, '}');
    code = dibs__cli_flush(g);
  }
  /* A renewed handle would release the lease when it is freed.  One whose outcome is unknown must not either. */
  if (lease != NULL && code != CLI_LOST) (void)!dibs_lease_detach(lease, NULL);
  dibs_lease_free(lease);
  dibs_close(store);
  return code;
}
