/* SPDX-License-Identifier: MIT */
/*
 * MariaDB and MySQL as engines, and their driver: a module, loaded when its scheme is first used.  With lock=named
 * leases are the server\'s own locks.
 *
 * Names are VARBINARY: compared byte by byte, blanks at the end included, whatever collation the database has.
 *
 * The notifier: processes notify each other through the server.
 *
 * A notifier is two connections.  One holds GET_LOCK('dibs.w.SESSION') and does nothing.  The other holds
 * GET_LOCK('dibs.s.SESSION'), which is how others know that its process is alive, and sleeps in
 *
 *   SELECT IF(EXISTS (mail for SESSION), 0, GET_LOCK('dibs.w.SESSION', 30))
 *
 * When the process dies, the server notices at once that the first connection ends; the second then gets the lock,
 * finds its client gone, and ends, too.  (A single connection would stay until its sleep is over.)
 *
 * A sender inserts mail in its own transaction, and after its COMMIT, in the same packet, ends the sleep: KILL QUERY.
 * No notification is lost: the check for mail and the sleep are one statement.  If that began before the mail was
 * committed, it sleeps or is about to, and KILL ends it; if it began afterwards, it finds the mail.  KILL QUERY
 * between two statements does nothing; a late one interrupts the reading, which is then repeated.
 *
 * Two alternatives are worse (MariaDB 10.11).  SLEEP() in place of GET_LOCK(): a KILL at the beginning of a sleep
 * waits for two seconds, and all other sleepers with it.  The sleep and the reading in one packet: a query that is
 * killed just between two statements of a packet gets no answer at all, not even an error.
 *
 * Mail that was read stays for a while and is skipped: deleting each piece would cost a flush of the log.
 *
 * The sleep stays in flight between two calls of notifier_wait, which watches the sockets and a descriptor of our
 * own.
 *
 * While the notifier holds locks of kinds of tasks (tasks.c), each end of a sleep is also taken for the news that there
 * are tasks.  It takes them while it is not asleep; it ends its own sleep for that, by the first connection.
 */
#include "drivers/mysql/mysql_impl.h"
#include "drivers/session_lock/session_lock.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

typedef enum dibs__sql_rc sql_rc;
typedef struct dibs__mysql_wire wire_t;

enum {
  READ_MAX = 64,   /* pieces of mail in a packet */
  KEEP_MAX = 16,   /* so many may be read and not deleted yet */
  GRACE_MS = 5000, /* a server that does not answer for so long after its sleep is gone */
  KILL_MS = 50,    /* before a sleep that does not end is ended once more */
  FULL_MS = 5000,  /* and up to twice as long: before a free lock of a kind of tasks is looked for again */
};

int dibs__mysql_nap_ms = 30000;

struct notifier {
  wire_t *w, *still; /* the connection that sleeps, and the connection that holds the lock it waits for */
  int fd;            /* raised to wake the thread; any thread */
  int64_t session;
  const struct dibs__mysql_location *location;
  bool asleep; /* in flight */
  int want, failed;
  dibs__tick due; /* when the answer is due */
  size_t mail_at; /* which of its statements reads mail */
  bool drops;     /* the first of them deletes the mail that was read */
  size_t seen_count;
  int64_t seen[KEEP_MAX + READ_MAX];
  /* Tasks: tasks.c.  Kinds are bits. */
  struct dibs__mysql_tasks *tasks;
  uint32_t armed;                       /* it holds a lock of these kinds, or may hold one */
  bool releases;                        /* it gives these back before it sleeps again */
  bool echo;                            /* the next sleep has to be followed by an event */
  dibs__tick arm_at[DIBS__MYSQL_KINDS]; /* not before */
};

/* ---- Sending ---- */

static bool add_text(struct dibs__mysql_buffer *to, const char *text) {
  return dibs__mysql_add(to, text, strlen(text));
}

static bool add_number(struct dibs__mysql_buffer *to, int64_t number) {
  struct dibs__sql_value value = dibs__sql_number(number);
  return dibs__mysql_add_value(to, &value);
}

/* Queues the statement in b, and frees b. */
static sql_rc put_built(struct dibs__sql_wire *wire, struct dibs__mysql_buffer *b, bool fine) {
  sql_rc end =
      fine ? dibs__mysql_put_whole(wire, b) : dibs__mysql_broke(dibs__my(wire), DIBS__SQL_NO_SPACE, "out of memory");
  free(b->p);
  return end;
}

sql_rc dibs__mysql_notify_within(struct dibs__server *store, struct dibs__sql_wire *wire,
                                 const struct dibs__server_notice *notices, size_t count) {
  const struct dibs__mysql_location *location = store->location;
  struct dibs__mysql_buffer b = {0};
  if (!count) return DIBS__SQL_OK;
  bool fine = add_text(&b, location->texts[DIBS__MYSQL_MAIL_PUT]);
  for (size_t i = 0; i < count && fine; i++) {
    uint8_t bytes[DIBS__SERVER_NOTICE_BYTES];
    dibs__server_notice_write(&notices[i].event, bytes);
    struct dibs__sql_value id = dibs__sql_bytes(bytes, sizeof bytes);
    fine = add_text(&b, i ? ",(" : "(") && add_number(&b, (int64_t)notices[i].session) &&
           /* Numbers that are unique in one server. */
           add_text(&b, ",UUID_SHORT() & 9223372036854775807,") && add_number(&b, (int64_t)notices[i].event.what) &&
           add_text(&b, ",") && dibs__mysql_add_value(&b, &id) && add_text(&b, ")");
  }
  return put_built(wire, &b, fine);
}

static bool notified_before(const int64_t *where, size_t nth) {
  for (size_t i = 0; i < nth; i++)
    if (where[i] == where[nth]) return true;
  return false;
}

/* A session that is gone meanwhile must not keep the others from being notified: errors are ignored. */
sql_rc dibs__mysql_notify_after(struct dibs__server *store, struct dibs__sql_wire *wire,
                                const struct dibs__server_notice *notices, const int64_t *where, size_t count) {
  struct dibs__mysql_buffer b = {0};
  size_t kills = 0;
  bool fine = true;
  (void)store;
  (void)notices;
  for (size_t i = 0; i < count; i++) kills += where[i] > 0 && !notified_before(where, i);
  if (!kills) return DIBS__SQL_OK;
  bool block = kills > 1 && dibs__my(wire)->maria;
  if (block) fine = add_text(&b, "BEGIN NOT ATOMIC DECLARE CONTINUE HANDLER FOR SQLEXCEPTION BEGIN END;");
  for (size_t i = 0; i < count && fine; i++) {
    if (where[i] <= 0 || notified_before(where, i)) continue;
    fine =
        add_text(&b, "KILL QUERY ") && add_number(&b, where[i]) && (--kills == 0 && !block ? true : add_text(&b, ";"));
  }
  if (block) fine = fine && add_text(&b, "END");
  return put_built(wire, &b, fine);
}

/* ---- Sleeping ---- */

static bool add_seen(struct dibs__mysql_buffer *to, const struct notifier *b, const char *before) {
  bool fine = true;
  if (!b->seen_count) return true;
  for (size_t i = 0; i < b->seen_count && fine; i++)
    fine = add_text(to, i ? "," : before) && add_number(to, b->seen[i]);
  return fine && add_text(to, ")");
}

static sql_rc put_sleep_statement(struct notifier *b, enum dibs__mysql_texts text, const char *before_seen,
                                  const char *end) {
  struct dibs__mysql_buffer to = {0};
  bool fine = add_text(&to, b->location->texts[text]) && add_number(&to, b->session) && add_seen(&to, b, before_seen) &&
              add_text(&to, end);
  return put_built(&b->w->base, &to, fine);
}

static void fall_asleep(struct notifier *b) {
  wire_t *w = b->w;
  dibs__mysql_clear(w);
  b->due = dibs__tick_add_ms(dibs__tick_now(), dibs__mysql_nap_ms + GRACE_MS);
  b->asleep = true;
  b->failed = 0;
  w->late = false;
  w->base.by = b->due;
  b->want = mysql_real_query_start(&b->failed, w->my, w->text.p, (unsigned long)w->text.len);
  w->base.put = w->text.len = 0;
}

/* OK also when a notification interrupted it: then it is sent again. */
static sql_rc go_unless_notified(struct notifier *b, bool *done) {
  b->w->base.by = dibs__tick_add_ms(dibs__tick_now(), GRACE_MS);
  sql_rc end = dibs__mysql_go(&b->w->base, false);
  *done = end == DIBS__SQL_OK;
  return end == DIBS__SQL_FAILED && b->w->base.trouble == DIBS__SQL_LOCKED ? DIBS__SQL_OK : end;
}

static sql_rc start_sleep(struct notifier *b) {
  char nap[96];
  bool done;
  snprintf(nap, sizeof nap, "), 0, GET_LOCK('dibs.w.%lld', %d.%03d))", (long long)b->session, dibs__mysql_nap_ms / 1000,
           dibs__mysql_nap_ms % 1000);
  sql_rc end = DIBS__SQL_OK;
  if (b->seen_count >= KEEP_MAX) {
    end = put_sleep_statement(b, DIBS__MYSQL_MAIL_DROP, " AND nr IN (", "");
    if (end == DIBS__SQL_OK) end = go_unless_notified(b, &done);
    /* (A statement that is killed may answer without an error.) */
    if (end == DIBS__SQL_OK && done && dibs__mysql_changed(&b->w->base, 0) == b->seen_count) b->seen_count = 0;
  }
  if (end == DIBS__SQL_OK) end = put_sleep_statement(b, DIBS__MYSQL_MAIL_SLEEP, " AND nr NOT IN (", nap);
  if (end == DIBS__SQL_OK) fall_asleep(b);
  return end;
}

enum awoken { ANSWER, WAKE, OVER, SILENT };

static enum awoken await_sleep(struct notifier *b, dibs__tick by) {
  struct pollfd fds[3] = {{.fd = mysql_get_socket(b->w->my)},
                          {.fd = b->fd, .events = POLLIN},
                          {.fd = mysql_get_socket(b->still->my), .events = POLLIN}};
  if (b->want & MYSQL_WAIT_READ) fds[0].events |= POLLIN;
  if (b->want & MYSQL_WAIT_WRITE) fds[0].events |= POLLOUT;
  for (;;) {
    dibs__tick now = dibs__tick_now();
    int64_t left = dibs__tick_left_ms(now, dibs__tick_min(by, b->due));
    int n = poll(fds, 3, left > 60000 ? 60000 : (int)left);
    if (n < 0 && errno != EINTR) return SILENT;
    if (n > 0 && fds[2].revents) return SILENT; /* nothing arrives there but the end of the connection */
    if (n > 0 && fds[1].revents) {
      dibs__notifier_lower(b->fd);
      return WAKE;
    }
    if (n > 0 && fds[0].revents) return ANSWER;
    now = dibs__tick_now();
    if (!dibs__tick_before(now, b->due)) return SILENT;
    if (!dibs__tick_before(now, by)) return OVER;
  }
}

/* The sleep is over, or a part of its answer has arrived. */
static sql_rc finish_sleep(struct notifier *b) {
  wire_t *w = b->w;
  if (b->want) b->want = mysql_real_query_cont(&b->failed, w->my, b->want & (MYSQL_WAIT_READ | MYSQL_WAIT_WRITE));
  if (b->want) return DIBS__SQL_OK;
  b->asleep = false;
  w->base.by = dibs__tick_add_ms(dibs__tick_now(), GRACE_MS);
  sql_rc end = b->failed ? dibs__mysql_failed(w) : dibs__mysql_take(w, false);
  if (end == DIBS__SQL_FAILED) return w->base.trouble == DIBS__SQL_LOCKED ? DIBS__SQL_OK : end;
  if (dibs__mysql_rows(&w->base, 0) && dibs__mysql_cell(&w->base, 0, 0, 0, DIBS__SQL_NUMBER).number)
    return dibs__mysql_broke(w, DIBS__SQL_GONE, "the notifier's connection was lost");
  return DIBS__SQL_OK;
}

static sql_rc read_mail(struct notifier *b, struct dibs__event *events, size_t cap, size_t *count) {
  struct dibs__sql_wire *wire = &b->w->base;
  char most[32];
  bool done;
  snprintf(most, sizeof most, " LIMIT %zu", cap < READ_MAX ? cap : READ_MAX);
  sql_rc end = put_sleep_statement(b, DIBS__MYSQL_MAIL_READ, " AND nr NOT IN (", most);
  if (end == DIBS__SQL_OK) end = go_unless_notified(b, &done);
  if (end != DIBS__SQL_OK || !done) return end;
  for (size_t i = 0; i < dibs__mysql_rows(wire, 0); i++) {
    struct dibs__event *to = &events[(*count)++];
    struct dibs__sql_value id = dibs__mysql_cell(wire, 0, i, 2, DIBS__SQL_BYTES);
    *to = (struct dibs__event){0};
    to->what = (enum dibs__event_what)dibs__mysql_cell(wire, 0, i, 1, DIBS__SQL_NUMBER).number;
    if (id.p && id.len == DIBS__SERVER_NOTICE_BYTES) dibs__server_notice_read((const uint8_t *)id.p, to);
    b->seen[b->seen_count++] = dibs__mysql_cell(wire, 0, i, 0, DIBS__SQL_NUMBER).number;
  }
  return end;
}

/* ---- Tasks ---- */

static uint32_t kinds_to_arm(const struct notifier *b) {
  uint32_t kinds = 0;
  for (uint32_t i = 0; i < DIBS__MYSQL_KINDS; i++)
    if (atomic_load(&b->tasks->kinds[i].wanted) && !(b->armed >> i & 1)) kinds |= 1u << i;
  return kinds;
}

/* When the next of them may be armed. */
static dibs__tick arm_due(const struct notifier *b, uint32_t kinds) {
  dibs__tick due = DIBS__TICK_NEVER;
  for (uint32_t i = 0; i < DIBS__MYSQL_KINDS; i++)
    if (kinds >> i & 1) due = dibs__tick_min(due, b->arm_at[i]);
  return due;
}

static sql_rc kill_sleep(struct notifier *b) {
  struct dibs__mysql_buffer to = {0};
  wire_t *still = b->still;
  bool fine = add_text(&to, "KILL QUERY ") && add_number(&to, (int64_t)mysql_thread_id(b->w->my));
  still->base.by = dibs__tick_add_ms(dibs__tick_now(), GRACE_MS);
  sql_rc end = put_built(&still->base, &to, fine);
  return end == DIBS__SQL_OK ? dibs__mysql_go(&still->base, false) : end;
}

/* Ends our own sleep.  The first KILL may come before the server has begun it, and then has no effect. */
static sql_rc interrupt(struct notifier *b) {
  dibs__tick by = dibs__tick_add_ms(dibs__tick_now(), GRACE_MS);
  bool woken = false;
  sql_rc end = kill_sleep(b);
  while (end == DIBS__SQL_OK && b->asleep) {
    enum awoken why = b->want ? await_sleep(b, dibs__tick_add_ms(dibs__tick_now(), KILL_MS)) : ANSWER;
    if (why == WAKE)
      woken = true;
    else if (why == ANSWER)
      end = finish_sleep(b);
    else if (why == OVER && dibs__tick_before(dibs__tick_now(), by))
      end = kill_sleep(b);
    else
      end = DIBS__SQL_FAILED;
  }
  if (woken) dibs__notifier_raise(b->fd);
  return end;
}

static void arm_later(struct notifier *b, uint32_t kinds, int64_t ms) {
  dibs__tick at = dibs__tick_add_ms(dibs__tick_now(), ms);
  for (uint32_t i = 0; i < DIBS__MYSQL_KINDS; i++)
    if (kinds >> i & 1) b->arm_at[i] = at;
}

/* Takes a lock of each of the kinds of which one is free.  (If the statement is interrupted, it may hold some.) */
static sql_rc arm(struct notifier *b, uint32_t kinds) {
  struct dibs__sql_wire *still = &b->still->base, *wire = &b->w->base;
  uint32_t draw;
  bool done = false;
  dibs__random(&draw, sizeof draw);
  arm_later(b, kinds, FULL_MS + (int64_t)(draw % FULL_MS));
  sql_rc end = dibs__mysql_put_tasks_free(still, b->tasks, kinds);
  still->by = dibs__tick_add_ms(dibs__tick_now(), GRACE_MS);
  if (end == DIBS__SQL_OK) end = dibs__mysql_go(still, false);
  if (end != DIBS__SQL_OK || dibs__mysql_cell(still, 0, 0, 0, DIBS__SQL_NUMBER).number <= 0) return end;
  if (b->asleep) end = interrupt(b);
  if (end == DIBS__SQL_OK) end = dibs__mysql_put_tasks_take(wire, b->tasks, kinds);
  b->armed |= kinds;
  if (end == DIBS__SQL_OK) end = go_unless_notified(b, &done);
  if (end != DIBS__SQL_OK) return end;
  if (!done) {
    b->releases = b->echo = true;
    arm_later(b, kinds, 0);
    return end;
  }
  for (uint32_t i = 0, column = 0; i < DIBS__MYSQL_KINDS; i++)
    if (kinds >> i & 1 && dibs__mysql_cell(wire, 0, 0, column++, DIBS__SQL_NUMBER).number < 0) b->armed &= ~(1u << i);
  b->echo = b->echo || (b->armed & kinds);
  return end;
}

static sql_rc release_armed(struct notifier *b) {
  bool done = false;
  sql_rc end = dibs__mysql_put_tasks_release(&b->w->base, b->tasks, b->armed);
  if (end == DIBS__SQL_OK) end = go_unless_notified(b, &done);
  if (end != DIBS__SQL_OK || !done) return end;
  b->releases = false;
  b->armed = 0;
  return end;
}

/* There may be tasks: the locks are given back, and taken again when a claim has found less than it wanted. */
static void tasks_came(struct notifier *b) {
  if (!b->armed) return;
  for (uint32_t i = 0; i < DIBS__MYSQL_KINDS; i++)
    if (b->armed >> i & 1) atomic_store(&b->tasks->kinds[i].wanted, false);
  arm_later(b, b->armed, DIBS__MYSQL_TASKS_PAUSE_MS);
  b->releases = b->echo = true;
}

/* Before a sleep, or in it. */
static sql_rc arrange_tasks(struct notifier *b) {
  sql_rc end = DIBS__SQL_OK;
  while (end == DIBS__SQL_OK && b->releases) end = release_armed(b);
  uint32_t kinds = kinds_to_arm(b), due = 0;
  dibs__tick now = dibs__tick_now();
  for (uint32_t i = 0; i < DIBS__MYSQL_KINDS; i++)
    if (kinds >> i & 1 && !dibs__tick_before(now, b->arm_at[i])) due |= 1u << i;
  if (end == DIBS__SQL_OK && due) end = arm(b, due);
  while (end == DIBS__SQL_OK && b->releases) end = release_armed(b);
  return end;
}

/* ---- Waiting ---- */

static void add_tasks_event(struct notifier *b, struct dibs__event *events, size_t cap, size_t *count) {
  if (!b->echo || *count == cap) return;
  events[(*count)++] = (struct dibs__event){.what = DIBS__EV_TASKS};
  b->echo = false;
}

dibs__status dibs__mysql_notifier_wait(void *notifier, struct dibs__event *events, size_t cap, size_t *count,
                                       dibs__tick by) {
  struct notifier *b = notifier;
  sql_rc end = DIBS__SQL_OK;
  *count = 0;
  while (end == DIBS__SQL_OK && !*count) {
    end = arrange_tasks(b);
    if (end == DIBS__SQL_OK && !b->asleep) end = start_sleep(b);
    if (end != DIBS__SQL_OK) break;
    add_tasks_event(b, events, cap, count); /* of a lock that was just taken */
    if (*count) break;
    dibs__tick arm_at = arm_due(b, kinds_to_arm(b));
    enum awoken why = b->want ? await_sleep(b, dibs__tick_min(by, arm_at)) : ANSWER;
    if (why == WAKE || (why == OVER && !dibs__tick_before(dibs__tick_now(), by))) return DIBS_OK;
    if (why == OVER) continue;
    end = why == ANSWER ? finish_sleep(b) : DIBS__SQL_FAILED;
    if (end != DIBS__SQL_OK || b->asleep) continue;
    end = read_mail(b, events, cap, count);
    tasks_came(b);
    add_tasks_event(b, events, cap, count);
  }
  if (end == DIBS__SQL_OK) return DIBS_OK;
  b->w->dead = true;
  return DIBS_UNAVAILABLE;
}

void dibs__mysql_notifier_wake(void *notifier) {
  dibs__notifier_raise(((struct notifier *)notifier)->fd);
}

/* ---- Opening ---- */

static sql_rc hold_lock(wire_t *w, const char *prefix, int64_t session) {
  struct dibs__sql_value values[] = {dibs__sql_text(prefix, strlen(prefix)), dibs__sql_number(session)};
  sql_rc end = DIBS__SQL_OK;
  if (w->maria) end = dibs__mysql_put(&w->base, "SET SESSION max_statement_time = 0", NULL, 0);
  /* An older notifier of ours that broke may still hold it. */
  if (end == DIBS__SQL_OK) end = dibs__mysql_put(&w->base, "SELECT GET_LOCK(CONCAT($1, $2), 3)", values, 2);
  size_t nth = w->base.put - 1;
  if (end == DIBS__SQL_OK) end = dibs__mysql_go(&w->base, false);
  if (end == DIBS__SQL_OK && dibs__mysql_cell(&w->base, nth, 0, 0, DIBS__SQL_NUMBER).number != 1)
    end = dibs__mysql_broke(w, DIBS__SQL_ODD, "another connection has the lock of this session");
  return end;
}

static dibs__status connect_one(struct dibs__server *store, const char *prefix, struct notifier *b, dibs__tick by,
                                wire_t **out, struct dibs__result *result) {
  struct dibs__sql_wire *wire;
  dibs__status status = dibs__mysql_connect(store, by, &wire, result);
  if (status != DIBS_OK) return status;
  *out = dibs__my(wire);
  sql_rc end = hold_lock(*out, prefix, b->session);
  if (end == DIBS__SQL_OK && out == &b->w) {
    end = dibs__mysql_put(wire, b->location->texts[DIBS__MYSQL_MAIL_CLEAN], NULL, 0);
    if (end == DIBS__SQL_OK) end = dibs__mysql_go(wire, false);
  }
  if (end == DIBS__SQL_OK) return DIBS_OK;
  dibs__set_message(result, "can't open a connection for notifications to %s: %s", store->shown, wire->message);
  return wire->trouble == DIBS__SQL_DENIED ? DIBS_DENIED : DIBS_UNAVAILABLE;
}

dibs__status dibs__mysql_notifier_open(struct dibs__server *store, uint64_t session, dibs__tick by, void **notifier,
                                       struct dibs__result *result) {
  *notifier = NULL;
  struct notifier *b = calloc(1, sizeof *b);
  if (!b) return DIBS_NO_MEMORY;
  b->session = (int64_t)session;
  b->location = store->location;
  b->tasks = b->location->tasks;
  b->fd = dibs__notifier_open();
  dibs__status status = DIBS_OK;
  if (b->fd < 0) {
    dibs__set_message(result, "no file descriptor for notifications: %s", strerror(errno));
    status = DIBS_UNAVAILABLE;
  }
  if (status == DIBS_OK) status = connect_one(store, "dibs.w.", b, by, &b->still, result);
  if (status == DIBS_OK) status = connect_one(store, "dibs.s.", b, by, &b->w, result);
  if (status != DIBS_OK) {
    dibs__mysql_notifier_close(b);
    return status;
  }
  atomic_store(&b->tasks->notifier, (int64_t)mysql_thread_id(b->w->my));
  *notifier = b;
  return status;
}

void dibs__mysql_notifier_close(void *notifier) {
  struct notifier *b = notifier;
  if (!b) return;
  atomic_store(&b->tasks->notifier, 0);
  if (b->w && b->asleep) {
    /* A goodbye packet would wait for the end of the sleep.  The connector learns that it is dead, so that it can clean
     * up; it says nothing about its server. */
    if (!b->w->dead) b->w->trusted = NULL;
    b->w->dead = true;
    (void)shutdown(mysql_get_socket(b->w->my), SHUT_RDWR);
    while (b->want) b->want = mysql_real_query_cont(&b->failed, b->w->my, MYSQL_WAIT_TIMEOUT);
  }
  if (b->still) dibs__mysql_close(&b->still->base);
  if (b->w) dibs__mysql_close(&b->w->base);
  dibs__notifier_close(b->fd);
  free(b);
}

/* ---- The engine ---- */

const char *const dibs__mysql_schemes[] = {"mysql", "mariadb", NULL};

/* What an operator sets and a restart keeps, and the time when our tables were made, which a restored dump changes;
 * doc/internals/mysql.md lists what it notices.  The server's start is part of it if a crash may lose committed
 * transactions: lease_sync=off, or a log that is not flushed with each commit.  (Uptime and the time are both counted
 * from the start of the statement, so their difference is constant.)  Comments that one of the two executes: M! is
 * MariaDB's, !80000 MySQL's.  (The case of the table's name matters to MySQL.) */
static const char *incarnation(bool fleeting) {
#define STABLE                                                                                                         \
  "SELECT CONCAT_WS(' ', @@server_id, /*!80000 @@server_uuid */ /*M! @@gtid_domain_id */, @@port, @@datadir,"          \
  " (SELECT CREATE_TIME FROM information_schema.TABLES WHERE TABLE_SCHEMA = DATABASE() AND TABLE_NAME = "              \
  "'dibs_meta'), "
#define BEGUN                                                                                                          \
  "UNIX_TIMESTAMP() - (SELECT VARIABLE_VALUE FROM /*M! information_schema.GLOBAL_STATUS */"                            \
  " /*!80000 performance_schema.global_status */ WHERE VARIABLE_NAME = 'Uptime')"
  return fleeting ? STABLE BEGUN ")" : STABLE "IF(@@innodb_flush_log_at_trx_commit = 1, NULL, " BEGUN "))";
#undef STABLE
#undef BEGUN
}

static const char *schema(uint32_t version, size_t nth) {
  /* The sender of a notification inserts a row here for each session; the receiver deletes it. */
  static const char *const mail =
      "CREATE TABLE IF NOT EXISTS dibs_mail (session BIGINT NOT NULL, nr BIGINT NOT NULL, what BIGINT NOT NULL,"
      " id VARBINARY(64) NOT NULL, PRIMARY KEY (session, nr))";
  return version == 0 && nth == 0 ? mail : NULL;
}

/* An error unless the lock is ours: a subquery of two rows is one. */
#define SCHEMA_LOCK "CONCAT('dibs.schema.', LEFT(SHA2(DATABASE(), 256), 32))"
static enum dibs__sql_rc lock_schema(struct dibs__sql_wire *wire, bool lock) {
  const char *text = lock ? "SELECT CASE GET_LOCK(" SCHEMA_LOCK ", 60) WHEN 1 THEN 1 ELSE (SELECT 1 UNION SELECT 2) END"
                          : "DO RELEASE_LOCK(" SCHEMA_LOCK ")";
  return dibs__mysql_put(wire, text, NULL, 0);
}

/* The catalogue.  If names of tables are case-sensitive, two of them may differ in case only. */
#define OF_THE_TABLE(t)                                                                                                \
  t ".TABLE_SCHEMA = IF($1 = '', DATABASE(), $1) AND " t ".TABLE_NAME = $2"                                            \
    " AND (@@lower_case_table_names > 0 OR BINARY " t ".TABLE_NAME = $2)"
#define COLUMNS                                                                                                        \
  "SELECT c.COLUMN_NAME, CASE"                                                                                         \
  " WHEN c.DATA_TYPE = 'bigint' AND c.COLUMN_TYPE LIKE '%unsigned%' THEN 'U' WHEN c.DATA_TYPE = 'bigint' THEN 'N'"     \
  " WHEN c.DATA_TYPE IN ('tinyint', 'smallint', 'mediumint', 'int') THEN 'n'"                                          \
  " WHEN c.DATA_TYPE = 'decimal' AND c.NUMERIC_SCALE = 0 AND c.NUMERIC_PRECISION <= 18 THEN 'n'"                       \
  " WHEN c.DATA_TYPE IN ('varchar', 'char', 'varbinary', 'tinytext', 'text', 'mediumtext', 'longtext') THEN 't'"       \
  " WHEN c.DATA_TYPE IN ('enum', 'set') THEN 'c' WHEN c.DATA_TYPE IN ('datetime', 'timestamp', 'date') THEN 'i'"       \
  " ELSE 'o' END, c.COLUMN_TYPE, c.EXTRA LIKE '%GENERATED%', CASE c.DATA_TYPE WHEN 'datetime' THEN 'p'"                \
  " WHEN 'timestamp' THEN 'z' ELSE '' END, c.IS_NULLABLE = 'NO'"                                                       \
  " FROM information_schema.COLUMNS c WHERE " OF_THE_TABLE("c")
#define UNIQUE                                                                                                         \
  "SELECT MAX(s.COLUMN_NAME) FROM information_schema.STATISTICS s WHERE s.NON_UNIQUE = 0 AND " OF_THE_TABLE(           \
      "s") " GROUP BY s.INDEX_NAME HAVING COUNT(*) = 1 AND MAX(s.SUB_PART) IS NULL"

/* A TIMESTAMP has no instant 0, which is its way to say that it has none. */
static const struct dibs__sql_instant instants[] = {
    {.letter = DIBS__INSTANT_ZONED,
     .value = "FROM_UNIXTIME(@x / 1000)",
     .ms = "FLOOR(UNIX_TIMESTAMP(@c) * 1000)",
     .text = "CAST(UNIX_TIMESTAMP(@c) AS CHAR)",
     .least_ms = 1000},
    {.letter = DIBS__INSTANT_PLAIN,
     .value = "(TIMESTAMP '1970-01-01 00:00:00' + INTERVAL @x * 1000 MICROSECOND)",
     .ms = "(TIMESTAMPDIFF(MICROSECOND, TIMESTAMP '1970-01-01 00:00:00', @c) DIV 1000)",
     .text = "CAST(@c AS CHAR)"},
    {.letter = DIBS__INSTANT_MS, .value = "@x", .ms = "@c", .text = "@c"},
    {.letter = DIBS__INSTANT_S, .value = "(@x DIV 1000)", .ms = "(@c * 1000)", .text = "@c"},
    {.letter = '\0'}};

/* .now_ms: at the time of evaluation, because a statement that waited for a row must not write a time from before.
 * .now: also right in the hour that the time zone of a user's session repeats in autumn. */
#define ENGINE(engine_name, returns)                                                                                   \
  {                                                                                                                    \
    .name = (engine_name),                                                                                             \
    .words = {.number = "BIGINT",                                                                                      \
              .name = "VARBINARY(255)",                                                                                \
              .text = "VARBINARY(255)",                                                                                \
              .id = "VARBINARY(64)",                                                                                   \
              .bytes = "LONGBLOB",                                                                                     \
              .tail = "",                                                                                              \
              .counted = "BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY",                                                 \
              .now = " DEFAULT (TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) DIV 1000)"},                \
    .quote = '`', .begin = "START TRANSACTION", .for_update = " FOR UPDATE", .latest = " FOR UPDATE",                  \
    .sees_latest = "1", .now_ms = "FLOOR(UNIX_TIMESTAMP(SYSDATE(6)) * 1000)",                                          \
    .start_ms = "FLOOR(UNIX_TIMESTAMP(NOW(6)) * 1000)", .start_may_lie = true, .instants = instants, .joins = true,    \
    .by = {" FORCE INDEX (", ")"}, .any = {" IN (", ")"}, .row = "nr", .returning = (returns),                         \
    .plain_index = !(returns), .sessions = true, .fold = true, .columns = COLUMNS, .unique = UNIQUE,                   \
    .exact = {"CAST(CONVERT(", " USING utf8mb4) AS BINARY)"}, .put = dibs__mysql_put,                                  \
    .put_rows = dibs__mysql_put_rows, .go = dibs__mysql_go, .rows = dibs__mysql_rows, .changed = dibs__mysql_changed,  \
    .cell = dibs__mysql_cell                                                                                           \
  }

const struct dibs__sql_engine dibs__mysql_mysql = ENGINE("MySQL", false);

const struct dibs__server_engine dibs__mysql_engine = {
    .sql = ENGINE("MariaDB", true),
    .schemes = dibs__mysql_schemes,
    .params = dibs__mysql_params,
    .prepare = dibs__mysql_prepare,
    .forget = dibs__mysql_forget,
    .connect = dibs__mysql_connect,
    .close = dibs__mysql_close,
    .adopt = dibs__mysql_adopt,
    .lend = dibs__mysql_lend,
    .script = dibs__mysql_script,
    .describe = dibs__mysql_describe,
    .in_transaction = dibs__mysql_in_transaction,
    .incarnation = incarnation,
    .schema = schema,
    .lock_schema = lock_schema,
    .notifier_open = dibs__mysql_notifier_open,
    .notifier_close = dibs__mysql_notifier_close,
    .notifier_wait = dibs__mysql_notifier_wait,
    .notifier_wake = dibs__mysql_notifier_wake,
    .notify_tasks = dibs__mysql_notify_tasks,
    .expect_tasks = dibs__mysql_expect_tasks,
    .notify_within = dibs__mysql_notify_within,
    .notify_after = dibs__mysql_notify_after,
    .fast = dibs__mysql_fast,
    .alive = "IS_USED_LOCK(CONCAT('dibs.s.', $s))",
};

/* ---- The driver ---- */

static dibs__status open_store(const struct dibs__uri *uri, struct dibs__dstore *const inner[], size_t count,
                               dibs__tick by, struct dibs__dstore **store, struct dibs__result *result) {
  (void)inner, (void)count;
  return dibs__session_lock_open(&dibs__mysql_engine, &dibs__mysql_locking, uri, by, store, result);
}

extern const struct dibs__driver dibs__mysql_driver;
const struct dibs__driver dibs__mysql_driver = DIBS__SERVER_DRIVER("mysql", dibs__mysql_schemes, open_store);
