/* SPDX-License-Identifier: MIT */
/* Opening the store, and turning options into those of the library. */
#include "base/port.h"
#include "base/text.h"
#include "cli/cli.h"
#include "store/locate.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { CWD_MAX = 4096 };

int dibs__cli_open(const struct cli_globals *globals, uint32_t flags, dibs_store **store) {
  dibs_store_options options = {.size = sizeof options, .flags = flags, .owner = globals->owner};
  dibs_error error = {0};
  dibs_status status = dibs_open(globals->store, &options, store, &error);
  if (status == DIBS_OK) return CLI_DONE;
  return dibs__cli_fail_status(globals, status, &error, "the store can't be opened");
}

int dibs__cli_table(const struct cli_call *call, dibs_table **table) {
  char file[CWD_MAX];
  const char *given = call->v.table, *mark = given != NULL ? strrchr(given, '#') : NULL;
  dibs_error error = {0};
  *table = NULL;
  if (given == NULL) return CLI_DONE;
  size_t length = mark != NULL ? (size_t)(mark - given) : strlen(given);
  if (length == 0 || length >= sizeof file)
    return dibs__cli_fail(&call->v.globals, CLI_USAGE, "INVALID", "--table: '%.60s' is no FILE or FILE#SECTION", given);
  memcpy(file, given, length);
  file[length] = '\0';
  dibs_status status = dibs_table_read(file, mark != NULL ? mark + 1 : NULL, table, &error);
  if (status == DIBS_OK) return CLI_DONE;
  /* A file or section that is not there is a word that is wrong, not a store that is down. */
  int code = status == DIBS_NO_MEMORY ? CLI_FAILED : CLI_USAGE;
  return dibs__cli_fail(&call->v.globals, code, dibs_status_name(status), "--table: %s", error.text);
}

char *dibs__cli_store_uri(const struct cli_globals *globals, const dibs_store *store) {
  const char *uri = globals->store != NULL ? globals->store : dibs_store_uri(store);
  char cwd[CWD_MAX];
  return getcwd(cwd, sizeof cwd) != NULL ? dibs__locate_from(uri, cwd) : strdup(uri);
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
