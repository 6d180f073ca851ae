/* SPDX-License-Identifier: MIT */
/* Findings of drivers about their servers, as they are collected and answered. */
#include "base/text.h"
#include "store/engine.h"
#include "store/message.h"
#include "unit.h"

#include <stdlib.h>
#include <string.h>

static void what_a_server_says_cannot_control_a_terminal(void **state) {
  (void)state;
  struct dibs__findings findings = {0};
  struct dibs__engine_op op = {.op.family = DIBS__FAM_ENGINE};
  dibs__find(&findings, "server", "Redis %s", "7\x1b[2J\nfine\x80 caf\xc3\xa9 \xc2\x9b");
  dibs__find_trouble(&findings, "node", "look\tat it", "no answer");
  assert_int_equal(dibs__findings_answer(&findings, &op.op), DIBS_OK);
  assert_int_equal(op.got_count, 2);
  assert_string_equal(op.got[0].found.p, "Redis 7?[2J?fine? caf\xc3\xa9 ??");
  assert_int_equal(op.got[0].level, DIBS__FINDING_FINE);
  assert_int_equal(op.got[0].next.len, 0);
  assert_string_equal(op.got[1].next.p, "look?at it");
  assert_int_equal(op.got[1].level, DIBS__FINDING_TROUBLE);
  free(op.got);
}

static void long_texts_are_cut_between_characters_and_many_findings_at_their_limit(void **state) {
  (void)state;
  char text[3 * DIBS__ENGINE_TEXT_MAX];
  struct dibs__findings findings = {0};
  struct dibs__engine_op op = {.op.family = DIBS__FAM_ENGINE};
  for (size_t i = 0; i + 3 < sizeof text; i += 3) memcpy(text + i, "\xe2\x82\xac", 4);
  for (int i = 0; i < DIBS__ENGINE_FINDINGS + 5; i++) dibs__find_warning(&findings, "node", text, "%s", text);
  assert_int_equal(dibs__findings_answer(&findings, &op.op), DIBS_OK);
  assert_int_equal(op.got_count, DIBS__ENGINE_FINDINGS);
  assert_int_equal(op.got[0].found.len, DIBS__ENGINE_TEXT_MAX / 3 * 3);
  assert_int_equal(op.got[0].next.len, DIBS__ENGINE_TEXT_MAX / 3 * 3);
  assert_null(strchr(op.got[0].found.p, '?'));
  free(op.got);
}

static void findings_travel_in_a_message(void **state) {
  (void)state;
  struct dibs__findings findings = {0};
  struct dibs__engine_op sent = {.op = {.family = DIBS__FAM_ENGINE}}, got = {.op = {.family = DIBS__FAM_ENGINE}};
  struct dibs__writer w = {0};
  dibs__find(&findings, "server", "one");
  dibs__find_warning(&findings, "setting", "do this", "two");
  dibs__find_hidden(&findings, "role", "the role");
  assert_int_equal(dibs__findings_answer(&findings, &sent.op), DIBS_OK);
  assert_int_equal(dibs__op_check(&sent.op), DIBS_OK);
  dibs__write_answer(&w, &sent.op);
  struct dibs__reader r = {w.bytes, w.bytes + w.length, false};
  assert_true(dibs__read_answer(&r, &got.op, NULL, NULL));
  assert_int_equal(got.op.status, DIBS_OK);
  assert_int_equal(got.got_count, 3);
  dibs__findings_take(&got, &findings);
  assert_null(got.got);
  assert_int_equal(dibs__findings_answer(&findings, &got.op), DIBS_OK);
  assert_string_equal(got.got[1].next.p, "do this");
  assert_int_equal(got.got[1].level, DIBS__FINDING_WARNING);
  assert_string_equal(got.got[2].found.p, "the role: not visible to this user");
  dibs__writer_free(&w);
  free(sent.got);
  free(got.got);
}

static void silent_servers_share_the_time(void **state) {
  (void)state;
  dibs__tick now = dibs__tick_now(), by = dibs__tick_add_ms(now, 2300);
  assert_true(dibs__tick_left_ms(now, dibs__engine_node_by(by, 10)) <= 210);
  assert_true(dibs__tick_left_ms(now, dibs__engine_node_by(by, 1)) <= DIBS__ENGINE_NODE_MS + 50);
  dibs__tick over = dibs__engine_node_by(now, 3); /* no time is left */
  assert_true(dibs__tick_left_ms(dibs__tick_now(), over) == 0);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(what_a_server_says_cannot_control_a_terminal),
      cmocka_unit_test(long_texts_are_cut_between_characters_and_many_findings_at_their_limit),
      cmocka_unit_test(findings_travel_in_a_message), cmocka_unit_test(silent_servers_share_the_time)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
