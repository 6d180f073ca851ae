/* SPDX-License-Identifier: MIT */
/* The anchor's record, as text and back; reports; flags. */
#include "bed.h"
#include "unit.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- The record ---- */

static void expect_round_trip(const struct dibs__tiers_state *state) {
  struct dibs__tiers_state back;
  struct dibs__result reported = {0};
  size_t len, again;
  char *text = dibs__tiers_write(state, &len);
  assert_non_null(text);
  assert_int_equal(strlen(text), len);
  if (dibs__tiers_read(text, len, &back, &reported) != DIBS_OK) fail_msg("%s\n%s", reported.text, text);
  char *same = dibs__tiers_write(&back, &again);
  assert_string_equal(text, same);
  assert_int_equal(back.count, state->count);
  for (uint32_t b = 0; b < DIBS__BUCKETS; b++) {
    const struct dibs__tiers_mandate *m = &state->mandates[b], *n = &back.mandates[b];
    assert_int_equal(m->epoch, n->epoch);
    assert_int_equal(m->tier, n->tier);
    assert_memory_equal(&m->incarnation, &n->incarnation, sizeof m->incarnation);
    assert_true(m->since == n->since && m->from == n->from);
  }
  for (uint32_t i = 0; i < state->count; i++) {
    const struct dibs__tiers_tier *t = &state->tiers[i], *u = &back.tiers[i];
    assert_string_equal(t->scheme, u->scheme);
    assert_int_equal(t->hand, u->hand);
    assert_int_equal(t->percent, u->percent);
    assert_int_equal(t->down, u->down);
    assert_true(t->changed == u->changed && t->dwell_ms == u->dwell_ms);
  }
  assert_int_equal(back.strictness, state->strictness);
  assert_int_equal(back.breaker, state->breaker);
  assert_int_equal(back.fallback, state->fallback);
  assert_int_equal(back.least_strict, state->least_strict);
  assert_int_equal(back.pinned, state->pinned);
  assert_true(back.longest_ms == state->longest_ms && back.dwell_ms == state->dwell_ms);
  assert_true(back.repairs == state->repairs && back.repaired == state->repaired);
  assert_true(back.flags_of.repairs == state->flags_of.repairs && back.flags_of.version == state->flags_of.version);
  free(text);
  free(same);
}

static void a_new_state_is_restored_from_its_text(void **state) {
  (void)state;
  for (uint32_t count = 1; count <= DIBS__URI_TIERS; count++) {
    struct dibs__tiers_state s;
    dibs__tiers_begin(&s, (const char *const[]){"rediss", "postgresql", "mariadb", "sqlite"}, count);
    expect_round_trip(&s);
    assert_string_equal(s.tiers[0].scheme, "redis");
    assert_int_equal(s.tiers[count - 1].percent, 100);
  }
}

static void any_state_is_restored_from_its_text(void **state) {
  (void)state;
  uint64_t seed = 42;
  for (int round = 0; round < 300; round++) {
    struct dibs__tiers_state s = three_tiers();
    for (uint32_t i = 0; i < 3; i++) {
      s.tiers[i].hand = (enum dibs__tiers_hand)draw(&seed, 3);
      if (i < 2) s.tiers[i].percent = (uint32_t)draw(&seed, 101);
      s.tiers[i].down = draw(&seed, 2);
      s.tiers[i].changed = (int64_t)draw(&seed, (uint64_t)NOW);
      s.tiers[i].dwell_ms = (int64_t)draw(&seed, 300001);
    }
    s.strictness = (enum dibs__tiers_strictness)draw(&seed, 2);
    s.breaker = draw(&seed, 2);
    s.least_strict = draw(&seed, 2);
    s.fallback = (uint32_t)draw(&seed, 101);
    s.pinned = (int32_t)draw(&seed, 4) - 1;
    s.longest_ms = (int64_t)draw(&seed, 86400000);
    s.dwell_ms = (int64_t)draw(&seed, 300001);
    s.repairs = (int64_t)draw(&seed, 500000);
    s.repaired = draw(&seed, 2) ? NOW : 0;
    if (draw(&seed, 2)) s.flags_of = (struct dibs__tiers_read_at){(int64_t)draw(&seed, 500000), draw(&seed, 1u << 31)};
    if (draw(&seed, 4) == 0) s.flags_of = (struct dibs__tiers_read_at){DIBS__TIERS_SETTLED, DIBS__TIERS_SETTLED};
    uint64_t kinds = 1 + draw(&seed, 100); /* how many buckets may have equal states */
    for (uint32_t b = 0; b < DIBS__BUCKETS; b++) {
      uint32_t kind = (uint32_t)draw(&seed, kinds);
      if (kind == 0) continue; /* no epoch yet */
      s.mandates[b] = (struct dibs__tiers_mandate){DIBS__EPOCH_MAX - kind,        kind % 3,
                                                   incarnation_of((uint8_t)kind), NOW + kind,
                                                   draw(&seed, 2) ? NOW * 2 : 0,  {0}};
    }
    expect_round_trip(&s);
  }
}

static void equal_buckets_share_a_line(void **state) {
  (void)state;
  struct dibs__tiers_state s = two_tiers();
  for (uint32_t b = 0; b < DIBS__BUCKETS; b++)
    s.mandates[b] = (struct dibs__tiers_mandate){428000, b % 50 < 10 || b == 99, incarnation_of(1), 5, 0, {0}};
  size_t len;
  char *text = dibs__tiers_write(&s, &len);
  assert_non_null(strstr(text, "buckets 0-9,50-59,99 428000 1 01fe"));
  assert_non_null(strstr(text, "buckets 10-49,60-98 428000 0 01fe"));
  assert_true(len < 600);
  free(text);
  /* And the largest state still fits into a record. */
  for (uint32_t b = 0; b < DIBS__BUCKETS; b++)
    s.mandates[b] =
        (struct dibs__tiers_mandate){DIBS__EPOCH_MAX - b, 1, incarnation_of((uint8_t)b), NOW * 1000, NOW * 1000, {0}};
  text = dibs__tiers_write(&s, &len);
  assert_true(len < 16384);
  free(text);
}

/* The test computes the checksum of a text itself, as a newer version would write it. */
static char *with_sum(const char *lines) {
  uint64_t sum = UINT64_C(0xcbf29ce484222325);
  for (const char *p = lines; *p; p++) sum = (sum ^ (uint8_t)*p) * UINT64_C(0x100000001b3);
  char *text = malloc(strlen(lines) + 32);
  assert_non_null(text);
  snprintf(text, strlen(lines) + 32, "%send %016llx\n", lines, (unsigned long long)sum);
  return text;
}

static dibs__status read_lines(const char *lines) {
  struct dibs__tiers_state s;
  struct dibs__result reported = {0};
  char *text = with_sum(lines);
  dibs__status status = dibs__tiers_read(text, strlen(text), &s, &reported);
  if (status != DIBS_OK) assert_string_not_equal(reported.text, "");
  free(text);
  return status;
}

#define INCARNATION "0000000000000000000000000000000000000000"
#define HEAD "dibs-tiers 1\n"
#define TIERS "tier redis auto 100 up 0 10000\ntier mysql auto 100 up 0 10000\n"
#define RULES "rules fenced breaker 100 no-least-strict none 0 10000\n"
#define BUCKETS "buckets 0-99 0 0 " INCARNATION " 0 0\n"

static void a_record_of_a_newer_version_is_not_changed(void **state) {
  (void)state;
  struct dibs__tiers_state s;
  struct dibs__result reported;
  assert_int_equal(read_lines(HEAD TIERS RULES BUCKETS), DIBS_OK);
  assert_int_equal(read_lines(HEAD TIERS RULES BUCKETS "quota 0-99 7\n"), DIBS_TOO_NEW);
  assert_int_equal(read_lines(HEAD "zone eu\n" TIERS RULES BUCKETS), DIBS_TOO_NEW);
  assert_int_equal(read_lines(HEAD TIERS "rules fenced breaker 100 no-least-strict none 0 10000 more\n" BUCKETS),
                   DIBS_TOO_NEW);
  /* A record of another format may differ in everything else, also in its checksum. */
  const char next[] = "dibs-tiers 2\nwhatever";
  assert_int_equal(dibs__tiers_read(next, strlen(next), &s, &reported), DIBS_TOO_NEW);
  assert_non_null(strstr(reported.text, "update"));
}

static void invalid_records_are_refused(void **state) {
  (void)state;
  static const char *const wrong[] = {
      "",
      "\n",
      "dibs-tiers\n" TIERS RULES BUCKETS,
      "dibs-tiers 0\n" TIERS RULES BUCKETS,
      "dibs-tiers 01\n" TIERS RULES BUCKETS,
      HEAD,
      HEAD TIERS RULES,
      HEAD TIERS BUCKETS,
      HEAD RULES BUCKETS,
      HEAD TIERS RULES RULES BUCKETS,
      HEAD TIERS TIERS TIERS RULES BUCKETS,
      HEAD TIERS RULES BUCKETS BUCKETS,
      HEAD TIERS RULES "buckets 0-98 0 0 " INCARNATION " 0 0\n",
      HEAD TIERS RULES "buckets 0-100 0 0 " INCARNATION " 0 0\n",
      HEAD TIERS RULES "buckets 0-99, 0 0 " INCARNATION " 0 0\n",
      HEAD TIERS RULES "buckets 9-0,10-99 0 0 " INCARNATION " 0 0\n",
      HEAD TIERS RULES "buckets 0-50,50-99 0 0 " INCARNATION " 0 0\n",
      HEAD TIERS RULES "buckets 0-99 2097152 0 " INCARNATION " 0 0\n",
      HEAD TIERS RULES "buckets 0-99 0 2 " INCARNATION " 0 0\n",
      HEAD TIERS RULES "buckets 0-99 0 0 " INCARNATION "00 0 0\n",
      HEAD TIERS RULES "buckets 0-99 0 0 0g00000000000000000000000000000000000000 0 0\n",
      HEAD TIERS RULES "buckets 0-99 0 0 " INCARNATION " -1 0\n",
      HEAD TIERS RULES "buckets 0-99 0 0 " INCARNATION " 9223372036854775807 0\n",
      HEAD TIERS RULES "buckets  0-99 0 0 " INCARNATION " 0 0\n",
      HEAD TIERS RULES "\n" BUCKETS,
      HEAD TIERS "rules loose breaker 100 no-least-strict none 0 10000\n" BUCKETS,
      HEAD TIERS "rules fenced maybe 100 no-least-strict none 0 10000\n" BUCKETS,
      HEAD TIERS "rules fenced breaker 101 no-least-strict none 0 10000\n" BUCKETS,
      HEAD TIERS "rules fenced breaker 100 no-least-strict 2 0 10000\n" BUCKETS,
      HEAD TIERS "rules fenced breaker 100 no-least-strict -1 0 10000\n" BUCKETS,
      HEAD "tier Redis auto 100 up 0 10000\n" RULES BUCKETS,
      HEAD "tier redis held 100 up 0 10000\n" RULES BUCKETS,
      HEAD "tier redis auto 100 up 0\n" RULES BUCKETS,
      HEAD "tier redis auto 99 up 0 10000\n" RULES BUCKETS, /* the last tier is always at 100 percent */
      HEAD "tier aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa auto 100 up 0 10000\n" RULES BUCKETS,
  };
  for (size_t i = 0; i < COUNT_OF(wrong); i++)
    if (read_lines(wrong[i]) != DIBS_CORRUPT) fail_msg("%zu: read %s", i, wrong[i]);
}

static void any_changed_byte_is_detected(void **state) {
  (void)state;
  struct dibs__tiers_state s = two_tiers(), back;
  struct dibs__result reported;
  for (uint32_t b = 0; b < DIBS__BUCKETS; b++) s.mandates[b].epoch = 428000 + b % 3;
  size_t len;
  char *text = dibs__tiers_write(&s, &len);
  for (size_t i = 0; i < len; i++) {
    for (int bit = 0; bit < 8; bit++) {
      text[i] = (char)(text[i] ^ 1 << bit);
      dibs__status status = dibs__tiers_read(text, len, &back, &reported);
      /* A change in the format number may look like a newer format. */
      if (status != DIBS_CORRUPT && !(status == DIBS_TOO_NEW && i == 11)) fail_msg("byte %zu, bit %d", i, bit);
      text[i] = (char)(text[i] ^ 1 << bit);
    }
    assert_int_equal(dibs__tiers_read(text, i, &back, &reported), DIBS_CORRUPT); /* truncated */
  }
  assert_int_equal(dibs__tiers_read(text, len, &back, &reported), DIBS_OK);
  free(text);
}

/* ---- Reports ---- */

static void reports_are_restored_from_their_text(void **state) {
  (void)state;
  uint64_t seed = 7;
  for (int round = 0; round < 2000; round++) {
    struct dibs__tiers_report report = {.count = 1 + (uint32_t)draw(&seed, 4)}, back;
    for (uint32_t i = 0; i < report.count; i++) {
      report.tiers[i].active = draw(&seed, 2);
      report.tiers[i].down = draw(&seed, 2);
      report.tiers[i].well = draw(&seed, 2);
      uint64_t breaker = draw(&seed, 3);
      report.tiers[i].breaker = breaker == 0   ? DIBS__SEEN_CLOSED
                                : breaker == 1 ? DIBS__SEEN_OPEN
                                               : DIBS__SEEN_HALF_OPEN;
    }
    for (size_t i = draw(&seed, DIBS__TIERS_COUNTS_MAX + 1); i > 0; i--)
      report.counts[i - 1] = draw(&seed, 4) ? draw(&seed, 1000) : UINT64_MAX;
    if (draw(&seed, 8)) snprintf(report.owner, sizeof report.owner, "user name@host:%d \xc3\xa9", round);
    char text[DIBS__REPORT_MAX + 1];
    size_t len = dibs__tiers_report_write(&report, text, sizeof text);
    assert_true(len > 0 && len == strlen(text));
    assert_true(dibs__tiers_report_read(dibs__str_of(text, len), &back));
    assert_int_equal(back.count, report.count);
    assert_string_equal(back.owner, report.owner);
    assert_memory_equal(back.counts, report.counts, sizeof back.counts);
    for (uint32_t i = 0; i < report.count; i++) {
      assert_int_equal(back.tiers[i].active, report.tiers[i].active);
      assert_int_equal(back.tiers[i].down, report.tiers[i].down);
      assert_int_equal(back.tiers[i].well, report.tiers[i].well);
      assert_int_equal(back.tiers[i].breaker, report.tiers[i].breaker);
    }
  }
}

static void the_largest_report_fits_and_a_small_buffer_is_reported(void **state) {
  (void)state;
  struct dibs__tiers_report report = {.count = 4}, back;
  char text[DIBS__REPORT_MAX + 1];
  for (size_t i = 0; i < DIBS__TIERS_COUNTS_MAX; i++) report.counts[i] = UINT64_MAX;
  memset(report.owner, 'o', DIBS_OWNER_MAX);
  size_t len = dibs__tiers_report_write(&report, text, sizeof text);
  assert_true(len > 400 && len <= DIBS__REPORT_MAX);
  assert_true(dibs__tiers_report_read(dibs__str_of(text, len), &back));
  for (size_t size = 1; size <= len; size++) assert_int_equal(dibs__tiers_report_write(&report, text, size), 0);
  /* An owner that would break the line is omitted. */
  snprintf(report.owner, sizeof report.owner, "a\nb");
  len = dibs__tiers_report_write(&report, text, sizeof text);
  assert_true(dibs__tiers_report_read(dibs__str_of(text, len), &back));
  assert_string_equal(back.owner, "");
}

static void malformed_reports_are_ignored(void **state) {
  (void)state;
  static const char *const wrong[] = {"",
                                      "1",
                                      "1 a-wc",
                                      "1 a-wc 0",
                                      "2 a-wc 0 x",
                                      "1 a-w 0 x",
                                      "1 a-wcxa-wc 0 x",
                                      "1 a-wcc 0 x",
                                      "1 a-wc, 0 x",
                                      "1 a-wx 0 x",
                                      "1 a-wc  x",
                                      "1 a-wc -1 x",
                                      "1 a-wc 0, x",
                                      "1 A-wc 0 x",
                                      "1 a-wc 0 x\ny",
                                      "1 ,a-wc 0 x",
                                      "1 a-wc 0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0 x",
                                      "1 ----,---- 18446744073709551616 x",
                                      "1 ---c,---c,---c,---c,---c 0 x",
                                      "1 ---c 0 \xff"};
  struct dibs__tiers_report report;
  for (size_t i = 0; i < COUNT_OF(wrong); i++)
    if (dibs__tiers_report_read(dibs__str_of(wrong[i], strlen(wrong[i])), &report)) fail_msg("read %s", wrong[i]);
  assert_true(dibs__tiers_report_read(dibs__str_of("1 a-wc 0 ", 9), &report));
  assert_true(dibs__tiers_report_read(dibs__str_of("1 a-wc 0 x", 10), &report));
}

/* ---- Flags ---- */

static uint32_t get(const struct dibs__tiers_state *s, const char *name) {
  uint32_t percent;
  struct dibs__result reported = {0};
  if (dibs__tiers_flag_get(s, name, &percent, &reported) != DIBS_OK) fail_msg("%s", reported.text);
  return percent;
}

static void flags_are_named_by_the_tiers(void **state) {
  (void)state;
  static const char *const names[] = {"redis.enabled", "postgres.enabled", "circuit-breaker.enabled",
                                      "mysql-fallback.enabled", "least-strict.enabled"};
  struct dibs__tiers_state s = three_tiers();
  char capacity[64];
  for (size_t i = 0; i < COUNT_OF(names); i++)
    assert_string_equal(dibs__tiers_flag_name(&s, i, capacity, sizeof capacity), names[i]);
  assert_null(dibs__tiers_flag_name(&s, COUNT_OF(names), capacity, sizeof capacity));
  assert_null(dibs__tiers_flag_name(&s, 0, capacity, 5));
  dibs__tiers_begin(&s, (const char *const[]){"rediss", "redis", "mariadb"}, 3);
  assert_string_equal(dibs__tiers_flag_name(&s, 0, capacity, sizeof capacity), "redis.enabled");
  assert_string_equal(dibs__tiers_flag_name(&s, 1, capacity, sizeof capacity), "redis-2.enabled");
  dibs__tiers_begin(&s, (const char *const[]){"sqlite"}, 1);
  assert_string_equal(dibs__tiers_flag_name(&s, 0, capacity, sizeof capacity), "circuit-breaker.enabled");
}

static void flags_set_their_rule(void **state) {
  (void)state;
  struct dibs__tiers_state s = three_tiers();
  struct dibs__result reported = {0};
  assert_int_equal(dibs__tiers_flag_set(&s, "postgres.enabled", 10, &reported), DIBS_OK);
  assert_int_equal(s.tiers[1].percent, 10);
  assert_int_equal(s.tiers[0].percent, 100);
  assert_int_equal(get(&s, "postgres.enabled"), 10);
  assert_int_equal(dibs__tiers_flag_set(&s, "circuit-breaker.enabled", 0, &reported), DIBS_OK);
  assert_false(s.breaker);
  assert_int_equal(get(&s, "circuit-breaker.enabled"), 0);
  assert_int_equal(dibs__tiers_flag_set(&s, "least-strict.enabled", 100, &reported), DIBS_OK);
  assert_true(s.least_strict);
  static const char *const fallbacks[] = {"mysql-fallback.enabled", "postgres-fallback.enabled", "fallback.enabled"};
  for (uint32_t i = 0; i < COUNT_OF(fallbacks); i++) {
    assert_int_equal(dibs__tiers_flag_set(&s, fallbacks[i], i + 1, &reported), DIBS_OK);
    assert_int_equal(s.fallback, i + 1);
    assert_int_equal(get(&s, fallbacks[COUNT_OF(fallbacks) - 1 - i]), i + 1);
  }
}

static void an_unknown_flag_lists_the_known_ones(void **state) {
  (void)state;
  struct dibs__tiers_state s = two_tiers(), before = s;
  struct dibs__result reported = {0};
  uint32_t percent;
  assert_int_equal(dibs__tiers_flag_set(&s, "memcached.enabled", 0, &reported), DIBS_INVALID);
  static const char *const all[] = {"redis.enabled", "circuit-breaker.enabled", "mysql-fallback.enabled",
                                    "least-strict.enabled"};
  for (size_t i = 0; i < COUNT_OF(all); i++) assert_non_null(strstr(reported.text, all[i]));
  assert_int_equal(dibs__tiers_flag_get(&s, "redis-fallback.enabled", &percent, &reported), DIBS_INVALID);
  assert_int_equal(dibs__tiers_flag_set(&s, "redis.enabled", 101, &reported), DIBS_INVALID);
  assert_non_null(strstr(reported.text, "101"));
  assert_int_equal(dibs__tiers_flag_set(&s, "circuit-breaker.enabled", 50, &reported), DIBS_INVALID);
  assert_int_equal(dibs__tiers_flag_set(&s, "least-strict.enabled", 1, &reported), DIBS_INVALID);
  assert_int_equal(dibs__tiers_flag_set(&s, "mysql.enabled", 50, &reported), DIBS_INVALID);
  assert_non_null(strstr(reported.text, "anchor"));
  assert_int_equal(get(&s, "mysql.enabled"), 100);
  assert_memory_equal(&s, &before, sizeof s);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_new_state_is_restored_from_its_text),
      cmocka_unit_test(any_state_is_restored_from_its_text),
      cmocka_unit_test(equal_buckets_share_a_line),
      cmocka_unit_test(a_record_of_a_newer_version_is_not_changed),
      cmocka_unit_test(invalid_records_are_refused),
      cmocka_unit_test(any_changed_byte_is_detected),
      cmocka_unit_test(reports_are_restored_from_their_text),
      cmocka_unit_test(the_largest_report_fits_and_a_small_buffer_is_reported),
      cmocka_unit_test(malformed_reports_are_ignored),
      cmocka_unit_test(flags_are_named_by_the_tiers),
      cmocka_unit_test(flags_set_their_rule),
      cmocka_unit_test(an_unknown_flag_lists_the_known_ones),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
