/* SPDX-License-Identifier: MIT */
/*
 * The URI:  mongodb://[user[:password]@]host[:port][,host...][/database][?parameter=value...]
 *           mongodb+srv://[user[:password]@]name[/database][?parameter=value...]      (srv.c)
 *
 *   prefix=NAME                  of our collections (default dibs_)
 *   connections=N                sessions at most (default 2)
 *   claims=N                     how many claims stay in the document of their stock (default 100)
 *   ca=FILE                      TLS, with the certificate of the server's authority: tlsCAFile
 *   replicaSet, authSource, authMechanism, tls, tlsCAFile, tlsCertificateKeyFile, tlsAllowInvalidCertificates,
 *   directConnection, connectTimeoutMS, appName      as in MongoDB's own connection strings
 *
 * Without a database it is "dibs".  Other parameters of MongoDB's connection strings, such as write concerns, are
 * refused, because dibs sets them itself.
 */
#include "drivers/mongodb/mongodb_impl.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The first ones are ours. */
enum { OURS = 4 };
static const char *const params[] = {"prefix",
                                     "connections",
                                     "claims",
                                     "ca",
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
static const char *const *const passed_on = params + OURS;

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

/* The connection string for libmongoc, before and after the hosts. */
static void compose_head(const struct dibs__uri *uri, FILE *to) {
  fputs("mongodb://", to);
  if (!uri->user) return;
  put_escaped(to, uri->user);
  if (uri->password) fputc(':', to);
  if (uri->password) put_escaped(to, uri->password);
  fputc('@', to);
}

static void compose_tail(const struct dibs__uri *uri, bool srv, FILE *to) {
  /* Of a single command, all connections are checked once; a failure is known at once. */
  fputs("/?retryWrites=true&retryReads=true&serverSelectionTryOnce=true&w=majority&journal=true", to);
  for (size_t i = 0; i < uri->param_count; i++)
    for (size_t k = 0; passed_on[k]; k++) {
      if (strcmp(uri->params[i].key, passed_on[k]) != 0) continue;
      fprintf(to, "&%s=", passed_on[k]);
      put_escaped(to, uri->params[i].value);
    }
  if (!dibs__uri_param(uri, "connectTimeoutMS")) fputs("&connectTimeoutMS=2000", to);
  const char *ca = dibs__uri_param(uri, "ca");
  if (ca) {
    fputs("&tlsCAFile=", to);
    put_escaped(to, ca);
  }
  if (srv && !dibs__uri_param(uri, "tls")) fputs("&tls=true", to);
}

/* false: no memory. */
static bool compose(struct dibs__mongo_location *p, const struct dibs__uri *uri, bool srv) {
  size_t head_size, tail_size;
  FILE *head = open_memstream(&p->head, &head_size), *tail = open_memstream(&p->tail, &tail_size);
  if (head) compose_head(uri, head);
  if (tail) compose_tail(uri, srv, tail);
  bool fine = head && tail && !ferror(head) && !ferror(tail);
  if (head) fine = fclose(head) == 0 && fine;
  if (tail) fine = fclose(tail) == 0 && fine;
  return fine;
}

static dibs__status make_uri(const struct dibs__mongo_location *p, const char *hosts, const char *options,
                             mongoc_uri_t **uri, struct dibs__result *result) {
  size_t size = strlen(p->head) + strlen(hosts) + strlen(p->tail) + strlen(options) + 1;
  char *text = malloc(size);
  bson_error_t error = {0};
  *uri = NULL;
  if (!text) return DIBS_NO_MEMORY;
  snprintf(text, size, "%s%s%s%s", p->head, hosts, p->tail, options);
  *uri = mongoc_uri_new_with_error(text, &error);
  explicit_bzero(text, size); /* the password */
  free(text);
  if (*uri) return DIBS_OK;
  dibs__set_message(result, "%.100s: %.120s", p->shown, error.message);
  return DIBS_INVALID;
}

/* mongodb+srv://: one name, which the DNS knows. */
static dibs__status read_srv(struct dibs__mongo_location *p, const struct dibs__uri *uri, struct dibs__result *result) {
  size_t len = strlen(uri->hosts);
  if (strchr(uri->hosts, ',') || strchr(uri->hosts, ':')) {
    dibs__set_message(result, "mongodb+srv:// has one name without a port; its SRV records have the hosts and ports");
    return DIBS_INVALID;
  }
  if (len > 0 && uri->hosts[len - 1] == '.') len--;
  p->srv = strndup(uri->hosts, len);
  if (!p->srv) return DIBS_NO_MEMORY;
  if (!dibs__mongo_srv_valid(p->srv)) {
    dibs__set_message(result, "mongodb+srv:// needs a name in a domain, like db.example.com, and not \"%.80s\"",
                      p->srv);
    return DIBS_INVALID;
  }
  const char *direct = dibs__uri_param(uri, "directConnection");
  if (!direct || strcmp(direct, "true") != 0) return DIBS_OK;
  dibs__set_message(result, "directConnection=true needs one host in mongodb://, not mongodb+srv://");
  return DIBS_INVALID;
}

/* The URI itself is valid: read_all has tried it.  So the answers of the DNS are wrong, and may be right another time.
 */
static dibs__status refuse_answers(const struct dibs__mongo_location *p, struct dibs__result *result) {
  dibs__set_message(result, "%.100s: the DNS has hosts or options of \"%.80s\" which are none of a MongoDB", p->shown,
                    p->srv);
  return DIBS_UNAVAILABLE;
}

dibs__status dibs__mongo_uri_now(struct dibs__mongo_location *p, dibs__tick by, mongoc_uri_t **uri,
                                 struct dibs__result *result) {
  char *hosts, *options;
  mongoc_uri_t *fresh = NULL;
  *uri = NULL;
  dibs__status status = DIBS_OK;
  if (p->srv) {
    status = dibs__mongo_srv(p->srv, p->tail, p->shown, by, &hosts, &options, result);
    if (status == DIBS_OK) {
      status = make_uri(p, hosts, options, &fresh, result);
      if (status == DIBS_INVALID) status = refuse_answers(p, result);
    }
    free(hosts);
    free(options);
  }
  dibs__mutex_lock(&p->lock);
  if (fresh) {
    mongoc_uri_destroy(p->uri);
    p->uri = fresh;
  }
  if (p->uri && (status == DIBS_OK || status == DIBS_UNAVAILABLE)) {
    *uri = mongoc_uri_copy(p->uri);
    status = *uri ? DIBS_OK : DIBS_NO_MEMORY;
  }
  dibs__mutex_unlock(&p->lock);
  return status;
}

static bool param_is(const struct dibs__uri *uri, const char *key, const char *value) {
  const char *given = dibs__uri_param(uri, key);
  return given && strcmp(given, value) == 0;
}

/* Of a file that is not there, libmongoc would only say that it found no server. */
static dibs__status check_authority(const struct dibs__uri *uri, struct dibs__result *result) {
  const char *ca = dibs__uri_param(uri, "ca"), *same = dibs__uri_param(uri, "tlsCAFile");
  const char *against = ca && same                                             ? "tlsCAFile="
                        : param_is(uri, "tls", "false")                        ? "tls=false"
                        : param_is(uri, "tlsAllowInvalidCertificates", "true") ? "tlsAllowInvalidCertificates=true"
                                                                               : NULL;
  if (!ca) ca = same;
  if (!ca) return DIBS_OK;
  if (against) {
    dibs__set_message(result, "%.100s: ca= has no effect with %s; leave one out", uri->shown, against);
    return DIBS_INVALID;
  }
  if (access(ca, R_OK) == 0) return DIBS_OK;
  dibs__set_message(result, "ca=%.100s: %s", ca, strerror(errno));
  return DIBS_INVALID;
}

static dibs__status read_all(struct dibs__mongo_location *p, const struct dibs__uri *uri, struct dibs__result *result) {
  const char *prefix = dibs__uri_param(uri, "prefix");
  const char *database = uri->path[0] == '/' ? uri->path + 1 : uri->path;
  bool srv = strcmp(uri->scheme, "mongodb") != 0;
  int64_t connections, claims;
  if (!*uri->hosts) {
    dibs__set_message(result, srv ? "mongodb+srv:// needs a name: mongodb+srv://db.example.com/database"
                                  : "mongodb:// needs a host: mongodb://localhost:27017/database");
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
    status = dibs__uri_number(uri, "claims", 1, DIBS__MONGO_CLAIMS_MAX, DIBS__MONGO_CLAIMS, &claims, result);
  if (status != DIBS_OK) return status;
  status = check_authority(uri, result);
  if (status != DIBS_OK) return status;
  p->claims = (uint32_t)claims;
  p->connections = (uint32_t)connections;
  snprintf(p->prefix, sizeof p->prefix, "%s", prefix);
  snprintf(p->shown, sizeof p->shown, "%s", uri->shown);
  p->database = strdup(database);
  if (!p->database || !compose(p, uri, srv)) return DIBS_NO_MEMORY;
  if (!srv) return make_uri(p, uri->hosts, "", &p->uri, result);
  status = read_srv(p, uri, result);
  if (status != DIBS_OK) return status;
  /* Bad parameters are refused before anything is looked up. */
  mongoc_uri_t *tried;
  status = make_uri(p, p->srv, "", &tried, result);
  mongoc_uri_destroy(tried);
  return status;
}

dibs__status dibs__mongo_location(const struct dibs__uri *uri, struct dibs__mongo_location **location,
                                  struct dibs__result *result) {
  *location = NULL;
  dibs__status status = dibs__uri_only(uri, NULL, params, result);
  if (status != DIBS_OK) return status;
  struct dibs__mongo_location *p = calloc(1, sizeof *p);
  if (p) dibs__mutex_init(&p->lock);
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
  if (p->head) explicit_bzero(p->head, strlen(p->head)); /* the password */
  free(p->head);
  free(p->tail);
  free(p->srv);
  free(p->database);
  dibs__mutex_destroy(&p->lock);
  free(p);
}
