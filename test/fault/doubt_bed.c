/* SPDX-License-Identifier: MIT */
#include "doubt_bed.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

struct proxied *proxy;
dibs_store *through, *straight;
static int64_t fired_before;
static bool orphans;

void nap_ms(long ms) {
  struct timespec t = {ms / 1000, ms % 1000 * 1000000};
  nanosleep(&t, NULL);
}

long now_ms(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

const char *fresh(const char *what) {
  static _Atomic unsigned last;
  static char names[64][80];
  unsigned nth = atomic_fetch_add(&last, 1);
  char *name = names[nth % 64];
  snprintf(name, sizeof names[0], "%s-%d-%ld-%u", what, (int)getpid(), now_ms(), nth);
  return name;
}

const char *own_table(const char *name) {
  static char table[64];
  snprintf(table, sizeof table, "%sdibs_%s", strcmp(engine->scheme, "postgres") == 0 ? "dibs." : "", name);
  return table;
}

/* Splits "postgres://user:password@host:port/db": the server's address, and the same URI through the proxy. */
static void split(char to[128], char behind[512], uint16_t port) {
  const char *uri = case_uri(), *at = strchr(uri, '@'), *path = at ? strchr(at, '/') : NULL;
  assert_non_null(path);
  snprintf(to, 128, "%.*s", (int)(path - at - 1), at + 1);
  snprintf(behind, 512, "%.*s127.0.0.1:%u%s", (int)(at + 1 - uri), uri, port, path);
}

static dibs_store *open_one(const char *uri) {
  dibs_store *store = NULL;
  if (dibs_open(uri, NULL, &store, &reported) != DIBS_OK) fail_msg("%s", reported.text);
  return store;
}

int doubt_begin(void **state) {
  char to[128], behind[512], why[PROXY_WHY];
  case_begin(state);
  split(to, behind, 0);
  bool postgres = strcmp(engine->scheme, "postgres") == 0;
  proxy = proxied_start(&(struct proxy_options){.to = to, .protocol = postgres ? FRAME_POSTGRES : FRAME_MYSQL}, why);
  if (!proxy) fail_msg("%s", why);
  split(to, behind, proxied_port(proxy));
  through = open_one(behind);
  straight = open_one(case_uri());
  return 0;
}

int doubt_end(void **state) {
  char answer[PROXY_LINE];
  proxied_say(proxy, "pass", answer);
  dibs_close(through);
  dibs_close(straight);
  proxied_stop(proxy);
  return case_end(state);
}

void breaks(const char *how, unsigned nth, const char *words, int ms) {
  char line[512], answer[PROXY_LINE];
  orphans = strstr(how, "orphan") != NULL;
  fired_before = proxied_stat(proxy, "fired");
  int n = snprintf(line, sizeof line, "%s nth=%u %s", how, nth, words);
  if (ms) snprintf(line + n, sizeof line - (size_t)n, " %d", ms);
  if (!proxied_say(proxy, line, answer)) fail_msg("%s: %s", line, answer);
}

void fired(void) {
  if (proxied_stat(proxy, "fired") != fired_before + 1)
    fail_msg("%lld requests were broken instead of 1", (long long)(proxied_stat(proxy, "fired") - fired_before));
}

void landed(void) {
  fired();
  assert_true(orphans);
  UNTIL(proxied_stat(proxy, "doomed") == 0);
}
