/* SPDX-License-Identifier: MIT */
/*
 * etcd through libcurl and its JSON gateway: only leases.  The simplest fenced lease of one session: a key on a lease
 * of etcd, put by a transaction that compares its creation, and deleted by the next one.  Waiting is etcd's own recipe:
 * a key for each waiter, and a watch of the key before it.  A second key for each name counts its grants.
 */
#include "floor.h"

#include <curl/curl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ANSWER = 16384, BODY = 2048, KEY = 96, CONNECT_MS = 5000, REQUEST_MS = 30000, LEASE_S = 60 };

struct link {
  struct floor_link base;
  CURL *easy, *watch;
  struct curl_slist *headers;
  char url[320], answer[ANSWER], body[BODY];
  size_t length;
  int64_t lease;
  int32_t names; /* names that setup created; 0: this link belongs to another user */
  bool waits;    /* lease-shared */
  char mine[48];
  char version[64];
};

static void base64(const char *from, char *to) {
  static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  size_t len = strlen(from);
  for (size_t i = 0; i < len; i += 3) {
    uint32_t three = (uint32_t)(uint8_t)from[i] << 16;
    if (i + 1 < len) three |= (uint32_t)(uint8_t)from[i + 1] << 8;
    if (i + 2 < len) three |= (uint8_t)from[i + 2];
    *to++ = digits[three >> 18];
    *to++ = digits[three >> 12 & 63];
    *to++ = i + 1 < len ? digits[three >> 6 & 63] : '=';
    *to++ = i + 2 < len ? digits[three & 63] : '=';
  }
  *to = '\0';
}

static size_t keep(char *bytes, size_t size, size_t count, void *arg) {
  struct link *l = arg;
  size_t length = size * count;
  if (l->length + length >= sizeof l->answer) return 0;
  memcpy(l->answer + l->length, bytes, length);
  l->length += length;
  l->answer[l->length] = '\0';
  return length;
}

/* Ends the stream when the key was deleted. */
static size_t keep_until_deleted(char *bytes, size_t size, size_t count, void *arg) {
  struct link *l = arg;
  size_t taken = keep(bytes, size, count, arg);
  return strstr(l->answer, "\"DELETE\"") ? 0 : taken;
}

static bool broken(struct link *l, const char *why) {
  snprintf(l->base.why, sizeof l->base.why, "%s: %.200s", why, l->answer);
  return false;
}

static CURLcode request(struct link *l, CURL *easy, const char *path) {
  char url[400];
  snprintf(url, sizeof url, "%s%s", l->url, path);
  l->length = 0;
  l->answer[0] = '\0';
  curl_easy_setopt(easy, CURLOPT_URL, url);
  curl_easy_setopt(easy, CURLOPT_POSTFIELDS, l->body);
  curl_easy_setopt(easy, CURLOPT_POSTFIELDSIZE, (long)strlen(l->body));
  return curl_easy_perform(easy);
}

static bool post(struct link *l, const char *path) {
  CURLcode code = request(l, l->easy, path);
  if (code != CURLE_OK) return broken(l, curl_easy_strerror(code));
  return !strstr(l->answer, "\"error\"") || broken(l, path);
}

/* The number after `key`, a text in JSON; 0: none. */
static int64_t number(const char *from, const char *key) {
  const char *at = strstr(from, key);
  return at ? strtoll(at + strlen(key), NULL, 10) : 0;
}

static void key_of(int32_t name, const char *end, char key[2 * KEY]) {
  char text[KEY];
  snprintf(text, sizeof text, "floor/%d%s", name, end);
  base64(text, key);
}

/* ---- Leases ---- */

static enum floor_answer acquire_own(struct link *l, int32_t name, int64_t *fence) {
  char key[2 * KEY], count[2 * KEY];
  key_of(name, "", key);
  key_of(name, "/f", count);
  snprintf(l->body, sizeof l->body,
           "{\"compare\":[{\"target\":\"CREATE\",\"key\":\"%s\",\"create_revision\":\"0\"}],\"success\":["
           "{\"request_put\":{\"key\":\"%s\",\"value\":\"eA==\",\"lease\":\"%" PRId64 "\"}},"
           "{\"request_put\":{\"key\":\"%s\",\"value\":\"eA==\"}}]}",
           key, key, l->lease, count);
  if (!post(l, "/v3/kv/txn")) return FLOOR_BROKEN;
  *fence = number(l->answer, "\"revision\":\"");
  return strstr(l->answer, "\"succeeded\":true") ? FLOOR_DONE : FLOOR_CONFLICT;
}

/* Waits until the key does not exist any more. */
static bool wait_for(struct link *l, const char *key, int64_t revision) {
  snprintf(l->body, sizeof l->body,
           "{\"create_request\":{\"key\":\"%s\",\"start_revision\":\"%" PRId64 "\",\"filters\":[\"NOPUT\"]}}", key,
           revision + 1);
  CURLcode code = request(l, l->watch, "/v3/watch");
  return code == CURLE_WRITE_ERROR || broken(l, curl_easy_strerror(code));
}

/* The queue of a name is below it: floor/0/q/LEASE. */
static enum floor_answer acquire_shared(struct link *l, int32_t name, int64_t *fence) {
  char from[2 * KEY], end[2 * KEY], mine[2 * KEY], count[2 * KEY], before[2 * KEY];
  snprintf(l->mine, sizeof l->mine, "/q/%" PRId64, l->lease);
  key_of(name, "/q/", from);
  key_of(name, "/q0", end);
  key_of(name, l->mine, mine);
  key_of(name, "/f", count);
  snprintf(l->body, sizeof l->body,
           "{\"success\":[{\"request_put\":{\"key\":\"%s\",\"value\":\"eA==\",\"lease\":\"%" PRId64 "\"}},"
           "{\"request_put\":{\"key\":\"%s\",\"value\":\"eA==\"}}]}",
           mine, l->lease, count);
  if (!post(l, "/v3/kv/txn")) return FLOOR_BROKEN;
  int64_t own = *fence = number(l->answer, "\"revision\":\"");
  for (;;) {
    snprintf(
        l->body, sizeof l->body,
        "{\"key\":\"%s\",\"range_end\":\"%s\",\"sort_order\":\"DESCEND\",\"sort_target\":\"CREATE\",\"limit\":\"1\","
        "\"max_create_revision\":\"%" PRId64 "\"}",
        from, end, own - 1);
    if (!post(l, "/v3/kv/range")) return FLOOR_BROKEN;
    const char *kv = strstr(l->answer, "\"kvs\":"), *key = kv ? strstr(kv, "\"key\":\"") : NULL;
    if (!key) return FLOOR_DONE;
    snprintf(before, sizeof before, "%.*s", (int)strcspn(key + 7, "\""), key + 7);
    if (!wait_for(l, before, number(l->answer, "\"revision\":\""))) return FLOOR_BROKEN;
  }
}

static enum floor_answer acquire(struct floor_link *link, int32_t name, int32_t owner, int64_t *fence) {
  struct link *l = (struct link *)link;
  (void)owner;
  return l->waits ? acquire_shared(l, name, fence) : acquire_own(l, name, fence);
}

static enum floor_answer release(struct floor_link *link, int32_t name, int32_t owner) {
  struct link *l = (struct link *)link;
  char key[2 * KEY];
  (void)owner;
  key_of(name, l->waits ? l->mine : "", key);
  snprintf(l->body, sizeof l->body, "{\"key\":\"%s\"}", key);
  if (!post(l, "/v3/kv/deleterange")) return FLOOR_BROKEN;
  if (number(l->answer, "\"deleted\":\"") == 1) return FLOOR_DONE;
  broken(l, "the lease was no longer held");
  return FLOOR_BROKEN;
}

/* ---- Connections and keys ---- */

static void link_close(struct floor_link *link) {
  struct link *l = (struct link *)link;
  curl_easy_cleanup(l->easy);
  curl_easy_cleanup(l->watch);
  curl_slist_free_all(l->headers);
  free(l);
}

static bool prepare(struct link *l, CURL *easy, size_t (*take)(char *, size_t, size_t, void *)) {
  return easy && curl_easy_setopt(easy, CURLOPT_HTTPHEADER, l->headers) == CURLE_OK &&
         curl_easy_setopt(easy, CURLOPT_NOSIGNAL, 1L) == CURLE_OK &&
         curl_easy_setopt(easy, CURLOPT_TCP_NODELAY, 1L) == CURLE_OK &&
         curl_easy_setopt(easy, CURLOPT_PROXY, "") == CURLE_OK &&
         curl_easy_setopt(easy, CURLOPT_CONNECTTIMEOUT_MS, (long)CONNECT_MS) == CURLE_OK &&
         curl_easy_setopt(easy, CURLOPT_TIMEOUT_MS, (long)REQUEST_MS) == CURLE_OK &&
         curl_easy_setopt(easy, CURLOPT_WRITEFUNCTION, take) == CURLE_OK &&
         curl_easy_setopt(easy, CURLOPT_WRITEDATA, l) == CURLE_OK;
}

static struct floor_link *link_open(const char *uri, const struct floor_strategy *strategy, char why[FLOOR_WHY]) {
  struct floor_uri at;
  struct link *l = floor_uri_cut(uri, &at) ? calloc(1, sizeof *l) : NULL;
  if (!l) {
    snprintf(why, FLOOR_WHY, "not a URI of etcd, or out of memory");
    return NULL;
  }
  l->waits = strategy && strategy->kind == FLOOR_LEASE_SHARED;
  snprintf(l->url, sizeof l->url, "http://%s:%u", at.host[0] ? at.host : "127.0.0.1", at.port ? at.port : 2379);
  l->headers = curl_slist_append(NULL, "Expect:");
  l->easy = curl_easy_init();
  l->watch = curl_easy_init();
  snprintf(l->body, sizeof l->body, "{\"TTL\":\"%d\"}", (int)LEASE_S);
  bool fine = prepare(l, l->easy, keep) && prepare(l, l->watch, keep_until_deleted) && post(l, "/v3/lease/grant");
  if (fine) l->lease = number(l->answer, "\"ID\":\"");
  if (fine && l->lease) return &l->base;
  snprintf(why, FLOOR_WHY, "%s", l->base.why[0] ? l->base.why : "out of memory");
  link_close(&l->base);
  return NULL;
}

static bool drop_all(struct link *l) {
  char from[2 * KEY], end[2 * KEY];
  base64("floor/", from);
  base64("floor0", end);
  snprintf(l->body, sizeof l->body, "{\"key\":\"%s\",\"range_end\":\"%s\"}", from, end);
  return post(l, "/v3/kv/deleterange");
}

static bool setup(struct floor_link *link, int64_t limit, int32_t names) {
  struct link *l = (struct link *)link;
  (void)limit; /* no bookings here */
  l->names = names;
  return drop_all(l);
}

/* The `version` of a key is how often it was put since it was created.  Also removes the keys that the run left. */
static bool audit(struct floor_link *link, struct floor_audit *a) {
  struct link *l = (struct link *)link;
  memset(a, 0, sizeof *a);
  for (int32_t name = 0; name < l->names; name++) {
    char key[2 * KEY], end[2 * KEY];
    key_of(name, "/f", key);
    snprintf(l->body, sizeof l->body, "{\"key\":\"%s\"}", key);
    if (!post(l, "/v3/kv/range")) return false;
    a->fences += number(l->answer, "\"version\":\"");
    key_of(name, "", key);
    snprintf(l->body, sizeof l->body, "{\"key\":\"%s\",\"count_only\":true}", key);
    if (!post(l, "/v3/kv/range")) return false;
    a->held += number(l->answer, "\"count\":\"");
    key_of(name, "/q/", key);
    key_of(name, "/q0", end);
    snprintf(l->body, sizeof l->body, "{\"key\":\"%s\",\"range_end\":\"%s\",\"count_only\":true}", key, end);
    if (!post(l, "/v3/kv/range")) return false;
    a->held += number(l->answer, "\"count\":\"");
  }
  return drop_all(l);
}

static const char *version(struct floor_link *link) {
  struct link *l = (struct link *)link;
  snprintf(l->body, sizeof l->body, "{}");
  if (!post(l, "/v3/maintenance/status")) return "";
  const char *at = strstr(l->answer, "\"version\":\"");
  snprintf(l->version, sizeof l->version, "%.*s", at ? (int)strcspn(at + 11, "\"") : 0, at ? at + 11 : "");
  return l->version;
}

static const struct floor_strategy strategies[] = {
    {"lease-own", "acquire and release a name of the user's own", .kind = FLOOR_LEASE_OWN},
    {"lease-shared", "all users queue for one name, each with a watch of the key before it",
     .kind = FLOOR_LEASE_SHARED},
    {.name = NULL}};

static const struct floor_engine engine = {
    .name = "etcd", .example = "etcd://host:2379", .variable = "DIBS_TEST_ETCD", .strategies = strategies, FLOOR_CALLS};

int main(int argc, char **argv) {
  if (curl_global_init(CURL_GLOBAL_DEFAULT) != CURLE_OK) return 1;
  return floor_main(&engine, argc, argv);
}
