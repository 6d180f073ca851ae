/* SPDX-License-Identifier: MIT */
/* Writes JSON to a stream: enough for what dibs prints.  A line end follows what closes the outermost bracket. */
#include "base/text.h"
#include "cli/cli.h"

#include <inttypes.h>
#include <string.h>

static void put_text(FILE *out, const char *text) {
  size_t length = strlen(text);
  putc('"', out);
  for (size_t at = 0; at < length;) {
    uint32_t code;
    size_t took = dibs__cli_utf8(text + at, length - at, &code);
    if (code == '"' || code == '\\')
      fprintf(out, "\\%c", (int)code);
    else if (code == '\n')
      fputs("\\n", out);
    else if (code == '\t')
      fputs("\\t", out);
    else if (code < 0x20 || code == 0xfffd || (code >= 0x7f && code < 0xa0))
      fprintf(out, "\\u%04x", code);
    else
      fwrite(text + at, 1, took, out);
    at += took;
  }
  putc('"', out);
}

static void begin(struct cli_json *json, const char *key) {
  if (json->comma) putc(',', json->out);
  json->comma = true;
  if (key != NULL) {
    put_text(json->out, key);
    putc(':', json->out);
  }
}

void dibs__cli_json_open(struct cli_json *json, const char *key, char bracket) {
  begin(json, key);
  putc(bracket, json->out);
  json->comma = false;
  json->depth++;
}

void dibs__cli_json_close(struct cli_json *json, char bracket) {
  putc(bracket, json->out);
  json->comma = true;
  if (--json->depth == 0) {
    putc('\n', json->out);
    json->comma = false;
  }
}

void dibs__cli_json_text(struct cli_json *json, const char *key, const char *text) {
  begin(json, key);
  if (text != NULL)
    put_text(json->out, text);
  else
    fputs("null", json->out);
}

void dibs__cli_json_int(struct cli_json *json, const char *key, int64_t number) {
  begin(json, key);
  fprintf(json->out, "%" PRId64, number);
}

void dibs__cli_json_uint(struct cli_json *json, const char *key, uint64_t number) {
  begin(json, key);
  fprintf(json->out, "%" PRIu64, number);
}

void dibs__cli_json_real(struct cli_json *json, const char *key, double number) {
  begin(json, key);
  /* Neither infinity nor "not a number" is JSON. */
  if (number - number != 0.0)
    fputs("null", json->out);
  else
    fprintf(json->out, "%.3f", number);
}

void dibs__cli_json_bool(struct cli_json *json, const char *key, bool yes) {
  begin(json, key);
  fputs(yes ? "true" : "false", json->out);
}
