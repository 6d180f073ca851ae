/* SPDX-License-Identifier: MIT */
/* `dibs record`: records that refuse a writer who comes too late. */
#include "cli/record.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* One verb: what it needs, and what it does. */
struct verb {
  const char *name;
  bool leases;  /* needs one */
  bool guards;  /* takes --if, --force and a lease that is set */
  bool creates; /* takes --create */
  bool tables;  /* takes --table */
  bool writes;  /* takes values, or standard input */
  int (*act)(struct record_call *call);
};

/* All of standard input, one byte more than is allowed so that too much is noticed. */
static int read_all(struct record_call *r) {
  const struct cli_globals *g = r->globals;
  size_t room = DIBS_RECORD_MAX + 1;
  r->data = malloc(room);
  if (r->data == NULL) return dibs__cli_fail(g, CLI_FAILED, "NO_MEMORY", "out of memory; nothing was written");
  while (r->length < room) {
    ssize_t got = read(STDIN_FILENO, r->data + r->length, room - r->length);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0)
      return dibs__cli_fail(g, CLI_FAILED, "", "standard input can't be read: %s; nothing was written",
                            strerror(errno));
    if (got == 0) return CLI_DONE;
    r->length += (size_t)got;
  }
  return dibs__cli_fail(g, CLI_USAGE, "INVALID", "a record has at most %d bytes; nothing was written", DIBS_RECORD_MAX);
}

static int load(struct record_call *r) {
  char *data = NULL;
  size_t length = 0;
  uint64_t fence = 0;
  dibs_error error = {0};
  dibs_status status = dibs_record_load(r->store, r->key, &data, &length, &fence, &error);
  int code = status == DIBS_OK ? dibs__cli_record_print(r, NULL, data, length, fence)
                               : dibs__cli_fail_status(r->globals, status, &error, r->key);
  free(data);
  return code;
}

static int save(struct record_call *r) {
  dibs_error error = {0};
  dibs_status status = dibs_record_save(r->store, r->key, r->lease, r->data, r->length, &error);
  if (status != DIBS_OK) return dibs__cli_fail_status(r->globals, status, &error, r->key);
  if (!r->globals->json) return CLI_DONE;
  struct cli_json j = {.out = stdout};
  dibs__cli_json_open(&j, NULL, '{');
  dibs__cli_json_text(&j, "key", r->key);
  dibs__cli_json_uint(&j, "fence", dibs_lease_fence(r->lease));
  dibs__cli_json_uint(&j, "length", r->length);
  dibs__cli_json_close(&j, '}');
  return dibs__cli_flush(r->globals);
}

static const struct verb verbs[] = {
    {.name = "get", .tables = true, .act = dibs__cli_record_get},
    {.name = "put", .tables = true, .guards = true, .creates = true, .writes = true, .act = dibs__cli_record_put},
    {.name = "seal", .tables = true, .leases = true, .act = dibs__cli_record_get},
    {.name = "rm", .tables = true, .guards = true, .act = dibs__cli_record_rm},
    {.name = "save", .leases = true, .writes = true, .act = save},
    {.name = "load", .act = load},
};
enum { VERBS = sizeof verbs / sizeof verbs[0] };

static const char *nth_verb(size_t i, const void *arg) {
  (void)arg;
  return i < VERBS ? verbs[i].name : NULL;
}

/* NULL: said. */
static const struct verb *find_verb(const struct cli_call *call) {
  const char *word = call->pos[0];
  for (size_t i = 0; i < VERBS; i++)
    if (strcmp(verbs[i].name, word) == 0) return &verbs[i];
  const char *near = dibs__cli_nearest(word, nth_verb, NULL);
  dibs__cli_fail(&call->v.globals, CLI_USAGE, "INVALID", "'%.40s' is none of get, put, seal, rm, save, load; %s%s%s",
                 word, near != NULL ? "did you mean " : "see dibs help record", near != NULL ? near : "",
                 near != NULL ? "?" : "");
  return NULL;
}

static int check(const struct cli_call *call, const struct verb *verb, bool leased) {
  const struct cli_globals *g = &call->v.globals;
  const struct cli_values *v = &call->v;
  const char *stray = NULL;
  if (v->table != NULL && !verb->tables) stray = "table";
  if (v->create && !verb->creates) stray = "create";
  if (v->if_version != NULL && !verb->guards) stray = "if";
  if (v->force && !verb->guards) stray = "force";
  if (stray != NULL) return dibs__cli_fail(g, CLI_USAGE, "INVALID", "record %s takes no --%s", verb->name, stray);
  if (call->npos > 2 && !(verb->writes && verb->tables))
    return dibs__cli_fail(g, CLI_USAGE, "INVALID", "'%.40s' is one word too many: dibs record %s KEY", call->pos[2],
                          verb->name);
  if (!verb->guards) return CLI_DONE;
  if (v->if_version != NULL && v->create)
    return dibs__cli_fail(g, CLI_USAGE, "INVALID", "what is to be created has no version: --if or --create");
  if (v->force && (v->if_version != NULL || v->create || leased))
    return dibs__cli_fail(g, CLI_USAGE, "INVALID", "--force is no guard at all: not with --if, --create or a lease%s",
                          leased ? "; unset DIBS_LEASE" : "");
  if (!v->force && v->if_version == NULL && !v->create && !leased)
    return dibs__cli_fail(g, CLI_USAGE, "INVALID",
                          "say how it is guarded: --if VERSION%s, a lease in DIBS_LEASE and DIBS_FENCE, or --force",
                          verb->creates ? ", --create" : "");
  return CLI_DONE;
}

int dibs__cli_record(struct cli_call *call) {
  struct record_call r = {.call = call, .globals = &call->v.globals, .key = call->pos[1]};
  const struct verb *verb = find_verb(call);
  struct cli_lease_in in = {0};
  const char *told = getenv("DIBS_LEASE");
  if (verb == NULL) return CLI_USAGE;
  bool leased = verb->leases || (verb->guards && told != NULL && *told != '\0');
  int code = check(call, verb, leased);
  if (code == CLI_DONE && leased) code = dibs__cli_lease_in(call, call->npos, &in);
  if (code == CLI_DONE) code = dibs__cli_table(call, &r.table);
  if (code == CLI_DONE && verb->writes) code = dibs__cli_record_values(&r);
  /* Before the store is opened: who writes into the pipe may take its time. */
  if (code == CLI_DONE && verb->writes && !r.given) code = read_all(&r);
  if (code == CLI_DONE) code = dibs__cli_open(r.globals, 0, &r.store);
  if (code == CLI_DONE && leased) code = dibs__cli_lease_adopt(call, r.store, &in, &r.lease);
  if (code == CLI_DONE) code = verb->act(&r);
  /* The lease is that of dibs run or dibs lock, and stays theirs. */
  if (r.lease != NULL) (void)!dibs_lease_detach(r.lease, NULL);
  dibs_lease_free(r.lease);
  dibs_close(r.store);
  dibs_table_free(r.table);
  free(r.data);
  return code;
}
