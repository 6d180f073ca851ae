/* SPDX-License-Identifier: MIT */
#include "tiers_bed.h"

dibs_error error;

void command(const char *text) {
  if (system(text) != 0) fail_msg("%s failed", text);
}

void servers(const char *verb, const char *which) {
  char text[512];
  snprintf(text, sizeof text, "'%s' %s --dir '%s' %s >/dev/null", getenv("DIBS_TEST_SERVERS_SCRIPT"), verb,
           getenv("DIBS_TEST_SERVERS_DIR"), which);
  command(text);
}

void server_uri(const char *variable, char *to, size_t size) {
  char text[512], line[1024];
  snprintf(text, sizeof text, "'%s' env --dir '%s'", getenv("DIBS_TEST_SERVERS_SCRIPT"),
           getenv("DIBS_TEST_SERVERS_DIR"));
  FILE *from = popen(text, "r");
  assert_non_null(from);
  *to = '\0';
  while (fgets(line, sizeof line, from)) {
    char *at = strstr(line, variable);
    if (!at || at[strlen(variable)] != '=') continue;
    at += strlen(variable) + 2; /* ='...' */
    snprintf(to, size, "%.*s", (int)strcspn(at, "'"), at);
  }
  assert_int_equal(pclose(from), 0);
  if (!*to) fail_msg("script/servers env does not print %s", variable);
}

dibs_store *open_at(const char *at) {
  dibs_store *store;
  if (dibs_open(at, NULL, &store, &error) != DIBS_OK) fail_msg("%s: %s", at, error.text);
  return store;
}

void fine_at(int line, dibs_status got) {
  if (got != DIBS_OK) fail_msg("line %d: %s: %s", line, dibs_status_name(got), error.text);
}

dibs_status take(dibs_store *store, const char *name, int64_t wait_ms, dibs_lease **lease) {
  dibs_lease_options o = {.size = sizeof o, .ttl_ms = TTL_MS, .wait_ms = wait_ms};
  return dibs_acquire(store, name, &o, lease, &error);
}

dibs_lease *take_in_the_end(dibs_store *store, const char *name) {
  dibs_lease *lease = NULL;
  dibs__tick by = dibs__tick_add_ms(dibs__tick_now(), SOON_MS);
  while (take(store, name, 0, &lease) != DIBS_OK) {
    if (!dibs__tick_before(dibs__tick_now(), by)) fail_msg("\"%s\" was never granted: %s", name, error.text);
    dibs__nap_ms(1);
  }
  return lease;
}

void give(dibs_lease *lease) {
  (void)dibs_release(lease, &error);
  dibs_lease_free(lease);
}

static int see(const dibs_tier_info *tier, void *user) {
  struct seen *seen = user;
  seen->buckets[seen->count++] = tier->buckets;
  return 0;
}
struct seen look(dibs_store *store) {
  struct seen seen = {.count = 0};
  dibs_tiers_info info = {.size = sizeof info};
  FINE(dibs_tiers(store, &info, see, NULL, &seen, &error));
  assert_int_equal(seen.count, 2);
  assert_int_equal(seen.buckets[0] + seen.buckets[1], DIBS__BUCKETS);
  return seen;
}

void until_on(dibs_store *store, int tier) {
  dibs__tick by = dibs__tick_add_ms(dibs__tick_now(), SOON_MS);
  while (look(store).buckets[tier] != DIBS__BUCKETS) {
    if (!dibs__tick_before(dibs__tick_now(), by))
      fail_msg("not all buckets are on tier %d: %u", tier, look(store).buckets[tier]);
    dibs__nap_ms(5);
  }
}
