/* SPDX-License-Identifier: MIT */
/*
 * Stock through dibs.h, in dibs' own table and in users' tables with foreign keys: every strategy, every answer, takers
 * that race, one bad claim among many, and processes that are killed while they take.
 */
#include "record_bed.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum {
  STRATEGIES = 6,
  SEATS = 50,
  APPLICANTS = 100,
  CREW = 24,
  KILLED = 3, /* processes at the same time */
  KILL_ROUNDS = 4,
  KILL_USERS = 8 /* threads of each process */
};

static const char *program;
static dibs_stock_result r;

static dibs_status took(dibs_store *s, const char *key, int64_t amount, dibs_stock_options o) {
  o.size = sizeof o;
  r.size = sizeof r;
  return dibs_stock_take(s, key, amount, &o, &r, &reported);
}
static dibs_status gave(dibs_store *s, const char *key, const char *claim, dibs_stock_options o) {
  o.size = sizeof o;
  r.size = sizeof r;
  return dibs_stock_give(s, key, claim, &o, &r, &reported);
}
static dibs_status shown(dibs_store *s, const char *key, const dibs_table *table) {
  dibs_stock_options o = {.size = sizeof o, .table = table};
  r.size = sizeof r;
  return dibs_stock_show(s, key, &o, &r, &reported);
}

#define EXPECT(call, want)                                                                                             \
  do {                                                                                                                 \
    dibs_status expect_got = (call);                                                                                   \
    if (expect_got != (want)) fail_msg("%s: %s: %s", #call, dibs_status_name(expect_got), reported.text);              \
  } while (0)

static const char *own_key(void) {
  static char key[40];
  static unsigned nr;
  snprintf(key, sizeof key, "stock-%d-%u-%lld", (int)getpid(), nr++, (long long)time(NULL));
  return key;
}

/* ---- A user's tables ---- */

static dibs_table *booking(void) {
  make_table("person", "name VARCHAR(40) PRIMARY KEY");
  make_table("event",
             "id %s PRIMARY KEY, title %s, seats_taken %s NOT NULL, seats %s NOT NULL, seen %s, holder %s, "
             "CHECK (seats_taken <= seats)",
             engine->number, engine->text, engine->number, engine->number, engine->number, engine->number);
  make_table("applicant",
             "ticket VARCHAR(64) PRIMARY KEY, event_id %s NOT NULL REFERENCES event (id), amount %s NOT NULL, gone %s, "
             "person VARCHAR(40), came %s, CHECK (person <> 'banned'), FOREIGN KEY (event_id) REFERENCES event (id), "
             "FOREIGN KEY (person) REFERENCES person (name)",
             engine->number, engine->number, engine->number, engine->number);
  sql("INSERT INTO person VALUES ('ann'), ('bob'), ('banned')");
  sql("INSERT INTO event VALUES (1, 'one', 0, %d, NULL, NULL), (2, 'two', 0, 5, NULL, NULL)", SEATS);
  return TABLE(.table = "event", .key = "id", .used = "seats_taken", .limit = "seats", .fence = "seen",
               .owner = "holder", .claims = "applicant", .claim = "ticket", .claim_stock = "event_id",
               .claim_amount = "amount", .claim_given = "gone", .claim_owner = "person", .claim_time = "came");
}

/* One statement, because a commit of a killed process may still land. */
static void expect_count(const char *id) {
  assert_string_equal(
      cell("SELECT seats_taken - (SELECT COALESCE(SUM(amount), 0) FROM applicant WHERE event_id = %s AND "
           "gone = 0) FROM event WHERE id = %s",
           id, id),
      "0");
}

/* ---- Every strategy ---- */

static void each_answer(dibs_store *s, const char *key, dibs_stock_options o, const char *other) {
  EXPECT(took(s, key, 2, o), DIBS_OK);
  char claim[65];
  snprintf(claim, sizeof claim, "%s", r.claim);
  assert_int_equal(strlen(claim), 32);
  assert_int_equal(r.got, 2);
  assert_true(r.used == 2 || r.used == -1);
  assert_int_equal(reported.text[0], '\0');
  o.claim = claim;
  EXPECT(took(s, key, 2, o), DIBS_REPLAY);
  assert_int_equal(r.got, 2);
  EXPECT(took(s, other, 2, o), DIBS_CONFLICT);
  assert_message(claim);
  o.claim = NULL;
  EXPECT(took(s, key, 4, o), DIBS_FULL);
  assert_message("left");
  o.flags = DIBS_TAKE_PARTIAL;
  EXPECT(took(s, key, 4, o), DIBS_OK);
  assert_int_equal(r.got, 3);
  EXPECT(took(s, key, 1, o), DIBS_FULL);
  o.flags = 0;
  EXPECT(gave(s, key, claim, o), DIBS_OK);
  assert_int_equal(r.got, 2);
  EXPECT(gave(s, key, claim, o), DIBS_REPLAY);
  EXPECT(gave(s, key, "nobody", o), DIBS_NOT_FOUND);
  assert_message("nobody");
  o.claim = "nobody";
  EXPECT(took(s, key, 1, o), DIBS_CONFLICT);
  o.claim = claim;
  EXPECT(took(s, key, 1, o), DIBS_CONFLICT);
  o.claim = NULL;
  EXPECT(shown(s, key, o.table), DIBS_OK);
  assert_int_equal(r.used, 3);
  assert_int_equal(r.limit, 5);
}

static void every_strategy_gives_every_answer(void **state) {
  (void)state;
  dibs_store *s = store_open();
  for (int strategy = 0; strategy < STRATEGIES; strategy++) {
    char key[64], other[64];
    snprintf(key, sizeof key, "%s", own_key());
    snprintf(other, sizeof other, "%s", own_key());
    dibs_stock_options o = {.strategy = (dibs_strategy)strategy};
    EXPECT(took(s, key, 1, o), DIBS_NOT_FOUND);
    assert_message("set its limit first");
    r.size = sizeof r;
    EXPECT(dibs_stock_set(s, key, 5, NULL, &r, &reported), DIBS_OK);
    EXPECT(dibs_stock_set(s, other, 5, NULL, &r, &reported), DIBS_OK);
    each_answer(s, key, o, other);
    EXPECT(dibs_stock_set(s, key, 2, NULL, &r, &reported), DIBS_FULL);
    assert_message("3 are used");
    sql("DELETE FROM %s WHERE claim = 'nobody'",
        strcmp(engine->scheme, "postgres") == 0 ? "dibs.dibs_claim" : "dibs_claim");
  }
  EXPECT(took(s, own_key(), 1, (dibs_stock_options){.strategy = (dibs_strategy)STRATEGIES}), DIBS_INVALID);
  assert_message("there is no strategy 6");
}

static void every_strategy_works_on_users_tables(void **state) {
  (void)state;
  dibs_store *s = store_open();
  dibs_table *t = booking();
  for (int strategy = 0; strategy < STRATEGIES; strategy++) {
    dibs_stock_options o = {.strategy = (dibs_strategy)strategy, .table = t, .owner = "ann"};
    sql("DELETE FROM applicant");
    sql("UPDATE event SET seats_taken = 0, seats = 5");
    EXPECT(took(s, "77", 1, o), DIBS_NOT_FOUND);
    each_answer(s, "1", o, "2");
    expect_count("1");
    assert_string_equal(cell("SELECT COUNT(*) FROM applicant WHERE person = 'ann' AND came > 1600000000000"), "3");
  }
}

static void the_limit_of_a_users_table_is_set(void **state) {
  (void)state;
  dibs_store *s = store_open();
  dibs_table *t = booking();
  dibs_stock_options o = {.size = sizeof o, .table = t};
  EXPECT(dibs_stock_set(s, "2", 9, &o, NULL, &reported), DIBS_OK);
  assert_string_equal(cell("SELECT seats FROM event WHERE id = 2"), "9");
  EXPECT(dibs_stock_set(s, "3", 4, &o, NULL, &reported), DIBS_OK);
  assert_string_equal(cell("SELECT seats - seats_taken FROM event WHERE id = 3"), "4");
}

/* As in a document, which has them inside: a row has no place for them. */
static void claims_need_the_key_of_their_row(void **state) {
  (void)state;
  dibs_store *s = store_open();
  make_table("room", "name VARCHAR(40) PRIMARY KEY, taken %s NOT NULL, beds %s NOT NULL", engine->number,
             engine->number);
  sql("INSERT INTO room VALUES ('blue', 0, 3)");
  dibs_table *t =
      TABLE(.table = "room", .key = "name", .used = "taken", .limit = "beds", .claims = "guest", .claim = "ticket");
  EXPECT(took(s, "blue", 1, (dibs_stock_options){.table = t}), DIBS_INVALID);
  assert_message("without claim_stock");
  dibs_stock_options o = {.size = sizeof o, .table = t};
  EXPECT(dibs_stock_show(s, "blue", &o, &r, &reported), DIBS_INVALID);
  assert_message("without claim_stock");
}

/* Only the columns that a claim needs. */
static void claims_without_amounts(void **state) {
  (void)state;
  dibs_store *s = store_open();
  make_table("room", "name VARCHAR(40) PRIMARY KEY, taken %s NOT NULL, beds %s NOT NULL", engine->number,
             engine->number);
  make_table("guest",
             "ticket VARCHAR(64) PRIMARY KEY, room VARCHAR(40) NOT NULL, FOREIGN KEY (room) REFERENCES room (name)");
  sql("INSERT INTO room VALUES ('blue', 0, 3)");
  dibs_table *t = TABLE(.table = "room", .key = "name", .used = "taken", .limit = "beds", .claims = "guest",
                        .claim = "ticket", .claim_stock = "room");
  dibs_stock_options o = {.table = t};
  for (int strategy = 0; strategy < STRATEGIES; strategy++) {
    o.strategy = (dibs_strategy)strategy;
    if (strategy == DIBS_FENCED) {
      EXPECT(took(s, "blue", 1, o), DIBS_INVALID);
      assert_message("without fence");
      continue;
    }
    sql("DELETE FROM guest");
    sql("UPDATE room SET taken = 0");
    EXPECT(took(s, "blue", 1, o), DIBS_OK);
    dibs_stock_options again = o;
    char claim[65];
    snprintf(claim, sizeof claim, "%s", r.claim);
    again.claim = claim;
    EXPECT(took(s, "blue", 1, again), DIBS_REPLAY);
    assert_int_equal(r.got, 1);
    EXPECT(took(s, "blue", 2, o), DIBS_INVALID);
    EXPECT(gave(s, "blue", claim, o), DIBS_INVALID);
    assert_message("claim_given");
    EXPECT(took(s, "blue", 1, o), DIBS_OK);
    EXPECT(took(s, "blue", 1, o), DIBS_OK);
    EXPECT(took(s, "blue", 1, o), DIBS_FULL);
    assert_string_equal(cell("SELECT COUNT(*) FROM guest WHERE room = 'blue'"), "3");
  }
}

/* ---- Races ---- */

struct applicant {
  pthread_t thread;
  dibs_store *store;
  const char *key, *claim, *owner;
  dibs_table *table;
  dibs_strategy strategy;
  pthread_barrier_t *start;
  dibs_status status;
  dibs_error error;
};

static void *apply(void *arg) {
  struct applicant *a = arg;
  dibs_stock_options o = {.size = sizeof o,
                          .table = a->table,
                          .strategy = a->strategy,
                          .owner = a->owner,
                          .claim = a->claim,
                          .wait_ms = 30000};
  pthread_barrier_wait(a->start);
  a->status = dibs_stock_take(a->store, a->key, 1, &o, NULL, &a->error);
  return NULL;
}

static void apply_all(struct applicant *applicants, size_t count) {
  pthread_barrier_t start;
  assert_int_equal(pthread_barrier_init(&start, NULL, (unsigned)count), 0);
  for (size_t i = 0; i < count; i++) {
    applicants[i].start = &start;
    assert_int_equal(pthread_create(&applicants[i].thread, NULL, apply, &applicants[i]), 0);
  }
  for (size_t i = 0; i < count; i++) pthread_join(applicants[i].thread, NULL);
  pthread_barrier_destroy(&start);
}

/* Two handles act as two processes. */
static void no_seat_is_sold_twice(void **state) {
  (void)state;
  dibs_store *stores[] = {store_open(), store_open()};
  dibs_table *t = booking();
  static const dibs_strategy strategies[] = {DIBS_COALESCED,  DIBS_ATOMIC, DIBS_PESSIMISTIC,
                                             DIBS_OPTIMISTIC, DIBS_NAMED,  DIBS_FENCED};
  for (size_t k = 0; k < sizeof strategies / sizeof strategies[0]; k++) {
    static struct applicant a[APPLICANTS];
    int booked = 0, full = 0;
    sql("DELETE FROM applicant");
    sql("UPDATE event SET seats_taken = 0");
    for (int i = 0; i < APPLICANTS; i++)
      a[i] =
          (struct applicant){.store = stores[i % 2], .key = "1", .owner = "bob", .table = t, .strategy = strategies[k]};
    apply_all(a, APPLICANTS);
    for (int i = 0; i < APPLICANTS; i++) {
      booked += a[i].status == DIBS_OK;
      full += a[i].status == DIBS_FULL;
      if (a[i].status != DIBS_OK && a[i].status != DIBS_FULL)
        fail_msg("strategy %d: %s: %s", (int)strategies[k], dibs_status_name(a[i].status), a[i].error.text);
    }
    assert_int_equal(booked, SEATS);
    assert_int_equal(full, APPLICANTS - SEATS);
    assert_string_equal(cell("SELECT COUNT(*) FROM applicant"), "50");
    expect_count("1");
  }
}

/* One has no parent, one violates a constraint, one repeats, one belongs to another stock: all others are accepted. */
static void one_bad_claim_does_not_harm_others(void **state) {
  (void)state;
  dibs_store *s = store_open();
  dibs_table *t = booking();
  dibs_stock_options o = {.table = t, .owner = "ann", .claim = "before"};
  EXPECT(took(s, "1", 1, o), DIBS_OK);
  o.claim = "elsewhere";
  EXPECT(took(s, "2", 1, o), DIBS_OK);
  for (int round = 0; round < 5; round++) {
    struct applicant a[CREW];
    for (int i = 0; i < CREW; i++) a[i] = (struct applicant){.store = s, .key = "1", .owner = "bob", .table = t};
    a[3].owner = "stranger"; /* no such person */
    a[7].owner = "banned";
    a[11].claim = "before";
    a[15].claim = "elsewhere";
    a[19].key = "99";
    sql("DELETE FROM applicant WHERE ticket NOT IN ('before', 'elsewhere')");
    sql("UPDATE event SET seats_taken = 1");
    apply_all(a, CREW);
    for (int i = 0; i < CREW; i++) {
      dibs_status want = i == 3 || i == 19 ? DIBS_NOT_FOUND
                         : i == 7          ? DIBS_INVALID
                         : i == 11         ? DIBS_REPLAY
                         : i == 15         ? DIBS_CONFLICT
                                           : DIBS_OK;
      if (a[i].status != want)
        fail_msg("%d: %s, expected %s: %s", i, dibs_status_name(a[i].status), dibs_status_name(want), a[i].error.text);
    }
    assert_string_equal(cell("SELECT COUNT(*) FROM applicant WHERE event_id = 1"), "20");
    expect_count("1");
    expect_count("2");
  }
}

/* ---- Inside a transaction ---- */

static void inside_a_take_commits_with_the_transaction(void **state) {
  (void)state;
  dibs_store *s = store_open(), *inside = NULL;
  dibs_table *t = booking();
  dibs_stock_options o = {.table = t, .owner = "ann"};
  void *mine = another_connection();
  if (strcmp(engine->scheme, "sqlite") == 0)
    engine->run(mine, "PRAGMA foreign_keys = ON", NULL); /* the user's
                                                          * choice */
  engine->run(mine, "BEGIN", NULL);
  EXPECT(engine->inside(s, mine, &inside, &reported), DIBS_OK);
  EXPECT(took(inside, "1", 3, o), DIBS_OK);
  EXPECT(took(inside, "1", 100, o), DIBS_FULL);
  o.owner = "stranger"; /* refused by a foreign key: the user's transaction continues */
  EXPECT(took(inside, "1", 1, o), DIBS_NOT_FOUND);
  o.owner = "ann";
  EXPECT(took(inside, "1", 1, o), DIBS_OK);
  o.strategy = DIBS_NAMED;
  EXPECT(took(inside, "1", 1, o), DIBS_UNSUPPORTED);
  dibs_close(inside);
  engine->run(mine, "COMMIT", NULL);
  assert_string_equal(cell("SELECT seats_taken FROM event WHERE id = 1"), "4");
  expect_count("1");
  o.strategy = DIBS_COALESCED;
  engine->run(mine, "BEGIN", NULL);
  EXPECT(engine->inside(s, mine, &inside, &reported), DIBS_OK);
  EXPECT(took(inside, "1", 3, o), DIBS_OK);
  dibs_close(inside);
  engine->run(mine, "ROLLBACK", NULL);
  assert_string_equal(cell("SELECT seats_taken FROM event WHERE id = 1"), "4");
  expect_count("1");
}

/* ---- Processes that are killed ---- */

struct user {
  pthread_t thread;
  dibs_store *store;
  dibs_table *table;
  int file, nr;
};

static void note(int file, const char *what, const char *claim) {
  char line[120];
  int len = snprintf(line, sizeof line, "%s %s\n", what, claim);
  if (write(file, line, (size_t)len) != len) _exit(3);
}

static void *take_on(void *arg) {
  struct user *u = arg;
  for (unsigned i = 0;; i++) {
    char claim[65];
    dibs_error error;
    snprintf(claim, sizeof claim, "%d-%d-%u", (int)getpid(), u->nr, i);
    dibs_stock_options o = {.size = sizeof o, .table = u->table, .owner = "ann", .claim = claim};
    note(u->file, "ask", claim);
    dibs_status status = dibs_stock_take(u->store, "1", 1, &o, NULL, &error);
    if (status == DIBS_OK || status == DIBS_REPLAY) note(u->file, "has", claim);
    if (status == DIBS_FULL) note(u->file, "not", claim);
  }
  return NULL;
}

/* The child process of the test below: takes until it is killed. */
static int taker_main(const char *uri, const char *path) {
  dibs_error error;
  dibs_store *store;
  static struct user users[KILL_USERS];
  dibs_table_options o = {.size = sizeof o,
                          .table = "event",
                          .key = "id",
                          .used = "seats_taken",
                          .limit = "seats",
                          .claims = "applicant",
                          .claim = "ticket",
                          .claim_stock = "event_id",
                          .claim_amount = "amount",
                          .claim_given = "gone",
                          .claim_owner = "person"};
  dibs_table *table;
  int file = open(path, O_WRONLY | O_CREAT | O_APPEND, 0600);
  if (file < 0 || dibs_open(uri, NULL, &store, &error) != DIBS_OK) return 1;
  if (dibs_table_declare(&o, &table, &error) != DIBS_OK) return 1;
  for (int i = 0; i < KILL_USERS; i++) {
    users[i] = (struct user){.store = store, .table = table, .file = file, .nr = i};
    if (pthread_create(&users[i].thread, NULL, take_on, &users[i]) != 0) return 1;
  }
  for (int i = 0; i < KILL_USERS; i++) pthread_join(users[i].thread, NULL);
  return 0;
}

static pid_t start_taker(const char *path) {
  pid_t pid = fork();
  assert_true(pid >= 0);
  if (pid == 0) {
    execl(program, program, "--taker", case_uri(), path, (char *)NULL);
    _exit(127);
  }
  return pid;
}

static size_t count_of(const char *path, const char *what) {
  FILE *f = fopen(path, "r");
  char line[200];
  size_t n = 0;
  while (f && fgets(line, sizeof line, f)) n += strncmp(line, what, strlen(what)) == 0;
  if (f) fclose(f);
  return n;
}

/* All acknowledged claims exist; the primary key ensures that each exists once. */
static void expect_all_claims(const char *path) {
  FILE *f = fopen(path, "r");
  char line[200], claim[100];
  size_t has = 0, listed = 0;
  assert_non_null(f);
  sql("DELETE FROM has");
  while (fgets(line, sizeof line, f)) {
    if (sscanf(line, "has %99s", claim) != 1) continue;
    sql("INSERT INTO has VALUES ('%s')", claim);
    has++;
  }
  fclose(f);
  listed = strtoul(cell("SELECT COUNT(*) FROM has JOIN applicant ON applicant.ticket = has.ticket"), NULL, 10);
  assert_int_equal(listed, has);
}

static void killed_takers_lose_nothing_and_count_nothing_twice(void **state) {
  (void)state;
  (void)booking();
  make_table("has", "ticket VARCHAR(64) PRIMARY KEY");
  sql("UPDATE event SET seats = 1000000");
  char path[64] = "/tmp/dibs-takers-XXXXXX";
  int file = mkstemp(path);
  assert_true(file >= 0);
  close(file);
  for (int round = 0; round < KILL_ROUNDS; round++) {
    pid_t pids[KILLED];
    size_t before = count_of(path, "has");
    for (int i = 0; i < KILLED; i++) pids[i] = start_taker(path);
    time_t until = time(NULL) + 60;
    while (count_of(path, "has") < before + 100 && time(NULL) < until)
      nanosleep(&(struct timespec){.tv_nsec = 5000000 + round * 1300000}, NULL);
    for (int i = 0; i < KILLED; i++) kill(pids[i], SIGKILL);
    for (int i = 0; i < KILLED; i++) {
      int status;
      assert_int_equal(waitpid(pids[i], &status, 0), pids[i]);
      assert_true(WIFSIGNALED(status));
    }
    assert_true(count_of(path, "has") >= before + 100);
  }
  expect_count("1");
  expect_all_claims(path);
  size_t requested = count_of(path, "ask");
  assert_true(strtoul(cell("SELECT COUNT(*) FROM applicant"), NULL, 10) <= requested);
  unlink(path);
}

int main(int argc, char *argv[]) {
  program = argv[0];
  if (argc == 4 && strcmp(argv[1], "--taker") == 0) return taker_main(argv[2], argv[3]);
  bed_begin(argc, argv);
  const struct CMUnitTest tests[] = {
      TEST(every_strategy_gives_every_answer),
      TEST(every_strategy_works_on_users_tables),
      TEST(the_limit_of_a_users_table_is_set),
      TEST(claims_need_the_key_of_their_row),
      TEST(claims_without_amounts),
      TEST(no_seat_is_sold_twice),
      TEST(one_bad_claim_does_not_harm_others),
      TEST(inside_a_take_commits_with_the_transaction),
      TEST(killed_takers_lose_nothing_and_count_nothing_twice),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
