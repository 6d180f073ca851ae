/* SPDX-License-Identifier: MIT */
/*
 * Documents, and what the memory driver makes of them.  A reader of the database sees words and numbers:
 *
 *   leases   {_id: NAME, v, fence, tickets, claims: [{id, state, mode, ..., until, owner}], breaks: [...]}
 *   records  {_id: KEY, v, fence, lease, version, data}
 *   once     {_id: KEY, v, fence, attempt, made, until, delete_at, answer}
 *   stocks   see stock.c
 *   rates    {_id: KEY, v, full_ns, delete_at}
 *
 * Data that is text is kept as text, all other data as bytes.
 */
#include "drivers/mongodb/mongodb_impl.h"
#include "store/counter.h"

#include <stdlib.h>
#include <string.h>

#define DAY_MS INT64_C(86400000)

static const char *const states[] = {"holds", "breaking", "offered", "waits", "asleep"};
static const char *const modes[] = {"exclusive", "shared", "counted"};

bool dibs__mongo_place(const struct dibs__op *op, enum dibs__mongo_kind *kind, dibs__str *key) {
  switch (op->family) {
  case DIBS__FAM_LEASE:
    *kind = DIBS__MONGO_LEASE;
    *key = ((const struct dibs__lease_op *)op)->name;
    return true;
  case DIBS__FAM_RECORD:
    *kind = DIBS__MONGO_RECORD;
    *key = ((const struct dibs__record_op *)op)->key;
    return true;
  case DIBS__FAM_ONCE:
    *kind = DIBS__MONGO_ONCE;
    *key = ((const struct dibs__once_op *)op)->key;
    return true;
  case DIBS__FAM_STOCK:
    *kind = DIBS__MONGO_STOCK;
    *key = ((const struct dibs__stock_op *)op)->key;
    return true;
  case DIBS__FAM_COUNTER: /* TAKE */
    *kind = DIBS__MONGO_RATE;
    *key = ((const struct dibs__counter_op *)op)->key;
    return true;
  default:
    return false;
  }
}

/* ---- Fields ---- */

int64_t dibs__mongo_number_in(const bson_t *from, const char *field, int64_t otherwise) {
  bson_iter_t at;
  return bson_iter_init_find(&at, from, field) && BSON_ITER_HOLDS_NUMBER(&at) ? bson_iter_as_int64(&at) : otherwise;
}

/* Text or bytes, which stay in the document. */
dibs__str dibs__mongo_bytes_in(const bson_t *from, const char *field) {
  bson_iter_t at;
  uint32_t len = 0;
  if (!bson_iter_init_find(&at, from, field)) return (dibs__str){0};
  if (BSON_ITER_HOLDS_UTF8(&at)) {
    const char *text = bson_iter_utf8(&at, &len);
    return dibs__str_of(text, len);
  }
  if (!BSON_ITER_HOLDS_BINARY(&at)) return (dibs__str){0};
  const uint8_t *bytes;
  bson_iter_binary(&at, NULL, &len, &bytes);
  return dibs__str_of((const char *)bytes, len);
}

static int word_in(const bson_t *from, const char *field, const char *const words[], size_t count) {
  dibs__str word = dibs__mongo_bytes_in(from, field);
  for (size_t i = 0; i < count; i++)
    if (word.len == strlen(words[i]) && memcmp(word.p, words[i], word.len) == 0) return (int)i;
  return -1;
}

bool dibs__mongo_put_bytes(bson_t *to, const char *field, dibs__str data) {
  static const char nothing[1];
  const char *from = data.len ? data.p : nothing;
  if (bson_utf8_validate(from, data.len, false)) return bson_append_utf8(to, field, -1, from, (int)data.len);
  return bson_append_binary(to, field, -1, BSON_SUBTYPE_BINARY, (const uint8_t *)from, data.len);
}

/* ---- Leases ---- */

static bool decode_claim(struct dibs__memory *memory, struct dibs__mem_name *name, const bson_t *from) {
  dibs__str id = dibs__mongo_bytes_in(from, "id"), owner = dibs__mongo_bytes_in(from, "owner");
  int state = word_in(from, "state", states, sizeof states / sizeof states[0]);
  int mode = word_in(from, "mode", modes, sizeof modes / sizeof modes[0]);
  if (id.len != sizeof(dibs__id) || state < 0 || mode < 0 || owner.len > DIBS_OWNER_MAX) return false;
  int64_t slots = dibs__mongo_number_in(from, "slots", 0), slot = dibs__mongo_number_in(from, "slot", 0);
  /* The memory driver has an array of so many slots. */
  if (mode == DIBS_COUNTED && (slots < 1 || slots > DIBS_SLOTS_MAX || slot < 0 || slot >= slots)) return false;
  struct dibs__mem_claim *c = calloc(1, sizeof *c + owner.len + 1);
  if (!c) return false;
  c->name = name;
  memcpy(c->id.b, id.p, sizeof c->id.b);
  c->state = (enum dibs__mem_state)state;
  c->mode = (uint32_t)mode;
  c->slots = mode == DIBS_COUNTED ? (uint32_t)slots : 0;
  c->slot = mode == DIBS_COUNTED ? (uint32_t)slot : 0;
  c->ttl_ms = (uint32_t)dibs__mongo_number_in(from, "ttl_ms", 0);
  c->session = (uint64_t)dibs__mongo_number_in(from, "session", 0);
  c->ticket = (uint64_t)dibs__mongo_number_in(from, "ticket", 0);
  c->granted.v = (uint64_t)dibs__mongo_number_in(from, "granted", 0);
  c->first.v = (uint64_t)dibs__mongo_number_in(from, "fence", 0);
  c->block = (uint32_t)dibs__mongo_number_in(from, "block", 0);
  c->until = dibs__mongo_number_in(from, "until", INT64_MAX);
  c->since = dibs__mongo_number_in(from, "since", 0);
  c->requested_since = dibs__mongo_number_in(from, "requested", 0);
  c->owner_len = owner.len;
  if (owner.len) memcpy(c->owner, owner.p, owner.len);
  dibs__mem_claim_link(memory, c);
  return true;
}

static bool encode_claim(bson_t *to, const struct dibs__mem_claim *c) {
  bool fine = bson_append_binary(to, "id", -1, BSON_SUBTYPE_BINARY, c->id.b, sizeof c->id.b) &&
              BSON_APPEND_UTF8(to, "state", states[c->state]) && BSON_APPEND_UTF8(to, "mode", modes[c->mode]) &&
              dibs__mongo_put_bytes(to, "owner", dibs__str_of(c->owner, c->owner_len)) &&
              BSON_APPEND_INT64(to, "ttl_ms", c->ttl_ms) && BSON_APPEND_INT64(to, "session", (int64_t)c->session) &&
              BSON_APPEND_INT64(to, "ticket", (int64_t)c->ticket) &&
              BSON_APPEND_INT64(to, "requested", c->requested_since);
  if (c->mode == DIBS_COUNTED)
    fine = fine && BSON_APPEND_INT64(to, "slots", c->slots) && BSON_APPEND_INT64(to, "slot", c->slot);
  if (c->until != INT64_MAX) fine = fine && BSON_APPEND_INT64(to, "until", c->until);
  if (c->since) fine = fine && BSON_APPEND_INT64(to, "since", c->since);
  if (c->first.v == 0) return fine;
  return fine && BSON_APPEND_INT64(to, "granted", (int64_t)c->granted.v) &&
         BSON_APPEND_INT64(to, "fence", (int64_t)c->first.v) && BSON_APPEND_INT64(to, "block", c->block);
}

static bool decode_break(struct dibs__mem_name *name, const bson_t *from) {
  dibs__str owner = dibs__mongo_bytes_in(from, "owner");
  if (!name->breaks) name->breaks = calloc(DIBS__MEM_BREAKS, sizeof *name->breaks);
  int64_t mode = dibs__mongo_number_in(from, "mode", 0);
  if (!name->breaks || owner.len > DIBS__BREAK_OWNER_MAX || mode < 0 || mode > DIBS_COUNTED) return false;
  struct dibs__mem_break *to = &name->breaks[name->break_count++ % DIBS__MEM_BREAKS];
  to->at = dibs__mongo_number_in(from, "at", 0);
  to->fence.v = (uint64_t)dibs__mongo_number_in(from, "fence", 0);
  to->mode = (uint32_t)mode;
  to->owner_len = owner.len;
  if (owner.len) memcpy(to->owner, owner.p, owner.len);
  return true;
}

static bool encode_breaks(bson_t *to, const struct dibs__mem_name *name) {
  uint32_t count = name->break_count < DIBS__MEM_BREAKS ? name->break_count : DIBS__MEM_BREAKS;
  bool fine = true;
  for (uint32_t i = 0; i < count; i++) {
    const struct dibs__mem_break *b = &name->breaks[(name->break_count - count + i) % DIBS__MEM_BREAKS];
    char index[12];
    const char *key;
    bson_t one;
    bson_uint32_to_string(i, &key, index, sizeof index);
    fine = fine && bson_append_document_begin(to, key, -1, &one) && BSON_APPEND_INT64(&one, "at", b->at) &&
           BSON_APPEND_INT64(&one, "fence", (int64_t)b->fence.v) && BSON_APPEND_INT64(&one, "mode", b->mode) &&
           dibs__mongo_put_bytes(&one, "owner", dibs__str_of(b->owner, b->owner_len)) &&
           bson_append_document_end(to, &one);
  }
  return fine;
}

typedef bool each_fn(void *memory, struct dibs__mem_name *name, const bson_t *from);

static bool each_claim(void *memory, struct dibs__mem_name *name, const bson_t *from) {
  return decode_claim(memory, name, from);
}
static bool each_break(void *memory, struct dibs__mem_name *name, const bson_t *from) {
  (void)memory;
  return decode_break(name, from);
}

static bool decode_array(struct dibs__memory *memory, struct dibs__mem_name *name, const bson_t *from,
                         const char *field, each_fn *each) {
  bson_iter_t at, in;
  if (!bson_iter_init_find(&at, from, field)) return true;
  if (!BSON_ITER_HOLDS_ARRAY(&at) || !bson_iter_recurse(&at, &in)) return false;
  while (bson_iter_next(&in)) {
    uint32_t len;
    const uint8_t *bytes;
    bson_t one;
    if (!BSON_ITER_HOLDS_DOCUMENT(&in)) return false;
    bson_iter_document(&in, &len, &bytes);
    if (!bson_init_static(&one, bytes, len) || !each(memory, name, &one)) return false;
  }
  return true;
}

static bool row_fits(const struct dibs__mem_row *row, uint32_t mode, uint32_t slots) {
  for (const struct dibs__mem_claim *c = row->first; c; c = c->after)
    if (c->mode != mode || c->slots != slots) return false;
  return true;
}

/* R9, which the memory driver relies on: counted holders and offers are alike, and no more than their slots. */
static bool holders_fit(const struct dibs__mem_name *name) {
  const struct dibs__mem_claim *first = name->holders.first ? name->holders.first : name->offered.first;
  uint64_t count = (uint64_t)name->holders.count + name->offered.count;
  return !first ||
         (row_fits(&name->holders, first->mode, first->slots) && row_fits(&name->offered, first->mode, first->slots) &&
          (first->mode != DIBS_COUNTED || count <= first->slots));
}

static dibs__status decode_lease(struct dibs__memory *memory, struct dibs__mongo_document *d, const bson_t *from) {
  d->fence = (uint64_t)dibs__mongo_number_in(from, "fence", 0);
  d->tickets = (uint64_t)dibs__mongo_number_in(from, "tickets", 0);
  struct dibs__mem_name *name = dibs__mem_name_get(memory, dibs__str_of(d->key, d->key_len));
  if (!name) return DIBS_NO_MEMORY;
  bool fine =
      decode_array(memory, name, from, "claims", each_claim) && decode_array(memory, name, from, "breaks", each_break);
  return fine && holders_fit(name) ? DIBS_OK : DIBS_CORRUPT;
}

static bool is_gone(const struct dibs__mongo_document *d, const struct dibs__mem_claim *c) {
  size_t i = 0;
  if (c->state != DIBS__MEM_ASLEEP) return false;
  while (i < d->gone_count && d->gone[i] != c->session) i++;
  return i < d->gone_count;
}

static bool encode_row(bson_t *claims, uint32_t *count, const struct dibs__mongo_document *d,
                       const struct dibs__mem_row *row) {
  for (const struct dibs__mem_claim *c = row->first; c; c = c->after) {
    char index[12];
    const char *key;
    bson_t one;
    if (is_gone(d, c)) continue;
    bson_uint32_to_string((*count)++, &key, index, sizeof index);
    if (!bson_append_document_begin(claims, key, -1, &one) || !encode_claim(&one, c) ||
        !bson_append_document_end(claims, &one))
      return false;
  }
  return true;
}

static bool encode_lease(bson_t *to, const struct dibs__memory *memory, const struct dibs__mongo_document *d) {
  const struct dibs__mem_name *name = dibs__mem_name_find(memory, dibs__str_of(d->key, d->key_len));
  bson_t part;
  uint32_t count = 0;
  bool fine = BSON_APPEND_INT64(to, "fence", (int64_t)d->fence) &&
              BSON_APPEND_INT64(to, "tickets", (int64_t)d->tickets) && BSON_APPEND_ARRAY_BEGIN(to, "claims", &part);
  if (name)
    fine = fine && encode_row(&part, &count, d, &name->holders) && encode_row(&part, &count, d, &name->offered) &&
           encode_row(&part, &count, d, &name->waiting) && encode_row(&part, &count, d, &name->asleep);
  fine = fine && bson_append_array_end(to, &part);
  if (!name || !name->breaks) return fine;
  return fine && BSON_APPEND_ARRAY_BEGIN(to, "breaks", &part) && encode_breaks(&part, name) &&
         bson_append_array_end(to, &part);
}

/* ---- Records and once keys ---- */

/* `data`, and its length. */
static dibs__status copy_data(const bson_t *from, const char *field, char **data, uint32_t *len) {
  bson_iter_t at;
  *data = NULL;
  *len = 0;
  if (!bson_iter_init_find(&at, from, field)) return DIBS_OK;
  if (!BSON_ITER_HOLDS_UTF8(&at) && !BSON_ITER_HOLDS_BINARY(&at)) return DIBS_CORRUPT;
  dibs__str bytes = dibs__mongo_bytes_in(from, field);
  if (bytes.len > DIBS_RECORD_MAX) return DIBS_CORRUPT;
  *data = malloc((size_t)bytes.len + 1);
  if (!*data) return DIBS_NO_MEMORY;
  if (bytes.len) memcpy(*data, bytes.p, bytes.len);
  (*data)[bytes.len] = '\0';
  *len = bytes.len;
  return DIBS_OK;
}

static dibs__status decode_record(struct dibs__memory *memory, const struct dibs__mongo_document *d,
                                  const bson_t *from) {
  struct dibs__mem_record *r = dibs__mem_record_get(memory, dibs__str_of(d->key, d->key_len));
  if (!r) return DIBS_NO_MEMORY;
  r->fence.v = (uint64_t)dibs__mongo_number_in(from, "fence", 0);
  r->digest = (uint64_t)dibs__mongo_number_in(from, "lease", 0);
  r->version = (uint64_t)dibs__mongo_number_in(from, "version", 0);
  return copy_data(from, "data", &r->data, &r->data_len);
}

static bool encode_record(bson_t *to, const struct dibs__mem_record *r) {
  bool fine = BSON_APPEND_INT64(to, "fence", (int64_t)r->fence.v) &&
              BSON_APPEND_INT64(to, "lease", (int64_t)r->digest) &&
              BSON_APPEND_INT64(to, "version", (int64_t)r->version);
  if (r->data) fine = fine && dibs__mongo_put_bytes(to, "data", dibs__str_of(r->data, r->data_len));
  return fine;
}

static dibs__status decode_once(struct dibs__memory *memory, const struct dibs__mongo_document *d, const bson_t *from) {
  struct dibs__mem_once *o = dibs__mem_once_get(memory, dibs__str_of(d->key, d->key_len));
  if (!o) return DIBS_NO_MEMORY;
  o->fence.v = (uint64_t)dibs__mongo_number_in(from, "fence", 0);
  o->owner = (uint64_t)dibs__mongo_number_in(from, "attempt", 0);
  o->made = dibs__mongo_number_in(from, "made", 0);
  o->until = dibs__mongo_number_in(from, "until", 0);
  return copy_data(from, "answer", &o->data, &o->data_len);
}

/* The server deletes it a day after its time. */
static bool encode_once(bson_t *to, const struct dibs__mem_once *o) {
  int64_t delete_at = o->until < INT64_MAX - DAY_MS ? o->until + DAY_MS : INT64_MAX;
  bool fine = BSON_APPEND_INT64(to, "fence", (int64_t)o->fence.v) &&
              BSON_APPEND_INT64(to, "attempt", (int64_t)o->owner) && BSON_APPEND_INT64(to, "made", o->made) &&
              BSON_APPEND_INT64(to, "until", o->until) && BSON_APPEND_DATE_TIME(to, "delete_at", delete_at);
  if (o->data) fine = fine && dibs__mongo_put_bytes(to, "answer", dibs__str_of(o->data, o->data_len));
  return fine;
}

/* ---- Quotas ---- */

static dibs__status decode_rate(struct dibs__memory *memory, const struct dibs__mongo_document *d, const bson_t *from) {
  struct dibs__mem_rate *r = dibs__mem_rate_keep(memory, dibs__str_of(d->key, d->key_len), INT64_MIN);
  if (!r) return DIBS_NO_MEMORY;
  r->full_ns = dibs__mongo_number_in(from, "full_ns", -1);
  return r->full_ns < 0 ? DIBS_CORRUPT : DIBS_OK;
}

/* A bucket that is full again is the same as none: the server deletes it a day later. */
static bool encode_rate(bson_t *to, const struct dibs__mem_rate *r) {
  return BSON_APPEND_INT64(to, "fence", 0) && BSON_APPEND_INT64(to, "full_ns", r->full_ns) &&
         BSON_APPEND_DATE_TIME(to, "delete_at", r->full_ns / DIBS__NS_PER_MS + DAY_MS);
}

/* ---- All kinds ---- */

dibs__status dibs__mongo_decode(struct dibs__memory *memory, struct dibs__mongo_document *d) {
  const bson_t *from = d->seen;
  bson_iter_t at;
  d->fence = d->tickets = 0;
  if (!from) return DIBS_OK;
  /* Each of ours has these.  Without its version no document could be replaced. */
  if (!bson_iter_init_find(&at, from, "v") || !BSON_ITER_HOLDS_INT64(&at) ||
      dibs__mongo_number_in(from, "fence", -1) < 0)
    return DIBS_CORRUPT;
  switch (d->kind) {
  case DIBS__MONGO_LEASE:
    return decode_lease(memory, d, from);
  case DIBS__MONGO_RECORD:
    return decode_record(memory, d, from);
  case DIBS__MONGO_ONCE:
    return decode_once(memory, d, from);
  case DIBS__MONGO_STOCK:
    return dibs__mongo_stock_decode(memory, d);
  case DIBS__MONGO_RATE:
    return decode_rate(memory, d, from);
  default:
    return DIBS_UNSUPPORTED;
  }
}

bson_t *dibs__mongo_encode(struct dibs__memory *memory, const struct dibs__mongo_document *d) {
  dibs__str key = dibs__str_of(d->key, d->key_len);
  bson_t *to = bson_new();
  bool fine = bson_append_utf8(to, "_id", -1, d->key, (int)d->key_len);
  if (d->kind == DIBS__MONGO_LEASE) {
    fine = fine && encode_lease(to, memory, d);
  } else if (d->kind == DIBS__MONGO_RECORD) {
    const struct dibs__mem_record *r = dibs__mem_record_find(memory, key);
    if (r) fine = fine && encode_record(to, r);
  } else if (d->kind == DIBS__MONGO_STOCK) {
    fine = fine && dibs__mongo_stock_encode(to, memory, d);
  } else if (d->kind == DIBS__MONGO_RATE) {
    const struct dibs__mem_rate *r = dibs__mem_rate_find(memory, key);
    if (r) fine = fine && encode_rate(to, r);
  } else {
    const struct dibs__mem_once *o = dibs__mem_once_find(memory, key);
    if (o) fine = fine && encode_once(to, o);
  }
  if (fine) return to;
  bson_destroy(to);
  return NULL;
}
