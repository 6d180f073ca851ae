/* SPDX-License-Identifier: MIT */
/*
 * Every statement of the SQLite dialect.  ?1 is the bucket and ?2 the name wherever both are asked for.
 *
 * A search for an id among waiters looks at the first ones by ticket, and in dibs_deep for those that came when the
 * queue was long: see DIBS__SQL_SHALLOW.
 */
#include "drivers/sqlite_parts.h"

#define QUOTE(x) #x
#define QUOTED(x) QUOTE(x)

#define OF_NAME " WHERE bucket = ?1 AND name = ?2"
#define OF_HEAD OF_NAME " AND place = 0"
#define HEAD                                                                                                           \
  "id, until, granted, first, block, broken, waiters, ttl, since, session, owner, mode, slots, holders, offers, "      \
  "tickets, front, reach, low_slot, state, due"
#define HOLDER "id, slot, until, broken, ttl, since, session, owner"
#define WAITER "place, state, id, session, mode, slots, until, deep, ttl, since, owner, first"

const char *const dibs__lite_texts[DIBS__LITE_TEXTS] = {
    [DIBS__LITE_BEGIN] = "BEGIN IMMEDIATE",
    [DIBS__LITE_BEGIN_READ] = "BEGIN",
    [DIBS__LITE_COMMIT] = "COMMIT",
    [DIBS__LITE_ROLLBACK] = "ROLLBACK",
    [DIBS__LITE_SAVE] = "SAVEPOINT dibs",
    [DIBS__LITE_SAVE_UNDO] = "ROLLBACK TO dibs",
    [DIBS__LITE_SAVE_END] = "RELEASE dibs",

    [DIBS__LITE_APPLICATION_ID] = "PRAGMA application_id",
    [DIBS__LITE_USER_VERSION] = "PRAGMA user_version",
    [DIBS__LITE_META] = "SELECT version, life, device, inode, boot FROM dibs_meta WHERE one = 1",
    [DIBS__LITE_META_SET] = "INSERT OR REPLACE INTO dibs_meta (one, version, life, device, inode, boot)"
                            " VALUES (1, ?1, ?2, ?3, ?4, ?5)",
    [DIBS__LITE_BUCKET] = "SELECT life, epoch, seq, state FROM dibs_name WHERE bucket = ?1 AND name = '' AND place = 0",
    [DIBS__LITE_BUCKET_ADD] = "INSERT INTO dibs_name (bucket, name, place, life, epoch, seq)"
                              " VALUES (?1, '', 0, ?2, ?3, 0)",
    [DIBS__LITE_BUCKET_SET] = "UPDATE dibs_name SET epoch = ?2, seq = ?3 WHERE bucket = ?1 AND name = '' AND place = 0",
    [DIBS__LITE_BUCKET_SERVE] =
        "UPDATE dibs_name SET state = nullif(?2, 0) WHERE bucket = ?1 AND name = '' AND place = 0",
    /* DIBS__SQL_VOID */
    [DIBS__LITE_BUCKETS_SET] = "UPDATE dibs_name SET life = ?1, epoch = CASE WHEN state IS NULL THEN ?2 ELSE epoch END,"
                               " seq = 0, state = CASE WHEN state IS NULL THEN NULL ELSE 2 END WHERE name = ''",

    /* One statement does it all, or nothing.  (Two for KEEP: RETURNING costs SQLite more than a second statement.) */
    [DIBS__LITE_TAKE] =
        "INSERT INTO dibs_name (bucket, name, place, id, until, granted, first, block, broken, waiters, ttl,"
        " since, session, owner, mode, slots, holders)"
        " VALUES (?1, ?2, 0, ?3, ?4, ?5, ?5, ?6, 0, 0, ?7, ?8, ?9, ?10, 0, 0, 1) ON CONFLICT DO NOTHING",
    [DIBS__LITE_KEPT] = "SELECT first, block FROM dibs_name" OF_HEAD
                        " AND id = ?3 AND until > ?4 AND granted <= ?5 AND first + block > ?5 AND broken = 0"
                        " AND waiters = 0",
    [DIBS__LITE_KEEP] = "UPDATE dibs_name SET until = ?3, ttl = ?4, session = ?5" OF_HEAD,
    [DIBS__LITE_GIVE] = "DELETE FROM dibs_name" OF_HEAD
                        " AND id = ?3 AND until > ?4 AND granted <= ?5 AND first + block > ?5 AND waiters = 0",

    [DIBS__LITE_HEAD] = "SELECT " HEAD " FROM dibs_name" OF_HEAD,
    [DIBS__LITE_HEAD_ADD] =
        "INSERT INTO dibs_name (bucket, name, place, " HEAD ") VALUES (?1, ?2, 0, ?3, ?4, ?5, ?6, ?7, ?8, ?9,"
        " ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19, ?20, ?21, ?22, ?23)",
    [DIBS__LITE_HEAD_SET] = "UPDATE dibs_name SET id = ?3, until = ?4, granted = ?5, first = ?6, block = ?7,"
                            " broken = ?8, waiters = ?9, ttl = ?10, since = ?11, session = ?12, owner = ?13,"
                            " mode = ?14, slots = ?15, holders = ?16, offers = ?17, tickets = ?18, front = ?19,"
                            " reach = ?20, low_slot = ?21, state = ?22, due = ?23" OF_HEAD,
    [DIBS__LITE_HEAD_QUEUE] = "UPDATE dibs_name SET waiters = ?9, mode = ?14, slots = ?15, holders = ?16,"
                              " offers = ?17, tickets = ?18, front = ?19, reach = ?20, low_slot = ?21, state = ?22,"
                              " due = ?23" OF_HEAD,
    [DIBS__LITE_HEAD_DROP] = "DELETE FROM dibs_name" OF_HEAD,

    [DIBS__LITE_HOLDER] = "SELECT " HOLDER " FROM dibs_holder" OF_NAME " AND id = ?3",
    [DIBS__LITE_HOLDER_ADD] =
        "INSERT INTO dibs_holder (bucket, name, " HOLDER ") VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)",
    [DIBS__LITE_HOLDER_SET] = "UPDATE dibs_holder SET until = ?4, ttl = ?5, session = ?6" OF_NAME " AND id = ?3",
    [DIBS__LITE_HOLDER_DROP] = "DELETE FROM dibs_holder" OF_NAME " AND id = ?3",
    [DIBS__LITE_HOLDERS] = "SELECT " HOLDER " FROM dibs_holder" OF_NAME " ORDER BY slot, since, id",
    [DIBS__LITE_HOLDERS_EXPIRE] = "DELETE FROM dibs_holder" OF_NAME " AND until <= ?3",
    [DIBS__LITE_HOLDERS_BREAK] = "UPDATE dibs_holder SET broken = 1" OF_NAME,
    [DIBS__LITE_HOLDERS_DROP] = "DELETE FROM dibs_holder" OF_NAME,
    [DIBS__LITE_HOLDERS_UNTIL] = "SELECT min(until) FROM dibs_holder" OF_NAME,
    [DIBS__LITE_SLOTS] =
        "SELECT slot FROM dibs_holder INDEXED BY dibs_holder_slot" OF_NAME " AND slot >= ?3 ORDER BY slot",

    [DIBS__LITE_WAITER] = "SELECT " WAITER " FROM dibs_name" OF_NAME " AND place = ?4 AND id = ?3",
    [DIBS__LITE_WAITER_SHALLOW] = "SELECT * FROM (SELECT " WAITER " FROM dibs_name" OF_NAME
                                  " AND place > 0 ORDER BY place LIMIT " QUOTED(DIBS__LITE_SHALLOW) ") WHERE id = ?3",
    [DIBS__LITE_DEEP] = "SELECT place FROM dibs_deep" OF_NAME " AND id = ?3",
    [DIBS__LITE_DEEP_ADD] = "INSERT INTO dibs_deep (bucket, name, id, place) VALUES (?1, ?2, ?3, ?4)",
    [DIBS__LITE_DEEP_DROP] = "DELETE FROM dibs_deep" OF_NAME " AND id = ?3",
    [DIBS__LITE_WAITER_NEXT] =
        "SELECT " WAITER " FROM dibs_name" OF_NAME " AND place >= ?3 AND state = 0 ORDER BY place LIMIT 1",
    [DIBS__LITE_WAITER_OFFERED] =
        "SELECT " WAITER " FROM dibs_name" OF_NAME " AND place BETWEEN 1 AND ?3 AND state = 1 ORDER BY place LIMIT 1",
    [DIBS__LITE_WAITER_ADD] = "INSERT INTO dibs_name (bucket, name, " WAITER
                              ") VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, 0)",
    [DIBS__LITE_WAITER_SET] =
        "UPDATE dibs_name SET state = ?4, until = ?5, session = ?6, first = ?7" OF_NAME " AND place = ?3",
    [DIBS__LITE_WAITER_DROP] = "DELETE FROM dibs_name" OF_NAME " AND place = ?3",
    [DIBS__LITE_WAITERS] = "SELECT " WAITER " FROM dibs_name" OF_NAME " AND place > ?3 ORDER BY place",
    [DIBS__LITE_OFFERS_EXPIRE] =
        "UPDATE dibs_name SET state = 2, until = 0" OF_NAME " AND place BETWEEN 1 AND ?3 AND state = 1 AND until <= ?4",
    [DIBS__LITE_OFFERS_UNTIL] = "SELECT min(until) FROM dibs_name" OF_NAME " AND place BETWEEN 1 AND ?3 AND state = 1",

    [DIBS__LITE_BREAK_ADD] = "INSERT INTO dibs_break (bucket, name, nr, at, fence, mode, owner)"
                             " SELECT ?1, ?2, coalesce(max(nr), 0) + 1, ?3, ?4, ?5, ?6 FROM dibs_break" OF_NAME,
    [DIBS__LITE_BREAK_TRIM] =
        "DELETE FROM dibs_break" OF_NAME " AND nr <= (SELECT max(nr) FROM dibs_break" OF_NAME ") - ?3",
    [DIBS__LITE_BREAKS] = "SELECT at, fence, mode, owner FROM dibs_break" OF_NAME " ORDER BY nr",
    [DIBS__LITE_BREAKS_OLD] = "DELETE FROM dibs_break WHERE at < ?1",

    [DIBS__LITE_RECORD] = "SELECT fence, digest, version, data FROM dibs_record WHERE name = ?1",
    [DIBS__LITE_RECORD_SEAL] = "INSERT INTO dibs_record (name, fence, digest, version) VALUES (?1, ?2, ?3, 0)"
                               " ON CONFLICT (name) DO UPDATE SET fence = excluded.fence, digest = excluded.digest",
    [DIBS__LITE_RECORD_SAVE] =
        "INSERT INTO dibs_record (name, fence, digest, version, data) VALUES (?1, ?2, ?3, ?4, ?5)"
        " ON CONFLICT (name) DO UPDATE SET fence = excluded.fence, digest = excluded.digest,"
        " version = excluded.version, data = excluded.data",

    [DIBS__LITE_NAMES] = "SELECT " HEAD ", bucket, name FROM dibs_name WHERE name >= ?1 AND name <> '' AND place = 0"
                         " ORDER BY name",
    /* Which of them may time or absence have changed? */
    [DIBS__LITE_NAMES_FROM] = "SELECT bucket, name, until <= ?3 OR (due > 0 AND due <= ?3) OR waiters > 0"
                              " FROM dibs_name WHERE (bucket, name) > (?1, ?2) AND place = 0"
                              " ORDER BY bucket, name LIMIT " QUOTED(DIBS__LITE_SWEEP),
    [DIBS__LITE_NAMES_OF] = "SELECT DISTINCT bucket, name, 1 FROM dibs_name WHERE (bucket, name) > (?1, ?2)"
                            " AND place > 0 AND session = ?3 ORDER BY bucket, name LIMIT " QUOTED(DIBS__LITE_SWEEP),
};
