/* SPDX-License-Identifier: MIT */
/* What dibs says on standard error, and which exit code a status becomes. */
#include "base/text.h"
#include "cli/cli.h"

#include <errno.h>
#include <stdarg.h>
#include <string.h>

/* The statuses of exits.h, each a list of words. */
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

static bool plain_answer(int code) {
  return code == CLI_CONFLICT || code == CLI_ABSENT || code == CLI_STALE || code == CLI_BUSY || code == CLI_TIMEOUT;
}

/* One line, whatever the words hold. */
static void flatten(char *text) {
  for (; *text != '\0'; text++)
    if (*text == '\n' || *text == '\r') *text = ' ';
}

static void print_line(const char *text) {
  flockfile(stderr);
  fputs("dibs: ", stderr);
  dibs__cli_put(stderr, text, 0);
  putc('\n', stderr);
  funlockfile(stderr);
}

int dibs__cli_fail(const struct cli_globals *globals, int code, const char *status, const char *format, ...) {
  char text[1400];
  va_list args;
  va_start(args, format);
  vsnprintf(text, sizeof text, format, args);
  va_end(args);
  flatten(text);
  if (globals->quiet && plain_answer(code)) return code;
  fflush(stdout);
  if (!globals->json) {
    print_line(text);
    return code;
  }
  struct cli_json j = {.out = stderr};
  dibs__cli_json_open(&j, NULL, '{');
  dibs__cli_json_text(&j, "command", globals->command);
  dibs__cli_json_int(&j, "exit", code);
  dibs__cli_json_text(&j, "status", status);
  dibs__cli_json_text(&j, "message", text);
  dibs__cli_json_close(&j, '}');
  return code;
}

int dibs__cli_fail_status(const struct cli_globals *globals, dibs_status status, const dibs_error *error,
                          const char *what) {
  int code = dibs__cli_exit_of(status);
  if (error != NULL && error->text[0] != '\0')
    return dibs__cli_fail(globals, code, dibs_status_name(status), "%s", error->text);
  return dibs__cli_fail(globals, code, dibs_status_name(status), "%s: %s", what, dibs_status_text(status));
}

void dibs__cli_note(const struct cli_globals *globals, const char *format, ...) {
  if (globals->quiet || globals->json) return;
  char text[1400];
  va_list args;
  va_start(args, format);
  vsnprintf(text, sizeof text, format, args);
  va_end(args);
  flatten(text);
  print_line(text);
}

int dibs__cli_flush(const struct cli_globals *globals) {
  if (fflush(stdout) == 0 && !ferror(stdout)) return CLI_DONE;
  return dibs__cli_fail(globals, CLI_FAILED, "", "standard output can't be written: %s", strerror(errno));
}
