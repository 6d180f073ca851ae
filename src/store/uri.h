/* SPDX-License-Identifier: MIT */
#ifndef DIBS_STORE_URI_H
#define DIBS_STORE_URI_H
/*
 * Store URIs:  [shim+]...scheme:[//[user[:password]@]host[:port][,host[:port]]...][/path][?key=value[&key=value]...]
 *
 *   sqlite:///abs/path  sqlite:rel/path  memory:  memory:name  trace+sqlite:///x?trace.file=/tmp/t
 *
 * Several with commas between are tiers of one store (tier/tiers.h), the first preferred, the last the anchor:
 *
 *   redis://cache,mysql://db/app     a comma, a scheme, a colon, and no digit behind it begin the next one
 *
 * Parameters of the whole stand in the last one, as tiers.KEY=VALUE.
 *
 * %xx is decoded in user, password, path and values.  The text of an error never shows a password.
 */
#include "store/store.h"

enum { DIBS__URI_MAX = 4096, DIBS__URI_SHIMS = 4, DIBS__URI_PARAMS = 32, DIBS__URI_TIERS = 4 };

struct dibs__uri_param {
  const char *key, *value; /* decoded */
};

struct dibs__uri {
  const char *scheme;                 /* innermost: "sqlite" */
  const char *shims[DIBS__URI_SHIMS]; /* outermost first */
  size_t shim_count;
  const char *user, *password; /* NULL when absent */
  const char *hosts;           /* "h1:1,h2:2", as written; "" when absent */
  const char *path;            /* decoded; "sqlite:///a" -> "/a", "sqlite:a" -> "a"; "" when absent */
  struct dibs__uri_param params[DIBS__URI_PARAMS];
  size_t param_count;
  const char *shown; /* the whole without password */
  char *memory;      /* all of the above lives here */
  /* Of tiers: scheme is "tiers", the members are whole URIs of their own, and params are those of the whole. */
  struct dibs__uri *members;
  size_t member_count;
  char *joined; /* what `shown` is then */
  /* Set by who opens. */
  const char *owner;       /* "user@host:pid"; NULL */
  const char *module_path; /* where drivers of members are looked for */
  bool as_tier; /* the store is opened as a tier: what it serves is served under an anchor's mandates (R35) */
};

/* INVALID (said tells what and where), NO_MEMORY.  On OK the uri is for dibs__uri_free. */
dibs__status dibs__uri_parse(const char *text, struct dibs__uri *uri, struct dibs__said *said);
void dibs__uri_free(struct dibs__uri *uri);
/* For who needs it longer than the call that it was given for; module_path stays the same text.  OK, NO_MEMORY. */
dibs__status dibs__uri_copy(const struct dibs__uri *from, struct dibs__uri *to);
/* The comma behind which another member begins, or `end`. */
const char *dibs__uri_next_member(const char *at, const char *end);
/* The value, or NULL. */
const char *dibs__uri_param(const struct dibs__uri *uri, const char *key);
/* Parses a parameter as a number within [min, max]; `otherwise` when absent.  INVALID with what is wrong. */
dibs__status dibs__uri_number(const struct dibs__uri *uri, const char *key, int64_t min, int64_t max, int64_t otherwise,
                              int64_t *out, struct dibs__said *said);
/* INVALID, naming the first parameter that is not in `known` (NULL at its end; a key with a dot belongs to a shim
 * and is passed over unless `shim` is that shim's name). */
dibs__status dibs__uri_only(const struct dibs__uri *uri, const char *shim, const char *const known[],
                            struct dibs__said *said);

#endif
