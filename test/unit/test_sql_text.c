/* SPDX-License-Identifier: MIT */
/* Templates of SQL: the replacement of each mark, for dibs' own tables and for a user's table. */
#include "sql/text.h"
#include "unit.h"

#include <string.h>

static const struct dibs__sql_engine engine = {.quote = '"',
                                               .for_update = " FOR UPDATE",
                                               .now_ms = "clock()",
                                               .on_conflict = true,
                                               .exact = {"bytes(", ")"},
                                               .whole = {"whole(", ")"}};
static const struct dibs__table users = {.table = "shop.event",
                                         .key = "id",
                                         .version = "v",
                                         .used = "taken",
                                         .limit = "seats",
                                         .claims = "booking",
                                         .claim = "nr",
                                         .stock = "event"};

static void composes(struct dibs__sql_names names, const char *from, const char *wanted) {
  char made[512];
  struct dibs__text text;
  names.engine = &engine;
  names.prefix = "app.dibs_";
  dibs__text_begin(&text, made, sizeof made);
  dibs__sql_compose(&text, &names, from);
  assert_false(text.cut);
  assert_string_equal(made, wanted);
}
static void own(const char *from, const char *wanted) {
  composes((struct dibs__sql_names){0}, from, wanted);
}
static void theirs(const char *from, const char *wanted) {
  composes((struct dibs__sql_names){.table = &users}, from, wanted);
}

static void own_tables_get_the_prefix(void **state) {
  (void)state;
  own("SELECT day FROM dibs_name d, dibs_break", "SELECT day FROM app.dibs_name d, app.dibs_break");
  own("@S @C @u @m @^f", "app.dibs_stock app.dibs_claim used most fence");
  own("@k=@!k@#u", "name=name = $1");
}

static void words_are_those_of_the_engine_and_the_caller(void **state) {
  (void)state;
  static const struct dibs__sql_word words[] = {{"ours", "= 1"}, {NULL, NULL}};
  composes((struct dibs__sql_names){.words = words}, "@{now} @{ours}@{lock}@{leave}|@{other}|",
           "clock() = 1 FOR UPDATE ON CONFLICT DO NOTHING||");
}

static void text_that_is_not_a_mark_is_unchanged(void **state) {
  (void)state;
  own("@@server_id @x := $1::bigint[] a[1] x@", "@@server_id @x := $1::bigint[] a[1] x@");
  theirs("@@server_id @dibsmark = $rows", "@@server_id @dibsmark = $rows");
}

static void columns_are_qualified_by_their_table(void **state) {
  (void)state;
  theirs("@S", "\"shop\".\"event\"");
  theirs("@u < @m", "\"event\".\"taken\" < \"event\".\"seats\"");
  theirs("@^u = @v + 1", "\"taken\" = \"event\".\"v\" + 1");
  theirs("@C @c @s", "\"booking\" \"booking\".\"nr\" \"booking\".\"event\"");
  theirs("@f @~f @=u @~c @?v", "NULL NULL \"event\".\"taken\" bytes(\"booking\".\"nr\") whole(\"event\".\"v\")");
  theirs("1@#u", "1 AND \"event\".\"taken\" BETWEEN 0 AND 9223372036854775807 AND whole(\"event\".\"taken\")");
}

static void blocks_depend_on_the_table(void **state) {
  (void)state;
  static const char blocks[] = "a@[f b@]@[!f c@]@[u d@]@[!u e@]@[* f@]@[!* g@]h";
  own(blocks, "a b d gh");
  theirs(blocks, "a c d fh");
}

static void value_numbers_continue(void **state) {
  (void)state;
  composes((struct dibs__sql_names){.table = &users, .before = 9}, "$1 $2", "$10 $11");
  composes((struct dibs__sql_names){.table = &users, .key_text = 3}, "@!k",
           "\"event\".\"id\" = $1 AND bytes(\"event\".\"id\") = $3");
  theirs("@!s", "\"booking\".\"event\" = $1 AND bytes(\"booking\".\"event\") = $1");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(own_tables_get_the_prefix),
      cmocka_unit_test(words_are_those_of_the_engine_and_the_caller),
      cmocka_unit_test(text_that_is_not_a_mark_is_unchanged),
      cmocka_unit_test(columns_are_qualified_by_their_table),
      cmocka_unit_test(blocks_depend_on_the_table),
      cmocka_unit_test(value_numbers_continue),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
