/* SPDX-License-Identifier: MIT */
/* Records in the user's tables: one operation after the other, each decided by its own row. */
#include "sql/sql_impl.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef enum dibs__sql_rc sql_rc;

enum {
  AGAIN_MAX = 1000, /* more tries mean an error: a row that matches our check and not the statement */
  PAUSE_MS = 2      /* after a deadlock: its winner must finish first */
};

/* One operation. */
struct run {
  struct dibs__sql_guard *guard;
  struct dibs__sql_wire *wire;
  const struct dibs__sql_engine *engine;
  const struct dibs__table *table;
  struct dibs__record_op *op;
  bool begun; /* a transaction, or a savepoint, is open */
  bool key_is_unique;
  bool again;
  struct dibs__table_text text;
};

/* A row as it was read. */
struct row {
  bool found, same, has_fence, has_owner;
  uint64_t fence, owner;
  char version[DIBS_VERSION_MAX + 1];
  size_t nth; /* the statement that read it */
};

/* ---- Helpers ---- */

static void set_answer(struct run *r, dibs__status status, const char *why) {
  r->op->op.status = status;
  snprintf(r->op->why, sizeof r->op->why, "%s", why);
}

/* A single statement needs no transaction, unless it waits inside a user's, or the engine locks first. */
static bool needs_no_transaction(const struct run *r) {
  return !r->begun && !r->wire->inside && r->engine->sessions;
}

static sql_rc put_text(struct run *r) {
  return dibs__table_put(&r->text, r->wire);
}

/* ---- Reading a row ---- */

static struct dibs__sql_value row_cell(const struct run *r, const struct row *row, size_t column,
                                       enum dibs__sql_kind as) {
  return r->engine->cell(r->wire, row->nth, 0, column, as);
}

static dibs_value row_value(const struct run *r, const struct row *row, size_t column) {
  struct dibs__sql_value v = row_cell(r, row, DIBS__TABLE_FIRST + column, DIBS__SQL_TEXT);
  dibs_value none = {NULL, 0}, some = {v.p, v.len};
  return v.kind == DIBS__SQL_NULL ? none : some;
}

static void hash_row(const struct run *r, const struct row *row, char hex[65]) {
  dibs_value values[DIBS__TABLE_COLUMNS];
  for (size_t i = 0; i < r->table->column_count; i++) values[i] = row_value(r, row, i);
  dibs__table_hash(r->table, values, hex);
}

static bool is_null(struct dibs__sql_value v) {
  return v.kind == DIBS__SQL_NULL || (v.len == 4 && memcmp(v.p, "NULL", 4) == 0);
}

/* Answers that the column has a value that dibs can't use.  Returns false. */
static bool is_wrong(struct run *r, const char *column, const char *wrong) {
  r->op->op.status = DIBS_INVALID;
  snprintf(r->op->why, sizeof r->op->why, "the column \"%.50s\" of the table \"%.50s\" %s; correct it there", column,
           r->table->table, wrong);
  return false;
}

/* false: answered, the version does not fit. */
static bool read_version(struct run *r, struct row *row, bool columns) {
  int64_t number;
  row->version[0] = '\0';
  if (!r->table->version) {
    if (dibs__table_computes(r->table) && columns) hash_row(r, row, row->version);
    return true;
  }
  bool counts = r->table->version_kind == DIBS__VERSION_NUMBER;
  struct dibs__sql_value v = row_cell(r, row, DIBS__TABLE_VERSION, DIBS__SQL_TEXT);
  if (counts && is_null(v)) v = dibs__sql_text("0", 1);
  const char *wrong = counts ? dibs__sql_whole(v, &number) : NULL;
  if (wrong && number >= 0) return is_wrong(r, r->table->version, wrong);
  if (v.kind != DIBS__SQL_NULL && v.len > DIBS_VERSION_MAX)
    return is_wrong(r, r->table->version, "has a version that is too long");
  if (v.kind != DIBS__SQL_NULL) snprintf(row->version, sizeof row->version, "%.*s", (int)v.len, v.p);
  return true;
}

/* false: answered. */
static bool read_fence(struct run *r, struct row *row) {
  struct dibs__sql_value v = row_cell(r, row, DIBS__TABLE_FENCE, DIBS__SQL_TEXT);
  int64_t number = 0;
  row->has_fence = !is_null(v);
  const char *wrong = row->has_fence ? dibs__sql_whole(v, &number) : NULL;
  row->fence = (uint64_t)number;
  row->has_owner = row_cell(r, row, DIBS__TABLE_OWNER, DIBS__SQL_NUMBER).kind != DIBS__SQL_NULL;
  if (row->has_owner) row->owner = (uint64_t)row_cell(r, row, DIBS__TABLE_OWNER, DIBS__SQL_NUMBER).number;
  return !wrong || is_wrong(r, r->table->fence, wrong);
}

/* Reads the nth statement's row.  false: it was answered: there is no such row, or it can't be a record. */
static bool read_row(struct run *r, size_t nth, bool columns, struct row *row) {
  *row = (struct row){.nth = nth, .found = r->engine->rows(r->wire, nth) > 0};
  if (!row->found) {
    set_answer(r, DIBS_NOT_FOUND, "");
    return false;
  }
  if (r->engine->rows(r->wire, nth) > 1) {
    set_answer(r, DIBS_INVALID, "the key of the table is not unique");
    return false;
  }
  row->same = dibs__sql_cell_number(r->wire, nth, 0, DIBS__TABLE_SAME) != 0;
  return read_fence(r, row) && read_version(r, row, columns);
}

/* Packs what was read into the answer. */
static void hand_out(struct run *r, const struct row *row) {
  size_t count = r->table->column_count, size = 1;
  for (size_t i = 0; i < count; i++) size += row_value(r, row, i).length + 1;
  char *got = malloc(count * sizeof(dibs_value) + size);
  if (!got) {
    set_answer(r, DIBS_NO_MEMORY, "out of memory");
    return;
  }
  dibs_value *values = (dibs_value *)(void *)got;
  char *to = got + count * sizeof(dibs_value);
  for (size_t i = 0; i < count; i++) {
    dibs_value v = row_value(r, row, i);
    values[i] = (dibs_value){v.data ? to : NULL, v.length};
    if (!v.data) continue;
    if (v.length) memcpy(to, v.data, v.length);
    to[v.length] = '\0';
    to += v.length + 1;
  }
  r->op->got = got;
  r->op->got_len = (uint32_t)(to - got);
  r->op->seen = (dibs__fence){row->has_fence ? row->fence : 0};
  snprintf(r->op->version_text, sizeof r->op->version_text, "%s", row->version);
  set_answer(r, DIBS_OK, "");
}

/* ---- Checking the guards ---- */

static bool version_is(const struct run *r, const struct row *row) {
  dibs__str requested = r->op->if_version;
  if (r->table->version && r->table->version_kind == DIBS__VERSION_TIME) return row->same;
  return dibs__str_equal(dibs__str_of(row->version, strlen(row->version)), requested);
}

/* false: answered. */
static bool guards_hold(struct run *r, const struct row *row) {
  struct dibs__record_op *op = r->op;
  uint32_t guards = dibs__record_guards(op);
  bool newer = row->has_fence && row->fence > op->fence.v;
  bool others = row->has_fence && row->fence == op->fence.v && r->table->owner &&
                !(row->has_owner && row->owner == dibs__id_digest(op->id));
  if ((guards & DIBS__IF_FENCE) && (newer || others)) {
    op->seen = (dibs__fence){row->fence};
    set_answer(r, DIBS_STALE, "");
    return false;
  }
  if ((guards & DIBS__IF_ABSENT) || ((guards & DIBS__IF_VERSION) && !version_is(r, row))) {
    snprintf(op->version_text, sizeof op->version_text, "%s", row->version);
    set_answer(r, DIBS_CONFLICT, "");
    return false;
  }
  return true;
}

/* A statement matched nothing: answers why.  If it would match by now, tries again. */
static sql_rc answer_mismatch(struct run *r) {
  struct row row;
  bool computes = dibs__table_computes(r->table);
  dibs__table_select(&r->text, computes, false);
  sql_rc end = put_text(r);
  if (end == DIBS__SQL_OK) end = dibs__table_go(r->guard, &r->begun, false);
  if (end != DIBS__SQL_OK) return end;
  if (read_row(r, 0, computes, &row)) r->again = guards_hold(r, &row);
  return DIBS__SQL_OK;
}

/* ---- Reading and sealing ---- */

/* Where two rows could have the key: locks them, and checks that there is one.  If not, it is answered, and no
 * transaction is open. */
static sql_rc lock_all_rows(struct run *r) {
  struct row row;
  sql_rc end = dibs__table_begin(r->guard, &r->begun);
  size_t nth = r->wire->put;
  dibs__table_select(&r->text, true, true);
  if (end == DIBS__SQL_OK) end = put_text(r);
  if (end == DIBS__SQL_OK) end = dibs__table_go(r->guard, &r->begun, false);
  if (end != DIBS__SQL_OK || read_row(r, nth, true, &row)) return end;
  return dibs__table_rollback(r->guard, &r->begun);
}

static sql_rc run_read(struct run *r) {
  struct row row;
  dibs__table_select(&r->text, true, false);
  sql_rc end = put_text(r);
  if (end == DIBS__SQL_OK) end = dibs__table_go(r->guard, &r->begun, false);
  if (end == DIBS__SQL_OK && read_row(r, 0, true, &row)) hand_out(r, &row);
  return end;
}

/* Raises the fence first, then reads; in one statement, or in a later one of the same packet, which sees the locked
 * row. */
static sql_rc run_seal(struct run *r) {
  struct row row;
  if (!r->key_is_unique) {
    sql_rc end = lock_all_rows(r);
    if (end != DIBS__SQL_OK || !r->begun) return end;
  }
  bool one = r->engine->update_returning;
  bool bare = one && needs_no_transaction(r);
  sql_rc end = bare ? DIBS__SQL_OK : dibs__table_begin(r->guard, &r->begun);
  size_t nth = r->wire->put;
  dibs__table_seal(&r->text, one);
  if (end == DIBS__SQL_OK) end = put_text(r);
  if (end == DIBS__SQL_OK && !one) {
    dibs__table_select(&r->text, true, false);
    end = put_text(r);
  }
  if (end == DIBS__SQL_OK) end = dibs__table_commit(r->guard, &r->begun);
  if (end != DIBS__SQL_OK) return end;
  bool hit = one ? r->engine->rows(r->wire, nth) > 0 : r->engine->changed(r->wire, nth) > 0;
  if (one && !hit) return answer_mismatch(r);
  if (!read_row(r, one ? nth : nth + 1, true, &row)) return end;
  if (hit)
    hand_out(r, &row);
  else
    r->again = guards_hold(r, &row);
  return end;
}

/* ---- Writing with one statement ---- */

/* The new version is known beforehand. */
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

static sql_rc put_at_once(struct run *r) {
  struct row row;
  char next[DIBS_VERSION_MAX + 1] = "";
  bool known = next_version(r, next, sizeof next), hashes = dibs__table_hashes(r->table);
  bool returning = !known && r->engine->update_returning;
  bool bare = needs_no_transaction(r) && (known || returning);
  sql_rc end = bare ? DIBS__SQL_OK : dibs__table_begin(r->guard, &r->begun);
  size_t nth = r->wire->put;
  dibs__table_update(&r->text, hashes ? next : NULL, true, returning);
  if (end == DIBS__SQL_OK) end = put_text(r);
  if (end == DIBS__SQL_OK && !known && !returning) {
    dibs__table_select(&r->text, false, false);
    end = put_text(r);
  }
  if (end == DIBS__SQL_OK) end = dibs__table_commit(r->guard, &r->begun);
  if (end != DIBS__SQL_OK) return end;
  bool hit = returning ? r->engine->rows(r->wire, nth) > 0 : r->engine->changed(r->wire, nth) > 0;
  if (!hit) return answer_mismatch(r);
  if (!known && !read_row(r, returning ? nth : nth + 1, false, &row)) return end;
  snprintf(r->op->version_text, sizeof r->op->version_text, "%s", known ? next : row.version);
  r->op->seen = r->op->fence;
  set_answer(r, DIBS_OK, "");
  return end;
}

static sql_rc delete_at_once(struct run *r) {
  sql_rc end = needs_no_transaction(r) ? DIBS__SQL_OK : dibs__table_begin(r->guard, &r->begun);
  size_t nth = r->wire->put;
  dibs__table_delete(&r->text, true);
  if (end == DIBS__SQL_OK) end = put_text(r);
  if (end == DIBS__SQL_OK) end = dibs__table_commit(r->guard, &r->begun);
  if (end != DIBS__SQL_OK) return end;
  if (r->engine->changed(r->wire, nth) == 0) return answer_mismatch(r);
  set_answer(r, DIBS_OK, "");
  return end;
}

/* ---- Writing after a locked read ---- */

/* The column may store an instant too coarsely to see a step: then a longer step is tried. */
static sql_rc put_instant(struct run *r, const struct row *was, int64_t now_ms) {
  static const int64_t steps[] = {1, 1000, 1000000};
  struct row row;
  char version[DIBS_VERSION_MAX + 1];
  for (size_t i = 0; i < sizeof steps / sizeof steps[0]; i++) {
    if (!dibs__table_instant(was->version, now_ms, steps[i], version, sizeof version)) {
      set_answer(r, DIBS_INVALID, "the version column has no instant of the form YYYY-MM-DD HH:MM:SS");
      return dibs__table_rollback(r->guard, &r->begun);
    }
    dibs__table_update(&r->text, version, false, false);
    sql_rc end = put_text(r);
    dibs__table_select(&r->text, false, false);
    if (end == DIBS__SQL_OK) end = put_text(r);
    if (end == DIBS__SQL_OK) end = dibs__table_go(r->guard, &r->begun, false);
    if (end != DIBS__SQL_OK) return end;
    if (!read_row(r, 1, false, &row)) return dibs__table_rollback(r->guard, &r->begun);
    if (row.version[0] == '\0' || strcmp(row.version, was->version) == 0) continue;
    snprintf(r->op->version_text, sizeof r->op->version_text, "%s", row.version);
    end = dibs__table_commit(r->guard, &r->begun);
    if (end == DIBS__SQL_OK) set_answer(r, DIBS_OK, "");
    return end;
  }
  set_answer(r, DIBS_INVALID,
             "the version column does not store seconds, so two writes of a day could have the same version");
  return dibs__table_rollback(r->guard, &r->begun);
}

/* Values that stay are those of the read. */
static void hash_merged(const struct run *r, const struct row *row, char hex[65]) {
  dibs_value values[DIBS__TABLE_COLUMNS];
  for (size_t i = 0; i < r->table->column_count; i++) {
    const dibs_value *v = &r->op->values[i];
    values[i] = !v->data && v->length == DIBS_KEEP ? row_value(r, row, i) : *v;
  }
  dibs__table_hash(r->table, values, hex);
}

static sql_rc put_hashed(struct run *r, const struct row *was) {
  struct row row;
  char hex[65] = "";
  bool computes = dibs__table_computes(r->table);
  if (!computes) hash_merged(r, was, hex);
  dibs__table_update(&r->text, computes ? NULL : hex, false, false);
  sql_rc end = put_text(r);
  dibs__table_select(&r->text, true, false);
  if (end == DIBS__SQL_OK) end = put_text(r);
  if (end == DIBS__SQL_OK) end = dibs__table_commit(r->guard, &r->begun);
  if (end != DIBS__SQL_OK || !read_row(r, 1, true, &row)) return end;
  snprintf(r->op->version_text, sizeof r->op->version_text, "%s", row.version);
  set_answer(r, DIBS_OK, "");
  return end;
}

static sql_rc delete_locked(struct run *r) {
  dibs__table_delete(&r->text, false);
  sql_rc end = put_text(r);
  if (end == DIBS__SQL_OK) end = dibs__table_commit(r->guard, &r->begun);
  if (end == DIBS__SQL_OK) set_answer(r, DIBS_OK, "");
  return end;
}

static sql_rc request_clock(struct run *r) {
  char text[256];
  snprintf(text, sizeof text, "SELECT %s", r->engine->now_ms);
  return r->engine->put(r->wire, text, NULL, 0);
}

static sql_rc write_locked(struct run *r) {
  struct row row;
  sql_rc end = dibs__table_begin(r->guard, &r->begun);
  size_t nth = r->wire->put;
  dibs__table_select(&r->text, dibs__table_hashes(r->table), true);
  if (end == DIBS__SQL_OK) end = put_text(r);
  if (end == DIBS__SQL_OK) end = request_clock(r); /* after the lock */
  if (end == DIBS__SQL_OK) end = dibs__table_go(r->guard, &r->begun, false);
  if (end != DIBS__SQL_OK) return end;
  int64_t now_ms = dibs__sql_cell_number(r->wire, nth + 1, 0, 0);
  if (!read_row(r, nth, dibs__table_hashes(r->table), &row) || !guards_hold(r, &row))
    return dibs__table_rollback(r->guard, &r->begun);
  r->op->seen = r->op->fence;
  if (r->op->op.verb == DIBS__RECORD_DROP) return delete_locked(r);
  return dibs__table_hashes(r->table) ? put_hashed(r, &row) : put_instant(r, &row, now_ms);
}

/* ---- Inserting a row ---- */

static sql_rc first_version(struct run *r, char *to, size_t size) {
  sql_rc end = DIBS__SQL_OK;
  if (!r->table->version) return end;
  if (dibs__table_hashes(r->table)) {
    dibs__table_hash(r->table, r->op->values, to);
  } else if (r->table->version_kind == DIBS__VERSION_NUMBER) {
    snprintf(to, size, "1");
  } else {
    end = request_clock(r);
    if (end == DIBS__SQL_OK) end = dibs__table_go(r->guard, &r->begun, false);
    if (end == DIBS__SQL_OK) dibs__table_instant("", dibs__sql_cell_number(r->wire, 0, 0, 0), 0, to, size);
  }
  return end;
}

static sql_rc run_insert(struct run *r) {
  struct row row;
  char version[DIBS_VERSION_MAX + 1] = "";
  sql_rc end = first_version(r, version, sizeof version);
  if (end == DIBS__SQL_OK) end = dibs__table_begin(r->guard, &r->begun);
  size_t nth = r->wire->put;
  dibs__table_insert(&r->text, version);
  if (end == DIBS__SQL_OK) end = put_text(r);
  dibs__table_select(&r->text, true, false); /* as the engine stores it */
  if (end == DIBS__SQL_OK) end = put_text(r);
  if (end == DIBS__SQL_OK) end = dibs__table_commit(r->guard, &r->begun);
  if (end != DIBS__SQL_OK || !read_row(r, nth + 1, true, &row)) return end;
  snprintf(r->op->version_text, sizeof r->op->version_text, "%s", row.version);
  r->op->seen = r->op->fence;
  set_answer(r, DIBS_OK, "");
  return end;
}

/* The key, or another unique one, exists already. */
static sql_rc answer_duplicate(struct run *r) {
  char message[sizeof r->wire->message];
  snprintf(message, sizeof message, "%s", r->wire->message);
  sql_rc end = dibs__table_rollback(r->guard, &r->begun);
  if (end == DIBS__SQL_OK) end = answer_mismatch(r);
  if (end == DIBS__SQL_OK && r->op->op.status == DIBS_NOT_FOUND) set_answer(r, DIBS_INVALID, message);
  return end;
}

/* ---- One operation ---- */

/* A number of 64 bits as engines write it. */
static bool digits_requested(const struct dibs__record_op *op) {
  dibs__str v = op->if_version;
  size_t from = v.len > 1 && v.p[0] == '-';
  if (v.len == from || v.len > 19 || (v.p[from] == '0' && v.len > 1)) return false;
  for (size_t i = from; i < v.len; i++)
    if (v.p[i] < '0' || v.p[i] > '9') return false;
  return true;
}

static bool keeps_some(const struct run *r) {
  for (size_t i = 0; i < r->table->column_count; i++)
    if (!r->op->values[i].data && r->op->values[i].length == DIBS_KEEP) return true;
  return false;
}

static sql_rc run_write(struct run *r) {
  const struct dibs__table *table = r->table;
  bool drops = r->op->op.verb == DIBS__RECORD_DROP, versioned = (r->op->guards & DIBS__IF_VERSION) != 0;
  if ((r->op->guards & DIBS__IF_ABSENT) && !r->key_is_unique) {
    set_answer(r, DIBS_INVALID,
               "the key has no unique index of its own, so dibs can't ensure that the row does not exist");
    return DIBS__SQL_OK;
  }
  if (r->op->guards & DIBS__IF_ABSENT) return run_insert(r);
  /* A text that is no number is no version of that kind: no engine has to compare them. */
  if (versioned && table->version_kind == DIBS__VERSION_NUMBER && !digits_requested(r->op)) {
    sql_rc end = answer_mismatch(r);
    r->again = false;
    return end;
  }
  if (!r->key_is_unique) {
    sql_rc end = lock_all_rows(r);
    if (end != DIBS__SQL_OK || !r->begun) return end;
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

/* Answers without the engine. */
static bool is_refused(struct run *r) {
  struct dibs__record_op *op = r->op;
  uint32_t guards = dibs__record_guards(op), verb = op->op.verb;
  size_t size = 0;
  op->op.status = DIBS_INVALID;
  if (verb > DIBS__RECORD_DROP || op->key.len == 0 || op->op.group) return true;
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

/* Does the table fit?  false: answered, or *end. */
static bool table_fits(struct run *r, sql_rc *end) {
  struct dibs__record_op *op = r->op;
  const struct dibs__sql_shape *shape;
  char why[sizeof op->why];
  *end = dibs__sql_table_check(r->guard, r->table, DIBS__SQL_FOR_RECORDS, &shape, why, sizeof why);
  if (*end != DIBS__SQL_OK) return false;
  r->key_is_unique = shape && shape->key_is_unique;
  if (shape && (!shape->key_is_number || dibs__sql_is_number(op->key))) return true;
  if (!shape)
    set_answer(r, DIBS_INVALID, why);
  else if (op->guards & DIBS__IF_ABSENT)
    set_answer(r, DIBS_INVALID, "the key's column has numbers, and the key is not a number");
  else
    set_answer(r, DIBS_NOT_FOUND, "");
  return false;
}

static sql_rc run_verb(struct run *r) {
  sql_rc end;
  if (!table_fits(r, &end)) return end;
  switch (r->op->op.verb) {
  case DIBS__RECORD_LOAD:
    return run_read(r);
  case DIBS__RECORD_SEAL:
    return run_seal(r);
  default:
    return run_write(r);
  }
}

/* Makes an answer of a failure.  FAILED: the wire is dead, or the write may have happened. */
static sql_rc answer_failure(struct run *r) {
  struct dibs__sql_wire *w = r->wire;
  enum dibs__sql_trouble trouble = w->trouble;
  char message[sizeof w->message];
  if (dibs__sql_dead(w) || w->unsure) return DIBS__SQL_FAILED;
  if (trouble == DIBS__SQL_NO_SPACE) {
    if (dibs__table_rollback(r->guard, &r->begun) == DIBS__SQL_OK) w->trouble = trouble;
    return DIBS__SQL_FAILED;
  }
  if (trouble == DIBS__SQL_TWICE && (r->op->guards & DIBS__IF_ABSENT)) return answer_duplicate(r);
  snprintf(message, sizeof message, "%s", w->message);
  sql_rc end = dibs__table_rollback(r->guard, &r->begun);
  if (end != DIBS__SQL_OK) return end;
  if (trouble == DIBS__SQL_DEADLOCK && !w->inside) {
    r->again = true;
    dibs__nap_ms(PAUSE_MS);
    return end;
  }
  if (trouble == DIBS__SQL_DEADLOCK) trouble = DIBS__SQL_LOCKED; /* the user must start their transaction again */
  set_answer(r, dibs__table_status(trouble), "");
  snprintf(r->op->why, sizeof r->op->why,
           trouble == DIBS__SQL_MISSING ? "the table as declared does not exist: %s" : "%s", message);
  return end;
}

static sql_rc run_one(struct run *r) {
  dibs__tick by = dibs__tick_min(r->wire->by, r->op->op.by.ns ? r->op->op.by : DIBS__TICK_NEVER);
  r->op->got = NULL;
  r->op->got_len = 0;
  r->op->version = 0;
  r->op->seen = DIBS__FENCE_NONE;
  r->op->version_text[0] = r->op->why[0] = '\0';
  if (is_refused(r)) return DIBS__SQL_OK;
  for (int tries = 0; tries < AGAIN_MAX; tries++) {
    r->again = false;
    sql_rc end = run_verb(r);
    if (end == DIBS__SQL_FAILED) end = answer_failure(r);
    if (end != DIBS__SQL_OK || !r->again) return end;
    if (!dibs__tick_before(dibs__tick_now(), by)) break;
  }
  set_answer(r, DIBS_UNAVAILABLE, "other writers held the row until the deadline");
  return DIBS__SQL_OK;
}

sql_rc dibs__sql_table_record(struct dibs__sql_guard *guard, struct dibs__record_op *const ops[], size_t count) {
  struct run *r = malloc(sizeof *r);
  if (!r) return dibs__sql_fail(guard->wire, DIBS__SQL_NO_SPACE, "out of memory");
  *r = (struct run){.guard = guard, .wire = guard->wire, .engine = guard->wire->engine};
  sql_rc end = DIBS__SQL_OK;
  for (size_t i = 0; i < count && end == DIBS__SQL_OK; i++) {
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
