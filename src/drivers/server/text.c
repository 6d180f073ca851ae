/* SPDX-License-Identifier: MIT */
/*
 * The statements that servers share, beside those of every engine (sql/schema.c).  $1 is the bucket and $2 the name
 * wherever a statement needs both.
 *
 * Opening a store puts in what differs (sql/text.h): the prefix, the engine's words, and @{alive} whether the session
 * of a row is alive, @{alive1} the same of $1, @{ours} whether a bucket's state, NULL taken for 0, is one under which
 * this open may be granted.  Of its `seq`: @{floor} is the number that a draw begins above, @{lead} the largest that it
 * may reach, @{end} the end of the range; see dibs__sql_draw.
 */
#include "base/text.h"
#include "drivers/server/server_impl.h"
#include "sql/text.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define OF_NAME " WHERE bucket = $1 AND name = $2"
#define SEEN DIBS__ROWS_WAITER "@{seen}, " DIBS__ROWS_ONLY_HEAD
#define QUOTE(x) #x
#define QUOTED(x) QUOTE(x)
#define CLOCK_BASE "coalesce(since, 1767225600000)"
_Static_assert(DIBS__SQL_BASE_MS == 1767225600000 && DIBS__SQL_PER_MS == 1024 && DIBS__SQL_LEAD_MS == 1000 &&
                   DIBS__SEQ_MAX == 4294967295,
               "as in the texts");

static const char *const texts[DIBS__SERVER_TEXTS] = {
    [DIBS__SERVER_META] = "SELECT version, life, boot FROM dibs_meta WHERE one = 1",
    [DIBS__SERVER_META_LOCK] = "SELECT version, life, boot FROM dibs_meta WHERE one = 1@{lock}",
    [DIBS__SERVER_META_ADD] = "INSERT INTO dibs_meta (one, version, life) VALUES (1, $1, $2)",
    [DIBS__SERVER_META_VERSION] = "UPDATE dibs_meta SET version = $1 WHERE one = 1",
    [DIBS__SERVER_META_INCARNATION] = "UPDATE dibs_meta SET life = $1, device = NULL, inode = NULL WHERE one = 1",
    /* In a server `device` is the instant at which an incarnation was seen that has not begun yet, and `inode` a digest
     * of it. */
    [DIBS__SERVER_META_NOTED] = "SELECT coalesce(device, 0), coalesce(inode, 0), @{now} FROM dibs_meta WHERE one = 1",
    [DIBS__SERVER_META_NOTE] = "UPDATE dibs_meta SET device = @{now}, inode = $1 WHERE one = 1",
    [DIBS__SERVER_META_KIND] = "UPDATE dibs_meta SET boot = $1 WHERE one = 1",
    [DIBS__SERVER_LIVE] = "(SELECT 1 AS one FROM dibs_name WHERE place = 0 AND name <> '' AND until > @{now} LIMIT 1)"
                          " UNION ALL (SELECT 1 FROM dibs_holder WHERE until > @{now} LIMIT 1)",
    /* `since` of a bucket's row: clock_base */
    [DIBS__SERVER_BUCKET] =
        "SELECT life, epoch, seq, state, since FROM dibs_name WHERE bucket = $1 AND name = '' AND place = 0",
    [DIBS__SERVER_BUCKET_LOCK] =
        "SELECT life, epoch, seq, state, since FROM dibs_name WHERE bucket = $1 AND name = '' AND place = 0@{lock}",
    [DIBS__SERVER_BUCKET_SET] =
        "UPDATE dibs_name SET epoch = $2, seq = $3, since = nullif($4, 0) WHERE bucket = $1 AND "
        "name = '' AND place = 0",
    [DIBS__SERVER_BUCKET_DRAW] =
        "UPDATE dibs_name SET seq = @{floor} + $2 WHERE bucket = $1 AND name = '' AND place = 0"
        " AND epoch = $3 AND life = $4 AND seq <= @{end} - $2"
        " AND (coalesce(state, 0) @{ours} OR state = 3)",
    [DIBS__SERVER_BUCKETS_LOCK] =
        "SELECT bucket, epoch FROM dibs_name WHERE name = '' AND place = 0 ORDER BY bucket@{lock}",
    /* DIBS__SQL_VOID; dibs__sql_epoch_above.  Fences that were drawn leave a trace.  MariaDB evaluates from left to
     * right, with the values already set: so `seq`, `epoch`, `state`. */
    [DIBS__SERVER_BUCKETS_SET] = "UPDATE dibs_name SET life = $1,"
                                 " seq = CASE WHEN state IS NULL THEN greatest(seq - ($2 - epoch) * 4294967296,"
                                 " CASE WHEN seq > 0 THEN 1 ELSE 0 END) ELSE 0 END,"
                                 " epoch = CASE WHEN state IS NULL THEN $2 ELSE epoch END,"
                                 " state = CASE WHEN state IS NULL THEN NULL ELSE 2 END WHERE name = '' AND place = 0",
    [DIBS__SERVER_NOW] = "SELECT @{now}",

    [DIBS__SERVER_AHEAD_OF] = "SELECT " SEEN " FROM dibs_name" OF_NAME " ORDER BY place LIMIT $3@{lock}",

    [DIBS__SERVER_RECORD_LOCK] = "SELECT fence, digest, version, data FROM dibs_record WHERE name = $1@{lock}",
    /* So that there is a row to lock: two that make the same record would not see each other. */
    [DIBS__SERVER_RECORD_STUB] = "INSERT INTO dibs_record (name, fence, digest, version) VALUES ($1, 0, 0, 0)@{leave}",
    [DIBS__SERVER_RECORD_SEAL] = "UPDATE dibs_record SET fence = $2, digest = $3 WHERE name = $1",
    [DIBS__SERVER_RECORD_SAVE] =
        "UPDATE dibs_record SET fence = $2, digest = $3, version = $4, data = $5 WHERE name = $1",

    /* One statement, so one instant.  After the columns of a row: the name, and its kind. */
    [DIBS__SERVER_LIST_ROWS] =
        "SELECT " SEEN ", name, CASE WHEN place = 0 THEN 0 ELSE 2 END AS kind, 0 AS slot, @{now}"
        " FROM dibs_name WHERE bucket IN (@{buckets}) AND name >= $1 AND name <= $2 AND name <> ''"
        " UNION ALL SELECT 0, 0, id, session, 0, 0, until, 0, ttl, since, owner, 0, 1, 0, 0, broken, 0, 0, 0, 0, 0, 0,"
        " 0, 0, name, 1, coalesce(slot, 0), 0 FROM dibs_holder WHERE bucket IN (@{buckets}) AND name >= $1 AND name <= "
        "$2"
        " ORDER BY name, kind, slot, place, since, id",
    /* Which of them may time or a gone process have changed? */
    [DIBS__SERVER_SWEEP_NAMES] =
        "SELECT bucket, name, CASE WHEN until <= $3 OR (due > 0 AND due <= $3) OR waiters > 0"
        " THEN 1 ELSE 0 END FROM dibs_name WHERE (bucket > $1 OR (bucket = $1 AND name > $2))"
        " AND place = 0 AND name <> '' ORDER BY bucket, name LIMIT " QUOTED(DIBS__SERVER_SWEEP),
    [DIBS__SERVER_SWEEP_OURS] =
        "SELECT DISTINCT bucket, name, 1 FROM dibs_name WHERE (bucket > $1 OR (bucket = $1 AND"
        " name > $2)) AND place > 0 AND session = $3 ORDER BY bucket, name LIMIT " QUOTED(DIBS__SERVER_SWEEP),
    [DIBS__SERVER_ALIVE] = "SELECT @{alive1}",
};

/* ---- Replacing ---- */

enum { WORD_CAPACITY = 512, PAGES_CAPACITY = 160 * DIBS__BUCKETS };

/* The engine's expression for whether a session is alive. */
static void make_alive(const struct dibs__server *store, const char *which, char to[WORD_CAPACITY]) {
  struct dibs__text text;
  const char *at = store->engine->alive;
  dibs__text_begin(&text, to, WORD_CAPACITY);
  for (const char *mark; (mark = strstr(at, "$s")); at = mark + 2) {
    dibs__text_add(&text, at, (size_t)(mark - at));
    dibs__text_adds(&text, which);
  }
  dibs__text_adds(&text, at);
  assert(!text.cut);
}

static void make_buckets(char to[WORD_CAPACITY]) {
  struct dibs__text text;
  dibs__text_begin(&text, to, WORD_CAPACITY);
  for (unsigned b = 0; b < DIBS__BUCKETS; b++) dibs__text_addf(&text, "%s%u", b ? ", " : "", b);
  assert(!text.cut);
}

/* DIBS__SERVER_LIST_NAMES.  The rows are in the order of bucket and name, so a page of all names is in the pages of the
 * buckets. */
static void make_list_names(char to[PAGES_CAPACITY]) {
  struct dibs__text text;
  dibs__text_begin(&text, to, PAGES_CAPACITY);
  dibs__text_adds(&text, "SELECT name FROM (");
  for (unsigned b = 0; b < DIBS__BUCKETS; b++)
    dibs__text_addf(&text,
                    "%s(SELECT name FROM dibs_name WHERE bucket = %u AND name >= $1 AND name <> '' AND place = 0"
                    " ORDER BY name LIMIT $2)",
                    b ? " UNION ALL " : "", b);
  dibs__text_adds(&text, ") p ORDER BY name LIMIT $2");
  assert(!text.cut);
}

DIBS__MODULE_API char *dibs__server_text(struct dibs__server *store, const char *from) {
  const struct dibs__sql_engine *sql = &store->engine->sql;
  char of_row[WORD_CAPACITY], of_value[WORD_CAPACITY], seen[WORD_CAPACITY + 40], floor[WORD_CAPACITY],
      lead[WORD_CAPACITY], buckets[WORD_CAPACITY];
  make_buckets(buckets);
  make_alive(store, "session", of_row);
  make_alive(store, "$1", of_value);
  snprintf(seen, sizeof seen, ", CASE WHEN place > 0 THEN %s END", of_row);
  snprintf(floor, sizeof floor,
           "CASE WHEN state IS NULL THEN greatest(seq, (%s - " CLOCK_BASE ") * 1024 - 1) ELSE seq END", sql->now_ms);
  snprintf(lead, sizeof lead,
           "CASE WHEN state IS NULL THEN (%s - " CLOCK_BASE " + 1000) * 1024 ELSE seq | 4294967295 END", sql->now_ms);
  const struct dibs__sql_word words[] = {
      {"alive", of_row},
      {"seen", seen},
      {"by_slot", ""},
      {"alive1", of_value},
      {"buckets", buckets},
      {"ours", dibs__sql_ours(store->opened)},
      {"floor", floor},
      {"lead", lead},
      {"end", "CASE WHEN state IS NULL THEN 4503599627370496 ELSE seq | 4294967295 END"},
      {NULL, NULL}};
  struct dibs__sql_names names = {.engine = sql, .prefix = store->options.prefix, .words = words};
  return dibs__sql_composed(&names, from);
}

bool dibs__server_texts_make(struct dibs__server *store) {
  store->texts = calloc(DIBS__SERVER_TEXTS, sizeof *store->texts);
  if (!store->texts) return false;
  char list_names[PAGES_CAPACITY];
  make_list_names(list_names);
  for (size_t i = 0; i < DIBS__SERVER_TEXTS; i++) {
    const char *from = i < DIBS__ROWS_TEXTS           ? dibs__rows_texts[i]
                       : i == DIBS__SERVER_LIST_NAMES ? list_names
                                                      : texts[i];
    store->texts[i] = dibs__server_text(store, from);
    if (!store->texts[i]) return false;
  }
  return true;
}

void dibs__server_texts_free(struct dibs__server *store) {
  for (size_t i = 0; store->texts && i < DIBS__SERVER_TEXTS; i++) free(store->texts[i]);
  free(store->texts);
}
