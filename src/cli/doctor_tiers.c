/* SPDX-License-Identifier: MIT */
/* `dibs doctor` of several stores as one: can each be reached and used from here, and how does each stand? */
#include "base/port.h"
#include "cli/doctor.h"
#include "cli/tier.h"
#include "store/locate.h"
#include "store/uri.h"

#include <stdlib.h>
#include <string.h>

/* The member in [from, end) as a store of its own: without what the last one says of the whole. */
static char *member(const char *from, const char *end) {
  static const char whole[] = "tiers.";
  char *uri = strndup(from, (size_t)(end - from));
  char *mark = uri ? strchr(uri, '?') : NULL;
  if (!mark) return uri;
  char *to = mark + 1;
  for (char *at = to; *at;) {
    size_t len = strcspn(at, "&");
    bool more = at[len] == '&';
    if (strncmp(at, whole, sizeof whole - 1) != 0) {
      if (to > mark + 1) *to++ = '&';
      memmove(to, at, len);
      to += len;
    }
    at += len + more;
  }
  if (to == mark + 1) to = mark;
  *to = '\0';
  return uri;
}

static void check_member(struct doctor *d, const char *uri) {
  dibs_store_options options = {.size = sizeof options, .owner = d->globals->owner};
  dibs_error error = {0};
  dibs_store *store = NULL;
  dibs__tick before = dibs__tick_now();
  dibs_status status = dibs_open(uri, &options, &store, &error);
  int64_t us = (dibs__tick_now().ns - before.ns) / 1000;
  if (status == DIBS_OK)
    dibs__cli_doctor_say(d, "member", NULL, "%s, opened in %lld us", dibs_store_uri(store), (long long)us);
  else
    dibs__cli_doctor_say(d, "member", dibs__cli_doctor_next(status), "%s", error.text);
  dibs_close(store);
}

void dibs__cli_doctor_members(struct doctor *d) {
  char *uri = NULL;
  struct dibs__said said = {.text = ""};
  if (!d->globals->store || dibs__locate(d->globals->store, &uri, &said) != DIBS_OK) return;
  const char *end = uri + strlen(uri);
  for (const char *at = uri, *comma; at < end && (at > uri || dibs__uri_next_member(at, end) < end); at = comma + 1) {
    comma = dibs__uri_next_member(at, end);
    char *one = member(at, comma);
    if (one) check_member(d, one);
    dibs__locate_free(one);
  }
  dibs__locate_free(uri);
}

static void check_tier(struct doctor *d, const dibs_tier_info *tier, bool anchor) {
  static const char *const hands[] = {"up", "off by hand", "on by hand"};
  if (tier->down)
    dibs__cli_doctor_say(d, "tier", "dibs tier status tells who finds it well; it is returned to by itself",
                         "%s is down: its clients voted it so; it serves %u of 100 buckets", tier->name, tier->buckets);
  else if (tier->buckets < tier->wanted)
    dibs__cli_doctor_say(d, "tier", "the rest follows as soon as all that serve them can be reached",
                         "%s serves %u of the %u buckets that it should", tier->name, tier->buckets, tier->wanted);
  else
    dibs__cli_doctor_say(d, "tier", NULL, "%s is %s%s, serves %u of 100 buckets, is rolled out to %u%%", tier->name,
                         hands[tier->hand], anchor ? ", the anchor" : "", tier->buckets, tier->percent);
}

void dibs__cli_doctor_tiers(struct doctor *d, dibs_store *store) {
  struct cli_tiers tiers;
  dibs_error error = {0};
  dibs_status status = dibs__cli_tiers_look(store, &tiers, &error);
  size_t troubled = 0;
  if (status == DIBS_OK && !dibs__cli_tiers_confirmed(&tiers))
    dibs__cli_doctor_say(d, "anchor", "bring it back: nothing moves, and no flag changes, without it",
                         "the last tier can't be reached");
  else if (status != DIBS_OK && status != DIBS_UNSUPPORTED)
    dibs__cli_doctor_say(d, "tiers", dibs__cli_doctor_next(status), "%s", error.text);
  if (status == DIBS_OK) {
    for (size_t i = 0; i < tiers.count; i++) check_tier(d, &tiers.tier[i].info, i + 1 == tiers.count);
    for (size_t i = 0; i < tiers.clients; i++) {
      bool down = false;
      for (uint32_t n = 0; n < tiers.client[i].info.tiers; n++) down = down || tiers.client[i].info.down[n];
      troubled += down;
    }
    if (tiers.info.pinned >= 0 && (size_t)tiers.info.pinned < tiers.count)
      dibs__cli_doctor_say(d, "moved", NULL, "everything was moved to %s by hand; dibs tier move auto ends that",
                           tiers.tier[tiers.info.pinned].name);
    dibs__cli_doctor_say(d, "clients", troubled ? "dibs tier status lists them" : NULL,
                         "%u, %zu of them in trouble with a tier; strictness %s", tiers.info.clients, troubled,
                         dibs__cli_strictness_name(tiers.info.strictness));
  }
  dibs__cli_tiers_free(&tiers);
}
