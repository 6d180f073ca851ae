/* SPDX-License-Identifier: MIT */
/* `dibs record`: small records that refuse a writer whose lease is older than one they have seen. */
#include "cli/cli.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int print(const struct cli_globals *g, const char *key, const char *data, size_t length, uint64_t fence) {
  if (g->json) {
    struct cli_json j = {.out = stdout};
    dibs__cli_json_open(&j, NULL, '{');
    dibs__cli_json_text(&j, "key", key);
    dibs__cli_json_uint(&j, "fence", fence);
    dibs__cli_json_uint(&j, "length", length);
    dibs__cli_json_text(&j, "data", data);
    dibs__cli_json_close(&j, '}');
  } else if (data != NULL) {
    fwrite(data, 1, length, stdout);
  }
  return dibs__cli_flush(g);
}

/* All of standard input, one byte more than is allowed so that too much is noticed. */
static int read_all(const struct cli_globals *g, char **data, size_t *length) {
  size_t room = DIBS_RECORD_MAX + 1;
  *length = 0;
  *data = malloc(room);
  if (*data == NULL) return dibs__cli_fail(g, CLI_FAILED, "NO_MEMORY", "out of memory; nothing was written");
  while (*length < room) {
    ssize_t got = read(STDIN_FILENO, *data + *length, room - *length);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0)
      return dibs__cli_fail(g, CLI_FAILED, "", "standard input can't be read: %s; nothing was written",
                            strerror(errno));
    if (got == 0) return CLI_DONE;
    *length += (size_t)got;
  }
  return dibs__cli_fail(g, CLI_USAGE, "INVALID", "a record has at most %d bytes; nothing was written", DIBS_RECORD_MAX);
}

static int load(const struct cli_globals *g, dibs_store *store, const char *key) {
  char *data = NULL;
  size_t length = 0;
  uint64_t fence = 0;
  dibs_error error = {0};
  dibs_status status = dibs_record_load(store, key, &data, &length, &fence, &error);
  int code = status == DIBS_OK ? print(g, key, data, length, fence) : dibs__cli_fail_status(g, status, &error, key);
  free(data);
  return code;
}

static int seal(const struct cli_globals *g, dibs_store *store, const char *key, dibs_lease *lease) {
  char *data = NULL;
  size_t length = 0;
  dibs_error error = {0};
  dibs_status status = dibs_record_seal(store, key, lease, &data, &length, &error);
  int code = status == DIBS_OK ? print(g, key, data, length, dibs_lease_fence(lease))
                               : dibs__cli_fail_status(g, status, &error, key);
  free(data);
  return code;
}

static int save(const struct cli_globals *g, dibs_store *store, const char *key, dibs_lease *lease, const char *data,
                size_t length) {
  dibs_error error = {0};
  dibs_status status = dibs_record_save(store, key, lease, data, length, &error);
  if (status != DIBS_OK) return dibs__cli_fail_status(g, status, &error, key);
  if (!g->json) return CLI_DONE;
  struct cli_json j = {.out = stdout};
  dibs__cli_json_open(&j, NULL, '{');
  dibs__cli_json_text(&j, "key", key);
  dibs__cli_json_uint(&j, "fence", dibs_lease_fence(lease));
  dibs__cli_json_uint(&j, "length", length);
  dibs__cli_json_close(&j, '}');
  return dibs__cli_flush(g);
}

int dibs__cli_record(struct cli_call *call) {
  const struct cli_globals *g = &call->v.globals;
  const char *verb = call->pos[0], *key = call->pos[1];
  bool seals = strcmp(verb, "seal") == 0, saves = strcmp(verb, "save") == 0;
  if (!seals && !saves && strcmp(verb, "load") != 0)
    return dibs__cli_fail(g, CLI_USAGE, "INVALID", "'%.40s' is none of seal, save, load; see dibs help record", verb);
  struct cli_lease_in in = {0};
  char *data = NULL;
  size_t length = 0;
  dibs_store *store = NULL;
  dibs_lease *lease = NULL;
  int code = seals || saves ? dibs__cli_lease_in(call, 2, &in) : CLI_DONE;
  /* Before the store is opened: who writes into the pipe may take its time. */
  if (code == CLI_DONE && saves) code = read_all(g, &data, &length);
  if (code == CLI_DONE) code = dibs__cli_open(g, 0, &store);
  if (code == CLI_DONE && (seals || saves)) code = dibs__cli_lease_adopt(call, store, &in, &lease);
  if (code == CLI_DONE && seals)
    code = seal(g, store, key, lease);
  else if (code == CLI_DONE && saves)
    code = save(g, store, key, lease, data, length);
  else if (code == CLI_DONE)
    code = load(g, store, key);
  /* The lease is that of dibs run or dibs lock, and stays theirs. */
  if (lease != NULL) (void)!dibs_lease_detach(lease, NULL);
  dibs_lease_free(lease);
  dibs_close(store);
  free(data);
  return code;
}
