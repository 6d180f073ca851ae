/* SPDX-License-Identifier: MIT */
#ifndef DIBS_CLI_TIER_H
#define DIBS_CLI_TIER_H
/* How the tiers of a store stand, kept, and as people and programs read it.  For tier and stats. */
#include "cli/cli.h"

struct cli_tiers {
  dibs_tiers_info info;
  struct {
    dibs_tier_info info;
    char name[64], uri[256], trouble[200];
  } tier[DIBS_TIERS_MAX];
  size_t count;
  struct cli_tier_client {
    dibs_tier_client info;
    char owner[DIBS_OWNER_MAX + 1];
  } * client;
  size_t clients, room;
  bool full; /* no memory was left */
};

/* For dibs__cli_tiers_free in any case. */
dibs_status dibs__cli_tiers_look(dibs_store *store, struct cli_tiers *tiers, dibs_error *error);
void dibs__cli_tiers_free(struct cli_tiers *tiers);
/* Did the anchor say so just now? */
bool dibs__cli_tiers_confirmed(const struct cli_tiers *tiers);
/* A sentence or two on what matters, and the table. */
void dibs__cli_tiers_say(const struct cli_tiers *tiers, FILE *out);
void dibs__cli_tiers_table(const struct cli_tiers *tiers, size_t columns, FILE *out);
/* Clients that some tier fails. */
void dibs__cli_tiers_troubled(const struct cli_tiers *tiers, size_t columns, FILE *out);
/* As the members of an object. */
void dibs__cli_tiers_json(const struct cli_tiers *tiers, struct cli_json *json);
void dibs__cli_tiers_counts_json(const uint64_t counts[DIBS_TIERS_COUNTS], struct cli_json *json, const char *key);
const char *dibs__cli_tiers_count_name(size_t nth);
const char *dibs__cli_strictness_name(dibs_strictness strictness);

#endif
