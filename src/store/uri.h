/* SPDX-License-Identifier: MIT */
#ifndef DIBS_STORE_URI_H
#define DIBS_STORE_URI_H
/*
 * Store URIs:  [shim+]...scheme:[//[user[:password]@]host[:port][,host[:port]]...][/path][?key=value[&key=value]...]
 *
 *     sqlite:///abs/path  sqlite:rel/path  memory:  memory:name  trace+sqlite:///x?trace.file=/tmp/t
 *
 * Several URIs with commas between are the tiers of one store (tier/tiers.h): the first is preferred, the last is the
 * anchor:
 *
 *     redis://cache,mysql://db/app     the next URI begins after a comma with a scheme, a colon, and no digit
 *
 * Parameters of the tiered store are in the last URI, as tiers.KEY=VALUE.
 *
 * %xx is decoded in user, password, path and values.  An error message never contains a password.
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
  const char *shown; /* the whole URI without its password */
  char *memory;      /* contains all texts above */
  /* Of a tiered store: scheme is "tiers", each member is a whole URI, and params are those of the tiered store. */
  struct dibs__uri *members;
  size_t member_count;
  char *joined; /* then the memory of `shown` */
  /* Set by the caller that opens the store. */
  const char *owner;       /* "user@host:pid"; NULL */
  const char *module_path; /* where modules for the members' drivers are searched */
  bool as_tier;   /* the store is opened as a tier: what it serves, it serves under an anchor's mandates (R35) */
  bool as_anchor; /* it is the last of several tiers, and also serves them in the buckets that are its own (R45) */
};

/* INVALID (result.text has the reason and the position), NO_MEMORY.  On OK free the uri with dibs__uri_free. */
dibs__status dibs__uri_parse(const char *text, struct dibs__uri *uri, struct dibs__result *result);
void dibs__uri_free(struct dibs__uri *uri);
/* For a driver that needs it after the call that it was given to; module_path stays the same text.  OK, NO_MEMORY. */
dibs__status dibs__uri_copy(const struct dibs__uri *from, struct dibs__uri *to);
/* The comma after which another member begins, or `end`. */
const char *dibs__uri_next_member(const char *at, const char *end);
/* The value, or NULL. */
const char *dibs__uri_param(const struct dibs__uri *uri, const char *key);
/* Parses a parameter as a number within [min, max]; `otherwise` if it is absent.  INVALID with the reason. */
dibs__status dibs__uri_number(const struct dibs__uri *uri, const char *key, int64_t min, int64_t max, int64_t otherwise,
                              int64_t *out, struct dibs__result *result);
/* INVALID, with the name of the first parameter that is not in `known` (which ends with NULL).  A key with a dot
 * belongs to a shim, and is ignored unless `shim` is this shim's name. */
dibs__status dibs__uri_only(const struct dibs__uri *uri, const char *shim, const char *const known[],
                            struct dibs__result *result);

#endif
