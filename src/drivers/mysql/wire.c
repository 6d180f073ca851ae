/* SPDX-License-Identifier: MIT */
/*
 * Packets to MariaDB and MySQL: errors, statements as text, packets and their answers.
 *
 * Statements are put into one buffer, values as literals, and travel as one packet.  Prepared statements would take a
 * packet each.  A literal must mean the same under any sql_mode and character set, also on a user's connection: text
 * that is anything but plain ASCII without quotes and backslashes travels as hex digits.
 *
 * A packet has several statements (CLIENT_MULTI_STATEMENTS); the server answers each statement as it is done and
 * stops at the first error.  The connector's non-blocking calls run under our poll(), so that a deadline is kept to
 * the millisecond.  When it passes, the socket is shut down and the connector learns of it: it then cleans up by
 * itself.
 */
#include "base/text.h"
#include "drivers/mysql/mysql_impl.h"

#include <assert.h>
#include <errmsg.h>
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

static const struct {
  unsigned error;
  enum dibs__sql_trouble trouble;
} known[] = {
    /* unique keys, and names of columns and indexes */
    {1060, DIBS__SQL_TWICE},
    {1061, DIBS__SQL_TWICE},
    {1062, DIBS__SQL_TWICE},
    {1586, DIBS__SQL_TWICE},
    {1169, DIBS__SQL_TWICE},
    /* foreign keys */
    {1216, DIBS__SQL_ORPHAN},
    {1452, DIBS__SQL_ORPHAN},
    {1217, DIBS__SQL_ORPHAN}, /* a parent that has children */
    {1451, DIBS__SQL_ORPHAN},
    /* null, range, length, check, wrong value, wrong text */
    {1048, DIBS__SQL_REFUSED},
    {1136, DIBS__SQL_REFUSED},
    {1153, DIBS__SQL_REFUSED}, /* the packet is too large */
    {1264, DIBS__SQL_REFUSED},
    {1265, DIBS__SQL_REFUSED},
    {1292, DIBS__SQL_REFUSED},
    {1300, DIBS__SQL_REFUSED},
    {1364, DIBS__SQL_REFUSED},
    {1366, DIBS__SQL_REFUSED},
    {1367, DIBS__SQL_REFUSED},
    {1406, DIBS__SQL_REFUSED},
    {1690, DIBS__SQL_REFUSED},
    {3819, DIBS__SQL_REFUSED},
    {4025, DIBS__SQL_REFUSED},
    {1644, DIBS__SQL_REFUSED}, /* SIGNAL, in a user's trigger */
    /* start again */
    {1213, DIBS__SQL_DEADLOCK},
    {1020, DIBS__SQL_DEADLOCK}, /* "record has changed": innodb_snapshot_isolation */
    {1637, DIBS__SQL_DEADLOCK}, /* too many transactions at once */
    {1205, DIBS__SQL_LOCKED},   /* only the statement is undone: the transaction must be rolled back */
    {3572, DIBS__SQL_LOCKED},   /* NOWAIT */
    {1969, DIBS__SQL_LOCKED},   /* max_statement_time */
    {3024, DIBS__SQL_LOCKED},   /* max_execution_time */
    {1317, DIBS__SQL_LOCKED},   /* KILL QUERY, by an administrator */
    /* the connection or the server ends */
    {1053, DIBS__SQL_GONE},
    {1077, DIBS__SQL_GONE},
    {1079, DIBS__SQL_GONE},
    {1152, DIBS__SQL_GONE},
    {1158, DIBS__SQL_GONE},
    {1159, DIBS__SQL_GONE},
    {1160, DIBS__SQL_GONE},
    {1161, DIBS__SQL_GONE},
    {1184, DIBS__SQL_GONE},
    {1927, DIBS__SQL_GONE}, /* KILL CONNECTION */
    {3169, DIBS__SQL_GONE},
    {4031, DIBS__SQL_GONE}, /* MySQL's wait_timeout */
    {2000, DIBS__SQL_GONE},
    {2001, DIBS__SQL_GONE},
    {2002, DIBS__SQL_GONE},
    {2003, DIBS__SQL_GONE},
    {2005, DIBS__SQL_GONE},
    {2006, DIBS__SQL_GONE},
    {2012, DIBS__SQL_GONE},
    {2013, DIBS__SQL_GONE},
    {2026, DIBS__SQL_GONE},
    {2027, DIBS__SQL_GONE}, /* malformed: the beginning of the next answer is unknown */
    {2048, DIBS__SQL_GONE},
    {2055, DIBS__SQL_GONE},
    {2014, DIBS__SQL_ODD}, /* on a user's connection: it has unread answers */
    {2008, DIBS__SQL_NO_SPACE},
    /* rights */
    {1044, DIBS__SQL_DENIED},
    {1045, DIBS__SQL_DENIED},
    {1095, DIBS__SQL_DENIED},
    {1130, DIBS__SQL_DENIED},
    {1129, DIBS__SQL_DENIED},
    {1142, DIBS__SQL_DENIED},
    {1143, DIBS__SQL_DENIED},
    {1227, DIBS__SQL_DENIED},
    {1251, DIBS__SQL_DENIED},
    {1290, DIBS__SQL_DENIED}, /* --read-only and its like; see set_failure() */
    {1036, DIBS__SQL_DENIED},
    {1370, DIBS__SQL_DENIED},
    {1698, DIBS__SQL_DENIED},
    {1792, DIBS__SQL_DENIED}, /* a transaction that only reads */
    {1820, DIBS__SQL_DENIED}, /* the password has expired */
    {1836, DIBS__SQL_DENIED},
    {1862, DIBS__SQL_DENIED},
    {2059, DIBS__SQL_DENIED}, /* an authentication plugin is missing here */
    {3118, DIBS__SQL_DENIED}, /* the account is locked */
    {4151, DIBS__SQL_DENIED},
    /* missing things */
    {1046, DIBS__SQL_MISSING},
    {1049, DIBS__SQL_MISSING},
    {1051, DIBS__SQL_MISSING},
    {1054, DIBS__SQL_MISSING},
    {1146, DIBS__SQL_MISSING},
    {1305, DIBS__SQL_MISSING},
    {1932, DIBS__SQL_MISSING},
    /* full resources */
    {1021, DIBS__SQL_FULL},
    {1037, DIBS__SQL_FULL},
    {1038, DIBS__SQL_FULL},
    {1040, DIBS__SQL_FULL},
    {1041, DIBS__SQL_FULL},
    {1114, DIBS__SQL_FULL},
    {1135, DIBS__SQL_FULL}, /* no thread */
    {1203, DIBS__SQL_FULL},
    {1206, DIBS__SQL_FULL},
    {1226, DIBS__SQL_FULL},
    {3, DIBS__SQL_FULL}, /* writing a file */
    /* tables that the server itself finds damaged */
    {1033, DIBS__SQL_DAMAGED},
    {1034, DIBS__SQL_DAMAGED},
    {1035, DIBS__SQL_DAMAGED},
    {1194, DIBS__SQL_DAMAGED},
    {1195, DIBS__SQL_DAMAGED},
    {1712, DIBS__SQL_DAMAGED},
    {1877, DIBS__SQL_DAMAGED},
};

enum dibs__sql_trouble dibs__mysql_trouble(unsigned error) {
  for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
    if (known[i].error == error) return known[i].trouble;
  return DIBS__SQL_ODD;
}

enum dibs__sql_rc dibs__mysql_broke(struct dibs__mysql_wire *w, enum dibs__sql_trouble trouble, const char *message) {
  w->base.trouble = trouble;
  w->base.unsure = false;
  snprintf(w->base.message, sizeof w->base.message, "%s", message);
  return DIBS__SQL_FAILED;
}

/* ---- Statements as text ---- */

typedef enum dibs__sql_rc sql_rc;
typedef struct dibs__mysql_buffer buffer;
typedef struct dibs__sql_value value;

static bool reserve(buffer *b, size_t more) {
  if (b->capacity - b->len >= more) return true;
  size_t size = b->capacity ? b->capacity * 2 : 4096;
  while (size - b->len < more) size *= 2;
  char *p = realloc(b->p, size);
  if (!p) return false;
  b->p = p;
  b->capacity = size;
  return true;
}

bool dibs__mysql_add(buffer *b, const char *p, size_t len) {
  if (!reserve(b, len)) return false;
  memcpy(b->p + b->len, p, len);
  b->len += len;
  return true;
}

static bool add_number(buffer *b, int64_t number) {
  char digits[24];
  size_t at = sizeof digits;
  uint64_t rest = number < 0 ? -(uint64_t)number : (uint64_t)number;
  /* In brackets: "a -$1" must not become a comment. */
  if (number < 0) digits[--at] = ')';
  do digits[--at] = (char)('0' + rest % 10);
  while (rest /= 10);
  if (number < 0) digits[--at] = '-';
  if (number < 0) digits[--at] = '(';
  return dibs__mysql_add(b, digits + at, sizeof digits - at);
}

static bool add_hex(buffer *b, const char *introducer, const char *p, size_t len) {
  static const char digits[] = "0123456789abcdef";
  if (!dibs__mysql_add(b, introducer, strlen(introducer)) || !reserve(b, 2 * len + 3)) return false;
  char *to = b->p + b->len;
  *to++ = 'x';
  *to++ = '\'';
  for (size_t i = 0; i < len; i++) {
    *to++ = digits[(uint8_t)p[i] >> 4];
    *to++ = digits[p[i] & 15];
  }
  *to++ = '\'';
  b->len = (size_t)(to - b->p);
  return true;
}

static bool add_text(buffer *b, const char *p, size_t len) {
  bool plain = true, utf8 = true;
  for (size_t i = 0; i < len && utf8;) {
    uint32_t code;
    size_t n = 1;
    if ((uint8_t)p[i] >= 0x80) {
      plain = false;
      n = dibs__utf8_next(p + i, len - i, &code);
      utf8 = n != 0;
    } else if (p[i] == '\'' || p[i] == '\\' || (uint8_t)p[i] < ' ') {
      plain = false;
    }
    i += n;
  }
  if (!plain) return add_hex(b, utf8 ? "_utf8mb4 " : "", p, len);
  if (!reserve(b, len + 2)) return false;
  b->p[b->len++] = '\'';
  memcpy(b->p + b->len, p, len);
  b->len += len;
  b->p[b->len++] = '\'';
  return true;
}

bool dibs__mysql_add_value(buffer *b, const value *v) {
  switch (v->kind) {
  case DIBS__SQL_NUMBER:
    return add_number(b, v->number);
  case DIBS__SQL_TEXT:
    return add_text(b, v->p, v->len);
  case DIBS__SQL_BYTES:
    return add_hex(b, "", v->p, v->len);
  default:
    return dibs__mysql_add(b, "NULL", 4);
  }
}

struct table {
  const value *cells;
  size_t columns, rows;
  const char *row; /* the beginning of a row */
};

/* In a table MariaDB takes the length of a longer hex literal modulo 65536, and silently cuts it. */
enum { HEX_MAX = 65535 };

static bool add_cell(buffer *b, const value *v) {
  static const char before[] = "CAST(", after[] = " AS BINARY)";
  if (v->kind != DIBS__SQL_BYTES || v->len <= HEX_MAX) return dibs__mysql_add_value(b, v);
  return dibs__mysql_add(b, before, sizeof before - 1) && dibs__mysql_add_value(b, v) &&
         dibs__mysql_add(b, after, sizeof after - 1);
}

static bool add_table(buffer *b, const struct table *t) {
  if (!dibs__mysql_add(b, "VALUES ", 7)) return false;
  for (size_t i = 0; i < t->rows; i++) {
    if ((i && !dibs__mysql_add(b, ",", 1)) || !dibs__mysql_add(b, t->row, strlen(t->row))) return false;
    for (size_t j = 0; j < t->columns; j++) {
      if (j && !dibs__mysql_add(b, ",", 1)) return false;
      if (!add_cell(b, &t->cells[i * t->columns + j])) return false;
    }
    if (!dibs__mysql_add(b, ")", 1)) return false;
  }
  return true;
}

static bool is_of_word(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '`';
}

/* A part of a template.  `rank`, a column of dibs_task, is a reserved word of MySQL, and is none of MariaDB. */
static bool add_part(buffer *b, const char *p, const char *end, bool maria) {
  static const char word[] = "rank";
  enum { LENGTH = sizeof word - 1 };
  const char *from = p;
  for (const char *at = p; !maria && at + LENGTH <= end; at++) {
    if (*at != 'r' || memcmp(at, word, LENGTH) != 0 || (at > p && is_of_word(at[-1]))) continue;
    if (at + LENGTH < end && is_of_word(at[LENGTH])) continue;
    if (!dibs__mysql_add(b, from, (size_t)(at - from)) || !dibs__mysql_add(b, "`rank`", 6)) return false;
    from = at + LENGTH;
  }
  return dibs__mysql_add(b, from, (size_t)(end - from));
}

/* Adds the template with $1.. and $rows replaced, in one pass, so that no value is ever searched for marks.  (Searching
 * for '$' each time costs less than a lookup in a cache.)  false: no memory, or a mark without a value. */
static bool add_statement(buffer *b, const char *text, const value *values, size_t count, const struct table *table,
                          bool maria) {
  const char *mark;
  for (; (mark = strchr(text, '$'));) {
    if (!add_part(b, text, mark, maria)) return false;
    text = mark + 1;
    if (*text >= '1' && *text <= '9') {
      size_t n = 0;
      for (; *text >= '0' && *text <= '9' && n <= count; text++) n = n * 10 + (size_t)(*text - '0');
      if (n > count || !dibs__mysql_add_value(b, &values[n - 1])) return false;
    } else if (table && strncmp(text, "rows", 4) == 0) {
      text += 4;
      if (!add_table(b, table)) return false;
    } else if (!dibs__mysql_add(b, "$", 1)) {
      return false;
    }
  }
  return add_part(b, text, text + strlen(text), maria);
}

static bool begin_statement(struct dibs__mysql_wire *w, bool commits) {
  if (w->base.put == w->start_capacity) {
    size_t size = w->start_capacity ? w->start_capacity * 2 : 16;
    size_t *starts = realloc(w->starts, size * sizeof *starts);
    if (!starts) return false;
    w->starts = starts;
    w->start_capacity = size;
  }
  if (w->base.put == 0) w->commit_at = SIZE_MAX;
  if (w->base.put && !dibs__mysql_add(&w->text, ";", 1)) return false;
  w->starts[w->base.put] = w->text.len;
  if (commits) w->commit_at = w->base.put;
  return true;
}

/* Half a packet is useless. */
static sql_rc end_statement(struct dibs__mysql_wire *w, bool fine) {
  if (fine) {
    w->base.put++;
    return DIBS__SQL_OK;
  }
  w->base.put = w->text.len = 0;
  return dibs__mysql_broke(w, DIBS__SQL_NO_SPACE, "out of memory");
}

static sql_rc put_statement(struct dibs__mysql_wire *w, const char *text, const value *values, size_t count,
                            const struct table *table) {
  return end_statement(w, begin_statement(w, strcmp(text, "COMMIT") == 0) &&
                              add_statement(&w->text, text, values, count, table, w->maria));
}

sql_rc dibs__mysql_put(struct dibs__sql_wire *wire, const char *text, const value *values, size_t count) {
  return put_statement(dibs__my(wire), text, values, count, NULL);
}

sql_rc dibs__mysql_put_rows(struct dibs__sql_wire *wire, const char *text, const value *values, size_t count,
                            const value *rows, size_t columns, size_t row_count) {
  struct table table = {rows, columns, row_count, dibs__my(wire)->maria ? "(" : "ROW("};
  assert(columns > 0 && row_count > 0);
  return put_statement(dibs__my(wire), text, values, count, &table);
}

sql_rc dibs__mysql_put_whole(struct dibs__sql_wire *wire, const buffer *text) {
  struct dibs__mysql_wire *w = dibs__my(wire);
  return end_statement(w, begin_statement(w, false) && dibs__mysql_add(&w->text, text->p, text->len));
}

/* ---- Packets and their answers ---- */

typedef struct dibs__mysql_wire wire_t;

/* ---- Waiting ---- */

enum {
  THROUGH_MS = 1,
  OK_BYTES = 11,    /* the least size of an answer without rows */
  ROWS_BYTES = 40,  /* and of an answer with rows, even with none of them */
  UPDATE_BYTES = 50 /* and of an answer that counts matched rows */
};

/* The server sends the answer of each statement as it is done, and each would wake us.  So this sleeps, for a short
 * while, until as many bytes have arrived as the answers take at least: after an error there are fewer. */
static void sleep_through(wire_t *w, struct pollfd *fd) {
  int least = (int)w->least, one = 1;
  w->least = 0;
  if (setsockopt(fd->fd, SOL_SOCKET, SO_RCVLOWAT, &least, sizeof least) != 0) return;
  (void)poll(fd, 1, THROUGH_MS);
  (void)setsockopt(fd->fd, SOL_SOCKET, SO_RCVLOWAT, &one, sizeof one);
}

int dibs__mysql_await(wire_t *w, int want) {
  struct pollfd fd = {.fd = mysql_get_socket(w->my)};
  dibs__tick by = dibs__sql_patience(&w->base);
  if (want & MYSQL_WAIT_READ) fd.events |= POLLIN;
  if (want & MYSQL_WAIT_WRITE) fd.events |= POLLOUT;
  if (want & MYSQL_WAIT_EXCEPT) fd.events |= POLLPRI;
  if (want & MYSQL_WAIT_TIMEOUT)
    by = dibs__tick_min(by, dibs__tick_add_ms(dibs__tick_now(), mysql_get_timeout_value_ms(w->my)));
  if (w->least && want == MYSQL_WAIT_READ) sleep_through(w, &fd);
  for (;;) {
    int64_t left = dibs__tick_left_ms(dibs__tick_now(), by);
    int n = poll(&fd, 1, left > 60000 ? 60000 : (int)left);
    if (n > 0) return want & (MYSQL_WAIT_READ | MYSQL_WAIT_WRITE | MYSQL_WAIT_EXCEPT);
    if (n < 0 && errno != EINTR) break;
    if (n == 0 && left == 0) break;
  }
  w->late = true;
  (void)shutdown(fd.fd, SHUT_RDWR); /* a goodbye packet must not wait for a silent peer */
  return MYSQL_WAIT_TIMEOUT;
}

static bool send_text(wire_t *w, const char *p, size_t len) {
  int failed = 0;
  int want = mysql_real_query_start(&failed, w->my, p, (unsigned long)len);
  while (want) want = mysql_real_query_cont(&failed, w->my, dibs__mysql_await(w, want));
  return failed == 0;
}

static bool next_answer(wire_t *w) {
  int failed = 0;
  int want = mysql_next_result_start(&failed, w->my);
  while (want) want = mysql_next_result_cont(&failed, w->my, dibs__mysql_await(w, want));
  return failed == 0;
}

static MYSQL_RES *take_result(wire_t *w) {
  MYSQL_RES *result = NULL;
  int want = mysql_store_result_start(&result, w->my);
  while (want) want = mysql_store_result_cont(&result, w->my, dibs__mysql_await(w, want));
  return result;
}

static bool allow_multi_statements(wire_t *w, bool on) {
  int failed = 0;
  enum enum_mysql_set_option option = on ? MYSQL_OPTION_MULTI_STATEMENTS_ON : MYSQL_OPTION_MULTI_STATEMENTS_OFF;
  int want = mysql_set_server_option_start(&failed, w->my, option);
  while (want) want = mysql_set_server_option_cont(&failed, w->my, dibs__mysql_await(w, want));
  return failed == 0;
}

/* ---- Answers ---- */

void dibs__mysql_clear(wire_t *w) {
  for (size_t i = 0; i < w->answered; i++)
    if (w->answers[i].result) mysql_free_result(w->answers[i].result);
  w->answered = w->cell_count = 0;
}

static void *grow_array(void *p, size_t *have, size_t need, size_t size) {
  size_t more = *have ? *have : 64;
  while (more < need) more *= 2;
  void *made = realloc(p, more * size);
  if (made) *have = more;
  return made;
}

static bool keep_cells(wire_t *w, struct dibs__mysql_answer *a) {
  size_t need = w->cell_count + a->rows * a->columns;
  if (need > w->cell_capacity) {
    void *made = grow_array(w->cells, &w->cell_capacity, need, sizeof *w->cells);
    if (!made) return false;
    w->cells = made;
  }
  a->first = w->cell_count;
  struct dibs__mysql_cell *to = w->cells + a->first;
  for (MYSQL_ROW row; (row = mysql_fetch_row(a->result));) {
    const unsigned long *lengths = mysql_fetch_lengths(a->result);
    for (size_t i = 0; i < a->columns; i++) *to++ = (struct dibs__mysql_cell){row[i], (uint32_t)lengths[i]};
  }
  w->cell_count = need;
  return true;
}

/* "Rows matched: 3  Changed: 1  Warnings: 0": for connections that count what changed. */
static uint64_t matched_rows(wire_t *w) {
  static const char begins[] = "Rows matched: ";
  const char *info = w->found ? NULL : mysql_info(w->my);
  if (info && strncmp(info, begins, sizeof begins - 1) == 0) return strtoull(info + sizeof begins - 1, NULL, 10);
  return mysql_affected_rows(w->my);
}

enum got { GOT_IT, GOT_ERROR, GOT_NO_MEMORY };

static enum got keep_answer(wire_t *w) {
  if (w->answered == w->answer_capacity) {
    void *made = grow_array(w->answers, &w->answer_capacity, w->answered + 1, sizeof *w->answers);
    if (!made) return GOT_NO_MEMORY;
    w->answers = made;
  }
  struct dibs__mysql_answer *a = &w->answers[w->answered];
  *a = (struct dibs__mysql_answer){0};
  if (mysql_field_count(w->my) == 0) {
    a->changed = matched_rows(w);
  } else {
    a->result = take_result(w);
    if (!a->result) return GOT_ERROR;
    a->rows = (size_t)mysql_num_rows(a->result);
    a->columns = mysql_num_fields(a->result);
    a->changed = a->rows;
  }
  w->answered++;
  return a->rows == 0 || keep_cells(w, a) ? GOT_IT : GOT_NO_MEMORY;
}

size_t dibs__mysql_rows(const struct dibs__sql_wire *wire, size_t nth) {
  const wire_t *w = dibs__mysql_of(wire);
  return nth < w->answered ? w->answers[nth].rows : 0;
}

uint64_t dibs__mysql_changed(const struct dibs__sql_wire *wire, size_t nth) {
  const wire_t *w = dibs__mysql_of(wire);
  return nth < w->answered ? w->answers[nth].changed : 0;
}

/* The digits up to the first other character: a DECIMAL may have a point. */
static int64_t number_of(const char *p) {
  bool minus = *p == '-';
  uint64_t n = 0;
  for (p += minus; *p >= '0' && *p <= '9'; p++) n = n * 10 + (uint64_t)(*p - '0');
  return (int64_t)(minus ? -n : n);
}

struct dibs__sql_value dibs__mysql_cell(const struct dibs__sql_wire *wire, size_t nth, size_t row, size_t column,
                                        enum dibs__sql_kind as) {
  const wire_t *w = dibs__mysql_of(wire);
  /* A proxy between us and the server may answer with fewer columns. */
  if (nth >= w->answered) return dibs__sql_null();
  const struct dibs__mysql_answer *a = &w->answers[nth];
  if (row >= a->rows || column >= a->columns) return dibs__sql_null();
  const struct dibs__mysql_cell *cell = &w->cells[a->first + row * a->columns + column];
  if (!cell->p) return dibs__sql_null();
  if (as == DIBS__SQL_NUMBER) return dibs__sql_number(number_of(cell->p));
  return (struct dibs__sql_value){.kind = as, .p = cell->p, .len = cell->len};
}

/* ---- Errors ---- */

/* An error packet that came unasked, between two calls: why the server closes the connection. */
static void read_parting(wire_t *w, const uint8_t *p, size_t len) {
  char message[sizeof w->base.message];
  size_t from = 7;
  if (len > 13 && p[7] == '#') from = 13;
  if (len <= from || p[4] != 0xff) return;
  size_t n = len - from < sizeof message - 1 ? len - from : sizeof message - 1;
  memcpy(message, p + from, n);
  message[n] = '\0';
  (void)dibs__mysql_broke(w, DIBS__SQL_GONE, message);
}

/* Nothing is sent on a connection that the server has closed: so it is certain that nothing was done. */
static bool still_open(wire_t *w) {
  uint8_t peek[256];
  if (w->dead) {
    (void)dibs__mysql_broke(w, DIBS__SQL_GONE, "the connection was closed");
    return false;
  }
  ssize_t n = recv(mysql_get_socket(w->my), peek, sizeof peek, MSG_PEEK | MSG_DONTWAIT);
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) return true;
  if (n > 0 && w->tls) return true; /* it may be about keys */
  w->dead = true;
  (void)dibs__mysql_broke(w, DIBS__SQL_GONE, "the server closed the connection");
  if (n > 0) read_parting(w, peek, (size_t)n);
  return false;
}

/* The connector's last error.  `sent`: the packet may have reached the server. */
static sql_rc set_failure(wire_t *w, bool commits, bool sent) {
  unsigned error = mysql_errno(w->my);
  /* From 2000 and 5000 on they are the connector's own: the server has not answered. */
  bool answered = !w->late && error > 0 && error / 1000 != CR_MIN_ERROR / 1000 && error / 1000 != CER_MIN_ERROR / 1000;
  enum dibs__sql_trouble trouble = w->late ? DIBS__SQL_LATE : dibs__mysql_trouble(error);
  /* The primary that this server was has become a replica: another connection finds the new one. */
  bool demoted = w->ours && (error == 1290 || error == 1836);
  if (demoted) trouble = DIBS__SQL_GONE;
  const char *message = w->late ? "no answer" : mysql_error(w->my);
  (void)dibs__mysql_broke(w, trouble, *message ? message : "the connection broke");
  w->base.failed_at = w->answered;
  if (trouble == DIBS__SQL_GONE || trouble == DIBS__SQL_LATE) w->dead = true;
  /* (Inside a user's transaction nothing is committed before they commit.) */
  if (!commits || !sent || w->base.inside) return DIBS__SQL_FAILED;
  /* The server refused a statement: those after it were not done.  COMMIT itself can only be undone for sure. */
  if (!answered)
    w->base.unsure = true;
  else if (w->commit_at == SIZE_MAX)
    w->base.unsure = trouble == DIBS__SQL_GONE && !demoted;
  else
    w->base.unsure = w->base.failed_at >= w->commit_at && trouble != DIBS__SQL_DEADLOCK;
  return DIBS__SQL_FAILED;
}

/* A failure after a committed COMMIT changes nothing. */
static bool is_committed(const wire_t *w, bool commits) {
  return commits && w->commit_at != SIZE_MAX && w->answered > w->commit_at;
}

static sql_rc failure_of_packet(wire_t *w, bool commits, bool sent) {
  bool fine = is_committed(w, commits);
  sql_rc end = set_failure(w, commits, sent);
  return fine ? DIBS__SQL_OK : end;
}

static sql_rc no_memory(wire_t *w, bool commits) {
  /* There may be more answers, which nobody reads. */
  bool fine = is_committed(w, commits);
  (void)dibs__mysql_broke(w, DIBS__SQL_NO_SPACE, "out of memory");
  w->base.failed_at = w->answered;
  w->base.unsure = commits;
  w->dead = true;
  return fine ? DIBS__SQL_OK : DIBS__SQL_FAILED;
}

/* ---- Going ---- */

sql_rc dibs__mysql_take(wire_t *w, bool commits) {
  for (;;) {
    enum got got = keep_answer(w);
    if (got == GOT_NO_MEMORY) return no_memory(w, commits);
    if (got == GOT_ERROR) return failure_of_packet(w, commits, true);
    if (!mysql_more_results(w->my)) return DIBS__SQL_OK;
    if (!next_answer(w)) return failure_of_packet(w, commits, true);
  }
}

sql_rc dibs__mysql_failed(wire_t *w) {
  return set_failure(w, false, true);
}

static size_t end_of_statement(const wire_t *w, size_t nth) {
  return nth + 1 < w->base.put ? w->starts[nth + 1] - 1 : w->text.len;
}

static bool begins_with(const char *text, size_t len, const char *word) {
  size_t n = strlen(word);
  return len >= n && memcmp(text, word, n) == 0;
}

static size_t least_bytes(const wire_t *w, size_t from, size_t to) {
  size_t least = 0;
  for (size_t i = from; i < to; i++) {
    const char *text = w->text.p + w->starts[i];
    size_t len = end_of_statement(w, i) - w->starts[i];
    least += begins_with(text, len, "SELECT ")   ? ROWS_BYTES
             : begins_with(text, len, "UPDATE ") ? UPDATE_BYTES
                                                 : OK_BYTES;
  }
  return least;
}

/* Statements [from, to), whose text ends at `end`, as one packet. */
static sql_rc send_packet(wire_t *w, size_t from, size_t to, size_t end, bool commits) {
  const char *text = w->text.p + w->starts[from];
  w->least = to - from > 1 ? least_bytes(w, from, to) : 0;
  return send_text(w, text, end - w->starts[from]) ? dibs__mysql_take(w, commits) : failure_of_packet(w, commits, true);
}

/* As many statements a packet as the server takes. */
static sql_rc send_packets(wire_t *w, bool commits) {
  sql_rc end = DIBS__SQL_OK;
  for (size_t from = 0, to; from < w->base.put && end == DIBS__SQL_OK && !w->dead; from = to) {
    for (to = from + 1; w->many && to < w->base.put && end_of_statement(w, to) - w->starts[from] <= w->packet_max;)
      to++;
    if (end_of_statement(w, to - 1) - w->starts[from] > w->packet_limit) {
      end = dibs__mysql_broke(w, DIBS__SQL_REFUSED, "longer than the server's max_allowed_packet");
      w->base.failed_at = from;
    } else {
      end = send_packet(w, from, to, end_of_statement(w, to - 1), commits);
    }
  }
  return end;
}

sql_rc dibs__mysql_go(struct dibs__sql_wire *wire, bool commits) {
  wire_t *w = dibs__my(wire);
  sql_rc end = DIBS__SQL_FAILED;
  bool switched = false;
  dibs__mysql_clear(w);
  w->base.unsure = false;
  w->base.failed_at = 0;
  w->late = false;
  if (!still_open(w)) goto out;
  /* The user's transaction has ended: each statement would be a transaction of its own, and a savepoint nothing. */
  if (w->base.inside &&
      (w->my->server_status & (SERVER_STATUS_IN_TRANS | SERVER_STATUS_AUTOCOMMIT)) == SERVER_STATUS_AUTOCOMMIT) {
    (void)dibs__mysql_broke(w, DIBS__SQL_REFUSED, "the given connection has no open transaction any more");
    goto out;
  }
  if (!w->many && w->base.put > 1) {
    switched = w->many = allow_multi_statements(w, true);
    if (!switched) {
      (void)set_failure(w, false, false);
      goto out;
    }
  }
  end = send_packets(w, commits);
  if (switched) {
    w->many = false;
    if (!w->dead && !allow_multi_statements(w, false) && end == DIBS__SQL_OK) end = failure_of_packet(w, commits, true);
  }
out:
  w->base.put = w->text.len = 0;
  return end;
}

/* ---- Transactions of users ---- */

sql_rc dibs__mysql_lend(struct dibs__server *store, struct dibs__sql_wire *wire, void **connection) {
  (void)store; /* the session fits any statement */
  *connection = dibs__my(wire)->my;
  return DIBS__SQL_OK;
}

/* Without a statement nothing is sent: the server refuses it, and for a length of 0 the client library sends whatever
 * is in the memory at the text, up to a NUL. */
sql_rc dibs__mysql_script(struct dibs__sql_wire *wire, const char *sql) {
  if (sql[strspn(sql, " \t\r\n\f\v;")] == '\0') return DIBS__SQL_OK;
  struct dibs__mysql_buffer text = {.p = (char *)(uintptr_t)sql, .len = strlen(sql)};
  bool commits = strcmp(sql, "COMMIT") == 0;
  sql_rc end = commits ? dibs__mysql_put(wire, sql, NULL, 0) : dibs__mysql_put_whole(wire, &text);
  return end == DIBS__SQL_OK ? dibs__mysql_go(wire, commits) : end;
}

bool dibs__mysql_in_transaction(const struct dibs__sql_wire *wire) {
  return dibs__mysql_of(wire)->my->server_status & SERVER_STATUS_IN_TRANS;
}
