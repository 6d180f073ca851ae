/* SPDX-License-Identifier: MIT */
/* `dibs lane`: its forms but for run (lane_run.c). */
#include "cli/lane.h"
#include "base/duration.h"
#include "base/text.h"

#include <inttypes.h>
#include <string.h>
#include <unistd.h>

static void print_line(const struct cli_globals *g, const char *topic, const dibs_lane_topic_info *info) {
  dibs__cli_put(stdout, topic, 0);
  printf(": %" PRIu32 " lane%s, %" PRIu32 " member%s", info->lanes, info->lanes == 1 ? "" : "s", info->members,
         info->members == 1 ? "" : "s");
  if (info->leaving > 0) printf("; members of an earlier number of lanes that must end first: %" PRIu32, info->leaving);
  putchar('\n');
  if (!info->recorded)
    dibs__cli_note(g, "this store keeps no records: the topic has its number of lanes only as long as it has members");
}

/* ---- ls ---- */

struct lanes {
  struct dibs__json json;
  struct cli_table *table; /* NULL: JSON */
  bool failed;
};

static int list_json(const dibs_lane_info *lane, void *user) {
  struct dibs__json *j = &((struct lanes *)user)->json;
  bool owned = lane->owner != NULL;
  dibs__json_open(j, NULL, '{');
  dibs__json_uint(j, "lane", lane->lane);
  dibs__json_uint(j, "lanes", lane->lanes);
  dibs__json_text(j, "owner", lane->owner);
  dibs__json_known(j, "fence", (int64_t)lane->fence.value, owned);
  dibs__json_known(j, "left_ms", lane->left_ms, owned);
  dibs__json_known(j, "age_ms", lane->age_ms, owned && lane->age_ms >= 0);
  dibs__json_close(j, '}');
  return 0;
}

static int list_row(const dibs_lane_info *lane, void *user) {
  struct lanes *all = user;
  char number[40], fence[24] = "", left[24] = "", age[24] = "";
  snprintf(number, sizeof number, "%" PRIu32 "/%" PRIu32, lane->lane, lane->lanes);
  if (lane->owner != NULL) {
    snprintf(fence, sizeof fence, "%" PRIu64, lane->fence.value);
    dibs__duration_write(left, sizeof left, lane->left_ms);
    if (lane->age_ms >= 0) dibs__duration_write(age, sizeof age, lane->age_ms);
  }
  all->failed = !dibs__cli_table_add(all->table, number) ||
                !dibs__cli_table_add(all->table, lane->owner != NULL ? lane->owner : "-") ||
                !dibs__cli_table_add(all->table, fence) || !dibs__cli_table_add(all->table, age) ||
                !dibs__cli_table_add(all->table, left);
  return all->failed;
}

static int list_lanes(const struct cli_globals *g, dibs_store *store, const char *topic) {
  static const char *const heads[] = {"=LANE", "*OWNER", ">FENCE", "->FOR", "->LEFT", NULL};
  dibs_lane_topic_info info = DIBS_LANE_TOPIC_INFO_INIT;
  struct lanes all = {.json = {0}};
  dibs_error error = {0};
  if (g->json) {
    dibs__json_open(&all.json, NULL, '[');
  } else if ((all.table = dibs__cli_table_new(heads)) == NULL) {
    return dibs__cli_fail(g, CLI_FAILED, "NO_MEMORY", "out of memory");
  }
  dibs_status status = dibs_lane_list(store, topic, &info, g->json ? list_json : list_row, &all, &error);
  if (g->json) dibs__json_close(&all.json, ']');
  bool fine = status == DIBS_OK && !all.failed && !all.json.failed;
  if (fine && g->json) {
    struct dibs__json j = {.out = stdout};
    dibs__json_open(&j, NULL, '{');
    dibs__json_text(&j, "topic", topic);
    dibs__json_uint(&j, "lanes", info.lanes);
    dibs__json_uint(&j, "members", info.members);
    dibs__json_uint(&j, "leaving", info.leaving);
    dibs__json_bool(&j, "recorded", info.recorded != 0);
    size_t length = all.json.length;
    while (length > 0 && all.json.text[length - 1] == '\n') length--;
    dibs__json_raw(&j, "list", all.json.text, length);
    dibs__json_close(&j, '}');
  } else if (fine) {
    print_line(g, topic, &info);
    dibs__cli_table_print(all.table, dibs__cli_columns(STDOUT_FILENO), stdout);
  }
  dibs__cli_table_free(all.table);
  dibs__json_free(&all.json);
  if (status != DIBS_OK) return dibs__cli_fail_status(g, status, &error, topic);
  return fine ? dibs__cli_flush(g) : dibs__cli_fail(g, CLI_FAILED, "NO_MEMORY", "out of memory");
}

/* ---- of ---- */

struct one_lane {
  uint32_t lane, lanes;
  uint64_t fence;
  char owner[DIBS_OWNER_MAX + 1]; /* "": none */
};

static int find_lane(const dibs_lane_info *lane, void *user) {
  struct one_lane *one = user;
  if (lane->lanes != one->lanes || lane->lane != one->lane || lane->owner == NULL) return 0;
  one->fence = lane->fence.value;
  snprintf(one->owner, sizeof one->owner, "%s", lane->owner);
  return 1;
}

static int lane_of(const struct cli_globals *g, dibs_store *store, const char *topic, const char *key) {
  dibs_lane_topic_info info = DIBS_LANE_TOPIC_INFO_INIT;
  struct one_lane one = {.lane = 0};
  dibs_error error = {0};
  dibs_status status = dibs_lane_list(store, topic, &info, NULL, NULL, &error);
  one.lanes = info.lanes;
  one.lane = dibs_lane_of(key, strlen(key), info.lanes);
  if (status == DIBS_OK && g->json) status = dibs_lane_list(store, topic, NULL, find_lane, &one, &error);
  if (status != DIBS_OK) return dibs__cli_fail_status(g, status, &error, topic);
  if (!g->json) {
    printf("%" PRIu32 "\n", one.lane);
    return dibs__cli_flush(g);
  }
  struct dibs__json j = {.out = stdout};
  dibs__json_open(&j, NULL, '{');
  dibs__json_text(&j, "topic", topic);
  dibs__json_text(&j, "key", key);
  dibs__json_uint(&j, "lane", one.lane);
  dibs__json_uint(&j, "lanes", one.lanes);
  dibs__json_text(&j, "owner", one.owner[0] != '\0' ? one.owner : NULL);
  dibs__json_known(&j, "fence", (int64_t)one.fence, one.owner[0] != '\0');
  dibs__json_close(&j, '}');
  return dibs__cli_flush(g);
}

/* ---- resize ---- */

static int resize(const struct cli_values *v, dibs_store *store, const char *topic) {
  const struct cli_globals *g = &v->globals;
  dibs_error error = {0};
  int64_t wait_ms = v->wait_ms == CLI_UNSET ? DIBS_FOREVER : v->wait_ms;
  dibs_status status = dibs_lane_resize(store, topic, (uint32_t)v->lanes, wait_ms, &error);
  if (status != DIBS_OK) return dibs__cli_fail_status(g, status, &error, topic);
  if (g->json) {
    struct dibs__json j = {.out = stdout};
    dibs__json_open(&j, NULL, '{');
    dibs__json_text(&j, "topic", topic);
    dibs__json_uint(&j, "lanes", (uint64_t)v->lanes);
    dibs__json_close(&j, '}');
  }
  return dibs__cli_flush(g);
}

/* ---- The command ---- */

enum form { FORM_RUN, FORM_KAFKA, FORM_LS, FORM_OF, FORM_RESIZE, FORMS };

static const struct {
  const char *word;
  int arguments; /* with the topic */
  cli_option_set options;
} forms[FORMS] = {
    [FORM_RUN] = {"run", 1,
                  CLI_TAKES(lanes) | CLI_TAKES(ttl) | CLI_TAKES(grace) | CLI_TAKES(exec) | CLI_TAKES(verbose)},
    [FORM_KAFKA] = {"kafka", 1,
                    CLI_TAKES(brokers) | CLI_TAKES(group) | CLI_TAKES(setting) | CLI_TAKES(jobs) | CLI_TAKES(ttl) |
                        CLI_TAKES(grace) | CLI_TAKES(exec) | CLI_TAKES(verbose) | CLI_TAKES(sql)},
    [FORM_LS] = {"ls", 1, 0},
    [FORM_OF] = {"of", 2, 0},
    [FORM_RESIZE] = {"resize", 1, CLI_TAKES(lanes) | CLI_TAKES(wait)},
};

static int check_form(const struct cli_call *call, enum form form) {
  const struct cli_values *v = &call->v;
  const struct cli_globals *g = &v->globals;
  const char *word = forms[form].word;
  cli_option_set stray = call->given & ~(forms[form].options | CLI_TAKES_GLOBALS);
  if (stray != 0)
    return dibs__cli_fail(g, CLI_USAGE, "INVALID", "dibs lane %s does not take --%s; see dibs help lane", word,
                          dibs__cli_first_option(stray));
  if (call->npos != forms[form].arguments + 1)
    return dibs__cli_fail(g, CLI_USAGE, "INVALID", "dibs lane %s takes %s; see dibs help lane", word,
                          form == FORM_OF ? "a topic and a key" : "one topic");
  if ((forms[form].options & CLI_TAKES(lanes)) && v->lanes == CLI_UNSET)
    return dibs__cli_fail(g, CLI_USAGE, "INVALID", "--lanes P is missing: give the number of lanes of '%s', 1 to %d",
                          call->pos[1], DIBS_LANES_MAX);
  bool runs = form == FORM_RUN || form == FORM_KAFKA;
  if (!runs && call->nrest > 0)
    return dibs__cli_fail(g, CLI_USAGE, "INVALID", "dibs lane %s runs no command; see dibs help lane", word);
  if (runs && (v->exec != NULL) == (call->nrest > 0))
    return dibs__cli_fail(g, CLI_USAGE, "INVALID", "%s",
                          v->exec != NULL    ? "give the command with --exec, or after --, and not both"
                          : form == FORM_RUN ? "the command to run is missing: dibs lane run TOPIC "
                                               "--lanes P -- CMD [ARG...]"
                                             : "the command to run is missing: dibs lane kafka TOPIC "
                                               "--brokers HOST:PORT --group GROUP -- CMD [ARG...]");
  return CLI_DONE;
}

int dibs__cli_lane(struct cli_call *call) {
  const struct cli_values *v = &call->v;
  const struct cli_globals *g = &v->globals;
  enum form form = FORM_RUN;
  while (form < FORMS && strcmp(call->pos[0], forms[form].word) != 0) form++;
  if (form == FORMS)
    return dibs__cli_fail(g, CLI_USAGE, "INVALID", "dibs lane has run, kafka, ls, of and resize, and not '%.40s'",
                          call->pos[0]);
  int code = check_form(call, form);
  if (code != CLI_DONE) return code;
  if (form == FORM_RUN) return dibs__cli_lane_run(call);
  if (form == FORM_KAFKA) return dibs__cli_lane_kafka(call);
  dibs_store *store = NULL;
  code = dibs__cli_open(g, 0, &store);
  if (code != CLI_DONE) return code;
  if (form == FORM_LS)
    code = list_lanes(g, store, call->pos[1]);
  else if (form == FORM_OF)
    code = lane_of(g, store, call->pos[1], call->pos[2]);
  else
    code = resize(v, store, call->pos[1]);
  dibs_close(store);
  return code;
}
