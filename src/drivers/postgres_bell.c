/* SPDX-License-Identifier: MIT */
/*
 * A bell: a connection that holds the advisory lock named after its session, and listens on the session's channel.
 *
 * Rings are sent by statements of their own behind COMMIT: a transaction with NOTIFY commits alone in the whole
 * database.  And they do not wait for the disk: a ring that a crash takes along is one that nobody waits for.  A
 * payload is hex digits: what (2), then the event as it travels (far.h).
 */
#include "drivers/postgres_parts.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PARTING_MS = 300, CHANNEL_SIZE = 32, PAYLOAD = 2 + 2 * DIBS__FAR_RING_BYTES };

struct bell {
  struct dibs__pg_wire *w;
  int wake;
};

static void channel_of(uint64_t session, char channel[CHANNEL_SIZE]) {
  snprintf(channel, CHANNEL_SIZE, "dibs_%016" PRIx64, session);
}

/* ---- Opening ---- */

static step_t listen_on(struct dibs__pg_wire *w, uint64_t session) {
  char channel[CHANNEL_SIZE], text[CHANNEL_SIZE + 16];
  struct dibs__sql_value v = dibs__sql_number((int64_t)session);
  channel_of(session, channel);
  snprintf(text, sizeof text, "LISTEN %s", channel);
  step_t end = dibs__pg_put(&w->wire, text, NULL, 0);
  /* Who asks whether we live holds it for the moment; another bell of ours that is not known to be dead yet, longer. */
  if (end == DIBS__SQL_FINE) end = dibs__pg_put(&w->wire, "SELECT pg_advisory_lock($1)", &v, 1);
  return end == DIBS__SQL_FINE ? dibs__pg_go(&w->wire, false) : end;
}

dibs__status dibs__pg_bell_open(struct dibs__far *store, uint64_t session, dibs__tick by, void **bell,
                                struct dibs__said *said) {
  *bell = NULL;
  struct bell *b = calloc(1, sizeof *b);
  if (!b) return DIBS_NO_MEMORY;
  b->wake = dibs__bell_open();
  dibs__status status = DIBS_UNAVAILABLE;
  if (b->wake < 0)
    dibs__say(said, "no descriptor left for the bell of %s", store->shown);
  else
    status = dibs__pg_open_wire(store, by, &b->w, said);
  if (status == DIBS_OK && listen_on(b->w, session) != DIBS__SQL_FINE)
    status = dibs__sql_excuse(&b->w->wire, "open a bell in", store->shown, said);
  if (status == DIBS_OK) {
    *bell = b;
    return DIBS_OK;
  }
  dibs__pg_bell_close(b);
  return status;
}

void dibs__pg_bell_close(void *bell) {
  struct bell *b = bell;
  if (!b) return;
  /* At once, and not when the server gets around to ending the connection: until then our waiters seem to live. */
  if (b->w && !b->w->last_words[0]) {
    b->w->wire.by = dibs__tick_add_ms(dibs__tick_now(), PARTING_MS);
    if (dibs__pg_put(&b->w->wire, "SELECT pg_advisory_unlock_all()", NULL, 0) == DIBS__SQL_FINE)
      (void)dibs__pg_go(&b->w->wire, false);
  }
  dibs__pg_wire_free(b->w);
  if (b->wake >= 0) dibs__bell_close(b->wake);
  free(b);
}

void dibs__pg_bell_wake(void *bell) {
  dibs__bell_raise(((struct bell *)bell)->wake);
}

/* ---- Hearing ---- */

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

/* false: nothing that we send.  Whatever it says is only a reason to look. */
static bool read_payload(const char *text, struct dibs__event *event) {
  uint8_t what, bytes[DIBS__FAR_RING_BYTES];
  *event = (struct dibs__event){.what = DIBS__EV_RECHECK};
  if (strlen(text) != PAYLOAD || !read_hex(text, 2, &what) || what > DIBS__EV_NEW_LIFE) return false;
  if (!read_hex(text + 2, 2 * sizeof bytes, bytes)) return false;
  dibs__far_ring_read(bytes, event);
  event->what = (enum dibs__event_what)what;
  return true;
}

static size_t hear(struct bell *b, struct dibs__event *events, size_t cap) {
  size_t count = 0;
  PGnotify *n;
  while (count < cap && (n = PQnotifies(b->w->pg))) {
    (void)read_payload(n->extra, &events[count++]);
    PQfreemem(n);
  }
  return count;
}

dibs__status dibs__pg_bell_wait(void *bell, struct dibs__event *events, size_t cap, size_t *count, dibs__tick by) {
  struct bell *b = bell;
  struct pollfd fds[] = {{.fd = PQsocket(b->w->pg), .events = POLLIN}, {.fd = b->wake, .events = POLLIN}};
  *count = hear(b, events, cap); /* what there was no room for the last time */
  while (*count == 0) {
    int64_t left = by.ns == DIBS__TICK_NEVER.ns ? -1 : dibs__tick_left_ms(dibs__tick_now(), by);
    int got = poll(fds, 2, left > INT_MAX ? INT_MAX : (int)left);
    if (got < 0 && errno != EINTR) return DIBS_UNAVAILABLE;
    if (got == 0 && left >= 0) return DIBS_OK;
    if (got <= 0) continue;
    if (fds[0].revents && (!PQconsumeInput(b->w->pg) || PQstatus(b->w->pg) != CONNECTION_OK)) return DIBS_UNAVAILABLE;
    *count = hear(b, events, cap);
    if (b->w->last_words[0]) return DIBS_UNAVAILABLE;
    if (!fds[1].revents) continue;
    dibs__bell_lower(b->wake);
    return DIBS_OK;
  }
  return DIBS_OK;
}

/* ---- Ringing ---- */

static void write_payload(const struct dibs__event *event, char text[PAYLOAD + 1]) {
  static const char digits[] = "0123456789abcdef";
  uint8_t bytes[DIBS__FAR_RING_BYTES];
  dibs__far_ring_write(event, bytes);
  char *at = text + snprintf(text, 3, "%02x", (unsigned)event->what);
  for (size_t i = 0; i < sizeof bytes; i++) {
    *at++ = digits[bytes[i] >> 4];
    *at++ = digits[bytes[i] & 15];
  }
  *at = '\0';
}

step_t dibs__pg_ring_after(struct dibs__far *store, struct dibs__sql_wire *wire, const struct dibs__far_ring *rings,
                           const int64_t *where, size_t count) {
  char channel[CHANNEL_SIZE], payload[PAYLOAD + 1];
  (void)store;
  (void)where;
  for (size_t i = 0; i < count; i++) {
    channel_of(rings[i].session, channel);
    write_payload(&rings[i].event, payload);
    struct dibs__sql_value v[] = {dibs__sql_text(channel, strlen(channel)), dibs__sql_text(payload, PAYLOAD)};
    step_t end = dibs__pg_put(wire, "SELECT pg_notify($1, $2), set_config('synchronous_commit', 'off', true)", v, 2);
    if (end != DIBS__SQL_FINE) return end;
  }
  return DIBS__SQL_FINE;
}
