/* SPDX-License-Identifier: MIT */
#include "bed.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { STORES = 8, RAWS = 16 };

const struct server *server;
dibs_error reported;
static const char *given_uri;
static char user_name[64], user_uri[512];
static void *admins[2], *raws[RAWS];
static dibs_store *stores[STORES];
static size_t raw_count, store_count;

void bed_begin(int argc, char *argv[]) {
  const struct server *all[] = {
#ifdef WITH_POSTGRES
      &server_postgres,
#endif
#ifdef WITH_MYSQL
      &server_mysql,
#endif
#ifdef WITH_REDIS
      &server_redis,
#endif
      NULL};
  for (size_t i = 0; argc > 1 && all[i]; i++)
    if (strncmp(argv[1], all[i]->scheme, strlen(all[i]->scheme)) == 0) server = all[i];
  if (!server) exit(77);
  given_uri = argv[1];
}

static void *admin_of(size_t nth) {
  char variable[64] = "DIBS_TEST_";
  for (size_t i = 0, n = strlen(variable); i < strlen(server->scheme); i++)
    variable[n + i] = (char)(server->scheme[i] - 'a' + 'A');
  memcpy(variable + strlen(variable), "_ADMIN", sizeof "_ADMIN");
  if (!admins[nth] && getenv(variable)) admins[nth] = server->open(getenv(variable));
  if (!admins[nth]) fail_msg("the administrator's URI %s is not set", variable);
  return admins[nth];
}

void *admin(void) {
  return admin_of(0);
}

void *locker(void) {
  return admin_of(1);
}

const char *user(void) {
  return user_name;
}

const char *limited(uint32_t most) {
  static uint32_t cases;
  snprintf(user_name, sizeof user_name, "full_%d_%u", (int)getpid(), ++cases);
  server->limit(admin(), given_uri, user_name, most, user_uri, sizeof user_uri);
  return user_uri;
}

dibs_store *open_at(const char *uri) {
  assert_true(store_count < STORES);
  dibs_store **store = &stores[store_count];
  if (dibs_open(uri, NULL, store, &reported) != DIBS_OK) fail_msg("%s", reported.text);
  store_count++;
  return *store;
}

uint32_t fill(void) {
  uint32_t count = 0;
  while (raw_count < RAWS && (raws[raw_count] = server->open(user_uri))) raw_count++, count++;
  return count;
}

void give_one_back(void) {
  assert_true(raw_count > 0);
  server->close(raws[--raw_count]);
}

void give_all_back(void) {
  while (raw_count > 0) give_one_back();
}

uint32_t connections(void) {
  return server->count(admin(), user_name) - (uint32_t)raw_count;
}

void take_over(void) {
  for (int i = 0; i < 200 && connections() > 0; i++) {
    give_all_back();
    server->kill(admin(), user_name, true);
    fill();
    dibs__nap_ms(1);
  }
  assert_int_equal(connections(), 0);
}

int64_t ms_since(dibs__tick from) {
  return (dibs__tick_now().ns - from.ns) / DIBS__NS_PER_MS;
}

dibs_lease *take(dibs_store *store, const char *name, int64_t ttl_ms) {
  dibs_lease_options how = {.size = sizeof how, .ttl_ms = ttl_ms};
  dibs_lease *lease = NULL;
  if (dibs_acquire(store, name, &how, &lease, &reported) != DIBS_OK) fail_msg("%s: %s", name, reported.text);
  return lease;
}

int bed_end_case(void **state) {
  (void)state;
  if (admins[1]) server->close(admins[1]); /* after a failed case it still holds a lock */
  admins[1] = NULL;
  give_all_back();
  while (store_count > 0) dibs_close(stores[--store_count]);
  if (user_name[0]) server->unlimit(admin(), user_name);
  user_name[0] = '\0';
  return 0;
}
