/* SPDX-License-Identifier: MIT */
/*
 * Packets to PostgreSQL through libpq: SQLSTATEs, values, answers, packets.
 *
 * Values.  Numbers and bytes travel in binary; text travels as text, so that the server can convert it to the type it
 * needs: a user's integer, uuid, timestamp.
 *
 * Answers.  The first time a statement's answers come as text, because their types are not known; afterwards in
 * binary if all are of types that this file reads.
 *
 * Packets.  Statements go into libpq's buffer, which sends by itself when it is large and never waits: putting reads
 * the server's answers meanwhile, so that neither side blocks because the other does not read.
 *
 * When the connection breaks in the middle: an ERROR that was read ended the packet before its COMMIT, so nothing was
 * done.  A FATAL error leaves it open: the server may have committed before.  A COMMIT whose answer was read is done,
 * whatever happens to the statements after it.
 */
#include "drivers/postgres/postgres_impl.h"

#include <assert.h>
#include <endian.h>
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The first match counts: a whole state precedes its class. */
static const struct {
  const char *state;
  enum dibs__sql_trouble trouble;
} meanings[] = {
    {"23505", DIBS__SQL_TWICE},   {"23503", DIBS__SQL_ORPHAN},  {"23", DIBS__SQL_REFUSED}, /* other constraints */
    {"22", DIBS__SQL_REFUSED},                                                             /* values that don't fit */
    {"P0001", DIBS__SQL_REFUSED},                              /* RAISE, in a user's trigger */
    {"44000", DIBS__SQL_REFUSED},                              /* WITH CHECK OPTION */
    {"40003", DIBS__SQL_GONE},                                 /* completion unknown */
    {"40", DIBS__SQL_DEADLOCK},                                /* 40001 serialization, 40P01 deadlock, 40002 */
    {"55P03", DIBS__SQL_LOCKED},  {"57014", DIBS__SQL_LOCKED}, /* statement_timeout, or the query was cancelled */
    {"42501", DIBS__SQL_DENIED},  {"25006", DIBS__SQL_DENIED}, /* read-only transaction */
    {"28", DIBS__SQL_DENIED},                                  /* authorization */
    {"42P01", DIBS__SQL_MISSING}, {"42703", DIBS__SQL_MISSING}, {"3D000", DIBS__SQL_MISSING},
    {"3F000", DIBS__SQL_MISSING}, {"53200", DIBS__SQL_FULL},    {"53", DIBS__SQL_FULL},
    {"57P", DIBS__SQL_GONE},   /* shutdown, crash, database dropped, idle session ended */
    {"25P03", DIBS__SQL_GONE}, /* idle_in_transaction_session_timeout */
    {"25P04", DIBS__SQL_GONE}, /* transaction_timeout */
    {"26000", DIBS__SQL_GONE}, /* our prepared statements were deallocated: start again on another connection */
    {"58", DIBS__SQL_FULL},    /* the server's disk or system fails: unlike an error of a user's trigger it may pass */
    {"08", DIBS__SQL_GONE},       {"XX001", DIBS__SQL_DAMAGED}, {"XX002", DIBS__SQL_DAMAGED},
};

enum dibs__sql_trouble dibs__pg_trouble(const char *state) {
  for (size_t i = 0; state && i < sizeof meanings / sizeof meanings[0]; i++)
    if (strncmp(state, meanings[i].state, strlen(meanings[i].state)) == 0) return meanings[i].trouble;
  return DIBS__SQL_ODD;
}

/* The primary message of a result, else the connection's, on one line. */
static void pg_message(char *to, size_t size, const PGresult *result, const PGconn *pg) {
  const char *message = result ? PQresultErrorField(result, PG_DIAG_MESSAGE_PRIMARY) : NULL;
  if (!message && result) message = PQresultErrorMessage(result);
  if ((!message || !*message) && pg) message = PQerrorMessage(pg);
  if (!message || !*message) message = "the connection was lost";
  /* The message on one line; libpq's own ends with a newline, and indents further lines. */
  size_t used = 0;
  while (*message && used + 1 < size) {
    if (*message == '\n' || *message == '\t') {
      message += strspn(message, "\n\t ");
      if (*message) to[used++] = ' ';
    } else {
      to[used++] = *message++;
    }
  }
  to[used] = '\0';
}

/* ---- Answers ---- */

enum { NUMBER_DIGITS = 24 };

static const struct dibs__pg_wire *of(const struct dibs__sql_wire *wire) {
  return (const struct dibs__pg_wire *)wire;
}

static PGresult *result_of(const struct dibs__sql_wire *wire, size_t nth) {
  return nth < of(wire)->result_count ? of(wire)->results[nth] : NULL;
}

size_t dibs__pg_rows(const struct dibs__sql_wire *wire, size_t nth) {
  const PGresult *result = result_of(wire, nth);
  return result ? (size_t)PQntuples(result) : 0;
}

uint64_t dibs__pg_changed(const struct dibs__sql_wire *wire, size_t nth) {
  PGresult *result = result_of(wire, nth);
  return result ? strtoull(PQcmdTuples(result), NULL, 10) : 0;
}

static enum dibs__pg_answers answers_of(const PGresult *result) {
  for (int i = 0; i < PQnfields(result); i++) {
    switch (PQftype(result, i)) {
    case DIBS__PG_BOOL:
    case DIBS__PG_BYTEA:
    case DIBS__PG_NAME:
    case DIBS__PG_INT8:
    case DIBS__PG_INT2:
    case DIBS__PG_INT4:
    case DIBS__PG_TEXT:
    case DIBS__PG_OID:
    case DIBS__PG_BPCHAR:
    case DIBS__PG_VARCHAR:
      break;
    default:
      return DIBS__PG_AS_TEXT;
    }
  }
  return DIBS__PG_BINARY;
}

/* ---- Bytes that came as text: \x and hex digits, made bytes where they lie ---- */

static int hex_digit(char c) {
  return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

static bool unhex(char *at, size_t len) {
  if (len < 2 || len % 2 || at[0] != '\\' || at[1] != 'x') return false;
  for (size_t i = 2; i < len; i += 2) {
    int high = hex_digit(at[i]), low = hex_digit(at[i + 1]);
    if (high < 0 || low < 0) return false;
    at[i / 2 - 1] = (char)(high << 4 | low);
  }
  return true;
}

/* Which form a statement's answers have from now on; converts what came as text to bytes. */
static bool result_ready(PGresult *result) {
  for (int c = 0; c < PQnfields(result); c++) {
    if (PQftype(result, c) != DIBS__PG_BYTEA || PQfformat(result, c)) continue;
    for (int r = 0; r < PQntuples(result); r++)
      if (!PQgetisnull(result, r, c) && !unhex(PQgetvalue(result, r, c), (size_t)PQgetlength(result, r, c)))
        return false;
  }
  return true;
}

/* ---- One cell ---- */

static int64_t big_endian(const char *at, int len) {
  uint64_t n = 0;
  for (int i = 0; i < len; i++) n = n << 8 | (unsigned char)at[i];
  return (int64_t)n;
}

static int64_t number_of(const char *at, int len, Oid type) {
  switch (type) {
  case DIBS__PG_INT8:
  case DIBS__PG_OID:
  case DIBS__PG_BOOL:
    return big_endian(at, len);
  case DIBS__PG_INT4:
    return (int32_t)big_endian(at, len);
  case DIBS__PG_INT2:
    return (int16_t)big_endian(at, len);
  default:
    return strtoll(at, NULL, 10); /* libpq ends every value with a NUL */
  }
}

static bool is_number(Oid type) {
  return type == DIBS__PG_INT8 || type == DIBS__PG_INT4 || type == DIBS__PG_INT2 || type == DIBS__PG_OID ||
         type == DIBS__PG_BOOL;
}

/* As the server would have written it. */
static struct dibs__sql_value in_digits(PGresult *result, int64_t number, Oid type) {
  char *to = PQresultAlloc(result, NUMBER_DIGITS);
  if (!to) return dibs__sql_null();
  int len = type == DIBS__PG_BOOL ? snprintf(to, NUMBER_DIGITS, "%s", number ? "t" : "f")
                                  : snprintf(to, NUMBER_DIGITS, "%" PRId64, number);
  return dibs__sql_text(to, (size_t)len);
}

struct dibs__sql_value dibs__pg_cell(const struct dibs__sql_wire *wire, size_t nth, size_t row, size_t column,
                                     enum dibs__sql_kind as) {
  PGresult *result = result_of(wire, nth);
  int r = (int)row, c = (int)column;
  if (!result || r >= PQntuples(result) || c >= PQnfields(result) || PQgetisnull(result, r, c)) return dibs__sql_null();
  const char *at = PQgetvalue(result, r, c);
  int len = PQgetlength(result, r, c);
  Oid type = PQftype(result, c);
  bool binary = PQfformat(result, c) != 0;
  if (type == DIBS__PG_BYTEA && !binary) len = (len - 2) / 2;
  if (as == DIBS__SQL_NUMBER) {
    if (binary) return dibs__sql_number(number_of(at, len, type));
    return dibs__sql_number(type == DIBS__PG_BOOL ? *at == 't' : strtoll(at, NULL, 10));
  }
  if (binary && is_number(type)) {
    /* From now on requested as text. */
    of(wire)->result_texts[nth]->answers = DIBS__PG_AS_TEXT;
    return in_digits(result, number_of(at, len, type), type);
  }
  return as == DIBS__SQL_BYTES ? dibs__sql_bytes(at, (size_t)len) : dibs__sql_text(at, (size_t)len);
}

/* ---- Values ---- */

enum { ARRAY_HEAD = 20, VALUES_NUMBER_DIGITS = 24 };

/* `at` holds offsets into the buffer while values are added, because it may move: see values_end. */
static char *reserve(struct dibs__pg_values *v, size_t size) {
  if (v->used + size > v->size) {
    size_t capacity = v->size ? v->size : 512;
    while (capacity < v->used + size) capacity *= 2;
    char *more = realloc(v->memory, capacity);
    if (!more) return NULL;
    v->memory = more;
    v->size = capacity;
  }
  char *at = v->memory + v->used;
  v->used += size;
  return at;
}

static void values_begin(struct dibs__pg_values *v) {
  v->count = 0;
  v->used = 0;
}

static void values_end(struct dibs__pg_values *v) {
  for (int i = 0; i < v->count; i++) v->at[i] = v->offsets[i] == SIZE_MAX ? NULL : v->memory + v->offsets[i];
}

static void add_parameter(struct dibs__pg_values *v, Oid type, size_t offset, size_t len, bool binary) {
  assert(v->count < DIBS__PG_VALUES);
  v->types[v->count] = type;
  v->offsets[v->count] = offset;
  v->lengths[v->count] = (int)len;
  v->formats[v->count] = binary;
  v->count++;
}

static void write_be32(char *to, uint32_t number) {
  number = htobe32(number);
  memcpy(to, &number, sizeof number);
}

static void write_be64(char *to, int64_t number) {
  uint64_t big = htobe64((uint64_t)number);
  memcpy(to, &big, sizeof big);
}

/* libpq cuts a text at a NUL, and the server accepts none: it refuses the byte that replaces it here. */
static void put_text(char *to, const struct dibs__sql_value *value) {
  if (value->len) memcpy(to, value->p, value->len);
  if (value->len && memchr(value->p, '\0', value->len))
    for (uint32_t i = 0; i < value->len; i++)
      if (to[i] == '\0') to[i] = '\xff';
}

/* false: no memory.  `types`: those the statement was prepared with; NULL: it was not. */
static bool values_add(struct dibs__pg_values *v, const struct dibs__sql_value *value, const Oid *types) {
  size_t offset = v->used;
  Oid known = types ? types[v->count] : 0;
  char *to;
  switch (value->kind) {
  case DIBS__SQL_NULL:
    add_parameter(v, known, SIZE_MAX, 0, false);
    return true;
  case DIBS__SQL_NUMBER:
    if (types &&
        known != DIBS__PG_INT8) { /* the server inferred a type itself, when a value of another kind was here */
      to = reserve(v, VALUES_NUMBER_DIGITS);
      if (!to) return false;
      int len = snprintf(to, VALUES_NUMBER_DIGITS, "%" PRId64, value->number);
      add_parameter(v, known, offset, (size_t)len, false);
      return true;
    }
    to = reserve(v, sizeof(int64_t));
    if (!to) return false;
    write_be64(to, value->number);
    add_parameter(v, DIBS__PG_INT8, offset, sizeof(int64_t), true);
    return true;
  case DIBS__SQL_TEXT:
    to = reserve(v, (size_t)value->len + 1);
    if (!to) return false;
    put_text(to, value);
    to[value->len] = '\0';
    add_parameter(v, known, offset, value->len, false);
    return true;
  case DIBS__SQL_BYTES:
    to = reserve(v, value->len);
    if (!to) return false;
    if (value->len) memcpy(to, value->p, value->len);
    add_parameter(v, DIBS__PG_BYTEA, offset, value->len, true);
    return true;
  }
  return false;
}

/* ---- A column of rows as an array ---- */

/* The letters of the columns. */
static void pg_kinds(char *kinds, const struct dibs__sql_value *rows, size_t columns, size_t row_count) {
  for (size_t c = 0; c < columns; c++) {
    enum dibs__sql_kind kind = DIBS__SQL_NULL;
    for (size_t r = 0; r < row_count && kind == DIBS__SQL_NULL; r++) kind = rows[r * columns + c].kind;
    kinds[c] = kind == DIBS__SQL_TEXT ? 't' : kind == DIBS__SQL_BYTES ? 'b' : 'n';
  }
  kinds[columns] = '\0';
}

static Oid element_type(char kind) {
  return kind == 't' ? DIBS__PG_TEXT : kind == 'b' ? DIBS__PG_BYTEA : DIBS__PG_INT8;
}

static size_t element_size(const struct dibs__sql_value *value) {
  if (value->kind == DIBS__SQL_NULL) return 0;
  return value->kind == DIBS__SQL_NUMBER ? sizeof(int64_t) : value->len;
}

static char *put_element(char *to, const struct dibs__sql_value *value) {
  size_t size = element_size(value);
  write_be32(to, value->kind == DIBS__SQL_NULL ? UINT32_MAX : (uint32_t)size);
  to += 4;
  if (value->kind == DIBS__SQL_NUMBER)
    write_be64(to, value->number);
  else if (value->kind == DIBS__SQL_TEXT)
    put_text(to, value);
  else if (size)
    memcpy(to, value->p, size);
  return to + size;
}

static bool values_add_column(struct dibs__pg_values *v, char kind, const struct dibs__sql_value *rows, size_t columns,
                              size_t column, size_t row_count) {
  size_t size = ARRAY_HEAD, offset = v->used;
  bool holes = false;
  for (size_t r = 0; r < row_count; r++) {
    const struct dibs__sql_value *value = &rows[r * columns + column];
    size += 4 + element_size(value);
    if (value->kind == DIBS__SQL_NULL) holes = true;
    /* All of one kind: otherwise the server would read one as the other. */
    assert(value->kind == DIBS__SQL_NULL || element_type(kind) == element_type(value->kind == DIBS__SQL_TEXT    ? 't'
                                                                               : value->kind == DIBS__SQL_BYTES ? 'b'
                                                                                                                : 'n'));
  }
  char *to = reserve(v, size);
  if (!to) return false;
  write_be32(to, 1); /* dimensions */
  write_be32(to + 4, holes);
  write_be32(to + 8, element_type(kind));
  write_be32(to + 12, (uint32_t)row_count);
  write_be32(to + 16, 1); /* the index of the first */
  to += ARRAY_HEAD;
  for (size_t r = 0; r < row_count; r++) to = put_element(to, &rows[r * columns + column]);
  add_parameter(v, 0, offset, size, true);
  return true;
}

/* ---- Packets ---- */

typedef struct dibs__pg_wire wire_t;
typedef sql_rc step;

static wire_t *wire_of(struct dibs__sql_wire *wire) {
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

/* ---- Errors ---- */

static step set_failure(wire_t *w, enum dibs__sql_trouble trouble, size_t at, const PGresult *result) {
  w->wire.trouble = trouble;
  w->wire.failed_at = at;
  if (trouble == DIBS__SQL_LATE)
    snprintf(w->wire.message, sizeof w->wire.message, "the server does not answer");
  else if (!result && w->last_message[0])
    snprintf(w->wire.message, sizeof w->wire.message, "%s", w->last_message);
  else
    pg_message(w->wire.message, sizeof w->wire.message, result, w->pg);
  if (trouble == DIBS__SQL_GONE || trouble == DIBS__SQL_LATE) w->dead = true;
  return DIBS__SQL_FAILED;
}

/* A failure while a packet is put.  libpq may have sent a part of it already, with a COMMIT. */
static step connection_gone(wire_t *w) {
  set_failure(w, DIBS__SQL_GONE, w->wire.put, NULL);
  w->wire.unsure = w->began && w->committed && !w->wire.inside;
  return DIBS__SQL_FAILED;
}

/* No memory in the middle of a packet: libpq has half of it, so the connection is useless. */
static step short_of_memory(wire_t *w) {
  connection_gone(w);
  snprintf(w->wire.message, sizeof w->wire.message, "out of memory");
  return DIBS__SQL_FAILED;
}

/* ---- Putting ---- */

static void forget_results(wire_t *w) {
  for (size_t i = 0; i < w->result_count; i++) PQclear(w->results[i]);
  w->result_count = 0;
}

/* A server that was shut down meanwhile has sent a message: seeing it now avoids an unknown outcome later. */
static bool still_there(wire_t *w) {
  struct pollfd fd = {.fd = PQsocket(w->pg), .events = POLLIN};
  /* The message comes first, and then the end: each is read by itself. */
  while (poll(&fd, 1, 0) > 0) {
    if (!PQconsumeInput(w->pg)) return false;
    (void)PQisBusy(w->pg); /* takes in what was read */
    if (PQstatus(w->pg) != CONNECTION_OK || w->last_message[0]) return false;
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
  /* It fails only where pipeline mode is impossible: the user's own connection in the middle of a query. */
  w->piping = PQenterPipelineMode(w->pg) == 1;
  return w->piping && PQsetnonblocking(w->pg, 1) == 0;
}

static bool expect_answer(wire_t *w, enum dibs__pg_what what, uint32_t nth, struct dibs__pg_text *text) {
  if (w->expected_count == w->expected_capacity) {
    size_t capacity = w->expected_capacity ? w->expected_capacity * 2 : 32;
    struct dibs__pg_expected *more = realloc(w->expected, capacity * sizeof *more);
    if (!more) return false;
    w->expected = more;
    w->expected_capacity = capacity;
  }
  w->expected[w->expected_count++] = (struct dibs__pg_expected){.what = what, .nth = nth, .text = text};
  return true;
}

static bool reserve_result(wire_t *w) {
  if (w->wire.put < w->result_capacity) return true;
  size_t capacity = w->result_capacity ? w->result_capacity * 2 : 32;
  PGresult **more = realloc(w->results, capacity * sizeof(PGresult *));
  if (!more) return false;
  w->results = more;
  struct dibs__pg_text **texts = realloc(w->result_texts, capacity * sizeof(struct dibs__pg_text *));
  if (!texts) return false;
  w->result_texts = texts;
  w->result_capacity = capacity;
  return true;
}

static char *statement_name(uint32_t nr, char name[16]) {
  snprintf(name, 16, "d%u", nr);
  return name;
}

static bool put_forgets(wire_t *w) {
  for (; w->texts.gone_count > 0; w->texts.gone_count--) {
    uint32_t nr = w->texts.gone[w->texts.gone_count - 1];
    char text[32];
    snprintf(text, sizeof text, "DEALLOCATE d%u", nr);
    if (!expect_answer(w, DIBS__PG_FORGETS, nr, NULL)) return false;
    if (!PQsendQueryParams(w->pg, text, 0, NULL, NULL, NULL, NULL, 0)) return false;
  }
  return true;
}

/* Before a packet that is a transaction of its own, or in the user's: not within one of ours. */
static bool put_widening(wire_t *w) {
  if (!w->narrow || w->wire.put > 0 || (w->nameless && !w->wire.inside)) return true;
  if (PQtransactionStatus(w->pg) != (w->wire.inside ? PQTRANS_INTRANS : PQTRANS_IDLE)) return true;
  return expect_answer(w, DIBS__PG_WIDENS, 0, NULL) && dibs__pg_widen(w);
}

/* Puts the statement; its values are in w->values. */
static bool wire_put_text(wire_t *w, struct dibs__pg_text *t) {
  char name[16];
  struct dibs__pg_values *v = &w->values;
  values_end(v);
  if (!t->bound) {
    t->count = (uint8_t)v->count;
    memcpy(t->types, v->types, (size_t)v->count * sizeof(Oid));
    t->bound = true;
  }
  assert(t->count == v->count);
  int binary = t->answers == DIBS__PG_BINARY;
  uint32_t nth = (uint32_t)w->wire.put;
  if (w->nameless) {
    if (!expect_answer(w, DIBS__PG_STATEMENT, nth, t)) return false;
    return PQsendQueryParams(w->pg, t->sql, v->count, t->types, v->at, v->lengths, v->formats, binary) == 1;
  }
  if (!t->ready) {
    if (!expect_answer(w, DIBS__PG_PREPARES, nth, t)) return false;
    if (!PQsendPrepare(w->pg, statement_name(t->nr, name), t->sql, t->count, t->types)) return false;
    t->ready = true;
  }
  if (!expect_answer(w, DIBS__PG_STATEMENT, nth, t)) return false;
  return PQsendQueryPrepared(w->pg, statement_name(t->nr, name), v->count, v->at, v->lengths, v->formats, binary) == 1;
}

/* After a COMMIT a packet of its own begins. */
static bool put_break(wire_t *w) {
  if (!w->committed || !w->expected_count || !w->expected[w->expected_count - 1].commit) return true;
  return expect_answer(w, DIBS__PG_SYNC, (uint32_t)w->wire.put, NULL) && PQpipelineSync(w->pg) == 1;
}

step dibs__pg_put_rows(struct dibs__sql_wire *wire, const char *text, const struct dibs__sql_value *values,
                       size_t count, const struct dibs__sql_value *rows, size_t columns, size_t row_count) {
  wire_t *w = wire_of(wire);
  char kinds[DIBS__PG_VALUES + 1] = "";
  assert(count + columns <= DIBS__PG_VALUES && (columns == 0 || row_count > 0));
  if (w->dead) return connection_gone(w);
  if (!w->began && !begin_packet(w)) return connection_gone(w);
  if (columns) pg_kinds(kinds, rows, columns, row_count);
  struct dibs__pg_text *t = dibs__pg_text_find(&w->texts, text, kinds, count, w->packet);
  if (!t || !reserve_result(w)) return short_of_memory(w);
  const Oid *types = t->bound ? t->types : NULL;
  values_begin(&w->values);
  for (size_t i = 0; i < count; i++)
    if (!values_add(&w->values, &values[i], types)) return short_of_memory(w);
  for (size_t c = 0; c < columns; c++)
    if (!values_add_column(&w->values, kinds[c], rows, columns, c, row_count)) return short_of_memory(w);
  if (!put_break(w) || !put_widening(w) || !put_forgets(w) || !wire_put_text(w, t)) return connection_gone(w);
  struct dibs__pg_expected *last = &w->expected[w->expected_count - 1];
  last->commit = strcmp(text, "COMMIT") == 0;
  if (last->commit) w->committed = true;
  w->results[w->wire.put] = NULL;
  w->result_texts[w->wire.put] = t;
  w->wire.put++;
  w->result_count = w->wire.put;
  return DIBS__SQL_OK;
}

step dibs__pg_put(struct dibs__sql_wire *wire, const char *text, const struct dibs__sql_value *values, size_t count) {
  return dibs__pg_put_rows(wire, text, values, count, NULL, 0, 0);
}

/* ---- Going ---- */

struct going {
  size_t at;     /* the next expected answer */
  bool answered; /* it has its result; the NULL after it is missing */
  size_t last;   /* the last answer that matters: of the last COMMIT, or the end */
  bool failed;   /* an answer that matters has failed */
  bool done;     /* all that matters was answered, and is committed */
  bool widened;  /* the search path, if the packet is committed */
  bool fatal;    /* the server ended the connection */
};

/* The answers after the last COMMIT do not matter. */
static size_t last_that_matters(const wire_t *w) {
  for (size_t i = w->expected_count; w->committed && i > 0; i--)
    if (w->expected[i - 1].commit) return i - 1;
  return w->expected_count - 1;
}

static bool same_text(const char *a, const char *b) {
  return strcmp(a, b) == 0;
}

/* A statement that worked before and no longer fits: the table was altered since it was prepared. */
static bool outdated(struct dibs__pg_text *t, const char *state) {
  bool fits = strncmp(state, "0A", 2) != 0 && strncmp(state, "42", 2) != 0 && strncmp(state, "22", 2) != 0;
  if (fits || !t->ready) return false;
  t->stale = true;
  return t->worked && strncmp(state, "22", 2) != 0; /* a wrong value of today may be the cause, too */
}

/* Handles the result of the statement at g->at. */
static void take_result(wire_t *w, struct going *g, PGresult *result) {
  const struct dibs__pg_expected *e = &w->expected[g->at];
  ExecStatusType status = PQresultStatus(result);
  bool fine = status == PGRES_COMMAND_OK || status == PGRES_TUPLES_OK;
  bool matters = g->at <= g->last && !g->failed;
  const char *state = PQresultErrorField(result, PG_DIAG_SQLSTATE);
  const char *severity = PQresultErrorField(result, PG_DIAG_SEVERITY_NONLOCALIZED);
  if (severity && !same_text(severity, "ERROR")) g->fatal = true;

  if (e->what == DIBS__PG_PREPARES && !fine) e->text->ready = false;
  if (e->what == DIBS__PG_WIDENS && fine)
    g->widened = w->wire.inside || (PQntuples(result) == 1 && *PQgetvalue(result, 0, 0) == '1');
  if (e->what == DIBS__PG_FORGETS && !fine && !g->fatal) {
    assert(w->texts.gone_count < w->texts.gone_capacity);
    w->texts.gone[w->texts.gone_count++] = e->nth; /* prepare it again another time */
  }
  if (status == PGRES_FATAL_ERROR && matters && PQstatus(w->pg) == CONNECTION_OK) {
    g->failed = true;
    bool again = e->what == DIBS__PG_STATEMENT && state && !w->wire.inside && outdated(e->text, state);
    set_failure(w, g->fatal ? DIBS__SQL_GONE : again ? DIBS__SQL_DEADLOCK : dibs__pg_trouble(state), e->nth, result);
  }
  /* COMMIT of a transaction that failed before. */
  if (fine && e->commit && matters && same_text(PQcmdStatus(result), "ROLLBACK")) {
    g->failed = true;
    set_failure(w, DIBS__SQL_ODD, e->nth, NULL);
    snprintf(w->wire.message, sizeof w->wire.message, "the transaction failed before, and was rolled back");
  }
  if (e->what == DIBS__PG_STATEMENT && fine) {
    e->text->worked = true;
    if (e->text->answers == DIBS__PG_UNSEEN && PQnfields(result) > 0) e->text->answers = answers_of(result);
    if (!result_ready(result) && matters) {
      g->failed = true;
      set_failure(w, DIBS__SQL_ODD, e->nth, NULL);
      snprintf(w->wire.message, sizeof w->wire.message,
               "the server sends bytes in another form than hex: set bytea_output to hex");
    }
    w->results[e->nth] = result;
    result = NULL;
  }
  PQclear(result);
}

/* One call of PQgetResult.  false: there is nothing more to come. */
static bool take_next_result(wire_t *w, struct going *g) {
  PGresult *result = PQgetResult(w->pg);
  if (!result) {
    if (!g->answered) return false;
    g->answered = false;
    g->at++;
    return true;
  }
  if (PQresultStatus(result) == PGRES_PIPELINE_SYNC) {
    /* The answer expected before this one has come, or was skipped. */
    PQclear(result);
    g->answered = false;
    while (g->at < w->expected_count && w->expected[g->at].what != DIBS__PG_SYNC) g->at++;
    g->at++;
  } else {
    take_result(w, g, result);
    g->answered = w->expected[g->at].what != DIBS__PG_SYNC;
  }
  /* A COMMIT is done when its answer arrives; without one the sync commits. */
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
  return left ? end : connection_gone(w);
}

/* The connection is lost, or the deadline has passed: what is known? */
static step connection_lost(wire_t *w, struct going *g, enum dibs__sql_trouble trouble, bool commits) {
  if (g->done) {
    w->dead = true;
    w->wire.trouble = trouble; /* for callers that check whether the connection is usable */
    return DIBS__SQL_OK;
  }
  bool error = g->failed && !g->fatal;
  if (!g->failed) set_failure(w, trouble, g->at < w->expected_count ? w->expected[g->at].nth : w->wire.put, NULL);
  w->wire.trouble = trouble;
  w->dead = true;
  w->wire.unsure = commits && !error && !w->wire.inside;
  return DIBS__SQL_FAILED;
}

step dibs__pg_go(struct dibs__sql_wire *wire, bool commits) {
  wire_t *w = wire_of(wire);
  struct going g = {.at = 0};
  if (w->dead) {
    connection_gone(w);
    return end_packet(w, DIBS__SQL_FAILED);
  }
  if (!w->began) return DIBS__SQL_OK;
  if (!expect_answer(w, DIBS__PG_SYNC, (uint32_t)wire->put, NULL)) {
    short_of_memory(w);
    return end_packet(w, DIBS__SQL_FAILED);
  }
  wire->unsure = false;
  g.last = last_that_matters(w);
  bool whole = PQpipelineSync(w->pg) == 1;
  while (whole && g.at < w->expected_count) {
    if (!PQisBusy(w->pg)) {
      if (!take_next_result(w, &g)) break;
      continue;
    }
    int unsent = PQflush(w->pg);
    if (unsent < 0) break;
    if (!dibs__pg_wait_for(w->pg, true, unsent > 0, dibs__sql_patience(wire)))
      return end_packet(w, connection_lost(w, &g, DIBS__SQL_LATE, commits));
    if (!PQconsumeInput(w->pg)) break;
  }
  /* Answers that arrived before the end of the connection can still be read. */
  while (g.at < w->expected_count && take_next_result(w, &g)) continue;
  if (g.at < w->expected_count || PQstatus(w->pg) != CONNECTION_OK || g.fatal)
    return end_packet(w, connection_lost(w, &g, DIBS__SQL_GONE, commits));
  if (g.widened && !g.failed) w->narrow = false;
  return end_packet(w, g.failed ? DIBS__SQL_FAILED : DIBS__SQL_OK);
}

/* ---- Creating ---- */

/* A message that the server sends unasked: that it shuts down. */
static void on_server_notice(void *arg, const PGresult *result) {
  wire_t *w = arg;
  const char *state = PQresultErrorField(result, PG_DIAG_SQLSTATE);
  if (state && strncmp(state, "57P", 3) == 0) pg_message(w->last_message, sizeof w->last_message, result, NULL);
}

wire_t *dibs__pg_wire_new(PGconn *pg, const struct dibs__sql_engine *engine, bool inside) {
  wire_t *w = calloc(1, sizeof *w);
  if (!w) return NULL;
  w->wire.engine = engine;
  w->wire.inside = w->nameless = inside;
  w->wire.trouble = DIBS__SQL_ODD;
  w->pg = pg;
  if (!inside) PQsetNoticeReceiver(pg, on_server_notice, w);
  return w;
}

void dibs__pg_wire_free(wire_t *w) {
  if (!w) return;
  if (w->trusted && w->dead) atomic_store(&((struct dibs__pg_location *)w->store->location)->asked_ns, 0);
  forget_results(w);
  if (!w->wire.inside) PQfinish(w->pg);
  dibs__pg_texts_free(&w->texts);
  free(w->values.memory);
  free(w->expected);
  free(w->results);
  free(w->result_texts);
  free(w);
}
