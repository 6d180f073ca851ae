/* SPDX-License-Identifier: MIT */
/*
 * `dibs gate fence NAME [--set FENCE]`: the highest fence of a name that gates have seen; setting it, after a client
 * has sent an invented one.
 */
#include "cli/gate.h"
#include "dibs/admin.h"
#include "gate/fence_record.h"

#include <getopt.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { OPT_HELP = 1, OPT_SET };

struct highest {
  uint64_t fence;
  struct fence_set set;
  char version[DIBS_VERSION_MAX + 1]; /* of the first record; "": there is none */
};

static int print_help(const struct cli_globals *g) {
  puts(
      "usage: dibs gate fence NAME [--set FENCE]\n\n"
      "Prints the highest fence of NAME that the gates of the store have seen; 0: none.\n\n"
      "  --set FENCE        from now on the gates pass fences of this name from FENCE on, also if they have seen a\n"
      "                     higher one.  Give the fence of the present holder, as dibs show NAME prints it.  It works\n"
      "                     at once and at all gates, and leaves a row in the history\n"
      "  --store URI        the store of the gates; else $DIBS_STORE, else dibs.ini, else a file\n\n"
      "Exit codes: 0 done; others as in dibs help exits.\n\n"
      "Example: dibs gate fence orders --set 42");
  return dibs__cli_flush(g);
}

/* ---- Reading ---- */

/* NULL: there is no such record. */
static dibs_status get(dibs_store *store, const char *name, uint32_t times, dibs_record **record, dibs_error *error) {
  char key[DIBS_NAME_MAX + 1];
  dibs__fence_key(name, times, key);
  *record = NULL;
  dibs_status status = dibs_record_get(store, key, NULL, record, error);
  return status == DIBS_NOT_FOUND ? DIBS_OK : status;
}

static dibs_status read_highest(dibs_store *store, const char *name, struct highest *h, dibs_error *error) {
  dibs_record *record = NULL;
  *h = (struct highest){.fence = 0};
  dibs_status status = get(store, name, 0, &record, error);
  if (status != DIBS_OK || !record) return status;
  const dibs_value *content = &record->values[0];
  h->fence = record->fence.value;
  strncpy(h->version, record->version, DIBS_VERSION_MAX);
  /* Content that no gate has written is replaced by --set: the gates refuse all fences because of it. */
  bool was_set = content->data && dibs__fence_set_read(content->data, content->length, &h->set);
  dibs_record_free(record);
  if (!was_set) return DIBS_OK;
  status = get(store, name, h->set.times, &record, error);
  h->fence = record && record->fence.value > h->set.fence ? record->fence.value : h->set.fence;
  dibs_record_free(record);
  return status;
}

static int print_highest(const struct cli_globals *g, const char *name, const struct highest *h) {
  if (g->json) {
    struct dibs__json j = {.out = stdout};
    dibs__json_open(&j, NULL, '{');
    dibs__json_text(&j, "name", name);
    dibs__json_uint(&j, "fence", h->fence);
    dibs__json_uint(&j, "times_set", h->set.times);
    dibs__json_close(&j, '}');
  } else {
    printf("%" PRIu64 "\n", h->fence);
  }
  return dibs__cli_flush(g);
}

/* ---- Setting ---- */

static dibs_status write_set(dibs_store *store, const char *name, const struct highest *h, const struct fence_set *set,
                             dibs_error *error) {
  char key[DIBS_NAME_MAX + 1], content[FENCE_SET_BYTES];
  dibs_value value = {content, dibs__fence_set_write(set, content)};
  dibs_record_options options = {.size = sizeof options,
                                 .if_version = h->version[0] ? h->version : NULL,
                                 .flags = h->version[0] ? 0 : DIBS_IF_ABSENT};
  dibs__fence_key(name, 0, key);
  return dibs_record_put(store, key, &value, 1, &options, NULL, error);
}

static void add_history(const struct cli_globals *g, dibs_store *store, const char *name, uint64_t before,
                        const struct fence_set *set) {
  char command[2 * DIBS_NAME_MAX];
  dibs_error error = {0};
  dibs_run_info run = {
      .size = sizeof run, .name = name, .kind = "gate", .command = command, .fence = {set->fence}, .host = g->owner};
  snprintf(command, sizeof command, "dibs gate fence %s --set %" PRIu64 " (it was %" PRIu64 ")", name, set->fence,
           before);
  if (dibs_runs_add(store, &run, &error) != DIBS_OK) dibs__cli_note(g, "the history has no row of it: %s", error.text);
}

static int set_highest(const struct cli_globals *g, dibs_store *store, const char *name, uint64_t fence,
                       struct highest *h) {
  dibs_error error = {0};
  struct fence_set set = {h->set.times + 1, fence};
  uint64_t before = h->fence;
  if (h->set.times == UINT32_MAX)
    return dibs__cli_fail(g, CLI_FAILED, "FULL", "the fence of \"%s\" was set too often", name);
  dibs_status status = write_set(store, name, h, &set, &error);
  if (status != DIBS_OK) return dibs__cli_fail_status(g, status, &error, name);
  h->fence = fence;
  h->set = set;
  add_history(g, store, name, before, &set);
  return CLI_DONE;
}

/* ---- The command ---- */

/* *set: NULL: --set was not given. */
static int read_line(struct cli_call *call, const char **name, const char **set, bool *help) {
  static const struct option options[] = {
      {"help", no_argument, NULL, OPT_HELP}, {"set", required_argument, NULL, OPT_SET}, {NULL, 0, NULL, 0}};
  const struct cli_globals *g = &call->v.globals;
  opterr = 0;
  optind = 1;
  /* The word "fence" takes the place of a program's name. */
  for (int option; (option = getopt_long(call->nrest - 1, call->rest + 1, ":", options, NULL)) != -1;) {
    if (option == OPT_HELP)
      *help = true;
    else if (option == OPT_SET)
      *set = optarg;
    else
      return dibs__cli_fail(g, CLI_USAGE, "INVALID",
                            option == ':' ? "gate fence: %.60s needs a value"
                                          : "gate fence: there is no option %.60s; see dibs gate fence --help",
                            call->rest[optind]);
  }
  *name = call->rest[optind + 1];
  if (!*help && call->nrest - 1 - optind != 1)
    return dibs__cli_fail(g, CLI_USAGE, "INVALID", "gate fence: give one name: dibs gate fence NAME");
  return CLI_DONE;
}

int dibs__cli_gate_fence(struct cli_call *call) {
  const struct cli_globals *g = &call->v.globals;
  const char *name = NULL, *text = NULL;
  uint64_t fence = 0;
  bool help = false;
  struct highest highest;
  dibs_store *store = NULL;
  dibs_error error = {0};
  int code = read_line(call, &name, &text, &help);
  if (code != CLI_DONE) return code;
  if (help) return print_help(g);
  if (text && (!dibs__cli_number(text, (UINT64_C(1) << 53) - 1, &fence) || fence == 0))
    return dibs__cli_fail(g, CLI_USAGE, "INVALID", "gate fence: --set: '%.40s' is not a fence", text);
  if (strlen(name) > DIBS_NAME_MAX || !*name)
    return dibs__cli_fail(g, CLI_USAGE, "INVALID", "gate fence: a name has 1 to %d bytes", DIBS_NAME_MAX);
  dibs_store_options options = {.size = sizeof options, .owner = g->owner};
  dibs_status status = dibs_open(g->store, &options, &store, &error);
  if (status != DIBS_OK) return dibs__cli_fail_status(g, status, &error, "cannot open the store");
  status = read_highest(store, name, &highest, &error);
  if (status != DIBS_OK)
    code = dibs__cli_fail_status(g, status, &error, name);
  else if (text)
    code = set_highest(g, store, name, fence, &highest);
  if (code == CLI_DONE) code = print_highest(g, name, &highest);
  dibs_close(store);
  return code;
}
