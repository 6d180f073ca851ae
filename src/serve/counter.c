/* SPDX-License-Identifier: MIT */
/*
 * Counters and quotas over HTTP.  An addition has no id of the client's: a client that does not get the answer does not
 * know whether it counted.  Requests that add at the same time share a batch, as the threads of a program do.
 */
#include "counter/counter.h"
#include "serve/page.h"

/* ---- Adding ---- */

static const char *const levels[] = {"durable", "buffered", "shared", NULL}; /* as dibs_count_level */

struct add_in {
  int64_t delta;
  int32_t level;
};
#define IN(member) offsetof(struct add_in, member)
static const struct field add_fields[] = {
    {.name = "delta",
     .kind = FIELD_NUMBER,
     .at = IN(delta),
     .least = INT64_MIN + 1,
     .most = INT64_MAX,
     .help = "how much to add, or to subtract if it is below 0; 1 if it is not given"},
    {.name = "level",
     .kind = FIELD_WORD,
     .at = IN(level),
     .words = levels,
     .help = "durable: answered when it is committed.  shared: answered when the fast store in front of the database "
             "has it; it is written to the database within 3 s.  buffered: answered at once, from the memory of the "
             "daemon, which writes it to the database within a second"},
    {.name = NULL}};

static void add(struct request *r) {
  const struct add_in *in = r->in;
  const dibs_counter_options options = {.size = sizeof options, .level = (dibs_count_level)in->level};
  int64_t delta = dibs__given_or(in->delta, 1);
  dibs_error error = {0};
  dibs_status status = dibs_counter_add(r->server->store, r->param[0], delta, &options, &error);
  if (status != DIBS_OK) {
    dibs__answer_problem(r, status, &error);
    return;
  }
  struct dibs__json *j = dibs__answer_begin(r, 200);
  dibs__json_open(j, NULL, '{');
  dibs__json_text(j, "key", r->param[0]);
  dibs__json_int(j, "delta", delta);
  dibs__json_text(j, "level", levels[in->level]);
  dibs__json_close(j, '}');
}

static void post_counter(struct request *r) {
  dibs__pool_run(r, add, NULL);
}

/* ---- Reading ---- */

static void show(struct request *r) {
  dibs_counter_value value = DIBS_COUNTER_VALUE_INIT;
  dibs_error error = {0};
  dibs_status status = dibs_counter_read(r->server->store, r->param[0], NULL, &value, &error);
  if (status != DIBS_OK) {
    dibs__answer_problem(r, status, &error);
    return;
  }
  struct dibs__json *j = dibs__answer_begin(r, 200);
  dibs__json_open(j, NULL, '{');
  dibs__json_text(j, "key", r->param[0]);
  dibs__json_int(j, "value", value.value);
  dibs__json_int(j, "stored", value.stored);
  dibs__json_known(j, "shared", value.shared, (value.parts & DIBS_COUNT_SHARED_PART) != 0);
  dibs__json_int(j, "buffered", value.buffered);
  dibs__json_close(j, '}');
}

static void get_counter(struct request *r) {
  dibs__pool_run(r, show, NULL);
}

static int add_row(const char *key, int64_t stored, void *user) {
  struct page_rows *rows = user;
  if (!dibs__rows_add(rows, "key", key)) return 1;
  dibs__json_int(rows->json, "value", stored);
  dibs__json_close(rows->json, '}');
  return 0;
}

static const struct field counters_fields[] = {PAGE_FIELDS(0), {.name = NULL}};

static void list_counters(struct request *r) {
  const struct page *page = r->in;
  struct page_rows rows;
  dibs_error error = {0};
  dibs__rows_begin(r, &rows, "counters", page->limit);
  dibs_status status = dibs__counter_list(r->server->store, page->prefix, page->after, add_row, &rows, &error);
  dibs__rows_end(r, &rows, status, &error);
}

static void get_counters(struct request *r) {
  dibs__pool_run(r, list_counters, NULL);
}

/* ---- Quotas ---- */

struct take_in {
  int64_t limit, per_ms, amount;
};
#undef IN
#define IN(member) offsetof(struct take_in, member)
static const struct field take_fields[] = {{.name = "limit",
                                            .kind = FIELD_NUMBER,
                                            .at = IN(limit),
                                            .least = 1,
                                            .most = 1000000000,
                                            .needed = true,
                                            .help = "at most so many at once, and in `per` in the long run"},
                                           {.name = "per",
                                            .kind = FIELD_DURATION,
                                            .at = IN(per_ms),
                                            .least = 1,
                                            .most = INT64_C(31) * 86400000,
                                            .needed = true,
                                            .help = "the time in which the limit is allowed"},
                                           {.name = "amount",
                                            .kind = FIELD_NUMBER,
                                            .at = IN(amount),
                                            .least = 1,
                                            .most = 1000000000,
                                            .help = "how much to take, at most the limit; 1 if it is not given"},
                                           {.name = NULL}};

/* A refusal is an answer. */
static void take(struct request *r) {
  const struct take_in *in = r->in;
  const dibs_rate_options options = {
      .size = sizeof options, .limit = in->limit, .per_ms = in->per_ms, .amount = dibs__given_or(in->amount, 1)};
  int64_t retry_ms;
  dibs_error error = {0};
  dibs_status status = dibs_rate(r->server->store, r->param[0], &options, &retry_ms, &error);
  if (status != DIBS_OK && status != DIBS_FULL) {
    dibs__answer_problem(r, status, &error);
    return;
  }
  struct dibs__json *j = dibs__answer_begin(r, 200);
  dibs__json_open(j, NULL, '{');
  dibs__json_text(j, "key", r->param[0]);
  dibs__json_bool(j, "allowed", status == DIBS_OK);
  dibs__json_int(j, "retry_ms", retry_ms);
  dibs__json_close(j, '}');
}

static void post_quota(struct request *r) {
  dibs__pool_run(r, take, NULL);
}

/* ---- Shared sums ---- */

/* A daemon writes them for programs that live too short to do it. */
bool dibs__counters_open(struct server *server) {
  (void)dibs__counter_serve(server->store);
  return true;
}

/* ---- The routes ---- */

const struct route dibs__counter_routes[] = {
    {METHOD_POST, "/v1/counters/{key}", SCOPE_USE, post_counter, sizeof(struct add_in), add_fields, "addToCounter",
     "200 409", "Add to a counter",
     "The first addition creates the counter.  Do not repeat a request that was not answered unless it may count "
     "twice.",
     NULL},
    {METHOD_GET, "/v1/counters/{key}", SCOPE_READ, get_counter, 0, NULL, "showCounter", "200 404 409",
     "The value of a counter: what is stored, what is shared, and what this daemon has buffered",
     "`shared` is null if the fast store does not answer: then `value` may be too small.", NULL},
    {METHOD_GET, "/v1/counters", SCOPE_READ, get_counters, sizeof(struct page), counters_fields, "listCounters", "200",
     "Counters, page by page", "By key, in the order of bytes; their stored values.", NULL},
    {METHOD_POST, "/v1/quotas/{key}", SCOPE_USE, post_quota, sizeof(struct take_in), take_fields, "takeFromQuota",
     "200", "Take from a quota that all clients share",
     "`allowed` is false if less is left; then nothing was taken, and `retry_ms` says when to try again.", NULL},
    {.path = NULL}};
