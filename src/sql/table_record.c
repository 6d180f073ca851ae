/* SPDX-License-Identifier: MIT */
/* Records in tables of the user's: one operation after the other, each decided by its own row. */
#include "sql/table_record.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef enum dibs__sql_step step;

enum {
  AGAIN_MAX = 1000, /* beyond it something is wrong: a row that says yes to us and no to the statement */
  PAUSE_MS = 2      /* after a deadlock: who won it must come through first */
};

/* One operation. */
struct run {
  struct dibs__sql_guard *guard;
  struct dibs__sql_wire *wire;
  const struct dibs__sql_engine *engine;
  const struct dibs__table *table;
  struct dibs__record_op *op;
  bool begun; /* a transaction, or a savepoint */
  bool again;
  struct dibs__table_text text;
};

/* What a row had, as it was read. */
struct row {
  bool found, same, has_fence, has_owner;
  uint64_t fence, owner;
  char version[DIBS_VERSION_MAX + 1];
  size_t nth; /* the statement that read it */
};

/* ---- Small things ---- */

static void answer(struct run *r, dibs__status status, const char *why) {
  r->op->op.status = status;
  snprintf(r->op->why, sizeof r->op->why, "%s", why);
}

/* A single statement needs no transaction, but where it waits in somebody's, or the engine's way is to lock first. */
static bool alone(const struct run *r) {
  return !r->wire->inside && r->engine->sessions;
}

static step begin(struct run *r) {
  r->begun = true;
  return dibs__sql_begin(r->wire);
}

static step put(struct run *r) {
  return dibs__table_put(&r->text, r->wire);
}

static step go(struct run *r, bool commits) {
  step end = r->engine->go(r->wire, commits);
  if (end == DIBS__SQL_FINE && commits) {
    r->begun = false;
    r->guard->commits++;
  }
  return end;
}

static step commit(struct run *r) {
  step end = r->begun ? dibs__sql_commit(r->wire) : DIBS__SQL_FINE;
  return end == DIBS__SQL_FINE ? go(r, true) : end;
}

/* Nothing was changed. */
static step undo(struct run *r) {
  if (!r->begun) return DIBS__SQL_FINE;
  r->begun = false;
  r->wire->trouble = DIBS__SQL_ODD;
  dibs__sql_rollback(r->wire);
  return dibs__sql_dead(r->wire) ? DIBS__SQL_BROKE : DIBS__SQL_FINE;
}

static bool all_digits(const char *text, size_t len) {
  size_t from = len > 1 && text[0] == '-';
  for (size_t i = from; i < len; i++)
    if (text[i] < '0' || text[i] > '9') return false;
  return len > from && len < 20;
}

static bool same_number(const char *a, size_t a_len, const char *b, size_t b_len) {
  return all_digits(a, a_len) && all_digits(b, b_len) && strtoll(a, NULL, 10) == strtoll(b, NULL, 10);
}

/* ---- Reading a row ---- */

static struct dibs__sql_value cell(const struct run *r, const struct row *row, size_t column, enum dibs__sql_kind as) {
  return r->engine->cell(r->wire, row->nth, 0, column, as);
}

static dibs_value content(const struct run *r, const struct row *row, size_t column) {
  struct dibs__sql_value v = cell(r, row, DIBS__TABLE_FIRST + column, DIBS__SQL_TEXT);
  dibs_value none = {NULL, 0}, some = {v.p, v.len};
  return v.kind == DIBS__SQL_NULL ? none : some;
}

static void hash_row(const struct run *r, const struct row *row, char hex[65]) {
  dibs_value values[DIBS__TABLE_COLUMNS];
  for (size_t i = 0; i < r->table->column_count; i++) values[i] = content(r, row, i);
  dibs__table_hash(r->table, values, hex);
}

/* false: there is a version that we can't hold. */
static bool read_version(struct run *r, struct row *row, bool columns) {
  row->version[0] = '\0';
  if (!r->table->version) {
    if (dibs__table_computes(r->table) && columns) hash_row(r, row, row->version);
    return true;
  }
  struct dibs__sql_value v = cell(r, row, DIBS__TABLE_VERSION, DIBS__SQL_TEXT);
  if (v.kind == DIBS__SQL_NULL && r->table->version_kind == DIBS__VERSION_NUMBER) v = dibs__sql_text("0", 1);
  if (v.kind != DIBS__SQL_NULL && v.len > DIBS_VERSION_MAX) return false;
  if (v.kind != DIBS__SQL_NULL) snprintf(row->version, sizeof row->version, "%.*s", (int)v.len, v.p);
  return true;
}

/* What the nth statement read.  false: it was answered, there is no such row or it can't be one of ours. */
static bool read_row(struct run *r, size_t nth, bool columns, struct row *row) {
  *row = (struct row){.nth = nth, .found = r->engine->rows(r->wire, nth) > 0};
  if (!row->found) {
    answer(r, DIBS_NOT_FOUND, "");
    return false;
  }
  if (r->engine->rows(r->wire, nth) > 1) {
    answer(r, DIBS_INVALID, "the key of the table is not unique");
    return false;
  }
  row->has_fence = cell(r, row, DIBS__TABLE_FENCE, DIBS__SQL_NUMBER).kind != DIBS__SQL_NULL;
  row->has_owner = cell(r, row, DIBS__TABLE_OWNER, DIBS__SQL_NUMBER).kind != DIBS__SQL_NULL;
  if (row->has_fence) row->fence = (uint64_t)cell(r, row, DIBS__TABLE_FENCE, DIBS__SQL_NUMBER).number;
  if (row->has_owner) row->owner = (uint64_t)cell(r, row, DIBS__TABLE_OWNER, DIBS__SQL_NUMBER).number;
  row->same = dibs__sql_cell_number(r->wire, nth, 0, DIBS__TABLE_SAME) != 0;
  if (read_version(r, row, columns)) return true;
  answer(r, DIBS_INVALID, "the version is longer than a version may be");
  return false;
}

/* Packs what was read into the answer. */
static void hand_out(struct run *r, const struct row *row) {
  size_t count = r->table->column_count, size = 1;
  for (size_t i = 0; i < count; i++) size += content(r, row, i).length + 1;
  char *got = malloc(count * sizeof(dibs_value) + size);
  if (!got) {
    answer(r, DIBS_NO_MEMORY, "out of memory");
    return;
  }
  dibs_value *values = (dibs_value *)(void *)got;
  char *to = got + count * sizeof(dibs_value);
  for (size_t i = 0; i < count; i++) {
    dibs_value v = content(r, row, i);
    values[i] = (dibs_value){v.data ? to : NULL, v.length};
    if (!v.data) continue;
    if (v.length) memcpy(to, v.data, v.length);
    to[v.length] = '\0';
    to += v.length + 1;
  }
  r->op->got = got;
  r->op->got_len = (uint32_t)(to - got);
  r->op->seen = (dibs__fence){row->has_fence ? row->fence : 0};
  snprintf(r->op->stands, sizeof r->op->stands, "%s", row->version);
  answer(r, DIBS_OK, "");
}

/* ---- Do the guards hold? ---- */

static bool version_is(const struct run *r, const struct row *row) {
  dibs__str asked = r->op->if_version;
  if (r->table->version && r->table->version_kind == DIBS__VERSION_TIME) return row->same;
  if (dibs__str_equal(dibs__str_of(row->version, strlen(row->version)), asked)) return true;
  return r->table->version_kind == DIBS__VERSION_NUMBER &&
         same_number(row->version, strlen(row->version), asked.p, asked.len);
}

/* false: answered. */
static bool admits(struct run *r, const struct row *row) {
  struct dibs__record_op *op = r->op;
  uint32_t guards = dibs__record_guards(op);
  bool newer = row->has_fence && row->fence > op->fence.v;
  bool others = row->has_fence && row->fence == op->fence.v && r->table->owner &&
                !(row->has_owner && row->owner == dibs__id_digest(op->id));
  if ((guards & DIBS__IF_FENCE) && (newer || others)) {
    op->seen = (dibs__fence){row->fence};
    answer(r, DIBS_STALE, "");
    return false;
  }
  if ((guards & DIBS__IF_ABSENT) || ((guards & DIBS__IF_VERSION) && !version_is(r, row))) {
    snprintf(op->stands, sizeof op->stands, "%s", row->version);
    answer(r, DIBS_CONFLICT, "");
    return false;
  }
  return true;
}

/* A statement matched nothing: says why.  If it would by now, again. */
static step tell_why(struct run *r) {
  struct row row;
  bool computes = dibs__table_computes(r->table);
  dibs__table_select(&r->text, computes, false);
  step end = put(r);
  if (end == DIBS__SQL_FINE) end = go(r, false);
  if (end != DIBS__SQL_FINE) return end;
  if (read_row(r, 0, computes, &row)) r->again = admits(r, &row);
  return DIBS__SQL_FINE;
}

/* ---- Reading and sealing ---- */

static step load(struct run *r) {
  struct row row;
  dibs__table_select(&r->text, true, false);
  step end = put(r);
  if (end == DIBS__SQL_FINE) end = go(r, false);
  if (end == DIBS__SQL_FINE && read_row(r, 0, true, &row)) hand_out(r, &row);
  return end;
}

/* Raised first, then read; in one statement, or in a later one of the same packet, which sees what the lock gave. */
static step seal(struct run *r) {
  struct row row;
  bool one = r->engine->update_returning;
  bool bare = one && alone(r);
  step end = bare ? DIBS__SQL_FINE : begin(r);
  size_t nth = r->wire->put;
  dibs__table_seal(&r->text, one);
  if (end == DIBS__SQL_FINE) end = put(r);
  if (end == DIBS__SQL_FINE && !one) {
    dibs__table_select(&r->text, true, false);
    end = put(r);
  }
  if (end == DIBS__SQL_FINE) end = commit(r);
  if (end != DIBS__SQL_FINE) return end;
  bool hit = one ? r->engine->rows(r->wire, nth) > 0 : r->engine->changed(r->wire, nth) > 0;
  if (one && !hit) return tell_why(r);
  if (!read_row(r, one ? nth : nth + 1, true, &row)) return end;
  if (hit)
    hand_out(r, &row);
  else
    r->again = admits(r, &row);
  return end;
}

/* ---- Writing by one statement ---- */

/* What the version becomes is known beforehand. */
static bool next_version(const struct run *r, char *to, size_t size) {
  const struct dibs__record_op *op = r->op;
  if (!r->table->version) return true;
  if (dibs__table_hashes(r->table)) {
    dibs__table_hash(r->table, op->values, to);
    return true;
  }
  if (!(op->guards & DIBS__IF_VERSION)) return false;
  snprintf(to, size, "%lld", strtoll(op->if_version.p, NULL, 10) + 1);
  return true;
}

static step put_at_once(struct run *r) {
  struct row row;
  char next[DIBS_VERSION_MAX + 1] = "";
  bool known = next_version(r, next, sizeof next), hashes = dibs__table_hashes(r->table);
  bool returning = !known && r->engine->update_returning;
  bool bare = alone(r) && (known || returning);
  step end = bare ? DIBS__SQL_FINE : begin(r);
  size_t nth = r->wire->put;
  dibs__table_update(&r->text, hashes ? next : NULL, true, returning);
  if (end == DIBS__SQL_FINE) end = put(r);
  if (end == DIBS__SQL_FINE && !known && !returning) {
    dibs__table_select(&r->text, false, false);
    end = put(r);
  }
  if (end == DIBS__SQL_FINE) end = commit(r);
  if (end != DIBS__SQL_FINE) return end;
  bool hit = returning ? r->engine->rows(r->wire, nth) > 0 : r->engine->changed(r->wire, nth) > 0;
  if (!hit) return tell_why(r);
  if (!known && !read_row(r, returning ? nth : nth + 1, false, &row)) return end;
  snprintf(r->op->stands, sizeof r->op->stands, "%s", known ? next : row.version);
  r->op->seen = r->op->fence;
  answer(r, DIBS_OK, "");
  return end;
}

static step delete_at_once(struct run *r) {
  step end = alone(r) ? DIBS__SQL_FINE : begin(r);
  size_t nth = r->wire->put;
  dibs__table_delete(&r->text, true);
  if (end == DIBS__SQL_FINE) end = put(r);
  if (end == DIBS__SQL_FINE) end = commit(r);
  if (end != DIBS__SQL_FINE) return end;
  if (r->engine->changed(r->wire, nth) == 0) return tell_why(r);
  answer(r, DIBS_OK, "");
  return end;
}

/* ---- Writing what was locked and read ---- */

/* What a column keeps of an instant may be too coarse to see a step: then a longer one is taken. */
static step put_instant(struct run *r, const struct row *was, int64_t now_ms) {
  static const int64_t steps[] = {1, 1000, 1000000};
  struct row row;
  char version[DIBS_VERSION_MAX + 1];
  for (size_t i = 0; i < sizeof steps / sizeof steps[0]; i++) {
    if (!dibs__table_instant(was->version, now_ms, steps[i], version, sizeof version)) {
      answer(r, DIBS_INVALID, "the version column holds no instant of the form YYYY-MM-DD HH:MM:SS");
      return undo(r);
    }
    dibs__table_update(&r->text, version, false, false);
    step end = put(r);
    dibs__table_select(&r->text, false, false);
    if (end == DIBS__SQL_FINE) end = put(r);
    if (end == DIBS__SQL_FINE) end = go(r, false);
    if (end != DIBS__SQL_FINE) return end;
    if (!read_row(r, 1, false, &row)) return undo(r);
    if (row.version[0] == '\0' || strcmp(row.version, was->version) == 0) continue;
    snprintf(r->op->stands, sizeof r->op->stands, "%s", row.version);
    end = commit(r);
    if (end == DIBS__SQL_FINE) answer(r, DIBS_OK, "");
    return end;
  }
  answer(r, DIBS_INVALID, "the version column does not keep seconds; instants of a day can't be told apart");
  return undo(r);
}

/* Values that stay are those that were read. */
static void hash_merged(const struct run *r, const struct row *row, char hex[65]) {
  dibs_value values[DIBS__TABLE_COLUMNS];
  for (size_t i = 0; i < r->table->column_count; i++) {
    const dibs_value *v = &r->op->values[i];
    values[i] = !v->data && v->length == DIBS_KEEP ? content(r, row, i) : *v;
  }
  dibs__table_hash(r->table, values, hex);
}

static step put_hashed(struct run *r, const struct row *was) {
  struct row row;
  char hex[65] = "";
  bool computes = dibs__table_computes(r->table);
  if (!computes) hash_merged(r, was, hex);
  dibs__table_update(&r->text, computes ? NULL : hex, false, false);
  step end = put(r);
  dibs__table_select(&r->text, true, false);
  if (end == DIBS__SQL_FINE) end = put(r);
  if (end == DIBS__SQL_FINE) end = commit(r);
  if (end != DIBS__SQL_FINE || !read_row(r, 1, true, &row)) return end;
  snprintf(r->op->stands, sizeof r->op->stands, "%s", row.version);
  answer(r, DIBS_OK, "");
  return end;
}

static step delete_locked(struct run *r) {
  dibs__table_delete(&r->text, false);
  step end = put(r);
  if (end == DIBS__SQL_FINE) end = commit(r);
  if (end == DIBS__SQL_FINE) answer(r, DIBS_OK, "");
  return end;
}

static step ask_clock(struct run *r) {
  char text[256];
  snprintf(text, sizeof text, "SELECT %s", r->engine->now_ms);
  return r->engine->put(r->wire, text, NULL, 0);
}

static step write_locked(struct run *r) {
  struct row row;
  step end = begin(r);
  size_t nth = r->wire->put;
  dibs__table_select(&r->text, dibs__table_hashes(r->table), true);
  if (end == DIBS__SQL_FINE) end = put(r);
  if (end == DIBS__SQL_FINE) end = ask_clock(r); /* behind the lock */
  if (end == DIBS__SQL_FINE) end = go(r, false);
  if (end != DIBS__SQL_FINE) return end;
  int64_t now_ms = dibs__sql_cell_number(r->wire, nth + 1, 0, 0);
  if (!read_row(r, nth, dibs__table_hashes(r->table), &row) || !admits(r, &row)) return undo(r);
  r->op->seen = r->op->fence;
  if (r->op->op.verb == DIBS__RECORD_DROP) return delete_locked(r);
  return dibs__table_hashes(r->table) ? put_hashed(r, &row) : put_instant(r, &row, now_ms);
}

/* ---- Making a row ---- */

static step first_version(struct run *r, char *to, size_t size) {
  step end = DIBS__SQL_FINE;
  if (!r->table->version) return end;
  if (dibs__table_hashes(r->table)) {
    dibs__table_hash(r->table, r->op->values, to);
  } else if (r->table->version_kind == DIBS__VERSION_NUMBER) {
    snprintf(to, size, "1");
  } else {
    end = ask_clock(r);
    if (end == DIBS__SQL_FINE) end = go(r, false);
    if (end == DIBS__SQL_FINE) dibs__table_instant("", dibs__sql_cell_number(r->wire, 0, 0, 0), 0, to, size);
  }
  return end;
}

static step insert(struct run *r) {
  struct row row;
  char version[DIBS_VERSION_MAX + 1] = "";
  step end = first_version(r, version, sizeof version);
  if (end == DIBS__SQL_FINE) end = begin(r);
  size_t nth = r->wire->put;
  dibs__table_insert(&r->text, version);
  if (end == DIBS__SQL_FINE) end = put(r);
  dibs__table_select(&r->text, true, false); /* as the engine keeps it */
  if (end == DIBS__SQL_FINE) end = put(r);
  if (end == DIBS__SQL_FINE) end = commit(r);
  if (end != DIBS__SQL_FINE || !read_row(r, nth + 1, true, &row)) return end;
  snprintf(r->op->stands, sizeof r->op->stands, "%s", row.version);
  r->op->seen = r->op->fence;
  answer(r, DIBS_OK, "");
  return end;
}

/* The key, or another unique one, is there already. */
static step tell_who_was_first(struct run *r) {
  char words[sizeof r->wire->words];
  snprintf(words, sizeof words, "%s", r->wire->words);
  step end = undo(r);
  if (end == DIBS__SQL_FINE) end = tell_why(r);
  if (end == DIBS__SQL_FINE && r->op->op.status == DIBS_NOT_FOUND) answer(r, DIBS_INVALID, words);
  return end;
}

/* ---- One operation ---- */

static bool digits_asked(const struct dibs__record_op *op) {
  return op->if_version.len > 0 && all_digits(op->if_version.p, op->if_version.len);
}

static bool keeps_some(const struct run *r) {
  for (size_t i = 0; i < r->table->column_count; i++)
    if (!r->op->values[i].data && r->op->values[i].length == DIBS_KEEP) return true;
  return false;
}

static step write(struct run *r) {
  const struct dibs__table *table = r->table;
  bool drops = r->op->op.verb == DIBS__RECORD_DROP, versioned = (r->op->guards & DIBS__IF_VERSION) != 0;
  if (r->op->guards & DIBS__IF_ABSENT) return insert(r);
  /* What is no number is no version of that kind: no engine is asked to compare them. */
  if (versioned && table->version_kind == DIBS__VERSION_NUMBER && !digits_asked(r->op)) {
    step end = tell_why(r);
    r->again = false;
    return end;
  }
  if (drops && (!versioned || !dibs__table_computes(table))) return delete_at_once(r);
  bool instant = table->version && table->version_kind == DIBS__VERSION_TIME;
  bool hash = dibs__table_hashes(table) && (!table->version || keeps_some(r));
  return instant || hash || drops ? write_locked(r) : put_at_once(r);
}

static bool part_missing(struct run *r, const char *what) {
  snprintf(r->op->why, sizeof r->op->why, "table %.60s was declared without %s", r->table->table, what);
  r->op->op.status = DIBS_UNSUPPORTED;
  return true;
}

/* Answered without the engine. */
static bool refused(struct run *r) {
  struct dibs__record_op *op = r->op;
  uint32_t guards = dibs__record_guards(op), verb = op->op.verb;
  size_t size = 0;
  op->op.status = DIBS_INVALID;
  if (verb == DIBS__RECORD_SAVE || verb > DIBS__RECORD_DROP || op->key.len == 0 || op->op.group) return true;
  if ((guards & DIBS__IF_ABSENT) && ((guards & DIBS__IF_VERSION) || verb == DIBS__RECORD_DROP)) return true;
  if ((guards & DIBS__IF_FENCE) && op->fence.v == 0) return true;
  for (size_t i = 0; verb == DIBS__RECORD_PUT && i < r->table->column_count; i++)
    size += op->values[i].data ? op->values[i].length : 0;
  if (size > DIBS_RECORD_MAX) return true;
  if ((guards & DIBS__IF_FENCE) && !r->table->fence) return part_missing(r, "a fence column");
  if ((guards & DIBS__IF_VERSION) && !r->table->version && !dibs__table_computes(r->table))
    return part_missing(r, "a version column");
  op->op.status = DIBS_UNKNOWN;
  return false;
}

static step act(struct run *r) {
  switch (r->op->op.verb) {
  case DIBS__RECORD_LOAD:
    return load(r);
  case DIBS__RECORD_SEAL:
    return seal(r);
  default:
    return write(r);
  }
}

static dibs__status status_of(enum dibs__sql_trouble trouble) {
  switch (trouble) {
  case DIBS__SQL_DENIED:
    return DIBS_DENIED;
  case DIBS__SQL_DAMAGED:
    return DIBS_CORRUPT;
  case DIBS__SQL_LOCKED:
  case DIBS__SQL_FULL:
    return DIBS_UNAVAILABLE;
  default: /* it is about what was asked */
    return DIBS_INVALID;
  }
}

/* What broke, made an answer.  BROKE: the wire is of no more use, or it may have happened. */
static step mend(struct run *r) {
  struct dibs__sql_wire *w = r->wire;
  enum dibs__sql_trouble trouble = w->trouble;
  char words[sizeof w->words];
  if (dibs__sql_dead(w) || w->unsure) return DIBS__SQL_BROKE;
  if (trouble == DIBS__SQL_NO_SPACE) {
    if (undo(r) == DIBS__SQL_FINE) w->trouble = trouble;
    return DIBS__SQL_BROKE;
  }
  if (trouble == DIBS__SQL_TWICE && (r->op->guards & DIBS__IF_ABSENT)) return tell_who_was_first(r);
  snprintf(words, sizeof words, "%s", w->words);
  step end = undo(r);
  if (end != DIBS__SQL_FINE) return end;
  if (trouble == DIBS__SQL_DEADLOCK && !w->inside) {
    r->again = true;
    dibs__nap_ms(PAUSE_MS);
    return end;
  }
  if (trouble == DIBS__SQL_DEADLOCK) trouble = DIBS__SQL_LOCKED; /* theirs to begin anew */
  answer(r, status_of(trouble), "");
  snprintf(r->op->why, sizeof r->op->why,
           trouble == DIBS__SQL_MISSING ? "the table as declared is not there: %s" : "%s", words);
  return end;
}

static step run_one(struct run *r) {
  dibs__tick by = dibs__tick_min(r->wire->by, r->op->op.by.ns ? r->op->op.by : DIBS__TICK_NEVER);
  r->op->got = NULL;
  r->op->got_len = 0;
  r->op->version = 0;
  r->op->seen = DIBS__FENCE_NONE;
  r->op->stands[0] = r->op->why[0] = '\0';
  if (refused(r)) return DIBS__SQL_FINE;
  for (int tries = 0; tries < AGAIN_MAX; tries++) {
    r->again = false;
    step end = act(r);
    if (end == DIBS__SQL_BROKE) end = mend(r);
    if (end != DIBS__SQL_FINE || !r->again) return end;
    if (!dibs__tick_before(dibs__tick_now(), by)) break;
  }
  answer(r, DIBS_UNAVAILABLE, "others were in the way until the deadline");
  return DIBS__SQL_FINE;
}

step dibs__sql_table_record(struct dibs__sql_guard *guard, struct dibs__record_op *const ops[], size_t count) {
  struct run *r = malloc(sizeof *r);
  if (!r) return dibs__sql_broke(guard->wire, DIBS__SQL_NO_SPACE, "out of memory");
  *r = (struct run){.guard = guard, .wire = guard->wire, .engine = guard->wire->engine};
  step end = DIBS__SQL_FINE;
  for (size_t i = 0; i < count && end == DIBS__SQL_FINE; i++) {
    r->op = ops[i];
    r->table = ops[i]->table;
    r->text.engine = r->engine;
    r->text.op = ops[i];
    r->begun = false;
    end = run_one(r);
  }
  free(r);
  return end;
}
