/* SPDX-License-Identifier: MIT */
/* Connections for transactions of users (R105, R106). */
#include "harness.h"

#include <string.h>

enum { PATIENCE_MS = 30000 };

struct lent {
  struct party *p;
  struct dibs__transactor *t;
  struct dibs__session *session;
  struct dibs__result result;
};

static dibs__tick soon(void) {
  return dibs__tick_add_ms(dibs__tick_now(), PATIENCE_MS);
}

static struct lent lend(void) {
  struct lent l = {.p = party()};
  struct dibs__dstore *store = store_of(l.p);
  if (!store->driver->transactor_open) skip();
  if (store->driver->transactor_open(store, soon(), &l.t, &l.result) != DIBS_OK) fail_msg("%s", l.result.text);
  assert_ptr_equal(l.t->store, store);
  assert_non_null(l.t->connection);
  return l;
}

static dibs__status transact(struct lent *l, enum dibs__transact what, const char *sql) {
  l->result = (struct dibs__result){.sent = dibs__tick_now()};
  return store_of(l->p)->driver->transact(l->t, what, sql, soon(), &l->result);
}

static void begin(struct lent *l) {
  const struct dibs__driver *driver = store_of(l->p)->driver;
  struct dibs__identity identity;
  assert_int_equal(transact(l, DIBS__TRANSACT_BEGIN, NULL), DIBS_OK);
  assert_int_equal(driver->attach(l->t->store, l->t->connection, &l->session, &identity, &l->result), DIBS_OK);
  assert_true(identity.families & 1u << DIBS__FAM_RECORD);
}

static void end(struct lent *l) {
  store_of(l->p)->driver->disconnect(l->session);
  l->session = NULL;
}

static void give_back(struct lent *l) {
  store_of(l->p)->driver->transactor_close(l->t);
}

/* A record that is put within the transaction. */
static dibs__status put_within(struct lent *l, const char *key, const char *data) {
  struct dibs__record_op op = record_op(DIBS__RECORD_PUT, key, 1, (dibs__fence){0}, data);
  struct dibs__op *ops[] = {&op.op};
  op.guards = 0;
  op.op.status = DIBS_UNKNOWN;
  dibs__status status = store_of(l->p)->driver->run(l->session, ops, 1, soon(), &l->result);
  return status == DIBS_OK ? op.op.status : status;
}

static void R105_takes_effect_at_commit_or_not_at_all(void **state) {
  (void)state;
  struct lent l = lend();
  for (int commits = 0; commits <= 1; commits++) {
    begin(&l);
    assert_int_equal(put_within(&l, "a", "one"), DIBS_OK);
    assert_int_equal(transact(&l, DIBS__TRANSACT_SQL, "SELECT 1; SELECT 2"), DIBS_OK);
    assert_int_equal(put_within(&l, "b", "two"), DIBS_OK);
    end(&l);
    assert_int_equal(transact(&l, commits ? DIBS__TRANSACT_COMMIT : DIBS__TRANSACT_ROLLBACK, NULL), DIBS_OK);
    expect(load(l.p, "a"), commits ? DIBS_OK : DIBS_NOT_FOUND);
    expect(load(l.p, "b"), commits ? DIBS_OK : DIBS_NOT_FOUND);
  }
  give_back(&l);
}

static void R105_a_closed_connection_leaves_nothing(void **state) {
  (void)state;
  struct lent l = lend();
  begin(&l);
  assert_int_equal(put_within(&l, "a", "one"), DIBS_OK);
  end(&l);
  give_back(&l);
  expect(load(l.p, "a"), DIBS_NOT_FOUND);
}

static void R105_a_refused_statement_can_be_rolled_back(void **state) {
  (void)state;
  struct lent l = lend();
  begin(&l);
  assert_int_equal(put_within(&l, "a", "one"), DIBS_OK);
  assert_int_equal(transact(&l, DIBS__TRANSACT_SQL, "INSERT INTO there_is_no_such_table VALUES (1)"), DIBS_INVALID);
  assert_true(l.result.text[0] && !l.result.dead);
  end(&l);
  assert_int_equal(transact(&l, DIBS__TRANSACT_ROLLBACK, NULL), DIBS_OK);
  expect(load(l.p, "a"), DIBS_NOT_FOUND);
  begin(&l);
  assert_int_equal(put_within(&l, "a", "two"), DIBS_OK);
  end(&l);
  assert_int_equal(transact(&l, DIBS__TRANSACT_COMMIT, NULL), DIBS_OK);
  expect(load(l.p, "a"), DIBS_OK);
  give_back(&l);
}

static void R106_an_ended_transaction_takes_no_operation(void **state) {
  (void)state;
  struct lent l = lend();
  begin(&l);
  assert_int_equal(transact(&l, DIBS__TRANSACT_SQL, "ROLLBACK"), DIBS_INVALID);
  assert_true(put_within(&l, "a", "one") != DIBS_OK);
  end(&l);
  assert_int_equal(transact(&l, DIBS__TRANSACT_COMMIT, NULL), DIBS_INVALID);
  assert_int_equal(transact(&l, DIBS__TRANSACT_ROLLBACK, NULL), DIBS_OK);
  expect(load(l.p, "a"), DIBS_NOT_FOUND);
  give_back(&l);
}

/* The statement before it is not sent again in its place. */
static void R105_an_empty_statement_does_nothing(void **state) {
  (void)state;
  static const char *const empty[] = {"", " \n", ";", "; ;\n"};
  char comment[20000] = "SELECT 1 FROM there_is_no_such_table -- ";
  struct lent l = lend();
  begin(&l);
  memset(comment + strlen(comment), 'x', sizeof comment - strlen(comment) - 1); /* a NUL is far away */
  assert_int_equal(transact(&l, DIBS__TRANSACT_SQL, "SAVEPOINT here"), DIBS_OK);
  assert_int_equal(transact(&l, DIBS__TRANSACT_SQL, comment), DIBS_INVALID);
  assert_int_equal(transact(&l, DIBS__TRANSACT_SQL, "ROLLBACK TO SAVEPOINT here"), DIBS_OK);
  assert_int_equal(put_within(&l, "a", "one"), DIBS_OK);
  for (size_t i = 0; i < sizeof empty / sizeof empty[0]; i++)
    if (transact(&l, DIBS__TRANSACT_SQL, empty[i]) != DIBS_OK) fail_msg("\"%s\": %s", empty[i], l.result.text);
  end(&l);
  assert_int_equal(transact(&l, DIBS__TRANSACT_COMMIT, NULL), DIBS_OK);
  expect(load(l.p, "a"), DIBS_OK);
  give_back(&l);
}

/* Outside a transaction it would take effect at once. */
static void R106_an_ended_transaction_runs_no_statement(void **state) {
  (void)state;
  struct lent l = lend();
  begin(&l);
  assert_int_equal(put_within(&l, "a", "one"), DIBS_OK);
  end(&l);
  assert_int_equal(transact(&l, DIBS__TRANSACT_COMMIT, NULL), DIBS_OK);
  begin(&l);
  assert_int_equal(transact(&l, DIBS__TRANSACT_SQL, "ROLLBACK"), DIBS_INVALID);
  assert_int_equal(transact(&l, DIBS__TRANSACT_SQL, "DELETE FROM dibs_record"), DIBS_INVALID);
  end(&l);
  assert_int_equal(transact(&l, DIBS__TRANSACT_ROLLBACK, NULL), DIBS_OK);
  expect(load(l.p, "a"), DIBS_OK);
  give_back(&l);
}

static const struct CMUnitTest contract_transactors_cases[] = {
    CASE(R105_takes_effect_at_commit_or_not_at_all),    CASE(R105_a_closed_connection_leaves_nothing),
    CASE(R105_a_refused_statement_can_be_rolled_back),  CASE(R105_an_empty_statement_does_nothing),
    CASE(R106_an_ended_transaction_takes_no_operation), CASE(R106_an_ended_transaction_runs_no_statement),
};
CONTRACT_TESTS(contract_transactors);
