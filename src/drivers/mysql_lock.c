/* SPDX-License-Identifier: MIT */
/*
 * Session locks: lock=named.  A name's key is dibs. and the first 48 digits of the SHA-256 of DATABASE.PREFIX:NAME:
 *
 *   GET_LOCK(CONCAT('dibs.', LEFT(SHA2('orders.dibs_:nightly', 256), 48)), 10)
 *
 * Such locks are the whole server's and their names at most 64 characters, without regard to case: hashed, they are
 * all short, and none meets another.  The database is spelled as the server does (DATABASE()), or in small letters
 * where it knows no difference.
 *
 * A wait that the server ends by itself (after a day) is asked again.
 */
#include "drivers/mysql_parts.h"
#include "sql/far_lock.h"

#include <poll.h>
#include <stdio.h>
#include <sys/socket.h>

typedef enum dibs__sql_step step;
typedef struct dibs__my_wire wire_t;

enum { DIGITS = 48, ANSWER_MS = 1000 };

static void key(const char hex[65], struct dibs__far_key *to) {
  int len = snprintf(to->text, sizeof to->text, "dibs.%.*s", DIGITS, hex);
  to->value = dibs__sql_text(to->text, (size_t)len);
}

#define WAITING_A "SELECT GET_LOCK("
#define WAITING_B ", 86400)"

static step wait_for(struct dibs__sql_wire *wire, const struct dibs__far_key *at, bool shared) {
  wire_t *w = dibs__my(wire);
  (void)shared;
  step end = dibs__my_put(wire, WAITING_A "$1" WAITING_B, &at->value, 1);
  if (end != DIBS__SQL_FINE) return end;
  dibs__my_clear(w);
  w->late = false;
  w->lock_failed = 0;
  w->lock_want = mysql_real_query_start(&w->lock_failed, w->my, w->text.p, (unsigned long)w->text.len);
  w->base.put = w->text.len = 0;
  return w->lock_want || !w->lock_failed ? DIBS__SQL_FINE : dibs__my_failed(w);
}

static enum dibs__far_heard heard(struct dibs__sql_wire *wire) {
  wire_t *w = dibs__my(wire);
  if (w->lock_want) {
    struct pollfd fd = {.fd = mysql_get_socket(w->my)};
    if (w->lock_want & MYSQL_WAIT_READ) fd.events |= POLLIN;
    if (w->lock_want & MYSQL_WAIT_WRITE) fd.events |= POLLOUT;
    if (poll(&fd, 1, 0) <= 0) return DIBS__FAR_NOT_YET;
    w->lock_want = mysql_real_query_cont(&w->lock_failed, w->my, w->lock_want & (MYSQL_WAIT_READ | MYSQL_WAIT_WRITE));
  }
  if (w->lock_want) return DIBS__FAR_NOT_YET;
  /* The rest of an answer whose beginning is there. */
  w->base.by = dibs__tick_add_ms(dibs__tick_now(), ANSWER_MS);
  step end = w->lock_failed ? dibs__my_failed(w) : dibs__my_take(w, false);
  if (end != DIBS__SQL_FINE) {
    bool ended = w->base.trouble == DIBS__SQL_LOCKED || w->base.trouble == DIBS__SQL_DEADLOCK;
    return ended ? DIBS__FAR_AGAIN : DIBS__FAR_BROKE;
  }
  if (dibs__my_rows(wire, 0) != 1) return DIBS__FAR_BROKE;
  struct dibs__sql_value cell = dibs__my_cell(wire, 0, 0, 0, DIBS__SQL_NUMBER);
  if (cell.kind == DIBS__SQL_NULL) return DIBS__FAR_BROKE;
  return cell.number == 1 ? DIBS__FAR_GOT : DIBS__FAR_AGAIN;
}

static int socket_of(const struct dibs__sql_wire *wire) {
  my_socket fd = mysql_get_socket(dibs__my_of(wire)->my);
  return fd == MARIADB_INVALID_SOCKET ? -1 : (int)fd;
}

/* A farewell would wait behind the wait.  The connector is told, so that it can clean up. */
static void abandon(struct dibs__sql_wire *wire) {
  wire_t *w = dibs__my(wire);
  if (w->lock_want) {
    w->dead = true;
    (void)shutdown(mysql_get_socket(w->my), SHUT_RDWR);
    while (w->lock_want) w->lock_want = mysql_real_query_cont(&w->lock_failed, w->my, MYSQL_WAIT_TIMEOUT);
  }
  dibs__my_close(wire);
}

const struct dibs__far_locking dibs__my_locking = {
    .space = "SELECT IF(@@lower_case_table_names = 0, DATABASE(), LOWER(DATABASE()))",
    .ready = "SET SESSION wait_timeout = 31536000 /*M! , max_statement_time = 0 */",
    .self = "SELECT CONNECTION_ID()",
    .take = "SELECT GET_LOCK($1, 0)",
    .drop = "SELECT RELEASE_LOCK($1)",
    .drop_all = "SELECT RELEASE_ALL_LOCKS()",
    .holders = "SELECT IS_USED_LOCK($1)",
    /* Of the same user, unless the right PROCESS shows all. */
    .waiters = "SELECT ID FROM information_schema.PROCESSLIST WHERE INFO = CONCAT('" WAITING_A
               "', QUOTE($1), '" WAITING_B "') ORDER BY TIME_MS DESC, ID",
    .kill = "KILL $1",
    .ping = "SELECT 1",
    .key = key,
    .wait = wait_for,
    .heard = heard,
    .socket = socket_of,
    .abandon = abandon,
};
