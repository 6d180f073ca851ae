/* SPDX-License-Identifier: MIT */
/* PostgreSQL as an engine. */
#include "drivers/postgres_parts.h"

#include <stdio.h>
#include <string.h>

const char *const dibs__pg_schemes[] = {"postgres", "postgresql", NULL};

/* The timeline is the one that is written now: what pg_control_checkpoint() tells is the last checkpoint's, which
 * after a promotion is the old one for a while. */
#define LIFE                                                                                                           \
  "SELECT (pg_control_system()).system_identifier::text || '/' || substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8)"

static const char *life(bool fleeting) {
  return fleeting ? LIFE " || '/' || date_part('epoch', pg_postmaster_start_time())::text" : LIFE;
}

static const char *no_more(uint32_t version, size_t nth) {
  (void)version;
  (void)nth;
  return NULL;
}

/* The lock is the database's, for all schemas of it: they are made once. */
#define SCHEMA_LOCK "715013982264219" /* the letters d i b s, and 91 */

static step_t lock_schema(struct dibs__sql_wire *wire, bool lock) {
  const struct dibs__pg_wire *w = (const struct dibs__pg_wire *)wire;
  if (!lock) return dibs__pg_put(wire, "SELECT pg_advisory_unlock(" SCHEMA_LOCK ")", NULL, 0);
  step_t end = dibs__pg_put(wire, "SELECT pg_advisory_lock(" SCHEMA_LOCK ")", NULL, 0);
  /* CREATE SCHEMA IF NOT EXISTS wants the right to create also where there is one.  The name is a word of letters,
   * digits and _. */
  char text[sizeof "DO $$ BEGIN IF to_regnamespace('\"\"') IS NULL THEN CREATE SCHEMA \"\"; END IF; END $$" +
            2 * DIBS__FAR_WORD_MAX];
  snprintf(text, sizeof text,
           "DO $$ BEGIN IF to_regnamespace('\"%s\"') IS NULL THEN CREATE SCHEMA \"%s\"; END IF; END $$",
           w->store->options.schema, w->store->options.schema);
  return end == DIBS__SQL_FINE ? dibs__pg_put(wire, text, NULL, 0) : end;
}

const struct dibs__far_engine dibs__pg_engine = {
    .sql =
        {
            .name = "PostgreSQL",
            .words = {.number = "bigint",
                      .name = "text COLLATE \"C\"",
                      .text = "text",
                      .id = "bytea",
                      .bytes = "bytea",
                      /* Room for the next version of a row on its page. */
                      .tail = " WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.02,"
                              " autovacuum_analyze_scale_factor = 0.5)",
                      .some = " WHERE "},
            .quote = '"',
            .begin = "BEGIN",
            .for_update = " FOR UPDATE",
            .now_ms = "floor(date_part('epoch', clock_timestamp()) * 1000)::bigint",
            .on_conflict = true,
            .returning = true,
            .update_returning = true,
            .sessions = true,
            .put = dibs__pg_put,
            .put_rows = dibs__pg_put_rows,
            .go = dibs__pg_go,
            .rows = dibs__pg_rows,
            .changed = dibs__pg_changed,
            .cell = dibs__pg_cell,
        },
    .schemes = dibs__pg_schemes,
    .params = dibs__pg_params,
    .caps = 0,
    .prepare = dibs__pg_prepare,
    .forget = dibs__pg_forget,
    .connect = dibs__pg_connect,
    .close = dibs__pg_close,
    .adopt = dibs__pg_adopt,
    .life = life,
    .schema = no_more,
    .lock_schema = lock_schema,
    .lazy = "SET LOCAL synchronous_commit = off",
    /* The bell holds it for itself as long as it lives. */
    .alive = "CASE WHEN pg_try_advisory_xact_lock_shared($s) THEN 0 ELSE 1 END",
    .bell_open = dibs__pg_bell_open,
    .bell_close = dibs__pg_bell_close,
    .bell_wait = dibs__pg_bell_wait,
    .bell_wake = dibs__pg_bell_wake,
    .ring_after = dibs__pg_ring_after,
    .fast = dibs__pg_fast,
};
