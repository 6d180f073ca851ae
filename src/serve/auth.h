/* SPDX-License-Identifier: MIT */
#ifndef DIBS_SERVE_AUTH_H
#define DIBS_SERVE_AUTH_H
/*
 * Tokens: who may send which requests.  A request may use a route if its token has the route's scope, and if the name
 * in the path, its parameter {name}, {key}, {kind} or {topic}, begins with the token's prefix; of a route that needs an
 * Idempotency-Key that is the name.  A route without such a parameter needs a token without a prefix, or `?prefix=`
 * that begins with the token's.
 */
#include "base/port.h"
#include "dibs.h"

#include <stdbool.h>
#include <stddef.h>

struct server;
struct request;

enum scope { SCOPE_NONE, SCOPE_READ, SCOPE_USE, SCOPE_ADMIN, SCOPE_COUNT };

enum { TOKEN_LABEL_MAX = 63 };

/* How often requests come. */
struct rate {
  dibs__tick next; /* when they would come at their rate, if each came as soon as it may */
};

struct token;
struct tokens; /* of one reading of the file; requests share them */

dibs_status dibs__tokens_read(const char *path, struct tokens **tokens, dibs_error *error);
void dibs__tokens_free(struct tokens *tokens); /* when the last request that uses them has ended */
/* Reads the file again; after a failure the server keeps the tokens that it has. */
void dibs__tokens_reload(struct server *server);

/* Does its client have the right to send this request?  false: it was answered 401 or 403. */
bool dibs__auth_admits(struct request *r);
/* After the tokens were read again: may its client still send this request?  Then it has the new token from now on. */
bool dibs__auth_still_admits(struct request *r);
/* Answers a request that it does not admit any more. */
void dibs__auth_refuse_revoked(struct request *r);
/* Does its client stay within --rate?  false: it was answered 429. */
bool dibs__rate_admits(struct request *r);
/* Has its token this scope, whatever the route needs? */
bool dibs__auth_has(const struct request *r, enum scope scope);
/* What it takes to write the record with this key.  dibs keeps what people decide in records, too: the stored crontabs,
 * which nodes run, the highest fences of gates, and the tiers.  Writing these needs admin. */
enum scope dibs__auth_key_scope(const char *key, size_t length);
/* The label of its token; "": the server has no tokens, or the route needs none. */
const char *dibs__auth_label(const struct request *r);
/* The names of its token begin with it; "": any name. */
const char *dibs__auth_prefix(const struct request *r);
/* The owner of what the request takes, for people: `given`, or else the label of its token; NULL: as the store says. */
const char *dibs__auth_owner(const struct request *r, const char *given);
/* The author of an action, in `to` with its NUL: the label of the token, followed by what the client gave as its author
 * (NULL: nothing), so that no client acts in the name of another.  Without tokens what the client gave.  false:
 * neither.
 */
bool dibs__auth_author(const struct request *r, const char *given, size_t length, char to[DIBS_OWNER_MAX + 1]);
/* Is this name among those that its token may use?  For handlers that read names from elsewhere than the path. */
bool dibs__auth_covers(const struct request *r, const char *name);
void dibs__auth_end(struct request *r);

const char *dibs__scope_word(enum scope scope);
/* false: no scope has this word. */
bool dibs__scope_read(const char *word, enum scope *scope);

/* A new token and its line for the file, for people. */
struct new_token {
  char secret[72];
  char line[TOKEN_LABEL_MAX + 3 * DIBS_NAME_MAX + 128];
};
/* INVALID: the label or the prefix is not allowed. */
dibs_status dibs__token_make(const char *label, enum scope scope, const char *prefix, struct new_token *made,
                             dibs_error *error);

#endif
