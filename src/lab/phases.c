/* SPDX-License-Identifier: MIT */
/*
 * Phases: gateways and domains, rows of a table of the user's own, are created and deleted step by step by nodes, each
 * a process.  One node is killed between the effect of a step and its end.  Another one is stopped in the middle of a
 * step, until a third one has done this step, and then writes late.  Each step of each row has an effect, which must
 * exist once.  The same scene runs with polled claims by hand and with claims of dibs.
 */
#include "lab/phases.h"
#include "store/uri.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { START_MS = 60000, SCENE_MS = 120000, LOOK_MS = 10, TEXT_MAX = 600 };

struct method {
  const char *key;
  bool promised;
};
static const struct method methods[PHASES_METHODS] = {
    [PHASES_POLLED] = {"polled", false}, [PHASES_COMPARED] = {"compared", false}, [PHASES_DIBS] = {"dibs", true}};

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
  const struct phases_engine *engine;
  struct phases_db db;
  enum phases_method method;
  struct phases_page *page;
  int fd, pid[PHASES_NODES];
  struct lab_timeline *timeline;
  dibs__tick from, killed;
  char id[LAB_KEY_MAX]; /* the row of the stopped node */
  uint32_t step;
  int64_t continues_ms;
};

static void add_step(struct scene *s, int side, enum lab_mood mood, const char *does, const char *gets) {
  dibs__lab_step(&s->lab->sheet, s->timeline, side, mood, does, gets);
}

static const char *title_of(const struct scene *s) {
  return s->engine->title[s->method];
}

static bool is_fine(struct scene *s, dibs_status status) {
  return status == DIBS_OK || dibs__lab_fail(s->lab, "%s", s->db.why);
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
  const char *title = title_of(s);
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
  s->page->mongodb = s->engine != &dibs__phases_sql;
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

static bool stop_one(struct scene *s) {
  struct phases_slot *slot = &s->page->slot[PHASES_STOPPED];
  char text[TEXT_MAX];
  if (!await(s, &slot->held, 1, SCENE_MS, "the first steps")) return false;
  for (dibs__tick by = dibs__tick_add_ms(dibs__tick_now(), SCENE_MS);;) {
    kill(s->pid[PHASES_STOPPED], SIGSTOP);
    dibs_status status = s->engine->probe ? s->engine->probe(&s->db) : DIBS_OK;
    if (status == DIBS_OK) break;
    kill(s->pid[PHASES_STOPPED], SIGCONT); /* it keeps a lock: then it goes on for a moment */
    if (status != DIBS_HELD) return is_fine(s, status);
    if (!is_well(s, by, "to stop a node")) return false;
    dibs__nap_ms(LOOK_MS);
  }
  s->step = slot->step;
  dibs__phases_id(s->id, slot->row);
  snprintf(text, sizeof text, "node 2: SIGSTOP in the middle of '%s' of %s", dibs__phases_steps[s->step], s->id);
  add_step(s, 0, LAB_PLAIN, text, "");
  return true;
}

static void show_progress(struct scene *s) {
  uint64_t effects = 0;
  for (uint32_t i = 0; i < PHASES_NODES; i++) effects += atomic_load(&s->page->slot[i].effects);
  dibs__lab_report_progress(s->lab, title_of(s), PHASES_NODES, (dibs__tick_now().ns - s->from.ns) / DIBS__NS_PER_MS, 0,
                            effects, 0);
}

/* Until the step of the stopped node has an effect, or all rows are deleted and free. */
static bool await_count(struct scene *s, bool of_step, int64_t wanted, const char *what) {
  dibs__tick by = dibs__tick_add_ms(dibs__tick_now(), SCENE_MS + 4 * s->lab->ttl_ms);
  for (int64_t got = 0;; dibs__nap_ms(LOOK_MS)) {
    if (!is_fine(s, s->engine->request_deletions(&s->db)) ||
        !is_fine(s,
                 of_step ? s->engine->count_step(&s->db, s->id, s->step, &got) : s->engine->count_ended(&s->db, &got)))
      return false;
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
  char does[TEXT_MAX];
  set_word(&s->page->join);
  add_step(s, 1, LAB_PLAIN, "nodes 3 and 4 join", "");
  if (!await_count(s, true, 1, "the step of the stopped node")) return false;
  snprintf(does, sizeof does, "another node claims %s and does '%s'", s->id, dibs__phases_steps[s->step]);
  add_step(s, 1, LAB_PLAIN, does, "OK");
  if (!await_late_write(s)) return false;
  if (!await_count(s, false, PHASES_ROWS, "the work")) return false;
  int64_t at = atomic_load(&s->page->continued_ns);
  s->continues_ms = at > s->killed.ns ? (at - s->killed.ns) / DIBS__NS_PER_MS : -1;
  snprintf(does, sizeof does, "the row of node 1 was claimed %" PRId64 " ms after the SIGKILL", s->continues_ms);
  add_step(s, 1, LAB_PLAIN, does, "");
  return true;
}

/* ---- The results ---- */

static bool judge(struct scene *s, struct lab_table *table, struct lab_series *bar) {
  struct lab_sheet *sheet = &s->lab->sheet;
  const struct method *method = &methods[s->method];
  int64_t ms = (dibs__tick_now().ns - s->from.ns) / DIBS__NS_PER_MS;
  struct phases_counted c = {0};
  uint32_t waits = 0, refused = 0;
  if (!is_fine(s, s->engine->count(&s->db, &c))) return false;
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
  dibs__lab_put_text(sheet, table, LAB_PLAIN, title_of(s));
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
  dibs__lab_put(sheet, table, (double)ms);
  dibs__lab_point(sheet, bar, 0, (double)twice);
  if (bar && mood != LAB_GOOD) bar->mood = mood;
  return true;
}

/* ---- The experiment ---- */

/* lab->tables, so that an SQL store's are dropped when the lab closes. */
static bool make_rows(struct scene *s) {
  s->lab->tables = true; /* perhaps only one of them */
  return is_fine(s, s->engine->make(&s->db));
}

static bool open_scene(struct scene *s) {
  s->db = (struct phases_db){.engine = s->engine,
                             .uri = s->lab->uri,
                             .rows = s->lab->event,
                             .effects = s->lab->applicant,
                             .method = s->method,
                             .timeout_ms = s->lab->ttl_ms};
  return is_fine(s, dibs__phases_open(&s->db));
}

static bool perform(struct scene *s, struct lab_table *table, struct lab_plot *plot) {
  struct lab_sheet *sheet = &s->lab->sheet;
  const char *key = methods[s->method].key, *title = title_of(s);
  s->timeline = dibs__lab_timeline(sheet, key, title, s->engine->text[s->method], "nodes 1 and 2", "the other nodes");
  bool fine = open_scene(s) && make_rows(s) && start_nodes(s);
  s->from = dibs__tick_now();
  if (fine) {
    set_word(&s->page->begin);
    fine = kill_one(s) && stop_one(s) && others_continue(s);
  }
  for (uint32_t i = 0; i < PHASES_NODES; i++) kill_node(s, i);
  fine = fine && judge(s, table, dibs__lab_series(sheet, plot, title, LAB_PLAIN));
  s->engine->close(&s->db);
  dibs__lab_shared_drop(s->page, sizeof *s->page, s->fd);
  return fine;
}

/* ---- The experiment ---- */

static const struct dibs__module_part mongodb_part = {.file = "dibs-lab-mongodb.so",
                                                      .symbol = "dibs__phases_module",
                                                      .lacks = "has no documents for this experiment",
                                                      .package = "libdibs-mongodb",
                                                      .library = "libmongoc",
                                                      .head = {sizeof(struct phases_engine), PHASES_MODULE_ABI}};

const struct phases_engine *dibs__phases_mongodb(char *why, size_t size) {
  static struct dibs__module module; /* it stays loaded */
  return (const struct phases_engine *)dibs__module_load_part(&mongodb_part, &module, why, size);
}

dibs_status dibs__phases_open(struct phases_db *db) {
  struct dibs__uri parsed;
  struct dibs__result result = {0};
  dibs_status status = (dibs_status)dibs__uri_parse(db->uri, &parsed, &result);
  if (status != DIBS_OK) {
    snprintf(db->why, sizeof db->why, "%s", result.text);
    return status;
  }
  db->parsed = &parsed;
  status = db->engine->open(db);
  db->parsed = NULL;
  dibs__uri_free(&parsed);
  return status;
}

/* NULL: lab->why. */
static const struct phases_engine *find_engine(struct lab *lab) {
  if (lab->connection) return &dibs__phases_sql;
  if (strncmp(lab->uri, "mongodb://", 10) == 0 || strncmp(lab->uri, "mongodb+srv://", 14) == 0)
    return dibs__phases_mongodb(lab->why, sizeof lab->why);
  (void)dibs__lab_fail(lab, "the experiment has its rows in a table of SQLite, PostgreSQL, MariaDB or MySQL, or in a "
                            "collection of MongoDB; this store has neither");
  return NULL;
}

/* Of a store without SQL: the lab does not know its version, and does not drop what experiments make. */
static bool show_version(struct scene *s) {
  char text[128];
  bool fine = open_scene(s) && is_fine(s, s->engine->version(&s->db, text, sizeof text));
  if (fine) dibs__lab_fact(&s->lab->sheet, "engine", "Engine", "%s", text);
  s->engine->close(&s->db);
  return fine;
}

static void drop_rows(struct scene *s) {
  struct lab *lab = s->lab;
  char why[LAB_WHY_MAX];
  if (!lab->tables) return;
  snprintf(why, sizeof why, "%s", lab->why); /* perhaps of the experiment itself */
  if (lab->keep)
    dibs__lab_note(&lab->sheet, "The collections %s and %s were kept.", lab->event, lab->applicant);
  else if (!open_scene(s) || !is_fine(s, s->engine->drop(&s->db)))
    dibs__lab_note(&lab->sheet, "%s; drop the collections %s and %s by hand.", lab->why, lab->event, lab->applicant);
  s->engine->close(&s->db);
  snprintf(lab->why, sizeof lab->why, "%s", why);
}

static void put_facts(struct lab *lab) {
  struct lab_sheet *s = &lab->sheet;
  dibs__lab_title(
      s, "Rows that nodes take from phase to phase",
      "Gateways and domains are created and deleted step by step, by nodes that claim their rows. One node is "
      "killed after the effect of a step. Another one is stopped in the middle of a step until "
      "another node has done this step, and then writes late. Each step must have its effect once.");
  dibs__lab_fact_number(s, "ttl_ms", "The time of a claim", (double)lab->ttl_ms, "ms");
  dibs__lab_fact_number(s, "nodes", "Nodes", PHASES_NODES, "");
  dibs__lab_fact_number(s, "certificate_ms", "A gateway waits for its certificate", PHASES_CERTIFICATE_MS, "ms");
}

bool dibs__lab_phases(struct lab *lab) {
  struct lab_sheet *s = &lab->sheet;
  s->experiment = "phases";
  struct scene apart = {.lab = lab, .engine = find_engine(lab)};
  if (!apart.engine) return false;
  put_facts(lab);
  if (!lab->connection && !show_version(&apart)) return false;
  bool fine = true;
  struct lab_table *table = dibs__lab_table(s, "phases", "Results", "", columns, sizeof columns / sizeof *columns);
  struct lab_plot *plot = dibs__lab_plot(s, "twice", LAB_BARS, "Effects that happened again", "There must be none.");
  lab->steps = PHASES_METHODS;
  for (size_t i = 0; fine && i < PHASES_METHODS && !dibs__lab_ended(lab); i++) {
    struct scene scene = {.lab = lab, .engine = apart.engine, .method = (enum phases_method)i, .fd = -1};
    lab->step++;
    fine = perform(&scene, table, plot);
    if (fine) dibs__lab_note(s, "%s: %s.", title_of(&scene), scene.engine->text[i]);
  }
  if (!lab->connection) drop_rows(&apart);
  if (fine) dibs__lab_note(s, "%s", apart.engine->note);
  return fine || dibs__lab_ended(lab);
}
