/* SPDX-License-Identifier: MIT */
/* Stocks over HTTP.  A claim is a resource of its own: PUT takes it, DELETE gives it back, and both may be repeated. */
#include "guard/guard.h"
#include "serve/page.h"

/* ---- Answers ---- */

static void write_stock(struct request *r, int status, const dibs_stock_result *result) {
  struct dibs__json *j = dibs__answer_begin(r, status);
  dibs__json_open(j, NULL, '{');
  dibs__json_text(j, "key", r->param[0]);
  if (r->param[1]) dibs__json_text(j, "claim", r->param[1]);
  if (r->param[1]) dibs__json_int(j, "amount", result->got);
  dibs__json_known(j, "used", result->used, result->used >= 0);
  dibs__json_known(j, "limit", result->limit, result->limit >= 0);
  dibs__json_close(j, '}');
  dibs__answer_end(r);
}

/* A repeated request gets the answer of the first one. */
static void answered(dibs_status status, const dibs_stock_result *result, const dibs_error *error, void *user) {
  struct request *r = user;
  if (status == DIBS_OK || status == DIBS_REPLAY)
    write_stock(r, status == DIBS_OK && r->method == METHOD_PUT && r->param[1] ? 201 : 200, result);
  else
    dibs__answer_problem(r, status, error);
}

static void start(struct request *r, enum dibs__stock_verb verb, int64_t amount, dibs_stock_options *options) {
  dibs_error error = {0};
  options->size = sizeof *options;
  dibs_status status = dibs__stock_start(r->server->store, verb, r->param[0], amount, options, answered, r, &error);
  if (status != DIBS_OK) dibs__answer_problem(r, status, &error);
}

/* ---- Claims ---- */

struct claim_in {
  int64_t amount;
  bool partial;
  const char *owner;
};

#define IN(member) offsetof(struct claim_in, member)
static const struct field claim_fields[] = {
    {.name = "amount",
     .kind = FIELD_NUMBER,
     .at = IN(amount),
     .least = 1,
     .most = INT64_MAX,
     .help = "how much to take; 1 if it is not given"},
    {.name = "partial", .kind = FIELD_FLAG, .at = IN(partial), .help = "take the rest if it is less than amount"},
    {.name = "owner",
     .at = IN(owner),
     .least = 1,
     .most = DIBS_OWNER_MAX,
     .help = "a label for people; the label of the token if it is not given"},
    {.name = NULL}};

static void put_claim(struct request *r) {
  const struct claim_in *in = r->in;
  dibs_stock_options options = {
      .claim = r->param[1], .owner = dibs__auth_owner(r, in->owner), .flags = in->partial ? DIBS_TAKE_PARTIAL : 0};
  start(r, DIBS__STOCK_TAKE, in->amount == FIELD_UNSET ? 1 : in->amount, &options);
}

static void delete_claim(struct request *r) {
  dibs_stock_options options = {.claim = r->param[1]};
  start(r, DIBS__STOCK_GIVE, 0, &options);
}

/* ---- Stocks ---- */

struct stock_in {
  int64_t limit;
};
#undef IN
#define IN(member) offsetof(struct stock_in, member)
static const struct field stock_fields[] = {{.name = "limit",
                                             .kind = FIELD_NUMBER,
                                             .at = IN(limit),
                                             .most = INT64_MAX,
                                             .needed = true,
                                             .help = "how much there is, taken or not"},
                                            {.name = NULL}};

static void put_stock(struct request *r) {
  dibs_stock_options options = {.claim = NULL};
  start(r, DIBS__STOCK_SET, ((const struct stock_in *)r->in)->limit, &options);
}

static void get_stock(struct request *r) {
  dibs_stock_options options = {.claim = NULL};
  start(r, DIBS__STOCK_READ, 0, &options);
}

/* ---- A page of stocks ---- */

static void add_stock(const char *key, int64_t used, int64_t limit, void *user) {
  struct page_rows *rows = user;
  if (!dibs__rows_add(rows, "key", key)) return;
  dibs__json_int(rows->json, "used", used);
  dibs__json_int(rows->json, "limit", limit);
  dibs__json_close(rows->json, '}');
}

static const struct field stocks_fields[] = {PAGE_FIELDS(0), {.name = NULL}};

static void list_stocks(struct request *r) {
  const struct page *page = r->in;
  struct page_rows rows;
  dibs_error error = {0};
  dibs__rows_begin(r, &rows, "stocks", page->limit);
  dibs_status status =
      dibs__stock_list(r->server->store, page->prefix, page->after, (uint32_t)rows.limit + 1, add_stock, &rows, &error);
  dibs__rows_end(r, &rows, status, &error);
}

static void get_stocks(struct request *r) {
  dibs__pool_run(r, list_stocks, NULL);
}

/* ---- The routes ---- */

const struct route dibs__stock_routes[] = {
    {METHOD_PUT, "/v1/stocks/{key}/claims/{claim}", SCOPE_USE, put_claim, sizeof(struct claim_in), claim_fields,
     "takeFromStock", "200 201 404 409 412", "Take from a stock under a claim",
     "The caller chooses a unique name for the claim, and may repeat the request with it: it counts once.", NULL},
    {METHOD_DELETE, "/v1/stocks/{key}/claims/{claim}", SCOPE_USE, delete_claim, 0, NULL, "giveBackToStock",
     "200 404 412", "Give back what a claim took", "", NULL},
    {METHOD_PUT, "/v1/stocks/{key}", SCOPE_USE, put_stock, sizeof(struct stock_in), stock_fields, "setStock", "200 409",
     "Create a stock, or set its limit", "", NULL},
    {METHOD_GET, "/v1/stocks/{key}", SCOPE_READ, get_stock, 0, NULL, "showStock", "200 404",
     "The used units of a stock, and its limit", "", NULL},
    {METHOD_GET, "/v1/stocks", SCOPE_READ, get_stocks, sizeof(struct page), stocks_fields, "listStocks", "200",
     "Stocks, page by page", "By key, in the order of bytes.", NULL},
    {.path = NULL}};
