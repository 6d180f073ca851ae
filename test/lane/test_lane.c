/* SPDX-License-Identifier: MIT */
/* Lanes through dibs/lane.h: several members in one process, each with a handle of its own. */
#include "dibs/lane.h"
#include "lane/lane_impl.h"
#include "lease/help.h"

#include <poll.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

enum { TTL_MS = 3000, LOOK_MS = 50 };

/* ---- Who uses which lane, as the callbacks say ---- */

static struct {
  pthread_mutex_t lock;
  uint32_t used[DIBS_LANES_MAX + 1][DIBS_LANES_MAX]; /* by P and lane: owners now */
  uint32_t using[DIBS_LANES_MAX + 1];                /* by P: lanes in use */
  uint64_t fence[DIBS_LANES_MAX + 1];                /* by P: the largest that was seen */
  _Atomic uint32_t two, mixed, low;                  /* broken rules */
} all = {.lock = PTHREAD_MUTEX_INITIALIZER};

static int begin(void **state) {
  memset(all.used, 0, sizeof all.used);
  memset(all.using, 0, sizeof all.using);
  memset(all.fence, 0, sizeof all.fence);
  all.two = all.mixed = all.low = 0;
  return case_begin(state);
}

static int end(void **state) {
  bool fine = all.two == 0 && all.mixed == 0 && all.low == 0;
  if (!fine) fprintf(stderr, "two owners: %u, two numbers of lanes: %u, low fences: %u\n", all.two, all.mixed, all.low);
  return case_end(state) != 0 || !fine;
}
#undef TEST
#define TEST(f) cmocka_unit_test_setup_teardown(f, begin, end)

static void note_use(const dibs_lane *lane, int change) {
  uint32_t lanes = dibs_lane_lanes(lane), number = dibs_lane_number(lane);
  uint64_t fence = dibs_lane_fence(lane).value;
  pthread_mutex_lock(&all.lock);
  if (change > 0 && all.used[lanes][number] > 0) all.two++;
  for (uint32_t p = 1; change > 0 && p <= DIBS_LANES_MAX; p++) {
    if (p == lanes) continue;
    all.mixed += all.using[p] > 0;
    all.low += all.fence[p] >= fence;
  }
  if (fence > all.fence[lanes]) all.fence[lanes] = fence;
  all.used[lanes][number] += (uint32_t)change;
  all.using[lanes] += (uint32_t)change;
  pthread_mutex_unlock(&all.lock);
}

/* ---- A member ---- */

struct party {
  dibs_store *store;
  dibs_lane_member *member;
  pthread_mutex_t lock;
  dibs_lane *lane[DIBS_LANES_MAX]; /* that it has */
  _Atomic uint32_t has, asked, lost;
  _Atomic bool keeps; /* gives nothing back when it is asked */
  bool frees;         /* frees the member in on_gain */
};

static void give_back(struct party *p, dibs_lane *lane) {
  pthread_mutex_lock(&p->lock);
  p->lane[dibs_lane_number(lane)] = NULL;
  pthread_mutex_unlock(&p->lock);
  note_use(lane, -1);
  dibs_lane_release(lane);
  p->has--;
}

static void gain(dibs_lane *lane, dibs_status status, void *user) {
  struct party *p = user;
  (void)status;
  if (p->frees) {
    dibs_lane_member_free(p->member);
    p->has++;
    return;
  }
  note_use(lane, 1);
  pthread_mutex_lock(&p->lock);
  p->lane[dibs_lane_number(lane)] = lane;
  pthread_mutex_unlock(&p->lock);
  p->has++;
}

static void lose(dibs_lane *lane, dibs_status status, void *user) {
  struct party *p = user;
  if (status == DIBS_LOST)
    p->lost++;
  else
    p->asked++;
  if (!p->keeps) give_back(p, lane);
}

static dibs_lane_options how(struct party *p, uint32_t lanes) {
  return (dibs_lane_options){.size = sizeof(dibs_lane_options),
                             .lanes = lanes,
                             .ttl_ms = TTL_MS,
                             .look_ms = LOOK_MS,
                             .on_gain = gain,
                             .on_lose = lose,
                             .user = p};
}

static struct party *join_flagged(const char *topic, uint32_t lanes, uint32_t flags) {
  struct party *p = calloc(1, sizeof *p);
  pthread_mutex_init(&p->lock, NULL);
  p->store = open_uri(case_uri(), flags);
  dibs_lane_options o = how(p, lanes);
  dibs_error error;
  if (dibs_lane_join(p->store, topic, &o, &p->member, &error) != DIBS_OK) fail_msg("joining: %s", error.text);
  return p;
}

static struct party *join(uint32_t lanes) {
  return join_flagged("t", lanes, 0);
}

static void part(struct party *p) {
  dibs_error error;
  if (dibs_lane_leave(p->member, LONG_MS, &error) != DIBS_OK) fail_msg("leaving: %s", error.text);
  dibs_lane_member_free(p->member);
  close_store(p->store);
  assert_int_equal(p->has, 0);
  pthread_mutex_destroy(&p->lock);
  free(p);
}

static dibs_lane *first_of(struct party *p) {
  dibs_lane *lane = NULL;
  pthread_mutex_lock(&p->lock);
  for (uint32_t i = 0; i < DIBS_LANES_MAX && !lane; i++) lane = p->lane[i];
  pthread_mutex_unlock(&p->lock);
  assert_non_null(lane);
  return lane;
}

static dibs_lane_topic_info topic_of(dibs_store *store) {
  dibs_lane_topic_info info = DIBS_LANE_TOPIC_INFO_INIT;
  dibs_error error;
  if (dibs_lane_list(store, "t", &info, NULL, NULL, &error) != DIBS_OK) fail_msg("listing: %s", error.text);
  return info;
}

/* ---- Names, keys, assignment ---- */

/* Processes of every version share topics, so these can never change. */
static void the_lane_of_a_key_never_changes(void **state) {
  (void)state;
  assert_int_equal(dibs_lane_of("", 0, 16), 15);
  assert_int_equal(dibs_lane_of("a", 1, 16), 0);
  assert_int_equal(dibs_lane_of("customer-17", 11, 16), 5);
  assert_int_equal(dibs_lane_of("customer-17", 11, 1024), 358);
  assert_int_equal(dibs_lane_of("customer-18", 11, 1), 0);
  assert_int_equal(dibs_lane_of("customer-18", 11, 0), 0);
  uint32_t count[16] = {0};
  for (int i = 0; i < 16000; i++) {
    char key[16];
    int length = snprintf(key, sizeof key, "k%d", i);
    count[dibs_lane_of(key, (size_t)length, 16)]++;
  }
  for (int i = 0; i < 16; i++) assert_in_range(count[i], 850, 1150);
}

static void names_of_a_topic_are_in_one_bucket_and_can_be_read(void **state) {
  (void)state;
  char name[DIBS_NAME_MAX + 1], members[DIBS_NAME_MAX + 1], long_topic[DIBS_TOPIC_MAX + 1], prefix[DIBS_NAME_MAX + 1];
  memset(long_topic, 'x', DIBS_TOPIC_MAX);
  long_topic[DIBS_TOPIC_MAX] = '\0';
  const char *topics[] = {"t", "shop/orders", long_topic};
  for (size_t t = 0; t < 3; t++) {
    dibs__lane_members_name(topics[t], members);
    dibs__lane_prefix(topics[t], prefix);
    uint16_t bucket = dibs__bucket(dibs__str_of(members, strlen(members)));
    for (uint32_t i = 0; i < DIBS_LANES_MAX; i += 341) {
      uint32_t lanes = 0, number = 0;
      dibs__lane_name(topics[t], DIBS_LANES_MAX, i, name);
      assert_int_equal(dibs__bucket(dibs__str_of(name, strlen(name))), bucket);
      assert_int_equal(strncmp(name, prefix, strlen(prefix)), 0);
      assert_true(dibs__lane_name_read(name + strlen(prefix), &lanes, &number));
      assert_int_equal(lanes, DIBS_LANES_MAX);
      assert_int_equal(number, i);
    }
  }
  static const char *const wrong[] = {"members",  "16",      "16.",     "16.16-0", "0.0-0",
                                      "1025.0-0", "016.0-0", "16.03-0", "16.3"};
  uint32_t lanes, number;
  for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
    assert_false(dibs__lane_name_read(wrong[i], &lanes, &number));
}

static void count_lanes(const uint32_t *owners, uint32_t lanes, uint32_t *has, size_t members) {
  memset(has, 0, members * sizeof *has);
  for (uint32_t i = 0; i < lanes; i++) {
    assert_true(owners[i] < members);
    has[owners[i]]++;
  }
}

static void members_differ_by_at_most_one_lane(void **state) {
  (void)state;
  uint32_t members[40], owners[DIBS_LANES_MAX], has[40];
  const uint32_t sizes[] = {1, 2, 7, 16, 100, DIBS_LANES_MAX};
  for (uint32_t i = 0; i < 40; i++) members[i] = i * i + 3;
  for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
    for (size_t n = 1; n <= 40; n++) {
      assert_true(dibs__lane_assign(members, n, sizes[s], owners));
      count_lanes(owners, sizes[s], has, n);
      uint32_t least = UINT32_MAX, most = 0;
      for (size_t m = 0; m < n; m++) {
        if (has[m] < least) least = has[m];
        if (has[m] > most) most = has[m];
      }
      assert_true(most - least <= 1);
    }
  }
}

/* When one of n members goes, its lanes must move, and with the bound some more; a plain modulo would move nearly all.
 */
static void few_lanes_move_when_a_member_leaves(void **state) {
  (void)state;
  enum { LANES = 256, MEMBERS = 8 };
  uint32_t members[MEMBERS], without[MEMBERS], before[LANES], after[LANES];
  for (uint32_t i = 0; i < MEMBERS; i++) members[i] = i;
  assert_true(dibs__lane_assign(members, MEMBERS, LANES, before));
  uint32_t moved = 0;
  for (uint32_t gone = 0; gone < MEMBERS; gone++) {
    size_t n = 0;
    for (uint32_t i = 0; i < MEMBERS; i++)
      if (i != gone) without[n++] = members[i];
    assert_true(dibs__lane_assign(without, n, LANES, after));
    for (uint32_t i = 0; i < LANES; i++) moved += members[before[i]] != without[after[i]];
  }
  /* LANES / MEMBERS = 32 have to move each time. */
  assert_in_range(moved / MEMBERS, 32, 80);
}

/* ---- Joining, sharing, leaving ---- */

static void members_share_the_lanes_evenly(void **state) {
  (void)state;
  struct party *a = join(7);
  UNTIL(a->has == 7);
  struct party *b = join(7);
  UNTIL(a->has + b->has == 7 && a->has >= 3 && b->has >= 3);
  struct party *c = join(0);
  UNTIL(a->has + b->has + c->has == 7 && a->has >= 2 && b->has >= 2 && c->has >= 2);
  dibs_lane_counts counts = DIBS_LANE_COUNTS_INIT;
  UNTIL(dibs_lane_count(c->member, &counts, NULL) == DIBS_OK && counts.held == counts.assigned);
  assert_int_equal(counts.lanes, 7);
  assert_int_equal(counts.members, 3);
  assert_int_equal(counts.lost, 0);
  assert_int_equal(topic_of(a->store).members, 3);
  part(b);
  UNTIL(a->has + c->has == 7 && a->has >= 3 && c->has >= 3);
  part(a);
  UNTIL(c->has == 7);
  part(c);
}

static void more_members_than_lanes(void **state) {
  (void)state;
  struct party *p[4];
  for (int i = 0; i < 4; i++) p[i] = join(2);
  UNTIL(p[0]->has + p[1]->has + p[2]->has + p[3]->has == 2 && all.using[2] == 2);
  part(p[0]);
  part(p[1]);
  UNTIL(p[2]->has == 1 && p[3]->has == 1);
  part(p[2]);
  UNTIL(p[3]->has == 2);
  part(p[3]);
}

/* on_lose asks: the lease is held and renewed until the owner gives the lane back. */
static void a_lane_passes_when_its_owner_has_finished(void **state) {
  (void)state;
  struct party *a = join(1);
  UNTIL(a->has == 1);
  a->keeps = true;
  struct party *b = join(1);
  dibs_lane *lane = first_of(a);
  uint64_t fence = dibs_lane_fence(lane).value;
  assert_int_equal(dibs_lane_leave(a->member, 0, NULL), DIBS_TIMEOUT);
  UNTIL(a->asked == 1);
  dibs__nap_ms(TTL_MS + TTL_MS / 3); /* not to wait for something: nothing must happen */
  assert_int_equal(b->has, 0);
  assert_int_equal(a->lost, 0);
  assert_true(dibs_lease_alive(dibs_lane_lease(lane)));
  give_back(a, lane);
  UNTIL(b->has == 1);
  assert_true(dibs_lane_fence(first_of(b)).value > fence);
  part(a);
  part(b);
}

static void another_number_of_lanes_is_refused(void **state) {
  (void)state;
  struct party *a = join(4);
  dibs_store *store = open_store();
  dibs_lane_options o = how(a, 5);
  dibs_lane_member *member = (dibs_lane_member *)store;
  dibs_error error;
  assert_int_equal(dibs_lane_join(store, "t", &o, &member, &error), DIBS_INVALID);
  assert_null(member);
  assert_non_null(strstr(error.text, "has 4 lanes, and not 5"));
  part(a);
  /* It is the topic's, and not only its members': but a store without records knows it no longer. */
  dibs_status wanted = case_keeps_records() ? DIBS_INVALID : DIBS_OK;
  assert_int_equal(dibs_lane_join(store, "t", &o, &member, &error), wanted);
  dibs_lane_member_free(member);
}

static void a_topic_without_a_number_is_not_created(void **state) {
  (void)state;
  struct party p = {.has = 0};
  dibs_store *store = open_store();
  dibs_lane_options o = how(&p, 0);
  dibs_lane_member *member = NULL;
  dibs_lane_topic_info info = DIBS_LANE_TOPIC_INFO_INIT;
  assert_int_equal(dibs_lane_join(store, "t", &o, &member, NULL), DIBS_NOT_FOUND);
  assert_int_equal(dibs_lane_list(store, "t", &info, NULL, NULL, NULL), DIBS_NOT_FOUND);
  o.lanes = DIBS_LANES_MAX + 1;
  assert_int_equal(dibs_lane_join(store, "t", &o, &member, NULL), DIBS_INVALID);
  o.lanes = 1;
  assert_int_equal(dibs_lane_join(store, "t#1", &o, &member, NULL), DIBS_INVALID);
  o.reserved = 1;
  assert_int_equal(dibs_lane_join(store, "t", &o, &member, NULL), DIBS_INVALID);
  o.reserved = 0;
  o.on_lose = NULL;
  assert_int_equal(dibs_lane_join(store, "t", &o, &member, NULL), DIBS_INVALID);
}

/* ---- Losing ---- */

/* Its thread runs, so it becomes a member again by itself, and its lanes come back under larger fences. */
static void a_member_that_lost_its_place_joins_again(void **state) {
  (void)state;
  struct party *a = join(3);
  UNTIL(a->has == 3);
  uint64_t fence = dibs_lane_fence(first_of(a)).value;
  dibs_break_options now = {.size = sizeof now, .flags = DIBS_BREAK_NOW};
  assert_int_equal(dibs_break(a->store, a->member->members_name, &now, NULL), DIBS_OK);
  dibs_lane_counts counts = DIBS_LANE_COUNTS_INIT;
  UNTIL(dibs_lane_count(a->member, &counts, NULL) == DIBS_OK && counts.joined == 2);
  UNTIL(a->has == 3);
  assert_int_equal(a->asked, 3);
  assert_true(dibs_lane_fence(first_of(a)).value > fence);
  part(a);
}

static void a_lost_lane_is_reported_and_its_late_write_refused(void **state) {
  (void)state;
  struct party *a = join(1);
  UNTIL(a->has == 1);
  a->keeps = true;
  dibs_lane *lane = first_of(a);
  dibs_value value = {"a", 1};
  dibs_record_options guarded = {.size = sizeof guarded, .lease = dibs_lane_lease(lane)};
  if (case_keeps_records())
    assert_int_equal(dibs_record_put(a->store, "row", &value, 1, &guarded, NULL, NULL), DIBS_OK);
  dibs_break_options now = {.size = sizeof now, .flags = DIBS_BREAK_NOW};
  dibs_store *other = open_store();
  assert_int_equal(dibs_break(other, dibs_lease_name(dibs_lane_lease(lane)), &now, NULL), DIBS_OK);
  UNTIL(a->lost == 1);
  dibs_lease *newer = take(other, dibs_lease_name(dibs_lane_lease(lane)), .wait_ms = LONG_MS);
  assert_true(dibs_lease_fence(newer).value > dibs_lane_fence(lane).value);
  if (case_keeps_records()) {
    dibs_record_options theirs = {.size = sizeof theirs, .lease = newer};
    assert_int_equal(dibs_record_put(other, "row", &value, 1, &theirs, NULL, NULL), DIBS_OK);
    assert_int_equal(dibs_record_put(a->store, "row", &value, 1, &guarded, NULL, NULL), DIBS_STALE);
  }
  assert_int_equal(a->asked, 0);
  give_back(a, lane);
  give(newer);
  UNTIL(a->has == 1);
  a->keeps = false;
  part(a);
}

/* A lane that is given back unasked still belongs to its member. */
static void a_lane_given_back_comes_again(void **state) {
  (void)state;
  struct party *a = join(2);
  UNTIL(a->has == 2);
  dibs_lane_counts counts = DIBS_LANE_COUNTS_INIT;
  give_back(a, first_of(a));
  UNTIL(dibs_lane_count(a->member, &counts, NULL) == DIBS_OK && counts.gained == 3 && a->has == 2);
  assert_int_equal(counts.lost, 0);
  part(a);
}

/* ---- Another number of lanes ---- */

static void a_change_waits_until_all_have_left(void **state) {
  (void)state;
  if (!case_keeps_records()) skip();
  struct party *old = join(4), *follower = join(0);
  UNTIL(old->has + follower->has == 4 && follower->has > 0);
  old->keeps = true;
  dibs_store *store = open_store();
  dibs_error error;
  assert_int_equal(dibs_lane_resize(store, "t", 6, 0, &error), DIBS_TIMEOUT);
  dibs_lane_topic_info info = topic_of(store);
  assert_int_equal(info.lanes, 6);
  assert_true(info.leaving > 0);
  UNTIL(follower->has == 0 && follower->asked > 0);
  /* The member that joined with 4 ends, and has finished nothing yet: nobody gets a lane of the 6. */
  UNTIL(old->asked >= 2);
  struct party *fresh = join(6);
  dibs__nap_ms(4 * LOOK_MS);
  assert_int_equal(follower->has + fresh->has, 0);
  old->keeps = false;
  while (old->has > 0) give_back(old, first_of(old));
  UNTIL(follower->has == 3 && fresh->has == 3);
  assert_int_equal(dibs_lane_resize(store, "t", 6, LONG_MS, &error), DIBS_OK);
  dibs_lane_trouble(old->member, &error);
  assert_int_equal(error.status, DIBS_CONFLICT);
  assert_non_null(strstr(error.text, "has 6 lanes by now"));
  part(old);
  /* And back, with members that follow. */
  part(fresh);
  UNTIL(follower->has == 6);
  assert_int_equal(dibs_lane_resize(store, "t", 4, LONG_MS, &error), DIBS_OK);
  UNTIL(follower->has == 4);
  part(follower);
}

/* A member that was stopped may have lost its membership, but not yet the lease of a lane that it uses. */
static void a_lane_in_use_holds_up_the_next_number(void **state) {
  (void)state;
  if (!case_keeps_records()) skip();
  dibs_store *store = open_store();
  struct party *a = join(2);
  UNTIL(a->has == 2);
  part(a);
  char name[DIBS_NAME_MAX + 1];
  dibs__lane_name("t", 2, 1, name);
  dibs_lease *left_over = take(store, name);
  assert_int_equal(dibs_lane_resize(store, "t", 3, 0, NULL), DIBS_TIMEOUT);
  struct party *b = join(3);
  dibs_lane_counts counts = DIBS_LANE_COUNTS_INIT;
  UNTIL(dibs_lane_count(b->member, &counts, NULL) == DIBS_OK && counts.looked >= 5);
  assert_int_equal(b->has, 0);
  give(left_over);
  UNTIL(b->has == 3);
  part(b);
}

static void only_a_store_with_records_changes_the_number(void **state) {
  (void)state;
  dibs_store *store = open_store();
  dibs_status wanted = case_keeps_records() ? DIBS_NOT_FOUND : DIBS_UNSUPPORTED;
  assert_int_equal(dibs_lane_resize(store, "t", 6, 0, NULL), wanted);
  assert_int_equal(dibs_lane_resize(store, "t", 0, 0, NULL), DIBS_INVALID);
  assert_int_equal(dibs_lane_resize(store, "t", DIBS_LANES_MAX + 1, 0, NULL), DIBS_INVALID);
  if (!case_keeps_records()) return;
  struct party *a = join(2);
  UNTIL(a->has == 2);
  dibs_value other = {"something else", 14};
  dibs_record_options unchecked = {.size = sizeof unchecked, .flags = DIBS_UNCHECKED};
  assert_int_equal(dibs_record_put(store, "lane:t", &other, 1, &unchecked, NULL, NULL), DIBS_OK);
  assert_int_equal(dibs_lane_resize(store, "t", 6, 0, NULL), DIBS_CORRUPT);
  dibs_error error = {0}; /* a member continues, and reports it */
  UNTIL((dibs_lane_trouble(a->member, &error), error.status == DIBS_CORRUPT));
  assert_int_equal(a->has, 2);
  part(a);
}

/* ---- Lists, loops, the end ---- */

struct rows {
  uint32_t count, owned;
  uint64_t fence;
};

static int count_row(const dibs_lane_info *info, void *user) {
  struct rows *rows = user;
  assert_int_equal(info->lane, rows->count);
  rows->count++;
  rows->owned += info->owner != NULL;
  if (info->lane == 1) rows->fence = info->fence.value;
  return 0;
}

static void a_list_has_each_lane_with_its_owner(void **state) {
  (void)state;
  struct party *a = join(5);
  UNTIL(a->has == 5);
  struct rows rows = {0};
  dibs_lane_topic_info info = DIBS_LANE_TOPIC_INFO_INIT;
  assert_int_equal(dibs_lane_list(a->store, "t", &info, count_row, &rows, NULL), DIBS_OK);
  assert_int_equal(rows.count, 5);
  assert_int_equal(rows.owned, 5);
  assert_int_equal(info.members, 1);
  assert_int_equal(info.leaving, 0);
  assert_int_equal(info.recorded, case_keeps_records());
  assert_int_equal(rows.fence, dibs_lane_fence(a->lane[1]).value);
  dibs_store *store = open_store();
  part(a);
  rows = (struct rows){0};
  dibs_status wanted = case_keeps_records() ? DIBS_OK : DIBS_NOT_FOUND;
  assert_int_equal(dibs_lane_list(store, "t", NULL, count_row, &rows, NULL), wanted);
  assert_int_equal(rows.count, case_keeps_records() ? 5 : 0);
  assert_int_equal(rows.owned, 0);
}

/* Two topics of one prefix are two. */
static void topics_do_not_mix(void **state) {
  (void)state;
  struct party *a = join_flagged("t", 2, 0), *b = join_flagged("t/2", 3, 0);
  UNTIL(a->has == 2 && b->has == 3);
  assert_int_equal(topic_of(a->store).members, 1);
  memset(all.using, 0, sizeof all.using); /* they use two numbers of lanes, rightly */
  all.mixed = all.low = 0;
  part(a);
  assert_int_equal(b->has, 3);
  part(b);
}

static void callbacks_come_when_the_loop_dispatches(void **state) {
  (void)state;
  struct party *a = join_flagged("t", 3, DIBS_STORE_LOOP);
  struct pollfd fd = {.fd = dibs_fd(a->store), .events = POLLIN};
  dibs_lane_counts counts = DIBS_LANE_COUNTS_INIT;
  UNTIL(dibs_lane_count(a->member, &counts, NULL) == DIBS_OK && counts.assigned == 3);
  assert_int_equal(poll(&fd, 1, LONG_MS), 1);
  assert_int_equal(a->has, 0);
  UNTIL((dibs_dispatch(a->store, 0), a->has == 3));
  UNTIL((dibs_dispatch(a->store, 0), dibs_lane_leave(a->member, 0, NULL) == DIBS_OK));
  assert_int_equal(a->asked, 3);
  part(a);
}

static void a_member_may_be_freed_at_any_time(void **state) {
  (void)state;
  for (int i = 0; i < 8; i++) {
    struct party *p = calloc(1, sizeof *p);
    pthread_mutex_init(&p->lock, NULL);
    p->store = open_store();
    p->frees = i == 1;
    p->keeps = true;
    dibs_lane_options o = how(p, 3);
    assert_int_equal(dibs_lane_join(p->store, "t", &o, &p->member, NULL), DIBS_OK);
    if (i == 1) {
      UNTIL(p->has == 1);
    } else {
      if (i == 2) UNTIL(p->has == 3);
      dibs__nap_ms(i * 3);
      dibs_lane_member_free(p->member);
    }
    uint32_t has = p->has;
    dibs__nap_ms(5);
    assert_int_equal(p->has, has); /* no callback follows */
    for (uint32_t n = 0; n < 3; n++)
      if (p->lane[n]) all.used[3][n] = 0;
    all.using[3] = 0;
    close_store(p->store);
    free(p);
  }
  struct party *a = join(3);
  UNTIL(a->has == 3); /* what they had was given back, or has ended */
  part(a);
}

/* ---- Several threads dispatch ---- */

enum { SEVERAL_LANES = 6 };

static struct {
  dibs_store *store;
  dibs_lane_member *member;
  _Atomic int entered, running;
  _Atomic bool side_by_side, frees, over;
} several;

static void enter_callback(void) {
  if (++several.running > 1) several.side_by_side = true;
  several.entered++;
  dibs__nap_ms(20);
}

/* The last one frees the member, and has the store answer the releases while it is still running. */
static void free_in_the_last(dibs_lane *lane, dibs_status status, void *user) {
  (void)lane, (void)status, (void)user;
  enter_callback();
  if (several.entered == SEVERAL_LANES) {
    dibs_lane_member_free(several.member);
    dibs_lease_free(take(several.store, "another")); /* a blocking call carries what waits */
    for (int i = 0; i < 30; i++) {
      dibs_dispatch(several.store, 0); /* ends lanes, also this one */
      dibs__nap_ms(10);
    }
    several.over = true;
  }
  several.running--;
}

/* The first one lasts until the member is being freed. */
static void wait_for_the_free(dibs_lane *lane, dibs_status status, void *user) {
  (void)lane, (void)status, (void)user;
  enter_callback();
  UNTIL(several.frees);
  dibs__nap_ms(50);
  several.running--;
}

static void *dispatch_until_over(void *arg) {
  (void)arg;
  dibs__tick by = dibs__tick_add_ms(dibs__tick_now(), 60000);
  while (!several.over && dibs__tick_before(dibs__tick_now(), by))
    if (dibs_dispatch(several.store, 0) == 0) dibs__nap_ms(1);
  return NULL;
}

static void begin_several(pthread_t threads[2], dibs_lane_fn on_gain) {
  memset(&several, 0, sizeof several);
  several.store = open_uri(case_uri(), DIBS_STORE_LOOP);
  dibs_lane_options o = {.size = sizeof o,
                         .lanes = SEVERAL_LANES,
                         .ttl_ms = TTL_MS,
                         .look_ms = LOOK_MS,
                         .on_gain = on_gain,
                         .on_lose = on_gain};
  assert_int_equal(dibs_lane_join(several.store, "t", &o, &several.member, NULL), DIBS_OK);
  dibs_lane_counts counts = DIBS_LANE_COUNTS_INIT;
  UNTIL(dibs_lane_count(several.member, &counts, NULL) == DIBS_OK && counts.assigned == SEVERAL_LANES);
  for (int i = 0; i < 2; i++) assert_int_equal(pthread_create(&threads[i], NULL, dispatch_until_over, NULL), 0);
}

static void end_several(pthread_t threads[2]) {
  for (int i = 0; i < 2; i++) pthread_join(threads[i], NULL);
  assert_false(several.side_by_side);
  close_store(several.store);
}

static void a_member_may_be_freed_in_a_callback_while_others_dispatch(void **state) {
  (void)state;
  pthread_t threads[2];
  begin_several(threads, free_in_the_last);
  end_several(threads);
  assert_int_equal(several.entered, SEVERAL_LANES);
}

static void freeing_waits_for_a_callback_of_another_thread(void **state) {
  (void)state;
  pthread_t threads[2];
  begin_several(threads, wait_for_the_free);
  UNTIL(several.running > 0);
  several.frees = true;
  dibs_lane_member_free(several.member);
  int entered = several.entered, running = several.running;
  dibs__nap_ms(50);
  several.over = true;
  assert_int_equal(running, 0);
  assert_int_equal(several.entered, entered);
  end_several(threads);
}

static void a_child_after_fork_does_not_wait_for_its_parents_member(void **state) {
  (void)state;
  struct party *a = join(2);
  UNTIL(a->has == 2);
  pthread_mutex_lock(&a->lock);
  pid_t child = fork();
  pthread_mutex_unlock(&a->lock);
  assert_true(child >= 0);
  if (child == 0) {
    dibs_lane_counts counts = DIBS_LANE_COUNTS_INIT;
    alarm(LONG_MS / 1000);
    for (int i = 0; i < 2; i++) dibs_lane_release(a->lane[i]);
    dibs_status left = dibs_lane_leave(a->member, DIBS_FOREVER, NULL);
    if (dibs_lane_count(a->member, &counts, NULL) != DIBS_INVALID) left = DIBS_OK;
    dibs_lane_member_free(a->member);
    _exit(left == DIBS_INVALID ? 0 : 1);
  }
  int code = -1;
  assert_int_equal(waitpid(child, &code, 0), child);
  assert_int_equal(code, 0);
  assert_int_equal(a->has, 2); /* the parent keeps its lanes */
  part(a);
}

int main(int argc, char *argv[]) {
  const struct CMUnitTest tests[] = {
      TEST(the_lane_of_a_key_never_changes),
      TEST(names_of_a_topic_are_in_one_bucket_and_can_be_read),
      TEST(members_differ_by_at_most_one_lane),
      TEST(few_lanes_move_when_a_member_leaves),
      TEST(members_share_the_lanes_evenly),
      TEST(more_members_than_lanes),
      TEST(a_lane_passes_when_its_owner_has_finished),
      TEST(another_number_of_lanes_is_refused),
      TEST(a_topic_without_a_number_is_not_created),
      TEST(a_member_that_lost_its_place_joins_again),
      TEST(a_lost_lane_is_reported_and_its_late_write_refused),
      TEST(a_lane_given_back_comes_again),
      TEST(a_change_waits_until_all_have_left),
      TEST(a_lane_in_use_holds_up_the_next_number),
      TEST(only_a_store_with_records_changes_the_number),
      TEST(a_list_has_each_lane_with_its_owner),
      TEST(topics_do_not_mix),
      TEST(callbacks_come_when_the_loop_dispatches),
      TEST(a_member_may_be_freed_at_any_time),
      TEST(a_member_may_be_freed_in_a_callback_while_others_dispatch),
      TEST(freeing_waits_for_a_callback_of_another_thread),
      TEST(a_child_after_fork_does_not_wait_for_its_parents_member),
  };
  lease_begin(argc, argv);
  return cmocka_run_group_tests(tests, NULL, NULL);
}
