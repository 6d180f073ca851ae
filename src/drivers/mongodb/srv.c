/* SPDX-License-Identifier: MIT */
/*
 * mongodb+srv://NAME: the DNS says which hosts NAME has.
 *
 *   _mongodb._tcp.NAME  SRV   a host and its port, several times
 *   NAME                TXT   authSource=... and replicaSet=..., at most one record
 *
 * libmongoc can look this up, too, but without a deadline, and only once for a client.  Here each attempt ends after a
 * second, and each new connection looks again, so that a cluster may move.  If the DNS does not answer then, the hosts
 * of the last time are used.
 *
 * A forged answer must not lead a client to a server of somebody else.  So each host must be in the domain of NAME, TXT
 * may set no other option, and TLS is on unless the URI says tls=false.
 */
#include "drivers/mongodb/mongodb_impl.h"

#include <arpa/nameser.h>
#include <ctype.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <resolv.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum {
  ANSWER_MAX = 65535,
  HOSTS_MAX = 64, /* a replica set has at most 50; of more routers these are enough, and the others are ignored */
  TEXT_MAX = 512, /* of the TXT record */
  TRIES = 3,
  TRY_MS = 1000 /* of one name server; the resolver counts whole seconds */
};

struct lookup {
  const char *name; /* as the URI has it */
  dibs__tick by;
  const char *shown;
  struct dibs__result *result;
  uint8_t *answer; /* ANSWER_MAX */
  int length;
};

static dibs__status complain(struct lookup *l, dibs__status status, const char *what) {
  dibs__set_message(l->result, "%.80s: cannot look up the hosts of \"%.80s\": %.90s", l->shown, l->name, what);
  return status;
}

/* ---- Queries ---- */

/* One question to the name servers, as many as have the time for an answer. */
static int ask_once(struct lookup *l, const char *name, int type, int *why) {
  struct __res_state state = {0};
  int64_t left = dibs__tick_left_ms(dibs__tick_now(), l->by);
  *why = NO_RECOVERY;
  if (res_ninit(&state) != 0) return -1;
  state.retrans = TRY_MS / 1000;
  state.retry = 1;
  if (state.nscount > left / TRY_MS) state.nscount = left < TRY_MS ? 1 : (int)(left / TRY_MS);
  errno = 0;
  int length = res_nquery(&state, name, ns_c_in, type, l->answer, ANSWER_MAX);
  *why = state.res_h_errno;
  res_nclose(&state);
  return length > ANSWER_MAX ? ANSWER_MAX : length;
}

/* *there: such a record exists, and the answer is in `l`. */
static dibs__status query(struct lookup *l, const char *name, int type, bool *there) {
  int why = TRY_AGAIN;
  *there = false;
  for (int i = 0; i < TRIES && why == TRY_AGAIN; i++) {
    if (i > 0 && dibs__tick_left_ms(dibs__tick_now(), l->by) < TRY_MS) break;
    l->length = ask_once(l, name, type, &why);
    *there = l->length >= 0;
    if (*there || why == HOST_NOT_FOUND || why == NO_DATA) return DIBS_OK;
  }
  return complain(l, DIBS_UNAVAILABLE,
                  why == TRY_AGAIN ? "no name server answers; try it again later, or name the hosts in mongodb://"
                                   : "the name server refuses the question; name the hosts in mongodb://");
}

/* ---- SRV ---- */

/* Is it in the domain of `name`: "db.example.com" has the domain "example.com"? */
static bool in_domain(const char *host, const char *name) {
  const char *domain = strchr(name, '.');
  size_t host_len = strlen(host), len = domain ? strlen(domain) : 0;
  return len > 0 && host_len > len && strcasecmp(host + host_len - len, domain) == 0;
}

static bool is_host(const char *host) {
  for (; *host; host++)
    if (!isalnum((unsigned char)*host) && !strchr("-._", *host)) return false;
  return true;
}

/* "host:port,host:port" */
static dibs__status read_hosts(struct lookup *l, FILE *to) {
  ns_msg message;
  ns_rr row;
  uint32_t count = 0;
  if (ns_initparse(l->answer, l->length, &message) != 0)
    return complain(l, DIBS_UNAVAILABLE, "the answer of the name server is damaged");
  for (int i = 0; i < ns_msg_count(message, ns_s_an) && count < HOSTS_MAX; i++) {
    char host[NS_MAXDNAME];
    if (ns_parserr(&message, ns_s_an, i, &row) != 0)
      return complain(l, DIBS_UNAVAILABLE, "the answer of the name server is damaged");
    if (ns_rr_type(row) != ns_t_srv) continue; /* a CNAME that led here */
    const uint8_t *data = ns_rr_rdata(row);
    if (ns_rr_rdlen(row) < 7 || ns_name_uncompress(l->answer, l->answer + l->length, data + 6, host, sizeof host) < 0 ||
        !is_host(host))
      return complain(l, DIBS_UNAVAILABLE, "an SRV record is damaged");
    if (!in_domain(host, l->name))
      return complain(l, DIBS_UNAVAILABLE, "an SRV record names a host of another domain, which may be forged");
    fprintf(to, "%s%s:%u", count++ ? "," : "", host, (unsigned)ns_get16(data + 4));
  }
  return count ? DIBS_OK : complain(l, DIBS_UNAVAILABLE, "the answer has no SRV record");
}

static dibs__status look_for_hosts(struct lookup *l, FILE *to) {
  char name[NS_MAXDNAME], what[120];
  bool there;
  if (snprintf(name, sizeof name, "_mongodb._tcp.%s", l->name) >= (int)sizeof name)
    return complain(l, DIBS_INVALID, "the name is too long");
  dibs__status status = query(l, name, ns_t_srv, &there);
  if (status != DIBS_OK) return status;
  if (there) return read_hosts(l, to);
  snprintf(what, sizeof what, "there is no SRV record _mongodb._tcp.%.60s", l->name);
  return complain(l, DIBS_UNAVAILABLE, what);
}

/* ---- TXT ---- */

/* A record is several strings, which are one text. */
static bool join_strings(const ns_rr *row, char text[TEXT_MAX]) {
  const uint8_t *at = ns_rr_rdata(*row), *end = at + ns_rr_rdlen(*row);
  size_t used = 0;
  while (at < end) {
    size_t len = *at++;
    if (len > (size_t)(end - at) || used + len >= TEXT_MAX || memchr(at, '\0', len)) return false;
    memcpy(text + used, at, len);
    used += len;
    at += len;
  }
  text[used] = '\0';
  return true;
}

/* One option of TXT; the URI's own comes first. */
static dibs__status put_option(struct lookup *l, const char *option, const char *given, FILE *to) {
  static const char *const allowed[] = {"authSource", "replicaSet"};
  const char *equals = strchr(option, '=');
  if (strcasecmp(option, "loadBalanced=false") == 0) return DIBS_OK;
  if (strncasecmp(option, "loadBalanced=", 13) == 0)
    return complain(l, DIBS_UNSUPPORTED, "it is behind a load balancer, which dibs does not support");
  for (size_t i = 0; equals && i < sizeof allowed / sizeof *allowed; i++) {
    size_t len = strlen(allowed[i]);
    char key[32];
    if ((size_t)(equals - option) != len || strncasecmp(option, allowed[i], len) != 0) continue;
    for (const char *c = equals + 1; *c; c++)
      if (!isalnum((unsigned char)*c) && !strchr("-._~%$", *c))
        return complain(l, DIBS_UNAVAILABLE, "the value of an option in its TXT record is damaged");
    snprintf(key, sizeof key, "&%s=", allowed[i]);
    if (!strstr(given, key)) fprintf(to, "%s%s", key, equals + 1);
    return DIBS_OK;
  }
  return complain(l, DIBS_UNAVAILABLE,
                  "its TXT record has another option than authSource and replicaSet, which may be forged");
}

static dibs__status read_options(struct lookup *l, const char *given, FILE *to) {
  ns_msg message;
  ns_rr row;
  char text[TEXT_MAX] = "", *rest = NULL;
  uint32_t count = 0;
  if (ns_initparse(l->answer, l->length, &message) != 0)
    return complain(l, DIBS_UNAVAILABLE, "the answer of the name server is damaged");
  for (int i = 0; i < ns_msg_count(message, ns_s_an); i++) {
    bool fine = ns_parserr(&message, ns_s_an, i, &row) == 0;
    if (fine && ns_rr_type(row) != ns_t_txt) continue;
    if (!fine || !join_strings(&row, text)) return complain(l, DIBS_UNAVAILABLE, "its TXT record is damaged");
    if (++count > 1) return complain(l, DIBS_UNAVAILABLE, "it has several TXT records; at most one is allowed");
  }
  dibs__status status = DIBS_OK;
  for (char *one = strtok_r(text, "&", &rest); one && status == DIBS_OK; one = strtok_r(NULL, "&", &rest))
    status = put_option(l, one, given, to);
  return status;
}

/* ---- The whole ---- */

bool dibs__mongo_srv_valid(const char *name) {
  uint32_t dots = 0;
  for (const char *c = name; *c; c++) {
    if (*c == '.' && (c == name || c[1] == '.' || !c[1])) return false;
    dots += *c == '.';
  }
  return is_host(name) && dots >= 2;
}

dibs__status dibs__mongo_srv(const char *name, const char *given, const char *shown, dibs__tick by, char **hosts,
                             char **options, struct dibs__result *result) {
  struct lookup l = {.name = name, .by = by, .shown = shown, .result = result, .answer = malloc(ANSWER_MAX)};
  size_t hosts_size, options_size;
  bool there = false;
  *hosts = *options = NULL;
  FILE *to_hosts = open_memstream(hosts, &hosts_size), *to_options = open_memstream(options, &options_size);
  dibs__status status = l.answer && to_hosts && to_options ? look_for_hosts(&l, to_hosts) : DIBS_NO_MEMORY;
  if (status == DIBS_OK) status = query(&l, name, ns_t_txt, &there);
  if (status == DIBS_OK && there) status = read_options(&l, given, to_options);
  bool failed = (to_hosts && ferror(to_hosts)) || (to_options && ferror(to_options));
  failed = (to_hosts && fclose(to_hosts) != 0) || failed;
  failed = (to_options && fclose(to_options) != 0) || failed;
  free(l.answer);
  if (status == DIBS_OK && failed) status = DIBS_NO_MEMORY;
  if (status == DIBS_OK) return DIBS_OK;
  free(*hosts);
  free(*options);
  *hosts = *options = NULL;
  return status;
}
