/* SPDX-License-Identifier: MIT */
/*
 * The URI:  mongodb://[user[:password]@]host[:port][,host...][/database][?parameter=value...]
 *
 *   prefix=NAME                  of our collections (default dibs_)
 *   connections=N                sessions at most (default 2)
 *   claims=N                     how many claims stay in the document of their stock (default 100)
 *   replicaSet, authSource, authMechanism, tls, tlsCAFile, tlsCertificateKeyFile, tlsAllowInvalidCertificates,
 *   directConnection, connectTimeoutMS, appName      as in MongoDB's own connection strings
 *
 * Without a database it is "dibs".  Other parameters of MongoDB's connection strings, such as write concerns, are
 * refused, because dibs sets them itself.
 */
#include "drivers/mongodb/mongodb_impl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const passed_on[] = {"replicaSet",
                                        "authSource",
                                        "authMechanism",
                                        "tls",
                                        "tlsCAFile",
                                        "tlsCertificateKeyFile",
                                        "tlsAllowInvalidCertificates",
                                        "directConnection",
                                        "connectTimeoutMS",
                                        "appName",
                                        NULL};
static const char *const params[] = {"prefix",
                                     "connections",
                                     "claims",
                                     "replicaSet",
                                     "authSource",
                                     "authMechanism",
                                     "tls",
                                     "tlsCAFile",
                                     "tlsCertificateKeyFile",
                                     "tlsAllowInvalidCertificates",
                                     "directConnection",
                                     "connectTimeoutMS",
                                     "appName",
                                     NULL};

/* A word of letters, digits and underscores. */
static bool word_is_valid(const char *word) {
  size_t len = strlen(word);
  return len > 0 && len <= DIBS__MONGO_WORD_MAX &&
         strspn(word, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_") == len;
}

static void put_escaped(FILE *to, const char *text) {
  for (; *text; text++) {
    unsigned char c = (unsigned char)*text;
    if ((c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || strchr("-._~", c))
      fputc(c, to);
    else
      fprintf(to, "%%%02X", c);
  }
}

/* The connection string for libmongoc; malloc'd, NULL: no memory. */
static char *compose(const struct dibs__uri *uri) {
  char *text = NULL;
  size_t size = 0;
  FILE *to = open_memstream(&text, &size);
  if (!to) return NULL;
  fprintf(to, "mongodb://");
  if (uri->user) {
    put_escaped(to, uri->user);
    if (uri->password) fputc(':', to);
    if (uri->password) put_escaped(to, uri->password);
    fputc('@', to);
  }
  /* Of a single command, all connections are checked once; a failure is known at once. */
  fprintf(to, "%s/?retryWrites=true&retryReads=true&serverSelectionTryOnce=true&w=majority&journal=true", uri->hosts);
  bool timed = false;
  for (size_t i = 0; i < uri->param_count; i++)
    for (size_t k = 0; passed_on[k]; k++) {
      if (strcmp(uri->params[i].key, passed_on[k]) != 0) continue;
      timed = timed || strcmp(passed_on[k], "connectTimeoutMS") == 0;
      fprintf(to, "&%s=", passed_on[k]);
      put_escaped(to, uri->params[i].value);
    }
  if (!timed) fputs("&connectTimeoutMS=2000", to);
  bool failed = ferror(to) != 0;
  if (fclose(to) != 0 || failed) {
    free(text);
    return NULL;
  }
  return text;
}

static dibs__status read_all(struct dibs__mongo_location *p, const struct dibs__uri *uri, struct dibs__result *result) {
  const char *prefix = dibs__uri_param(uri, "prefix");
  const char *database = uri->path[0] == '/' ? uri->path + 1 : uri->path;
  int64_t connections, claims;
  if (!*uri->hosts) {
    dibs__set_message(result, "mongodb:// needs a host: mongodb://localhost:27017/database");
    return DIBS_INVALID;
  }
  if (!*database) database = "dibs";
  if (strlen(database) > 63 || strpbrk(database, "/\\. \"$*<>:|?")) {
    dibs__set_message(result, "the name of the database in %.100s is not a name that MongoDB accepts", uri->shown);
    return DIBS_INVALID;
  }
  if (!prefix) prefix = "dibs_";
  if (!word_is_valid(prefix)) {
    dibs__set_message(result, "prefix= has letters, digits and underscores, at most %d", (int)DIBS__MONGO_WORD_MAX);
    return DIBS_INVALID;
  }
  dibs__status status =
      dibs__uri_number(uri, "connections", 1, DIBS__CONNECTIONS_MAX, DIBS__CONNECTIONS, &connections, result);
  if (status == DIBS_OK)
    status = dibs__uri_number(uri, "claims", 0, DIBS__MONGO_CLAIMS_MAX, DIBS__MONGO_CLAIMS, &claims, result);
  if (status != DIBS_OK) return status;
  p->claims = (uint32_t)claims;
  p->connections = (uint32_t)connections;
  snprintf(p->prefix, sizeof p->prefix, "%s", prefix);
  snprintf(p->shown, sizeof p->shown, "%s", uri->shown);
  p->database = strdup(database);
  char *text = compose(uri);
  bson_error_t error;
  if (!p->database || !text) {
    free(text);
    return DIBS_NO_MEMORY;
  }
  p->uri = mongoc_uri_new_with_error(text, &error);
  explicit_bzero(text, strlen(text)); /* the password */
  free(text);
  if (p->uri) return DIBS_OK;
  dibs__set_message(result, "%.100s: %.120s", uri->shown, error.message);
  return DIBS_INVALID;
}

dibs__status dibs__mongo_location(const struct dibs__uri *uri, struct dibs__mongo_location **location,
                                  struct dibs__result *result) {
  *location = NULL;
  dibs__status status = dibs__uri_only(uri, NULL, params, result);
  if (status != DIBS_OK) return status;
  struct dibs__mongo_location *p = calloc(1, sizeof *p);
  status = p ? read_all(p, uri, result) : DIBS_NO_MEMORY;
  if (status == DIBS_OK)
    *location = p;
  else
    dibs__mongo_location_free(p);
  return status;
}

void dibs__mongo_location_free(struct dibs__mongo_location *p) {
  if (!p) return;
  mongoc_uri_destroy(p->uri);
  free(p->database);
  free(p);
}
