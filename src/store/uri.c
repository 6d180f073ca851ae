/* SPDX-License-Identifier: MIT */
/*
 * Store URIs.  The text is copied once, and the copy is cut into parts from left to right; decoding only makes a part
 * shorter.  A message has the position of the error, and quotes nothing but scheme and keys: if a URI with a password
 * has a mistake, the password must not be written to a log.
 */
#include "store/uri.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { SCHEME_MAX = 32, PORT_MAX = 65535, RESULT_MAX = 200 };

#define HIDDEN "***"

struct parser {
  const char *text, *at, *end;
  char *part, *part_end;   /* the memory of the parts, each with a NUL */
  char *shown, *shown_end; /* what was parsed so far, without passwords */
  struct dibs__uri *uri;
  struct dibs__result *result;
  bool is_member; /* of a tiered store */
};

/* The memory of the parts; the size is for wiping it. */
struct memory {
  size_t size;
  char bytes[];
};

static dibs__status refuse_at(const struct parser *p, const char *at, const char *what) {
  dibs__set_message(p->result, "store URI, character %zu: %s", (size_t)(at - p->text) + 1, what);
  return DIBS_INVALID;
}

static bool is_lower(char c) {
  return c >= 'a' && c <= 'z';
}

static bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

static char to_lower(char c) {
  return c >= 'A' && c <= 'Z' ? (char)(c - 'A' + 'a') : c;
}

static int hex_digit(char c) {
  if (is_digit(c)) return c - '0';
  c = to_lower(c);
  return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* The first of `chars` in [from, to), or `to`. */
static const char *find_char(const char *from, const char *to, const char *chars) {
  while (from < to && !strchr(chars, *from)) from++;
  return from;
}

static void put_char(struct parser *p, char c) {
  assert(p->part < p->part_end);
  *p->part++ = c;
}

static void show_range(struct parser *p, const char *from, const char *to) {
  assert(to >= from && to - from < p->shown_end - p->shown);
  memcpy(p->shown, from, (size_t)(to - from));
  p->shown += to - from;
}

static void show_text(struct parser *p, const char *text) {
  show_range(p, text, text + strlen(text));
}

/* ---- Parts ---- */

static const char *keep_part(struct parser *p, const char *from, const char *to) {
  const char *part = p->part;
  while (from < to) put_char(p, *from++);
  put_char(p, '\0');
  return part;
}

/* *part becomes the decoded text, in the parser's memory. */
static dibs__status decode(struct parser *p, const char *from, const char *to, const char **part) {
  *part = p->part;
  for (; from < to; from++) {
    if (*from != '%') {
      put_char(p, *from);
      continue;
    }
    int high = to - from > 2 ? hex_digit(from[1]) : -1;
    int low = high < 0 ? -1 : hex_digit(from[2]);
    if (low < 0) return refuse_at(p, from, "two hex digits must follow %; write %25 for % itself");
    if (high == 0 && low == 0) return refuse_at(p, from, "%00 can't be part of a store URI");
    put_char(p, (char)(high << 4 | low));
    from += 2;
  }
  put_char(p, '\0');
  return DIBS_OK;
}

/* shim+shim+scheme: */
static dibs__status parse_schemes(struct parser *p) {
  const char *colon = find_char(p->at, p->end, ":/?@");
  if (colon == p->end || *colon != ':')
    return refuse_at(
        p, p->text,
        "it does not begin with a scheme; write sqlite:FILE for a file, FILE.ini#SECTION for a section of settings");
  show_range(p, p->at, colon + 1);
  for (;;) {
    const char *end = find_char(p->at, colon, "+");
    if (end == p->at) return refuse_at(p, p->at, "the name of a driver is missing here");
    if (end - p->at > SCHEME_MAX) return refuse_at(p, p->at, "the name of a driver has at most 32 characters");
    char *name = p->part;
    for (const char *c = p->at; c < end; c++) {
      char lower = to_lower(*c);
      if (!is_lower(lower) && (c == p->at || (!is_digit(lower) && lower != '-')))
        return refuse_at(p, c, "a driver's name is a letter, then letters, digits and -");
      put_char(p, lower);
    }
    put_char(p, '\0');
    if (end == colon) {
      /* NAME+srv: is one scheme: its hosts are SRV records of the DNS. */
      if (p->uri->shim_count > 0 && strcmp(name, "srv") == 0) {
        char *plus = name - 1;
        name = plus - strlen(p->uri->shims[--p->uri->shim_count]);
        *plus = '+';
      }
      p->uri->scheme = name;
      p->at = colon + 1;
      return DIBS_OK;
    }
    if (p->uri->shim_count == DIBS__URI_SHIMS) return refuse_at(p, p->at, "there are more than 4 shims");
    p->uri->shims[p->uri->shim_count++] = name;
    p->at = end + 1;
  }
}

static dibs__status user_and_password(struct parser *p, const char *at_sign) {
  const char *colon = find_char(p->at, at_sign, ":");
  show_range(p, p->at, colon);
  if (colon < at_sign) show_text(p, ":" HIDDEN);
  show_text(p, "@");
  dibs__status status = decode(p, p->at, colon, &p->uri->user);
  if (status == DIBS_OK && colon < at_sign) status = decode(p, colon + 1, at_sign, &p->uri->password);
  p->at = at_sign + 1;
  return status;
}

/* One host[:port] in [from, to). */
static dibs__status check_host(struct parser *p, const char *from, const char *to) {
  const char *end;
  if (from < to && *from == '[') {
    end = find_char(from, to, "]");
    if (end == to) return refuse_at(p, from, "this [ has no ]");
    for (const char *c = from + 1; c < end; c++)
      if (hex_digit(*c) < 0 && *c != ':' && *c != '.') return refuse_at(p, c, "this is not an IPv6 address");
    if (end == from + 1) return refuse_at(p, from, "there is no address between [ and ]");
    end++;
    if (end < to && *end != ':') return refuse_at(p, end, "a colon and a port, or the next host, must follow ]");
  } else {
    end = find_char(from, to, ":");
    if (end == from) return refuse_at(p, from, "a host is missing here");
    for (const char *c = from; c < end; c++) {
      if (strchr(" []\"<>\\^`{}|#", *c)) return refuse_at(p, c, "a host name can't contain this");
      if (*c == '%' && (end - c < 3 || hex_digit(c[1]) < 0 || hex_digit(c[2]) < 0))
        return refuse_at(p, c, "two hex digits must follow %; write %25 for % itself");
    }
  }
  if (end == to) return DIBS_OK;
  long port = 0;
  for (const char *c = end + 1; c < to; c++) {
    if (!is_digit(*c))
      return refuse_at(p, c, "a port is a number; write : in a password as %3A, and end the password with @");
    port = port * 10 + (*c - '0');
    if (port > PORT_MAX) break;
  }
  if (port < 1 || port > PORT_MAX) return refuse_at(p, end + 1, "a port is a number from 1 to 65535");
  return DIBS_OK;
}

/* //[user[:password]@]host[:port][,...] */
static dibs__status parse_authority(struct parser *p) {
  p->at += 2;
  const char *end = find_char(p->at, p->end, "/?");
  /* The last @: an unescaped password may contain others. */
  const char *at_sign = end;
  while (at_sign > p->at && at_sign[-1] != '@') at_sign--;
  show_text(p, "//");
  /* user:pa/ss@host: the text that seems to be a path is half a password. */
  const char *late = find_char(end, p->end, "@");
  if (end > p->at && late < p->end)
    return refuse_at(p, late, "@ can't occur here; write / in a password as %2F, ? as %3F, and @ elsewhere as %40");
  if (at_sign > p->at) {
    dibs__status status = user_and_password(p, at_sign - 1);
    if (status != DIBS_OK) return status;
  }
  p->uri->hosts = keep_part(p, p->at, end);
  show_range(p, p->at, end);
  for (const char *from = p->at; p->at < end; from = p->at + 1) {
    p->at = find_char(from, end, ",");
    dibs__status status = check_host(p, from, p->at);
    if (status != DIBS_OK) return status;
    if (p->at + 1 == end) return refuse_at(p, p->at, "a host is missing after this comma");
  }
  return DIBS_OK;
}

static dibs__status parse_path(struct parser *p, bool after_authority) {
  const char *end = find_char(p->at, p->end, "?");
  if (!after_authority) {
    const char *segment = find_char(p->at, end, "/");
    const char *sign = find_char(p->at, segment, "@");
    if (sign < segment) return refuse_at(p, sign, "write // before a user and a host; in a file name write @ as %40");
  }
  dibs__status status = decode(p, p->at, end, &p->uri->path);
  show_range(p, p->at, end);
  p->at = end;
  return status;
}

/* ---- Parameters ---- */

static bool is_secret(const char *key) {
  return strcasestr(key, "pass") || strcasestr(key, "secret") || strcasestr(key, "token");
}

static bool is_shim(const struct dibs__uri *uri, const char *name, size_t len) {
  for (size_t i = 0; i < uri->shim_count; i++)
    if (strncmp(uri->shims[i], name, len) == 0 && uri->shims[i][len] == '\0') return true;
  return false;
}

/* key=value in [from, to). */
static dibs__status parse_param(struct parser *p, const char *from, const char *to) {
  struct dibs__uri *uri = p->uri;
  const char *equals = find_char(from, to, "=");
  if (from == to) return refuse_at(p, from, "a parameter is missing here");
  if (equals == to) return refuse_at(p, from, "this parameter has no value: write KEY=VALUE");
  if (equals == from) return refuse_at(p, from, "this parameter has no name: write KEY=VALUE");
  for (const char *c = from; c < equals; c++)
    if (!is_lower(to_lower(*c)) && !is_digit(*c) && !strchr("._-", *c))
      return refuse_at(p, c, "a parameter's name is letters, digits, and . _ -");
  if (uri->param_count == DIBS__URI_PARAMS) return refuse_at(p, from, "there are more than 32 parameters");

  struct dibs__uri_param *made = &uri->params[uri->param_count];
  made->key = keep_part(p, from, equals);
  dibs__status status = decode(p, equals + 1, to, &made->value);
  if (status != DIBS_OK) return status;
  if (dibs__uri_param(uri, made->key)) return refuse_at(p, from, "this parameter occurs twice");
  const char *dot = strchr(made->key, '.');
  bool tiers = strncmp(made->key, "tiers.", 6) == 0, of_tiers = p->is_member && tiers;
  if (tiers && !of_tiers) return refuse_at(p, from, "tiers. parameters need several stores, separated by commas");
  if (dot && !of_tiers && !is_shim(uri, made->key, (size_t)(dot - made->key)))
    return refuse_at(
        p, from, "this parameter belongs to a shim that is not in the URI: write SHIM+ at the beginning of the URI");
  uri->param_count++;

  show_range(p, from, equals + 1);
  if (is_secret(made->key))
    show_text(p, HIDDEN);
  else
    show_range(p, equals + 1, to);
  return DIBS_OK;
}

static dibs__status parse_params(struct parser *p) {
  show_range(p, p->at, p->at + 1);
  p->at++;
  while (p->at < p->end) {
    const char *end = find_char(p->at, p->end, "&");
    dibs__status status = parse_param(p, p->at, end);
    if (status != DIBS_OK) return status;
    if (end == p->end) break;
    if (end + 1 == p->end) return refuse_at(p, end, "a parameter is missing after this &");
    show_range(p, end, end + 1);
    p->at = end + 1;
  }
  return DIBS_OK;
}

/* ---- The whole ---- */

static dibs__status parse(struct parser *p) {
  for (const char *c = p->text; c < p->end; c++)
    if ((unsigned char)*c < ' ' || *c == 0x7f) return refuse_at(p, c, "a control character; write it as %xx");
  dibs__status status = parse_schemes(p);
  if (status != DIBS_OK) return status;
  bool has_authority = p->end - p->at >= 2 && p->at[0] == '/' && p->at[1] == '/';
  if (has_authority && (status = parse_authority(p)) != DIBS_OK) return status;
  if (!has_authority) p->uri->hosts = keep_part(p, p->at, p->at);
  status = parse_path(p, has_authority);
  if (status == DIBS_OK && p->at < p->end) status = parse_params(p);
  return status;
}

static dibs__status parse_one(const char *text, size_t len, bool is_member, struct dibs__uri *uri,
                              struct dibs__result *result) {
  *uri = (struct dibs__uri){.scheme = NULL};
  /* Each part needs a NUL in addition to its text, each secret at most HIDDEN. */
  const size_t parts = len + DIBS__URI_SHIMS + 2 * DIBS__URI_PARAMS + 8;
  const size_t shown = len + (DIBS__URI_PARAMS + 1) * sizeof HIDDEN + 8;
  struct memory *memory = calloc(1, sizeof *memory + parts + shown);
  if (!memory) {
    dibs__set_message(result, "out of memory for the store URI");
    return DIBS_NO_MEMORY;
  }
  memory->size = sizeof *memory + parts + shown;
  uri->memory = (char *)memory;
  uri->shown = memory->bytes + parts;
  struct parser p = {.text = text,
                     .at = text,
                     .end = text + len,
                     .part = memory->bytes,
                     .part_end = memory->bytes + parts,
                     .shown = memory->bytes + parts,
                     .shown_end = memory->bytes + parts + shown,
                     .uri = uri,
                     .result = result,
                     .is_member = is_member};
  dibs__status status = parse(&p);
  /* Otherwise a forgotten tier would be a file or a database whose name ends with a comma. */
  if (status == DIBS_OK && text[len - 1] == ',' && !memchr(text, '?', len))
    status = refuse_at(&p, p.end - 1, "no tier follows this comma; in a name, write %2C");
  if (status != DIBS_OK) {
    dibs__uri_free(uri);
    return status;
  }
  *p.shown = '\0';
  uri->as_tier = is_member;
  return DIBS_OK;
}

/* ---- Tiers ---- */

/* A comma begins another URI if the names of drivers and a colon follow it, and then no digit, which would be a port.
 */
const char *dibs__uri_next_member(const char *at, const char *end) {
  for (at = find_char(at, end, ","); at < end; at = find_char(at + 1, end, ",")) {
    const char *c = at + 1;
    while (c < end && (is_lower(to_lower(*c)) || is_digit(*c) || *c == '-' || *c == '+')) c++;
    bool named = c > at + 1 && c < end && *c == ':' && is_lower(to_lower(at[1]));
    if (named && c + 1 < end && !is_digit(c[1])) return at;
  }
  return end;
}

static char *join_shown(const struct dibs__uri *members, size_t count) {
  size_t size = 1;
  for (size_t i = 0; i < count; i++) size += strlen(members[i].shown) + 1;
  char *shown = malloc(size), *to = shown;
  for (size_t i = 0; shown && i < count; i++) {
    size_t len = strlen(members[i].shown);
    if (i > 0) *to++ = ',';
    memcpy(to, members[i].shown, len);
    to += len;
  }
  if (shown) *to = '\0';
  return shown;
}

static dibs__status parse_members(const char *text, const char *end, struct dibs__uri *uri,
                                  struct dibs__result *result) {
  *uri = (struct dibs__uri){.scheme = "tiers", .hosts = "", .path = ""};
  uri->members = calloc(DIBS__URI_TIERS, sizeof *uri->members);
  if (!uri->members) return DIBS_NO_MEMORY;
  for (const char *at = text; at <= end;) {
    const char *comma = dibs__uri_next_member(at, end);
    if (uri->member_count == DIBS__URI_TIERS) {
      dibs__set_message(result, "a store has at most %d tiers", DIBS__URI_TIERS);
      return DIBS_INVALID;
    }
    char *one = strndup(at, (size_t)(comma - at));
    dibs__status status =
        one ? parse_one(one, (size_t)(comma - at), true, &uri->members[uri->member_count], result) : DIBS_NO_MEMORY;
    if (one) explicit_bzero(one, (size_t)(comma - at));
    free(one);
    if (status != DIBS_OK) {
      char words[sizeof result->text];
      memcpy(words, result->text, sizeof words);
      dibs__set_message(result, "tier %zu: %.240s", uri->member_count + 1, words);
      return status;
    }
    uri->member_count++;
    at = comma + 1;
  }
  uri->joined = join_shown(uri->members, uri->member_count);
  uri->shown = uri->joined;
  return uri->joined ? DIBS_OK : DIBS_NO_MEMORY;
}

dibs__status dibs__uri_parse(const char *text, struct dibs__uri *uri, struct dibs__result *result) {
  *uri = (struct dibs__uri){.scheme = NULL};
  size_t len = strnlen(text, DIBS__URI_MAX + 1);
  if (len == 0) {
    dibs__set_message(result, "the store URI is empty; for a file write sqlite:FILE");
    return DIBS_INVALID;
  }
  if (len > DIBS__URI_MAX) {
    dibs__set_message(result, "the store URI is longer than %d bytes", DIBS__URI_MAX);
    return DIBS_INVALID;
  }
  if (dibs__uri_next_member(text, text + len) == text + len) return parse_one(text, len, false, uri, result);
  dibs__status status = parse_members(text, text + len, uri, result);
  if (status != DIBS_OK) dibs__uri_free(uri);
  return status;
}

/* ---- Copies ---- */

/* The same text in the copy; a text outside the URI's memory is a constant. */
static const char *moved_text(const char *text, const struct memory *from, struct memory *to) {
  bool inside = text && text >= from->bytes && text < (const char *)from + from->size;
  return inside ? (const char *)to + (text - (const char *)from) : text;
}

static dibs__status copy_one(const struct dibs__uri *from, struct dibs__uri *to) {
  const struct memory *old = (const struct memory *)(const void *)from->memory;
  *to = *from;
  to->members = NULL;
  to->member_count = 0;
  to->joined = to->memory = NULL;
  if (!old) return DIBS_OK;
  struct memory *memory = malloc(old->size);
  if (!memory) return DIBS_NO_MEMORY;
  memcpy(memory, old, old->size);
  to->memory = (char *)memory;
  const char **texts[] = {&to->scheme, &to->user, &to->password, &to->hosts, &to->path, &to->shown};
  for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) *texts[i] = moved_text(*texts[i], old, memory);
  for (size_t i = 0; i < to->shim_count; i++) to->shims[i] = moved_text(to->shims[i], old, memory);
  for (size_t i = 0; i < to->param_count; i++) {
    to->params[i].key = moved_text(to->params[i].key, old, memory);
    to->params[i].value = moved_text(to->params[i].value, old, memory);
  }
  return DIBS_OK;
}

DIBS__MODULE_API dibs__status dibs__uri_copy(const struct dibs__uri *from, struct dibs__uri *to) {
  dibs__status status = copy_one(from, to);
  if (status != DIBS_OK || !from->member_count) return status;
  to->members = calloc(DIBS__URI_TIERS, sizeof *to->members);
  to->joined = strdup(from->joined);
  to->shown = to->joined;
  if (!to->members || !to->joined) status = DIBS_NO_MEMORY;
  for (size_t i = 0; i < from->member_count && status == DIBS_OK; i++) {
    status = copy_one(&from->members[i], &to->members[i]);
    if (status == DIBS_OK) to->member_count++;
  }
  if (status != DIBS_OK) dibs__uri_free(to);
  return status;
}

DIBS__MODULE_API void dibs__uri_free(struct dibs__uri *uri) {
  if (!uri) return;
  for (size_t i = 0; i < uri->member_count; i++) dibs__uri_free(&uri->members[i]);
  free(uri->members);
  free(uri->joined);
  if (uri->memory) {
    struct memory *memory = (struct memory *)(void *)uri->memory;
    explicit_bzero(memory, memory->size);
    free(memory);
  }
  *uri = (struct dibs__uri){.scheme = NULL};
}

DIBS__MODULE_API const char *dibs__uri_param(const struct dibs__uri *uri, const char *key) {
  for (size_t i = 0; i < uri->param_count; i++)
    if (strcmp(uri->params[i].key, key) == 0) return uri->params[i].value;
  return NULL;
}

DIBS__MODULE_API dibs__status dibs__uri_number(const struct dibs__uri *uri, const char *key, int64_t min, int64_t max,
                                               int64_t otherwise, int64_t *out, struct dibs__result *result) {
  *out = otherwise;
  const char *value = dibs__uri_param(uri, key);
  if (!value) return DIBS_OK;
  char *end;
  errno = 0;
  long long number = strtoll(value, &end, 10);
  /* strtoll accepts leading blanks and a plus; we do not. */
  bool fine = (is_digit(*value) || (*value == '-' && is_digit(value[1]))) && *end == '\0' && errno == 0;
  if (!fine || number < min || number > max) {
    dibs__set_message(result, "%s of the store URI is not a number from %" PRId64 " to %" PRId64, key, min, max);
    return DIBS_INVALID;
  }
  *out = number;
  return DIBS_OK;
}

static bool is_known(const char *key, const char *const known[]) {
  for (; *known; known++)
    if (strcmp(*known, key) == 0) return true;
  return false;
}

DIBS__MODULE_API dibs__status dibs__uri_only(const struct dibs__uri *uri, const char *shim, const char *const known[],
                                             struct dibs__result *result) {
  for (size_t i = 0; i < uri->param_count; i++) {
    const char *key = uri->params[i].key;
    const char *dot = strchr(key, '.');
    size_t len = dot ? (size_t)(dot - key) : 0;
    bool ours = shim ? dot && strlen(shim) == len && strncmp(shim, key, len) == 0 : !dot;
    if (!ours || is_known(key, known)) continue;

    char list[RESULT_MAX] = "";
    size_t used = 0;
    for (const char *const *k = known; *k; k++) {
      size_t more = strlen(*k);
      if (used + more + 3 > sizeof list) break;
      if (used) list[used++] = ',', list[used++] = ' ';
      memcpy(list + used, *k, more + 1);
      used += more;
    }
    const char *owner = shim ? shim : uri->scheme;
    if (used)
      dibs__set_message(result, "%s has no parameter %.64s; it has %s", owner, key, list);
    else
      dibs__set_message(result, "%s has no parameters, and %.64s was given", owner, key);
    return DIBS_INVALID;
  }
  return DIBS_OK;
}
