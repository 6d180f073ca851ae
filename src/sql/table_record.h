/* SPDX-License-Identifier: MIT */
#ifndef DIBS_SQL_TABLE_RECORD_H
#define DIBS_SQL_TABLE_RECORD_H
/*
 * What the files about records in the user's tables share.
 *
 *   table_record.c   which statements, and what their answers mean
 *   table_text.c     the statements
 *   table_version.c  versions: instants that grow, hashes of contents
 *
 * A write whose guards hold is one statement.  Only when it matched nothing the row is looked at, to say why; if it
 * would match by now, it is tried again.  Where the new version can't be made by the statement itself (instants, hashes
 * of what the engine made of the values) the row is locked and read first, and written in a later statement.
 */
#include "base/text.h"
#include "sql/guard.h"

enum { DIBS__TABLE_TEXT = 16384, DIBS__TABLE_VALUES = DIBS__TABLE_COLUMNS + 8 };

/* A statement that is being made. */
struct dibs__table_text {
  const struct dibs__sql_engine *engine;
  const struct dibs__record_op *op;
  struct dibs__text text;
  struct dibs__sql_value values[DIBS__TABLE_VALUES];
  size_t count;
  char memory[DIBS__TABLE_TEXT];
};

/* Columns of what is read, in this order; the table's own follow. */
enum {
  DIBS__TABLE_KEY,
  DIBS__TABLE_VERSION,
  DIBS__TABLE_FENCE,
  DIBS__TABLE_OWNER,
  DIBS__TABLE_SAME,
  DIBS__TABLE_FIRST
};

/* Each begins the text anew.  `lock`: the row is to be written in this transaction. */
void dibs__table_select(struct dibs__table_text *t, bool columns, bool lock);
/* `version`: the new one, as text; NULL: counted up, or there is none.  `guarded`: only if the operation's guards hold,
 * as far as the engine can tell them.  `returning`: with what select reads, where the engine has that. */
void dibs__table_update(struct dibs__table_text *t, const char *version, bool guarded, bool returning);
void dibs__table_seal(struct dibs__table_text *t, bool returning);
void dibs__table_insert(struct dibs__table_text *t, const char *version);
void dibs__table_delete(struct dibs__table_text *t, bool guarded);
enum dibs__sql_step dibs__table_put(struct dibs__table_text *t, struct dibs__sql_wire *wire);

/* ---- Versions ---- */

static inline bool dibs__table_hashes(const struct dibs__table *table) {
  return table->version_kind == DIBS__VERSION_HASH;
}
/* The hash is of what the row has, and stands in no column. */
static inline bool dibs__table_computes(const struct dibs__table *table) {
  return dibs__table_hashes(table) && !table->version;
}

/* SHA-256 over each column in the order of the declaration: its name, a NUL, then "-" if it is NULL, else its length in
 * digits, ":", and its bytes.  Fixed for ever. */
void dibs__table_hash(const struct dibs__table *table, const dibs_value *values, char hex[65]);

/* The server's clock (ms since 1970, UTC) as an instant, but at least `step_us` after `old`, in the form that `old` has
 * ("" : none; then in UTC).  false: `old` is no instant that we can read. */
bool dibs__table_instant(const char *old, int64_t now_ms, int64_t step_us, char *to, size_t size);

#endif
