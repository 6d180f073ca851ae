/* SPDX-License-Identifier: MIT */
/* What the anchor remembers, as text and back; reports; flags. */
#include "bed.h"
#include "unit.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- The record ---- */

static void comes_back_the_same(const struct dibs__tiers_state *state) {
  struct dibs__tiers_state back;
  struct dibs__said said = {0};
  size_t len, again;
  char *text = dibs__tiers_write(state, &len);
  assert_non_null(text);
  assert_int_equal(strlen(text), len);
  if (dibs__tiers_read(text, len, &back, &said) != DIBS_OK) fail_msg("%s\n%s", said.text, text);
  char *same = dibs__tiers_write(&back, &again);
  assert_string_equal(text, same);
  assert_int_equal(back.count, state->count);
  for (uint32_t b = 0; b < DIBS__BUCKETS; b++) {
    const struct dibs__tiers_mandate *m = &state->mandates[b], *n = &back.mandates[b];
    assert_int_equal(m->epoch, n->epoch);
    assert_int_equal(m->tier, n->tier);
    assert_memory_equal(&m->life, &n->life, sizeof m->life);
    assert_true(m->since == n->since && m->from == n->from);
  }
  for (uint32_t i = 0; i < state->count; i++) {
    const struct dibs__tiers_tier *t = &state->tiers[i], *u = &back.tiers[i];
    assert_string_equal(t->scheme, u->scheme);
    assert_int_equal(t->hand, u->hand);
    assert_int_equal(t->percent, u->percent);
    assert_int_equal(t->down, u->down);
    assert_true(t->turned == u->turned && t->dwell_ms == u->dwell_ms);
  }
  assert_int_equal(back.strictness, state->strictness);
  assert_int_equal(back.breaker, state->breaker);
  assert_int_equal(back.fallback, state->fallback);
  assert_int_equal(back.least_strict, state->least_strict);
  assert_int_equal(back.pinned, state->pinned);
  assert_true(back.longest_ms == state->longest_ms && back.dwell_ms == state->dwell_ms);
  free(text);
  free(same);
}

static void a_new_state_comes_back(void **state) {
  (void)state;
  for (uint32_t count = 1; count <= DIBS__URI_TIERS; count++) {
    struct dibs__tiers_state s;
    dibs__tiers_begin(&s, (const char *const[]){"rediss", "postgresql", "mariadb", "sqlite"}, count);
    comes_back_the_same(&s);
    assert_string_equal(s.tiers[0].scheme, "redis");
    assert_int_equal(s.tiers[count - 1].percent, 100);
  }
}

static void any_state_comes_back(void **state) {
  (void)state;
  uint64_t seed = 42;
  for (int round = 0; round < 300; round++) {
    struct dibs__tiers_state s = three_tiers();
    for (uint32_t i = 0; i < 3; i++) {
      s.tiers[i].hand = (enum dibs__tiers_hand)draw(&seed, 3);
      if (i < 2) s.tiers[i].percent = (uint32_t)draw(&seed, 101);
      s.tiers[i].down = draw(&seed, 2);
      s.tiers[i].turned = (int64_t)draw(&seed, (uint64_t)NOW);
      s.tiers[i].dwell_ms = (int64_t)draw(&seed, 300001);
    }
    s.strictness = (enum dibs__tiers_strictness)draw(&seed, 2);
    s.breaker = draw(&seed, 2);
    s.least_strict = draw(&seed, 2);
    s.fallback = (uint32_t)draw(&seed, 101);
    s.pinned = (int32_t)draw(&seed, 4) - 1;
    s.longest_ms = (int64_t)draw(&seed, 86400000);
    s.dwell_ms = (int64_t)draw(&seed, 300001);
    uint64_t kinds = 1 + draw(&seed, 100); /* how many buckets may be alike */
    for (uint32_t b = 0; b < DIBS__BUCKETS; b++) {
      uint32_t kind = (uint32_t)draw(&seed, kinds);
      if (kind == 0) continue; /* none made yet */
      s.mandates[b] = (struct dibs__tiers_mandate){DIBS__EPOCH_MAX - kind, kind % 3, life_of((uint8_t)kind), NOW + kind,
                                                   draw(&seed, 2) ? NOW * 2 : 0};
    }
    comes_back_the_same(&s);
  }
}

static void buckets_that_are_alike_share_a_line(void **state) {
  (void)state;
  struct dibs__tiers_state s = two_tiers();
  for (uint32_t b = 0; b < DIBS__BUCKETS; b++)
    s.mandates[b] = (struct dibs__tiers_mandate){428000, b % 50 < 10 || b == 99, life_of(1), 5, 0};
  size_t len;
  char *text = dibs__tiers_write(&s, &len);
  assert_non_null(strstr(text, "buckets 0-9,50-59,99 428000 1 01fe"));
  assert_non_null(strstr(text, "buckets 10-49,60-98 428000 0 01fe"));
  assert_true(len < 600);
  free(text);
  /* And the largest there is still is a record. */
  for (uint32_t b = 0; b < DIBS__BUCKETS; b++)
    s.mandates[b] = (struct dibs__tiers_mandate){DIBS__EPOCH_MAX - b, 1, life_of((uint8_t)b), NOW * 1000, NOW * 1000};
  text = dibs__tiers_write(&s, &len);
  assert_true(len < 16384);
  free(text);
}

/* The sum that a text should have is found by hand: a newer version would write it the same way. */
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
  struct dibs__said said = {0};
  char *text = with_sum(lines);
  dibs__status status = dibs__tiers_read(text, strlen(text), &s, &said);
  if (status != DIBS_OK) assert_string_not_equal(said.text, "");
  free(text);
  return status;
}

#define LIFE "0000000000000000000000000000000000000000"
#define HEAD "dibs-tiers 1\n"
#define TIERS "tier redis auto 100 up 0 10000\ntier mysql auto 100 up 0 10000\n"
#define RULES "rules fenced breaker 100 no-least-strict none 0 10000\n"
#define BUCKETS "buckets 0-99 0 0 " LIFE " 0 0\n"

static void what_a_newer_version_wrote_is_left_alone(void **state) {
  (void)state;
  struct dibs__tiers_state s;
  struct dibs__said said;
  assert_int_equal(read_lines(HEAD TIERS RULES BUCKETS), DIBS_OK);
  assert_int_equal(read_lines(HEAD TIERS RULES BUCKETS "quota 0-99 7\n"), DIBS_TOO_NEW);
  assert_int_equal(read_lines(HEAD "zone eu\n" TIERS RULES BUCKETS), DIBS_TOO_NEW);
  assert_int_equal(read_lines(HEAD TIERS "rules fenced breaker 100 no-least-strict none 0 10000 more\n" BUCKETS),
                   DIBS_TOO_NEW);
  /* Of another format nothing else need be the same, the sum neither. */
  const char next[] = "dibs-tiers 2\nwhatever";
  assert_int_equal(dibs__tiers_read(next, strlen(next), &s, &said), DIBS_TOO_NEW);
  assert_non_null(strstr(said.text, "update"));
}

static void what_can_not_be_is_refused(void **state) {
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
      HEAD TIERS RULES "buckets 0-98 0 0 " LIFE " 0 0\n",
      HEAD TIERS RULES "buckets 0-100 0 0 " LIFE " 0 0\n",
      HEAD TIERS RULES "buckets 0-99, 0 0 " LIFE " 0 0\n",
      HEAD TIERS RULES "buckets 9-0,10-99 0 0 " LIFE " 0 0\n",
      HEAD TIERS RULES "buckets 0-50,50-99 0 0 " LIFE " 0 0\n",
      HEAD TIERS RULES "buckets 0-99 2097152 0 " LIFE " 0 0\n",
      HEAD TIERS RULES "buckets 0-99 0 2 " LIFE " 0 0\n",
      HEAD TIERS RULES "buckets 0-99 0 0 " LIFE "00 0 0\n",
      HEAD TIERS RULES "buckets 0-99 0 0 0g00000000000000000000000000000000000000 0 0\n",
      HEAD TIERS RULES "buckets 0-99 0 0 " LIFE " -1 0\n",
      HEAD TIERS RULES "buckets 0-99 0 0 " LIFE " 9223372036854775807 0\n",
      HEAD TIERS RULES "buckets  0-99 0 0 " LIFE " 0 0\n",
      HEAD TIERS RULES "\n" BUCKETS,
      HEAD TIERS "rules loose breaker 100 no-least-strict none 0 10000\n" BUCKETS,
      HEAD TIERS "rules fenced maybe 100 no-least-strict none 0 10000\n" BUCKETS,
      HEAD TIERS "rules fenced breaker 101 no-least-strict none 0 10000\n" BUCKETS,
      HEAD TIERS "rules fenced breaker 100 no-least-strict 2 0 10000\n" BUCKETS,
      HEAD TIERS "rules fenced breaker 100 no-least-strict -1 0 10000\n" BUCKETS,
      HEAD "tier Redis auto 100 up 0 10000\n" RULES BUCKETS,
      HEAD "tier redis held 100 up 0 10000\n" RULES BUCKETS,
      HEAD "tier redis auto 100 up 0\n" RULES BUCKETS,
      HEAD "tier redis auto 99 up 0 10000\n" RULES BUCKETS, /* the last one is on for all */
      HEAD "tier aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa auto 100 up 0 10000\n" RULES BUCKETS,
  };
  for (size_t i = 0; i < COUNT_OF(wrong); i++)
    if (read_lines(wrong[i]) != DIBS_CORRUPT) fail_msg("%zu: read %s", i, wrong[i]);
}

static void any_byte_that_changed_is_seen(void **state) {
  (void)state;
  struct dibs__tiers_state s = two_tiers(), back;
  struct dibs__said said;
  for (uint32_t b = 0; b < DIBS__BUCKETS; b++) s.mandates[b].epoch = 428000 + b % 3;
  size_t len;
  char *text = dibs__tiers_write(&s, &len);
  for (size_t i = 0; i < len; i++) {
    for (int bit = 0; bit < 8; bit++) {
      text[i] = (char)(text[i] ^ 1 << bit);
      dibs__status status = dibs__tiers_read(text, len, &back, &said);
      /* In the number of the format it may look like one to come. */
      if (status != DIBS_CORRUPT && !(status == DIBS_TOO_NEW && i == 11)) fail_msg("byte %zu, bit %d", i, bit);
      text[i] = (char)(text[i] ^ 1 << bit);
    }
    assert_int_equal(dibs__tiers_read(text, i, &back, &said), DIBS_CORRUPT); /* cut off */
  }
  assert_int_equal(dibs__tiers_read(text, len, &back, &said), DIBS_OK);
  free(text);
}

/* ---- Reports ---- */

static void reports_come_back(void **state) {
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

static void the_largest_report_fits_and_a_small_place_is_told(void **state) {
  (void)state;
  struct dibs__tiers_report report = {.count = 4}, back;
  char text[DIBS__REPORT_MAX + 1];
  for (size_t i = 0; i < DIBS__TIERS_COUNTS_MAX; i++) report.counts[i] = UINT64_MAX;
  memset(report.owner, 'o', DIBS_OWNER_MAX);
  size_t len = dibs__tiers_report_write(&report, text, sizeof text);
  assert_true(len > 400 && len <= DIBS__REPORT_MAX);
  assert_true(dibs__tiers_report_read(dibs__str_of(text, len), &back));
  for (size_t size = 1; size <= len; size++) assert_int_equal(dibs__tiers_report_write(&report, text, size), 0);
  /* An owner that would break the line is nobody's. */
  snprintf(report.owner, sizeof report.owner, "a\nb");
  len = dibs__tiers_report_write(&report, text, sizeof text);
  assert_true(dibs__tiers_report_read(dibs__str_of(text, len), &back));
  assert_string_equal(back.owner, "");
}

static void what_is_no_report_does_not_count(void **state) {
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
  struct dibs__said said = {0};
  if (dibs__tiers_flag_get(s, name, &percent, &said) != DIBS_OK) fail_msg("%s", said.text);
  return percent;
}

static void flags_are_named_by_the_tiers_that_there_are(void **state) {
  (void)state;
  static const char *const names[] = {"redis.enabled", "postgres.enabled", "circuit-breaker.enabled",
                                      "mysql-fallback.enabled", "least-strict.enabled"};
  struct dibs__tiers_state s = three_tiers();
  char room[64];
  for (size_t i = 0; i < COUNT_OF(names); i++)
    assert_string_equal(dibs__tiers_flag_name(&s, i, room, sizeof room), names[i]);
  assert_null(dibs__tiers_flag_name(&s, COUNT_OF(names), room, sizeof room));
  assert_null(dibs__tiers_flag_name(&s, 0, room, 5));
  dibs__tiers_begin(&s, (const char *const[]){"rediss", "redis", "mariadb"}, 3);
  assert_string_equal(dibs__tiers_flag_name(&s, 0, room, sizeof room), "redis.enabled");
  assert_string_equal(dibs__tiers_flag_name(&s, 1, room, sizeof room), "redis-2.enabled");
  dibs__tiers_begin(&s, (const char *const[]){"sqlite"}, 1);
  assert_string_equal(dibs__tiers_flag_name(&s, 0, room, sizeof room), "circuit-breaker.enabled");
}

static void flags_are_set_where_they_point(void **state) {
  (void)state;
  struct dibs__tiers_state s = three_tiers();
  struct dibs__said said = {0};
  assert_int_equal(dibs__tiers_flag_set(&s, "postgres.enabled", 10, &said), DIBS_OK);
  assert_int_equal(s.tiers[1].percent, 10);
  assert_int_equal(s.tiers[0].percent, 100);
  assert_int_equal(get(&s, "postgres.enabled"), 10);
  assert_int_equal(dibs__tiers_flag_set(&s, "circuit-breaker.enabled", 0, &said), DIBS_OK);
  assert_false(s.breaker);
  assert_int_equal(get(&s, "circuit-breaker.enabled"), 0);
  assert_int_equal(dibs__tiers_flag_set(&s, "least-strict.enabled", 100, &said), DIBS_OK);
  assert_true(s.least_strict);
  static const char *const fallbacks[] = {"mysql-fallback.enabled", "postgres-fallback.enabled", "fallback.enabled"};
  for (uint32_t i = 0; i < COUNT_OF(fallbacks); i++) {
    assert_int_equal(dibs__tiers_flag_set(&s, fallbacks[i], i + 1, &said), DIBS_OK);
    assert_int_equal(s.fallback, i + 1);
    assert_int_equal(get(&s, fallbacks[COUNT_OF(fallbacks) - 1 - i]), i + 1);
  }
}

static void a_flag_that_is_not_names_those_that_are(void **state) {
  (void)state;
  struct dibs__tiers_state s = two_tiers(), before = s;
  struct dibs__said said = {0};
  uint32_t percent;
  assert_int_equal(dibs__tiers_flag_set(&s, "memcached.enabled", 0, &said), DIBS_INVALID);
  static const char *const all[] = {"redis.enabled", "circuit-breaker.enabled", "mysql-fallback.enabled",
                                    "least-strict.enabled"};
  for (size_t i = 0; i < COUNT_OF(all); i++) assert_non_null(strstr(said.text, all[i]));
  assert_int_equal(dibs__tiers_flag_get(&s, "redis-fallback.enabled", &percent, &said), DIBS_INVALID);
  assert_int_equal(dibs__tiers_flag_set(&s, "redis.enabled", 101, &said), DIBS_INVALID);
  assert_non_null(strstr(said.text, "101"));
  assert_int_equal(dibs__tiers_flag_set(&s, "circuit-breaker.enabled", 50, &said), DIBS_INVALID);
  assert_int_equal(dibs__tiers_flag_set(&s, "least-strict.enabled", 1, &said), DIBS_INVALID);
  assert_int_equal(dibs__tiers_flag_set(&s, "mysql.enabled", 50, &said), DIBS_INVALID);
  assert_non_null(strstr(said.text, "anchor"));
  assert_int_equal(get(&s, "mysql.enabled"), 100);
  assert_memory_equal(&s, &before, sizeof s);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_new_state_comes_back),
      cmocka_unit_test(any_state_comes_back),
      cmocka_unit_test(buckets_that_are_alike_share_a_line),
      cmocka_unit_test(what_a_newer_version_wrote_is_left_alone),
      cmocka_unit_test(what_can_not_be_is_refused),
      cmocka_unit_test(any_byte_that_changed_is_seen),
      cmocka_unit_test(reports_come_back),
      cmocka_unit_test(the_largest_report_fits_and_a_small_place_is_told),
      cmocka_unit_test(what_is_no_report_does_not_count),
      cmocka_unit_test(flags_are_named_by_the_tiers_that_there_are),
      cmocka_unit_test(flags_are_set_where_they_point),
      cmocka_unit_test(a_flag_that_is_not_names_those_that_are),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
