/* SPDX-License-Identifier: MIT */
/* The side file as a file: which processes may open it, which incarnation it remembers, which sessions are alive. */
#include "side_help.h"

#define AT(field) ((off_t)offsetof(struct dibs__page_head, field))

static void patch_u64(struct bed *bed, off_t at, uint64_t value) {
  write_file(bed->page, &value, sizeof value, at);
}

static void patch_u32(struct bed *bed, off_t at, uint32_t value) {
  write_file(bed->page, &value, sizeof value, at);
}

static void is_new(struct bed *bed, uint32_t epoch) {
  struct dibs__side *side = side_at_gate(bed);
  assert_non_null(side);
  assert_int_equal(dibs__side_match_file(side, bed->database, &bed->memory, &bed->reported), DIBS_OK);
  assert_int_equal(bed->memory.state, DIBS__SIDE_NEW);
  assert_int_equal(bed->memory.epoch, epoch);
  dibs__side_close(side);
}

/* ---- An incarnation continues, or begins ---- */

static void first_open_is_a_new_incarnation_and_the_next_is_the_same(void **state) {
  struct bed *bed = *state;
  struct dibs__side *side = side_at_gate(bed);
  assert_non_null(side);
  assert_int_equal(bed->memory.state, DIBS__SIDE_NEW);
  assert_int_equal(bed->memory.epoch, 0);
  dibs__side_close(side);

  side = side_open(bed);
  assert_non_null(side);
  assert_int_equal(dibs__side_epoch(side), 1);
  dibs__side_mark(side, 3, dibs__fence_make(1, 9), (dibs__when){1});
  dibs__side_close(side);

  side = side_at_gate(bed);
  assert_non_null(side);
  assert_int_equal(dibs__side_match_file(side, bed->database, &bed->memory, &bed->reported), DIBS_OK);
  assert_int_equal(bed->memory.state, DIBS__SIDE_SAME);
  assert_int_equal(bed->memory.epoch, 1);
  assert_memory_equal(bed->memory.incarnation.b, incarnation_one.b, sizeof incarnation_one.b);
  assert_int_equal(dibs__side_marked(side, 3).v, dibs__fence_make(1, 9).v);
  dibs__side_close(side);
}

static void an_incarnation_that_did_not_begin_is_new_again(void **state) {
  struct bed *bed = *state;
  struct dibs__side *side = side_at_gate(bed);
  assert_non_null(side);
  dibs__side_gate_leave(side); /* its driver failed afterwards */
  dibs__side_close(side);
  write_file(bed->database, "db", 2, 0);
  is_new(bed, 0);
}

static void a_begin_that_was_killed_midway_is_a_new_incarnation(void **state) {
  struct bed *bed = *state;
  dibs__side_close(side_open(bed));
  patch_u32(bed, AT(standing), 3);
  is_new(bed, 1);
}

static void another_boot_is_refused_while_a_session_lives_and_new_otherwise(void **state) {
  struct bed *bed = *state;
  struct dibs__side *alive = side_open(bed), *side;
  assert_non_null(alive);
  patch_u64(bed, AT(boot), 42);
  assert_int_equal(try_open(bed, LONG_MS, &side), DIBS_UNSUPPORTED);
  assert_null(side);
  assert_non_null(strstr(bed->reported.text, bed->page));
  char pid[32];
  snprintf(pid, sizeof pid, "process %u", dibs__process_id());
  assert_non_null(strstr(bed->reported.text, pid));
  dibs__side_close(alive);
  is_new(bed, 1);
  /* The new incarnation was recorded, but has not begun: the old incarnation must not return. */
  is_new(bed, 1);
}

static void another_clock_offset_is_refused_while_a_session_lives_and_new_otherwise(void **state) {
  struct bed *bed = *state;
  struct dibs__side *alive = side_open(bed), *side;
  assert_non_null(alive);
  patch_u64(bed, AT(clock_offset_ns), 1000000000);
  assert_int_equal(try_open(bed, LONG_MS, &side), DIBS_UNSUPPORTED);
  dibs__side_close(alive);
  is_new(bed, 1);
}

static void a_clock_before_an_instant_that_it_has_shown_is_another_incarnation(void **state) {
  struct bed *bed = *state;
  struct dibs__side *side = side_open(bed);
  assert_non_null(side);
  int64_t now_ms = dibs__tick_now().ns / DIBS__NS_PER_MS;
  dibs__side_mark(side, 0, DIBS__FENCE_NONE, (dibs__when){now_ms});
  dibs__side_close(side);
  side = side_open(bed);
  assert_int_equal(bed->memory.state, DIBS__SIDE_SAME);
  dibs__side_mark(side, 0, DIBS__FENCE_NONE, (dibs__when){now_ms + 3600000});
  dibs__side_close(side);
  is_new(bed, 1);
}

static void copied_page_is_a_new_incarnation(void **state) {
  struct bed *bed = *state;
  dibs__side_close(side_open(bed));
  char command[512];
  snprintf(command, sizeof command, "cp -a %s %s/c && mv %s/c %s", bed->page, bed->folder, bed->folder, bed->page);
  assert_int_equal(system(command), 0);
  is_new(bed, 1);
}

static void a_replaced_database_is_a_new_incarnation_unless_the_former_is_open(void **state) {
  struct bed *bed = *state;
  struct dibs__side *alive = side_open(bed), *side;
  assert_non_null(alive);
  char other[128];
  snprintf(other, sizeof other, "%s/other", bed->folder);
  write_file(other, "backup", 6, 0);
  assert_int_equal(rename(other, bed->database), 0);

  assert_int_equal(try_open(bed, LONG_MS, &side), DIBS_OK);
  assert_int_equal(dibs__side_match_file(side, bed->database, &bed->memory, &bed->reported), DIBS_UNAVAILABLE);
  assert_non_null(strstr(bed->reported.text, bed->database));
  dibs__side_close(side);
  dibs__side_close(alive);
  is_new(bed, 1);
}

static void a_missing_database_cannot_be_matched(void **state) {
  struct bed *bed = *state;
  struct dibs__side *side = side_at_gate(bed);
  assert_non_null(side);
  assert_int_equal(dibs__side_match_file(side, bed->database, &bed->memory, &bed->reported), DIBS_UNAVAILABLE);
  dibs__side_close(side);
}

/* ---- Foreign, damaged, newer ---- */

static void a_newer_layout_is_refused_and_unchanged(void **state) {
  struct bed *bed = *state;
  struct dibs__side *side;
  dibs__side_close(side_open(bed));
  patch_u32(bed, AT(layout), DIBS__PAGE_LAYOUT + 1);
  patch_u64(bed, AT(size), 77);
  assert_int_equal(truncate(bed->page, 9999), 0);
  assert_int_equal(try_open(bed, LONG_MS, &side), DIBS_TOO_NEW);
  struct stat s;
  assert_int_equal(stat(bed->page, &s), 0);
  assert_int_equal(s.st_size, 9999);
  uint32_t layout = 0;
  int fd = open(bed->page, O_RDONLY | O_CLOEXEC);
  assert_int_equal(pread(fd, &layout, sizeof layout, AT(layout)), 4);
  close(fd);
  assert_int_equal(layout, DIBS__PAGE_LAYOUT + 1);
}

static void garbage_is_refused(void **state) {
  struct bed *bed = *state;
  write_file(bed->database, "db", 2, 0);
  write_file(bed->page, "what is this", 12, 0);
  is_new(bed, 0);
  dibs__side_close(side_open(bed));
  patch_u64(bed, AT(magic), 1);
  is_new(bed, 0);
  dibs__side_close(side_open(bed));
  patch_u32(bed, AT(slots), 7);
  is_new(bed, 0);
  dibs__side_close(side_open(bed));
  assert_int_equal(truncate(bed->page, 5000), 0);
  is_new(bed, 0);
  struct stat s;
  assert_int_equal(stat(bed->page, &s), 0);
  assert_int_equal(s.st_size, sizeof(struct dibs__page));
}

static void damage_while_a_session_lives_is_corrupt(void **state) {
  struct bed *bed = *state;
  struct dibs__side *alive = side_open(bed), *side;
  assert_non_null(alive);
  patch_u64(bed, AT(magic), 1);
  assert_int_equal(try_open(bed, LONG_MS, &side), DIBS_CORRUPT);
  patch_u64(bed, AT(magic), DIBS__PAGE_MAGIC);
  assert_int_equal(try_open(bed, LONG_MS, &side), DIBS_OK);
  dibs__side_close(side);
  dibs__side_close(alive);
}

static void holes_are_filled_before_the_page_is_mapped(void **state) {
  struct bed *bed = *state;
  dibs__side_close(side_open(bed));
  char command[512];
  snprintf(command, sizeof command, "cp --sparse=always %s %s/c && cat %s/c > /dev/null && mv %s/c %s", bed->page,
           bed->folder, bed->folder, bed->folder, bed->page);
  assert_int_equal(system(command), 0);
  struct stat s;
  assert_int_equal(stat(bed->page, &s), 0);
  assert_true(s.st_blocks * 512 < s.st_size);
  dibs__side_close(side_open(bed));
  assert_int_equal(stat(bed->page, &s), 0);
  assert_true(s.st_blocks * 512 >= s.st_size);
}

static int open_without_capacity(struct bed *bed, void *arg) {
  (void)arg;
  struct dibs__side *side;
  signal(SIGXFSZ, SIG_IGN);
  struct rlimit limit = {4096, 4096};
  if (setrlimit(RLIMIT_FSIZE, &limit) != 0) return 1;
  dibs__status status = try_open(bed, LONG_MS, &side);
  return status == DIBS_UNAVAILABLE && strstr(bed->reported.text, bed->page) ? 0 : 2;
}

static void no_capacity_is_reported_and_leaves_no_file(void **state) {
  struct bed *bed = *state;
  assert_int_equal(result_of(child(open_without_capacity, bed, NULL)), 0);
  assert_int_equal(access(bed->page, F_OK), -1);
}

static void links_and_folders_are_refused(void **state) {
  struct bed *bed = *state;
  struct dibs__side *side;
  char target[128];
  snprintf(target, sizeof target, "%s/target", bed->folder);
  assert_int_equal(symlink(target, bed->page), 0);
  assert_int_equal(try_open(bed, LONG_MS, &side), DIBS_DENIED);
  assert_int_equal(access(target, F_OK), -1);
  assert_int_equal(unlink(bed->page), 0);
  assert_int_equal(mkdir(bed->page, 0700), 0);
  assert_int_equal(try_open(bed, LONG_MS, &side), DIBS_CORRUPT);
  assert_int_equal(rmdir(bed->page), 0);
  assert_int_equal(mkfifo(bed->page, 0600), 0);
  assert_int_equal(try_open(bed, LONG_MS, &side), DIBS_CORRUPT);
}

static void missing_folder_is_reported(void **state) {
  struct bed *bed = *state;
  struct dibs__side *side;
  snprintf(bed->database, sizeof bed->database, "%s/no/such", bed->folder);
  assert_int_equal(try_open(bed, LONG_MS, &side), DIBS_UNAVAILABLE);
  assert_non_null(strstr(bed->reported.text, "does not exist"));
}

/* ---- Permissions, and what a failed open leaves ---- */

static uint32_t mode_of(const char *path) {
  struct stat s;
  assert_int_equal(stat(path, &s), 0);
  return s.st_mode & 07777;
}

static void the_mode_is_exact_under_any_umask(void **state) {
  struct bed *bed = *state;
  struct dibs__side *side;
  mode_t before = umask(0077);
  assert_int_equal(dibs__side_open(bed->database, 0660, in_ms(LONG_MS), &side, &bed->memory, &bed->reported), DIBS_OK);
  assert_int_equal(mode_of(bed->page), 0660);
  dibs__side_close(side);
  umask(0);
  side = side_open(bed);
  assert_int_equal(mode_of(bed->page), 0600);
  dibs__side_close(side);
  umask(before);
}

static void the_page_gets_the_owner_and_mode_of_the_database(void **state) {
  struct bed *bed = *state;
  write_file(bed->database, "db", 2, 0);
  assert_int_equal(chmod(bed->database, 0664), 0);
  if (geteuid() == 0) assert_int_equal(chown(bed->database, 12345, 23456), 0);
  dibs__side_close(side_open(bed));
  struct stat s;
  assert_int_equal(stat(bed->page, &s), 0);
  assert_int_equal(s.st_mode & 07777, 0664);
  if (geteuid() == 0) assert_true(s.st_uid == 12345 && s.st_gid == 23456);
}

static void a_failed_open_leaves_no_file(void **state) {
  struct bed *bed = *state;
  dibs__side_close(side_at_gate(bed));
  assert_int_equal(access(bed->page, F_OK), -1);
  dibs__side_close(side_open(bed)); /* this open did use it */
  assert_int_equal(access(bed->page, F_OK), 0);
  dibs__side_close(side_at_gate(bed)); /* and this open found it */
  assert_int_equal(access(bed->page, F_OK), 0);
}

struct gated {
  _Atomic uint64_t ready, inside, worst, done;
};

static int open_once(struct bed *bed, void *arg) {
  struct gated *gated = arg;
  atomic_fetch_add(&gated->ready, 1);
  struct dibs__side *side = side_open(bed);
  if (!side) return 1;
  struct stat s;
  if (stat(bed->page, &s) != 0) return 2;
  struct stat mine;
  if (fstat(side->fd, &mine) != 0 || mine.st_ino != s.st_ino) return 3;
  atomic_fetch_add(&gated->done, 1);
  dibs__side_close(side);
  return 0;
}

static void a_waiter_at_the_gate_of_a_removed_file_creates_another(void **state) {
  struct bed *bed = *state;
  struct gated *gated = shared(sizeof *gated);
  struct dibs__side *side = side_at_gate(bed);
  assert_non_null(side);
  pid_t pid = child(open_once, bed, gated);
  assert_true(reached(&gated->ready, 1));
  dibs__nap_ms(20); /* it is probably at the gate now; the result must be correct in any order */
  assert_int_equal(atomic_load(&gated->done), 0);
  dibs__side_close(side);
  assert_int_equal(result_of(pid), 0);
  assert_int_equal(access(bed->page, F_OK), 0);
}

/* ---- The gate ---- */

static void the_gate_admits_one_and_reports_the_end_of_the_wait(void **state) {
  struct bed *bed = *state;
  struct dibs__side *side = side_at_gate(bed), *other;
  assert_non_null(side);
  dibs__tick before = dibs__tick_now();
  assert_int_equal(try_open(bed, 30, &other), DIBS_UNAVAILABLE);
  int64_t waited = dibs__tick_left_ms(before, dibs__tick_now());
  assert_true(waited >= 30 && waited < 5000);
  assert_non_null(strstr(bed->reported.text, bed->page));
  dibs__side_gate_leave(side);
  assert_int_equal(try_open(bed, LONG_MS, &other), DIBS_OK);
  dibs__side_close(other);
  dibs__side_close(side);
}

static int hold_the_gate(struct bed *bed, void *arg) {
  struct gated *gated = arg;
  if (!side_at_gate(bed)) return 1;
  atomic_store(&gated->ready, 1);
  for (;;) pause();
}

static void the_gate_of_a_killed_process_is_open(void **state) {
  struct bed *bed = *state;
  struct gated *gated = shared(sizeof *gated);
  pid_t pid = child(hold_the_gate, bed, gated);
  assert_true(reached(&gated->ready, 1));
  struct dibs__side *side;
  assert_int_equal(try_open(bed, 5, &side), DIBS_UNAVAILABLE);
  kill_it(pid);
  assert_int_equal(try_open(bed, LONG_MS, &side), DIBS_OK);
  assert_int_equal(bed->memory.state, DIBS__SIDE_NEW);
  dibs__side_close(side);
}

static int through_the_gate(struct bed *bed, void *arg) {
  struct gated *gated = arg;
  for (int i = 0; i < 40; i++) {
    struct dibs__side *side = side_at_gate(bed);
    if (!side) return 1;
    uint64_t inside = atomic_fetch_add(&gated->inside, 1) + 1;
    if (inside > atomic_load(&gated->worst)) atomic_store(&gated->worst, inside);
    atomic_fetch_sub(&gated->inside, 1);
    if (i % 2) dibs__side_gate_leave(side); /* otherwise it removes the file if it created it */
    dibs__side_close(side);
  }
  return 0;
}

static void the_gate_admits_one_at_a_time(void **state) {
  struct bed *bed = *state;
  struct gated *gated = shared(sizeof *gated);
  pid_t pids[4];
  for (int i = 0; i < 4; i++) pids[i] = child(through_the_gate, bed, gated);
  for (int i = 0; i < 4; i++) assert_int_equal(result_of(pids[i]), 0);
  assert_int_equal(atomic_load(&gated->worst), 1);
}

/* ---- Slots ---- */

static void two_opens_in_one_process_are_two_sessions(void **state) {
  struct bed *bed = *state;
  struct dibs__side *a = side_open(bed), *b = side_open(bed);
  assert_non_null(a);
  assert_non_null(b);
  uint64_t one = dibs__side_session(a), two = dibs__side_session(b);
  assert_true(one != 0 && two != 0 && one != two && one <= INT64_MAX && two <= INT64_MAX);
  assert_true(dibs__side_alive(a, one) && dibs__side_alive(a, two));
  assert_true(dibs__side_alive(b, one) && dibs__side_alive(b, two));
  assert_int_equal(dibs__side_pid(a, two), getpid());
  dibs__side_close(b);
  assert_false(dibs__side_alive(a, two));
  assert_int_equal(dibs__side_pid(a, two), 0);
  assert_true(dibs__side_alive(a, one));

  b = side_open(bed); /* the same slot, another session */
  assert_int_equal(dibs__side_session(b) & 0xffff, two & 0xffff);
  assert_true(dibs__side_session(b) != two);
  assert_false(dibs__side_alive(a, two));
  assert_true(dibs__side_alive(a, dibs__side_session(b)));
  dibs__side_close(b);
  dibs__side_close(a);
  dibs__side_close(NULL);
}

static void numbers_that_are_not_sessions_are_not_alive(void **state) {
  struct dibs__side *side = side_open(*state);
  assert_non_null(side);
  uint64_t ours = dibs__side_session(side);
  const uint64_t none[] = {
      0, 1, UINT64_MAX, ours + (1 << 16), ours - (1 << 16), ours & ~UINT64_C(0xffff), ours | 0xffff};
  for (size_t i = 0; i < sizeof none / sizeof *none; i++) {
    assert_false(dibs__side_alive(side, none[i]));
    assert_int_equal(dibs__side_pid(side, none[i]), 0);
  }
  dibs__side_close(side);
}

struct told {
  _Atomic uint64_t session, pid, ready;
};

static int live(struct bed *bed, void *arg) {
  struct told *told = arg;
  struct dibs__side *side = side_open(bed);
  if (!side) return 1;
  atomic_store(&told->pid, (uint64_t)getpid());
  atomic_store(&told->session, dibs__side_session(side));
  atomic_store(&told->ready, 1);
  for (;;) pause();
}

static void a_killed_process_is_not_alive_and_its_slot_is_reused(void **state) {
  struct bed *bed = *state;
  struct told *told = shared(sizeof *told);
  struct dibs__side *side = side_open(bed);
  pid_t pid = child(live, bed, told);
  assert_true(reached(&told->ready, 1));
  uint64_t session = atomic_load(&told->session);
  assert_true(dibs__side_alive(side, session));
  assert_int_equal(dibs__side_pid(side, session), pid);
  kill_it(pid);
  assert_false(dibs__side_alive(side, session));
  assert_int_equal(dibs__side_pid(side, session), 0);
  struct dibs__side *next = side_open(bed);
  assert_int_equal(dibs__side_session(next) & 0xffff, session & 0xffff);
  assert_false(dibs__side_alive(side, session));
  dibs__side_close(next);
  dibs__side_close(side);
}

static int live_and_leave_a_child(struct bed *bed, void *arg) {
  struct told *told = arg;
  struct dibs__side *side = side_open(bed);
  if (!side) return 1;
  atomic_store(&told->session, dibs__side_session(side));
  if (!dibs__side_write_begin(side, in_ms(LONG_MS))) return 2;
  pid_t pid = fork();
  if (pid == 0) {
    alarm(60);
    dibs__side_close(side); /* a child may close: it frees nothing of its parent */
    atomic_store(&told->ready, 1);
    for (;;) pause();
  }
  atomic_store(&told->pid, (uint64_t)pid);
  for (;;) pause();
}

static void forked_child_does_not_keep_a_killed_parent_alive(void **state) {
  struct bed *bed = *state;
  struct told *told = shared(sizeof *told);
  struct dibs__side *side = side_open(bed);
  pid_t pid = child(live_and_leave_a_child, bed, told);
  assert_true(reached(&told->ready, 1) && reached(&told->pid, 1));
  uint64_t session = atomic_load(&told->session);
  assert_true(dibs__side_alive(side, session)); /* the child's close removed nothing */
  assert_false(dibs__side_write_begin(side, in_ms(50)));
  kill_it(pid);
  pid_t orphan = (pid_t)atomic_load(&told->pid);
  assert_int_equal(kill(orphan, 0), 0);
  assert_false(dibs__side_alive(side, session));
  assert_true(dibs__side_write_begin(side, in_ms(LONG_MS)));
  dibs__side_write_end(side);
  kill(orphan, SIGKILL);
  dibs__side_close(side);
}

static void full_slots_are_reported(void **state) {
  struct bed *bed = *state;
  struct dibs__side *side = side_open(bed), *other;
  int fd = open(bed->page, O_RDWR | O_CLOEXEC);
  struct flock rest = {.l_type = F_WRLCK, .l_start = DIBS__LOCK_SLOTS + 1, .l_len = DIBS__SIDE_SLOTS - 1};
  assert_int_equal(fcntl(fd, F_OFD_SETLK, &rest), 0);
  assert_int_equal(try_open(bed, LONG_MS, &other), DIBS_UNAVAILABLE);
  assert_non_null(strstr(bed->reported.text, "1024"));
  close(fd);
  assert_int_equal(try_open(bed, LONG_MS, &other), DIBS_OK);
  dibs__side_close(other);
  dibs__side_close(side);
}

/* ---- Marks ---- */

static void marks_only_grow_and_restart_with_an_incarnation(void **state) {
  struct bed *bed = *state;
  struct dibs__side *a = side_open(bed), *b = side_open(bed);
  dibs__side_mark(a, 5, dibs__fence_make(1, 10), (dibs__when){100});
  dibs__side_mark(b, 5, dibs__fence_make(1, 9), (dibs__when){90});
  assert_int_equal(dibs__side_marked(a, 5).v, dibs__fence_make(1, 10).v);
  assert_int_equal(atomic_load(&a->page->head.latest_ms), 100);
  dibs__side_mark(b, 5, dibs__fence_make(1, 11), (dibs__when){110});
  assert_int_equal(dibs__side_marked(a, 5).v, dibs__fence_make(1, 11).v);
  dibs__side_mark(a, 6, DIBS__FENCE_NONE, (dibs__when){120});
  assert_int_equal(dibs__side_marked(b, 6).v, 0);
  dibs__side_mark(a, DIBS__BUCKETS, dibs__fence_make(9, 9), (dibs__when){120}); /* no such bucket: no effect */
  assert_int_equal(dibs__side_marked(b, DIBS__BUCKETS).v, 0);

  dibs__incarnation two = {{9}};
  dibs__side_begin(b, &two, 2);
  assert_int_equal(dibs__side_marked(a, 5).v, 0);
  assert_int_equal(dibs__side_epoch(a), 2);
  dibs__side_begin(a, &incarnation_one, 1); /* a late client does not lower the epoch */
  assert_int_equal(dibs__side_epoch(a), 2);
  dibs__side_close(a);
  dibs__side_close(b);
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, bed_make, bed_clear)

int main(void) {
  const struct CMUnitTest tests[] = {
      CASE(first_open_is_a_new_incarnation_and_the_next_is_the_same),
      CASE(an_incarnation_that_did_not_begin_is_new_again),
      CASE(a_begin_that_was_killed_midway_is_a_new_incarnation),
      CASE(another_boot_is_refused_while_a_session_lives_and_new_otherwise),
      CASE(another_clock_offset_is_refused_while_a_session_lives_and_new_otherwise),
      CASE(a_clock_before_an_instant_that_it_has_shown_is_another_incarnation),
      CASE(copied_page_is_a_new_incarnation),
      CASE(a_replaced_database_is_a_new_incarnation_unless_the_former_is_open),
      CASE(a_missing_database_cannot_be_matched),
      CASE(a_newer_layout_is_refused_and_unchanged),
      CASE(garbage_is_refused),
      CASE(damage_while_a_session_lives_is_corrupt),
      CASE(holes_are_filled_before_the_page_is_mapped),
      CASE(no_capacity_is_reported_and_leaves_no_file),
      CASE(links_and_folders_are_refused),
      CASE(missing_folder_is_reported),
      CASE(the_mode_is_exact_under_any_umask),
      CASE(the_page_gets_the_owner_and_mode_of_the_database),
      CASE(a_failed_open_leaves_no_file),
      CASE(a_waiter_at_the_gate_of_a_removed_file_creates_another),
      CASE(the_gate_admits_one_and_reports_the_end_of_the_wait),
      CASE(the_gate_of_a_killed_process_is_open),
      CASE(the_gate_admits_one_at_a_time),
      CASE(two_opens_in_one_process_are_two_sessions),
      CASE(numbers_that_are_not_sessions_are_not_alive),
      CASE(a_killed_process_is_not_alive_and_its_slot_is_reused),
      CASE(forked_child_does_not_keep_a_killed_parent_alive),
      CASE(full_slots_are_reported),
      CASE(marks_only_grow_and_restart_with_an_incarnation),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
