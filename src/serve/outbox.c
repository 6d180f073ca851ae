/* SPDX-License-Identifier: MIT */
/*
 * An outbox (doc/outbox.md): the messages of a kind, which are tasks.  They are added as tasks; a relay delivers them.
 * Its dead letters are changed by the routes in task_list.c.
 */
#include "handle/handle.h"
#include "serve/kinds.h"
#include "serve/page.h"
#include "serve/task_list.h"

#include <string.h>

enum {
  SENDING = 1u << DIBS_TASK_CLAIMED,
  WAITING = 1u << DIBS_TASK_ARRIVED | 1u << DIBS_TASK_READY | 1u << DIBS_TASK_WAITING | 1u << DIBS_TASK_BLOCKED,
  DEAD = 1u << DIBS_TASK_DEAD | 1u << DIBS_TASK_PARKED,
  DELIVERED = 1u << DIBS_TASK_DONE
};

struct outbox_in {
  int32_t show;
  int64_t after, limit;
};

static const char *const show_words[] = {"waiting", "sending", "dead", "delivered", NULL};
static const uint32_t show_states[] = {WAITING, SENDING, DEAD, DELIVERED};

#define IN(member) offsetof(struct outbox_in, member)
static const struct field outbox_fields[] = {
    {.name = "state",
     .place = FIELD_QUERY,
     .kind = FIELD_WORD,
     .at = IN(show),
     .words = show_words,
     .help = "which messages the page has: waiting, the default; sending; dead, which includes parked ones; delivered"},
    {.name = "after",
     .place = FIELD_QUERY,
     .kind = FIELD_NUMBER,
     .at = IN(after),
     .most = INT64_MAX,
     .help = "only messages with larger numbers: the `next` of the page before"},
    PAGE_LIMIT(IN(limit)),
    {.name = NULL}};

static uint64_t count_of(const struct kind_row *row, uint32_t states) {
  uint64_t count = 0;
  for (uint32_t i = 0; i < DIBS_TASK_STATES; i++)
    if (states & 1u << i) count += row->states[i];
  return count;
}

static void write_counts(struct dibs__json *j, const struct kind_row *row, int64_t age_ms) {
  for (size_t i = 0; show_words[i]; i++) dibs__json_uint(j, show_words[i], count_of(row, show_states[i]));
  dibs__json_known(j, "oldest_ready_age_ms", row->oldest_ms, row->oldest_ms >= 0);
  dibs__json_bool(j, "paused", row->paused);
  dibs__json_int(j, "counted_age_ms", age_ms);
}

static void show_outbox(struct request *r) {
  const struct outbox_in *in = r->in;
  dibs_error error = {0};
  int64_t age_ms;
  struct kind_row row;
  dibs_task_filter filter = {.size = sizeof filter,
                             .kind = r->param[0],
                             .states = show_states[in->show],
                             .after = (uint64_t)dibs__given_or(in->after, 0)};
  dibs_status status = dibs__kinds_find(r->server, r->param[0], &row, &age_ms, &error);
  if (status == DIBS_OK) {
    struct dibs__json *j = dibs__answer_begin(r, 200);
    dibs__json_open(j, NULL, '{');
    dibs__json_text(j, "kind", r->param[0]);
    write_counts(j, &row, age_ms);
    status = dibs__tasks_page_write(r, &filter, in->limit, &error);
    dibs__json_close(j, '}');
  }
  if (status != DIBS_OK) dibs__answer_problem(r, status, &error);
}

static void get_outbox(struct request *r) {
  if (dibs__is_kind(r)) dibs__pool_run(r, show_outbox, NULL);
}

const struct route dibs__outbox_routes[] = {
    {METHOD_GET, "/v1/outbox/{kind}", SCOPE_READ, get_outbox, sizeof(struct outbox_in), outbox_fields, "showOutbox",
     "200", "How many messages of a kind wait, are being sent, are dead or delivered, and a page of them",
     "A message is a task: POST /v1/kinds/KIND/tasks adds one.  By number, the oldest first.  The counts are "
     "`counted_age_ms` old.",
     NULL},
    {.path = NULL}};
