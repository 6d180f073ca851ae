/* SPDX-License-Identifier: MIT */
/* Connecting through a sentinel across failovers: to another server, and back to the first, while both run. */
#include "bed.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

enum { FAILOVER_MS = 20000 };

static unsigned first, second, sentinel;
static struct dibs__redis_location *location;

static unsigned number(const char *name) {
  const char *text = getenv(name);
  return text ? (unsigned)strtoul(text, NULL, 10) : 0;
}

/* The first sentinel of the list does not exist: the driver asks the next one. */
static const char *uri(const char *credentials, const char *more) {
  static char text[512];
  snprintf(text, sizeof text, "redis://%s127.0.0.1:1,127.0.0.1:%u/0?%s", credentials, sentinel, more);
  return text;
}

static int begin(void **state) {
  (void)state;
  first = number("DIBS_TEST_FIRST_PORT");
  second = number("DIBS_TEST_SECOND_PORT");
  sentinel = number("DIBS_TEST_SENTINEL_PORT");
  location =
      bed_location(uri(":data-secret@", "sentinel=main&sentinel_password=sentinel-secret&connect_timeout=20000"));
  return 0;
}

static int end(void **state) {
  (void)state;
  dibs__redis_location_free(location);
  return 0;
}

static unsigned port_of(const struct dibs__redis_link *link) {
  struct sockaddr_in at = {0};
  socklen_t size = sizeof at;
  assert_int_equal(getpeername(link->context->fd, (struct sockaddr *)&at, &size), 0);
  return ntohs(at.sin_port);
}

static struct dibs__redis_link *connect_to(unsigned port) {
  struct dibs__result reported = {.text = ""};
  dibs__tick by = within(FAILOVER_MS);
  for (;;) {
    struct dibs__redis_link *link = NULL;
    dibs__status status = dibs__redis_connect(location, 0, by, &link, &reported);
    if (status != DIBS_OK) fail_msg("%s", reported.text);
    if (port_of(link) == port) return link;
    dibs__redis_disconnect(link);
    assert_true(dibs__tick_before(dibs__tick_now(), by));
    dibs__nap_ms(20);
  }
}

static void the_first(const char *verb) {
  char command[256];
  snprintf(command, sizeof command, "\"$DIBS_TEST_FIRST\" %s", verb);
  assert_int_equal(system(command), 0);
}

static void sentinel_command(const char *words, char line[64]) {
  char text[160];
  snprintf(text, sizeof text, "redis-cli -p %u -a sentinel-secret --no-auth-warning sentinel %s main", sentinel, words);
  FILE *answer = popen(text, "r");
  assert_non_null(answer);
  if (!fgets(line, 64, answer)) line[0] = '\0';
  pclose(answer);
}

/* Makes the sentinel fail over at once, without waiting until it notices a failure. It needs a replica that it knows to
 * be healthy, and checks every 10 s, unless a reset makes it discard its state. */
static void fail_over(void) {
  char line[64];
  dibs__tick by = within(FAILOVER_MS);
  for (;;) {
    sentinel_command("failover", line);
    if (strncmp(line, "OK", 2) == 0) return;
    if (!dibs__tick_before(dibs__tick_now(), by)) fail_msg("%s", line);
    dibs__nap_ms(100);
  }
}

static void wrong_requests_have_a_message(void **state) {
  (void)state;
  char text[128];
  bed_refused(uri(":data-secret@", "sentinel=other&sentinel_password=sentinel-secret"), DIBS_INVALID,
              "knows no master \"other\"");
  bed_refused(uri(":data-secret@", "sentinel=main&sentinel_password=no-secret"), DIBS_DENIED, "ask a sentinel");
  bed_refused(uri(":data-secret@", "sentinel=main"), DIBS_DENIED, "ask a sentinel");
  bed_refused(uri(":no-secret@", "sentinel=main&sentinel_password=sentinel-secret"), DIBS_DENIED,
              "check the user and the password");
  snprintf(text, sizeof text, "redis://:sentinel-secret@127.0.0.1:%u/0", sentinel);
  bed_refused(text, DIBS_INVALID, "add sentinel=NAME");
  snprintf(text, sizeof text, "redis://:data-secret@127.0.0.1:%u/0", second);
  bed_refused(text, DIBS_UNAVAILABLE, "is a replica");
}

/* events() reports a new incarnation and a re-check. */
static void receive_failover(struct dibs__redis *store) {
  struct dibs__event events[4];
  dibs__tick by = within(FAILOVER_MS);
  bool recheck = false, new_incarnation = false;
  while (!recheck || !new_incarnation) {
    size_t count = 0;
    assert_true(dibs__tick_before(dibs__tick_now(), by));
    assert_int_equal(dibs__redis_notifier_events(store, events, 4, &count, within(100)), DIBS_OK);
    for (size_t i = 0; i < count; i++) {
      recheck = recheck || events[i].what == DIBS__EV_RECHECK;
      new_incarnation = new_incarnation || events[i].what == DIBS__EV_NEW_INCARNATION;
    }
  }
}

static void failovers_are_followed(void **state) {
  (void)state;
  struct dibs__redis store = {.location = location, .session = 77};
  struct dibs__result reported = {.text = ""};
  char channel[DIBS__REDIS_CHANNEL], port[8];
  struct dibs__redis_link *a = connect_to(first);
  assert_int_equal(dibs__redis_notifier_open(&store), DIBS_OK);
  assert_int_equal(dibs__redis_notifier_ready(&store, within(LONG_MS), &reported), DIBS_OK);
  dibs__redis_channel(location, store.session, channel);

  the_first("kill");
  fail_over();
  dibs__incarnation incarnation = a->incarnation;
  PUT(a, "PING");
  dibs__status status = dibs__redis_go(a, within(FAILOVER_MS), &reported);
  if (status != DIBS_OK) fail_msg("%s", reported.text);
  assert_int_equal(port_of(a), second); /* through the sentinel, once there was a master again */
  struct dibs__redis_link *b = connect_to(second);
  assert_memory_not_equal(&incarnation, &b->incarnation, sizeof incarnation);
  assert_memory_equal(&a->incarnation, &b->incarnation, sizeof incarnation);
  receive_failover(&store);
  assert_int_equal(RUN(b, "PUBSUB", "NUMSUB", channel)->element[1]->integer, 1);

  /* And back, while both run: a connected client must not keep using a demoted master. */
  the_first("start");
  fail_over();
  struct dibs__redis_link *c = connect_to(first);
  assert_memory_not_equal(&incarnation, &c->incarnation, sizeof c->incarnation);
  assert_memory_not_equal(&b->incarnation, &c->incarnation, sizeof c->incarnation);
  /* Both are masters, usually for 10 s; then the sentinel does this. */
  snprintf(port, sizeof port, "%u", first);
  RUN(b, "REPLICAOF", "127.0.0.1", port);
  dibs__tick by = within(FAILOVER_MS);
  while (!b->dead) {
    assert_true(dibs__tick_before(dibs__tick_now(), by));
    PUT(b, "SET", "dibs:x", "1");
    status = dibs__redis_go(b, within(LONG_MS), &reported);
    const redisReply *reply = status == DIBS_OK ? dibs__redis_reply(b, 0) : NULL;
    if (reply && reply->type == REDIS_REPLY_ERROR)
      assert_int_equal(dibs__redis_refused(b, reply, "write to", &reported), DIBS_UNAVAILABLE);
  }
  dibs__redis_notifier_incarnation(&store, &c->incarnation); /* on a session; the notifier itself receives nothing */
  receive_failover(&store);
  assert_int_equal(RUN(c, "PUBSUB", "NUMSUB", channel)->element[1]->integer, 1);

  dibs__redis_notifier_close(&store);
  dibs__redis_disconnect(a);
  dibs__redis_disconnect(b);
  dibs__redis_disconnect(c);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(wrong_requests_have_a_message),
      cmocka_unit_test(failovers_are_followed),
  };
  return cmocka_run_group_tests(tests, begin, end);
}
