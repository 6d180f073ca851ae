/* SPDX-License-Identifier: MIT */
/*
 * Bells: waking each other through the server.
 *
 * A bell is two connections.  One holds GET_LOCK('dibs.w.SESSION') and does nothing.  The other holds
 * GET_LOCK('dibs.s.SESSION'), which is how others know that its process lives, and sleeps in
 *
 *   SELECT IF(EXISTS (mail for SESSION), 0, GET_LOCK('dibs.w.SESSION', 30))
 *
 * When the process dies, the server sees the first one go at once; the second then gets the lock, finds nobody to tell,
 * and goes too.  (A connection that sleeps alone is there until its sleep is over.)
 *
 * Who rings leaves mail in its own transaction, and behind its COMMIT, in the same packet, ends the sleep: KILL QUERY.
 * No ring is lost: the look for mail and the sleep are one statement.  When that began before the mail was committed it
 * is asleep or about to be, and KILL ends it; when it began afterwards it finds the mail.  KILL QUERY between two
 * statements does nothing; one that comes late hits the reading, which is then done again.
 *
 * What was tried and is worse (MariaDB 10.11): SLEEP() in place of GET_LOCK(): a KILL that meets the beginning of a
 * sleep waits for two seconds, and all other sleepers with it.  The sleep and the reading in one packet: a query that
 * is killed just between two statements of a packet is answered by nothing at all, not even an error.
 *
 * Mail that was read stays for a while and is passed over: taking each piece away would cost a flush of the log.
 *
 * The sleep is left in flight between two calls of bell_wait, which watches the sockets and a descriptor of our own.
 */
#include "drivers/mysql_parts.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

typedef enum dibs__sql_step step;
typedef struct dibs__my_wire wire_t;

enum {
  READ_MAX = 64,   /* pieces of mail a packet */
  KEEP_MAX = 16,   /* so many may have been read and still be there */
  GRACE_MS = 5000, /* when the server does not answer for so long behind its sleep, it is gone */
};

int dibs__my_nap_ms = 30000;

struct bell {
  wire_t *w, *still; /* the one that sleeps, and the one that it sleeps behind */
  int fd;            /* raised to wake; any thread */
  int64_t session;
  const struct dibs__my_place *place;
  bool asleep; /* in flight */
  int want, failed;
  dibs__tick due; /* by then it has been answered */
  size_t mail_at; /* which of its statements reads mail */
  bool drops;     /* the first of them drops what we have seen */
  size_t seen_count;
  int64_t seen[KEEP_MAX + READ_MAX];
};

/* ---- Ringing ---- */

static bool add_text(struct dibs__my_buffer *to, const char *text) {
  return dibs__my_add(to, text, strlen(text));
}

static bool add_number(struct dibs__my_buffer *to, int64_t number) {
  struct dibs__sql_value value = dibs__sql_number(number);
  return dibs__my_add_value(to, &value);
}

/* Puts what was put together; frees it. */
static step put_built(struct dibs__sql_wire *wire, struct dibs__my_buffer *b, bool fine) {
  fine = fine && dibs__my_add(b, "", 1);
  step end =
      fine ? dibs__my_put(wire, b->p, NULL, 0) : dibs__my_broke(dibs__my(wire), DIBS__SQL_NO_SPACE, "out of memory");
  free(b->p);
  return end;
}

step dibs__my_ring_within(struct dibs__far *store, struct dibs__sql_wire *wire, const struct dibs__far_ring *rings,
                          size_t count) {
  const struct dibs__my_place *place = store->place;
  struct dibs__my_buffer b = {0};
  if (!count) return DIBS__SQL_FINE;
  bool fine = add_text(&b, place->texts[DIBS__MY_MAIL_PUT]);
  for (size_t i = 0; i < count && fine; i++) {
    uint8_t bytes[DIBS__FAR_RING_BYTES];
    dibs__far_ring_write(&rings[i].event, bytes);
    struct dibs__sql_value id = dibs__sql_bytes(bytes, sizeof bytes);
    fine = add_text(&b, i ? ",(" : "(") && add_number(&b, (int64_t)rings[i].session) &&
           /* Numbers that never come twice from one server. */
           add_text(&b, ",UUID_SHORT() & 9223372036854775807,") && add_number(&b, (int64_t)rings[i].event.what) &&
           add_text(&b, ",") && dibs__my_add_value(&b, &id) && add_text(&b, ")");
  }
  return put_built(wire, &b, fine);
}

static bool rung_before(const int64_t *where, size_t nth) {
  for (size_t i = 0; i < nth; i++)
    if (where[i] == where[nth]) return true;
  return false;
}

/* One that is gone meanwhile must not keep the others from being rung: errors are let pass. */
step dibs__my_ring_after(struct dibs__far *store, struct dibs__sql_wire *wire, const struct dibs__far_ring *rings,
                         const int64_t *where, size_t count) {
  struct dibs__my_buffer b = {0};
  size_t kills = 0;
  bool fine = true;
  (void)store;
  (void)rings;
  for (size_t i = 0; i < count; i++) kills += where[i] > 0 && !rung_before(where, i);
  if (!kills) return DIBS__SQL_FINE;
  bool block = kills > 1 && dibs__my(wire)->maria;
  if (block) fine = add_text(&b, "BEGIN NOT ATOMIC DECLARE CONTINUE HANDLER FOR SQLEXCEPTION BEGIN END;");
  for (size_t i = 0; i < count && fine; i++) {
    if (where[i] <= 0 || rung_before(where, i)) continue;
    fine =
        add_text(&b, "KILL QUERY ") && add_number(&b, where[i]) && (--kills == 0 && !block ? true : add_text(&b, ";"));
  }
  if (block) fine = fine && add_text(&b, "END");
  return put_built(wire, &b, fine);
}

/* ---- Sleeping ---- */

static bool add_seen(struct dibs__my_buffer *to, const struct bell *b, const char *before) {
  bool fine = true;
  if (!b->seen_count) return true;
  for (size_t i = 0; i < b->seen_count && fine; i++)
    fine = add_text(to, i ? "," : before) && add_number(to, b->seen[i]);
  return fine && add_text(to, ")");
}

static step put_one(struct bell *b, enum dibs__my_texts text, const char *before_seen, const char *end) {
  struct dibs__my_buffer to = {0};
  bool fine = add_text(&to, b->place->texts[text]) && add_number(&to, b->session) && add_seen(&to, b, before_seen) &&
              add_text(&to, end);
  return put_built(&b->w->base, &to, fine);
}

static void fall_asleep(struct bell *b) {
  wire_t *w = b->w;
  dibs__my_clear(w);
  b->due = dibs__tick_add_ms(dibs__tick_now(), dibs__my_nap_ms + GRACE_MS);
  b->asleep = true;
  b->failed = 0;
  w->late = false;
  w->base.by = b->due;
  b->want = mysql_real_query_start(&b->failed, w->my, w->text.p, (unsigned long)w->text.len);
  w->base.put = w->text.len = 0;
}

/* FINE too when a ring hit it: then it is asked again. */
static step go_unless_rung(struct bell *b, bool *done) {
  b->w->base.by = dibs__tick_add_ms(dibs__tick_now(), GRACE_MS);
  step end = dibs__my_go(&b->w->base, false);
  *done = end == DIBS__SQL_FINE;
  return end == DIBS__SQL_BROKE && b->w->base.trouble == DIBS__SQL_LOCKED ? DIBS__SQL_FINE : end;
}

static step lie_down(struct bell *b) {
  char nap[96];
  bool done;
  snprintf(nap, sizeof nap, "), 0, GET_LOCK('dibs.w.%lld', %d.%03d))", (long long)b->session, dibs__my_nap_ms / 1000,
           dibs__my_nap_ms % 1000);
  step end = DIBS__SQL_FINE;
  if (b->seen_count >= KEEP_MAX) {
    end = put_one(b, DIBS__MY_MAIL_DROP, " AND nr IN (", "");
    if (end == DIBS__SQL_FINE) end = go_unless_rung(b, &done);
    /* (A statement that is killed may be answered as if all were well.) */
    if (end == DIBS__SQL_FINE && done && dibs__my_changed(&b->w->base, 0) == b->seen_count) b->seen_count = 0;
  }
  if (end == DIBS__SQL_FINE) end = put_one(b, DIBS__MY_MAIL_SLEEP, " AND nr NOT IN (", nap);
  if (end == DIBS__SQL_FINE) fall_asleep(b);
  return end;
}

enum awoken { ANSWER, WAKE, OVER, SILENT };

static enum awoken await(struct bell *b, dibs__tick by) {
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
    if (n > 0 && fds[2].revents) return SILENT; /* nobody talks there but to say farewell */
    if (n > 0 && fds[1].revents) {
      dibs__bell_lower(b->fd);
      return WAKE;
    }
    if (n > 0 && fds[0].revents) return ANSWER;
    now = dibs__tick_now();
    if (!dibs__tick_before(now, b->due)) return SILENT;
    if (!dibs__tick_before(now, by)) return OVER;
  }
}

/* The sleep is over, or something of its answer is there. */
static step wake_up(struct bell *b) {
  wire_t *w = b->w;
  if (b->want) b->want = mysql_real_query_cont(&b->failed, w->my, b->want & (MYSQL_WAIT_READ | MYSQL_WAIT_WRITE));
  if (b->want) return DIBS__SQL_FINE;
  b->asleep = false;
  w->base.by = dibs__tick_add_ms(dibs__tick_now(), GRACE_MS);
  step end = b->failed ? dibs__my_failed(w) : dibs__my_take(w, false);
  if (end == DIBS__SQL_BROKE) return w->base.trouble == DIBS__SQL_LOCKED ? DIBS__SQL_FINE : end;
  if (dibs__my_rows(&w->base, 0) && dibs__my_cell(&w->base, 0, 0, 0, DIBS__SQL_NUMBER).number)
    return dibs__my_broke(w, DIBS__SQL_GONE, "the bell's other connection is gone");
  return DIBS__SQL_FINE;
}

static step read_mail(struct bell *b, struct dibs__event *events, size_t cap, size_t *count) {
  struct dibs__sql_wire *wire = &b->w->base;
  char most[32];
  bool done;
  snprintf(most, sizeof most, " LIMIT %zu", cap < READ_MAX ? cap : READ_MAX);
  step end = put_one(b, DIBS__MY_MAIL_READ, " AND nr NOT IN (", most);
  if (end == DIBS__SQL_FINE) end = go_unless_rung(b, &done);
  if (end != DIBS__SQL_FINE || !done) return end;
  for (size_t i = 0; i < dibs__my_rows(wire, 0); i++) {
    struct dibs__event *to = &events[(*count)++];
    struct dibs__sql_value id = dibs__my_cell(wire, 0, i, 2, DIBS__SQL_BYTES);
    *to = (struct dibs__event){0};
    to->what = (enum dibs__event_what)dibs__my_cell(wire, 0, i, 1, DIBS__SQL_NUMBER).number;
    if (id.p && id.len == DIBS__FAR_RING_BYTES) dibs__far_ring_read((const uint8_t *)id.p, to);
    b->seen[b->seen_count++] = dibs__my_cell(wire, 0, i, 0, DIBS__SQL_NUMBER).number;
  }
  return end;
}

dibs__status dibs__my_bell_wait(void *bell, struct dibs__event *events, size_t cap, size_t *count, dibs__tick by) {
  struct bell *b = bell;
  step end = DIBS__SQL_FINE;
  *count = 0;
  while (end == DIBS__SQL_FINE && !*count) {
    if (!b->asleep) end = lie_down(b);
    if (end != DIBS__SQL_FINE) break;
    enum awoken why = b->want ? await(b, by) : ANSWER;
    if (why == WAKE || why == OVER) return DIBS_OK;
    end = why == ANSWER ? wake_up(b) : DIBS__SQL_BROKE;
    if (end == DIBS__SQL_FINE && !b->asleep) end = read_mail(b, events, cap, count);
  }
  if (end == DIBS__SQL_FINE) return DIBS_OK;
  b->w->dead = true;
  return DIBS_UNAVAILABLE;
}

void dibs__my_bell_wake(void *bell) {
  dibs__bell_raise(((struct bell *)bell)->fd);
}

/* ---- Opening ---- */

static step hold_lock(wire_t *w, const char *prefix, int64_t session) {
  struct dibs__sql_value values[] = {dibs__sql_text(prefix, strlen(prefix)), dibs__sql_number(session)};
  step end = DIBS__SQL_FINE;
  if (w->maria) end = dibs__my_put(&w->base, "SET SESSION max_statement_time = 0", NULL, 0);
  /* A bell of ours that broke may still be there. */
  if (end == DIBS__SQL_FINE) end = dibs__my_put(&w->base, "SELECT GET_LOCK(CONCAT($1, $2), 3)", values, 2);
  size_t nth = w->base.put - 1;
  if (end == DIBS__SQL_FINE) end = dibs__my_go(&w->base, false);
  if (end == DIBS__SQL_FINE && dibs__my_cell(&w->base, nth, 0, 0, DIBS__SQL_NUMBER).number != 1)
    end = dibs__my_broke(w, DIBS__SQL_ODD, "the lock of this session is somebody else's");
  return end;
}

static dibs__status connect_one(struct dibs__far *store, const char *prefix, struct bell *b, dibs__tick by,
                                wire_t **out, struct dibs__said *said) {
  struct dibs__sql_wire *wire;
  dibs__status status = dibs__my_connect(store, by, &wire, said);
  if (status != DIBS_OK) return status;
  *out = dibs__my(wire);
  step end = hold_lock(*out, prefix, b->session);
  if (end == DIBS__SQL_FINE && out == &b->w) {
    end = dibs__my_put(wire, b->place->texts[DIBS__MY_MAIL_CLEAN], NULL, 0);
    if (end == DIBS__SQL_FINE) end = dibs__my_go(wire, false);
  }
  if (end == DIBS__SQL_FINE) return DIBS_OK;
  dibs__say(said, "can't open a bell at %s: %s", store->shown, wire->words);
  return wire->trouble == DIBS__SQL_DENIED ? DIBS_DENIED : DIBS_UNAVAILABLE;
}

dibs__status dibs__my_bell_open(struct dibs__far *store, uint64_t session, dibs__tick by, void **bell,
                                struct dibs__said *said) {
  *bell = NULL;
  struct bell *b = calloc(1, sizeof *b);
  if (!b) return DIBS_NO_MEMORY;
  b->session = (int64_t)session;
  b->place = store->place;
  b->fd = dibs__bell_open();
  dibs__status status = DIBS_OK;
  if (b->fd < 0) {
    dibs__say(said, "no descriptor is left for a bell: %s", strerror(errno));
    status = DIBS_UNAVAILABLE;
  }
  if (status == DIBS_OK) status = connect_one(store, "dibs.w.", b, by, &b->still, said);
  if (status == DIBS_OK) status = connect_one(store, "dibs.s.", b, by, &b->w, said);
  if (status == DIBS_OK)
    *bell = b;
  else
    dibs__my_bell_close(b);
  return status;
}

void dibs__my_bell_close(void *bell) {
  struct bell *b = bell;
  if (!b) return;
  if (b->w && b->asleep) {
    /* A farewell would wait behind the sleep.  The connector is told, so that it can clean up. */
    b->w->dead = true;
    (void)shutdown(mysql_get_socket(b->w->my), SHUT_RDWR);
    while (b->want) b->want = mysql_real_query_cont(&b->failed, b->w->my, MYSQL_WAIT_TIMEOUT);
  }
  if (b->still) dibs__my_close(&b->still->base);
  if (b->w) dibs__my_close(&b->w->base);
  dibs__bell_close(b->fd);
  free(b);
}
