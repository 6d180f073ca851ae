/* SPDX-License-Identifier: MIT */
/*
 * Packets and their answers.
 *
 * What was put travels as one packet (CLIENT_MULTI_STATEMENTS); the server answers each statement as it is done and
 * stops at the first error.  The connector's non-blocking calls run under our poll(), so that a deadline is kept to the
 * millisecond.  When it comes the socket is shut and the connector told so: it then cleans up by itself.
 */
#include "drivers/mysql_parts.h"

#include <assert.h>
#include <errmsg.h>
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

typedef enum dibs__sql_step step;
typedef struct dibs__my_wire wire_t;

/* ---- Waiting ---- */

enum {
  THROUGH_MS = 1,
  OK_BYTES = 11,    /* what an answer without rows takes at least */
  ROWS_BYTES = 40,  /* and one with rows, even with none of them */
  UPDATE_BYTES = 50 /* and one that says how many matched */
};

/* The server sends the answer of each statement as it is done, and each would wake us.  So we sleep until so many bytes
 * are there as the answers take at least, for a short while: after an error there are fewer. */
static void sleep_through(wire_t *w, struct pollfd *fd) {
  int least = (int)w->least, one = 1;
  w->least = 0;
  if (setsockopt(fd->fd, SOL_SOCKET, SO_RCVLOWAT, &least, sizeof least) != 0) return;
  (void)poll(fd, 1, THROUGH_MS);
  (void)setsockopt(fd->fd, SOL_SOCKET, SO_RCVLOWAT, &one, sizeof one);
}

int dibs__my_await(wire_t *w, int want) {
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
  (void)shutdown(fd.fd, SHUT_RDWR); /* what would be said in parting must not wait for a peer that is silent */
  return MYSQL_WAIT_TIMEOUT;
}

static bool send_text(wire_t *w, const char *p, size_t len) {
  int failed = 0;
  int want = mysql_real_query_start(&failed, w->my, p, (unsigned long)len);
  while (want) want = mysql_real_query_cont(&failed, w->my, dibs__my_await(w, want));
  return failed == 0;
}

static bool next_answer(wire_t *w) {
  int failed = 0;
  int want = mysql_next_result_start(&failed, w->my);
  while (want) want = mysql_next_result_cont(&failed, w->my, dibs__my_await(w, want));
  return failed == 0;
}

static MYSQL_RES *take_result(wire_t *w) {
  MYSQL_RES *result = NULL;
  int want = mysql_store_result_start(&result, w->my);
  while (want) want = mysql_store_result_cont(&result, w->my, dibs__my_await(w, want));
  return result;
}

static bool let_many(wire_t *w, bool on) {
  int failed = 0;
  enum enum_mysql_set_option option = on ? MYSQL_OPTION_MULTI_STATEMENTS_ON : MYSQL_OPTION_MULTI_STATEMENTS_OFF;
  int want = mysql_set_server_option_start(&failed, w->my, option);
  while (want) want = mysql_set_server_option_cont(&failed, w->my, dibs__my_await(w, want));
  return failed == 0;
}

/* ---- Answers ---- */

void dibs__my_clear(wire_t *w) {
  for (size_t i = 0; i < w->answered; i++)
    if (w->answers[i].result) mysql_free_result(w->answers[i].result);
  w->answered = w->cell_count = 0;
}

static void *grown(void *p, size_t *have, size_t need, size_t size) {
  size_t more = *have ? *have : 64;
  while (more < need) more *= 2;
  void *made = realloc(p, more * size);
  if (made) *have = more;
  return made;
}

static bool keep_cells(wire_t *w, struct dibs__my_answer *a) {
  size_t need = w->cell_count + a->rows * a->columns;
  if (need > w->cell_room) {
    void *made = grown(w->cells, &w->cell_room, need, sizeof *w->cells);
    if (!made) return false;
    w->cells = made;
  }
  a->first = w->cell_count;
  struct dibs__my_cell *to = w->cells + a->first;
  for (MYSQL_ROW row; (row = mysql_fetch_row(a->result));) {
    const unsigned long *lengths = mysql_fetch_lengths(a->result);
    for (size_t i = 0; i < a->columns; i++) *to++ = (struct dibs__my_cell){row[i], (uint32_t)lengths[i]};
  }
  w->cell_count = need;
  return true;
}

/* "Rows matched: 3  Changed: 1  Warnings: 0": for connections that count what changed. */
static uint64_t matched(wire_t *w) {
  static const char begins[] = "Rows matched: ";
  const char *info = w->found ? NULL : mysql_info(w->my);
  if (info && strncmp(info, begins, sizeof begins - 1) == 0) return strtoull(info + sizeof begins - 1, NULL, 10);
  return mysql_affected_rows(w->my);
}

enum got { GOT_IT, GOT_ERROR, GOT_NO_MEMORY };

static enum got keep_answer(wire_t *w) {
  if (w->answered == w->answer_room) {
    void *made = grown(w->answers, &w->answer_room, w->answered + 1, sizeof *w->answers);
    if (!made) return GOT_NO_MEMORY;
    w->answers = made;
  }
  struct dibs__my_answer *a = &w->answers[w->answered];
  *a = (struct dibs__my_answer){0};
  if (mysql_field_count(w->my) == 0) {
    a->changed = matched(w);
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

size_t dibs__my_rows(const struct dibs__sql_wire *wire, size_t nth) {
  const wire_t *w = dibs__my_of(wire);
  return nth < w->answered ? w->answers[nth].rows : 0;
}

uint64_t dibs__my_changed(const struct dibs__sql_wire *wire, size_t nth) {
  const wire_t *w = dibs__my_of(wire);
  return nth < w->answered ? w->answers[nth].changed : 0;
}

/* Digits up to whatever is none: a DECIMAL may have a point. */
static int64_t number_of(const char *p) {
  bool minus = *p == '-';
  uint64_t n = 0;
  for (p += minus; *p >= '0' && *p <= '9'; p++) n = n * 10 + (uint64_t)(*p - '0');
  return (int64_t)(minus ? -n : n);
}

struct dibs__sql_value dibs__my_cell(const struct dibs__sql_wire *wire, size_t nth, size_t row, size_t column,
                                     enum dibs__sql_kind as) {
  const wire_t *w = dibs__my_of(wire);
  assert(nth < w->answered);
  const struct dibs__my_answer *a = &w->answers[nth];
  assert(row < a->rows && column < a->columns);
  const struct dibs__my_cell *cell = &w->cells[a->first + row * a->columns + column];
  if (!cell->p) return dibs__sql_null();
  if (as == DIBS__SQL_NUMBER) return dibs__sql_number(number_of(cell->p));
  return (struct dibs__sql_value){.kind = as, .p = cell->p, .len = cell->len};
}

/* ---- What went wrong ---- */

/* An error packet that came unasked, between two calls: why the server closes the connection. */
static void read_parting(wire_t *w, const uint8_t *p, size_t len) {
  char words[sizeof w->base.words];
  size_t from = 7;
  if (len > 13 && p[7] == '#') from = 13;
  if (len <= from || p[4] != 0xff) return;
  size_t n = len - from < sizeof words - 1 ? len - from : sizeof words - 1;
  memcpy(words, p + from, n);
  words[n] = '\0';
  (void)dibs__my_broke(w, DIBS__SQL_GONE, words);
}

/* Nothing is sent on a connection that the server has closed: then it is known that nothing was done. */
static bool still_open(wire_t *w) {
  uint8_t peek[256];
  if (w->dead) {
    (void)dibs__my_broke(w, DIBS__SQL_GONE, "the connection was closed");
    return false;
  }
  ssize_t n = recv(mysql_get_socket(w->my), peek, sizeof peek, MSG_PEEK | MSG_DONTWAIT);
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) return true;
  if (n > 0 && w->tls) return true; /* it may be about keys */
  w->dead = true;
  (void)dibs__my_broke(w, DIBS__SQL_GONE, "the server closed the connection");
  if (n > 0) read_parting(w, peek, (size_t)n);
  return false;
}

/* The connector's last error.  `sent`: the packet may have reached the server. */
static step fail(wire_t *w, bool commits, bool sent) {
  unsigned error = mysql_errno(w->my);
  /* From 2000 and 5000 on they are the connector's own: no answer of the server. */
  bool answered = !w->late && error > 0 && error / 1000 != CR_MIN_ERROR / 1000 && error / 1000 != CER_MIN_ERROR / 1000;
  enum dibs__sql_trouble trouble = w->late ? DIBS__SQL_LATE : dibs__my_trouble(error);
  const char *words = w->late ? "no answer" : mysql_error(w->my);
  (void)dibs__my_broke(w, trouble, *words ? words : "the connection broke");
  w->base.broke_at = w->answered;
  if (trouble == DIBS__SQL_GONE || trouble == DIBS__SQL_LATE) w->dead = true;
  /* (Inside the user's transaction nothing stands before they commit.) */
  if (!commits || !sent || w->base.inside) return DIBS__SQL_BROKE;
  /* The server said no to a statement: those behind it were not done.  COMMIT itself can only be undone for sure. */
  if (!answered)
    w->base.unsure = true;
  else if (w->commit_at == SIZE_MAX)
    w->base.unsure = trouble == DIBS__SQL_GONE;
  else
    w->base.unsure = w->base.broke_at >= w->commit_at && trouble != DIBS__SQL_DEADLOCK;
  return DIBS__SQL_BROKE;
}

/* What follows a COMMIT that stands is nobody's trouble. */
static bool stands(const wire_t *w, bool commits) {
  return commits && w->commit_at != SIZE_MAX && w->answered > w->commit_at;
}

static step broke(wire_t *w, bool commits, bool sent) {
  bool fine = stands(w, commits);
  step end = fail(w, commits, sent);
  return fine ? DIBS__SQL_FINE : end;
}

static step no_memory(wire_t *w, bool commits) {
  /* There may be more answers, which nobody will read. */
  bool fine = stands(w, commits);
  (void)dibs__my_broke(w, DIBS__SQL_NO_SPACE, "out of memory");
  w->base.broke_at = w->answered;
  w->base.unsure = commits;
  w->dead = true;
  return fine ? DIBS__SQL_FINE : DIBS__SQL_BROKE;
}

/* ---- Going ---- */

step dibs__my_take(wire_t *w, bool commits) {
  for (;;) {
    enum got got = keep_answer(w);
    if (got == GOT_NO_MEMORY) return no_memory(w, commits);
    if (got == GOT_ERROR) return broke(w, commits, true);
    if (!mysql_more_results(w->my)) return DIBS__SQL_FINE;
    if (!next_answer(w)) return broke(w, commits, true);
  }
}

step dibs__my_failed(wire_t *w) {
  return fail(w, false, true);
}

static size_t end_of(const wire_t *w, size_t nth) {
  return nth + 1 < w->base.put ? w->starts[nth + 1] - 1 : w->text.len;
}

static bool begins(const char *text, size_t len, const char *word) {
  size_t n = strlen(word);
  return len >= n && memcmp(text, word, n) == 0;
}

static size_t least_bytes(const wire_t *w, size_t from, size_t to) {
  size_t least = 0;
  for (size_t i = from; i < to; i++) {
    const char *text = w->text.p + w->starts[i];
    size_t len = end_of(w, i) - w->starts[i];
    least += begins(text, len, "SELECT ") ? ROWS_BYTES : begins(text, len, "UPDATE ") ? UPDATE_BYTES : OK_BYTES;
  }
  return least;
}

/* Statements [from, to), whose text ends at `end`, as one packet. */
static step carry(wire_t *w, size_t from, size_t to, size_t end, bool commits) {
  const char *text = w->text.p + w->starts[from];
  w->least = to - from > 1 ? least_bytes(w, from, to) : 0;
  return send_text(w, text, end - w->starts[from]) ? dibs__my_take(w, commits) : broke(w, commits, true);
}

/* As many statements a packet as the server takes. */
static step carry_all(wire_t *w, bool commits) {
  step end = DIBS__SQL_FINE;
  for (size_t from = 0, to; from < w->base.put && end == DIBS__SQL_FINE && !w->dead; from = to) {
    for (to = from + 1; w->many && to < w->base.put && end_of(w, to) - w->starts[from] <= w->packet_max;) to++;
    if (end_of(w, to - 1) - w->starts[from] > w->packet_limit) {
      end = dibs__my_broke(w, DIBS__SQL_REFUSED, "longer than the server's max_allowed_packet");
      w->base.broke_at = from;
    } else {
      end = carry(w, from, to, end_of(w, to - 1), commits);
    }
  }
  return end;
}

step dibs__my_go(struct dibs__sql_wire *wire, bool commits) {
  wire_t *w = dibs__my(wire);
  step end = DIBS__SQL_BROKE;
  bool switched = false;
  dibs__my_clear(w);
  w->base.unsure = false;
  w->base.broke_at = 0;
  w->late = false;
  if (!still_open(w)) goto out;
  if (!w->many && w->base.put > 1) {
    switched = w->many = let_many(w, true);
    if (!switched) {
      (void)fail(w, false, false);
      goto out;
    }
  }
  end = carry_all(w, commits);
  if (switched) {
    w->many = false;
    if (!w->dead && !let_many(w, false) && end == DIBS__SQL_FINE) end = broke(w, commits, true);
  }
out:
  w->base.put = w->text.len = 0;
  return end;
}
