/* SPDX-License-Identifier: MIT */
/*
 * Which lease unlock, renew and record speak of.  The id is a secret: it comes from the environment or from standard
 * input, in one of three forms, and never from arguments.
 *
 *   DIBS_NAME='job'\nDIBS_LEASE=0123...\nDIBS_FENCE=42\n   as lock prints it; other lines are passed over
 *   {"name":"job","lease":"0123...","fence":42}            as lock --json prints it
 *   0123... 42                                             id and fence
 */
#include "base/text.h"
#include "cli/cli.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

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

static bool keep(struct input *in, struct cli_lease_in *lease, const char *key, const char *value) {
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
      fine = keep(in, lease, word, equals + 1);
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

/* ---- A call's lease ---- */

static int read_stdin(const struct cli_globals *g, struct cli_lease_in *lease) {
  char text[CLI_LEASE_IN_MAX], why[160];
  size_t n = 0;
  for (;;) {
    ssize_t got = read(STDIN_FILENO, text + n, sizeof text - n);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return dibs__cli_fail(g, CLI_FAILED, "", "standard input can't be read: %s", strerror(errno));
    if (got == 0) break;
    n += (size_t)got;
    if (n == sizeof text)
      return dibs__cli_fail(g, CLI_USAGE, "INVALID", "standard input is too long for a lease as dibs lock prints it");
  }
  if (dibs__cli_lease_parse(text, n, lease, why, sizeof why)) return CLI_DONE;
  return dibs__cli_fail(g, CLI_USAGE, "INVALID", "standard input is no lease as dibs lock prints it: %s", why);
}

static int from_environment(const struct cli_globals *g, bool want_id, struct cli_lease_in *lease) {
  static const char *const keys[] = {"DIBS_LEASE", "DIBS_FENCE", "DIBS_TTL", "DIBS_NAME"};
  char why[160] = "";
  struct input in = {NULL, NULL, why, sizeof why};
  for (size_t i = want_id ? 0 : 3; i < sizeof keys / sizeof *keys; i++) {
    const char *value = getenv(keys[i]);
    if (i == 3 && lease->name[0] != '\0') continue;
    if (value != NULL && *value != '\0' && !keep(&in, lease, keys[i], value))
      return dibs__cli_fail(g, CLI_USAGE, "INVALID", "%s in the environment: %s", keys[i], why);
  }
  return CLI_DONE;
}

int dibs__cli_lease_in(const struct cli_call *call, int first_pos, struct cli_lease_in *lease) {
  const struct cli_globals *g = &call->v.globals;
  const char *name = NULL;
  bool from_stdin = false;
  *lease = (struct cli_lease_in){.ttl_ms = CLI_UNSET};
  for (int i = first_pos; i < call->npos; i++) {
    const char *word = call->pos[i];
    if (strcmp(word, "-") == 0)
      from_stdin = true;
    else if (dibs__cli_is_id(word) || name != NULL)
      return dibs__cli_fail(g, CLI_USAGE, "INVALID",
                            "an id never stands among the arguments, which ps shows to everybody: hand it over as "
                            "DIBS_LEASE in the environment, or on standard input with '-'");
    else
      name = word;
  }
  int code = from_stdin ? read_stdin(g, lease) : CLI_DONE;
  if (code == CLI_DONE && name != NULL && strlen(name) <= DIBS_NAME_MAX)
    memcpy(lease->name, name, strlen(name) + 1);
  else if (code == CLI_DONE && name != NULL)
    code = dibs__cli_fail(g, CLI_USAGE, "INVALID", "the name is longer than %d bytes", DIBS_NAME_MAX);
  if (code == CLI_DONE) code = from_environment(g, !from_stdin, lease);
  if (code != CLI_DONE) return code;
  if (!lease->has_id)
    return dibs__cli_fail(
        g, CLI_USAGE, "INVALID",
        "which lease? put its id into DIBS_LEASE (eval \"$(dibs lock NAME)\" does), or pipe what dibs "
        "lock printed to dibs %s -",
        g->command);
  if (!lease->has_fence)
    return dibs__cli_fail(g, CLI_USAGE, "INVALID", "the fence is missing: dibs lock prints it as DIBS_FENCE");
  if (lease->name[0] == '\0')
    return dibs__cli_fail(g, CLI_USAGE, "INVALID", "which name? give it as an argument or as DIBS_NAME");
  return CLI_DONE;
}

int dibs__cli_lease_adopt(const struct cli_call *call, dibs_store *store, const struct cli_lease_in *in,
                          dibs_lease **lease) {
  const struct cli_globals *g = &call->v.globals;
  dibs_lease_options options = {.size = sizeof options, .owner = g->owner, .flags = DIBS_NO_RENEW};
  options.ttl_ms = call->v.ttl_ms != CLI_UNSET ? call->v.ttl_ms : in->ttl_ms != CLI_UNSET ? in->ttl_ms : 0;
  /* Only exclusive leases have a fence; of the others the id alone tells them apart. */
  if (in->fence == 0) options.mode = DIBS_SHARED;
  dibs_error error = {0};
  dibs_status status = dibs_lease_adopt(store, in->name, in->id, in->fence, &options, lease, &error);
  if (status == DIBS_OK) return CLI_DONE;
  return dibs__cli_fail_status(g, status, &error, "this can't be a lease");
}
