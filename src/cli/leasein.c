/* SPDX-License-Identifier: MIT */
/*
 * Reads what tells of a lease: the three forms that standard input may have.  Fuzzed by test/fuzz/fuzz_cli.c.
 *
 *   DIBS_NAME='job'\nDIBS_LEASE=0123...\nDIBS_FENCE=42\n   as lock prints it; other lines are passed over
 *   {"name":"job","lease":"0123...","fence":42}            as lock --json prints it
 *   0123... 42                                             id and fence
 */
#include "base/text.h"
#include "cli/cli.h"

#include <string.h>

#define FENCE_MAX ((UINT64_C(1) << 53) - 1)

/* The longest value: a name whose bytes are all quoted or escaped. */
enum { VALUE_MAX = 4 * DIBS_NAME_MAX + 64 };

struct input {
  const char *at, *end;
  char *wrong;
  size_t wrong_size;
};

static bool wrong(struct input *in, const char *what) {
  struct dibs__text t;
  dibs__text_begin(&t, in->wrong, in->wrong_size);
  dibs__text_adds(&t, what);
  return false;
}

static bool blank(char c) {
  return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

static void skip_blanks(struct input *in) {
  while (in->at < in->end && blank(*in->at)) in->at++;
}

static bool keep_name(struct input *in, struct cli_lease_in *lease, const char *name) {
  size_t length = strlen(name);
  enum dibs__name_flaw flaw = dibs__name_check(name, length, DIBS_NAME_MAX, NULL);
  if (flaw != DIBS__NAME_FINE) {
    char text[80];
    snprintf(text, sizeof text, "the name %s", dibs__name_flaw_text(flaw));
    return wrong(in, text);
  }
  memcpy(lease->name, name, length + 1);
  return true;
}

static bool keep_id(struct input *in, struct cli_lease_in *lease, const char *id) {
  if (!dibs__cli_is_id(id)) return wrong(in, "the id of the lease is not 32 hexadecimal digits");
  memcpy(lease->id, id, sizeof lease->id);
  lease->has_id = true;
  return true;
}

static bool keep_fence(struct input *in, struct cli_lease_in *lease, const char *fence) {
  if (!dibs__cli_number(fence, FENCE_MAX, &lease->fence)) return wrong(in, "the fence is no number below 2^53");
  lease->has_fence = true;
  return true;
}

static bool keep_ttl(struct input *in, struct cli_lease_in *lease, const char *ttl) {
  char why[160];
  if (!dibs__cli_duration(ttl, &lease->ttl_ms, why, sizeof why)) return wrong(in, "DIBS_TTL is no duration like 30s");
  return true;
}

static bool keep_pair(struct input *in, struct cli_lease_in *lease, const char *key, const char *value) {
  if (strcmp(key, "DIBS_NAME") == 0) return keep_name(in, lease, value);
  if (strcmp(key, "DIBS_LEASE") == 0) return keep_id(in, lease, value);
  if (strcmp(key, "DIBS_FENCE") == 0) return keep_fence(in, lease, value);
  if (strcmp(key, "DIBS_TTL") == 0) return keep_ttl(in, lease, value);
  return true;
}

/* One word as a shell reads it: quotes and backslashes are taken away. */
static bool shell_word(struct input *in, char word[VALUE_MAX]) {
  size_t n = 0;
  char quote = '\0';
  for (; in->at < in->end; in->at++) {
    char c = *in->at;
    if (c == '\0') return wrong(in, "there is a zero byte in it");
    if (quote == '\0' && (blank(c) || c == ';')) break;
    if (quote == '\0' && (c == '\'' || c == '"')) {
      quote = c;
      continue;
    }
    if (quote != '\0' && c == quote) {
      quote = '\0';
      continue;
    }
    if (c == '\\' && quote != '\'' && in->at + 1 < in->end) c = *++in->at;
    if (n + 1 >= VALUE_MAX) return wrong(in, "a word in it is too long");
    word[n++] = c;
  }
  word[n] = '\0';
  return quote == '\0' || wrong(in, "a quote is not closed");
}

static bool parse_words(struct input *in, struct cli_lease_in *lease) {
  char word[VALUE_MAX];
  for (;;) {
    while (in->at < in->end && (blank(*in->at) || *in->at == ';')) in->at++;
    if (in->at == in->end) return true;
    if (!shell_word(in, word)) return false;
    char *equals = strchr(word, '=');
    bool fine = true;
    if (equals != NULL) {
      *equals = '\0';
      fine = keep_pair(in, lease, word, equals + 1);
    } else if (dibs__cli_is_id(word)) {
      fine = keep_id(in, lease, word);
    } else if (lease->has_id && !lease->has_fence && word[0] >= '0' && word[0] <= '9') {
      fine = keep_fence(in, lease, word);
    }
    if (!fine) return false;
  }
}

static int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

/* What we print ourselves: \" \\ \n \t, and \uXXXX for controls, which no value of a lease may hold. */
static bool json_string(struct input *in, char text[VALUE_MAX]) {
  size_t n = 0;
  for (in->at++; in->at < in->end && *in->at != '"'; in->at++) {
    char c = *in->at;
    if ((unsigned char)c < 0x20) return wrong(in, "a string of the JSON has a control character");
    if (c == '\\') {
      if (++in->at == in->end) break;
      c = *in->at;
      if (c == 'u') {
        int code = 0;
        for (int i = 0; i < 4; i++) {
          int digit = ++in->at < in->end ? hex_digit(*in->at) : -1;
          if (digit < 0) return wrong(in, "the JSON is damaged");
          code = code * 16 + digit;
        }
        if (code < 0x20 || code > 0x7e) return wrong(in, "the JSON escapes what needs no escape");
        c = (char)code;
      } else if (strchr("\"\\/", c) == NULL || c == '\0') {
        return wrong(in, "a string of the JSON has a control character");
      }
    }
    if (n + 1 >= VALUE_MAX) return wrong(in, "a string of the JSON is too long");
    text[n++] = c;
  }
  if (in->at >= in->end) return wrong(in, "the JSON ends within a string");
  in->at++;
  text[n] = '\0';
  return true;
}

static bool json_value(struct input *in, char text[VALUE_MAX]) {
  skip_blanks(in);
  if (in->at < in->end && *in->at == '"') return json_string(in, text);
  size_t n = 0;
  while (in->at < in->end && !blank(*in->at) && *in->at != ',' && *in->at != '}' && n + 1 < VALUE_MAX)
    text[n++] = *in->at++;
  text[n] = '\0';
  if (n == 0 || strchr("{[", text[0]) != NULL) return wrong(in, "the JSON is not the one that lock prints");
  return true;
}

static bool json_member(struct input *in, struct cli_lease_in *lease) {
  char key[VALUE_MAX], value[VALUE_MAX];
  skip_blanks(in);
  if (in->at == in->end || *in->at != '"' || !json_string(in, key)) return wrong(in, "the JSON is damaged");
  skip_blanks(in);
  if (in->at == in->end || *in->at++ != ':') return wrong(in, "the JSON is damaged");
  if (!json_value(in, value)) return false;
  if (strcmp(key, "name") == 0) return keep_name(in, lease, value);
  if (strcmp(key, "lease") == 0) return keep_id(in, lease, value);
  if (strcmp(key, "fence") == 0) return keep_fence(in, lease, value);
  uint64_t ttl;
  if (strcmp(key, "ttl_ms") == 0) {
    if (!dibs__cli_number(value, (uint64_t)DIBS_TTL_MAX_MS, &ttl)) return wrong(in, "ttl_ms is no number");
    lease->ttl_ms = (int64_t)ttl;
  }
  return true;
}

static bool parse_json(struct input *in, struct cli_lease_in *lease) {
  in->at++;
  for (;;) {
    if (!json_member(in, lease)) return false;
    skip_blanks(in);
    if (in->at == in->end) return wrong(in, "the JSON ends too early");
    char c = *in->at++;
    if (c == '}') break;
    if (c != ',') return wrong(in, "the JSON is damaged");
  }
  skip_blanks(in);
  return in->at == in->end || wrong(in, "something follows the JSON");
}

bool dibs__cli_lease_parse(const char *text, size_t length, struct cli_lease_in *lease, char *why, size_t why_size) {
  *lease = (struct cli_lease_in){.ttl_ms = CLI_UNSET};
  struct input in = {text, text + length, why, why_size};
  *why = '\0';
  skip_blanks(&in);
  bool fine = in.at < in.end && *in.at == '{' ? parse_json(&in, lease) : parse_words(&in, lease);
  if (fine && !lease->has_id) return wrong(&in, "there is no id of a lease in it");
  return fine;
}

bool dibs__cli_lease_keep(const char *key, const char *value, struct cli_lease_in *lease, char *why, size_t why_size) {
  struct input in = {NULL, NULL, why, why_size};
  return keep_pair(&in, lease, key, value);
}
