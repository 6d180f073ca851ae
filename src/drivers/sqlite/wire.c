/* SPDX-License-Identifier: MIT */
/*
 * A connection to SQLite as a wire.
 *
 * Nothing travels, so a statement is executed when it is put, and its rows are kept in memory until the first put
 * after a go.  Statements after an error are skipped, and go reports it.  Only a first row (see run_kept) is read where
 * SQLite has it.
 *
 * $rows is a table that reads the caller's memory: a virtual one, with a name that differs for each wire.  So a
 * statement is prepared once, however many rows it gets, and none of them is bound.
 */
#include "sql/wire.h"
#include "drivers/sqlite/sqlite_impl.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef enum dibs__sql_rc sql_rc;
typedef struct dibs__sql_value value;
typedef struct dibs__sqlite_wire wire_t;

enum {
  KEPT = 96,        /* statements; beyond that the least recently used one is closed */
  COLUMNS = 48,     /* of $rows */
  ROWS_NAME = 32,   /* space for the virtual table's name */
  ROWS_EXPECTED = 8 /* the estimate for the planner: few, so that the table is the outer loop of a join */
};

struct kept {
  char *text;
  size_t len;
  size_t columns;
  sqlite3_stmt *statement;
  uint64_t used;
};

struct cell {
  enum dibs__sql_kind kind; /* SQLite's own type; numbers with a fraction as text */
  uint32_t len;
  int64_t number;
  size_t at;       /* of text and bytes, in the wire's memory */
  char digits[24]; /* a number as text, once a caller reads it so */
};

struct answer {
  size_t first; /* cell */
  size_t columns, rows;
  uint64_t changed;
};

struct dibs__sqlite_wire {
  struct dibs__sql_wire base;
  sqlite3 *db;
  struct dibs__sqlite_link *link;
  char rows_name[ROWS_NAME];
  struct kept kept[KEPT];
  uint64_t uses;
  /* The rows of the virtual table, while a statement runs. */
  const value *rows;
  size_t columns, row_count;
  /* Answers. */
  bool gone, failed;
  struct answer *answers;
  size_t answer_count, answer_capacity;
  struct cell *cells;
  size_t cell_count, cell_capacity;
  char *memory;
  size_t memory_used, memory_capacity;
};

/* ---- The table of rows ---- */

struct rows_table {
  sqlite3_vtab base;
  wire_t *wire;
};

struct rows_cursor {
  sqlite3_vtab_cursor base;
  size_t at;
};

static int rows_connect(sqlite3 *db, void *arg, int argc, const char *const *argv, sqlite3_vtab **out, char **message) {
  char text[32 + COLUMNS * 5];
  (void)argc, (void)argv, (void)message;
  int len = snprintf(text, sizeof text, "CREATE TABLE r (");
  for (int i = 0; i < COLUMNS; i++)
    len += snprintf(text + len, sizeof text - (size_t)len, "%sc%d", i ? ", " : "", i + 1);
  snprintf(text + len, sizeof text - (size_t)len, ")");
  int code = sqlite3_declare_vtab(db, text);
  if (code != SQLITE_OK) return code;
  struct rows_table *table = calloc(1, sizeof *table);
  if (!table) return SQLITE_NOMEM;
  table->wire = arg;
  *out = &table->base;
  return SQLITE_OK;
}

static int rows_disconnect(sqlite3_vtab *table) {
  free(table);
  return SQLITE_OK;
}

static int rows_plan(sqlite3_vtab *table, sqlite3_index_info *info) {
  (void)table;
  info->estimatedCost = ROWS_EXPECTED;
  info->estimatedRows = ROWS_EXPECTED;
  return SQLITE_OK;
}

static int rows_open(sqlite3_vtab *table, sqlite3_vtab_cursor **out) {
  (void)table;
  struct rows_cursor *cursor = calloc(1, sizeof *cursor);
  if (!cursor) return SQLITE_NOMEM;
  *out = &cursor->base;
  return SQLITE_OK;
}

static int rows_close(sqlite3_vtab_cursor *cursor) {
  free(cursor);
  return SQLITE_OK;
}

static int rows_filter(sqlite3_vtab_cursor *cursor, int plan, const char *text, int argc, sqlite3_value **argv) {
  (void)plan, (void)text, (void)argc, (void)argv;
  ((struct rows_cursor *)cursor)->at = 0;
  return SQLITE_OK;
}

static int rows_next(sqlite3_vtab_cursor *cursor) {
  ((struct rows_cursor *)cursor)->at++;
  return SQLITE_OK;
}

static wire_t *wire_of(sqlite3_vtab_cursor *cursor) {
  return ((struct rows_table *)cursor->pVtab)->wire;
}

static int rows_end(sqlite3_vtab_cursor *cursor) {
  return ((struct rows_cursor *)cursor)->at >= wire_of(cursor)->row_count;
}

static int rows_column(sqlite3_vtab_cursor *cursor, sqlite3_context *to, int column) {
  const wire_t *w = wire_of(cursor);
  size_t at = ((struct rows_cursor *)cursor)->at;
  if (column < 0 || (size_t)column >= w->columns || at >= w->row_count) return SQLITE_OK; /* NULL */
  const value *v = &w->rows[at * w->columns + (size_t)column];
  switch (v->kind) {
  case DIBS__SQL_NULL:
    break;
  case DIBS__SQL_NUMBER:
    sqlite3_result_int64(to, v->number);
    break;
  case DIBS__SQL_TEXT: /* the memory stays valid until the statement has ended */
    sqlite3_result_text(to, v->p, (int)v->len, SQLITE_STATIC);
    break;
  case DIBS__SQL_BYTES:
    sqlite3_result_blob(to, v->p, (int)v->len, SQLITE_STATIC);
    break;
  }
  return SQLITE_OK;
}

static int rows_number(sqlite3_vtab_cursor *cursor, sqlite3_int64 *number) {
  *number = (sqlite3_int64)((struct rows_cursor *)cursor)->at;
  return SQLITE_OK;
}

static const sqlite3_module rows_module = {.iVersion = 1,
                                           .xConnect = rows_connect,
                                           .xBestIndex = rows_plan,
                                           .xDisconnect = rows_disconnect,
                                           .xOpen = rows_open,
                                           .xClose = rows_close,
                                           .xFilter = rows_filter,
                                           .xNext = rows_next,
                                           .xEof = rows_end,
                                           .xColumn = rows_column,
                                           .xRowid = rows_number};

/* ---- Errors ---- */

static enum dibs__sql_trouble trouble_of(int code, const char *message) {
  switch (code) {
  case SQLITE_CONSTRAINT_UNIQUE:
  case SQLITE_CONSTRAINT_PRIMARYKEY:
  case SQLITE_CONSTRAINT_ROWID:
    return DIBS__SQL_TWICE;
  case SQLITE_CONSTRAINT_FOREIGNKEY:
    return DIBS__SQL_ORPHAN;
  case SQLITE_BUSY_SNAPSHOT: /* another connection wrote since the user's transaction read */
    return DIBS__SQL_DEADLOCK;
  default:
    break;
  }
  switch (code & 0xff) {
  case SQLITE_CONSTRAINT:
  case SQLITE_MISMATCH:
  case SQLITE_TOOBIG:
  case SQLITE_RANGE:
    return DIBS__SQL_REFUSED;
  case SQLITE_BUSY:
  case SQLITE_LOCKED:
    return DIBS__SQL_LOCKED;
  case SQLITE_READONLY:
  case SQLITE_PERM:
  case SQLITE_AUTH:
    return DIBS__SQL_DENIED;
  case SQLITE_FULL:
    return DIBS__SQL_FULL;
  case SQLITE_NOMEM:
    return DIBS__SQL_NO_SPACE;
  case SQLITE_CORRUPT:
  case SQLITE_NOTADB:
  case SQLITE_FORMAT:
    return DIBS__SQL_DAMAGED;
  case SQLITE_IOERR:
  case SQLITE_CANTOPEN:
  case SQLITE_PROTOCOL:
    return DIBS__SQL_GONE;
  case SQLITE_ERROR:
    return strncmp(message, "no such", 7) == 0 || strstr(message, "has no column") ? DIBS__SQL_MISSING : DIBS__SQL_ODD;
  default:
    return DIBS__SQL_ODD;
  }
}

static void set_failure(wire_t *w, size_t nth, int code, bool ends) {
  const char *message = code == SQLITE_NOMEM ? "out of memory" : sqlite3_errmsg(w->db);
  w->failed = true;
  dibs__sqlite_broke(w->link, code);
  dibs__sql_fail(&w->base, trouble_of(code, message), message);
  w->base.failed_at = nth;
  /* A commit that failed: see dibs__sqlite_commit.  A constraint that is checked then leaves the transaction open. */
  w->base.unsure = ends && code != SQLITE_FULL && code != SQLITE_IOERR_WRITE && (code & 0xff) != SQLITE_BUSY &&
                   (code & 0xff) != SQLITE_CONSTRAINT;
}

/* ---- Statements ---- */

/* The character after a quoted part that begins at `from`. */
static const char *after_quoted(const char *from) {
  const char *at = from + 1;
  while (*at && *at != *from) at++;
  return *at ? at + 1 : at; /* a doubled quote begins another part: the same */
}

/* Our texts as SQLite wants them; malloc'd. */
static char *translate_text(const wire_t *w, const char *text, size_t columns) {
  static const char mark[] = "$rows";
  size_t capacity = strlen(text) + 1;
  for (const char *at = text; (at = strstr(at, mark)); at++) capacity += sizeof w->rows_name + 16 + columns * 5;
  char *to = malloc(capacity);
  if (!to) return NULL;
  size_t len = 0;
  for (const char *at = text; *at;) {
    if (*at == '\'' || *at == '"') {
      const char *end = after_quoted(at);
      memcpy(to + len, at, (size_t)(end - at));
      len += (size_t)(end - at);
      at = end;
    } else if (strncmp(at, mark, sizeof mark - 1) == 0) {
      for (size_t i = 0; i < columns; i++)
        len += (size_t)snprintf(to + len, capacity - len, i ? ", c%zu" : "SELECT c%zu", i + 1);
      len += (size_t)snprintf(to + len, capacity - len, " FROM %s", w->rows_name);
      at += sizeof mark - 1;
    } else {
      to[len++] = *at == '$' ? '?' : *at;
      at++;
    }
  }
  to[len] = '\0';
  return to;
}

static void close_kept(struct kept *k) {
  sqlite3_finalize(k->statement);
  free(k->text);
  *k = (struct kept){0};
}

static struct kept *position_for(wire_t *w) {
  struct kept *oldest = &w->kept[0];
  for (size_t i = 0; i < KEPT; i++) {
    if (!w->kept[i].text) return &w->kept[i];
    if (w->kept[i].used < oldest->used) oldest = &w->kept[i];
  }
  close_kept(oldest);
  return oldest;
}

/* NULL: see *code. */
static sqlite3_stmt *find_or_prepare(wire_t *w, const char *text, size_t columns, int *code) {
  size_t len = strlen(text);
  for (size_t i = 0; i < KEPT && w->kept[i].text; i++) {
    struct kept *k = &w->kept[i];
    if (k->len != len || k->columns != columns || memcmp(k->text, text, len) != 0) continue;
    k->used = ++w->uses;
    return k->statement;
  }
  struct kept *k = position_for(w);
  *code = SQLITE_NOMEM;
  char *own = malloc(len + 1), *sql = own ? translate_text(w, text, columns) : NULL;
  if (sql) *code = sqlite3_prepare_v3(w->db, sql, -1, SQLITE_PREPARE_PERSISTENT, &k->statement, NULL);
  free(sql);
  if (*code != SQLITE_OK) {
    /* It may have been in the middle of the list: kept statements have no gaps. */
    *code = *code == SQLITE_NOMEM ? SQLITE_NOMEM : sqlite3_extended_errcode(w->db);
    size_t last = KEPT;
    while (last > 0 && !w->kept[last - 1].text) last--;
    if (last > 0 && &w->kept[last - 1] > k) {
      *k = w->kept[last - 1];
      w->kept[last - 1] = (struct kept){0};
    }
    free(own);
    return NULL;
  }
  memcpy(own, text, len + 1);
  *k = (struct kept){own, len, columns, k->statement, ++w->uses};
  return k->statement;
}

static int bind_values(sqlite3_stmt *st, const value *values, size_t count) {
  int code = SQLITE_OK;
  for (size_t i = 0; i < count && code == SQLITE_OK; i++) {
    const value *v = &values[i];
    int at = (int)i + 1;
    switch (v->kind) {
    case DIBS__SQL_NULL:
      code = sqlite3_bind_null(st, at);
      break;
    case DIBS__SQL_NUMBER:
      code = sqlite3_bind_int64(st, at, v->number);
      break;
    case DIBS__SQL_TEXT:
      code = sqlite3_bind_text(st, at, v->p, (int)v->len, SQLITE_STATIC);
      break;
    case DIBS__SQL_BYTES:
      code = sqlite3_bind_blob(st, at, v->p, (int)v->len, SQLITE_STATIC);
      break;
    }
  }
  return code;
}

/* ---- Answers ---- */

/* Capacity for `more` beyond `used`; grows by half at least. */
static bool grow_array(void **p, size_t *capacity, size_t used, size_t more, size_t size) {
  if (used + more <= *capacity) return true;
  size_t wanted = *capacity + *capacity / 2 + more + 16;
  void *bigger = realloc(*p, wanted * size);
  if (!bigger) return false;
  *p = bigger;
  *capacity = wanted;
  return true;
}

static bool take_bytes(wire_t *w, struct cell *cell, const void *bytes, int len) {
  void *p = w->memory;
  if (!grow_array(&p, &w->memory_capacity, w->memory_used, (size_t)len + 1, 1)) return false;
  w->memory = p;
  cell->at = w->memory_used;
  cell->len = (uint32_t)len;
  if (len > 0 && bytes) memcpy(w->memory + cell->at, bytes, (size_t)len);
  w->memory[cell->at + (size_t)len] = '\0';
  w->memory_used += (size_t)len + 1;
  return true;
}

static bool take_cell(wire_t *w, sqlite3_stmt *st, int column, struct cell *cell) {
  sqlite3_value *v = sqlite3_column_value(st, column); /* cheaper than the column's type, then its value */
  const void *bytes;
  cell->len = 0;
  switch (sqlite3_value_type(v)) {
  case SQLITE_NULL:
    cell->kind = DIBS__SQL_NULL;
    return true;
  case SQLITE_INTEGER:
    cell->kind = DIBS__SQL_NUMBER;
    cell->number = sqlite3_value_int64(v);
    return true;
  case SQLITE_BLOB:
    cell->kind = DIBS__SQL_BYTES;
    bytes = sqlite3_value_blob(v);
    break;
  default:
    cell->kind = DIBS__SQL_TEXT;
    bytes = sqlite3_column_text(st, column);
    if (!bytes) return false;
  }
  return take_bytes(w, cell, bytes, sqlite3_value_bytes(v));
}

static bool take_row(wire_t *w, sqlite3_stmt *st, struct answer *answer) {
  int columns = sqlite3_column_count(st);
  void *p = w->cells;
  if (!grow_array(&p, &w->cell_capacity, w->cell_count, (size_t)columns, sizeof *w->cells)) return false;
  w->cells = p;
  for (int i = 0; i < columns; i++)
    if (!take_cell(w, st, i, &w->cells[w->cell_count + (size_t)i])) return false;
  w->cell_count += (size_t)columns;
  answer->columns = (size_t)columns;
  answer->rows++;
  return true;
}

static struct answer *next_answer(wire_t *w) {
  void *p = w->answers;
  if (!grow_array(&p, &w->answer_capacity, w->answer_count, 1, sizeof *w->answers)) return NULL;
  w->answers = p;
  struct answer *answer = &w->answers[w->answer_count++];
  *answer = (struct answer){.first = w->cell_count};
  return answer;
}

/* ---- The wire ---- */

static bool begins_with(const char *text, const char *word) {
  return strncmp(text, word, strlen(word)) == 0;
}

static int run_statement(wire_t *w, sqlite3_stmt *st, struct answer *answer) {
  int code;
  while ((code = sqlite3_step(st)) == SQLITE_ROW) {
    if (take_row(w, st, answer)) continue;
    code = SQLITE_NOMEM;
    break;
  }
  if (code == SQLITE_DONE) {
    if (!sqlite3_stmt_readonly(st)) answer->changed = (uint64_t)sqlite3_changes(w->db);
    return SQLITE_OK;
  }
  return code == SQLITE_NOMEM ? code : sqlite3_extended_errcode(w->db);
}

static void begin_packet(wire_t *w) {
  dibs__sqlite_let_go(w->link);
  if (!w->gone) return;
  w->gone = w->failed = false;
  w->answer_count = w->cell_count = w->memory_used = 0;
}

static sql_rc wire_put_rows(struct dibs__sql_wire *base, const char *text, const value *values, size_t count,
                            const value *rows, size_t columns, size_t row_count) {
  wire_t *w = (wire_t *)base;
  bool undoes = begins_with(text, "ROLLBACK");
  assert(columns <= COLUMNS);
  begin_packet(w);
  if (undoes) w->failed = false; /* the error requires it */
  size_t nth = base->put++;
  struct answer *answer = next_answer(w);
  if (!answer) {
    base->put--;
    set_failure(w, nth, SQLITE_NOMEM, false);
    return DIBS__SQL_FAILED;
  }
  if (w->failed) return DIBS__SQL_OK;
  if (undoes && sqlite3_get_autocommit(w->db)) return DIBS__SQL_OK; /* SQLite has rolled back by itself */
  int code = SQLITE_OK;
  sqlite3_stmt *st = find_or_prepare(w, text, columns, &code);
  if (st) {
    w->rows = rows;
    w->columns = columns;
    w->row_count = row_count;
    code = bind_values(st, values, count);
    if (code == SQLITE_OK) code = run_statement(w, st, answer);
    w->rows = NULL;
    w->columns = w->row_count = 0;
  }
  if (code != SQLITE_OK)
    set_failure(w, nth, code, st && begins_with(text, "COMMIT")); /* a transaction that was not begun is certain */
  if (st) sqlite3_reset(st);
  return DIBS__SQL_OK;
}

static sql_rc wire_put(struct dibs__sql_wire *base, const char *text, const value *values, size_t count) {
  return wire_put_rows(base, text, values, count, NULL, 0, 0);
}

static sql_rc wire_go(struct dibs__sql_wire *base, bool commits) {
  wire_t *w = (wire_t *)base;
  (void)commits; /* this file knows which statement commits */
  w->gone = true;
  base->put = 0;
  return w->failed ? DIBS__SQL_FAILED : DIBS__SQL_OK;
}

static const struct answer *answer_at(const wire_t *w, size_t nth) {
  static const struct answer none;
  return nth < w->answer_count ? &w->answers[nth] : &none;
}

static size_t wire_rows(const struct dibs__sql_wire *base, size_t nth) {
  const wire_t *w = (const wire_t *)base;
  return w->link->at_row ? 1 : answer_at(w, nth)->rows;
}

static uint64_t wire_changed(const struct dibs__sql_wire *base, size_t nth) {
  return answer_at((const wire_t *)base, nth)->changed;
}

static value cell_as_number(const wire_t *w, const struct cell *cell) {
  if (cell->kind == DIBS__SQL_NUMBER) return dibs__sql_number(cell->number);
  return dibs__sql_number(strtoll(w->memory + cell->at, NULL, 10));
}

/* Of the first row, which the statement still has. */
static value cell_of(sqlite3_stmt *st, int column, enum dibs__sql_kind as) {
  if (sqlite3_column_type(st, column) == SQLITE_NULL) return dibs__sql_null();
  if (as == DIBS__SQL_NUMBER) return dibs__sql_number(sqlite3_column_int64(st, column));
  const char *p = sqlite3_column_blob(st, column); /* of a text, too: it needs no memory */
  return (value){.kind = as, .p = p ? p : "", .len = (uint32_t)sqlite3_column_bytes(st, column)};
}

static value cell_at(const struct dibs__sql_wire *base, size_t nth, size_t row, size_t column, enum dibs__sql_kind as) {
  const wire_t *w = (const wire_t *)base;
  if (w->link->at_row) return cell_of(w->link->at_row, (int)column, as);
  const struct answer *answer = answer_at(w, nth);
  if (row >= answer->rows || column >= answer->columns) return dibs__sql_null();
  struct cell *cell = &w->cells[answer->first + row * answer->columns + column];
  if (cell->kind == DIBS__SQL_NULL) return dibs__sql_null();
  if (as == DIBS__SQL_NUMBER) return cell_as_number(w, cell);
  value v = {.kind = as};
  if (cell->kind == DIBS__SQL_NUMBER) {
    if (!cell->len) cell->len = (uint32_t)snprintf(cell->digits, sizeof cell->digits, "%lld", (long long)cell->number);
    v.p = cell->digits;
  } else {
    v.p = w->memory + cell->at;
  }
  v.len = cell->len;
  return v;
}

/* By the rules of affinity; a column of instants is known by its name.  An integer primary key has no index. */
#define KIND                                                                                                           \
  "CASE WHEN c.type = '' OR c.type LIKE '%BLOB%' THEN '*' WHEN c.type LIKE '%INT%' THEN 'N'"                           \
  " WHEN c.type LIKE '%CHAR%' OR c.type LIKE '%CLOB%' OR c.type LIKE '%TEXT%' THEN 't'"                                \
  " WHEN c.type LIKE '%REAL%' OR c.type LIKE '%FLOA%' OR c.type LIKE '%DOUB%' OR c.type LIKE '%,%' THEN 'o'"           \
  " WHEN c.type LIKE '%DATE%' OR c.type LIKE '%TIME%' THEN 'i'"                                                        \
  " WHEN c.type LIKE 'NUM%' OR c.type LIKE 'DEC%' OR c.type LIKE 'BOOL%' THEN 'N' ELSE 'o' END"
/* A column of numbers may have instants as texts if it is called a date or a time. */
#define COLUMNS_OF                                                                                                     \
  "SELECT c.name, " KIND ", c.type, c.hidden > 1, CASE WHEN " KIND " IN ('t', 'i', '*') THEN 't' ELSE '' END,"         \
  " c.\"notnull\" FROM pragma_table_xinfo($2, NULLIF($1, '')) c"
#define UNIQUE_OF                                                                                                      \
  "SELECT max(i.name) FROM pragma_index_list($2, NULLIF($1, '')) l, pragma_index_info(l.name, NULLIF($1, '')) i"       \
  " WHERE l.\"unique\" AND NOT l.partial GROUP BY l.name HAVING count(*) = 1 AND max(i.cid) >= 0 UNION ALL"            \
  " SELECT max(c.name) FROM pragma_table_xinfo($2, NULLIF($1, '')) c WHERE c.pk > 0 HAVING count(*) = 1"

/* An instant keeps the form of the old one, as other programs compare the texts: its separator, the digits of its
 * fraction, and whether it names its zone, which is then UTC.  A NULL has the form of the other column. */
#define OLD "COALESCE(@c, @o, '')"
#define TEXT_OF_MS                                                                                                     \
  "strftime('%Y-%m-%d', @x / 1000, 'unixepoch') || CASE WHEN substr(" OLD ", 11, 1) = 'T' THEN 'T' ELSE ' ' END"       \
  " || strftime('%H:%M:%S', @x / 1000, 'unixepoch') || CASE WHEN " OLD " = '' THEN printf('.%03d', @x % 1000)"         \
  " WHEN substr(" OLD ", 20, 1) = '.' THEN substr(printf('.%03d000000', @x % 1000), 1,"                                \
  " 1 + length(substr(" OLD ", 21)) - length(ltrim(substr(" OLD ", 21), '0123456789'))) ELSE '' END"                   \
  " || CASE ltrim(substr(" OLD ", 20), '.0123456789') WHEN '' THEN '' WHEN 'Z' THEN 'Z' ELSE '+00:00' END"
static const struct dibs__sql_instant instants[] = {
    {.letter = DIBS__INSTANT_TEXT,
     .value = TEXT_OF_MS,
     .ms = "CAST(round((julianday(@c) - 2440587.5) * 86400000.0) AS INTEGER)",
     .text = "@c",
     .usable = "(typeof(@c) = 'text' AND @c GLOB '[0-9][0-9][0-9][0-9]-[0-9][0-9]-[0-9][0-9]*'"
               " AND julianday(@c) IS NOT NULL)",
     .by_ms = true},
    {.letter = DIBS__INSTANT_MS, .value = "@x", .ms = "@c", .text = "@c", .usable = "typeof(@c) = 'integer'"},
    {.letter = DIBS__INSTANT_S,
     .value = "(@x / 1000)",
     .ms = "(@c * 1000)",
     .text = "@c",
     .usable = "typeof(@c) = 'integer'"},
    {.letter = '\0'}};

const struct dibs__sql_engine dibs__sqlite_engine = {
    .name = "SQLite",
    .words = DIBS__SQLITE_WORDS,
    .quote = '"',
    .begin = "BEGIN IMMEDIATE",
    .for_update = "",
    .latest = "",
    .sees_latest = "1", /* if it doesn't, the transaction can't write any more */
    .now_ms = DIBS__SQLITE_NOW_MS,
    .start_ms = DIBS__SQLITE_NOW_MS,
    .returning = true,
    .update_returning = true,
    .on_conflict = true,
    .sessions = false,
    .instr = true,
    .by = {" INDEXED BY ", ""},
    .any = {" IN (", ")"},
    .row = "nr",
    .columns = COLUMNS_OF,
    .unique = UNIQUE_OF,
    .fold = true,
    .exact = {"CAST(", " AS TEXT) COLLATE BINARY"},
    .whole = {"typeof(", ") = 'integer'"},
    .as_is = {"quote(", ")"},
    .instants = instants,
    .put = wire_put,
    .put_rows = wire_put_rows,
    .go = wire_go,
    .rows = wire_rows,
    .changed = wire_changed,
    .cell = cell_at,
};

/* ---- Statements of the rows ---- */

/* With the link's own prepared statements.  A first row is read where it is: copying its cells would cost more than
 * reading them. */
static sql_rc run_kept(struct dibs__rows *rows, unsigned text, const value *values, size_t count, bool first) {
  struct dibs__sqlite_link *l = (struct dibs__sqlite_link *)rows;
  wire_t *w = l->wire;
  sqlite3_stmt *st = dibs__sqlite_ready(l, text);
  w->answer_count = w->cell_count = w->memory_used = 0;
  w->gone = true;
  w->failed = false;
  if (!st) return DIBS__SQL_FAILED;
  struct answer *answer = first ? NULL : next_answer(w);
  int code = first || answer ? bind_values(st, values, count) : SQLITE_NOMEM;
  if (code == SQLITE_OK && first) {
    code = sqlite3_step(st);
    if (code == SQLITE_ROW) {
      l->at_row = st;
      return DIBS__SQL_OK;
    }
    if (code == SQLITE_DONE) code = SQLITE_OK;
  } else if (code == SQLITE_OK) {
    code = run_statement(w, st, answer);
  }
  if (code != SQLITE_OK) dibs__sqlite_broke(l, code);
  sqlite3_reset(st);
  return code == SQLITE_OK ? DIBS__SQL_OK : DIBS__SQL_FAILED;
}

/* ---- Opening and closing ---- */

void dibs__sqlite_wire_close(wire_t *w) {
  if (!w) return;
  for (size_t i = 0; i < KEPT; i++) close_kept(&w->kept[i]);
  (void)sqlite3_create_module_v2(w->db, w->rows_name, NULL, NULL, NULL);
  free(w->answers);
  free(w->cells);
  free(w->memory);
  free(w);
}

static wire_t *open_wire(struct dibs__sqlite_link *l) {
  static _Atomic unsigned last;
  wire_t *w = calloc(1, sizeof *w);
  if (!w) return NULL;
  w->db = l->db;
  w->link = l;
  w->base.engine = &dibs__sqlite_engine;
  w->base.inside = l->inside;
  snprintf(w->rows_name, sizeof w->rows_name, "dibs_rows_%u", atomic_fetch_add(&last, 1) + 1);
  int code = sqlite3_create_module_v2(w->db, w->rows_name, &rows_module, w, NULL);
  if (code == SQLITE_OK) return w;
  dibs__sqlite_wire_close(w);
  return NULL;
}

struct dibs__sql_wire *dibs__sqlite_wire(struct dibs__sqlite_link *l) {
  if (!l->wire) l->wire = open_wire(l);
  if (!l->wire) {
    dibs__sqlite_broke(l, SQLITE_NOMEM);
    return NULL;
  }
  l->rows = (struct dibs__rows){.wire = &l->wire->base, .run = run_kept};
  l->wire->base.by = l->by;
  return &l->wire->base;
}
