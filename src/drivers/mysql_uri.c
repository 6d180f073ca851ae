/* SPDX-License-Identifier: MIT */
/*
 *   mysql://[user[:password]@]host[:port][,host[:port]]/database[?parameter=value&...]
 *
 *   socket=PATH                  a Unix socket; then there is no host
 *   ssl=off|prefer|on|verify     prefer: if the server has it; verify: and its certificate is checked, with its name
 *   ssl_ca=, ssl_cert=, ssl_key= files; ssl_ca alone means verify
 *
 * Several hosts are tried in their order.  Beside them those of all servers: see src/sql/far.h.
 */
#include "drivers/mysql_parts.h"

#include <stdlib.h>
#include <string.h>

const char *const dibs__my_params[] = {"socket", "ssl", "ssl_ca", "ssl_cert", "ssl_key", NULL};

/* The bell's go on where these end: see mysql_bell.c. */
static const char *const texts[DIBS__MY_TEXTS] = {
    [DIBS__MY_MAIL_CLEAN] = "DELETE FROM dibs_mail WHERE IS_USED_LOCK(CONCAT('dibs.s.', session)) IS NULL",
    [DIBS__MY_MAIL_SLEEP] = "DO IF(EXISTS (SELECT 1 FROM dibs_mail WHERE session = ",
    [DIBS__MY_MAIL_READ] = "SELECT nr, what, id FROM dibs_mail WHERE session = ",
    [DIBS__MY_MAIL_DROP] = "DELETE FROM dibs_mail WHERE session = ",
    [DIBS__MY_MAIL_PUT] = "INSERT INTO dibs_mail (session, nr, what, id) VALUES ",
    [DIBS__MY_NAME] = "dibs_name",
};

static const char *copy(char **at, const char *from) {
  if (!from) return NULL;
  size_t size = strlen(from) + 1;
  char *to = memcpy(*at, from, size);
  *at += size;
  return to;
}

static dibs__status read_ssl(struct dibs__my_place *p, const char *word, struct dibs__said *said) {
  static const char *const words[] = {"off", "prefer", "on", "verify"};
  p->ssl = p->ssl_ca ? DIBS__MY_SSL_VERIFY : DIBS__MY_SSL_PREFER;
  if (!word) return DIBS_OK;
  for (unsigned i = 0; i < sizeof words / sizeof words[0]; i++) {
    if (strcmp(word, words[i]) != 0) continue;
    p->ssl = i;
    return DIBS_OK;
  }
  dibs__say(said, "ssl=%s: say off, prefer, on or verify", word);
  return DIBS_INVALID;
}

/* One of "h1:1,h2,[::1]:3"; cut out of memory of ours. */
static dibs__status read_host(struct dibs__my_place *p, char *text, struct dibs__said *said) {
  char *port = strrchr(text, ':'), *end = text + strlen(text);
  struct dibs__my_host *host = &p->hosts[p->host_count++];
  host->name = text;
  if (*text == '[') {
    host->name = text + 1;
    char *close = strchr(text, ']');
    if (!close) close = end;
    port = *close && close[1] == ':' ? close + 1 : NULL;
    *close = '\0';
  }
  if (!port) return DIBS_OK;
  *port++ = '\0';
  unsigned long number = strtoul(port, &end, 10);
  if (*end == '\0' && number > 0 && number <= 65535) {
    host->port = (unsigned)number;
    return DIBS_OK;
  }
  dibs__say(said, "%s: a port is 1 to 65535", port);
  return DIBS_INVALID;
}

static dibs__status read_hosts(struct dibs__my_place *p, char *text, struct dibs__said *said) {
  if (p->socket) {
    if (*text && strcmp(text, "localhost") != 0) {
      dibs__say(said, "either a host or socket=: %s is not needed to find the socket", text);
      return DIBS_INVALID;
    }
    p->host_count = 1;
    return DIBS_OK;
  }
  while (text) {
    char *comma = strchr(text, ',');
    if (comma) *comma++ = '\0';
    if (p->host_count == DIBS__MY_HOSTS) {
      dibs__say(said, "more than %d hosts", (int)DIBS__MY_HOSTS);
      return DIBS_INVALID;
    }
    if (!*text) text[0] = '\0';
    dibs__status status = read_host(p, text, said);
    if (status != DIBS_OK) return status;
    text = comma;
  }
  for (size_t i = 0; i < p->host_count; i++)
    if (!*p->hosts[i].name) p->hosts[i].name = "localhost";
  return DIBS_OK;
}

static dibs__status read_all(struct dibs__my_place *p, const struct dibs__uri *uri, char *hosts,
                             struct dibs__said *said) {
  if (!*p->database || strchr(p->database, '/')) {
    dibs__say(said, "name a database: %s://host/DATABASE", uri->scheme);
    return DIBS_INVALID;
  }
  if (dibs__uri_param(uri, "schema")) {
    dibs__say(said, "schema= is not for %s: the database stands in the path, and prefix= tells tables apart",
              uri->scheme);
    return DIBS_INVALID;
  }
  const char *lock = dibs__uri_param(uri, "lock");
  if (lock && strcmp(lock, "rows") != 0 && strcmp(lock, "named") != 0) {
    dibs__say(said, "lock=%s: rows or named is meant", lock);
    return DIBS_INVALID;
  }
  if (!p->ssl_cert != !p->ssl_key) {
    dibs__say(said, "ssl_cert= and ssl_key= go together");
    return DIBS_INVALID;
  }
  dibs__status status = read_ssl(p, dibs__uri_param(uri, "ssl"), said);
  return status == DIBS_OK ? read_hosts(p, hosts, said) : status;
}

dibs__status dibs__my_prepare(const struct dibs__uri *uri, struct dibs__far *store, void **place,
                              struct dibs__said *said) {
  const char *path = *uri->path == '/' ? uri->path + 1 : uri->path;
  const char *from[] = {uri->user,
                        uri->password,
                        path,
                        uri->hosts,
                        dibs__uri_param(uri, "socket"),
                        dibs__uri_param(uri, "ssl_ca"),
                        dibs__uri_param(uri, "ssl_cert"),
                        dibs__uri_param(uri, "ssl_key")};
  size_t size = 1;
  for (size_t i = 0; i < sizeof from / sizeof from[0]; i++) size += from[i] ? strlen(from[i]) + 1 : 0;
  *place = NULL;
  struct dibs__my_place *p = calloc(1, sizeof *p);
  if (p) p->memory = malloc(size);
  if (!p || !p->memory) {
    free(p);
    return DIBS_NO_MEMORY;
  }
  char *at = p->memory;
  p->user = copy(&at, from[0]);
  p->password = copy(&at, from[1]);
  p->database = copy(&at, from[2]);
  char *hosts = at;
  (void)copy(&at, from[3]);
  p->socket = copy(&at, from[4]);
  p->ssl_ca = copy(&at, from[5]);
  p->ssl_cert = copy(&at, from[6]);
  p->ssl_key = copy(&at, from[7]);
  dibs__status status = read_all(p, uri, hosts, said);
  for (size_t i = 0; i < DIBS__MY_TEXTS && status == DIBS_OK; i++) {
    p->texts[i] = dibs__far_text(store, texts[i]);
    if (!p->texts[i]) status = DIBS_NO_MEMORY;
  }
  if (status == DIBS_OK)
    *place = p;
  else
    dibs__my_forget(p);
  return status;
}

void dibs__my_forget(void *place) {
  struct dibs__my_place *p = place;
  if (!p) return;
  for (size_t i = 0; i < DIBS__MY_TEXTS; i++) free(p->texts[i]);
  free(p->memory);
  free(p);
}
