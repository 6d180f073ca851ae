/* SPDX-License-Identifier: MIT */
/* Several tiers as one store: their state, their breakers, and the flags.  One store alone answers 501. */
#include "info/info.h"
#include "serve/page.h"

#include <string.h>

/* ---- Tiers ---- */

enum { CLIENTS_MOST = 1000 }; /* in one answer */

struct tiers_listing {
  struct dibs__json *json;
  char names[DIBS_TIERS_MAX][64];
  uint32_t tiers, clients;
  bool clients_begun;
};

static const char *name_of(const void *tiers, size_t nth) {
  const struct tiers_listing *l = tiers;
  return nth < l->tiers ? l->names[nth] : NULL;
}

static int add_tier(const dibs_tier_info *tier, void *user) {
  struct tiers_listing *l = user;
  struct dibs__json *j = l->json;
  if (l->tiers < DIBS_TIERS_MAX && strlen(tier->name) < sizeof l->names[0])
    memcpy(l->names[l->tiers++], tier->name, strlen(tier->name) + 1);
  dibs__json_open(j, NULL, '{');
  dibs__json_text(j, "name", tier->name);
  dibs__json_text(j, "store", tier->uri);
  dibs__info_tier(j, tier);
  dibs__json_close(j, '}');
  return 0;
}

static void begin_clients(struct tiers_listing *l) {
  if (l->clients_begun) return;
  l->clients_begun = true;
  dibs__json_close(l->json, ']');
  dibs__json_open(l->json, "clients", '[');
}

static int add_client(const dibs_tier_client *client, void *user) {
  struct tiers_listing *l = user;
  struct dibs__json *j = l->json;
  begin_clients(l);
  dibs__json_open(j, NULL, '{');
  dibs__info_tier_client(j, client, name_of, l);
  dibs__json_close(j, '}');
  return ++l->clients == CLIENTS_MOST;
}

static void write_whole(struct tiers_listing *l, const dibs_tiers_info *info) {
  struct dibs__json *j = l->json;
  begin_clients(l);
  dibs__json_close(j, ']');
  dibs__info_tiers(j, info, name_of, l);
  dibs__json_uint(j, "client_count", info->clients);
  dibs__info_counts(j, info->all);
}

static void list_tiers(struct request *r) {
  dibs_error error = {0};
  dibs_tiers_info info = DIBS_TIERS_INFO_INIT;
  struct tiers_listing l = {.json = dibs__answer_begin(r, 200)};
  dibs__json_open(l.json, NULL, '{');
  dibs__json_open(l.json, "tiers", '[');
  dibs_status status = dibs_tiers(r->server->store, &info, add_tier, add_client, &l, &error);
  if (status != DIBS_OK) {
    dibs__answer_problem(r, status, &error);
    return;
  }
  write_whole(&l, &info);
  dibs__json_close(l.json, '}');
}

static void get_tiers(struct request *r) {
  dibs__pool_run(r, list_tiers, NULL);
}

/* ---- Breakers ---- */

struct breaker_in {
  int32_t hand;
};
struct finding {
  struct dibs__json *json;
  const char *tier; /* NULL: all */
  bool found;
};

static int add_breaker(const dibs_tier_info *tier, void *user) {
  struct finding *f = user;
  struct dibs__json *j = f->json;
  if (f->tier && strcmp(f->tier, tier->name) != 0) return 0;
  f->found = true;
  dibs__json_open(j, NULL, '{');
  dibs__json_text(j, "tier", tier->name);
  dibs__json_text(j, "breaker", dibs__info_breakers[tier->breaker]);
  dibs__json_text(j, "mode", dibs__info_breaker_hands[tier->hand]);
  dibs__json_bool(j, "down", tier->down);
  dibs__json_uint(j, "calls", tier->calls);
  dibs__json_uint(j, "failed_percent", tier->failed_percent);
  dibs__json_uint(j, "slow_percent", tier->slow_percent);
  dibs__json_uint(j, "clients_down", tier->clients_down);
  dibs__json_uint(j, "clients_up", tier->clients_well);
  dibs__json_known(j, "state_age_ms", tier->turned_ms, tier->turned_ms >= 0);
  dibs__json_close(j, '}');
  return 0;
}

static void list_breakers(struct request *r) {
  dibs_error error = {0};
  struct finding f = {.json = dibs__answer_begin(r, 200)};
  dibs__json_open(f.json, NULL, '{');
  dibs__json_open(f.json, "breakers", '[');
  dibs_status status = dibs_tiers(r->server->store, NULL, add_breaker, NULL, &f, &error);
  dibs__json_close(f.json, ']');
  dibs__json_close(f.json, '}');
  if (status != DIBS_OK) dibs__answer_problem(r, status, &error);
}

static void get_breakers(struct request *r) {
  dibs__pool_run(r, list_breakers, NULL);
}

static const struct field breaker_fields[] = {
    {.name = "mode",
     .kind = FIELD_WORD,
     .at = offsetof(struct breaker_in, hand),
     .words = dibs__info_breaker_hands,
     .help =
         "auto, the default: the votes of the clients decide; open: treated as down; closed: never treated as down"},
    {.name = NULL}};

static int see_tier(const dibs_tier_info *tier, void *user) {
  struct finding *f = user;
  f->found = f->found || strcmp(f->tier, tier->name) == 0;
  return 0;
}

static void set_breaker(struct request *r) {
  const struct breaker_in *in = r->in;
  dibs_error error = {0};
  struct finding f = {.tier = r->param[0]};
  dibs_status status = dibs_tiers(r->server->store, NULL, see_tier, NULL, &f, &error);
  if (status == DIBS_OK && !f.found) {
    dibs__answer_refuse(r, 404, "not-found", "there is no tier \"%.64s\"; /v1/tiers lists them", r->param[0]);
    return;
  }
  if (status == DIBS_OK) status = dibs_tier_switch(r->server->store, r->param[0], (dibs_hand)in->hand, &error);
  if (status != DIBS_OK) {
    dibs__answer_problem(r, status, &error);
    return;
  }
  struct dibs__json *j = dibs__answer_begin(r, 200);
  dibs__json_open(j, NULL, '{');
  dibs__json_text(j, "tier", r->param[0]);
  dibs__json_text(j, "mode", dibs__info_breaker_hands[in->hand]);
  dibs__json_close(j, '}');
}

static void put_breaker(struct request *r) {
  dibs__pool_run(r, set_breaker, NULL);
}

/* ---- Flags ---- */

struct flag_in {
  int64_t percent;
};
static const struct field flag_fields[] = {{.name = "percent",
                                            .kind = FIELD_NUMBER,
                                            .at = offsetof(struct flag_in, percent),
                                            .most = 100,
                                            .needed = true,
                                            .help = "0: off; 100: on; of a tier: for that part of the names"},
                                           {.name = NULL}};

static void write_flag(struct dibs__json *j, const char *name, uint32_t percent) {
  dibs__json_open(j, NULL, '{');
  dibs__json_text(j, "name", name);
  dibs__json_uint(j, "percent", percent);
  dibs__json_close(j, '}');
}

static int add_flag(const char *name, uint32_t percent, void *user) {
  write_flag(user, name, percent);
  return 0;
}

static void list_flags(struct request *r) {
  dibs_error error = {0};
  struct dibs__json *j = dibs__answer_begin(r, 200);
  dibs__json_open(j, NULL, '{');
  dibs__json_open(j, "flags", '[');
  dibs_status status = dibs_flags(r->server->store, add_flag, j, &error);
  dibs__json_close(j, ']');
  dibs__json_close(j, '}');
  if (status != DIBS_OK) dibs__answer_problem(r, status, &error);
}

static void get_flags(struct request *r) {
  dibs__pool_run(r, list_flags, NULL);
}

/* An unknown flag is INVALID, with a text that lists the flags. */
static void show_flag(struct request *r) {
  dibs_error error = {0};
  uint32_t percent;
  dibs_status status = dibs_flag_get(r->server->store, r->param[0], &percent, &error);
  if (status == DIBS_OK)
    write_flag(dibs__answer_begin(r, 200), r->param[0], percent);
  else
    dibs__answer_problem(r, status == DIBS_INVALID ? DIBS_NOT_FOUND : status, &error);
}

static void get_flag(struct request *r) {
  dibs__pool_run(r, show_flag, NULL);
}

static void set_flag(struct request *r) {
  uint32_t percent = (uint32_t)((const struct flag_in *)r->in)->percent;
  dibs_error error = {0};
  dibs_status status = dibs_flag_set(r->server->store, r->param[0], percent, &error);
  if (status == DIBS_OK)
    write_flag(dibs__answer_begin(r, 200), r->param[0], percent);
  else
    dibs__answer_problem(r, status == DIBS_INVALID ? DIBS_NOT_FOUND : status, &error);
}

static void put_flag(struct request *r) {
  dibs__pool_run(r, set_flag, NULL);
}

/* ---- The routes ---- */

const struct route dibs__fleet_routes[] = {
    {METHOD_GET, "/v1/tiers", SCOPE_READ, get_tiers, 0, NULL, "listTiers", "200",
     "The tiers of the store, and the clients that report their state", "501: the store is one store.", NULL},
    {METHOD_GET, "/v1/breakers", SCOPE_READ, get_breakers, 0, NULL, "listBreakers", "200",
     "The breaker of each tier, as this daemon and the votes of all clients have it", "501: the store is one store.",
     NULL},
    {METHOD_PUT, "/v1/breakers/{tier}", SCOPE_ADMIN, put_breaker, sizeof(struct breaker_in), breaker_fields,
     "setBreaker", "200 404", "Open or close the breaker of a tier by hand, for all clients", "", NULL},
    {METHOD_GET, "/v1/flags", SCOPE_READ, get_flags, 0, NULL, "listFlags", "200", "The flags of the tiers",
     "501: the store is one store.", NULL},
    {METHOD_GET, "/v1/flags/{flag}", SCOPE_READ, get_flag, 0, NULL, "showFlag", "200 404", "A flag", "", NULL},
    {METHOD_PUT, "/v1/flags/{flag}", SCOPE_ADMIN, put_flag, sizeof(struct flag_in), flag_fields, "setFlag", "200 404",
     "Set a flag for all clients", "", NULL},
    {.path = NULL}};
