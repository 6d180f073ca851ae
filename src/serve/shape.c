/* SPDX-License-Identifier: MIT */
/*
 * Forms, in short: {name:FORM ...} is an object with these members, each of them required unless - is before its name;
 * [FORM] is an array.  s is a string, i an integer, n a number, b a boolean, * anything; ? after it: or null.
 */
#include "serve/shape.h"

#include <stddef.h>
#include <string.h>

#define LEASE                                                                                                          \
  "{name:s state:s owner:s mode:s fence:i? ttl_ms:i? left_ms:i age_ms:i? ahead:i slots:i tier:s? -taken_from:s?}"
#define TASK                                                                                                           \
  "task:i kind:s state:s phase:s key:s unique:s priority:i fence:i? attempts:i failures:i max_failures:i owner:s "     \
  "added_at_ms:i "                                                                                                     \
  "due_at_ms:i? claimed_at_ms:i? changed_at_ms:i text:s"
#define RUN                                                                                                            \
  "{name:s kind:s outcome:s code:i started_at_ms:i ended_at_ms:i duration_ms:i host:s fence:i? task:i? command:s? "    \
  "output:s?}"
#define KIND                                                                                                           \
  "kind:s arrived:i ready:i claimed:i waiting:i blocked:i parked:i done:i dead:i cancelled:i oldest_ready_age_ms:i? "  \
  "running_limit:i? paused:b keep_ms:i?"
#define GRANT "{name:s id:s fence:i? left_ms:i slot:i tier:s?}"
#define STOCK "{key:s used:i? limit:i?}"
#define CLAIM "{key:s claim:s amount:i used:i? limit:i?}"
#define OWNED "lane:i lanes:i owner:s? fence:i? left_ms:i? age_ms:i?"
#define ENDED "{tasks:[{task:i status:s}]}"
#define CHANGE "{change:s dry_run:b changed:i next:i?}"
#define ANSWER "{key:s answer:* age_ms:i left_ms:i}"
#define FLAG "{name:s percent:i}"
#define METRIC                                                                                                         \
  "{name:s type:s help:s samples:[{labels:* -value:n -count:i -sum:n -max:n -p50:n -p90:n -p99:n -p999:n "             \
  "-buckets:*}]}"
#define PROBLEM "{problem:s status:i meaning:s cause:s next_step:s}"
#define TIER                                                                                                           \
  "{name:s store:s down:b breaker_mode:s rollout_percent:i buckets:i buckets_wanted:i buckets_leaving:i "              \
  "state_age_ms:i? min_down_ms:i clients_active:i "                                                                    \
  "clients_down:i clients_up:i local:{breaker:s reachable:b last_error:s calls:i failed_percent:i slow_percent:i "     \
  "operations:i failures:i p50_ns:i? p99_ns:i? max_ns:i?}}"

static const struct {
  const char *operation, *form;
} forms[] = {
    {"acquireLease", GRANT},
    {"renewLease", GRANT},
    {"showLease", "{name:s leases:[" LEASE "]}"},
    {"listLeases", "{names:[{name:s leases:[" LEASE "] holders:i waiters:i stale_writes:i}] next:s?}"},
    {"takeFromStock", CLAIM},
    {"giveBackToStock", CLAIM},
    {"setStock", STOCK},
    {"showStock", STOCK},
    {"listStocks", "{stocks:[" STOCK "] next:s?}"},
    {"addToCounter", "{key:s delta:i level:s}"},
    {"showCounter", "{key:s value:i stored:i shared:i? buffered:i}"},
    {"listCounters", "{counters:[{key:s value:i}] next:s?}"},
    {"takeFromQuota", "{key:s allowed:b retry_ms:i}"},
    {"listTopics", "{topics:[{topic:s lanes:i members:i owned:i leaving:i}] next:s?}"},
    {"showTopic", "{topic:s lanes:i leaving:i recorded:b owners:[{" OWNED
                  "}] members:[{slot:i lanes:i owner:s left_ms:i age_ms:i?}]}"},
    {"resizeTopic", "{topic:s lanes:i leaving:i recorded:b}"},
    {"showLaneOfKey", "{topic:s key:s " OWNED "}"},
    {"joinTopic", "{topic:s slot:i id:s lanes:i left_ms:i}"},
    {"renewMember", "{topic:s slot:i state:s lanes:i? members:i left_ms:i held:[{lane:i lanes:i name:s id:s fence:i "
                    "left_ms:i keep:b}] "
                    "lost:[{lane:i lanes:i}]}"},
    {"beginOnce", "{key:s -id:s -fence:i -left_ms:i -answer:* -age_ms:i}"},
    {"storeOnce", ANSWER},
    {"showOnce", ANSWER},
    {"renewOnce", "{key:s id:s fence:i left_ms:i}"},
    {"addTasks", "{-task:i -status:s -tasks:[{task:i status:s}]}"},
    {"claimTasks", "{tasks:[{task:i kind:s fence:i payload:* failures:i age_ms:i}]}"},
    {"endTasks", ENDED},
    {"extendTasks", ENDED},
    {"listTasks", "{tasks:[{" TASK "}] next:i?}"},
    {"showTask",
     "{" TASK " payload_bytes:i payload:* errors:[{fence:i owner:s at_ms:i text:s}] runs:[" RUN "] more_runs:b}"},
    {"retryTasks", CHANGE},
    {"cancelTasks", CHANGE},
    {"purgeTasks", CHANGE},
    {"showOutbox",
     "{kind:s waiting:i sending:i dead:i delivered:i oldest_ready_age_ms:i? paused:b counted_age_ms:i tasks:[{" TASK
     "}] next:i?}"},
    {"retryMessages", CHANGE},
    {"purgeMessages", CHANGE},
    {"listKinds", "{kinds:[{" KIND "}] next:s? counted_age_ms:i}"},
    {"showKind", "{" KIND " counted_age_ms:i}"},
    {"setKind", "{" KIND " counted_age_ms:i}"},
    {"listPhases", "{phases:[{phase:s added:i claimed:i added_in_window:i claimed_in_window:i}] window_ms:i}"},
    {"listRuns", "{runs:[" RUN "] next:s? recording:b}"},
    {"listTiers",
     "{tiers:[" TIER "] clients:[{owner:s self:b age_ms:i tiers:[{name:s active:b down:b up:b breaker:s}] "
     "counts:*}] strictness:s pinned:s? all_tiers_down:b anchor_confirmed_age_ms:i? anchor_rollback_age_ms:i? "
     "epochs_left_percent:i client_count:i counts:*}"},
    {"listBreakers", "{breakers:[{tier:s breaker:s mode:s down:b calls:i failed_percent:i slow_percent:i "
                     "clients_down:i clients_up:i state_age_ms:i?}]}"},
    {"setBreaker", "{tier:s mode:s}"},
    {"listFlags", "{flags:[" FLAG "]}"},
    {"showFlag", FLAG},
    {"setFlag", FLAG},
    {"listFleets", "{fleets:[{fleet:s}] next:s?}"},
    {"showFleet",
     "{fleet:s jobs:[{name:s schedule:s zone:s command:s? next_at_ms:i? last_at_ms:i? last_outcome:s? last_code:i? "
     "missed:i last_missed_at_ms:i? skipped:i}]}"},
    {"fireJob", "{fleet:s job:s task:i}"},
    {"getSeries", "{step_ms:i step:i at_ms:i series:[{name:s label:s? points:[i?]}]}"},
    {"listMetrics", "{metrics:[" METRIC "]}"},
    {"showMetric", METRIC},
    {"getHealth", "{status:s}"},
    {"getReady", "{status:s}"},
    {"getOpenApi", "{openapi:s info:* paths:* components:*}"},
    {"getProblem", PROBLEM},
    {"listProblems", "{problems:[" PROBLEM "]}"},
};

/* Behind the form that begins here. */
static const char *pass(const char *at) {
  int depth = 0;
  do {
    depth += *at == '{' || *at == '[';
    depth -= *at == '}' || *at == ']';
    at++;
  } while (depth > 0);
  return *at == '?' ? at + 1 : at;
}

static const char *write_form(struct dibs__json *j, const char *at);

static void write_type(struct dibs__json *j, const char *type, bool nullable) {
  if (!nullable) {
    dibs__json_text(j, "type", type);
    return;
  }
  dibs__json_open(j, "type", '[');
  dibs__json_text(j, NULL, type);
  dibs__json_text(j, NULL, "null");
  dibs__json_close(j, ']');
}

/* Reads "name:" or "-name:"; returns where the rest begins. */
static const char *read_name(const char *at, char name[64], bool *optional) {
  *optional = *at == '-';
  at += *optional;
  size_t length = strcspn(at, ":");
  size_t kept = length < 63 ? length : 63;
  memcpy(name, at, kept);
  name[kept] = '\0';
  return at + length + 1;
}

static void write_object(struct dibs__json *j, const char *at) {
  char name[64];
  bool optional;
  const char *p = at + 1;
  dibs__json_text(j, "type", "object");
  dibs__json_open(j, "properties", '{');
  while (*p != '}') {
    p = read_name(p, name, &optional);
    dibs__json_open(j, name, '{');
    p = write_form(j, p);
    dibs__json_close(j, '}');
    while (*p == ' ') p++;
  }
  dibs__json_close(j, '}');
  dibs__json_open(j, "required", '[');
  for (p = at + 1; *p != '}';) {
    p = read_name(p, name, &optional);
    if (!optional) dibs__json_text(j, NULL, name);
    p = pass(p);
    while (*p == ' ') p++;
  }
  dibs__json_close(j, ']');
}

/* Returns where the rest begins. */
static const char *write_form(struct dibs__json *j, const char *at) {
  const char *end = pass(at);
  bool nullable = end[-1] == '?';
  switch (*at) {
  case '{':
    write_object(j, at);
    break;
  case '[':
    dibs__json_text(j, "type", "array");
    dibs__json_open(j, "items", '{');
    write_form(j, at + 1);
    dibs__json_close(j, '}');
    break;
  case 's':
    write_type(j, "string", nullable);
    break;
  case 'i':
    write_type(j, "integer", nullable);
    break;
  case 'n':
    write_type(j, "number", nullable);
    break;
  case 'b':
    write_type(j, "boolean", nullable);
    break;
  default:
    break;
  }
  return end;
}

bool dibs__shape_write(struct dibs__json *j, const char *operation) {
  size_t i = 0;
  while (i < sizeof forms / sizeof *forms && strcmp(forms[i].operation, operation) != 0) i++;
  if (i == sizeof forms / sizeof *forms) return false;
  write_form(j, forms[i].form);
  return true;
}
