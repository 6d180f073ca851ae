/* SPDX-License-Identifier: MIT */
/*
 * Packets.  What is put goes into libpq's buffer, which sends on its own when it is large and never waits: put reads
 * what the server says meanwhile, so that neither stands still because the other does not read.
 *
 * What is known when the connection is lost in the middle: an ERROR that was read ended the packet before its COMMIT,
 * so nothing was done.  A FATAL one says nothing: the server may have committed before it fell.  A COMMIT whose answer
 * was read is done, whatever happens to what stands behind it.
 */
#include "drivers/postgres_parts.h"

#include <assert.h>
#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct dibs__pg_wire wire_t;
typedef step_t step;

static wire_t *of(struct dibs__sql_wire *wire) {
  return (wire_t *)wire;
}

bool dibs__pg_wait_for(PGconn *pg, bool reading, bool writing, dibs__tick by) {
  struct pollfd fd = {.fd = PQsocket(pg), .events = (short)((reading ? POLLIN : 0) | (writing ? POLLOUT : 0))};
  for (;;) {
    int64_t left = by.ns == DIBS__TICK_NEVER.ns ? -1 : dibs__tick_left_ms(dibs__tick_now(), by);
    int got = poll(&fd, 1, left > INT_MAX ? INT_MAX : (int)left);
    if (got > 0 || (got < 0 && errno != EINTR)) return true;
    if (got == 0 && left <= INT_MAX) return false;
  }
}

/* ---- Trouble ---- */

static step broke(wire_t *w, enum dibs__sql_trouble trouble, size_t at, const PGresult *result) {
  w->wire.trouble = trouble;
  w->wire.broke_at = at;
  if (trouble == DIBS__SQL_LATE)
    snprintf(w->wire.words, sizeof w->wire.words, "the server is silent");
  else if (!result && w->last_words[0])
    snprintf(w->wire.words, sizeof w->wire.words, "%s", w->last_words);
  else
    dibs__pg_say(w->wire.words, sizeof w->wire.words, result, w->pg);
  if (trouble == DIBS__SQL_GONE || trouble == DIBS__SQL_LATE) w->dead = true;
  return DIBS__SQL_BROKE;
}

/* While a packet is put.  libpq may have sent some of it already, with a COMMIT. */
static step gone(wire_t *w) {
  broke(w, DIBS__SQL_GONE, w->wire.put, NULL);
  w->wire.unsure = w->began && w->committed && !w->wire.inside;
  return DIBS__SQL_BROKE;
}

/* Our own memory was short in the middle of a packet: libpq has half of it, so it is of no more use. */
static step short_of_memory(wire_t *w) {
  gone(w);
  snprintf(w->wire.words, sizeof w->wire.words, "out of memory");
  return DIBS__SQL_BROKE;
}

/* ---- Putting ---- */

static void forget_results(wire_t *w) {
  for (size_t i = 0; i < w->result_count; i++) PQclear(w->results[i]);
  w->result_count = 0;
}

/* A server that was shut down while nobody asked has said so: better to see it now than to be unsure afterwards. */
static bool still_there(wire_t *w) {
  struct pollfd fd = {.fd = PQsocket(w->pg), .events = POLLIN};
  /* A message first, and then the end: each is read by itself. */
  while (poll(&fd, 1, 0) > 0) {
    if (!PQconsumeInput(w->pg)) return false;
    (void)PQisBusy(w->pg); /* takes in what was read */
    if (PQstatus(w->pg) != CONNECTION_OK || w->last_words[0]) return false;
  }
  return true;
}

static bool begin_packet(wire_t *w) {
  forget_results(w);
  w->expected_count = 0;
  w->committed = false;
  w->began = true;
  w->packet++;
  if (w->wire.inside) w->blocking = !PQisnonblocking(w->pg);
  if (!w->wire.inside && PQtransactionStatus(w->pg) == PQTRANS_IDLE && !still_there(w)) return false;
  if (w->piping) return true;
  /* Fails only where it can't be: the user's own connection in the middle of something. */
  w->piping = PQenterPipelineMode(w->pg) == 1;
  return w->piping && PQsetnonblocking(w->pg, 1) == 0;
}

static bool expect(wire_t *w, enum dibs__pg_what what, uint32_t nth, struct dibs__pg_text *text) {
  if (w->expected_count == w->expected_room) {
    size_t room = w->expected_room ? w->expected_room * 2 : 32;
    struct dibs__pg_expected *more = realloc(w->expected, room * sizeof *more);
    if (!more) return false;
    w->expected = more;
    w->expected_room = room;
  }
  w->expected[w->expected_count++] = (struct dibs__pg_expected){.what = what, .nth = nth, .text = text};
  return true;
}

static bool room_for_result(wire_t *w) {
  if (w->wire.put < w->result_room) return true;
  size_t room = w->result_room ? w->result_room * 2 : 32;
  PGresult **more = realloc(w->results, room * sizeof(PGresult *));
  if (!more) return false;
  w->results = more;
  struct dibs__pg_text **texts = realloc(w->result_texts, room * sizeof(struct dibs__pg_text *));
  if (!texts) return false;
  w->result_texts = texts;
  w->result_room = room;
  return true;
}

static char *name_of(uint32_t nr, char name[16]) {
  snprintf(name, 16, "d%u", nr);
  return name;
}

static bool put_forgets(wire_t *w) {
  for (; w->texts.gone_count > 0; w->texts.gone_count--) {
    uint32_t nr = w->texts.gone[w->texts.gone_count - 1];
    char text[32];
    snprintf(text, sizeof text, "DEALLOCATE d%u", nr);
    if (!expect(w, DIBS__PG_FORGETS, nr, NULL)) return false;
    if (!PQsendQueryParams(w->pg, text, 0, NULL, NULL, NULL, NULL, 0)) return false;
  }
  return true;
}

/* In front of a packet that is a transaction of its own, or in the user's: not within one of ours. */
static bool put_widening(wire_t *w) {
  if (!w->narrow || w->wire.put > 0 || (w->nameless && !w->wire.inside)) return true;
  if (PQtransactionStatus(w->pg) != (w->wire.inside ? PQTRANS_INTRANS : PQTRANS_IDLE)) return true;
  return expect(w, DIBS__PG_WIDENS, 0, NULL) && dibs__pg_widen(w);
}

/* Puts the statement; its values are in w->values. */
static bool put_text(wire_t *w, struct dibs__pg_text *t) {
  char name[16];
  struct dibs__pg_values *v = &w->values;
  dibs__pg_values_end(v);
  if (!t->bound) {
    t->count = (uint8_t)v->count;
    memcpy(t->types, v->types, (size_t)v->count * sizeof(Oid));
    t->bound = true;
  }
  assert(t->count == v->count);
  int binary = t->answers == DIBS__PG_BINARY;
  uint32_t nth = (uint32_t)w->wire.put;
  if (w->nameless) {
    if (!expect(w, DIBS__PG_STATEMENT, nth, t)) return false;
    return PQsendQueryParams(w->pg, t->sql, v->count, t->types, v->at, v->lengths, v->formats, binary) == 1;
  }
  if (!t->ready) {
    if (!expect(w, DIBS__PG_PREPARES, nth, t)) return false;
    if (!PQsendPrepare(w->pg, name_of(t->nr, name), t->sql, t->count, t->types)) return false;
    t->ready = true;
  }
  if (!expect(w, DIBS__PG_STATEMENT, nth, t)) return false;
  return PQsendQueryPrepared(w->pg, name_of(t->nr, name), v->count, v->at, v->lengths, v->formats, binary) == 1;
}

/* Behind a COMMIT a packet of its own begins. */
static bool put_break(wire_t *w) {
  if (!w->committed || !w->expected_count || !w->expected[w->expected_count - 1].commit) return true;
  return expect(w, DIBS__PG_SYNC, (uint32_t)w->wire.put, NULL) && PQpipelineSync(w->pg) == 1;
}

step dibs__pg_put_rows(struct dibs__sql_wire *wire, const char *text, const struct dibs__sql_value *values,
                       size_t count, const struct dibs__sql_value *rows, size_t columns, size_t row_count) {
  wire_t *w = of(wire);
  char kinds[DIBS__PG_VALUES + 1] = "";
  assert(count + columns <= DIBS__PG_VALUES && (columns == 0 || row_count > 0));
  if (w->dead) return gone(w);
  if (!w->began && !begin_packet(w)) return gone(w);
  if (columns) dibs__pg_kinds(kinds, rows, columns, row_count);
  struct dibs__pg_text *t = dibs__pg_text_find(&w->texts, text, kinds, count, w->packet);
  if (!t || !room_for_result(w)) return short_of_memory(w);
  const Oid *types = t->bound ? t->types : NULL;
  dibs__pg_values_begin(&w->values);
  for (size_t i = 0; i < count; i++)
    if (!dibs__pg_values_add(&w->values, &values[i], types)) return short_of_memory(w);
  for (size_t c = 0; c < columns; c++)
    if (!dibs__pg_values_add_column(&w->values, kinds[c], rows, columns, c, row_count)) return short_of_memory(w);
  if (!put_break(w) || !put_widening(w) || !put_forgets(w) || !put_text(w, t)) return gone(w);
  struct dibs__pg_expected *last = &w->expected[w->expected_count - 1];
  last->commit = strcmp(text, "COMMIT") == 0;
  if (last->commit) w->committed = true;
  w->results[w->wire.put] = NULL;
  w->result_texts[w->wire.put] = t;
  w->wire.put++;
  w->result_count = w->wire.put;
  return DIBS__SQL_FINE;
}

step dibs__pg_put(struct dibs__sql_wire *wire, const char *text, const struct dibs__sql_value *values, size_t count) {
  return dibs__pg_put_rows(wire, text, values, count, NULL, 0, 0);
}

/* ---- Going ---- */

struct going {
  size_t at;     /* the next one that is expected */
  bool answered; /* it has its result; the NULL behind it is missing */
  size_t last;   /* what matters ends here: the last COMMIT, or the end */
  bool failed;   /* something that matters did */
  bool done;     /* all that matters was answered, and stands */
  bool widened;  /* the search path, if the packet stands */
  bool fatal;    /* the server ended the connection */
};

/* What stands behind the last COMMIT is nobody's trouble. */
static size_t last_that_matters(const wire_t *w) {
  for (size_t i = w->expected_count; w->committed && i > 0; i--)
    if (w->expected[i - 1].commit) return i - 1;
  return w->expected_count - 1;
}

static bool same(const char *a, const char *b) {
  return strcmp(a, b) == 0;
}

/* A statement that worked before and does not fit any more: somebody has altered the table since it was prepared. */
static bool outdated(struct dibs__pg_text *t, const char *state) {
  bool fits = strncmp(state, "0A", 2) != 0 && strncmp(state, "42", 2) != 0 && strncmp(state, "22", 2) != 0;
  if (fits || !t->ready) return false;
  t->stale = true;
  return t->worked && strncmp(state, "22", 2) != 0; /* that may also be a value of today's */
}

/* A result of what is expected at g->at. */
static void take(wire_t *w, struct going *g, PGresult *result) {
  const struct dibs__pg_expected *e = &w->expected[g->at];
  ExecStatusType status = PQresultStatus(result);
  bool fine = status == PGRES_COMMAND_OK || status == PGRES_TUPLES_OK;
  bool matters = g->at <= g->last && !g->failed;
  const char *state = PQresultErrorField(result, PG_DIAG_SQLSTATE);
  const char *severity = PQresultErrorField(result, PG_DIAG_SEVERITY_NONLOCALIZED);
  if (severity && !same(severity, "ERROR")) g->fatal = true;

  if (e->what == DIBS__PG_PREPARES && !fine) e->text->ready = false;
  if (e->what == DIBS__PG_WIDENS && fine)
    g->widened = w->wire.inside || (PQntuples(result) == 1 && *PQgetvalue(result, 0, 0) == '1');
  if (e->what == DIBS__PG_FORGETS && !fine && !g->fatal) {
    assert(w->texts.gone_count < w->texts.gone_room);
    w->texts.gone[w->texts.gone_count++] = e->nth; /* again another time */
  }
  if (status == PGRES_FATAL_ERROR && matters && PQstatus(w->pg) == CONNECTION_OK) {
    g->failed = true;
    bool again = e->what == DIBS__PG_STATEMENT && state && !w->wire.inside && outdated(e->text, state);
    broke(w, g->fatal ? DIBS__SQL_GONE : again ? DIBS__SQL_DEADLOCK : dibs__pg_trouble(state), e->nth, result);
  }
  /* COMMIT of a transaction that failed before. */
  if (fine && e->commit && matters && same(PQcmdStatus(result), "ROLLBACK")) {
    g->failed = true;
    broke(w, DIBS__SQL_ODD, e->nth, NULL);
    snprintf(w->wire.words, sizeof w->wire.words, "the transaction had failed before, and was rolled back");
  }
  if (e->what == DIBS__PG_STATEMENT && fine) {
    e->text->worked = true;
    if (e->text->answers == DIBS__PG_UNSEEN && PQnfields(result) > 0) e->text->answers = dibs__pg_answers_of(result);
    if (!dibs__pg_result_ready(result) && matters) {
      g->failed = true;
      broke(w, DIBS__SQL_ODD, e->nth, NULL);
      snprintf(w->wire.words, sizeof w->wire.words, "bytes came in another form than hex: set bytea_output to hex");
    }
    w->results[e->nth] = result;
    result = NULL;
  }
  PQclear(result);
}

/* One call of PQgetResult.  false: there is nothing more to come. */
static bool advance(wire_t *w, struct going *g) {
  PGresult *result = PQgetResult(w->pg);
  if (!result) {
    if (!g->answered) return false;
    g->answered = false;
    g->at++;
    return true;
  }
  if (PQresultStatus(result) == PGRES_PIPELINE_SYNC) {
    /* What was expected before it has been answered or passed over. */
    PQclear(result);
    g->answered = false;
    while (g->at < w->expected_count && w->expected[g->at].what != DIBS__PG_SYNC) g->at++;
    g->at++;
  } else {
    take(w, g, result);
    g->answered = w->expected[g->at].what != DIBS__PG_SYNC;
  }
  /* A COMMIT is done when it says so; without one the sync is what commits. */
  if (!g->failed && PQstatus(w->pg) == CONNECTION_OK &&
      (g->at > g->last || (w->committed && g->at == g->last && g->answered)))
    g->done = true;
  return true;
}

static step end_packet(wire_t *w, step end) {
  w->began = false;
  w->wire.put = 0;
  if (!w->wire.inside || !w->piping) return end;
  w->piping = false;
  if (w->dead) return end;
  bool left = PQexitPipelineMode(w->pg) == 1;
  if (w->blocking && PQsetnonblocking(w->pg, 0) != 0) left = false;
  return left ? end : gone(w);
}

/* The connection is lost, or too late: what is known? */
static step lost(wire_t *w, struct going *g, enum dibs__sql_trouble trouble, bool commits) {
  if (g->done) {
    w->dead = true;
    w->wire.trouble = trouble; /* for those who ask whether it is of use still */
    return DIBS__SQL_FINE;
  }
  bool error = g->failed && !g->fatal;
  if (!g->failed) broke(w, trouble, g->at < w->expected_count ? w->expected[g->at].nth : w->wire.put, NULL);
  w->wire.trouble = trouble;
  w->dead = true;
  w->wire.unsure = commits && !error && !w->wire.inside;
  return DIBS__SQL_BROKE;
}

step dibs__pg_go(struct dibs__sql_wire *wire, bool commits) {
  wire_t *w = of(wire);
  struct going g = {.at = 0};
  if (w->dead) {
    gone(w);
    return end_packet(w, DIBS__SQL_BROKE);
  }
  if (!w->began) return DIBS__SQL_FINE;
  if (!expect(w, DIBS__PG_SYNC, (uint32_t)wire->put, NULL)) {
    short_of_memory(w);
    return end_packet(w, DIBS__SQL_BROKE);
  }
  wire->unsure = false;
  g.last = last_that_matters(w);
  bool whole = PQpipelineSync(w->pg) == 1;
  while (whole && g.at < w->expected_count) {
    if (!PQisBusy(w->pg)) {
      if (!advance(w, &g)) break;
      continue;
    }
    int unsent = PQflush(w->pg);
    if (unsent < 0) break;
    if (!dibs__pg_wait_for(w->pg, true, unsent > 0, dibs__sql_patience(wire)))
      return end_packet(w, lost(w, &g, DIBS__SQL_LATE, commits));
    if (!PQconsumeInput(w->pg)) break;
  }
  /* What arrived before the end of the connection is still there to be read. */
  while (g.at < w->expected_count && advance(w, &g)) continue;
  if (g.at < w->expected_count || PQstatus(w->pg) != CONNECTION_OK || g.fatal)
    return end_packet(w, lost(w, &g, DIBS__SQL_GONE, commits));
  if (g.widened && !g.failed) w->narrow = false;
  return end_packet(w, g.failed ? DIBS__SQL_BROKE : DIBS__SQL_FINE);
}

/* ---- Making ---- */

/* What the server says without being asked: that it is going down. */
static void hear(void *arg, const PGresult *result) {
  wire_t *w = arg;
  const char *state = PQresultErrorField(result, PG_DIAG_SQLSTATE);
  if (state && strncmp(state, "57P", 3) == 0) dibs__pg_say(w->last_words, sizeof w->last_words, result, NULL);
}

wire_t *dibs__pg_wire_new(PGconn *pg, const struct dibs__sql_engine *engine, bool inside) {
  wire_t *w = calloc(1, sizeof *w);
  if (!w) return NULL;
  w->wire.engine = engine;
  w->wire.inside = w->nameless = inside;
  w->wire.trouble = DIBS__SQL_ODD;
  w->pg = pg;
  if (!inside) PQsetNoticeReceiver(pg, hear, w);
  return w;
}

void dibs__pg_wire_free(wire_t *w) {
  if (!w) return;
  forget_results(w);
  if (!w->wire.inside) PQfinish(w->pg);
  dibs__pg_texts_free(&w->texts);
  free(w->values.room);
  free(w->expected);
  free(w->results);
  free(w->result_texts);
  free(w);
}
