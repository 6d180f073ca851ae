/* SPDX-License-Identifier: MIT */
/*
 * Deadlock: two sessions, one statement at a time.  An applicant's row takes a shared lock on the counted row to which
 * it refers; two sessions that have it, and both want to count, wait for each other.  Then the orders that can't
 * deadlock; and the cure without a transaction: each statement commits by itself, so no lock outlives it, and the
 * program undoes its first statement by hand when the second one finds no seat.
 *
 * A statement without an answer after a moment counts as waiting; the next steps show whether it does.
 */
#include "lab/lab.h"

#include <stdio.h>
#include <string.h>

enum { MOMENT_MS = 400, STEPS_MAX = 16 };

/* {event}, {applicant}, {key} stand for the lab's own; {claim} for one of the side's. */
#define SQL_INSERT                                                                                                     \
  "INSERT INTO {applicant} (claim, event, amount, given, who, at) VALUES ('{claim}', '{key}', 1, 0, 'lab', 0)"
#define SQL_COUNT "UPDATE {event} SET used = used + 1 WHERE id = '{key}' AND used < seats"
#define SQL_SHARE "SELECT used FROM {event} WHERE id = '{key}' {share}"
#define SQL_UNDO "DELETE FROM {applicant} WHERE claim = '{claim}'" /* only after an SQL_COUNT that changed nothing */
#define SQL_LOCK "SELECT used FROM {event} WHERE id = '{key}' FOR UPDATE"

struct act {
  int side;
  const char *sql;
  const char *fine; /* its meaning if it succeeded */
};
enum engine_bits { ON_MARIA = 1, ON_POSTGRES = 2, ON_LITE = 4, ON_SERVERS = 3, ON_ALL = 7, ONE_SEAT = 8 };
struct play {
  const char *key, *title, *text;
  unsigned on;     /* engines that play it; ONE_SEAT: there is a seat for one session only */
  unsigned breaks; /* engines on which it is expected to deadlock */
  struct act act[STEPS_MAX];
};

static const struct play plays[] = {
    {"child_first",
     "The applicant's row first",
     "Each session inserts its row, then counts. The foreign key takes a shared lock on the counted row until the end "
     "of the transaction; counting needs an exclusive lock.",
     ON_SERVERS,
     ON_MARIA,
     {{0, "{begin}", ""},
      {1, "{begin}", ""},
      {0, SQL_INSERT, "shared lock on the counted row"},
      {1, SQL_INSERT, "shared lock on the counted row, too"},
      {0, SQL_COUNT, "counted"},
      {1, SQL_COUNT, "counted"},
      {0, "COMMIT", "in"},
      {1, "COMMIT", "in"},
      {0}}},
    {"share_first",
     "Read with a shared lock, then written",
     "The same trap without a foreign key: both sessions lock the row against changes when they read it, then both "
     "change it.",
     ON_SERVERS,
     ON_SERVERS,
     {{0, "{begin}", ""},
      {1, "{begin}", ""},
      {0, SQL_SHARE, "shared lock"},
      {1, SQL_SHARE, "shared lock, too"},
      {0, SQL_COUNT, "counted"},
      {1, SQL_COUNT, "counted"},
      {0, SQL_INSERT, "its row"},
      {0, "COMMIT", "in"},
      {1, SQL_INSERT, "its row"},
      {1, "COMMIT", "in"},
      {0}}},
    {"read_first",
     "Read, then written",
     "A transaction that begins with a read can't write any more once another session has written.",
     ON_LITE,
     ON_LITE,
     {{0, "BEGIN", ""},
      {1, "BEGIN", ""},
      {0, "SELECT used FROM {event} WHERE id = '{key}'", "a snapshot"},
      {1, "SELECT used FROM {event} WHERE id = '{key}'", "the same snapshot"},
      {0, SQL_COUNT, "counted"},
      {1, SQL_COUNT, "counted"},
      {0, SQL_INSERT, "its row"},
      {0, "COMMIT", "in"},
      {1, SQL_INSERT, "its row"},
      {1, "COMMIT", "in"},
      {0}}},
    {"counted_first",
     "The counted row first",
     "The session that counts first has the exclusive lock before the foreign key requests the shared one. The other "
     "session waits, and both succeed. Every strategy of dibs uses this order.",
     ON_ALL,
     0,
     {{0, "{begin}", ""},
      {0, SQL_COUNT, "counted, and locked"},
      {1, "{begin}", ""},
      {1, SQL_COUNT, "counted, and locked"},
      {0, SQL_INSERT, "its row"},
      {0, "COMMIT", "in"},
      {1, SQL_INSERT, "its row"},
      {1, "COMMIT", "in"},
      {0}}},
    {"locked_first",
     "Locked first, then read, then written",
     "For a program that decides by what it has read: the lock is exclusive from the beginning.",
     ON_SERVERS,
     0,
     {{0, "{begin}", ""},
      {1, "{begin}", ""},
      {0, SQL_LOCK, "locked"},
      {1, SQL_LOCK, "locked"},
      {0, SQL_INSERT, "its row"},
      {0, SQL_COUNT, "counted"},
      {0, "COMMIT", "in"},
      {1, SQL_INSERT, "its row"},
      {1, SQL_COUNT, "counted"},
      {1, "COMMIT", "in"},
      {0}}},
    {"no_transaction",
     "No transaction",
     "The child first again, but each statement commits by itself: its locks end with it, so no session waits for the "
     "other. The price: between the two statements the applicant is in and not counted, and a crash there leaves it "
     "so.",
     ON_ALL,
     0,
     {{0, SQL_INSERT, "its row, committed"},
      {1, SQL_INSERT, "its row, committed"},
      {0, SQL_COUNT, "in"},
      {1, SQL_COUNT, "in"},
      {0}}},
    {"manual_rollback",
     "No transaction, and undone by hand",
     "One seat is left. The second session finds none, and deletes its row again: without a transaction this is the "
     "program's own work, also after each error.",
     ON_ALL | ONE_SEAT,
     0,
     {{0, SQL_INSERT, "its row, committed"},
      {1, SQL_INSERT, "its row, committed"},
      {0, SQL_COUNT, "in"},
      {1, SQL_COUNT, "in"},
      {0, SQL_UNDO, "its row is gone"},
      {1, SQL_UNDO, "its row is gone"},
      {0}}},
};

static const struct lab_column columns[] = {
    {"order", "order", LAB_TEXT},      {"deadlocks", "deadlocks", LAB_COUNT},
    {"retries", "retries", LAB_COUNT}, {"applicants", "applicants", LAB_COUNT},
    {"counted", "counted", LAB_COUNT}, {"verdict", "verdict", LAB_TEXT},
};

struct stage {
  struct lab *lab;
  const struct play *play;
  unsigned engine;
  struct lab_session session[2];
  bool waits[2]; /* its statement is in progress */
  bool out[2];   /* was undone: does nothing until it tries again */
  bool full[2];  /* its SQL_COUNT has changed nothing */
  size_t pending[2];
  size_t later[2][STEPS_MAX], later_count[2]; /* its steps after its wait */
  uint32_t claim;
  uint32_t deadlocks, retries;
  struct lab_timeline *timeline;
};

static int64_t seats_of(const struct play *play) {
  return play->on & ONE_SEAT ? 1 : 10;
}

static unsigned engine_of(const struct lab *lab) {
  const struct dibs__sql_engine *engine = lab->line.wire->engine;
  if (!engine->sessions) return ON_LITE;
  return strcmp(engine->name, "PostgreSQL") == 0 ? ON_POSTGRES : ON_MARIA;
}

/* ---- Texts ---- */

struct word {
  const char *mark, *stands;
};

/* Puts words in place of their marks.  `to` holds LAB_SQL_MAX. */
static void put_words(char *to, const char *text, const struct word *words, size_t count) {
  size_t len = 0;
  for (const char *at = text; *at && len + 1 < LAB_SQL_MAX;) {
    const struct word *found = NULL;
    for (size_t i = 0; i < count && !found; i++)
      if (strncmp(at, words[i].mark, strlen(words[i].mark)) == 0) found = &words[i];
    if (!found) {
      to[len++] = *at++;
      continue;
    }
    for (const char *p = found->stands; *p && len + 1 < LAB_SQL_MAX; p++) to[len++] = *p;
    at += strlen(found->mark);
  }
  to[len] = '\0';
}

static void spell(struct stage *s, int side, const char *text, char *sql, char *shown) {
  char key[LAB_KEY_MAX], claim[48];
  dibs__lab_key(key, s->lab->run, 1);
  snprintf(claim, sizeof claim, "lab-%u-%c%u", s->lab->run, 'a' + side, s->claim);
  const char *share = s->engine == ON_MARIA ? "LOCK IN SHARE MODE" : "FOR SHARE";
  const char *begin = s->lab->line.wire->engine->begin;
  const struct word own[] = {{"{event}", s->lab->event},
                             {"{applicant}", s->lab->applicant},
                             {"{key}", key},
                             {"{claim}", claim},
                             {"{share}", share},
                             {"{begin}", begin}};
  const struct word plain[] = {
      {"{event}", "event"}, {"{applicant} (claim, event, amount, given, who, at)", "applicant"},
      {"{key}", "show"},    {"'{claim}', '{key}', 1, 0, 'lab', 0", "..."},
      {"{claim}", "mine"},  {"{applicant}", "applicant"},
      {"{share}", share},   {"{begin}", "BEGIN"}};
  put_words(sql, text, own, sizeof own / sizeof *own);
  put_words(shown, text, plain, sizeof plain / sizeof *plain);
}

/* ---- Playing ---- */

static void add_step(struct stage *s, int side, const char *does, const char *fine) {
  struct lab_session *session = &s->session[side];
  char gets[300];
  enum lab_mood mood = LAB_PLAIN;
  if (session->step == DIBS__SQL_OK) {
    s->full[side] = s->full[side] || (strncmp(session->text, "UPDATE", 6) == 0 && session->changed == 0);
    bool none = s->full[side] && strcmp(fine, "in") == 0;
    snprintf(gets, sizeof gets, "%s", none ? "0 rows: no seat is left" : fine);
    if (strcmp(gets, "in") == 0) mood = LAB_GOOD;
  } else {
    bool dead =
        session->trouble == DIBS__SQL_DEADLOCK || (s->engine == ON_LITE && session->trouble == DIBS__SQL_LOCKED);
    bool meant = (s->play->breaks & s->engine) != 0;
    if (dead) s->deadlocks++;
    s->out[side] = true;
    mood = dead && meant ? LAB_EXPECTED : LAB_BAD;
    if (!meant || !dead) s->lab->sheet.broken = true;
    snprintf(gets, sizeof gets, "%s%s",
             dead && s->engine != ON_LITE ? "chosen as the victim: " : "refused: ", session->message);
  }
  dibs__lab_step(&s->lab->sheet, s->timeline, side, mood, does, gets);
  if (session->step == DIBS__SQL_OK) return;
  dibs__lab_session_request(session, "ROLLBACK");
  (void)dibs__lab_session_wait(session, LAB_LINE_MS);
  dibs__lab_step(&s->lab->sheet, s->timeline, side, LAB_PLAIN, "ROLLBACK", "the whole transaction is undone");
}

static void play_act(struct stage *s, size_t nth);

/* Has the waiting side got its answer?  `ms`: how long to wait for it.  Then it continues with its next steps. */
static void check_waiting_side(struct stage *s, int side, int64_t ms) {
  if (!s->waits[side] || !dibs__lab_session_wait(&s->session[side], ms)) return;
  s->waits[side] = false;
  add_step(s, side, "(the wait ends)", s->play->act[s->pending[side]].fine);
  size_t count = s->later_count[side], later[STEPS_MAX];
  memcpy(later, s->later[side], sizeof later);
  s->later_count[side] = 0;
  for (size_t i = 0; i < count; i++) play_act(s, later[i]);
}

static void play_act(struct stage *s, size_t nth) {
  const struct act *a = &s->play->act[nth];
  char sql[LAB_SQL_MAX], shown[LAB_SQL_MAX];
  int side = a->side;
  if (s->waits[side]) {
    s->later[side][s->later_count[side]++] = nth;
    return;
  }
  if (s->out[side] || (strcmp(a->sql, SQL_UNDO) == 0 && !s->full[side])) return;
  spell(s, side, a->sql, sql, shown);
  dibs__lab_session_request(&s->session[side], sql);
  if (dibs__lab_session_wait(&s->session[side], MOMENT_MS)) {
    add_step(s, side, shown, a->fine);
  } else {
    s->waits[side] = true;
    s->pending[side] = nth;
    dibs__lab_step(&s->lab->sheet, s->timeline, side, LAB_PLAIN, shown, "waits...");
  }
  /* This step may have ended the other side's wait, or made it a victim. */
  bool ended = strcmp(a->sql, "COMMIT") == 0 || s->out[side];
  check_waiting_side(s, 1 - side, ended ? LAB_LINE_MS : 0);
  if (s->waits[0] && s->waits[1]) { /* the engine will choose one of them */
    check_waiting_side(s, side, LAB_LINE_MS);
    check_waiting_side(s, 1 - side, LAB_LINE_MS);
  }
}

/* The side that was undone tries again, after the other one has ended. */
static void try_again(struct stage *s) {
  for (int side = 0; side < 2; side++) {
    if (!s->out[side]) continue;
    s->out[side] = false;
    s->retries++;
    s->claim++;
    dibs__lab_step(&s->lab->sheet, s->timeline, -1, LAB_PLAIN,
                   "The session that was undone tries again, and counts first:", "");
    static const struct act again[] = {
        {0, "{begin}", ""}, {0, SQL_COUNT, "counted"}, {0, SQL_INSERT, "its row"}, {0, "COMMIT", "in"}};
    for (size_t i = 0; i < sizeof again / sizeof *again && !s->out[side]; i++) {
      char sql[LAB_SQL_MAX], shown[LAB_SQL_MAX];
      spell(s, side, again[i].sql, sql, shown);
      dibs__lab_session_request(&s->session[side], sql);
      if (dibs__lab_session_wait(&s->session[side], LAB_LINE_MS)) add_step(s, side, shown, again[i].fine);
    }
  }
}

static bool row(struct stage *s, struct lab_table *table) {
  struct lab *lab = s->lab;
  struct lab_audit audit;
  if (!dibs__lab_audit(lab, 1, seats_of(s->play), &audit)) return false;
  bool meant = (s->play->breaks & s->engine) != 0;
  bool right =
      audit.off == 0 && audit.over == 0 && audit.claims == (s->play->on & ONE_SEAT ? 1 : 2) && !s->out[0] && !s->out[1];
  if (!right || (s->deadlocks && !meant)) lab->sheet.broken = true;
  dibs__lab_put_text(&lab->sheet, table, LAB_PLAIN, s->play->title);
  dibs__lab_put(&lab->sheet, table, s->deadlocks);
  if (s->deadlocks) dibs__lab_mood(table, meant ? LAB_EXPECTED : LAB_BAD);
  dibs__lab_put(&lab->sheet, table, s->retries);
  dibs__lab_put(&lab->sheet, table, (double)audit.claims);
  dibs__lab_put(&lab->sheet, table, (double)audit.counted);
  if (!right || (s->deadlocks && !meant))
    dibs__lab_put_text(&lab->sheet, table, LAB_BAD, "BROKEN");
  else if (meant)
    dibs__lab_put_text(&lab->sheet, table, s->deadlocks ? LAB_EXPECTED : LAB_PLAIN,
                       s->deadlocks ? "deadlock, as expected" : "no deadlock this time");
  else
    dibs__lab_put_text(&lab->sheet, table, LAB_GOOD, "no deadlock");
  return true;
}

static bool perform(struct lab *lab, const struct play *play, unsigned engine, struct lab_table *table) {
  struct stage s = {.lab = lab, .play = play, .engine = engine};
  if (!dibs__lab_tables_make(lab, 1, seats_of(play))) return false;
  dibs__lab_report_progress(lab, play->title, 2, 0, 0, 0, 0);
  s.timeline = dibs__lab_timeline(&lab->sheet, play->key, play->title, play->text, "session A", "session B");
  bool fine = dibs__lab_session_open(lab, &s.session[0]) && dibs__lab_session_open(lab, &s.session[1]);
  for (size_t i = 0; fine && i < STEPS_MAX && play->act[i].sql && !dibs__lab_ended(lab); i++) play_act(&s, i);
  for (int side = 0; fine && side < 2; side++) check_waiting_side(&s, side, LAB_LINE_MS);
  if (fine) try_again(&s);
  dibs__lab_session_close(&s.session[0]);
  dibs__lab_session_close(&s.session[1]);
  return fine && row(&s, table);
}

bool dibs__lab_deadlock(struct lab *lab) {
  struct lab_sheet *s = &lab->sheet;
  s->experiment = "deadlock";
  if (!lab->connection) return dibs__lab_fail(lab, "this store has no SQL, so it has no foreign key");
  dibs__lab_title(s, "The deadlock of a foreign key",
                  "Two sessions book a seat of the same show, one statement at a time. First the orders in which they "
                  "can wait for each other, then those in which they can't.");
  struct lab_table *table = dibs__lab_table(s, "orders", "Orders", "", columns, sizeof columns / sizeof *columns);
  unsigned engine = engine_of(lab);
  for (size_t i = 0; i < sizeof plays / sizeof *plays; i++) lab->steps += (plays[i].on & engine) != 0;
  for (size_t i = 0; i < sizeof plays / sizeof *plays && !dibs__lab_ended(lab); i++) {
    if (!(plays[i].on & engine)) continue;
    lab->step++;
    if (!perform(lab, &plays[i], engine, table)) return dibs__lab_ended(lab);
  }
  if (engine == ON_POSTGRES)
    dibs__lab_note(s, "The lock of PostgreSQL's foreign keys does not block counting (KEY SHARE, NO KEY UPDATE), so "
                      "the first order does not deadlock there; an explicit shared lock does.");
  if (engine == ON_LITE)
    dibs__lab_note(s, "SQLite has one writer at a time and no row locks: it refuses a transaction that reads before it "
                      "writes. BEGIN IMMEDIATE is the order that it can't refuse.");
  return true;
}
