/* SPDX-License-Identifier: MIT */
/* Sessions and their steps.  Each session is a thread with a store handle and a connection of its own. */
#include "isolation.h"

#include "dibs.h"

#include <stdlib.h>
#include <string.h>

/* How long a step may take before it counts as waiting for another; how long the whole permutation may take. */
enum { WAITS_MS = 120, STUCK_MS = 20000, ONCE_MS = 15000 };

struct session {
  struct play *play;
  int nr;
  dibs__thread *thread;
  dibs__word told; /* increases for each step, and at the end */
  uint32_t served; /* the last value of it that the thread has seen */
  struct step *next;
  bool ending;
  dibs_store *store;
  struct lab_line line;
  dibs_lease *leases[SESSIONS_MAX]; /* of the permutation, created as needed */
  char version[DIBS_VERSION_MAX + 1], read[TEXT_MAX];
  struct step *ends_once; /* the step that ended what `once` began */
  bool runs_once;
};

struct play {
  struct spec *spec;
  const char *uri;
  struct lab_connection *connection;
  struct lab_line line;
  dibs_store *store; /* created dibs' own tables */
  dibs_table *table;
  char own[8][TEXT_MAX]; /* of the table's declaration */
  struct session sessions[SESSIONS_MAX];
  uint32_t nr; /* of the permutation */
};

/* ---- Words ---- */

static size_t split(char *text, char *words[], size_t max) {
  size_t count = 0;
  for (char *at = text + strspn(text, " "); *at && count < max; at += strspn(at, " ")) {
    words[count++] = at;
    at += strcspn(at, " ");
    if (*at && count < max) *at++ = '\0';
  }
  return count;
}

/* Keys of dibs' own tables outlive a permutation, so each permutation has its own. */
static void key_of(const struct session *s, const char *word, char *to, size_t size) {
  if (s->play->table)
    snprintf(to, size, "%s", word);
  else
    snprintf(to, size, "iso/%u/%u/%s", dibs__process_id(), s->play->nr, word);
}

static void claim_of(const struct session *s, const char *word, char *to, size_t size) {
  snprintf(to, size, "%u-%u-%s", dibs__process_id(), s->play->nr, word);
}

/* ---- Steps ---- */

static void answer(struct step *step, dibs_status status, const char *why) {
  step->status = status;
  if (status != DIBS_OK) snprintf(step->why, sizeof step->why, "%.390s", why);
  atomic_store(&step->done, 1);
  dibs__word_wake(&step->done, UINT32_MAX, false);
}

static void do_sql(struct session *s, struct step *step, const char *text) {
  enum dibs__sql_rc end = dibs__lab_run_sql(&s->line, text, NULL, 0);
  const struct dibs__sql_wire *wire = s->line.wire;
  dibs_status status = DIBS_OK;
  step->deadlock = end != DIBS__SQL_OK && wire->trouble == DIBS__SQL_DEADLOCK;
  if (end != DIBS__SQL_OK) status = wire->trouble == DIBS__SQL_TWICE ? DIBS_REPLAY : DIBS_CONFLICT;
  if (end == DIBS__SQL_OK && wire->engine->rows(wire, 0) > 0) {
    struct dibs__sql_value cell = wire->engine->cell(wire, 0, 0, 0, DIBS__SQL_TEXT);
    if (cell.kind == DIBS__SQL_TEXT) snprintf(step->got, sizeof step->got, "%.*s", (int)cell.len, cell.p);
  }
  answer(step, status, wire->message);
}

static dibs_lease *lease_of(struct session *s, const char *name, dibs_error *error) {
  char id[33];
  error->status = DIBS_INVALID;
  for (size_t i = 0; i < s->play->spec->lease_count; i++) {
    const struct lease_of *known = &s->play->spec->leases[i];
    if (strcmp(known->name, name) != 0) continue;
    error->status = DIBS_OK;
    snprintf(id, sizeof id, "%016x%016x", s->play->nr, (unsigned)(i + 1));
    if (!s->leases[i] &&
        dibs_lease_adopt(s->store, "iso", id, (dibs_fence){known->fence}, NULL, &s->leases[i], error) != DIBS_OK)
      return NULL;
    return s->leases[i];
  }
  return NULL;
}

static void drop_leases(struct session *s) {
  for (size_t i = 0; i < SESSIONS_MAX; i++) {
    if (s->leases[i] && dibs_lease_detach(s->leases[i], NULL) != DIBS_OK) printf("# a lease was not released\n");
    dibs_lease_free(s->leases[i]);
    s->leases[i] = NULL;
  }
}

static void keep_record(struct session *s, struct step *step, dibs_record *record) {
  if (!record) return;
  snprintf(s->version, sizeof s->version, "%s", record->version ? record->version : "");
  snprintf(s->read, sizeof s->read, "%s", record->count && record->values[0].data ? record->values[0].data : "");
  snprintf(step->got, sizeof step->got, "%s", s->read);
  dibs_record_free(record);
}

static void do_get(struct session *s, struct step *step, const char *key, const char *lease_name) {
  dibs_error error = {.status = DIBS_OK};
  dibs_record *record = NULL;
  dibs_record_options options = {.size = sizeof options, .table = s->play->table};
  if (lease_name) options.lease = lease_of(s, lease_name, &error);
  dibs_status status = error.status;
  if (status == DIBS_OK) status = dibs_record_get(s->store, key, &options, &record, &error);
  keep_record(s, step, record);
  answer(step, status, error.text);
}

/* `*` means the content that was read. */
static void value_of(const struct session *s, const char *from, char *to, size_t size) {
  size_t len = 0;
  for (; *from && len + 1 < size; from++) {
    if (*from == '*')
      len += (size_t)snprintf(to + len, size - len, "%s", s->read);
    else
      to[len++] = *from;
  }
  to[len < size ? len : size - 1] = '\0';
}

static void do_put(struct session *s, struct step *step, const char *key, const char *lease_name, const char *text) {
  char value[TEXT_MAX];
  dibs_error error = {.status = DIBS_OK};
  dibs_record_options options = {.size = sizeof options, .table = s->play->table};
  dibs_record_result result = {.size = sizeof result};
  value_of(s, text, value, sizeof value);
  if (lease_name)
    options.lease = lease_of(s, lease_name, &error);
  else
    options.if_version = s->version;
  dibs_value v = {value, strlen(value)};
  dibs_status status = error.status;
  if (status == DIBS_OK) status = dibs_record_put(s->store, key, &v, 1, &options, &result, &error);
  snprintf(step->got, sizeof step->got, "%s", status == DIBS_OK ? value : result.version);
  answer(step, status, error.text);
}

static dibs_strategy strategy_of(const char *name) {
  static const char *const names[] = {"coalesced", "atomic", "pessimistic", "optimistic", "named", "fenced"};
  for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
    if (strcmp(names[i], name) == 0) return (dibs_strategy)i;
  return DIBS_COALESCED;
}

static void do_stock(struct session *s, struct step *step, const char *key, const char *amount, const char *claim,
                     const char *strategy) {
  char id[64];
  dibs_error error = {.status = DIBS_OK};
  dibs_stock_options options = {.size = sizeof options, .table = s->play->table};
  dibs_stock_result result = {.size = sizeof result};
  dibs_status status;
  claim_of(s, claim, id, sizeof id);
  if (amount) {
    options.strategy = strategy_of(strategy);
    options.claim = id;
    status = dibs_stock_take(s->store, key, strtoll(amount, NULL, 10), &options, &result, &error);
  } else {
    status = dibs_stock_give(s->store, key, id, &options, &result, &error);
  }
  snprintf(step->got, sizeof step->got, "%lld", (long long)result.got);
  answer(step, status, error.text);
}

/* ---- Once: its work is the following steps ---- */

static struct step *next_step(struct session *s);
static void do_step(struct session *s, struct step *step);

struct once {
  struct session *s;
  struct step *begun;
};

static dibs_status work(dibs_lease *lease, char **text, size_t *length, void *user) {
  struct once *once = user;
  struct session *s = once->s;
  (void)lease;
  s->runs_once = true;
  s->ends_once = NULL;
  answer(once->begun, DIBS_OK, "");
  once->begun = NULL;
  while (!s->ends_once) {
    struct step *step = next_step(s);
    if (!step) return DIBS_CANCELLED;
    do_step(s, step);
  }
  s->runs_once = false;
  if (strncmp(s->ends_once->words, "answer ", 7) != 0) return DIBS_CONFLICT;
  *text = strdup(s->ends_once->words + 7);
  *length = *text ? strlen(*text) : 0;
  return *text ? DIBS_OK : DIBS_NO_MEMORY;
}

static void do_once(struct session *s, struct step *step, const char *key) {
  struct once once = {s, step};
  dibs_error error = {.status = DIBS_OK};
  dibs_once_options options = {.size = sizeof options, .wait_ms = ONCE_MS};
  char *text = NULL;
  size_t length = 0;
  dibs_status status = dibs_once(s->store, key, &options, work, &once, &text, &length, &error);
  struct step *last = once.begun ? once.begun : s->ends_once;
  s->runs_once = false;
  s->ends_once = NULL;
  if (last) {
    snprintf(last->got, sizeof last->got, "%s", text ? text : "");
    answer(last, status, error.text);
  }
  free(text);
}

static void do_step(struct session *s, struct step *step) {
  char copy[TEXT_MAX], key[TEXT_MAX], *words[6] = {NULL};
  if (strncmp(step->words, "sql ", 4) == 0) {
    do_sql(s, step, step->words + 4);
    return;
  }
  spec_copy(copy, sizeof copy, step->words);
  size_t count = split(copy, words, 6);
  const char *verb = count ? words[0] : "";
  key_of(s, count > 1 ? words[1] : "", key, sizeof key);
  if (strcmp(verb, "get") == 0 && count == 2)
    do_get(s, step, key, NULL);
  else if (strcmp(verb, "seal") == 0 && count == 3)
    do_get(s, step, key, words[2]);
  else if (strcmp(verb, "put") == 0 && count == 3)
    do_put(s, step, key, NULL, words[2]);
  else if (strcmp(verb, "save") == 0 && count == 4)
    do_put(s, step, key, words[2], words[3]);
  else if (strcmp(verb, "take") == 0 && count >= 4)
    do_stock(s, step, key, words[2], words[3], count > 4 ? words[4] : "coalesced");
  else if (strcmp(verb, "give") == 0 && count == 3)
    do_stock(s, step, key, NULL, words[2], NULL);
  else if (strcmp(verb, "once") == 0 && count == 2)
    do_once(s, step, key);
  else if ((strcmp(verb, "answer") == 0 || strcmp(verb, "fail") == 0) && s->runs_once)
    s->ends_once = step; /* answered when the running call has ended */
  else
    answer(step, strcmp(verb, "answer") == 0 || strcmp(verb, "fail") == 0 ? DIBS_NOT_FOUND : DIBS_INVALID,
           "no such step");
}

/* ---- Sessions ---- */

/* NULL: the session ends. */
static struct step *next_step(struct session *s) {
  for (;;) {
    uint32_t told = atomic_load(&s->told);
    if (told != s->served) {
      s->served = told;
      return s->ending ? NULL : s->next;
    }
    dibs__word_wait(&s->told, told, DIBS__TICK_NEVER, false);
  }
}

static void serve(void *arg) {
  struct session *s = arg;
  for (struct step *step; (step = next_step(s));) do_step(s, step);
}

/* The previous step of this session has answered, or this is the first: no other thread writes `next`. */
static void hand_over_step(struct session *s, struct step *step) {
  s->next = step;
  atomic_fetch_add(&s->told, 1);
  dibs__word_wake(&s->told, 1, false);
}

static bool wait_for(struct step *step, int64_t ms) {
  dibs__tick by = dibs__tick_add_ms(dibs__tick_now(), ms);
  while (!atomic_load(&step->done))
    if (!dibs__word_wait(&step->done, 0, by, false)) return atomic_load(&step->done);
  return true;
}

static bool run_setup(struct play *play, const struct lines *lines, bool must) {
  for (size_t i = 0; i < lines->count; i++) {
    if (dibs__lab_run_sql(&play->line, lines->text[i], NULL, 0) == DIBS__SQL_OK) continue;
    if (must) printf("# %s: %s\n", lines->text[i], play->line.wire->message);
    if (must) return false;
  }
  return true;
}

static bool open_session(struct session *s) {
  struct dibs__result reported;
  dibs_error error;
  if (dibs_open(s->play->uri, NULL, &s->store, &error) != DIBS_OK) {
    printf("# %s\n", error.text);
    return false;
  }
  if (dibs__lab_line_open(s->play->connection, &s->line, &reported) != DIBS_OK) {
    printf("# %s\n", reported.text);
    return false;
  }
  s->thread = dibs__thread_start("session", serve, s);
  return s->thread != NULL;
}

static void close_session(struct session *s) {
  s->ending = true;
  atomic_fetch_add(&s->told, 1);
  dibs__word_wake(&s->told, 1, false);
  dibs__thread_join(s->thread);
  drop_leases(s);
  dibs__lab_line_close(&s->line);
  dibs_close(s->store);
}

/* ---- Plays ---- */

static bool declare(struct play *play) {
  char copy[sizeof play->spec->table], *words[24];
  dibs_table_options o = {.size = sizeof o};
  dibs_error error;
  static const struct {
    const char *key;
    size_t at;
  } keys[] = {{"table", offsetof(dibs_table_options, table)},
              {"key", offsetof(dibs_table_options, key)},
              {"version", offsetof(dibs_table_options, version)},
              {"fence", offsetof(dibs_table_options, fence)},
              {"owner", offsetof(dibs_table_options, owner)},
              {"columns", offsetof(dibs_table_options, columns)},
              {"used", offsetof(dibs_table_options, used)},
              {"limit", offsetof(dibs_table_options, limit)},
              {"claims", offsetof(dibs_table_options, claims)},
              {"claim", offsetof(dibs_table_options, claim)},
              {"claim_stock", offsetof(dibs_table_options, claim_stock)},
              {"claim_amount", offsetof(dibs_table_options, claim_amount)},
              {"claim_given", offsetof(dibs_table_options, claim_given)}};
  spec_copy(copy, sizeof copy, play->spec->table);
  size_t count = split(copy, words, 24);
  for (size_t i = 0; i < count; i++) {
    char *equals = strchr(words[i], '=');
    if (!equals) return false;
    *equals = '\0';
    for (size_t k = 0; k < sizeof keys / sizeof keys[0]; k++)
      if (strcmp(keys[k].key, words[i]) == 0) *(const char **)(void *)((char *)&o + keys[k].at) = equals + 1;
  }
  if (count == 0) return true;
  if (dibs_table_declare(&o, &play->table, &error) == DIBS_OK) return true;
  printf("# %s\n", error.text);
  return false;
}

struct play *play_new(struct spec *spec, const char *uri) {
  struct play *play = calloc(1, sizeof *play);
  struct dibs__result reported;
  dibs_error error = {.text = ""};
  if (!play) return NULL;
  play->spec = spec;
  play->uri = uri;
  bool fine = dibs_open(uri, NULL, &play->store, &error) == DIBS_OK;
  if (!fine) printf("# %s\n", error.text);
  fine = fine && declare(play);
  if (fine && dibs__lab_connection_open(uri, &play->connection, &reported) != DIBS_OK) fine = false;
  if (fine && dibs__lab_line_open(play->connection, &play->line, &reported) != DIBS_OK) fine = false;
  for (size_t i = 0; i < spec->session_count && fine; i++) {
    play->sessions[i].play = play;
    play->sessions[i].nr = (int)i;
    fine = open_session(&play->sessions[i]);
  }
  if (fine) return play;
  play_free(play);
  return NULL;
}

void play_free(struct play *play) {
  for (size_t i = 0; i < SESSIONS_MAX; i++)
    if (play->sessions[i].store) close_session(&play->sessions[i]);
  if (play->line.wire) (void)run_setup(play, &play->spec->teardown, false);
  dibs__lab_line_close(&play->line);
  dibs__lab_connection_close(play->connection);
  dibs_table_free(play->table);
  dibs_close(play->store);
  free(play);
}

const char *play_engine(const struct play *play) {
  return play->line.wire->engine->name;
}

bool play_value(struct play *play, const char *sql, char *to, size_t size) {
  bool fine = dibs__lab_run_sql(&play->line, sql, NULL, 0) == DIBS__SQL_OK;
  snprintf(to, size, "%s", fine ? "" : play->line.wire->message);
  if (!fine || play->line.wire->engine->rows(play->line.wire, 0) == 0) return fine;
  struct dibs__sql_value cell = play->line.wire->engine->cell(play->line.wire, 0, 0, 0, DIBS__SQL_TEXT);
  if (cell.kind == DIBS__SQL_TEXT) snprintf(to, size, "%.*s", (int)cell.len, cell.p);
  return true;
}

/* The first due step whose session does not wait; -1: all sessions wait. */
static int next_due(const struct play *play, const int order[], size_t count, const bool taken[]) {
  bool blocked[SESSIONS_MAX] = {false};
  for (size_t i = 0; i < count; i++) {
    const struct step *step = &play->spec->steps[order[i]];
    if (taken[i] && !atomic_load(&step->done)) blocked[step->session] = true;
  }
  for (size_t i = 0; i < count; i++)
    if (!taken[i] && !blocked[play->spec->steps[order[i]].session]) return (int)i;
  return -1;
}

static bool any_left(const bool taken[], size_t count) {
  for (size_t i = 0; i < count; i++)
    if (!taken[i]) return true;
  return false;
}

static bool run_steps(struct play *play, const int order[], size_t count) {
  bool taken[STEPS_MAX] = {false};
  dibs__tick by = dibs__tick_add_ms(dibs__tick_now(), STUCK_MS);
  while (any_left(taken, count)) {
    int at = next_due(play, order, count, taken);
    if (at < 0 && !dibs__tick_before(dibs__tick_now(), by)) return false;
    if (at < 0) {
      dibs__nap_ms(1);
      continue;
    }
    struct step *step = &play->spec->steps[order[at]];
    taken[at] = true;
    hand_over_step(&play->sessions[step->session], step);
    (void)wait_for(step, WAITS_MS);
  }
  for (size_t i = 0; i < count; i++) {
    if (wait_for(&play->spec->steps[order[i]], STUCK_MS)) continue;
    printf("# %s never answered\n", play->spec->steps[order[i]].name);
    return false;
  }
  return true;
}

bool play_run(struct play *play, const int order[], size_t count) {
  static uint32_t permutations;
  play->nr = ++permutations;
  for (size_t i = 0; i < play->spec->step_count; i++) {
    struct step *step = &play->spec->steps[i];
    atomic_store(&step->done, 0);
    step->got[0] = step->why[0] = '\0';
    step->deadlock = false;
  }
  for (size_t i = 0; i < play->spec->session_count; i++) {
    drop_leases(&play->sessions[i]);
    play->sessions[i].version[0] = play->sessions[i].read[0] = '\0';
  }
  (void)run_setup(play, &play->spec->teardown, false);
  return run_setup(play, &play->spec->setup, true) && run_steps(play, order, count);
}
