/* SPDX-License-Identifier: MIT */
/*
 * Tokens.  The file has a line for each: its label, its scope, the prefix of the names that it may use, and the SHA-256
 * of its secret.  The secret is random and long, so its hash needs no salt, and nobody can guess it from the time that
 * a comparison takes; hashes are compared in constant time nevertheless.
 *
 * Only the loop changes what is here, but threads of the pool read labels.
 */
#include "serve/auth.h"
#include "base/sha256.h"
#include "base/text.h"
#include "handle/handle.h"
#include "serve/server.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

enum { FILE_MAX = 1 << 20, WORDS = 4, HASH_DIGITS = 64, SECRET_BYTES = 32 };

struct token {
  char label[TOKEN_LABEL_MAX + 1], prefix[DIBS_NAME_MAX + 1], hash[HASH_DIGITS + 1];
  enum scope scope;
  struct rate rate;
};

struct tokens {
  uint64_t uses; /* the server's, and one of each request */
  size_t count;
  struct token token[];
};

static const char *const scope_words[SCOPE_COUNT] = {
    [SCOPE_NONE] = "none", [SCOPE_READ] = "read", [SCOPE_USE] = "use", [SCOPE_ADMIN] = "admin"};

const char *dibs__scope_word(enum scope scope) {
  return scope_words[scope];
}

bool dibs__scope_read(const char *word, enum scope *scope) {
  for (enum scope s = SCOPE_READ; s <= SCOPE_ADMIN; s++) {
    if (strcmp(word, scope_words[s]) != 0) continue;
    *scope = s;
    return true;
  }
  return false;
}

static void hash_secret(const char *secret, size_t length, char hex[HASH_DIGITS + 1]) {
  struct dibs__sha256 hash;
  dibs__sha256_begin(&hash);
  dibs__sha256_add(&hash, secret, length);
  dibs__sha256_end(&hash, hex);
}

/* ---- The file ---- */

/* malloc'd, with a NUL at its end; NULL and errno: EFBIG if it is too large. */
static char *load_file(const char *path, struct stat *st, size_t *length) {
  int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY);
  char *text = NULL;
  ssize_t got = 0;
  *length = 0;
  if (fd < 0) return NULL;
  if (fstat(fd, st) == 0 && (text = calloc(1, FILE_MAX + 2)))
    while (*length <= FILE_MAX && (got = read(fd, text + *length, FILE_MAX + 1 - *length)) > 0) *length += (size_t)got;
  int failure = !text || got < 0 ? errno : *length > FILE_MAX ? EFBIG : 0;
  close(fd);
  if (failure == 0) return text;
  free(text);
  errno = failure;
  return NULL;
}

/* Cuts the line into words between blanks.  How many there are; WORDS + 1: more than WORDS. */
static size_t cut_words(char *line, char *words[WORDS + 1]) {
  size_t count = 0;
  for (char *word; count <= WORDS && (word = strsep(&line, " \t"));)
    if (*word) words[count++] = word;
  return count;
}

static bool is_hash(const char *text) {
  return strlen(text) == HASH_DIGITS && strspn(text, "0123456789abcdef") == HASH_DIGITS;
}

/* The label goes into the log, and the prefix is compared with names: both have the form of a name. */
static bool is_name(const char *text, size_t max) {
  return dibs__name_check(text, strlen(text), max, NULL) == DIBS__NAME_OK;
}

static bool is_label(const char *text) {
  return is_name(text, TOKEN_LABEL_MAX) && !strpbrk(text, " #");
}

/* "LABEL SCOPE PREFIX sha256:HASH"; the prefix * is that of all names.  NULL, or what is wrong. */
static const char *read_token(char *line, struct token *token) {
  char *words[WORDS + 1], nothing[HASH_DIGITS + 1];
  static const char kind[] = "sha256:";
  if (cut_words(line, words) != WORDS) return "write LABEL SCOPE PREFIX sha256:HASH";
  if (!is_label(words[0])) return "the label has more than 63 bytes, or is not UTF-8";
  if (!dibs__scope_read(words[1], &token->scope)) return "the scope is read, use or admin";
  if (strncmp(words[3], kind, sizeof kind - 1) != 0 || !is_hash(words[3] + sizeof kind - 1))
    return "the hash is sha256: and 64 lower-case hexadecimal digits";
  if (strcmp(words[2], "*") == 0)
    *words[2] = '\0';
  else if (!dibs__percent_decode(words[2]) || !is_name(words[2], DIBS_NAME_MAX))
    return "the prefix has more than 255 bytes, or is not UTF-8, or has a % that two hexadecimal digits do not follow";
  hash_secret("", 0, nothing);
  if (strcmp(words[3] + sizeof kind - 1, nothing) == 0) return "this is the hash of an empty token";
  memcpy(token->label, words[0], strlen(words[0]) + 1);
  memcpy(token->prefix, words[2], strlen(words[2]) + 1);
  memcpy(token->hash, words[3] + sizeof kind - 1, sizeof token->hash);
  return NULL;
}

static dibs_status read_lines(const char *path, char *text, struct tokens *tokens, dibs_error *error) {
  char *rest = text;
  for (unsigned nr = 1; rest; nr++) {
    char *line = strsep(&rest, "\n");
    line += strspn(line, " \t\r");
    line[strcspn(line, "\r")] = '\0';
    if (*line == '\0' || *line == '#') continue;
    const char *reason = read_token(line, &tokens->token[tokens->count]);
    if (reason) return dibs__fail(error, DIBS_INVALID, "%s, line %u: %s", path, nr, reason);
    tokens->count++;
  }
  if (tokens->count > 0) return DIBS_OK;
  return dibs__fail(error, DIBS_INVALID, "%s has no token: nobody could use the daemon", path);
}

static size_t count_lines(const char *text) {
  size_t lines = 1;
  for (; *text; text++) lines += *text == '\n';
  return lines;
}

dibs_status dibs__tokens_read(const char *path, struct tokens **out, dibs_error *error) {
  struct stat st;
  size_t length;
  dibs_status status = DIBS_OK;
  struct tokens *tokens = NULL;
  char *text = load_file(path, &st, &length);
  *out = NULL;
  if (!text) return dibs__fail(error, DIBS_INVALID, "cannot read the tokens in %s: %s", path, strerror(errno));
  if (strlen(text) != length)
    status = dibs__fail(error, DIBS_INVALID, "%s has a NUL: it is not a file of tokens", path);
  else if (st.st_mode & (S_IWGRP | S_IWOTH))
    status = dibs__fail(error, DIBS_DENIED, "other users may write %s: chmod go-w %s", path, path);
  else if (!(tokens = calloc(1, sizeof *tokens + count_lines(text) * sizeof tokens->token[0])))
    status = dibs__fail(error, DIBS_NO_MEMORY, "out of memory for the tokens in %s", path);
  else
    status = read_lines(path, text, tokens, error);
  free(text);
  if (status != DIBS_OK) {
    free(tokens);
    return status;
  }
  tokens->uses = 1;
  *out = tokens;
  return DIBS_OK;
}

void dibs__tokens_free(struct tokens *tokens) {
  if (tokens && --tokens->uses == 0) free(tokens);
}

void dibs__tokens_reload(struct server *server) {
  struct tokens *tokens;
  dibs_error error = {0};
  if (!server->config.tokens) return;
  if (dibs__tokens_read(server->config.tokens, &tokens, &error) != DIBS_OK) {
    server->config.note("the tokens stay as they were: %s", error.text);
    return;
  }
  dibs__tokens_free(server->tokens);
  server->tokens = tokens;
  server->config.note("read %zu tokens from %s", tokens->count, server->config.tokens);
}

/* ---- Requests ---- */

static bool same_hash(const char *a, const char *b) {
  unsigned differs = 0;
  for (size_t i = 0; i < HASH_DIGITS; i++) differs |= (unsigned)(unsigned char)(a[i] ^ b[i]);
  return differs == 0;
}

static struct token *find_token(struct tokens *tokens, const char *secret, size_t length) {
  char hex[HASH_DIGITS + 1];
  struct token *found = NULL;
  hash_secret(secret, length, hex);
  for (size_t i = 0; i < tokens->count; i++)
    if (same_hash(tokens->token[i].hash, hex)) found = &tokens->token[i];
  return found;
}

struct credentials {
  size_t count;
  const char *value;
  size_t length;
};

static enum MHD_Result see_header(void *arg, enum MHD_ValueKind kind, const char *name, size_t name_size,
                                  const char *value, size_t size) {
  struct credentials *seen = arg;
  (void)kind;
  if (name_size != strlen(MHD_HTTP_HEADER_AUTHORIZATION) || strcasecmp(name, MHD_HTTP_HEADER_AUTHORIZATION) != 0)
    return MHD_YES;
  seen->count++;
  seen->value = value ? value : "";
  seen->length = value ? size : 0;
  return MHD_YES;
}

static bool refuse_token(struct request *r, const char *error, const char *why) {
  dibs__answer_refuse(r, 401, "no-token", "%s; send the header Authorization: Bearer TOKEN", why);
  dibs__answer_header(r, MHD_HTTP_HEADER_WWW_AUTHENTICATE, "Bearer realm=\"dibs\"%s", error);
  return false;
}

/* Proxies and servers differ in which of two headers they read, so two are refused. */
static bool identify(struct request *r) {
  static const char scheme[] = "Bearer ", invalid[] = ", error=\"invalid_token\"";
  struct credentials seen = {0};
  MHD_get_connection_values_n(r->connection, MHD_HEADER_KIND, see_header, &seen);
  if (seen.count == 0) return refuse_token(r, "", "this request needs a token");
  if (seen.count > 1) return refuse_token(r, ", error=\"invalid_request\"", "the request has several tokens");
  if (seen.length < sizeof scheme || strncasecmp(seen.value, scheme, sizeof scheme - 1) != 0)
    return refuse_token(r, invalid, "this is not a bearer token");
  const char *secret = seen.value + sizeof scheme - 1;
  r->token = find_token(r->server->tokens, secret, seen.length - (sizeof scheme - 1));
  if (!r->token) return refuse_token(r, invalid, "the daemon does not know this token");
  r->tokens = r->server->tokens;
  r->tokens->uses++;
  return true;
}

bool dibs__auth_covers(const struct request *r, const char *name) {
  return !r->token || strncmp(name, r->token->prefix, strlen(r->token->prefix)) == 0;
}

static bool takes_prefix(const struct route *route) {
  for (const struct field *f = route->fields; f && f->name; f++)
    if (f->place == FIELD_QUERY && strcmp(f->name, "prefix") == 0) return true;
  return false;
}

/* Is the first parameter of the path a name?  Other parameters, as the number of a task, are not compared. */
static bool has_name(const struct route *route) {
  static const char *const words[] = {"{name}", "{key}", "{kind}", "{topic}"};
  const char *open = strchr(route->path, '{');
  for (size_t i = 0; open && i < sizeof words / sizeof *words; i++)
    if (strncmp(open, words[i], strlen(words[i])) == 0) return true;
  return false;
}

/* The key of the request, if it is a header and not in the path; NULL: it is not. */
static const char *key_of(const struct request *r) {
  for (const struct field *f = r->route->fields; f && f->name; f++)
    if (f->place == FIELD_HEADER && f->needed && strcmp(f->name, "Idempotency-Key") == 0)
      return MHD_lookup_connection_value(r->connection, MHD_HEADER_KIND, f->name);
  return NULL;
}

struct listing {
  const struct request *r;
  size_t count, covered;
};

static enum MHD_Result see_prefix(void *arg, enum MHD_ValueKind kind, const char *name, size_t name_size,
                                  const char *value, size_t size) {
  struct listing *listing = arg;
  (void)kind, (void)name_size, (void)size;
  if (strcmp(name, "prefix") != 0) return MHD_YES;
  listing->count++;
  listing->covered += value && dibs__auth_covers(listing->r, value);
  return MHD_YES;
}

static bool lists_only_covered(const struct request *r) {
  struct listing listing = {.r = r};
  if (!takes_prefix(r->route)) return false;
  MHD_get_connection_values_n(r->connection, MHD_GET_ARGUMENT_KIND, see_prefix, &listing);
  return listing.count > 0 && listing.covered == listing.count;
}

static bool names_are_covered(const struct request *r) {
  if (*r->token->prefix == '\0') return true;
  const char *name = has_name(r->route) ? r->param[0] : key_of(r);
  return name ? dibs__auth_covers(r, name) : lists_only_covered(r);
}

/* The next step depends on whether the request has a name, is for a list, or is for the whole store. */
static void refuse_names(struct request *r) {
  const struct token *token = r->token;
  const char *next = has_name(r->route) || key_of(r) ? "use such a name, or a token without a prefix"
                     : takes_prefix(r->route) ? "add ?prefix= with this or a longer prefix, or use a token without one"
                                              : "this request is for all names: it needs a token without a prefix";
  dibs__answer_refuse(r, 403, "prefix", "the token \"%s\" is for names that begin with \"%s\"; %s", token->label,
                      token->prefix, next);
}

bool dibs__auth_admits(struct request *r) {
  if (!r->server->tokens || r->route->scope == SCOPE_NONE) return true;
  if (!identify(r)) return false;
  const struct token *token = r->token;
  if (token->scope < r->route->scope) {
    dibs__answer_refuse(r, 403, "scope", "the token \"%s\" has the scope %s, and this request needs %s", token->label,
                        scope_words[token->scope], scope_words[r->route->scope]);
    return false;
  }
  if (names_are_covered(r)) return true;
  refuse_names(r);
  return false;
}

const char *dibs__auth_prefix(const struct request *r) {
  return r->token ? r->token->prefix : "";
}

bool dibs__auth_still_admits(struct request *r) {
  struct tokens *tokens = r->server->tokens;
  if (!r->token || r->tokens == tokens) return true;
  const struct token *old = r->token;
  for (size_t i = 0; i < tokens->count; i++) {
    struct token *token = &tokens->token[i];
    if (strcmp(token->hash, old->hash) != 0 || token->scope < old->scope || strcmp(token->prefix, old->prefix) != 0)
      continue;
    if (r->in_pool) return true; /* its thread may read the old one */
    dibs__tokens_free(r->tokens);
    tokens->uses++;
    r->tokens = tokens;
    r->token = token;
    return true;
  }
  return false;
}

void dibs__auth_refuse_revoked(struct request *r) {
  (void)refuse_token(r, ", error=\"invalid_token\"", "the token was removed or changed while the request waited");
}

/* Up to one second's requests may come at once. */
bool dibs__rate_admits(struct request *r) {
  uint32_t most = r->server->config.rate;
  struct rate *rate = r->token ? &r->token->rate : &r->server->rate;
  if (most == 0 || r->route->scope == SCOPE_NONE) return true;
  dibs__tick now = dibs__tick_now(), soon = dibs__tick_add_ms(now, 1000);
  if (dibs__tick_before(rate->next, now)) rate->next = now;
  if (dibs__tick_before(rate->next, soon)) {
    rate->next.ns += DIBS__NS_PER_MS * 1000 / most;
    return true;
  }
  dibs__answer_refuse(r, 429, "rate", "this daemon takes %u requests a second %s (--rate)", most,
                      r->token ? "with one token" : "of all clients together");
  return false;
}

bool dibs__auth_has(const struct request *r, enum scope scope) {
  return !r->token || r->token->scope >= scope;
}

enum scope dibs__auth_key_scope(const char *key, size_t length) {
  static const char *const own[] = {"crontab:", "crontabs", "gate:", "gate.", "gate-hash", "\001"};
  for (size_t i = 0; i < sizeof own / sizeof *own; i++) {
    size_t prefix = strlen(own[i]);
    if (length >= prefix && memcmp(key, own[i], prefix) == 0) return SCOPE_ADMIN;
  }
  return SCOPE_USE;
}

const char *dibs__auth_label(const struct request *r) {
  return r->token ? r->token->label : "";
}

const char *dibs__auth_owner(const struct request *r, const char *given) {
  return given ? given : r->token ? r->token->label : NULL;
}

bool dibs__auth_author(const struct request *r, const char *given, size_t length, char to[DIBS_OWNER_MAX + 1]) {
  const char *label = dibs__auth_label(r), *between = *label && given ? ": " : "";
  size_t head = strlen(label) + strlen(between);
  to[0] = '\0';
  if (!*label && !given) return false;
  if (!given) length = 0;
  if (length > DIBS_OWNER_MAX - head) length = dibs__utf8_cut(given, DIBS_OWNER_MAX - head);
  snprintf(to, DIBS_OWNER_MAX + 1, "%s%s%.*s", label, between, (int)length, given ? given : "");
  return true;
}

void dibs__auth_end(struct request *r) {
  r->token = NULL;
  dibs__tokens_free(r->tokens);
  r->tokens = NULL;
}

/* ---- New tokens ---- */

/* As it is in the file: no blank, no %, and * is all names. */
static void write_prefix(struct dibs__text *text, const char *prefix) {
  if (*prefix == '\0') dibs__text_adds(text, "*");
  for (const char *p = prefix; *p; p++)
    if (strchr(" %#*", *p))
      dibs__text_addf(text, "%%%02X", (unsigned)(unsigned char)*p);
    else
      dibs__text_add(text, p, 1);
}

dibs_status dibs__token_make(const char *label, enum scope scope, const char *prefix, struct new_token *made,
                             dibs_error *error) {
  uint8_t random[SECRET_BYTES];
  char hash[HASH_DIGITS + 1];
  struct dibs__text secret, line;
  *made = (struct new_token){0};
  if (!is_label(label))
    return dibs__fail(error, DIBS_INVALID, "a label has 1 to %d bytes of UTF-8, without blanks and #", TOKEN_LABEL_MAX);
  if (*prefix && !is_name(prefix, DIBS_NAME_MAX))
    return dibs__fail(error, DIBS_INVALID, "a prefix has at most %d bytes of UTF-8, without control characters",
                      DIBS_NAME_MAX);
  dibs__random(random, sizeof random);
  dibs__text_begin(&secret, made->secret, sizeof made->secret);
  dibs__text_adds(&secret, "dibs_");
  for (size_t i = 0; i < sizeof random; i++) dibs__text_addf(&secret, "%02x", random[i]);
  hash_secret(made->secret, secret.len, hash);
  dibs__text_begin(&line, made->line, sizeof made->line);
  dibs__text_addf(&line, "%s %s ", label, scope_words[scope]);
  write_prefix(&line, prefix);
  dibs__text_addf(&line, " sha256:%s", hash);
  return DIBS_OK;
}
