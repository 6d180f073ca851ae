/* SPDX-License-Identifier: MIT */
/* The commands of the proxy; proxy.h lists them. */
#include "proxy_inside.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

enum { MS_MAX = 24 * 3600 * 1000 };

/* ---- Words ---- */

static bool number(const char *text, uint64_t max, uint64_t *out) {
  char *end = NULL;
  errno = 0;
  *out = strtoull(text, &end, 10);
  return isdigit((unsigned char)*text) && *end == '\0' && errno == 0 && *out <= max;
}

static int hex(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  c = (char)tolower((unsigned char)c);
  return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

static bool unescape(const char *text, struct trigger *trigger) {
  trigger->size = 0;
  for (; *text; text++) {
    if (trigger->size == PATTERN_MAX) return false;
    uint8_t byte = (uint8_t)*text;
    if (*text == '\\') {
      text++;
      int high = *text == 'x' ? hex(text[1]) : -1, low = high >= 0 ? hex(text[2]) : -1;
      if (low >= 0) {
        byte = (uint8_t)(high * 16 + low);
        text += 2;
      } else if (*text == 's')
        byte = ' ';
      else if (*text == '\\')
        byte = '\\';
      else
        return false;
    }
    trigger->pattern[trigger->size++] = byte;
  }
  return trigger->size > 0;
}

/* Removes `name=N ` from the beginning of the line, if present.  false: N is not a number. */
static bool option(char **rest, const char *name, uint32_t *out) {
  size_t length = strlen(name);
  if (strncmp(*rest, name, length) != 0 || (*rest)[length] != '=') return true;
  char *value = *rest + length + 1, *end = value + strcspn(value, " ");
  uint64_t parsed = 0;
  bool more = *end != '\0';
  *end = '\0';
  if (!number(value, UINT32_MAX - 1, &parsed)) return false;
  *out = (uint32_t)parsed;
  *rest = more ? end + 1 + strspn(end + 1, " ") : end;
  return true;
}

/* ---- Commands: each writes the text after `ok`, or returns false and writes the text after `error` ---- */

static bool arm(struct proxy *proxy, enum trigger_kind kind, char *rest, char answer[PROXY_LINE]) {
  struct trigger trigger = {.kind = kind, .nth = 1, .times = 1};
  if (proxy->trigger_count == TRIGGERS_MAX) {
    snprintf(answer, PROXY_LINE, "%d triggers are already armed; `pass` removes them", TRIGGERS_MAX);
    return false;
  }
  if (!option(&rest, "nth", &trigger.nth) || !option(&rest, "times", &trigger.times)) {
    snprintf(answer, PROXY_LINE, "nth= and times= need a number");
    return false;
  }
  if (trigger.times == 0) trigger.times = TIMES_ALWAYS;
  if (kind == ORPHAN || kind == HOLD) {
    uint64_t ms = 0;
    char *last = strrchr(rest, ' ');
    if (!last || !number(last + 1, MS_MAX, &ms)) {
      snprintf(answer, PROXY_LINE, "needs PATTERN MS");
      return false;
    }
    trigger.ms = (int64_t)ms;
    *last = '\0';
  }
  if (!unescape(rest, &trigger)) {
    snprintf(answer, PROXY_LINE, "needs a PATTERN of 1 to %d bytes; it may contain \\xNN, \\s and \\\\", PATTERN_MAX);
    return false;
  }
  proxy->triggers[proxy->trigger_count++] = trigger;
  return true;
}

static void pass(struct proxy *proxy) {
  proxy->mode = MODE_PASS;
  proxy->delay_ms = 0;
  proxy->trigger_count = 0;
  for (struct link *link = proxy->links; link; link = link->next)
    if (!link->dead) link_pass(link);
}

static uint64_t cut(struct proxy *proxy) {
  uint64_t count = 0;
  for (struct link *link = proxy->links; link; link = link->next) {
    if (link->dead) continue;
    link_reset(link);
    count++;
  }
  return count;
}

static void tell_stats(const struct proxy *proxy, char answer[PROXY_LINE]) {
  uint64_t open = 0, doomed = 0;
  for (const struct link *link = proxy->links; link; link = link->next) {
    open += !link->dead;
    doomed += !link->dead && link->doomed;
  }
  snprintf(answer, PROXY_LINE,
           "accepted=%" PRIu64 " open=%" PRIu64 " doomed=%" PRIu64 " up=%" PRIu64 " down=%" PRIu64 " fired=%" PRIu64,
           proxy->accepted, open, doomed, proxy->up_bytes, proxy->down_bytes, proxy->fired);
}

static bool listen_again(struct proxy *proxy, bool refuse, char answer[PROXY_LINE]) {
  if (proxy_refuse(proxy, refuse)) return true;
  snprintf(answer, PROXY_LINE, "127.0.0.1:%u: %s", (unsigned)proxy->port, strerror(errno));
  return false;
}

static bool set_delay(struct proxy *proxy, const char *rest, char answer[PROXY_LINE]) {
  uint64_t ms = 0;
  if (!number(rest, MS_MAX, &ms)) {
    snprintf(answer, PROXY_LINE, "delay needs milliseconds, at most %d", MS_MAX);
    return false;
  }
  proxy->delay_ms = (int64_t)ms;
  return true;
}

static bool obey(struct proxy *proxy, const char *verb, char *rest, char answer[PROXY_LINE]) {
  static const struct {
    const char *name;
    enum trigger_kind kind;
  } triggers[] = {{"cut-before-request", CUT_BEFORE},
                  {"cut-after-request", CUT_AFTER},
                  {"orphan-request", ORPHAN},
                  {"hold-request", HOLD}};
  for (size_t i = 0; i < sizeof triggers / sizeof *triggers; i++)
    if (strcmp(verb, triggers[i].name) == 0) return arm(proxy, triggers[i].kind, rest, answer);
  if (strcmp(verb, "delay") == 0) return set_delay(proxy, rest, answer);
  if (strcmp(verb, "to") == 0) return proxy_aim(proxy, rest, answer);
  if (*rest) {
    snprintf(answer, PROXY_LINE, "%.32s takes no argument", verb);
    return false;
  }
  if (strcmp(verb, "pass") == 0) {
    pass(proxy);
    return listen_again(proxy, false, answer);
  }
  if (strcmp(verb, "refuse") == 0) return listen_again(proxy, true, answer);
  if (strcmp(verb, "stall") == 0)
    proxy->mode = MODE_STALL;
  else if (strcmp(verb, "half-open") == 0)
    proxy->mode = MODE_HALF_OPEN;
  else if (strcmp(verb, "cut") == 0)
    snprintf(answer, PROXY_LINE, "%" PRIu64, cut(proxy));
  else if (strcmp(verb, "stats") == 0)
    tell_stats(proxy, answer);
  else if (strcmp(verb, "quit") == 0)
    proxy->quit = true;
  else {
    snprintf(answer, PROXY_LINE, "no such command: %.64s", verb);
    return false;
  }
  return true;
}

/* ---- Lines ---- */

static void answer_with(struct control *control, bool ok, const char *text) {
  char line[PROXY_LINE + 16];
  int size = snprintf(line, sizeof line, "%s%s%s\n", ok ? "ok" : "error", *text ? " " : "", text);
  for (int at = 0; at < size;) {
    ssize_t n = write(control->out, line + at, (size_t)(size - at));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return; /* the client of this command has closed its connection */
    at += (int)n;
  }
}

static void take_line(struct control *control, char *line) {
  struct proxy *proxy = control->proxy;
  size_t length = strlen(line);
  while (length > 0 && isspace((unsigned char)line[length - 1])) line[--length] = '\0';
  line += strspn(line, " \t");
  if (*line == '\0') return;
  char *rest = line + strcspn(line, " \t");
  if (*rest) *rest++ = '\0';
  rest += strspn(rest, " \t");
  char answer[PROXY_LINE] = "";
  bool ok = obey(proxy, line, rest, answer);
  answer_with(control, ok, answer);
}

/* Takes the complete lines from the buffer. */
static void take_lines(struct control *control) {
  char *from = control->line, *end = NULL;
  size_t left = control->have;
  while ((end = memchr(from, '\n', left)) != NULL) {
    *end = '\0';
    left -= (size_t)(end + 1 - from);
    take_line(control, from);
    from = end + 1;
  }
  memmove(control->line, from, left);
  control->have = left;
  if (left < sizeof control->line - 1) return;
  answer_with(control, false, "the line is too long");
  control->have = 0;
}

/* false: the commands have ended. */
static bool read_lines(struct control *control) {
  ssize_t n = read(control->in, control->line + control->have, sizeof control->line - 1 - control->have);
  if (n < 0) return errno == EINTR || errno == EAGAIN;
  if (n == 0) return false;
  control->have += (size_t)n;
  take_lines(control);
  return true;
}

void control_event(struct control *control) {
  if (control->dead || read_lines(control)) return;
  if (control->last) control->proxy->quit = true;
  control->dead = true;
}

/* ---- Sources of commands ---- */

static bool add(struct proxy *proxy, int in, int out, bool owned, bool last) {
  struct control *control = calloc(1, sizeof *control);
  if (!control) return false;
  *control = (struct control){.next = proxy->controls, .proxy = proxy, .in = in, .out = out, .last = last};
  control->source = (struct source){SOURCE_CONTROL, control};
  struct epoll_event event = {.events = EPOLLIN, .data.ptr = &control->source};
  bool watched = epoll_ctl(proxy->epoll, EPOLL_CTL_ADD, in, &event) == 0;
  if (!watched && errno != EPERM) {
    free(control);
    return false;
  }
  control->owned = owned;
  proxy->controls = control;
  /* epoll cannot watch a plain file: its lines are available at once. */
  while (!watched && !control->dead && !proxy->quit) control_event(control);
  return true;
}

bool proxy_listen_to(struct proxy *proxy, int in, int out, bool last) {
  return add(proxy, in, out, false, last);
}

void control_accept(struct proxy *proxy) {
  int fd = accept4(proxy->control_listener, NULL, NULL, SOCK_CLOEXEC);
  if (fd >= 0 && !add(proxy, fd, fd, true, false)) close(fd);
}
