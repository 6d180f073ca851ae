/* SPDX-License-Identifier: MIT */
/*
 * What src/sql asks of MariaDB and MySQL.
 *
 * Names are VARBINARY: compared byte by byte, blanks at the end included, whatever collation the database has.
 */
#include "drivers/mysql_parts.h"

static const char *const schemes[] = {"mysql", "mariadb", NULL};

/* What an operator sets and a restart keeps; doc/internals/mysql.md says what it notices.  When the server last began
 * is part of it where it may have lost what it had committed: lease_sync=off, or a log that is not flushed with each
 * commit.  (Uptime and the time are both counted from the instant at which the statement began, so their difference
 * is always the same.)  Comments that one of the two executes: M! is MariaDB's, !80000 MySQL's. */
static const char *life(bool fleeting) {
#define STABLE                                                                                                         \
  "SELECT CONCAT_WS(' ', @@server_id, /*!80000 @@server_uuid */ /*M! @@gtid_domain_id */, @@port, @@datadir, "
#define BEGUN                                                                                                          \
  "UNIX_TIMESTAMP() - (SELECT VARIABLE_VALUE FROM /*M! information_schema */ /*!80000 performance_schema */"           \
  " .GLOBAL_STATUS WHERE VARIABLE_NAME = 'Uptime')"
  return fleeting ? STABLE BEGUN ")" : STABLE "IF(@@innodb_flush_log_at_trx_commit = 1, NULL, " BEGUN "))";
#undef STABLE
#undef BEGUN
}

static const char *schema(uint32_t version, size_t nth) {
  /* Who rings leaves a line here for each session; who hears takes it. */
  static const char *const mail =
      "CREATE TABLE IF NOT EXISTS dibs_mail (session BIGINT NOT NULL, nr BIGINT NOT NULL, what BIGINT NOT NULL,"
      " id VARBINARY(64) NOT NULL, PRIMARY KEY (session, nr))";
  return version == 0 && nth == 0 ? mail : NULL;
}

/* An error unless we have it: a subquery of two rows is one. */
#define SCHEMA_LOCK "CONCAT('dibs.schema.', MD5(DATABASE()))"
static enum dibs__sql_step lock_schema(struct dibs__sql_wire *wire, bool lock) {
  const char *text = lock ? "SELECT CASE GET_LOCK(" SCHEMA_LOCK ", 60) WHEN 1 THEN 1 ELSE (SELECT 1 UNION SELECT 2) END"
                          : "DO RELEASE_LOCK(" SCHEMA_LOCK ")";
  return dibs__my_put(wire, text, NULL, 0);
}

/* The clock as it is evaluated, not as the statement began: who waits for a row must not read a clock from before. */
#define ENGINE(engine_name, returns)                                                                                   \
  {                                                                                                                    \
    .name = (engine_name),                                                                                             \
    .words = {.number = "BIGINT",                                                                                      \
              .name = "VARBINARY(255)",                                                                                \
              .text = "VARBINARY(255)",                                                                                \
              .id = "VARBINARY(64)",                                                                                   \
              .bytes = "LONGBLOB",                                                                                     \
              .tail = ""},                                                                                             \
    .quote = '`', .begin = "START TRANSACTION", .for_update = " FOR UPDATE",                                           \
    .now_ms = "FLOOR(UNIX_TIMESTAMP(SYSDATE(6)) * 1000)", .returning = (returns), .sessions = true, .loose = true,     \
    .put = dibs__my_put, .put_rows = dibs__my_put_rows, .go = dibs__my_go, .rows = dibs__my_rows,                      \
    .changed = dibs__my_changed, .cell = dibs__my_cell                                                                 \
  }

const struct dibs__sql_engine dibs__my_mysql = ENGINE("MySQL", false);

const struct dibs__far_engine dibs__my_engine = {
    .sql = ENGINE("MariaDB", true),
    .schemes = schemes,
    .params = dibs__my_params,
    .prepare = dibs__my_prepare,
    .forget = dibs__my_forget,
    .connect = dibs__my_connect,
    .close = dibs__my_close,
    .adopt = dibs__my_adopt,
    .life = life,
    .schema = schema,
    .lock_schema = lock_schema,
    .bell_open = dibs__my_bell_open,
    .bell_close = dibs__my_bell_close,
    .bell_wait = dibs__my_bell_wait,
    .bell_wake = dibs__my_bell_wake,
    .ring_within = dibs__my_ring_within,
    .ring_after = dibs__my_ring_after,
    .fast = dibs__my_fast,
    .alive = "IS_USED_LOCK(CONCAT('dibs.s.', $s))",
};
