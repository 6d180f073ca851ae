/* SPDX-License-Identifier: MIT */
#include "page.h"

#include "base/text.h"

#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

enum { DEEP = 64, IDS = 4096, NAME = 32 };

struct page {
  const char *at, *end, *begin;
  char open[DEEP][NAME];
  size_t depth;
  char ids[IDS][NAME];
  size_t id_count;
  char wrong[300];
};

static bool wrong(struct page *p, const char *format, ...) __attribute__((format(printf, 2, 3)));
static bool wrong(struct page *p, const char *format, ...) {
  char what[200];
  va_list args;
  va_start(args, format);
  vsnprintf(what, sizeof what, format, args);
  va_end(args);
  int left = (int)(p->end - p->at);
  snprintf(p->wrong, sizeof p->wrong, "at byte %td: %s: %.*s", p->at - p->begin, what, left < 40 ? left : 40, p->at);
  return false;
}

static bool begins(const struct page *p, const char *text) {
  size_t length = strlen(text);
  return (size_t)(p->end - p->at) >= length && memcmp(p->at, text, length) == 0;
}

static bool entity(struct page *p) {
  static const char *const known[] = {"&lt;", "&gt;", "&amp;", "&quot;", "&#39;", "&#xfffd;"};
  for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
    if (!begins(p, known[i])) continue;
    p->at += strlen(known[i]);
    return true;
  }
  return wrong(p, "not an entity");
}

/* Up to one of `ends`. */
static bool text(struct page *p, const char *ends) {
  while (p->at < p->end && !strchr(ends, *p->at)) {
    uint32_t code;
    size_t took = dibs__utf8_next(p->at, (size_t)(p->end - p->at), &code);
    if (took == 0 || (code < 0x20 && code != '\n' && code != '\t') || (code >= 0x7f && code < 0xa0))
      return wrong(p, "a control character");
    if (*p->at != '&')
      p->at += took;
    else if (!entity(p))
      return false;
  }
  return p->at < p->end || wrong(p, "ends too early");
}

static size_t name(struct page *p, char *to) {
  size_t n = strspn(p->at, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-");
  snprintf(to, NAME, "%.*s", (int)n, p->at);
  p->at += n;
  return n;
}

static bool add_id(struct page *p, const char *value, size_t length) {
  if (p->id_count == IDS || length >= NAME) return wrong(p, "too many ids, or too long");
  char *id = p->ids[p->id_count++];
  memcpy(id, value, length);
  id[length] = '\0';
  for (size_t i = 0; i + 1 < p->id_count; i++)
    if (strcmp(p->ids[i], id) == 0) return wrong(p, "the id %s is there twice", id);
  return true;
}

/* A page in the same folder: letters, and .html. */
static bool is_neighbour(const char *value, size_t length) {
  size_t name = strspn(value, "abcdefghijklmnopqrstuvwxyz");
  return name > 0 && length == name + 5 && strncmp(value + name, ".html", 5) == 0;
}

static bool attribute(struct page *p, const char *tag) {
  char key[NAME];
  if (!name(p, key)) return wrong(p, "not an attribute of <%s>", tag);
  bool link = strcmp(tag, "a") == 0 && strcmp(key, "href") == 0;
  if (strcmp(key, "src") == 0 || (strcmp(key, "href") == 0 && !link) || strncmp(key, "on", 2) == 0)
    return wrong(p, "<%s %s>", tag, key);
  if (!begins(p, "=\"")) return wrong(p, "<%s %s> has no quoted value", tag, key);
  p->at += 2;
  const char *value = p->at;
  if (!text(p, "\"<")) return false;
  if (*p->at != '"') return wrong(p, "a < within an attribute");
  size_t length = (size_t)(p->at - value);
  if (link && !is_neighbour(value, length)) return wrong(p, "a link to elsewhere");
  if (strcmp(key, "id") == 0 && !add_id(p, value, length)) return false;
  p->at++;
  return true;
}

/* The content of style and script is not markup; it must not load anything either. */
static bool raw(struct page *p, const char *tag) {
  static const char *const reach[] = {"url(", "@import", "http:", "https:", "//", "import(", "fetch(", "XMLHttp", "<"};
  char close[NAME + 4];
  snprintf(close, sizeof close, "</%s>", tag);
  while (p->at < p->end && !begins(p, close)) {
    for (size_t i = 0; i < sizeof reach / sizeof *reach; i++)
      if (begins(p, reach[i])) return wrong(p, "<%s> reaches out", tag);
    p->at++;
  }
  return p->at < p->end || wrong(p, "<%s> has no end", tag);
}

static bool close_tag(struct page *p) {
  char tag[NAME];
  p->at += 2;
  name(p, tag);
  if (p->depth == 0 || strcmp(p->open[p->depth - 1], tag) != 0)
    return wrong(p, "</%s> closes <%s>", tag, p->depth ? p->open[p->depth - 1] : "nothing");
  p->depth--;
  return begins(p, ">") ? (p->at++, true) : wrong(p, "</%s is not closed", tag);
}

static bool open_tag(struct page *p) {
  static const char *const banned[] = {"link", "img", "iframe", "object", "embed", "base", "form", "image", "use"};
  char tag[NAME];
  p->at++;
  if (!name(p, tag)) return wrong(p, "not a tag");
  for (size_t i = 0; i < sizeof banned / sizeof *banned; i++)
    if (strcmp(banned[i], tag) == 0) return wrong(p, "<%s> is not allowed in a page that loads nothing", tag);
  while (begins(p, " ")) {
    p->at += strspn(p->at, " ");
    if (!attribute(p, tag)) return false;
  }
  if (begins(p, "/>")) {
    p->at += 2;
    return true;
  }
  if (!begins(p, ">")) return wrong(p, "<%s is not closed", tag);
  p->at++;
  if (p->depth == DEEP) return wrong(p, "too deep");
  snprintf(p->open[p->depth++], NAME, "%s", tag);
  return strcmp(tag, "style") != 0 && strcmp(tag, "script") != 0 ? true : raw(p, tag);
}

const char *page_wrong(const char *html, size_t length) {
  static struct page p;
  static const char doctype[] = "<!DOCTYPE html>\n";
  p = (struct page){.at = html, .begin = html, .end = html + length};
  if (!begins(&p, doctype)) return "does not begin with <!DOCTYPE html>";
  p.at += strlen(doctype);
  bool fine = true;
  while (fine && p.at < p.end) {
    if (begins(&p, "</"))
      fine = close_tag(&p);
    else if (begins(&p, "<"))
      fine = open_tag(&p);
    else if (p.depth == 0 && *p.at == '\n')
      p.at++;
    else
      fine = p.depth > 0 ? text(&p, "<") : wrong(&p, "text outside of <html>");
  }
  if (fine && p.depth > 0) fine = wrong(&p, "<%s> is not closed", p.open[p.depth - 1]);
  return fine ? NULL : p.wrong;
}
