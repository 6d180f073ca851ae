/* SPDX-License-Identifier: MIT */
/* The wire on a real server, and on a server of the test's own for states that a real one does not reach. */
#include "bed.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "fault/proxy.h"

static struct dibs__redis_location *location;
static struct dibs__redis_link *wire;

/* SLACK_MS: how late a busy machine may be; far less than an answer would need. */
enum { MANY = 20000, BIG = 6 << 20, SLACK_MS = 600 };

static int begin(void **state) {
  (void)state;
  location = bed_location(bed_uri);
  wire = bed_connect(location);
  return 0;
}

static int end(void **state) {
  (void)state;
  dibs__redis_disconnect(wire);
  dibs__redis_location_free(location);
  return 0;
}

static void is_text(const redisReply *reply, const char *text) {
  assert_non_null(reply);
  if (reply->type != REDIS_REPLY_STRING && reply->type != REDIS_REPLY_STATUS)
    fail_msg("type %d: %s", reply->type, reply->str ? reply->str : "");
  assert_string_equal(reply->str, text);
}

static struct dibs__redis_script script(const char *text) {
  struct dibs__redis_script made = {.text = text};
  dibs__redis_script_name(&made);
  return made;
}

static void put_script(struct dibs__redis_link *on, const struct dibs__redis_script *requested, const char *arg) {
  const char *words[] = {"dibs:{1}", arg};
  const size_t lengths[] = {8, strlen(arg)};
  assert_true(dibs__redis_put_script(on, requested, 1, 2, words, lengths));
}

/* ---- Pipelines ---- */

static void thousands_of_commands_are_answered_in_order(void **state) {
  (void)state;
  char text[24];
  for (int round = 0; round < 2; round++) {
    for (int i = 0; i < MANY; i++) {
      snprintf(text, sizeof text, "%0*d", 1 + i % 20, i);
      PUT(wire, "ECHO", text);
    }
    bed_go(wire);
    for (int i = 0; i < MANY; i++) {
      snprintf(text, sizeof text, "%0*d", 1 + i % 20, i);
      is_text(dibs__redis_reply(wire, (size_t)i), text);
    }
    assert_null(dibs__redis_reply(wire, MANY));
  }
  is_text(RUN(wire, "PING"), "PONG");
}

/* Far more bytes than sockets hold, in both directions. */
static void large_values_pass_both_ways(void **state) {
  (void)state;
  char *big = malloc(BIG + 1);
  assert_non_null(big);
  for (size_t i = 0; i < BIG; i++) big[i] = (char)('a' + i % 23);
  big[BIG] = '\0';
  for (int i = 0; i < 3; i++) PUT(wire, "ECHO", big);
  bed_go(wire);
  for (size_t i = 0; i < 3; i++) assert_memory_equal(dibs__redis_reply(wire, i)->str, big, BIG);
  free(big);
  is_text(RUN(wire, "PING"), "PONG");
}

static void replies_of_all_kinds_are_read(void **state) {
  (void)state;
  const redisReply *r =
      RUN(wire, "EVAL", "return {1, 'two', {3, {4, false, 'five'}}, {}, redis.error_reply('E six')}", "0");
  assert_int_equal(r->elements, 5);
  assert_int_equal(r->element[0]->integer, 1);
  is_text(r->element[1], "two");
  assert_int_equal(r->element[2]->element[1]->element[1]->type, REDIS_REPLY_NIL);
  is_text(r->element[2]->element[1]->element[2], "five");
  assert_int_equal(r->element[3]->elements, 0);
  assert_int_equal(r->element[4]->type, REDIS_REPLY_ERROR);
  assert_int_equal(RUN(wire, "GET", "dibs:none")->type, REDIS_REPLY_NIL);
  PUT(wire, "EVAL", "return 1");
  PUT(wire, "PING");
  bed_go(wire);
  assert_int_equal(dibs__redis_reply(wire, 0)->type, REDIS_REPLY_ERROR);
  is_text(dibs__redis_reply(wire, 1), "PONG");
}

static void replies_may_come_byte_by_byte(void **state) {
  (void)state;
  struct fake fake = {.piece = 1};
  fake_start(&fake);
  struct dibs__redis_location *p = bed_location(fake_uri(&fake));
  struct dibs__redis_link *l = bed_connect(p);
  for (int i = 0; i < 100; i++) PUT(l, "INFO", "x");
  bed_go(l);
  for (size_t i = 0; i < 100; i++) assert_non_null(strstr(dibs__redis_reply(l, i)->str, "cluster_enabled:0\r\n"));
  dibs__redis_disconnect(l);
  dibs__redis_location_free(p);
  fake_stop(&fake);
}

/* Messages of a subscription, which may have been read partly. */
static void messages_may_come_byte_by_byte(void **state) {
  (void)state;
  static const char bytes[] = "*3\r\n$7\r\nmessage\r\n$7\r\nchannel\r\n$5\r\nfirst\r\n"
                              "*3\r\n$7\r\nmessage\r\n$7\r\nchannel\r\n$5\r\nother\r\n";
  static const char *const texts[] = {"first", "other"};
  int ends[2];
  size_t heard = 0;
  assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
  assert_int_equal(dup2(ends[0], wire->context->fd), wire->context->fd);
  for (size_t i = 0; i + 1 < sizeof bytes; i++) {
    assert_int_equal(send(ends[1], bytes + i, 1, MSG_NOSIGNAL), 1);
    const redisReply *message = dibs__redis_message(wire);
    assert_false(wire->dead);
    if (!message || heard == COUNT_OF(texts)) continue;
    assert_int_equal(message->elements, 3);
    is_text(message->element[0], "message");
    is_text(message->element[1], "channel");
    is_text(message->element[2], texts[heard++]);
  }
  assert_int_equal(heard, 2);
  close(ends[0]);
  close(ends[1]);
  assert_null(dibs__redis_message(wire));
  assert_true(wire->dead);
}

static void dropped_commands_are_not_sent(void **state) {
  (void)state;
  PUT(wire, "SET", "dibs:x", "1");
  dibs__redis_drop(wire);
  assert_int_equal(RUN(wire, "EXISTS", "dibs:x")->integer, 0);
  assert_null(dibs__redis_reply(wire, 1));
  bed_go(wire); /* nothing */
  assert_null(dibs__redis_reply(wire, 0));
}

/* ---- Deadlines and broken connections ---- */

static dibs__status go(struct dibs__redis_link *on, int64_t ms, struct dibs__result *reported) {
  *reported = (struct dibs__result){.text = ""};
  return dibs__redis_go(on, within(ms), reported);
}

static void a_stopped_server_delays_no_longer_than_the_deadline(void **state) {
  (void)state;
  struct dibs__result reported;
  static const int64_t waits[] = {10, 150};
  bed_servers("pause");
  for (size_t i = 0; i < COUNT_OF(waits); i++) {
    dibs__tick from = dibs__tick_now();
    PUT(wire, "PING");
    PUT(wire, "PING");
    dibs__status status = go(wire, waits[i], &reported);
    int64_t took = dibs__tick_left_ms(from, dibs__tick_now());
    bool late = took < waits[i] || took > waits[i] + SLACK_MS;
    if (status != DIBS_UNKNOWN || late || !reported.dead) {
      bed_servers("resume");
      fail_msg("%d after %d ms: %s", status, (int)took, reported.text);
    }
    assert_null(dibs__redis_reply(wire, 0));
    /* A late answer belongs to no request any more. */
    PUT(wire, "PING");
    assert_int_equal(go(wire, LONG_MS, &reported), DIBS_UNAVAILABLE);
    assert_true(reported.dead);
    dibs__redis_disconnect(wire);
    bed_servers("resume");
    wire = bed_connect(location);
    if (i + 1 < COUNT_OF(waits)) bed_servers("pause");
  }
  is_text(RUN(wire, "PING"), "PONG");
  /* Connecting does not take longer either. */
  bed_servers("pause");
  struct dibs__redis_link *other = NULL;
  dibs__tick from = dibs__tick_now();
  dibs__status status = dibs__redis_connect(location, 0, within(100), &other, &reported);
  int64_t took = dibs__tick_left_ms(from, dibs__tick_now());
  bed_servers("resume");
  assert_int_equal(status, DIBS_UNAVAILABLE);
  assert_in_range(took, 100, 100 + SLACK_MS);
  assert_non_null(strstr(reported.text, "deadline"));
}

static void without_time_nothing_is_requested(void **state) {
  (void)state;
  struct dibs__result reported;
  PUT(wire, "SET", "dibs:x", "1");
  assert_int_equal(dibs__redis_go(wire, dibs__tick_now(), &reported), DIBS_UNAVAILABLE);
  assert_false(reported.dead);
  assert_int_equal(RUN(wire, "EXISTS", "dibs:x")->integer, 0);
}

static void close_it(void) {
  ADMIN("CLIENT", "KILL", "USER", "dibs", "SKIPME", "yes");
  dibs__redis_disconnect(bed_connect(location)); /* the other end is closed by now */
  dibs__nap_ms(10);                              /* the driver checks the connection after a silence */
}

/* The driver sees the closed connection before it sends anything, so the request was not done and uses another
 * connection. */
static void a_connection_that_was_closed_meanwhile_is_replaced(void **state) {
  (void)state;
  struct dibs__result reported = {.text = ""};
  dibs__status status = DIBS_OK;
  close_it();
  RUN(wire, "SET", "dibs:x", "1");
  assert_false(wire->dead);
  assert_int_equal(RUN(wire, "DEL", "dibs:x")->integer, 1);
  /* With several servers this does not happen: the code that asks them all handles it itself. */
  close_it();
  PUT(wire, "SET", "dibs:x", "1");
  dibs__redis_go_all(&wire, 1, within(LONG_MS), &status, &reported);
  assert_int_equal(status, DIBS_UNAVAILABLE);
  assert_true(reported.dead && wire->dead);
  assert_non_null(strstr(reported.text, "closed the connection"));
  dibs__redis_disconnect(wire);
  wire = bed_connect(location);
  assert_int_equal(RUN(wire, "EXISTS", "dibs:x")->integer, 0);
}

static void without_another_connection_the_answer_is_unavailable(void **state) {
  (void)state;
  struct dibs__result reported;
  bed_servers("kill");
  dibs__nap_ms(10);
  PUT(wire, "SET", "dibs:x", "1");
  dibs__status status = go(wire, LONG_MS, &reported);
  bed_servers("start");
  assert_int_equal(status, DIBS_UNAVAILABLE);
  assert_true(reported.dead && wire->dead);
  assert_non_null(strstr(reported.text, "Connection refused"));
  assert_null(dibs__redis_reply(wire, 0));
}

static void a_broken_connection_does_not_end_the_process(void **state) {
  (void)state;
  struct dibs__result reported;
  struct sigaction before;
  assert_int_equal(sigaction(SIGPIPE, &(struct sigaction){.sa_handler = SIG_DFL}, &before), 0);
  assert_int_equal(shutdown(wire->context->fd, SHUT_WR), 0);
  PUT(wire, "PING");
  assert_int_equal(go(wire, LONG_MS, &reported), DIBS_UNAVAILABLE);
  assert_true(reported.dead);
  sigaction(SIGPIPE, &before, NULL);
}

static void answers_before_the_end_are_kept(void **state) {
  (void)state;
  struct dibs__result reported;
  struct fake fake = {.dies_after = 5 + 3}; /* the greeting has 5 commands */
  fake_start(&fake);
  struct dibs__redis_location *p = bed_location(fake_uri(&fake));
  struct dibs__redis_link *l = bed_connect(p);
  for (int i = 0; i < 5; i++) PUT(l, "PING");
  assert_int_equal(go(l, LONG_MS, &reported), DIBS_UNKNOWN);
  for (size_t i = 0; i < 3; i++) is_text(dibs__redis_reply(l, i), "OK");
  for (size_t i = 3; i < 5; i++) assert_null(dibs__redis_reply(l, i));
  dibs__redis_disconnect(l);
  dibs__redis_location_free(p);
  fake_stop(&fake);
}

static void a_server_with_another_protocol_is_refused(void **state) {
  (void)state;
  struct dibs__result reported;
  struct fake fake = {.error = NULL};
  fake_start(&fake);
  struct dibs__redis_location *p = bed_location(fake_uri(&fake));
  struct dibs__redis_link *l = bed_connect(p);
  fake.error = "HTTP/1.1 400 Bad Request\r\n";
  PUT(l, "PING");
  assert_int_equal(go(l, LONG_MS, &reported), DIBS_UNKNOWN);
  assert_non_null(strstr(reported.text, "protocol"));
  assert_true(l->dead);
  dibs__redis_disconnect(l);
  dibs__redis_location_free(p);
  fake_stop(&fake);
}

/* ---- Behind the proxy ---- */

static struct proxied *proxied;
static struct dibs__redis_location *behind;

static int begin_proxied(void **state) {
  char where[300], why[PROXY_WHY], uri[600];
  begin(state);
  snprintf(where, sizeof where, "%s:%u", location->hosts[0].host, location->hosts[0].port);
  proxied = proxied_start(&(struct proxy_options){.to = where, .protocol = FRAME_REDIS}, why);
  if (!proxied) fail_msg("%s", why);
  snprintf(uri, sizeof uri, "redis://%s:%s@127.0.0.1:%u/0", location->user, location->password, proxied_port(proxied));
  behind = bed_location(uri);
  return 0;
}

static int end_proxied(void **state) {
  proxied_stop(proxied);
  dibs__redis_location_free(behind);
  return end(state);
}

static void proxy_command(const char *line) {
  char answer[PROXY_LINE];
  if (!proxied_say(proxied, line, answer)) fail_msg("%s: %s", line, answer);
}

static void an_answer_that_was_lost_is_unknown(void **state) {
  (void)state;
  struct dibs__result reported;
  static const char *const triggers[] = {"cut-after-request dibs:lost", "cut-before-request dibs:lost"};
  for (size_t i = 0; i < COUNT_OF(triggers); i++) {
    RUN(wire, "DEL", "dibs:before", "dibs:lost");
    struct dibs__redis_link *l = bed_connect(behind);
    proxy_command(triggers[i]);
    PUT(l, "SET", "dibs:before", "1");
    PUT(l, "SET", "dibs:lost", "1");
    assert_int_equal(go(l, LONG_MS, &reported), DIBS_UNKNOWN);
    assert_true(reported.dead);
    assert_int_equal(RUN(wire, "EXISTS", "dibs:lost")->integer, i == 0);
    dibs__redis_disconnect(l);
  }
  RUN(wire, "DEL", "dibs:before", "dibs:lost");
}

static void a_silent_network_delays_no_longer_than_the_deadline(void **state) {
  (void)state;
  struct dibs__result reported;
  struct dibs__redis_link *l = bed_connect(behind), *other = NULL;
  proxy_command("half-open");
  PUT(l, "PING");
  dibs__tick from = dibs__tick_now();
  assert_int_equal(go(l, 100, &reported), DIBS_UNKNOWN);
  assert_int_equal(dibs__redis_connect(behind, 0, within(100), &other, &reported), DIBS_UNAVAILABLE);
  assert_in_range(dibs__tick_left_ms(from, dibs__tick_now()), 200, 200 + SLACK_MS);
  proxy_command("pass");
  dibs__redis_disconnect(l);
}

/* Another server at the same address: it has no scripts and another incarnation. */
static void scripts_survive_a_restart(void **state) {
  (void)state;
  struct dibs__redis_script s = script("return ARGV[1] .. '!'");
  struct dibs__redis_link *l = bed_connect(behind);
  dibs__incarnation incarnation = l->incarnation;
  put_script(l, &s, "one");
  bed_go(l);
  is_text(dibs__redis_reply(l, 0), "one!");
  bed_servers("restart");
  dibs__nap_ms(10);
  put_script(l, &s, "two");
  bed_go(l);
  is_text(dibs__redis_reply(l, 0), "two!");
  assert_memory_not_equal(&incarnation, &l->incarnation, sizeof incarnation);
  dibs__redis_disconnect(l);
  l = bed_connect(behind);
  put_script(l, &s, "three");
  bed_go(l);
  is_text(dibs__redis_reply(l, 0), "three!");
  dibs__redis_disconnect(l);
  dibs__redis_disconnect(wire);
  wire = bed_connect(location);
}

/* ---- Scripts ---- */

static void scripts_have_the_names_that_the_server_gives(void **state) {
  (void)state;
  char text[200];
  for (size_t len = 9; len < 140; len++) {
    memset(text, ' ', len);
    text[len] = '\0';
    memcpy(text, "return 1", 8);
    struct dibs__redis_script s = script(text);
    is_text(RUN(wire, "SCRIPT", "LOAD", text), s.sha);
  }
}

static int64_t loads(void) {
  const redisReply *r = RUN(wire, "INFO", "commandstats");
  const char *at = strstr(r->str, "cmdstat_script|load:calls=");
  return at ? strtol(at + 26, NULL, 10) : 0;
}

static void forgotten_scripts_are_loaded_once_and_repeated(void **state) {
  (void)state;
  struct dibs__redis_script s[] = {script("return {'a', ARGV[1]}"), script("return {'b', ARGV[1]}")};
  char text[16];
  put_script(wire, &s[0], "x");
  put_script(wire, &s[1], "x");
  bed_go(wire);
  int64_t before = loads();
  for (int i = 0; i < 300; i++) {
    snprintf(text, sizeof text, "%d", i);
    if (i == 100) PUT(wire, "SCRIPT", "FLUSH");
    put_script(wire, &s[i % 2], text);
    if (i % 7 == 0) PUT(wire, "ECHO", text);
  }
  bed_go(wire);
  size_t nth = 0;
  for (int i = 0; i < 300; i++) {
    snprintf(text, sizeof text, "%d", i);
    if (i == 100) is_text(dibs__redis_reply(wire, nth++), "OK");
    const redisReply *r = dibs__redis_reply(wire, nth++);
    assert_int_equal(r->type, REDIS_REPLY_ARRAY);
    is_text(r->element[0], i % 2 ? "b" : "a");
    is_text(r->element[1], text);
    if (i % 7 == 0) is_text(dibs__redis_reply(wire, nth++), text);
  }
  assert_int_equal(loads() - before, 2);
  put_script(wire, &s[0], "y");
  bed_go(wire);
  assert_int_equal(loads() - before, 2);
}

static void a_script_that_cannot_be_loaded_has_a_message(void **state) {
  (void)state;
  struct dibs__redis_script s = script("this is no Lua");
  put_script(wire, &s, "x");
  PUT(wire, "PING");
  bed_go(wire);
  const redisReply *r = dibs__redis_reply(wire, 0);
  assert_int_equal(r->type, REDIS_REPLY_ERROR);
  assert_non_null(strstr(r->str, "compiling"));
  is_text(dibs__redis_reply(wire, 1), "PONG");
}

/* ---- Several at once ---- */

static void a_silent_server_does_not_delay_others(void **state) {
  (void)state;
  struct fake silent = {.silent = true}, fine = {.piece = 3};
  struct dibs__redis_link *links[4] = {NULL};
  struct dibs__redis_location *places[2];
  dibs__status answers[4] = {99, 99, 99, 99};
  struct dibs__result reported = {.text = ""};
  fake_start(&silent);
  fake_start(&fine);
  places[0] = bed_location(fake_uri(&silent));
  places[1] = bed_location(fake_uri(&fine));
  silent.silent = false; /* CLIENT SETNAME */
  links[0] = bed_connect(places[0]);
  silent.silent = true;
  links[1] = bed_connect(places[1]);
  links[3] = bed_connect(location);
  struct dibs__redis_script s = script("return 'told ' .. ARGV[1]");
  PUT(wire, "SCRIPT", "FLUSH");
  bed_go(wire);
  for (size_t i = 0; i < 4; i++)
    if (links[i]) PUT(links[i], "PING");
  put_script(links[3], &s, "so");
  dibs__tick from = dibs__tick_now();
  dibs__redis_go_all(links, 4, within(120), answers, &reported);
  assert_in_range(dibs__tick_left_ms(from, dibs__tick_now()), 120, 120 + SLACK_MS);
  assert_int_equal(answers[0], DIBS_UNKNOWN);
  assert_int_equal(answers[1], DIBS_OK);
  assert_int_equal(answers[2], 99);
  assert_int_equal(answers[3], DIBS_OK);
  assert_non_null(strstr(reported.text, "deadline"));
  assert_true(links[0]->dead);
  is_text(dibs__redis_reply(links[1], 0), "OK");
  is_text(dibs__redis_reply(links[3], 1), "told so");
  for (size_t i = 0; i < 4; i++)
    if (links[i]) dibs__redis_disconnect(links[i]);
  for (size_t i = 0; i < 2; i++) dibs__redis_location_free(places[i]);
  fake_stop(&silent);
  fake_stop(&fine);
}

int main(int argc, char **argv) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(thousands_of_commands_are_answered_in_order, begin, end),
      cmocka_unit_test_setup_teardown(large_values_pass_both_ways, begin, end),
      cmocka_unit_test_setup_teardown(replies_of_all_kinds_are_read, begin, end),
      cmocka_unit_test_setup_teardown(replies_may_come_byte_by_byte, begin, end),
      cmocka_unit_test_setup_teardown(messages_may_come_byte_by_byte, begin, end),
      cmocka_unit_test_setup_teardown(dropped_commands_are_not_sent, begin, end),
      cmocka_unit_test_setup_teardown(a_stopped_server_delays_no_longer_than_the_deadline, begin, end),
      cmocka_unit_test_setup_teardown(without_time_nothing_is_requested, begin, end),
      cmocka_unit_test_setup_teardown(a_connection_that_was_closed_meanwhile_is_replaced, begin, end),
      cmocka_unit_test_setup_teardown(without_another_connection_the_answer_is_unavailable, begin, end),
      cmocka_unit_test_setup_teardown(a_broken_connection_does_not_end_the_process, begin, end),
      cmocka_unit_test_setup_teardown(answers_before_the_end_are_kept, begin, end),
      cmocka_unit_test_setup_teardown(a_server_with_another_protocol_is_refused, begin, end),
      cmocka_unit_test_setup_teardown(an_answer_that_was_lost_is_unknown, begin_proxied, end_proxied),
      cmocka_unit_test_setup_teardown(a_silent_network_delays_no_longer_than_the_deadline, begin_proxied, end_proxied),
      cmocka_unit_test_setup_teardown(scripts_survive_a_restart, begin_proxied, end_proxied),
      cmocka_unit_test_setup_teardown(scripts_have_the_names_that_the_server_gives, begin, end),
      cmocka_unit_test_setup_teardown(forgotten_scripts_are_loaded_once_and_repeated, begin, end),
      cmocka_unit_test_setup_teardown(a_script_that_cannot_be_loaded_has_a_message, begin, end),
      cmocka_unit_test_setup_teardown(a_silent_server_does_not_delay_others, begin, end),
  };
  bed_args(argc, argv);
  return cmocka_run_group_tests(tests, NULL, NULL);
}
