/* SPDX-License-Identifier: MIT */
/*
 * Phases: gateways and domains, rows of a table of the user's own, are created and deleted step by step by nodes, each
 * a process.  One node is killed between the effect of a step and its end.  Another one is stopped in the middle of a
 * step, until a third one has done this step, and then writes late.  Each step of each row has an effect, which must
 * exist once.  The same scene runs with polled claims by hand and with claims of dibs.
 */
#include "lab/phases.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { START_MS = 60000, SCENE_MS = 120000, LOOK_MS = 10, PROBE_MS = 300, TEXT_MAX = 600, GETS_MAX = 200 };

struct method {
  const char *key, *title, *text;
  bool promised;
};
static const struct method methods[] = {
    [PHASES_POLLED] = {"polled", "polled UPDATE",
                       "the oldest free row, claimed by its locked_at; what follows checks nothing", false},
    [PHASES_COMPARED] = {"compared", "polled UPDATE, compared",
                         "the same, and the row is written only if its locked_at is still that of the claim; the "
                         "effect before it has happened by then",
                         false},
    [PHASES_DIBS] = {"dibs", "dibs",
                     "claims of dibs; the effect and the row are written by one transaction, which compares "
                     "the fence of the claim",
                     true},
};
enum { METHODS = sizeof methods / sizeof *methods };

static const struct lab_column columns[] = {
    {"verdict", "verdict", LAB_TEXT},  {"method", "method", LAB_TEXT},
    {"rows", "rows", LAB_COUNT},       {"done", "done", LAB_COUNT},
    {"effects", "effects", LAB_COUNT}, {"should_be", "should be", LAB_COUNT},
    {"twice", "twice", LAB_COUNT},     {"late_writes", "late writes", LAB_COUNT},
    {"refused", "refused", LAB_COUNT}, {"continues_ms", "continues after, ms", LAB_COUNT},
    {"waits", "waits", LAB_COUNT},     {"ms", "ms", LAB_COUNT},
};

struct scene {
  struct lab *lab;
  enum phases_method method;
  struct phases_page *page;
  int fd, pid[PHASES_NODES];
  struct lab_timeline *timeline;
  dibs__tick from, killed;
  char id[LAB_KEY_MAX]; /* the row of the stopped node */
  uint32_t step;
  int64_t continues_ms;
};
struct counted {
  int64_t done, effects, distinct, late;
};

static void add_step(struct scene *s, int side, enum lab_mood mood, const char *does, const char *gets) {
  dibs__lab_step(&s->lab->sheet, s->timeline, side, mood, does, gets);
}

/* ---- Statements ---- */

/* Again while another session has locked the row. */
static bool run(struct lab *lab, const char *text) {
  struct lab_line *line = &lab->line;
  dibs__tick by = dibs__tick_add_ms(dibs__tick_now(), LAB_LINE_MS);
  while (dibs__lab_run_sql(line, text, NULL, 0) != DIBS__SQL_OK) {
    enum dibs__sql_trouble trouble = line->wire->trouble;
    if ((trouble != DIBS__SQL_DEADLOCK && trouble != DIBS__SQL_LOCKED) || !dibs__tick_before(dibs__tick_now(), by))
      return dibs__lab_fail(lab, "at %s: %s", dibs__lab_connection_shown(lab->connection), line->wire->message);
    dibs__nap_ms(LOOK_MS);
  }
  return true;
}

static bool number(struct lab *lab, const char *text, int64_t *to) {
  if (!run(lab, text)) return false;
  const struct dibs__sql_wire *wire = lab->line.wire;
  *to = wire->engine->rows(wire, 0) > 0 ? dibs__sql_cell_number(wire, 0, 0, 0) : 0;
  return true;
}

static bool drop_tables(struct lab *lab) {
  char text[TEXT_MAX];
  snprintf(text, sizeof text, "DROP TABLE IF EXISTS %s", lab->applicant);
  if (!run(lab, text)) return false;
  snprintf(text, sizeof text, "DROP TABLE IF EXISTS %s", lab->event);
  return run(lab, text);
}

/* lab->event and lab->applicant, so that the lab drops them at its end. */
static bool make_tables(struct lab *lab) {
  const struct dibs__sql_words *w = &lab->line.wire->engine->words;
  char text[TEXT_MAX], id[LAB_KEY_MAX];
  int64_t now = dibs__wall_ms();
  if (lab->tables && !drop_tables(lab)) return false;
  lab->tables = true; /* perhaps only one of them */
  snprintf(text, sizeof text,
           "CREATE TABLE %s (id %s NOT NULL PRIMARY KEY, phase %s NOT NULL, state %s NOT NULL, locked_at %s NOT NULL, "
           "created_at %s NOT NULL, updated_at %s NOT NULL, fence %s NOT NULL, certificate %s NOT NULL, "
           "late %s NOT NULL)",
           lab->event, w->name, w->name, w->number, w->number, w->number, w->number, w->number, w->number, w->number);
  if (!run(lab, text)) return false;
  snprintf(text, sizeof text, "CREATE INDEX %s_oldest ON %s (phase, locked_at, updated_at)", lab->event, lab->event);
  if (!run(lab, text)) return false;
  snprintf(text, sizeof text,
           "CREATE TABLE %s (row_id %s NOT NULL, step %s NOT NULL, node %s NOT NULL, late %s NOT NULL)", lab->applicant,
           w->name, w->number, w->number, w->number);
  bool fine = run(lab, text);
  for (uint32_t i = 1; fine && i <= PHASES_ROWS; i++) {
    dibs__phases_id(id, i);
    snprintf(text, sizeof text,
             "INSERT INTO %s (id, phase, state, locked_at, created_at, updated_at, fence, certificate, late) VALUES "
             "('%s', 'Creating', 0, 0, %" PRId64 ", %" PRId64 ", 0, 0, 0)",
             lab->event, id, now, now + i);
    fine = run(lab, text);
  }
  return fine;
}

/* ---- Nodes ---- */

static void kill_node(struct scene *s, uint32_t node) {
  if (!s->pid[node]) return;
  kill(s->pid[node], SIGKILL);
  while (waitpid(s->pid[node], NULL, 0) < 0 && errno == EINTR) continue;
  s->pid[node] = 0;
}

/* false: a node has a trouble or has ended, the time is over, or the lab ends. */
static bool is_well(struct scene *s, dibs__tick by, const char *what) {
  const char *title = methods[s->method].title;
  if (dibs__lab_ended(s->lab)) return false;
  if (atomic_load(&s->page->troubled) == 2) return dibs__lab_fail(s->lab, "%s: %s", title, s->page->why);
  for (uint32_t i = 0; i < PHASES_NODES; i++) {
    if (!s->pid[i] || waitpid(s->pid[i], NULL, WNOHANG) != s->pid[i]) continue;
    s->pid[i] = 0;
    return dibs__lab_fail(s->lab, "%s: node %u ended too early", title, i + 1);
  }
  return dibs__tick_before(dibs__tick_now(), by) || dibs__lab_fail(s->lab, "%s: %s took too long", title, what);
}

static bool await(struct scene *s, dibs__word *word, uint32_t least, int64_t ms, const char *what) {
  dibs__tick by = dibs__tick_add_ms(dibs__tick_now(), ms);
  for (;;) {
    uint32_t now = atomic_load(word);
    if (now >= least) return true;
    if (!is_well(s, by, what)) return false;
    dibs__word_wait(word, now, dibs__tick_add_ms(dibs__tick_now(), LOOK_MS), true);
  }
}

static void set_word(dibs__word *word) {
  atomic_store(word, 1);
  dibs__word_wake(word, INT32_MAX, true);
}

static bool start_nodes(struct scene *s) {
  struct lab *lab = s->lab;
  char verb[] = "phases", fd[16], node[16];
  if (!(s->page = dibs__lab_shared_make(lab, sizeof *s->page, &s->fd))) return false;
  s->page->method = s->method;
  s->page->timeout_ms = lab->ttl_ms;
  snprintf(s->page->rows, sizeof s->page->rows, "%s", lab->event);
  snprintf(s->page->effects, sizeof s->page->effects, "%s", lab->applicant);
  snprintf(fd, sizeof fd, "%d", s->fd);
  for (uint32_t i = 0; i < PHASES_NODES; i++) {
    snprintf(node, sizeof node, "%u", i);
    if (!dibs__lab_spawn(lab->uri, (char *[]){verb, fd, node, NULL}, &s->pid[i], lab->why, sizeof lab->why))
      return false;
  }
  return await(s, &s->page->ready, PHASES_NODES, START_MS, "the start of the nodes");
}

/* ---- The scene ---- */

static bool kill_one(struct scene *s) {
  struct phases_slot *slot = &s->page->slot[PHASES_KILLED];
  char id[LAB_KEY_MAX], text[TEXT_MAX];
  if (!await(s, &slot->held, 1, SCENE_MS, "the first steps")) return false;
  kill_node(s, PHASES_KILLED);
  s->killed = dibs__tick_now();
  atomic_store(&s->page->killed_row, slot->row);
  dibs__phases_id(id, slot->row);
  snprintf(text, sizeof text, "node 1: has the effect of '%s' of %s", dibs__phases_steps[slot->step], id);
  add_step(s, 0, LAB_PLAIN, text, s->method == PHASES_DIBS ? "OK, with the row's next step" : "OK");
  add_step(s, 0, LAB_PLAIN, "node 1: SIGKILL",
           s->method == PHASES_DIBS ? "before the end of its claim" : "before it writes the row");
  return true;
}

/* A process that is stopped inside of a transaction keeps SQLite's lock: then it goes on for a moment. */
static bool is_free(struct lab *lab) {
  char text[TEXT_MAX];
  struct dibs__result result = {0};
  snprintf(text, sizeof text, "UPDATE %s SET late = late WHERE id = ''", lab->event);
  dibs__tick by = dibs__tick_add_ms(dibs__tick_now(), PROBE_MS);
  bool fine = lab->server || dibs__lab_run_sql_by(&lab->line, text, NULL, 0, by, false) == DIBS__SQL_OK;
  if (fine || !dibs__sql_dead(lab->line.wire)) return fine;
  dibs__lab_line_close(&lab->line);
  if (dibs__lab_line_open(lab->connection, &lab->line, &result) != DIBS_OK)
    (void)dibs__lab_fail(lab, "%s", result.text);
  return false;
}

static bool stop_one(struct scene *s) {
  struct phases_slot *slot = &s->page->slot[PHASES_STOPPED];
  char text[TEXT_MAX];
  if (!await(s, &slot->held, 1, SCENE_MS, "the first steps")) return false;
  for (dibs__tick by = dibs__tick_add_ms(dibs__tick_now(), SCENE_MS);;) {
    kill(s->pid[PHASES_STOPPED], SIGSTOP);
    if (is_free(s->lab)) break;
    kill(s->pid[PHASES_STOPPED], SIGCONT);
    if (!s->lab->line.wire || !is_well(s, by, "to stop a node")) return false;
    dibs__nap_ms(LOOK_MS);
  }
  s->step = slot->step;
  dibs__phases_id(s->id, slot->row);
  snprintf(text, sizeof text, "node 2: SIGSTOP in the middle of '%s' of %s", dibs__phases_steps[s->step], s->id);
  add_step(s, 0, LAB_PLAIN, text, "");
  return true;
}

/* The user: what is ready is to be deleted. */
static bool request_deletions(struct lab *lab) {
  char text[TEXT_MAX];
  snprintf(text, sizeof text, "UPDATE %s SET phase = 'Deleting', updated_at = %" PRId64 " WHERE phase = 'Ready'",
           lab->event, dibs__wall_ms());
  return run(lab, text);
}

static void show_progress(struct scene *s) {
  uint64_t effects = 0;
  for (uint32_t i = 0; i < PHASES_NODES; i++) effects += atomic_load(&s->page->slot[i].effects);
  dibs__lab_report_progress(s->lab, methods[s->method].title, PHASES_NODES,
                            (dibs__tick_now().ns - s->from.ns) / DIBS__NS_PER_MS, 0, effects, 0);
}

/* Until the statement gives `wanted` or more. */
static bool await_number(struct scene *s, const char *text, int64_t wanted, const char *what) {
  dibs__tick by = dibs__tick_add_ms(dibs__tick_now(), SCENE_MS + 4 * s->lab->ttl_ms);
  for (int64_t got = 0;; dibs__nap_ms(LOOK_MS)) {
    if (!request_deletions(s->lab) || !number(s->lab, text, &got)) return false;
    if (got >= wanted) return true;
    if (!is_well(s, by, what)) return false;
    show_progress(s);
  }
}

static bool await_late_write(struct scene *s) {
  struct phases_slot *slot = &s->page->slot[PHASES_STOPPED];
  dibs__tick by = dibs__tick_add_ms(dibs__tick_now(), SCENE_MS);
  uint32_t refused = atomic_load(&slot->refused);
  char text[TEXT_MAX];
  set_word(&slot->release);
  kill(s->pid[PHASES_STOPPED], SIGCONT);
  for (; !atomic_load(&slot->late_over); dibs__nap_ms(LOOK_MS))
    if (!is_well(s, by, "the late write")) return false;
  bool was_refused = atomic_load(&slot->refused) > refused;
  snprintf(text, sizeof text, "node 2: SIGCONT; it has the effect of '%s' and writes %s", dibs__phases_steps[s->step],
           s->id);
  if (s->method == PHASES_DIBS)
    add_step(s, 0, was_refused ? LAB_GOOD : LAB_BAD, text, was_refused ? "refused, both" : "accepted");
  else
    add_step(s, 0, LAB_EXPECTED, text,
             was_refused ? "the effect happens a second time; the row is refused"
                         : "the effect happens a second time; the row is overwritten");
  return true;
}

static bool others_continue(struct scene *s) {
  struct lab *lab = s->lab;
  char text[TEXT_MAX], does[TEXT_MAX];
  snprintf(text, sizeof text, "SELECT COUNT(*) FROM %s WHERE row_id = '%s' AND step = %u", lab->applicant, s->id,
           s->step);
  set_word(&s->page->join);
  add_step(s, 1, LAB_PLAIN, "nodes 3 and 4 join", "");
  if (!await_number(s, text, 1, "the step of the stopped node")) return false;
  snprintf(does, sizeof does, "another node claims %s and does '%s'", s->id, dibs__phases_steps[s->step]);
  add_step(s, 1, LAB_PLAIN, does, "OK");
  if (!await_late_write(s)) return false;
  snprintf(text, sizeof text, "SELECT COUNT(*) FROM %s WHERE phase = 'Deleted' AND locked_at <= 0", lab->event);
  if (!await_number(s, text, PHASES_ROWS, "the work")) return false;
  int64_t at = atomic_load(&s->page->continued_ns);
  s->continues_ms = at > s->killed.ns ? (at - s->killed.ns) / DIBS__NS_PER_MS : -1;
  snprintf(does, sizeof does, "the row of node 1 was claimed %" PRId64 " ms after the SIGKILL", s->continues_ms);
  add_step(s, 1, LAB_PLAIN, does, "");
  return true;
}

/* ---- The results ---- */

static bool count(struct scene *s, struct counted *c) {
  struct lab *lab = s->lab;
  char text[TEXT_MAX];
  int64_t late = 0;
  snprintf(text, sizeof text, "SELECT COUNT(*) FROM %s WHERE phase = 'Deleted' AND state = %d", lab->event,
           PHASES_STEPS);
  if (!number(lab, text, &c->done)) return false;
  snprintf(text, sizeof text, "SELECT COUNT(*) FROM %s", lab->applicant);
  if (!number(lab, text, &c->effects)) return false;
  snprintf(text, sizeof text, "SELECT COUNT(*) FROM (SELECT DISTINCT row_id, step FROM %s) d", lab->applicant);
  if (!number(lab, text, &c->distinct)) return false;
  snprintf(text, sizeof text, "SELECT COUNT(*) FROM %s WHERE late > 0", lab->applicant);
  if (!number(lab, text, &late)) return false;
  snprintf(text, sizeof text, "SELECT late FROM %s WHERE late > 0", lab->event);
  if (!run(lab, text)) return false;
  const struct dibs__sql_wire *wire = lab->line.wire;
  c->late = late;
  for (size_t i = 0; i < wire->engine->rows(wire, 0); i++) c->late += dibs__sql_cell_number(wire, 0, i, 0);
  return true;
}

static bool judge(struct scene *s, struct lab_table *table, struct lab_series *bar) {
  struct lab_sheet *sheet = &s->lab->sheet;
  const struct method *method = &methods[s->method];
  double ms = (double)((dibs__tick_now().ns - s->from.ns) / DIBS__NS_PER_MS);
  struct counted c = {0};
  uint32_t waits = 0, refused = 0;
  if (!count(s, &c)) return false;
  for (uint32_t i = 0; i < PHASES_NODES; i++) {
    waits += atomic_load(&s->page->slot[i].waits);
    refused += atomic_load(&s->page->slot[i].refused);
  }
  int64_t should = PHASES_ROWS * PHASES_STEPS, twice = c.effects - c.distinct;
  bool right = c.done == PHASES_ROWS && c.effects == should && twice == 0 && c.late == 0 && s->continues_ms >= 0;
  enum lab_mood mood = right ? LAB_GOOD : method->promised || s->lab->strict ? LAB_BAD : LAB_EXPECTED;
  if (right && !method->promised) mood = LAB_PLAIN;
  if (mood == LAB_BAD) sheet->broken = true;
  dibs__lab_put_text(sheet, table, mood,
                     mood == LAB_GOOD       ? "correct"
                     : mood == LAB_EXPECTED ? "twice, as expected"
                     : mood == LAB_PLAIN    ? "did not break this time"
                                            : "BROKEN");
  dibs__lab_put_text(sheet, table, LAB_PLAIN, method->title);
  dibs__lab_put(sheet, table, PHASES_ROWS);
  dibs__lab_put(sheet, table, (double)c.done);
  dibs__lab_put(sheet, table, (double)c.effects);
  dibs__lab_put(sheet, table, (double)should);
  dibs__lab_put(sheet, table, (double)twice);
  if (twice) dibs__lab_mood(table, mood);
  dibs__lab_put(sheet, table, (double)c.late);
  if (c.late) dibs__lab_mood(table, mood);
  dibs__lab_put(sheet, table, refused);
  dibs__lab_put(sheet, table, s->continues_ms < 0 ? (double)NAN : (double)s->continues_ms);
  dibs__lab_put(sheet, table, waits);
  dibs__lab_put(sheet, table, ms);
  dibs__lab_point(sheet, bar, 0, (double)twice);
  if (bar && mood != LAB_GOOD) bar->mood = mood;
  return true;
}

/* ---- The experiment ---- */

static bool perform(struct scene *s, struct lab_table *table, struct lab_plot *plot) {
  struct lab_sheet *sheet = &s->lab->sheet;
  const struct method *method = &methods[s->method];
  s->timeline = dibs__lab_timeline(sheet, method->key, method->title, method->text, "nodes 1 and 2", "the other nodes");
  bool fine = make_tables(s->lab) && start_nodes(s);
  s->from = dibs__tick_now();
  if (fine) {
    set_word(&s->page->begin);
    fine = kill_one(s) && stop_one(s) && others_continue(s);
  }
  for (uint32_t i = 0; i < PHASES_NODES; i++) kill_node(s, i);
  fine = fine && judge(s, table, dibs__lab_series(sheet, plot, method->title, LAB_PLAIN));
  dibs__lab_shared_drop(s->page, sizeof *s->page, s->fd);
  return fine;
}

bool dibs__lab_phases(struct lab *lab) {
  struct lab_sheet *s = &lab->sheet;
  bool fine = true;
  s->experiment = "phases";
  if (!lab->connection)
    return dibs__lab_fail(lab, "this store has no SQL: the experiment has its rows in a table of SQLite, PostgreSQL, "
                               "MariaDB or MySQL");
  dibs__lab_title(
      s, "Rows that nodes take from phase to phase",
      "Gateways and domains are created and deleted step by step, by nodes that claim their rows. One node is "
      "killed after the effect of a step. Another one is stopped in the middle of a step until "
      "another node has done this step, and then writes late. Each step must have its effect once.");
  dibs__lab_fact_number(s, "ttl_ms", "The time of a claim", (double)lab->ttl_ms, "ms");
  dibs__lab_fact_number(s, "nodes", "Nodes", PHASES_NODES, "");
  dibs__lab_fact_number(s, "certificate_ms", "A gateway waits for its certificate", PHASES_CERTIFICATE_MS, "ms");
  struct lab_table *table = dibs__lab_table(s, "phases", "Results", "", columns, sizeof columns / sizeof *columns);
  struct lab_plot *plot = dibs__lab_plot(s, "twice", LAB_BARS, "Effects that happened again", "There must be none.");
  lab->steps = METHODS;
  for (size_t i = 0; fine && i < METHODS && !dibs__lab_ended(lab); i++) {
    struct scene scene = {.lab = lab, .method = (enum phases_method)i, .fd = -1};
    lab->step++;
    fine = perform(&scene, table, plot);
    if (fine) dibs__lab_note(s, "%s: %s.", methods[i].title, methods[i].text);
  }
  if (fine)
    dibs__lab_note(s, "The effects are rows of the same database. An effect elsewhere needs an id of its step, or a "
                      "check of the fence there: a transaction of this database does not reach it.");
  return fine || dibs__lab_ended(lab);
}
