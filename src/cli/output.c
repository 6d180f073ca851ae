/* SPDX-License-Identifier: MIT */
/* What dibs prints: tables, JSON, errors and notes. */
#include "base/port.h"
#include "base/text.h"
#include "cli/cli.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

/* ---- Tables ---- */

/*
 * Tables for people.  Columns are as wide as their widest cell.  On a terminal that is too narrow for the table:
 *   1. the columns marked '*' are cut down to a fair width, the widest first;
 *   2. the columns marked '-' are left out, from right to left, then those marked '--';
 *   3. the columns marked '*' are cut down to the least width, then the others.
 * A column marked '=' is never cut: half a number misleads.  Its row may wrap.
 */
enum { GAP = 2, LEAST_WIDTH = 6, FAIR_WIDTH = 14, RANKS = 2 };

struct cli_table {
  const char *head[CLI_CELLS_MAX];
  bool right[CLI_CELLS_MAX], cut_first[CLI_CELLS_MAX], whole[CLI_CELLS_MAX];
  int rank[CLI_CELLS_MAX]; /* how many '-' it has: 1 is left out first, 0 never */
  size_t columns;
  char **cell; /* row by row */
  size_t cells, capacity;
};

size_t dibs__cli_utf8(const char *text, size_t length, uint32_t *point) {
  size_t took = dibs__utf8_next(text, length, point);
  if (took > 0) return took;
  *point = 0xfffd;
  return 1;
}

/* Ranges that take two columns, or none, in present terminals. */
static const struct {
  uint32_t first, last;
  uint8_t width;
} wides[] = {
    {0x300, 0x36f, 0},     {0x483, 0x489, 0},     {0x591, 0x5bd, 0},     {0x610, 0x61a, 0},    {0x64b, 0x65f, 0},
    {0x1100, 0x115f, 2},   {0x1ab0, 0x1aff, 0},   {0x1dc0, 0x1dff, 0},   {0x200b, 0x200f, 0},  {0x2028, 0x202e, 0},
    {0x2060, 0x2064, 0},   {0x20d0, 0x20ff, 0},   {0x2e80, 0x303e, 2},   {0x3041, 0x33ff, 2},  {0x3400, 0x4dbf, 2},
    {0x4e00, 0x9fff, 2},   {0xa000, 0xa4cf, 2},   {0xac00, 0xd7a3, 2},   {0xf900, 0xfaff, 2},  {0xfe00, 0xfe0f, 0},
    {0xfe20, 0xfe2f, 0},   {0xfe30, 0xfe4f, 2},   {0xfeff, 0xfeff, 0},   {0xff00, 0xff60, 2},  {0xffe0, 0xffe6, 2},
    {0x1f300, 0x1f64f, 2}, {0x1f900, 0x1f9ff, 2}, {0x20000, 0x3fffd, 2}, {0xe0100, 0xe01ef, 0}};

static size_t width_of(uint32_t code) {
  for (size_t i = 0; i < sizeof wides / sizeof *wides; i++)
    if (code >= wides[i].first && code <= wides[i].last) return wides[i].width;
  return 1;
}

/* Would let a name or an owner control the terminal, or reverse the text. */
static bool harms_terminal(uint32_t code) {
  return code < 0x20 || (code >= 0x7f && code < 0xa0) || (code >= 0x202a && code <= 0x202e) ||
         (code >= 0x2066 && code <= 0x2069) || code == 0x2028 || code == 0x2029;
}

size_t dibs__cli_width(const char *text) {
  size_t width = 0, length = strlen(text);
  for (size_t at = 0; at < length;) {
    uint32_t code;
    at += dibs__cli_utf8(text + at, length - at, &code);
    width += harms_terminal(code) ? 1 : width_of(code);
  }
  return width;
}

void dibs__cli_put(FILE *out, const char *text, size_t width) {
  bool cut = width > 0 && dibs__cli_width(text) > width;
  size_t used = 0, length = strlen(text);
  for (size_t at = 0; at < length;) {
    uint32_t code;
    size_t took = dibs__cli_utf8(text + at, length - at, &code);
    size_t wide = harms_terminal(code) ? 1 : width_of(code);
    if (cut && used + wide > width - 1) break;
    if (harms_terminal(code))
      putc('?', out);
    else if (code == 0xfffd)
      fputs("\xef\xbf\xbd", out);
    else
      fwrite(text + at, 1, took, out);
    used += wide;
    at += took;
  }
  if (cut) fputs("\xe2\x80\xa6", out);
}

size_t dibs__cli_columns(int fd) {
  struct winsize size;
  if (ioctl(fd, TIOCGWINSZ, &size) != 0) return 0;
  return size.ws_col > 0 ? size.ws_col : 80;
}

bool dibs__cli_shows_progress(const struct cli_globals *globals) {
  return !globals->quiet && isatty(STDERR_FILENO);
}

void dibs__cli_progress(const char *text) {
  size_t columns = dibs__cli_columns(STDERR_FILENO);
  fputs("\r\033[K", stderr);
  if (text) dibs__cli_put(stderr, text, columns ? columns - 1 : 0);
  fflush(stderr);
}

struct cli_table *dibs__cli_table_new(const char *const *heads) {
  struct cli_table *table = calloc(1, sizeof *table);
  if (table == NULL) return NULL;
  for (; heads[table->columns] != NULL && table->columns < CLI_CELLS_MAX; table->columns++) {
    const char *head = heads[table->columns];
    for (; *head != '\0' && strchr(">*-=", *head) != NULL; head++) {
      if (*head == '>')
        table->right[table->columns] = true;
      else if (*head == '*')
        table->cut_first[table->columns] = true;
      else if (*head == '=')
        table->whole[table->columns] = true;
      else
        table->rank[table->columns]++;
    }
    table->head[table->columns] = head;
  }
  return table;
}

bool dibs__cli_table_add(struct cli_table *table, const char *text) {
  if (table->cells == table->capacity) {
    size_t capacity = table->capacity == 0 ? 64 : table->capacity * 2;
    char **cell = realloc(table->cell, capacity * sizeof *cell);
    if (cell == NULL) return false;
    table->cell = cell;
    table->capacity = capacity;
  }
  char *copy = strdup(text);
  if (copy == NULL) return false;
  table->cell[table->cells++] = copy;
  return true;
}

/* Cuts the widest column first; returns the new total. */
static size_t cut_columns(const struct cli_table *table, size_t *width, size_t total, size_t most, size_t least,
                          bool all) {
  while (total > most) {
    size_t widest = table->columns;
    for (size_t i = 0; i < table->columns; i++) {
      bool may = !table->whole[i] && (all || table->cut_first[i]);
      if (may && width[i] > least && (widest == table->columns || width[i] > width[widest])) widest = i;
    }
    if (widest == table->columns) break;
    width[widest]--;
    total--;
  }
  return total;
}

static void shrink(const struct cli_table *table, size_t *width, size_t most) {
  size_t total = (table->columns - 1) * GAP;
  for (size_t i = 0; i < table->columns; i++) total += width[i];
  total = cut_columns(table, width, total, most, FAIR_WIDTH, false);
  for (int rank = 1; rank <= RANKS; rank++)
    for (size_t i = table->columns; i-- > 0 && total > most;)
      if (table->rank[i] == rank) {
        total -= width[i] + GAP;
        width[i] = 0;
      }
  total = cut_columns(table, width, total, most, LEAST_WIDTH, false);
  (void)cut_columns(table, width, total, most, LEAST_WIDTH, true);
}

static void print_row(const struct cli_table *table, const char *const *cell, const size_t *width, FILE *out) {
  size_t last = table->columns - 1;
  while (last > 0 && width[last] == 0) last--;
  for (size_t i = 0; i <= last; i++) {
    if (width[i] == 0) continue;
    size_t has = dibs__cli_width(cell[i]);
    if (has > width[i]) has = width[i];
    int pad = (int)(width[i] - has);
    if (table->right[i]) fprintf(out, "%*s", pad, "");
    dibs__cli_put(out, cell[i], width[i]);
    if (i == last) break;
    fprintf(out, "%*s", GAP + (table->right[i] ? 0 : pad), "");
  }
  putc('\n', out);
}

void dibs__cli_table_print(const struct cli_table *table, size_t columns, FILE *out) {
  assert(table->columns > 0);
  if (table->columns == 0) return;
  size_t width[CLI_CELLS_MAX];
  for (size_t i = 0; i < table->columns; i++) width[i] = dibs__cli_width(table->head[i]);
  for (size_t i = 0; i < table->cells; i++) {
    size_t has = dibs__cli_width(table->cell[i]);
    if (has > width[i % table->columns]) width[i % table->columns] = has;
  }
  if (columns > 0) shrink(table, width, columns);
  print_row(table, table->head, width, out);
  for (size_t i = 0; i + table->columns <= table->cells; i += table->columns)
    print_row(table, (const char *const *)(table->cell + i), width, out);
}

void dibs__cli_table_free(struct cli_table *table) {
  if (table == NULL) return;
  for (size_t i = 0; i < table->cells; i++) free(table->cell[i]);
  free(table->cell);
  free(table);
}

/*
 * Writing that never waits for a reader and never ends the process: a report must not delay dibs while it guards a
 * command and the reader of a pipe has stopped reading.
 *
 * A descriptor is shared with the processes that started dibs, so setting O_NONBLOCK on it would change it for them.  A
 * pipe or terminal is opened once more instead, through /proc: only that description does not block.
 */

enum { RETRY_MS = 10 };

static ssize_t write_reopened(int fd, const char *bytes, size_t length) {
  char path[32];
  snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
  int own = open(path, O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
  if (own < 0 && errno == ENXIO) errno = EPIPE; /* a pipe without a reader */
  if (own < 0 && errno == EPIPE) return -1;
  if (own >= 0) {
    ssize_t sent = write(own, bytes, length);
    int error = errno;
    close(own);
    errno = error;
    return sent;
  }
  /* /proc is missing, or the terminal belongs to another user.  Between the poll and the write another writer may fill
   * the pipe; then this write waits. */
  struct pollfd ready = {.fd = fd, .events = POLLOUT};
  if (poll(&ready, 1, 0) == 0) {
    errno = EAGAIN;
    return -1;
  }
  return write(fd, bytes, length < PIPE_BUF ? length : PIPE_BUF);
}

static ssize_t write_by_kind(int fd, const char *bytes, size_t length) {
  struct stat st;
  int flags = fcntl(fd, F_GETFL);
  if (flags < 0 || fstat(fd, &st) != 0) return -1;
  if ((flags & O_ACCMODE) == O_RDONLY) {
    errno = EBADF;
    return -1;
  }
  if (S_ISSOCK(st.st_mode)) return send(fd, bytes, length, MSG_DONTWAIT | MSG_NOSIGNAL);
  if (S_ISFIFO(st.st_mode) || (S_ISCHR(st.st_mode) && isatty(fd))) return write_reopened(fd, bytes, length);
  return write(fd, bytes, length);
}

ssize_t dibs__cli_write_now(int fd, const char *bytes, size_t length) {
  sigset_t broken, before, pending;
  sigemptyset(&broken);
  sigaddset(&broken, SIGPIPE);
  bool was_pending = sigpending(&pending) == 0 && sigismember(&pending, SIGPIPE) == 1;
  sigprocmask(SIG_BLOCK, &broken, &before);
  ssize_t sent;
  do sent = write_by_kind(fd, bytes, length);
  while (sent < 0 && errno == EINTR);
  int error = errno;
  static const struct timespec at_once;
  if (sent < 0 && error == EPIPE && !was_pending) sigtimedwait(&broken, NULL, &at_once);
  sigprocmask(SIG_SETMASK, &before, NULL);
  errno = error;
  return sent;
}

/* Writes all of it within `ms`.  false: it did not, with errno; EAGAIN: the reader does not read. */
static bool write_by(int fd, const char *bytes, size_t length, int64_t ms) {
  dibs__tick by = dibs__tick_add_ms(dibs__tick_now(), ms);
  while (length > 0) {
    ssize_t sent = dibs__cli_write_now(fd, bytes, length);
    if (sent < 0 && errno != EAGAIN) return false;
    if (sent > 0) {
      bytes += sent;
      length -= (size_t)sent;
      continue;
    }
    int64_t left_ms = dibs__tick_left_ms(dibs__tick_now(), by);
    if (left_ms <= 0) return false;
    struct pollfd ready = {.fd = fd, .events = POLLOUT};
    /* A pipe may be writable and still too full for all of it. */
    if (poll(&ready, 1, left_ms < INT_MAX ? (int)left_ms : INT_MAX) > 0)
      dibs__nap_ms(left_ms < RETRY_MS ? 1 : RETRY_MS);
  }
  return true;
}

bool dibs__cli_line_open(struct cli_line *line) {
  *line = (struct cli_line){.length = 0};
  FILE *out = open_memstream(&line->text, &line->length);
  if (out == NULL) return false;
  line->out = out;
  return true;
}

bool dibs__cli_line_send(struct cli_line *line, int fd, int64_t ms) {
  bool sent = fclose(line->out) == 0 && write_by(fd, line->text, line->length, ms);
  int error = errno;
  free(line->text);
  errno = error;
  return sent;
}

/* The messages of dibs on standard error, and the exit code of each status. */

/* The statuses of cli.h, each a list of words. */
static const struct {
  int number;
  const char *statuses;
} exits[] = {
#define CLI__EXIT_ROW(name, number, statuses, text) {number, statuses},
    CLI_EXITS(CLI__EXIT_ROW)
#undef CLI__EXIT_ROW
};

static bool among(const char *words, const char *word) {
  size_t length = strlen(word);
  for (const char *at = words; (at = strstr(at, word)) != NULL; at += length)
    if ((at == words || at[-1] == ' ') && (at[length] == ' ' || at[length] == '\0')) return true;
  return false;
}

int dibs__cli_exit_of(dibs_status status) {
  const char *name = dibs_status_name(status);
  for (size_t i = 0; i < sizeof exits / sizeof *exits; i++)
    if (among(exits[i].statuses, name)) return exits[i].number;
  return CLI_FAILED;
}

enum { LINE_SIZE = 1400 };

static bool plain_answer(int code) {
  return code == CLI_CONFLICT || code == CLI_ABSENT || code == CLI_STALE || code == CLI_BUSY || code == CLI_TIMEOUT;
}

/* Makes one line of any text. */
__attribute__((format(printf, 2, 0))) static void format_line(char text[LINE_SIZE], const char *format, va_list args) {
  vsnprintf(text, LINE_SIZE, format, args);
  for (; *text != '\0'; text++)
    if (*text == '\n' || *text == '\r') *text = ' ';
}

static _Atomic bool unsaid; /* a line of standard error could not be written */

bool dibs__cli_all_said(void) {
  return !unsaid;
}

static void send_line(struct cli_line *line, int64_t ms) {
  if (!dibs__cli_line_send(line, STDERR_FILENO, ms)) unsaid = true;
}

static void print_line(const char *text, int64_t ms) {
  struct cli_line line;
  if (!dibs__cli_line_open(&line)) {
    unsaid = true;
    return;
  }
  fputs("dibs: ", line.out);
  dibs__cli_put(line.out, text, 0);
  putc('\n', line.out);
  send_line(&line, ms);
}

int dibs__cli_fail(const struct cli_globals *globals, int code, const char *status, const char *format, ...) {
  char text[LINE_SIZE];
  va_list args;
  va_start(args, format);
  format_line(text, format, args);
  va_end(args);
  if (globals->quiet && plain_answer(code)) return code;
  fflush(stdout);
  if (!globals->json) {
    print_line(text, CLI_ERROR_MS);
    return code;
  }
  struct cli_line line;
  if (!dibs__cli_line_open(&line)) {
    unsaid = true;
    return code;
  }
  struct dibs__json j = {.out = line.out};
  dibs__json_open(&j, NULL, '{');
  dibs__json_text(&j, "command", globals->command);
  dibs__json_int(&j, "exit", code);
  dibs__json_text(&j, "status", status);
  dibs__json_text(&j, "message", text);
  dibs__json_close(&j, '}');
  send_line(&line, CLI_ERROR_MS);
  return code;
}

int dibs__cli_fail_status(const struct cli_globals *globals, dibs_status status, const dibs_error *error,
                          const char *what) {
  int code = dibs__cli_exit_of(status);
  if (error != NULL && error->text[0] != '\0')
    return dibs__cli_fail(globals, code, dibs_status_name(status), "%s", error->text);
  return dibs__cli_fail(globals, code, dibs_status_name(status), "%s: %s", what, dibs_status_text(status));
}

__attribute__((format(printf, 1, 0))) static void write_note(const char *format, va_list args) {
  char text[LINE_SIZE];
  format_line(text, format, args);
  print_line(text, CLI_NOTE_MS);
}

void dibs__cli_note(const struct cli_globals *globals, const char *format, ...) {
  va_list args;
  if (globals->quiet || globals->json) return;
  va_start(args, format);
  write_note(format, args);
  va_end(args);
}

static const struct cli_globals *daemon_globals;

void dibs__cli_daemon_notes(const struct cli_globals *globals) {
  daemon_globals = globals;
}

void dibs__cli_daemon_note(const char *format, ...) {
  va_list args;
  if (daemon_globals->quiet || daemon_globals->json) return;
  va_start(args, format);
  write_note(format, args);
  va_end(args);
}

void dibs__cli_daemon_action(const char *format, ...) {
  va_list args;
  va_start(args, format);
  write_note(format, args);
  va_end(args);
}

void dibs__cli_list_begin(struct dibs__json *json) {
  if (json->depth == 0) dibs__json_open(json, NULL, '[');
}

void dibs__cli_list_end(struct dibs__json *json, bool fine) {
  if (fine) dibs__cli_list_begin(json);
  if (json->depth > 0) dibs__json_close(json, ']');
}

int dibs__cli_flush(const struct cli_globals *globals) {
  if (fflush(stdout) == 0 && !ferror(stdout)) return CLI_DONE;
  return dibs__cli_fail(globals, CLI_FAILED, "", "cannot write standard output: %s", strerror(errno));
}

const char *dibs__cli_mode_name(dibs_mode mode) {
  switch (mode) {
  case DIBS_EXCLUSIVE:
    return "exclusive";
  case DIBS_SHARED:
    return "shared";
  case DIBS_COUNTED:
    return "counted";
  }
  return "?";
}
