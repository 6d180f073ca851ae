/* SPDX-License-Identifier: MIT */
/*
 * Whom a change notifies, and slots of counted leases, over a server: test_watch URI.  Each client is a store of its
 * own, with its own session.
 */
#include "drivers/zk/zk_impl.h"
#include "store/registry.h"

#include <dlfcn.h>
#include <netdb.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

enum { CLIENTS = 5, PATIENCE_MS = 20000, QUIET_MS = 300 };

static const char *store_uri, *name_end = "";

/* How often the client library has resolved host names. */
static _Atomic uint32_t resolved;
static int (*resolve)(const char *, const char *, const struct addrinfo *, struct addrinfo **); /* the system's */
__attribute__((visibility("default"))) int getaddrinfo(const char *node, const char *service,
                                                       const struct addrinfo *hints, struct addrinfo **found) {
  atomic_fetch_add(&resolved, 1);
  return resolve(node, service, hints, found);
}

struct client {
  struct dibs__chain chain;
  struct dibs__session *session;
  struct dibs__identity identity;
  struct dibs__lease_op op;
  uint8_t id;
};
static struct client clients[CLIENTS];

static dibs__tick soon(int64_t ms) {
  return dibs__tick_add_ms(dibs__tick_now(), ms);
}

static int open_clients(void **state) {
  struct dibs__uri uri;
  struct dibs__result result = {.text = ""};
  (void)state;
  if (dibs__uri_parse(store_uri, &uri, &result) != DIBS_OK) return -1;
  for (size_t i = 0; i < CLIENTS; i++) {
    struct client *c = &clients[i];
    *c = (struct client){.id = (uint8_t)(i + 1)};
    if (dibs__chain_open(&uri, NULL, soon(PATIENCE_MS), &c->chain, &result) != DIBS_OK ||
        c->chain.stores[0]->driver->connect(c->chain.stores[0], soon(PATIENCE_MS), &c->session, &c->identity,
                                            &result) != DIBS_OK) {
      print_error("%s\n", result.text);
      return -1;
    }
  }
  dibs__uri_free(&uri);
  return 0;
}

static int close_clients(void **state) {
  (void)state;
  for (size_t i = 0; i < CLIENTS; i++) {
    clients[i].chain.stores[0]->driver->disconnect(clients[i].session);
    dibs__chain_close(&clients[i].chain);
  }
  return 0;
}

/* The operation of client i, on a name of this test process. */
static dibs__status run(size_t i, enum dibs__lease_verb verb) {
  struct client *c = &clients[i];
  struct dibs__lease_op *op = &c->op;
  struct dibs__op *ops[] = {&op->op};
  struct dibs__result result;
  static char name[32];
  snprintf(name, sizeof name, "watch-%u%s", dibs__process_id(), name_end);
  op->name = dibs__str_of(name, strlen(name));
  op->owner = dibs__str_of("test", 4);
  op->ttl_ms = 60000;
  op->queue = true;
  op->id.b[0] = c->id;
  op->op.family = DIBS__FAM_LEASE;
  op->op.verb = (uint16_t)verb;
  op->op.bucket = dibs__bucket(op->name);
  op->op.mandate = c->identity.mandate;
  op->op.status = DIBS_UNKNOWN;
  (void)c->chain.stores[0]->driver->run(c->session, ops, 1, soon(PATIENCE_MS), &result);
  return op->op.status;
}

/* Whether client i gets an offer within this time. */
static bool hears(size_t i, int64_t ms) {
  struct dibs__event events[4];
  size_t count = 0;
  struct dibs__dstore *store = clients[i].chain.stores[0];
  dibs__tick by = soon(ms);
  while (count == 0 && dibs__tick_before(dibs__tick_now(), by))
    assert_int_equal(store->driver->events(store, events, 4, &count, by), DIBS_OK);
  for (size_t n = 0; n < count; n++)
    if (events[n].what == DIBS__EV_OFFER && dibs__id_equal(events[n].id, clients[i].op.id)) return true;
  return count > 0;
}

static void queue_all(void) {
  assert_int_equal(run(0, DIBS__ACQUIRE), DIBS_OK);
  for (size_t i = 1; i < CLIENTS; i++) assert_int_equal(run(i, DIBS__ACQUIRE), DIBS__QUEUED);
}

static void a_release_notifies_the_next_waiter_alone(void **state) {
  (void)state;
  queue_all();
  for (size_t holder = 0; holder + 1 < CLIENTS; holder++) {
    assert_int_equal(run(holder, DIBS__RELEASE), DIBS_OK);
    assert_true(hears(holder + 1, PATIENCE_MS));
    for (size_t i = holder + 2; i < CLIENTS; i++) assert_false(hears(i, QUIET_MS));
    assert_int_equal(run(holder + 1, DIBS__ACQUIRE), DIBS_OK);
  }
  assert_int_equal(run(CLIENTS - 1, DIBS__RELEASE), DIBS_OK);
}

static void a_renewal_notifies_nobody(void **state) {
  (void)state;
  queue_all();
  for (int i = 0; i < 3; i++) assert_int_equal(run(0, DIBS__RENEW), DIBS_OK);
  for (size_t i = 1; i < CLIENTS; i++) assert_false(hears(i, QUIET_MS));
}

/* The next one watches the next node before, and is not granted the name. */
static void a_waiter_that_leaves_is_closed_over(void **state) {
  (void)state;
  queue_all();
  assert_int_equal(run(2, DIBS__CANCEL), DIBS_OK);
  assert_true(hears(3, PATIENCE_MS));
  assert_false(hears(4, QUIET_MS));
  assert_int_equal(run(3, DIBS__ACQUIRE), DIBS__QUEUED);
  assert_int_equal(run(0, DIBS__RELEASE), DIBS_OK);
  assert_true(hears(1, PATIENCE_MS));
  assert_int_equal(run(1, DIBS__ACQUIRE), DIBS_OK);
  assert_int_equal(run(1, DIBS__RELEASE), DIBS_OK);
  assert_true(hears(3, PATIENCE_MS));
  assert_int_equal(run(3, DIBS__ACQUIRE), DIBS_OK);
}

/* ---- Counted leases ---- */

static void count_all(uint32_t slots) {
  for (size_t i = 0; i < CLIENTS; i++) {
    clients[i].op.mode = DIBS_COUNTED;
    clients[i].op.slots = slots;
  }
}

static void queue_counted(size_t holders) {
  count_all((uint32_t)holders);
  for (size_t i = 0; i < CLIENTS; i++) assert_int_equal(run(i, DIBS__ACQUIRE), i < holders ? DIBS_OK : DIBS__QUEUED);
}

static void granted(size_t i, uint32_t slot) {
  assert_int_equal(run(i, DIBS__ACQUIRE), DIBS_OK);
  assert_int_equal(clients[i].op.slot, slot);
}

/* The housekeeping of client i. */
static void tidy(size_t i) {
  struct dibs__dstore *store = clients[i].chain.stores[0];
  store->driver->tidy(store);
}

static void a_freed_slot_notifies_the_first_waiter_alone(void **state) {
  (void)state;
  queue_counted(2);
  assert_int_equal(run(0, DIBS__RELEASE), DIBS_OK);
  assert_true(hears(2, PATIENCE_MS));
  assert_false(hears(3, QUIET_MS));
  assert_false(hears(4, QUIET_MS));
  granted(2, 0);
  assert_true(hears(3, PATIENCE_MS)); /* it is the first one now */
  assert_false(hears(4, QUIET_MS));
  assert_int_equal(run(3, DIBS__ACQUIRE), DIBS__QUEUED);
  assert_int_equal(run(1, DIBS__RELEASE), DIBS_OK);
  assert_true(hears(3, PATIENCE_MS));
  assert_false(hears(4, QUIET_MS));
  granted(3, 1);
}

static void renewals_and_new_waiters_notify_no_first_waiter(void **state) {
  (void)state;
  queue_counted(2);
  assert_int_equal(run(4, DIBS__CANCEL), DIBS_OK);
  assert_int_equal(run(4, DIBS__ACQUIRE), DIBS__QUEUED);
  for (int i = 0; i < 3; i++) {
    assert_int_equal(run(0, DIBS__RENEW), DIBS_OK);
    assert_int_equal(run(1, DIBS__RENEW), DIBS_OK);
    assert_int_equal(clients[1].op.slot, 1);
  }
  for (size_t i = 2; i < CLIENTS; i++) assert_false(hears(i, QUIET_MS));
  assert_int_equal(run(1, DIBS__RELEASE), DIBS_OK); /* the first one's watch is still there */
  assert_true(hears(2, PATIENCE_MS));
  granted(2, 1);
}

static void slots_that_are_free_at_once_go_to_the_first_waiters(void **state) {
  (void)state;
  queue_counted(3);
  assert_int_equal(run(2, DIBS__RELEASE), DIBS_OK);
  assert_int_equal(run(0, DIBS__RELEASE), DIBS_OK);
  assert_true(hears(3, PATIENCE_MS));
  assert_int_equal(run(3, DIBS__ACQUIRE), DIBS_OK);
  assert_true(hears(4, PATIENCE_MS));
  assert_int_equal(run(4, DIBS__ACQUIRE), DIBS_OK);
  assert_int_equal(clients[3].op.slot + clients[4].op.slot, 0 + 2); /* not the slot that is held */
}

static void a_waiter_that_was_offered_a_slot_and_leaves_is_followed(void **state) {
  (void)state;
  queue_counted(2);
  assert_int_equal(run(1, DIBS__RELEASE), DIBS_OK);
  assert_true(hears(2, PATIENCE_MS));
  assert_int_equal(run(2, DIBS__CANCEL), DIBS_OK);
  assert_true(hears(3, PATIENCE_MS));
  assert_false(hears(4, QUIET_MS));
  granted(3, 1);
}

static void another_number_of_slots_waits_for_its_turn(void **state) {
  (void)state;
  count_all(2);
  clients[1].op.slots = clients[2].op.slots = 1;
  clients[0].op.mode = DIBS_EXCLUSIVE;
  assert_int_equal(run(0, DIBS__ACQUIRE), DIBS_OK);
  for (size_t i = 1; i < CLIENTS; i++) assert_int_equal(run(i, DIBS__ACQUIRE), DIBS__QUEUED);
  assert_int_equal(run(0, DIBS__RELEASE), DIBS_OK);
  assert_true(hears(1, PATIENCE_MS));
  granted(1, 0);
  for (size_t i = 3; i < CLIENTS; i++) assert_int_equal(run(i, DIBS__ACQUIRE), DIBS__QUEUED);
  assert_int_equal(run(1, DIBS__RELEASE), DIBS_OK);
  assert_true(hears(2, PATIENCE_MS));
  granted(2, 0);
  for (size_t i = 3; i < CLIENTS; i++) assert_int_equal(run(i, DIBS__ACQUIRE), DIBS__QUEUED);
  assert_int_equal(run(2, DIBS__RELEASE), DIBS_OK);
  for (size_t i = 3; i < CLIENTS; i++) assert_true(hears(i, PATIENCE_MS)); /* both at once */
  for (size_t i = 3; i < CLIENTS; i++) assert_int_equal(run(i, DIBS__ACQUIRE), DIBS_OK);
  assert_int_equal(clients[3].op.slot + clients[4].op.slot, 0 + 1);
}

/* The slots are free at once, and the housekeeping of those that lost them frees no slot of the next ones. */
static void a_break_frees_slots_for_the_next_ones(void **state) {
  (void)state;
  queue_counted(2);
  clients[4].op.now = true;
  assert_int_equal(run(4, DIBS__CANCEL), DIBS_OK);
  assert_int_equal(run(4, DIBS__BREAK), DIBS_OK);
  assert_true(hears(2, PATIENCE_MS));
  granted(2, 0);
  assert_true(hears(3, PATIENCE_MS));
  granted(3, 1);
  for (size_t i = 0; i < 2; i++) {
    assert_int_equal(run(i, DIBS__RELEASE), DIBS_LOST);
    tidy(i);
  }
  assert_int_equal(run(4, DIBS__ACQUIRE), DIBS__QUEUED);
  assert_int_equal(run(2, DIBS__RELEASE), DIBS_OK);
  assert_true(hears(4, PATIENCE_MS));
  granted(4, 0);
}

/* Another program deletes the node of client i, and not its slot. */
static void delete_node_of(size_t i) {
  struct dibs__zk *store = (struct dibs__zk *)clients[i].chain.stores[0];
  char path[DIBS__ZK_PATH];
  dibs__mutex_lock(&store->lock);
  dibs__zk_node(store, store->all, path);
  dibs__mutex_unlock(&store->lock);
  assert_int_equal(zoo_delete(store->zh, path, -1), ZOK);
}

static void the_slot_of_a_node_that_was_deleted_is_freed_by_its_process(void **state) {
  (void)state;
  queue_counted(2);
  delete_node_of(0);
  assert_int_equal(run(2, DIBS__ACQUIRE), DIBS__QUEUED); /* it may hold, but no slot is free yet */
  assert_int_equal(run(0, DIBS__RENEW), DIBS_LOST);
  assert_int_equal(run(0, DIBS__CANCEL), DIBS_NOT_FOUND);
  tidy(0);
  assert_true(hears(2, PATIENCE_MS));
  granted(2, 0);
}

/* Another program takes the slot at the instant at which it was offered. */
static void a_waiter_whose_slot_was_taken_keeps_its_place(void **state) {
  struct dibs__zk *other = (struct dibs__zk *)clients[4].chain.stores[0];
  struct dibs__zk *store = (struct dibs__zk *)clients[1].chain.stores[0];
  char path[DIBS__ZK_PATH];
  (void)state;
  queue_counted(1);
  assert_int_equal(run(0, DIBS__RELEASE), DIBS_OK);
  assert_true(hears(1, PATIENCE_MS));
  (void)dibs__zk_slot_path(store, store->all, 0, path);
  assert_int_equal(zoo_create(other->zh, path, "", 0, &ZOO_OPEN_ACL_UNSAFE, 0, NULL, 0), ZOK);
  assert_int_equal(run(1, DIBS__ACQUIRE), DIBS__QUEUED);
  uint64_t ticket = clients[1].op.ticket;
  for (dibs__tick end = soon(DIBS__ZK_OFFER_MS + 1000); dibs__tick_before(dibs__tick_now(), end);) {
    assert_int_equal(run(1, DIBS__ACQUIRE), DIBS__QUEUED);
    assert_int_equal(clients[1].op.ticket, ticket);
    (void)hears(1, 200);
  }
  assert_int_equal(zoo_delete(other->zh, path, -1), ZOK);
  assert_true(hears(1, PATIENCE_MS));
  granted(1, 0);
}

/* As if the answer to the request that made the node of client i had been lost, and the request, too, if not `made`. */
static void forget_node_of(size_t i, bool made, bool ended) {
  struct dibs__zk *store = (struct dibs__zk *)clients[i].chain.stores[0];
  char path[DIBS__ZK_PATH];
  if (!made) assert_int_equal(zoo_delete(store->zh, dibs__zk_node(store, store->all, path), -1), ZOK);
  dibs__mutex_lock(&store->lock);
  store->all->state = DIBS__ZK_UNSURE;
  store->all->node[0] = '\0';
  dibs__zk_end_locked(store, store->all, ended ? 0 : INT64_MAX);
  dibs__mutex_unlock(&store->lock);
}

/* A client that repeats a request, with its id, to another daemon. */
static void two_processes_with_one_id_have_a_node_each(void **state) {
  (void)state;
  clients[1].id = clients[0].id;
  assert_int_equal(run(0, DIBS__ACQUIRE), DIBS_OK);
  assert_int_equal(run(1, DIBS__ACQUIRE), DIBS__QUEUED);
  forget_node_of(1, false, false);
  assert_int_equal(run(1, DIBS__ACQUIRE), DIBS__QUEUED);
  forget_node_of(1, true, false);
  assert_int_equal(run(1, DIBS__ACQUIRE), DIBS__QUEUED);
  forget_node_of(0, true, false);
  assert_int_equal(run(0, DIBS__ACQUIRE), DIBS_OK); /* its node is before the other one */
  forget_node_of(1, false, true);
  tidy(1);
  assert_int_equal(run(0, DIBS__RENEW), DIBS_OK);
  assert_int_equal(run(1, DIBS__ACQUIRE), DIBS__QUEUED);
  assert_int_equal(run(0, DIBS__RELEASE), DIBS_OK);
  assert_true(hears(1, PATIENCE_MS));
  assert_int_equal(run(1, DIBS__ACQUIRE), DIBS_OK); /* no node is left over */
  assert_int_equal(run(1, DIBS__RELEASE), DIBS_OK);
}

static int count_row(const struct dibs__lease_row *row, void *user) {
  size_t *count = user;
  assert_int_equal(row->state, DIBS__HOLDS);
  ++*count;
  return 0;
}

/* As when its leases end during the listing: else a page of a listing would seem to be the last one. */
static void a_name_without_leases_is_none_of_those_that_a_listing_needs(void **state) {
  struct dibs__zk *store = (struct dibs__zk *)clients[0].chain.stores[0];
  char path[DIBS__ZK_PATH];
  size_t count = 0;
  struct dibs__list list = {.most = 1, .row = count_row, .user = &count};
  struct dibs__result result;
  (void)state;
  assert_int_equal(run(0, DIBS__ACQUIRE), DIBS_OK);
  (void)dibs__zk_slot_path(store, store->all, 1, path);
  assert_int_equal(run(0, DIBS__RELEASE), DIBS_OK);
  list.prefix = clients[0].op.name;
  assert_int_equal(zoo_create(store->zh, path, "", 0, &ZOO_OPEN_ACL_UNSAFE, 0, NULL, 0), ZOK);
  name_end = "z";
  assert_int_equal(run(1, DIBS__ACQUIRE), DIBS_OK);
  name_end = "";
  assert_int_equal(store->base.driver->list(clients[0].session, &list, soon(PATIENCE_MS), &result), DIBS_OK);
  assert_int_equal(count, 1);
  assert_int_equal(zoo_delete(store->zh, path, -1), ZOK);
}

static void requests_resolve_no_host_names(void **state) {
  (void)state;
  assert_int_equal(run(0, DIBS__ACQUIRE), DIBS_OK);
  uint32_t before = atomic_load(&resolved);
  assert_true(before > 0);
  for (int i = 0; i < 10; i++) assert_int_equal(run(0, DIBS__RENEW), DIBS_OK);
  assert_int_equal(atomic_load(&resolved), before);
}

/* What everybody may do with the node of the name. */
static void allow(int rights) {
  struct dibs__zk *store = (struct dibs__zk *)clients[0].chain.stores[0];
  char path[DIBS__ZK_PATH];
  struct ACL everybody = {rights, ZOO_ANYONE_ID_UNSAFE};
  const struct ACL_vector all = {1, &everybody};
  assert_int_equal(zoo_set_acl(store->zh, dibs__zk_dir(store, clients[0].op.name, path), -1, &all), ZOK);
}

static void a_client_that_is_refused_after_it_made_its_node_keeps_nobody_out(void **state) {
  (void)state;
  assert_int_equal(run(0, DIBS__ACQUIRE), DIBS_OK);
  assert_int_equal(run(0, DIBS__RELEASE), DIBS_OK);
  allow(ZOO_PERM_ALL & ~ZOO_PERM_READ);
  assert_int_equal(run(1, DIBS__ACQUIRE), DIBS_DENIED);
  allow(ZOO_PERM_ALL);
  tidy(1);
  assert_int_equal(run(2, DIBS__ACQUIRE), DIBS_OK);
}

int main(int argc, char *argv[]) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(a_release_notifies_the_next_waiter_alone, open_clients, close_clients),
      cmocka_unit_test_setup_teardown(a_renewal_notifies_nobody, open_clients, close_clients),
      cmocka_unit_test_setup_teardown(a_waiter_that_leaves_is_closed_over, open_clients, close_clients),
      cmocka_unit_test_setup_teardown(a_freed_slot_notifies_the_first_waiter_alone, open_clients, close_clients),
      cmocka_unit_test_setup_teardown(renewals_and_new_waiters_notify_no_first_waiter, open_clients, close_clients),
      cmocka_unit_test_setup_teardown(slots_that_are_free_at_once_go_to_the_first_waiters, open_clients, close_clients),
      cmocka_unit_test_setup_teardown(a_waiter_that_was_offered_a_slot_and_leaves_is_followed, open_clients,
                                      close_clients),
      cmocka_unit_test_setup_teardown(another_number_of_slots_waits_for_its_turn, open_clients, close_clients),
      cmocka_unit_test_setup_teardown(a_break_frees_slots_for_the_next_ones, open_clients, close_clients),
      cmocka_unit_test_setup_teardown(the_slot_of_a_node_that_was_deleted_is_freed_by_its_process, open_clients,
                                      close_clients),
      cmocka_unit_test_setup_teardown(a_waiter_whose_slot_was_taken_keeps_its_place, open_clients, close_clients),
      cmocka_unit_test_setup_teardown(two_processes_with_one_id_have_a_node_each, open_clients, close_clients),
      cmocka_unit_test_setup_teardown(a_name_without_leases_is_none_of_those_that_a_listing_needs, open_clients,
                                      close_clients),
      cmocka_unit_test_setup_teardown(requests_resolve_no_host_names, open_clients, close_clients),
      cmocka_unit_test_setup_teardown(a_client_that_is_refused_after_it_made_its_node_keeps_nobody_out, open_clients,
                                      close_clients),
  };
  if (argc != 2) return 2;
  store_uri = argv[1];
  *(void **)&resolve = dlsym(RTLD_NEXT, "getaddrinfo");
  if (!resolve) return 2;
  return cmocka_run_group_tests(tests, NULL, NULL);
}
