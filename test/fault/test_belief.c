/* SPDX-License-Identifier: MIT */
/*
 * The checker of beliefs, on beliefs made by hand: it reports what breaks the rule, and each exception excuses only
 * what it describes.
 */
#include "belief.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#define MS(n) ((n)*DIBS__NS_PER_MS)
#define EPOCH(n) ((uint64_t)(n) << 32)

static char folder[64], path[128];
static struct belief_file *file;
static struct belief_rules rules;
static struct belief_sums sums;

static int begin(void **state) {
  (void)state;
  snprintf(folder, sizeof folder, "/tmp/dibs-belief-XXXXXX");
  assert_non_null(mkdtemp(folder));
  snprintf(path, sizeof path, "%s/process-1.beliefs", folder);
  int fd = open(path, O_RDWR | O_CREAT, 0600);
  assert_true(fd >= 0);
  assert_int_equal(ftruncate(fd, sizeof *file), 0);
  file = mmap(NULL, sizeof *file, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  assert_true(file != MAP_FAILED);
  close(fd);
  rules = (struct belief_rules){.session = false};
  return 0;
}

static int end(void **state) {
  (void)state;
  munmap(file, sizeof *file);
  unlink(path);
  return rmdir(folder);
}

/* A request by `id` that was granted at once; looks saw it alive from `from` to `seen`, and it claimed `until`; in
 * ms. */
static struct belief *believes(uint64_t id, uint64_t fence, int64_t from, int64_t seen, int64_t until) {
  struct belief *belief = &file->at[file->count++];
  belief->id[0] = id;
  belief->fence = fence;
  belief->process = (uint32_t)id;
  belief->ttl_ms = (uint32_t)(until - from);
  belief->requested = MS(from - 1);
  belief->from = MS(from);
  belief->seen = MS(seen);
  belief->until = MS(until);
  belief->written = belief->answered = 1;
  return belief;
}
static void happens(enum belief_event_kind kind, uint32_t process, int64_t from, int64_t to) {
  struct belief_event *event = &file->events[file->event_count++];
  event->kind = kind;
  event->process = process;
  event->from = MS(from);
  event->to = MS(to);
}
static void expect(int broken, uint64_t excused) {
  assert_int_equal(beliefs_check(folder, &rules, &sums), broken);
  assert_int_equal(sums.excused, excused);
}

/* ---- The rule ---- */

static void consecutive_beliefs_are_correct(void **state) {
  (void)state;
  believes(1, 1, 10, 40, 100)->ended = MS(50);
  believes(2, 2, 50, 60, 150);
  believes(3, 3, 150, 160, 250);
  expect(0, 0);
  assert_int_equal(sums.believed, 3);
  assert_int_equal(sums.followed, 2);
}

static void a_claim_counts_without_a_look(void **state) {
  (void)state;
  believes(1, 1, 10, 20, 100); /* killed, or stopped */
  believes(2, 2, 99, 120, 200);
  expect(1, 0);
}

static void a_look_counts_after_the_claim_ended(void **state) {
  (void)state;
  believes(1, 1, 10, 130, 100);
  believes(2, 2, 120, 140, 200);
  expect(1, 0);
}

static void readers_share_and_a_writer_excludes(void **state) {
  (void)state;
  believes(1, 0, 10, 50, 100)->mode = DIBS_SHARED;
  believes(2, 0, 20, 50, 100)->mode = DIBS_SHARED;
  expect(0, 0);
  believes(3, 1, 60, 70, 90);
  expect(2, 0);
}

static void a_slot_has_one_holder(void **state) {
  (void)state;
  for (uint32_t slot = 0; slot < BELIEF_SLOTS; slot++) {
    struct belief *belief = believes(slot + 1, 0, 10 + slot, 50, 100);
    belief->mode = DIBS_COUNTED;
    belief->slot = slot;
  }
  expect(0, 0);
  believes(9, 0, 60, 70, 90)->mode = DIBS_COUNTED;
  expect(1, 0);
}

static void a_fence_is_granted_once(void **state) {
  (void)state;
  believes(1, 7, 10, 20, 30);
  believes(2, 7, 40, 50, 60);
  expect(1, 0);
}

static void a_lease_is_lost_only_for_a_reason(void **state) {
  (void)state;
  believes(1, 1, 10, 20, 100)->dead = MS(30);
  expect(1, 0);
  happens(BELIEF_BREAK, 0, 15, 16);
  expect(0, 0);
  assert_int_equal(sums.lost, 1);
}

/* ---- Handles of one id ---- */

static void handles_of_one_id_are_one_client(void **state) {
  (void)state;
  believes(1, 1, 10, 90, 100);
  believes(1, 1, 20, 90, 100)->ended = MS(90);
  expect(0, 0);
}

static void a_release_by_one_handle_counts_for_all_handles(void **state) {
  (void)state;
  believes(1, 1, 10, 60, 100);
  struct belief *other = believes(1, 1, 20, 40, 100);
  other->ended = other->gave_back = MS(50);
  believes(2, 2, 55, 60, 90);
  expect(0, 0);
  other->gave_back = 0; /* detached */
  expect(1, 0);
}

static void a_late_release_affects_only_other_handles(void **state) {
  (void)state;
  struct belief *left = believes(1, 1, 10, 20, 30), *repeat = believes(1, 1, 60, 70, 150);
  left->gave_back = left->requested; /* its wait was abandoned: the effect of that is not known */
  believes(2, 2, 100, 110, 120);
  expect(1, 0); /* through the same handle the library must order them */
  repeat->handle = 2;
  expect(0, 0);
  left->given = MS(50);
  expect(1, 0);
}

static void a_repeated_request_claims_no_more_than_the_grant(void **state) {
  (void)state;
  believes(1, 1, 10, 20, 110)->ended = MS(30); /* detached, ttl 100 */
  believes(1, 1, 80, 120, 180);                /* a whole new ttl */
  believes(2, 2, 112, 115, 150);
  expect(1, 0);
}

/* ---- Breaking ---- */

static void a_broken_lease_ends_when_its_holder_learns_it(void **state) {
  (void)state;
  struct belief *victim = believes(1, 1, 10, 40, 100);
  believes(2, 2, 50, 60, 90);
  happens(BELIEF_BREAK, 0, 30, 31);
  expect(0, 0);
  victim->seen = MS(55);
  expect(1, 0);
}

static void after_a_break_with_now_two_may_believe_until_the_old_claim_ends(void **state) {
  (void)state;
  struct belief *victim = believes(1, 1, 10, 90, 100);
  believes(2, 2, 50, 60, 90);
  happens(BELIEF_BREAK_NOW, 0, 45, 46);
  expect(0, 1);
  victim->seen = MS(140); /* the broken lease was renewed */
  expect(1, 0);
}

static void a_later_break_excuses_nothing(void **state) {
  (void)state;
  believes(1, 1, 10, 90, 100);
  believes(2, 2, 50, 60, 90);
  happens(BELIEF_BREAK_NOW, 0, 70, 71);
  expect(1, 0);
}

/* ---- Session locks, tiers ---- */

static void a_session_lock_ends_with_its_connection(void **state) {
  (void)state;
  believes(1, 1, 10, 90, 100);
  believes(2, 2, 50, 60, 90);
  rules.session = true;
  expect(1, 0);
  happens(BELIEF_STOPPED, 3, 40, 45); /* another client */
  expect(1, 0);
  happens(BELIEF_STOPPED, 1, 40, 45);
  expect(0, 1);
  rules.session = false;
  expect(1, 0);
}

static void after_a_move_two_may_believe_under_two_epochs(void **state) {
  (void)state;
  struct belief *old = believes(1, EPOCH(5) + 1, 10, 90, 100);
  believes(2, EPOCH(6) + 1, 50, 60, 90);
  expect(1, 0);
  rules.moves = true;
  expect(0, 1);
  old->fence = EPOCH(6);
  expect(1, 0);
}

static void without_a_fence_an_unreachable_server_excuses_two_beliefs(void **state) {
  (void)state;
  rules.moves = true;
  believes(1, 0, 10, 90, 100)->mode = DIBS_SHARED;
  believes(2, EPOCH(6) + 1, 50, 60, 90);
  expect(1, 0);
  happens(BELIEF_AWAY, 0, 5, 6);
  expect(0, 1);
}

int main(void) {
#define TEST(f) cmocka_unit_test_setup_teardown(f, begin, end)
  const struct CMUnitTest tests[] = {
      TEST(consecutive_beliefs_are_correct),
      TEST(a_claim_counts_without_a_look),
      TEST(a_look_counts_after_the_claim_ended),
      TEST(readers_share_and_a_writer_excludes),
      TEST(a_slot_has_one_holder),
      TEST(a_fence_is_granted_once),
      TEST(a_lease_is_lost_only_for_a_reason),
      TEST(handles_of_one_id_are_one_client),
      TEST(a_release_by_one_handle_counts_for_all_handles),
      TEST(a_late_release_affects_only_other_handles),
      TEST(a_repeated_request_claims_no_more_than_the_grant),
      TEST(a_broken_lease_ends_when_its_holder_learns_it),
      TEST(after_a_break_with_now_two_may_believe_until_the_old_claim_ends),
      TEST(a_later_break_excuses_nothing),
      TEST(a_session_lock_ends_with_its_connection),
      TEST(after_a_move_two_may_believe_under_two_epochs),
      TEST(without_a_fence_an_unreachable_server_excuses_two_beliefs),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
