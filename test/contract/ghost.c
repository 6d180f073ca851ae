/* SPDX-License-Identifier: MIT */
/*
 * Ghosts: clients that die without closing their session. A driver's own hook is used if it has one; otherwise another
 * process opens the store, sends its request, and is killed.
 */
#include "harness.h"

#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

struct answer {
  dibs__status status;
  uint64_t fence, ticket;
};

static void hex_id(dibs__id id, char to[33]) {
  for (size_t i = 0; i < sizeof id.b; i++) snprintf(to + 2 * i, 3, "%02x", id.b[i]);
}

static dibs__id id_from(const char *hex) {
  dibs__id id = {{0}};
  for (size_t i = 0; i < sizeof id.b; i++) {
    unsigned byte = 0;
    sscanf(hex + 2 * i, "%2x", &byte);
    id.b[i] = (uint8_t)byte;
  }
  return id;
}

/* Reads the child's one answer and kills it. */
static struct answer read_answer_and_kill(pid_t child, int from) {
  struct answer answer = {.status = DIBS_UNKNOWN};
  ssize_t n = read(from, &answer, sizeof answer);
  int status;
  close(from);
  kill(child, SIGKILL);
  waitpid(child, &status, 0);
  if (n != (ssize_t)sizeof answer) fail_msg("the process that should send the request printed no answer");
  return answer;
}

static struct dibs__lease_op ghost_process(struct dibs__lease_op op) {
  char self[] = "/proc/self/exe", flag[] = "--ghost", out[16], hex[33], mode[16], slots[16], ms[16], skew[24],
       name[300], uri[1500];
  char *argv[] = {self, flag, out, uri, name, hex, mode, slots, ms, skew, NULL};
  int ends[2];
  pid_t child;
  assert_int_equal(pipe(ends), 0);
  snprintf(out, sizeof out, "%d", ends[1]);
  snprintf(uri, sizeof uri, "%s", case_store_uri());
  snprintf(name, sizeof name, "%.*s", (int)op.name.len, op.name.p);
  hex_id(op.id, hex);
  snprintf(mode, sizeof mode, "%u", op.mode);
  snprintf(slots, sizeof slots, "%u", op.slots);
  snprintf(ms, sizeof ms, "%u", op.ttl_ms);
  snprintf(skew, sizeof skew, "%lld", (long long)time_advanced());
  assert_int_equal(posix_spawn(&child, self, NULL, NULL, argv, environ), 0);
  close(ends[1]);
  struct answer answer = read_answer_and_kill(child, ends[0]);
  op.op.status = answer.status;
  op.fence.v = answer.fence;
  op.ticket = answer.ticket;
  return op;
}

struct dibs__lease_op ghost_as(const char *name, int id, struct how how) {
  struct party *p = party();
  if (target()->kill) {
    struct dibs__lease_op op = acquire_as(p, name, id, how);
    target()->kill(innermost(p));
    return op;
  }
  struct dibs__lease_op op = lease_op(p, DIBS__ACQUIRE, name, id, how);
  close_party(p);
  op = ghost_process(op);
  if (target()->bury) {
    p = party();
    target()->bury(innermost(p), op.id);
    close_party(p);
  }
  return op;
}

int ghost_main(int argc, char *argv[]) {
  struct dibs__uri uri;
  struct dibs__chain chain;
  struct dibs__result reported = {0};
  struct dibs__session *session;
  struct dibs__identity identity;
  dibs__tick by = dibs__tick_add_ms(dibs__tick_now(), 10000);
  if (argc != 8) return 2;
  if (dibs__uri_parse(argv[1], &uri, &reported)) return 2;
  uri.as_tier = open_as_tier();
  if (dibs__chain_open(&uri, NULL, by, &chain, &reported)) return 2;
  const struct dibs__driver *driver = chain.stores[0]->driver;
  const struct contract_target *t = contract_target_of(uri.scheme);
  if (t->own_clocks && atoll(argv[7])) t->skew(chain.stores[chain.count - 1], atoll(argv[7]));
  if (driver->connect(chain.stores[0], by, &session, &identity, &reported)) return 2;
  struct dibs__lease_op op = {.name = dibs__str_of(argv[2], strlen(argv[2])), .id = id_from(argv[3])};
  struct dibs__op *ops[] = {&op.op};
  op.op.family = DIBS__FAM_LEASE;
  op.op.verb = DIBS__ACQUIRE;
  op.op.bucket = dibs__bucket(op.name);
  op.op.mandate = identity.mandate;
  op.owner = dibs__str_of("ghost", 5);
  op.mode = (uint32_t)atoi(argv[4]);
  op.slots = (uint32_t)atoi(argv[5]);
  op.ttl_ms = (uint32_t)atoi(argv[6]);
  op.queue = true;
  for (int i = 0; i < 3; i++) {
    op.op.status = DIBS_UNKNOWN;
    if (driver->run(session, ops, 1, by, &reported) || op.op.status != DIBS__MOVED) break;
    op.op.mandate = op.op.has;
  }
  struct answer answer = {op.op.status, op.fence.v, op.ticket};
  if (write(atoi(argv[0]), &answer, sizeof answer) != (ssize_t)sizeof answer) return 2;
  for (;;) dibs__nap_ms(1000); /* until the parent kills this process */
}
