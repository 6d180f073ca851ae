/* SPDX-License-Identifier: MIT */
/*
 * Refusals and their messages: on a real server if it can be brought into the state, otherwise on a server of the
 * test's own.
 */
#include "bed.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct dibs__redis_location *location;

static int begin(void **state) {
  (void)state;
  location = bed_location(bed_uri);
  return 0;
}

static int end(void **state) {
  (void)state;
  dibs__redis_location_free(location);
  return 0;
}

/* The same server with another user; "secret" is in each password, and must not be printed. */
static const char *as(const char *who, const char *rest) {
  static char uri[512];
  snprintf(uri, sizeof uri, "redis://%s%s:%u%s", who, location->hosts[0].host, location->hosts[0].port, rest);
  return uri;
}

/* ---- URIs ---- */

static void invalid_uris_are_refused(void **state) {
  (void)state;
  static const struct {
    const char *uri, *words;
  } cases[] = {
      {"redis://u:secret@h1,h2/0", "sentinel=NAME"},
      {"redis://h/0?evict=yes", "has no parameter evict"},
      {"redis://h/zero", "is a number"},
      {"redis://h/-1", "is a number"},
      {"redis://h/0/1", "is a number"},
      {"redis://h/99999999", "is a number"},
      {"redis:0", "is a number"},
      {"redis://h/0?socket=/tmp/s", "either a host or socket="},
      {"redis:///0?socket=s", "absolute path"},
      {"redis://h/0?prefix=", "prefix="},
      {"redis://h/0?prefix=a{b}", "prefix="},
      {"redis://h/0?prefix=a*", "prefix="},
      {"redis://h/0?connect_timeout=1", "connect_timeout"},
      {"redis://h/0?sentinel_password=secret", "sentinel=NAME"},
      {"redis:///0?sentinel=m", "sentinels as hosts"},
      {"redis:///0?sentinel=m&socket=/tmp/s", "sentinels as hosts"},
      {"redis://user@h/0", "no password"},
      {"redis://h1,h2/0?sentinel=m&sentinel_user=u", "no password"},
      {"redis://1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17?sentinel=m", "more than 16 hosts"},
  };
  for (size_t i = 0; i < COUNT_OF(cases); i++) bed_refused(cases[i].uri, DIBS_INVALID, cases[i].words);
}

static void uris_are_read(void **state) {
  (void)state;
  struct dibs__redis_location *p =
      bed_location("redis://u%40:p%3A%2f@[::1],ho%73t:7000,c/12?sentinel=ma%20in&prefix=app.1"
                   "&sentinel_user=su&sentinel_password=sp&connect_timeout=250");
  assert_string_equal(p->user, "u@");
  assert_string_equal(p->password, "p:/");
  assert_int_equal(p->host_count, 3);
  assert_string_equal(p->hosts[0].host, "::1");
  assert_int_equal(p->hosts[0].port, 26379);
  assert_string_equal(p->hosts[1].host, "host");
  assert_int_equal(p->hosts[1].port, 7000);
  assert_string_equal(p->hosts[2].host, "c");
  assert_int_equal(p->database, 12);
  assert_string_equal(p->sentinel, "ma in");
  assert_string_equal(p->sentinel_user, "su");
  assert_string_equal(p->sentinel_password, "sp");
  assert_string_equal(p->prefix, "app.1");
  assert_int_equal(p->connect_timeout_ms, 250);
  assert_null(strstr(p->shown, "p%3A"));
  dibs__redis_location_free(p);
  p = bed_location("redis://:p@");
  assert_string_equal(p->hosts[0].host, "localhost");
  assert_int_equal(p->hosts[0].port, 6379);
  assert_string_equal(p->prefix, "dibs");
  assert_int_equal(p->database, 0);
  dibs__redis_location_free(p);
}

/* ---- Users ---- */

static void a_rejected_login_has_a_message(void **state) {
  (void)state;
  bed_refused(as("", "/0"), DIBS_DENIED, "NOAUTH");
  bed_refused(as("dibs:wrong-secret@", "/0"), DIBS_DENIED, "check the user and the password");
  bed_refused(as("nobody:dibs-secret@", "/0"), DIBS_DENIED, "check the user and the password");
  bed_refused(as(":dibs-secret@", "/0"), DIBS_DENIED, "check the user and the password");
  bed_refused(as("dibs:dibs-secret@", "/4000"), DIBS_INVALID, "another database");
}

static void a_missing_right_is_named(void **state) {
  (void)state;
  ADMIN("ACL", "SETUSER", "poor", "reset", "on", ">secret", "~dibs:*", "+ping");
  bed_refused(as("poor:secret@", "/0"), DIBS_DENIED, "'info'");
  bed_refused(as("poor:secret@", "/0"), DIBS_DENIED, "ACL SETUSER");
  bed_refused(as("poor:secret@", "/1"), DIBS_DENIED, "'select'");
  ADMIN("ACL", "DELUSER", "poor");
}

/* The rights that doc/internals/redis.md lists. */
static void a_user_with_the_documented_rights_is_accepted(void **state) {
  (void)state;
  ADMIN("ACL", "SETUSER", "lean", "reset", "on", ">secret", "~dibs:*", "&dibs:*", "+info", "+select");
  struct dibs__redis_location *p = bed_location(as("lean:secret@", "/3"));
  dibs__redis_disconnect(bed_connect(p));
  dibs__redis_location_free(p);
  ADMIN("ACL", "DELUSER", "lean");
}

static void a_password_without_need_is_refused(void **state) {
  (void)state;
  struct fake fake = {.error = "-ERR AUTH <password> called without any password configured for the default user.\r\n"};
  char uri[128];
  fake_start(&fake);
  snprintf(uri, sizeof uri, "redis://:secret@127.0.0.1:%u/0", fake.port);
  bed_refused(uri, DIBS_DENIED, "no password");
  fake_stop(&fake);
}

/* ---- Servers ---- */

static void a_server_that_may_evict_is_refused(void **state) {
  (void)state;
  static const char *const policies[] = {"allkeys-lru",  "allkeys-lfu",     "allkeys-random", "volatile-lru",
                                         "volatile-lfu", "volatile-random", "volatile-ttl"};
  for (size_t i = 0; i < COUNT_OF(policies); i++) {
    ADMIN("CONFIG", "SET", "maxmemory-policy", policies[i]);
    bed_refused(bed_uri, DIBS_UNSUPPORTED, policies[i]);
    bed_refused(bed_uri, DIBS_UNSUPPORTED, "CONFIG SET maxmemory-policy noeviction");
  }
  ADMIN("CONFIG", "SET", "maxmemory-policy", "noeviction");
  dibs__redis_disconnect(bed_connect(location));
}

static void a_replica_is_refused(void **state) {
  (void)state;
  ADMIN("REPLICAOF", "127.0.0.1", "1");
  bed_refused(bed_uri, DIBS_UNAVAILABLE, "is a replica");
  ADMIN("REPLICAOF", "NO", "ONE");
  dibs__redis_disconnect(bed_connect(location));
}

static void a_demoted_server_ends_its_links(void **state) {
  (void)state;
  struct dibs__result reported = {.text = ""};
  struct dibs__redis_link *link = bed_connect(location);
  ADMIN("REPLICAOF", "127.0.0.1", "1");
  PUT(link, "SET", "dibs:x", "1");
  bed_go(link);
  assert_int_equal(dibs__redis_refused(link, dibs__redis_reply(link, 0), "take a lease in", &reported),
                   DIBS_UNAVAILABLE);
  ADMIN("REPLICAOF", "NO", "ONE");
  assert_true(link->dead && reported.dead);
  assert_non_null(strstr(reported.text, "is a replica now"));
  dibs__redis_disconnect(link);
}

static void a_full_server_has_its_own_message(void **state) {
  (void)state;
  struct dibs__result reported = {.text = ""};
  struct dibs__redis_link *link = bed_connect(location);
  ADMIN("CONFIG", "SET", "maxmemory", "1");
  PUT(link, "SET", "dibs:x", "1");
  bed_go(link);
  assert_int_equal(dibs__redis_refused(link, dibs__redis_reply(link, 0), "take a lease in", &reported), DIBS_NO_MEMORY);
  ADMIN("CONFIG", "SET", "maxmemory", "0");
  assert_false(reported.dead);
  assert_non_null(strstr(reported.text, "raise maxmemory"));
  dibs__redis_disconnect(link);
}

static void too_many_clients_have_a_message(void **state) {
  (void)state;
  struct fake fake = {.greets = "-ERR max number of clients reached\r\n"};
  fake_start(&fake);
  bed_refused(fake_uri(&fake), DIBS_UNAVAILABLE, "raise maxclients");
  fake_stop(&fake);
}

static void other_servers_are_refused_by_their_answers(void **state) {
  (void)state;
  static const struct {
    struct fake fake;
    dibs__status status;
    const char *words;
  } cases[] = {
      {{.version = "4.0.14"}, DIBS_UNSUPPORTED, "is version 4.0.14; dibs needs Redis 5"},
      {{.version = "x"}, DIBS_UNSUPPORTED, "is version x"},
      {{.cluster = "1"}, DIBS_UNSUPPORTED, "node of a Redis Cluster"},
      {{.role = "slave"}, DIBS_UNAVAILABLE, "is a replica"},
      {{.error = "-LOADING Redis is loading the dataset in memory\r\n"}, DIBS_UNAVAILABLE, "LOADING"},
      {{.error = "-BUSY Redis is busy running a script.\r\n"},
       DIBS_UNAVAILABLE,
       "script of another client runs too long"},
      {{.error = "-NOAUTH Authentication required.\r\n"}, DIBS_DENIED, "redis://USER:PASSWORD@HOST"},
      {{.error = "-DENIED Redis is running in protected mode\r\n"}, DIBS_DENIED, "protected mode"},
      {{.error = "+what?\r\n"}, DIBS_UNSUPPORTED, "is version ?"},
      {{.error = "HTTP/1.1 400 Bad Request\r\n"}, DIBS_UNAVAILABLE, "protocol"},
      {{.greets = "220 mail.example\r\n"}, DIBS_UNAVAILABLE, "protocol"},
      {{.greets = ""}, DIBS_UNAVAILABLE, "closed the connection"},
  };
  for (size_t i = 0; i < COUNT_OF(cases); i++) {
    struct fake fake = cases[i].fake;
    fake_start(&fake);
    bed_refused(fake_uri(&fake), cases[i].status, cases[i].words);
    fake_stop(&fake);
  }
}

static void an_unreachable_server_has_a_message(void **state) {
  (void)state;
  bed_refused("redis://127.0.0.1:1/0", DIBS_UNAVAILABLE, "127.0.0.1:1/0: Connection refused");
  bed_refused("redis:///0?socket=/nonexistent/redis.sock", DIBS_UNAVAILABLE, "/nonexistent/redis.sock: No such file");
}

static void a_socket_works_too(void **state) {
  (void)state;
  struct dibs__redis_location *p = bed_location(getenv("DIBS_TEST_REDIS_SOCKET"));
  struct dibs__redis_link *link = bed_connect(p), *other = bed_connect(location);
  assert_memory_equal(&link->incarnation, &other->incarnation, sizeof link->incarnation);
  assert_true(link->version >= 50000);
  RUN(link, "SET", "dibs:x", "1");
  assert_int_equal(RUN(other, "DEL", "dibs:x")->integer, 1);
  dibs__redis_disconnect(link);
  dibs__redis_disconnect(other);
  dibs__redis_location_free(p);
}

static void databases_are_separate(void **state) {
  (void)state;
  struct dibs__redis_location *p = bed_location(as("dibs:dibs-secret@", "/5"));
  struct dibs__redis_link *link = bed_connect(p), *other = bed_connect(location);
  RUN(link, "SET", "dibs:x", "1");
  assert_int_equal(RUN(other, "EXISTS", "dibs:x")->integer, 0);
  assert_int_equal(RUN(link, "DEL", "dibs:x")->integer, 1);
  dibs__redis_disconnect(link);
  dibs__redis_disconnect(other);
  dibs__redis_location_free(p);
}

int main(int argc, char **argv) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(invalid_uris_are_refused),
      cmocka_unit_test(uris_are_read),
      cmocka_unit_test(a_rejected_login_has_a_message),
      cmocka_unit_test(a_missing_right_is_named),
      cmocka_unit_test(a_user_with_the_documented_rights_is_accepted),
      cmocka_unit_test(a_password_without_need_is_refused),
      cmocka_unit_test(a_server_that_may_evict_is_refused),
      cmocka_unit_test(a_replica_is_refused),
      cmocka_unit_test(a_demoted_server_ends_its_links),
      cmocka_unit_test(a_full_server_has_its_own_message),
      cmocka_unit_test(too_many_clients_have_a_message),
      cmocka_unit_test(other_servers_are_refused_by_their_answers),
      cmocka_unit_test(an_unreachable_server_has_a_message),
      cmocka_unit_test(a_socket_works_too),
      cmocka_unit_test(databases_are_separate),
  };
  bed_args(argc, argv);
  return cmocka_run_group_tests(tests, begin, end);
}
