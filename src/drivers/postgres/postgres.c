/* SPDX-License-Identifier: MIT */
/*
 * PostgreSQL as an engine, and its driver: a module, loaded when its scheme is first used.  With lock=advisory leases
 * are the server's own locks.
 *
 * The notifier is a connection that holds the advisory lock named after its session, and listens on the session's
 * channel.
 *
 * Notifications are sent by statements of their own after COMMIT: a transaction with NOTIFY commits alone in the
 * whole database.  They do not wait for the disk: a crash that loses a notification also ends the wait.  A payload is
 * hex digits: the kind (2), then the event as it travels (server.h).
 *
 * All notifiers of a store also listen on its channel of tasks.
 */
#include "drivers/postgres/postgres_impl.h"
#include "drivers/session_lock/session_lock.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PARTING_MS = 300, CHANNEL_SIZE = 32, PAYLOAD = 2 + 2 * DIBS__SERVER_NOTICE_BYTES };

struct notifier {
  struct dibs__pg_wire *w;
  int wake;
};

static void channel_of(uint64_t session, char channel[CHANNEL_SIZE]) {
  snprintf(channel, CHANNEL_SIZE, "dibs_%016" PRIx64, session);
}

/* Of all processes that use these tables. */
static void channel_of_tasks(const struct dibs__server *store, char channel[CHANNEL_SIZE]) {
  snprintf(channel, CHANNEL_SIZE, "dibs_t_%016" PRIx64, dibs__pg_hash(store->options.schema, store->options.prefix));
}

/* ---- Opening ---- */

static sql_rc listen_on(const struct dibs__server *store, struct dibs__pg_wire *w, uint64_t session) {
  char channel[CHANNEL_SIZE], text[CHANNEL_SIZE + 16];
  struct dibs__sql_value v = dibs__sql_number((int64_t)session);
  channel_of(session, channel);
  snprintf(text, sizeof text, "LISTEN %s", channel);
  sql_rc end = dibs__pg_put(&w->wire, text, NULL, 0);
  channel_of_tasks(store, channel);
  snprintf(text, sizeof text, "LISTEN %s", channel);
  if (end == DIBS__SQL_OK) end = dibs__pg_put(&w->wire, text, NULL, 0);
  /* A process that checks whether this session is alive holds the lock for a moment; an older notifier of ours that is
   * not known to be dead yet holds it longer. */
  if (end == DIBS__SQL_OK) end = dibs__pg_put(&w->wire, "SELECT pg_advisory_lock($1)", &v, 1);
  return end == DIBS__SQL_OK ? dibs__pg_go(&w->wire, false) : end;
}

static void notifier_close(void *notifier) {
  struct notifier *b = notifier;
  if (!b) return;
  /* Unlocks at once, rather than when the server ends the connection: until then our waiters seem to be alive. */
  if (b->w && !b->w->last_message[0]) {
    b->w->wire.by = dibs__tick_add_ms(dibs__tick_now(), PARTING_MS);
    if (dibs__pg_put(&b->w->wire, "SELECT pg_advisory_unlock_all()", NULL, 0) == DIBS__SQL_OK)
      (void)dibs__pg_go(&b->w->wire, false);
  }
  dibs__pg_wire_free(b->w);
  if (b->wake >= 0) dibs__notifier_close(b->wake);
  free(b);
}

static dibs__status notifier_open(struct dibs__server *store, uint64_t session, dibs__tick by, void **notifier,
                                  struct dibs__result *result) {
  *notifier = NULL;
  struct notifier *b = calloc(1, sizeof *b);
  if (!b) return DIBS_NO_MEMORY;
  b->wake = dibs__notifier_open();
  dibs__status status = DIBS_UNAVAILABLE;
  if (b->wake < 0)
    dibs__set_message(result, "no file descriptor for notifications of %s", store->shown);
  else
    status = dibs__pg_open_wire(store, by, &b->w, result);
  if (status == DIBS_OK && listen_on(store, b->w, session) != DIBS__SQL_OK)
    status = dibs__sql_explain(&b->w->wire, "listen for notifications in", store->shown, result);
  if (status == DIBS_OK) {
    *notifier = b;
    return DIBS_OK;
  }
  notifier_close(b);
  return status;
}

static void notifier_wake(void *notifier) {
  dibs__notifier_raise(((struct notifier *)notifier)->wake);
}

/* ---- Receiving ---- */

static int hex_digit(char c) {
  return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

static bool read_hex(const char *from, size_t digits, uint8_t *to) {
  for (size_t i = 0; i < digits; i += 2) {
    int high = hex_digit(from[i]), low = hex_digit(from[i + 1]);
    if (high < 0 || low < 0) return false;
    to[i / 2] = (uint8_t)(high << 4 | low);
  }
  return true;
}

/* false: not a payload of ours.  Any other payload only makes the waiters check again. */
static bool read_payload(const char *text, struct dibs__event *event) {
  uint8_t what, bytes[DIBS__SERVER_NOTICE_BYTES];
  *event = (struct dibs__event){.what = DIBS__EV_RECHECK};
  if (strlen(text) != PAYLOAD || !read_hex(text, 2, &what) || what > DIBS__EV_TASKS) return false;
  if (!read_hex(text + 2, 2 * sizeof bytes, bytes)) return false;
  dibs__server_notice_read(bytes, event);
  event->what = (enum dibs__event_what)what;
  return true;
}

static size_t read_notifications(struct notifier *b, struct dibs__event *events, size_t cap) {
  size_t count = 0;
  PGnotify *n;
  while (count < cap && (n = PQnotifies(b->w->pg))) {
    (void)read_payload(n->extra, &events[count++]);
    PQfreemem(n);
  }
  return count;
}

static dibs__status notifier_wait(void *notifier, struct dibs__event *events, size_t cap, size_t *count,
                                  dibs__tick by) {
  struct notifier *b = notifier;
  struct pollfd fds[] = {{.fd = PQsocket(b->w->pg), .events = POLLIN}, {.fd = b->wake, .events = POLLIN}};
  *count = read_notifications(b, events, cap); /* events that did not fit into the array the last time */
  while (*count == 0) {
    int64_t left = by.ns == DIBS__TICK_NEVER.ns ? -1 : dibs__tick_left_ms(dibs__tick_now(), by);
    int got = poll(fds, 2, left > INT_MAX ? INT_MAX : (int)left);
    if (got < 0 && errno != EINTR) return DIBS_UNAVAILABLE;
    if (got == 0 && left >= 0) return DIBS_OK;
    if (got <= 0) continue;
    if (fds[0].revents && (!PQconsumeInput(b->w->pg) || PQstatus(b->w->pg) != CONNECTION_OK)) return DIBS_UNAVAILABLE;
    *count = read_notifications(b, events, cap);
    if (b->w->last_message[0]) return DIBS_UNAVAILABLE;
    if (!fds[1].revents) continue;
    dibs__notifier_lower(b->wake);
    return DIBS_OK;
  }
  return DIBS_OK;
}

/* ---- Sending ---- */

static void write_payload(const struct dibs__event *event, char text[PAYLOAD + 1]) {
  static const char digits[] = "0123456789abcdef";
  uint8_t bytes[DIBS__SERVER_NOTICE_BYTES];
  dibs__server_notice_write(event, bytes);
  char *at = text + snprintf(text, 3, "%02x", (unsigned)event->what);
  for (size_t i = 0; i < sizeof bytes; i++) {
    *at++ = digits[bytes[i] >> 4];
    *at++ = digits[bytes[i] & 15];
  }
  *at = '\0';
}

static sql_rc notify_after(struct dibs__server *store, struct dibs__sql_wire *wire,
                           const struct dibs__server_notice *notices, const int64_t *where, size_t count) {
  char channel[CHANNEL_SIZE], payload[PAYLOAD + 1];
  (void)store;
  (void)where;
  for (size_t i = 0; i < count; i++) {
    channel_of(notices[i].session, channel);
    write_payload(&notices[i].event, payload);
    struct dibs__sql_value v[] = {dibs__sql_text(channel, strlen(channel)), dibs__sql_text(payload, PAYLOAD)};
    sql_rc end = dibs__pg_put(wire, "SELECT pg_notify($1, $2), set_config('synchronous_commit', 'off', true)", v, 2);
    if (end != DIBS__SQL_OK) return end;
  }
  return DIBS__SQL_OK;
}

/* The server sends equal notifications of one transaction once; those of several transactions may be many, but a worker
 * takes them together. */
static sql_rc notify_tasks(struct dibs__server *store, struct dibs__sql_wire *wire, struct dibs__op *const ops[],
                           size_t count) {
  (void)ops, (void)count;
  char channel[CHANNEL_SIZE], payload[PAYLOAD + 1];
  channel_of_tasks(store, channel);
  write_payload(&(struct dibs__event){.what = DIBS__EV_TASKS}, payload);
  struct dibs__sql_value v[] = {dibs__sql_text(channel, strlen(channel)), dibs__sql_text(payload, PAYLOAD)};
  sql_rc end = dibs__pg_put(wire, "SELECT pg_notify($1, $2), set_config('synchronous_commit', 'off', true)", v, 2);
  return end == DIBS__SQL_OK ? dibs__pg_go(wire, false) : end;
}

/* ---- The engine ---- */

const char *const dibs__pg_schemes[] = {"postgres", "postgresql", NULL};

/* The timeline is the current one: pg_control_checkpoint() gives the last checkpoint's, which after a promotion is the
 * old one for a while.  Tables that a restored dump creates again have another oid, and oids are not used twice. */
#define INCARNATION                                                                                                    \
  "SELECT (pg_control_system()).system_identifier::text || '/' || substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8)" \
  " || coalesce('/' || to_regclass('dibs_meta')::oid::text, '')"

static const char *incarnation(bool fleeting) {
  return fleeting ? INCARNATION " || '/' || date_part('epoch', pg_postmaster_start_time())::text" : INCARNATION;
}

static const char *no_more(uint32_t version, size_t nth) {
  (void)version;
  (void)nth;
  return NULL;
}

/* The lock covers the database, with all its schemas: a schema is made once. */
#define SCHEMA_LOCK "715013982264219" /* the letters d i b s, and 91 */

static sql_rc lock_schema(struct dibs__sql_wire *wire, bool lock) {
  const struct dibs__pg_wire *w = (const struct dibs__pg_wire *)wire;
  if (!lock) return dibs__pg_put(wire, "SELECT pg_advisory_unlock(" SCHEMA_LOCK ")", NULL, 0);
  /* Clients that start together wait for the first one: all tables take longer than the timeout for a row's lock. */
  sql_rc end = dibs__pg_put(wire, "SELECT set_config('lock_timeout', '60000', true), pg_advisory_lock(" SCHEMA_LOCK ")",
                            NULL, 0);
  /* CREATE SCHEMA IF NOT EXISTS requires the right to create even if the schema exists.  The name is a word of letters,
   * digits and _. */
  char text[sizeof "DO $$ BEGIN IF to_regnamespace('\"\"') IS NULL THEN CREATE SCHEMA \"\"; END IF; END $$" +
            2 * DIBS__SERVER_WORD_MAX];
  snprintf(text, sizeof text,
           "DO $$ BEGIN IF to_regnamespace('\"%s\"') IS NULL THEN CREATE SCHEMA \"%s\"; END IF; END $$",
           w->store->options.schema, w->store->options.schema);
  return end == DIBS__SQL_OK ? dibs__pg_put(wire, text, NULL, 0) : end;
}

/* The catalogue.  The base type of a domain counts; a collation that is not deterministic treats different texts as
 * equal. */
#define THE_TABLE "to_regclass(CASE WHEN $1 = '' THEN '' ELSE quote_ident($1) || '.' END || quote_ident($2))"
static const char columns[] =
    "SELECT a.attname::text, CASE WHEN b.typname = 'int8' THEN 'N' WHEN b.typname IN ('int2', 'int4') THEN 'n'"
    " WHEN b.typname = 'numeric' AND a.atttypmod >= 4 AND (a.atttypmod - 4) & 65535 = 0"
    " AND (a.atttypmod - 4) >> 16 <= 18 THEN 'n'"
    " WHEN b.typname IN ('text', 'varchar') THEN CASE WHEN l.collisdeterministic THEN 't' ELSE 'c' END"
    " WHEN b.typname IN ('bpchar', 'name', 'citext') OR b.typtype = 'e' THEN 'c'"
    " WHEN b.typname IN ('timestamp', 'timestamptz', 'date') THEN 'i' ELSE 'o' END,"
    " format_type(a.atttypid, a.atttypmod) || CASE WHEN COALESCE(l.collisdeterministic, true) THEN '' ELSE"
    " ' COLLATE ' || l.collname || ', which takes different texts for the same' END,"
    " CASE WHEN a.attgenerated <> '' OR a.attidentity = 'a' THEN 1 ELSE 0 END,"
    " CASE b.typname WHEN 'timestamptz' THEN 'z' WHEN 'timestamp' THEN 'p' ELSE '' END,"
    " CASE WHEN a.attnotnull THEN 1 ELSE 0 END"
    " FROM pg_catalog.pg_attribute a JOIN pg_catalog.pg_type t ON t.oid = a.atttypid"
    " JOIN pg_catalog.pg_type b ON b.oid = CASE WHEN t.typtype = 'd' THEN t.typbasetype ELSE t.oid END"
    " LEFT JOIN pg_catalog.pg_collation l ON l.oid = a.attcollation"
    " WHERE a.attrelid = " THE_TABLE " AND a.attnum > 0 AND NOT a.attisdropped";
static const char unique[] =
    "SELECT a.attname::text FROM pg_catalog.pg_index i JOIN pg_catalog.pg_attribute a ON a.attrelid = i.indrelid"
    " AND a.attnum = i.indkey[0] WHERE i.indrelid = " THE_TABLE " AND i.indisunique AND i.indisvalid"
    " AND i.indpred IS NULL AND i.indnkeyatts = 1";

#define NOW_MS "floor(date_part('epoch', clock_timestamp()) * 1000)::bigint"

/* In microseconds first: 0.123 of a second may be less than 123 ms. */
#define MS_OF "CASE WHEN isfinite(@c) THEN floor(round((date_part('epoch', @c) * 1000000)::numeric) / 1000)::bigint END"
static const struct dibs__sql_instant instants[] = {
    {.letter = DIBS__INSTANT_ZONED,
     .value = "to_timestamp(@x / 1000.0)",
     .ms = MS_OF,
     .text = "to_char(@c AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS.US')"},
    {.letter = DIBS__INSTANT_PLAIN,
     .value = "(to_timestamp(@x / 1000.0) AT TIME ZONE 'UTC')",
     .ms = MS_OF,
     .text = "to_char(@c, 'YYYY-MM-DD HH24:MI:SS.US')"},
    {.letter = DIBS__INSTANT_MS, .value = "@x", .ms = "@c", .text = "@c"},
    {.letter = DIBS__INSTANT_S, .value = "(@x / 1000)", .ms = "(@c * 1000::bigint)", .text = "@c"},
    {.letter = '\0'}};

const struct dibs__server_engine dibs__pg_engine = {
    .sql =
        {
            .name = "PostgreSQL",
            .words = {.number = "bigint",
                      .name = "text COLLATE \"C\"",
                      .text = "text",
                      .id = "bytea",
                      .bytes = "bytea",
                      /* Space for the next version of a row on its page. */
                      .tail = " WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.02,"
                              " autovacuum_analyze_scale_factor = 0.5)",
                      .some = " WHERE ",
                      .counted = "bigint GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY",
                      .now = " DEFAULT (" NOW_MS ")",
                      .checks = ", CHECK (nr > 0)"},
            .quote = '"',
            .begin = "BEGIN",
            .for_update = " FOR UPDATE",
            .latest = "", /* no clause does, with an aggregate or with REPEATABLE READ */
            .sees_latest = "CASE WHEN current_setting('transaction_isolation') LIKE 'read %' THEN 1 ELSE 0 END",
            .now_ms = NOW_MS,
            .start_ms = "(SELECT " NOW_MS ")",
            .on_conflict = true,
            .returning = true,
            .update_returning = true,
            .sessions = true,
            .typed = true,
            .by = {NULL, NULL},
            .any = {" = ANY (ARRAY(", "))"},
            .row = "ctid",
            .turn = "SELECT 1 FROM pg_advisory_xact_lock(hashtextextended('a claim of ' || $1, 0))",
            .columns = columns,
            .unique = unique,
            .exact = {"CAST(", " AS text) COLLATE \"C\""},
            .instants = instants,
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
    .lend = dibs__pg_lend,
    .script = dibs__pg_script,
    .describe = dibs__pg_describe,
    .in_transaction = dibs__pg_in_transaction,
    .incarnation = incarnation,
    .schema = no_more,
    .lock_schema = lock_schema,
    .lazy = "SET LOCAL synchronous_commit = off",
    /* The notifier holds the lock as long as it is alive. */
    .alive = "CASE WHEN pg_try_advisory_xact_lock_shared($s) THEN 0 ELSE 1 END",
    .notifier_open = notifier_open,
    .notifier_close = notifier_close,
    .notifier_wait = notifier_wait,
    .notifier_wake = notifier_wake,
    .notify_after = notify_after,
    .notify_tasks = notify_tasks,
    .fast = dibs__pg_fast,
};

/* ---- The driver ---- */

static dibs__status open_store(const struct dibs__uri *uri, struct dibs__dstore *const inner[], size_t count,
                               dibs__tick by, struct dibs__dstore **store, struct dibs__result *result) {
  (void)inner, (void)count;
  return dibs__session_lock_open(&dibs__pg_engine, &dibs__pg_locking, uri, by, store, result);
}

extern const struct dibs__driver dibs__postgres_driver;
const struct dibs__driver dibs__postgres_driver = DIBS__SERVER_DRIVER("postgres", dibs__pg_schemes, open_store);
