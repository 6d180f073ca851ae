/* SPDX-License-Identifier: MIT */
/*
 * Every statement that servers share.  $1 is the bucket and $2 the name wherever both are asked for.
 *
 * What differs is put in when a store is opened: "dibs_" becomes the prefix, @lock what locks rows, @now the clock,
 * @alive whether the session of a row lives, @alive1 the same of $1, @leave what lets a row that is there already be,
 * @ours whether a bucket's state is one under which this open may be granted.
 */
#include "sql/far_parts.h"

#include "base/text.h"

#include <stdio.h>

#define OF_NAME " WHERE bucket = $1 AND name = $2"
#define OF_HEAD OF_NAME " AND place = 0"
#define ROW                                                                                                            \
  "place, state, id, session, mode, slots, until, deep, ttl, since, owner, first, granted, block, broken, waiters, "   \
  "holders, offers, tickets, front, reach, low_slot, due"
#define SEEN ROW ", CASE WHEN place > 0 THEN @alive END"
#define HOLDER "id, slot, until, broken, ttl, since, session, owner"
#define QUOTE(x) #x
#define QUOTED(x) QUOTE(x)

static const char *const texts[DIBS__FAR_TEXTS] = {
    [DIBS__FAR_META] = "SELECT version, life FROM dibs_meta WHERE one = 1",
    [DIBS__FAR_META_LOCK] = "SELECT version, life FROM dibs_meta WHERE one = 1@lock",
    [DIBS__FAR_META_ADD] = "INSERT INTO dibs_meta (one, version, life) VALUES (1, $1, $2)",
    [DIBS__FAR_META_VERSION] = "UPDATE dibs_meta SET version = $1 WHERE one = 1",
    [DIBS__FAR_META_LIFE] = "UPDATE dibs_meta SET life = $1 WHERE one = 1",
    [DIBS__FAR_BUCKET_ADD] =
        "INSERT INTO dibs_name (bucket, name, place, life, epoch, seq) VALUES ($1, '', 0, $2, $3, 0)",
    [DIBS__FAR_BUCKET] = "SELECT life, epoch, seq, state FROM dibs_name WHERE bucket = $1 AND name = '' AND place = 0",
    [DIBS__FAR_BUCKET_LOCK] =
        "SELECT life, epoch, seq, state FROM dibs_name WHERE bucket = $1 AND name = '' AND place = 0@lock",
    [DIBS__FAR_BUCKET_SET] = "UPDATE dibs_name SET epoch = $2, seq = $3 WHERE bucket = $1 AND name = '' AND place = 0",
    [DIBS__FAR_BUCKET_SERVE] =
        "UPDATE dibs_name SET state = nullif($2, 0) WHERE bucket = $1 AND name = '' AND place = 0",
    [DIBS__FAR_BUCKET_DRAW] = "UPDATE dibs_name SET seq = seq + $2 WHERE bucket = $1 AND name = '' AND place = 0"
                              " AND epoch = $3 AND life = $4 AND seq <= $5 AND state @ours",
    [DIBS__FAR_BUCKETS_LOCK] = "SELECT bucket, epoch FROM dibs_name WHERE name = '' AND place = 0 ORDER BY bucket@lock",
    /* DIBS__SQL_VOID.  MariaDB evaluates from left to right, with what it has set: `state` comes last. */
    [DIBS__FAR_BUCKETS_SET] = "UPDATE dibs_name SET life = $1, epoch = CASE WHEN state IS NULL THEN $2 ELSE epoch END,"
                              " seq = 0, state = CASE WHEN state IS NULL THEN NULL ELSE 2 END"
                              " WHERE name = '' AND place = 0",
    [DIBS__FAR_NOW] = "SELECT @now",

    [DIBS__FAR_AHEAD_OF] = "SELECT " SEEN " FROM dibs_name" OF_NAME " ORDER BY place LIMIT $3@lock",
    [DIBS__FAR_HEAD_ADD] =
        "INSERT INTO dibs_name (bucket, name, place, id, until, granted, first, block, broken, waiters, ttl, since,"
        " session, owner, mode, slots, holders, offers, tickets, front, reach, low_slot, state, due)"
        " VALUES ($1, $2, 0, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $21,"
        " $22, $23)",
    [DIBS__FAR_HEAD_SET] = "UPDATE dibs_name SET id = $3, until = $4, granted = $5, first = $6, block = $7,"
                           " broken = $8, waiters = $9, ttl = $10, since = $11, session = $12, owner = $13,"
                           " mode = $14, slots = $15, holders = $16, offers = $17, tickets = $18, front = $19,"
                           " reach = $20, low_slot = $21, state = $22, due = $23" OF_HEAD,
    [DIBS__FAR_HEAD_QUEUE] = "UPDATE dibs_name SET waiters = $3, mode = $4, slots = $5, holders = $6, offers = $7,"
                             " tickets = $8, front = $9, reach = $10, low_slot = $11, state = $12, due = $13" OF_HEAD,
    [DIBS__FAR_HEAD_DROP] = "DELETE FROM dibs_name" OF_HEAD,

    [DIBS__FAR_HOLDER] = "SELECT " HOLDER " FROM dibs_holder" OF_NAME " AND id = $3",
    [DIBS__FAR_HOLDER_ADD] =
        "INSERT INTO dibs_holder (bucket, name, " HOLDER ") VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)",
    [DIBS__FAR_HOLDER_SET] = "UPDATE dibs_holder SET until = $4, ttl = $5, session = $6" OF_NAME " AND id = $3",
    [DIBS__FAR_HOLDER_DROP] = "DELETE FROM dibs_holder" OF_NAME " AND id = $3",
    [DIBS__FAR_HOLDERS] = "SELECT " HOLDER " FROM dibs_holder" OF_NAME " ORDER BY slot, since, id",
    [DIBS__FAR_HOLDERS_EXPIRE] = "DELETE FROM dibs_holder" OF_NAME " AND until <= $3",
    [DIBS__FAR_HOLDERS_BREAK] = "UPDATE dibs_holder SET broken = 1" OF_NAME,
    [DIBS__FAR_HOLDERS_DROP] = "DELETE FROM dibs_holder" OF_NAME,
    [DIBS__FAR_HOLDERS_UNTIL] = "SELECT min(until) FROM dibs_holder" OF_NAME,
    [DIBS__FAR_SLOTS] = "SELECT slot FROM dibs_holder" OF_NAME " AND slot >= $3 ORDER BY slot",

    [DIBS__FAR_WAITER] = "SELECT " SEEN " FROM dibs_name" OF_NAME " AND place = $4 AND id = $3",
    [DIBS__FAR_WAITER_SHALLOW] = "SELECT " SEEN " FROM (SELECT * FROM dibs_name" OF_NAME
                                 " AND place > 0 ORDER BY place LIMIT " QUOTED(DIBS__FAR_SHALLOW) ") w WHERE id = $3",
    [DIBS__FAR_DEEP] = "SELECT place FROM dibs_deep" OF_NAME " AND id = $3",
    [DIBS__FAR_DEEP_ADD] = "INSERT INTO dibs_deep (bucket, name, id, place) VALUES ($1, $2, $3, $4)",
    [DIBS__FAR_DEEP_DROP] = "DELETE FROM dibs_deep" OF_NAME " AND id = $3",
    [DIBS__FAR_WAITER_NEXT] =
        "SELECT " SEEN " FROM dibs_name" OF_NAME " AND place >= $3 AND state = 0 ORDER BY place LIMIT 1",
    [DIBS__FAR_WAITER_OFFERED] =
        "SELECT " SEEN " FROM dibs_name" OF_NAME " AND place BETWEEN 1 AND $3 AND state = 1 ORDER BY place LIMIT 1",
    [DIBS__FAR_WAITER_ADD] =
        "INSERT INTO dibs_name (bucket, name, place, state, id, session, mode, slots, until, deep, ttl, since, owner,"
        " first) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, 0)",
    [DIBS__FAR_WAITER_SET] =
        "UPDATE dibs_name SET state = $4, until = $5, session = $6, first = $7" OF_NAME " AND place = $3",
    [DIBS__FAR_WAITER_DROP] = "DELETE FROM dibs_name" OF_NAME " AND place = $3",
    [DIBS__FAR_OFFERS_EXPIRE] =
        "UPDATE dibs_name SET state = 2, until = 0" OF_NAME " AND place BETWEEN 1 AND $3 AND state = 1 AND until <= $4",
    [DIBS__FAR_OFFERS_UNTIL] = "SELECT min(until) FROM dibs_name" OF_NAME " AND place BETWEEN 1 AND $3 AND state = 1",

    [DIBS__FAR_BREAK_ADD] = "INSERT INTO dibs_break (bucket, name, nr, at, fence, mode, owner)"
                            " SELECT $1, $2, coalesce(max(nr), 0) + 1, $3, $4, $5, $6 FROM dibs_break" OF_NAME,
    /* (In two layers, or MariaDB would not read the table that it deletes from.) */
    [DIBS__FAR_BREAK_TRIM] = "DELETE FROM dibs_break" OF_NAME
                             " AND nr <= (SELECT last FROM (SELECT max(nr) AS last FROM dibs_break" OF_NAME ") b) - $3",
    [DIBS__FAR_BREAKS] = "SELECT at, fence, mode, owner FROM dibs_break" OF_NAME " ORDER BY nr",
    [DIBS__FAR_BREAKS_OLD] = "DELETE FROM dibs_break WHERE at < $1",

    [DIBS__FAR_RECORD] = "SELECT fence, digest, version, data FROM dibs_record WHERE name = $1",
    [DIBS__FAR_RECORD_LOCK] = "SELECT fence, digest, version, data FROM dibs_record WHERE name = $1@lock",
    /* So that there is a row to lock: two that make the same record would not see each other. */
    [DIBS__FAR_RECORD_STUB] = "INSERT INTO dibs_record (name, fence, digest, version) VALUES ($1, 0, 0, 0)@leave",
    [DIBS__FAR_RECORD_SEAL] = "UPDATE dibs_record SET fence = $2, digest = $3 WHERE name = $1",
    [DIBS__FAR_RECORD_SAVE] = "UPDATE dibs_record SET fence = $2, digest = $3, version = $4, data = $5 WHERE name = $1",

    [DIBS__FAR_LIST_NAMES] = "SELECT name FROM dibs_name WHERE place = 0 AND name >= $1 AND name <> ''"
                             " ORDER BY name LIMIT " QUOTED(DIBS__FAR_LOT),
    /* One statement, so one instant.  Behind the columns of a row: the name, and what it is. */
    [DIBS__FAR_LIST_ROWS] =
        "SELECT " SEEN ", name, CASE WHEN place = 0 THEN 0 ELSE 2 END AS kind, 0 AS slot, @now"
        " FROM dibs_name WHERE name >= $1 AND name <= $2 AND name <> ''"
        " UNION ALL SELECT 0, 0, id, session, 0, 0, until, 0, ttl, since, owner, 0, 0, 0, broken, 0, 0, 0, 0, 0, 0, 0,"
        " 0, 1, name, 1, coalesce(slot, 0), 0 FROM dibs_holder WHERE name >= $1 AND name <= $2"
        " ORDER BY name, kind, slot, place, since, id",
    /* Which of them may time or absence have changed? */
    [DIBS__FAR_SWEEP_NAMES] = "SELECT bucket, name, CASE WHEN until <= $3 OR (due > 0 AND due <= $3) OR waiters > 0"
                              " THEN 1 ELSE 0 END FROM dibs_name WHERE (bucket > $1 OR (bucket = $1 AND name > $2))"
                              " AND place = 0 AND name <> '' ORDER BY bucket, name LIMIT " QUOTED(DIBS__FAR_SWEEP),
    [DIBS__FAR_SWEEP_OURS] =
        "SELECT DISTINCT bucket, name, 1 FROM dibs_name WHERE (bucket > $1 OR (bucket = $1 AND"
        " name > $2)) AND place > 0 AND session = $3 ORDER BY bucket, name LIMIT " QUOTED(DIBS__FAR_SWEEP),
    [DIBS__FAR_WAITERS_ALL] =
        "SELECT " SEEN " FROM dibs_name" OF_NAME " AND place > $3 ORDER BY place LIMIT " QUOTED(DIBS__FAR_SWEEP),
    [DIBS__FAR_ALIVE] = "SELECT @alive1",
};

/* ---- Making ---- */

struct making {
  const struct dibs__far *store;
  char *to;
  size_t len, size;
};

static void add(struct making *m, const char *p, size_t len) {
  if (m->len + len < m->size) memcpy(m->to + m->len, p, len);
  m->len += len;
}

static void adds(struct making *m, const char *p) {
  add(m, p, strlen(p));
}

static void add_alive(struct making *m, const char *what) {
  const char *at = m->store->engine->alive;
  for (const char *mark; (mark = strstr(at, "$s")); at = mark + 2) {
    add(m, at, (size_t)(mark - at));
    adds(m, what);
  }
  adds(m, at);
}

/* What stands at `at`, which begins with '@' or "dibs_"; how long it is. */
static size_t replace(struct making *m, const char *at) {
  const struct dibs__sql_engine *sql = &m->store->engine->sql;
  if (*at == 'd') {
    adds(m, m->store->options.prefix);
    return 5;
  }
  if (strncmp(at, "@lock", 5) == 0) {
    adds(m, sql->for_update);
    return 5;
  }
  if (strncmp(at, "@now", 4) == 0) {
    adds(m, sql->now_ms);
    return 4;
  }
  if (strncmp(at, "@alive1", 7) == 0) {
    add_alive(m, "$1");
    return 7;
  }
  if (strncmp(at, "@alive", 6) == 0) {
    add_alive(m, "session");
    return 6;
  }
  if (strncmp(at, "@ours", 5) == 0) {
    adds(m, m->store->as_tier ? "= 1" : "IS NULL");
    return 5;
  }
  if (strncmp(at, "@leave", 6) == 0) {
    adds(m, sql->on_conflict ? " ON CONFLICT DO NOTHING" : " ON DUPLICATE KEY UPDATE name = VALUES(name)");
    return 6;
  }
  add(m, at, 1);
  return 1;
}

static size_t render(const struct dibs__far *store, const char *text, char *to, size_t size) {
  struct making m = {store, to, 0, size};
  while (*text) {
    size_t plain = 0;
    while (text[plain] && text[plain] != '@' && strncmp(text + plain, "dibs_", 5) != 0) plain++;
    add(&m, text, plain);
    text += plain;
    if (*text) text += replace(&m, text);
  }
  if (m.len < size) to[m.len] = '\0';
  return m.len;
}

DIBS__MODULE_API char *dibs__far_text(struct dibs__far *store, const char *text) {
  size_t len = render(store, text, NULL, 0);
  char *made = malloc(len + 1);
  if (made) (void)render(store, text, made, len + 1);
  return made;
}

bool dibs__far_texts_make(struct dibs__far *store) {
  store->texts = calloc(DIBS__FAR_TEXTS, sizeof *store->texts);
  if (!store->texts) return false;
  for (size_t i = 0; i < DIBS__FAR_TEXTS; i++) {
    store->texts[i] = dibs__far_text(store, texts[i]);
    if (!store->texts[i]) return false;
  }
  return true;
}

void dibs__far_texts_free(struct dibs__far *store) {
  for (size_t i = 0; store->texts && i < DIBS__FAR_TEXTS; i++) free(store->texts[i]);
  free(store->texts);
}

/* ---- Putting ---- */

enum dibs__sql_step dibs__far_put(struct dibs__far_session *s, enum dibs__far_texts text,
                                  const struct dibs__sql_value *values, size_t count) {
  s->wrote = s->wrote || s->store->texts[text][0] != 'S';
  return s->wire->engine->put(s->wire, s->store->texts[text], values, count);
}

enum dibs__sql_step dibs__far_ask(struct dibs__far_session *s, enum dibs__far_texts text,
                                  const struct dibs__sql_value *values, size_t count, size_t *nth) {
  *nth = s->wire->put;
  enum dibs__sql_step end = dibs__far_put(s, text, values, count);
  return end == DIBS__SQL_FINE ? s->wire->engine->go(s->wire, false) : end;
}
