/* SPDX-License-Identifier: MIT */
/*
 * Records in the user's own collections: guards by version and by fence, every type of fields and keys, documents of
 * wrong content, and programs without dibs that write the same documents.
 *
 *   test_records URI
 */
#include "record_bed.h"

#include <inttypes.h>
#include <locale.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static dibs_table *events(void) {
  return TABLE(.key = "_id", .version = "version", .fence = "fence", .owner = "holder", .columns = "title, seats");
}

/* ---- Guards ---- */

static void a_put_needs_the_version_that_was_read(void **state) {
  (void)state;
  dibs_table *t = events();
  insert("{'_id':7,'title':'Gala','seats':5,'version':3,'other':{'x':[1,2]}}");
  const dibs_record *was = get("7", DIBS_OK, t);
  assert_string_equal(was->version, "3");
  assert_string_equal(was->values[0].data, "Gala");
  assert_string_equal(was->values[1].data, "5");
  put("7", VALUES("Ball", KEEP), DIBS_OK, t, .if_version = was->version);
  assert_string_equal(result.version, "4");
  put("7", VALUES("Late", "9"), DIBS_CONFLICT, t, .if_version = was->version);
  assert_string_equal(result.version, "4");
  assert_message("at version \"4\", not \"3\"");
  assert_int_equal(
      count("{'_id':7,'title':'Ball','seats':5,'$expr':{'$eq':[{'$type':'$version'},'int']},'other':{'x':[1,2]}}"), 1);
  assert_null(strstr(shown("{}"), "fence"));
  put("8", VALUES("Late", "9"), DIBS_NOT_FOUND, t, .if_version = "1");
  take_away("7", DIBS_CONFLICT, t, .if_version = "3");
  put("7", VALUES("Late", KEEP), DIBS_CONFLICT, t, .if_version = "four");
  put("7", VALUES(KEEP, NULL), DIBS_OK, t, .flags = DIBS_UNCHECKED);
  assert_string_equal(result.version, "5");
  assert_null(get("7", DIBS_OK, t)->values[1].data);
  take_away("7", DIBS_OK, t, .if_version = "5");
  get("7", DIBS_NOT_FOUND, t);
  take_away("7", DIBS_NOT_FOUND, t, .flags = DIBS_UNCHECKED);
}

static void a_document_without_a_version_has_version_0(void **state) {
  (void)state;
  dibs_table *t = events();
  static const char *const documents[] = {"{'_id':0,'title':'a'}", "{'_id':1,'title':'a','version':null}",
                                          "{'_id':2,'title':'a','version':0.0}"};
  for (size_t i = 0; i < 3; i++) {
    char key[4];
    snprintf(key, sizeof key, "%zu", i);
    insert("%s", documents[i]);
    assert_string_equal(get(key, DIBS_OK, t)->version, "0");
    put(key, VALUES("b", KEEP), DIBS_CONFLICT, t, .if_version = "1");
    put(key, VALUES("b", KEEP), DIBS_OK, t, .if_version = "0");
    assert_string_equal(result.version, "1");
  }
  assert_int_equal(count("{'title':'b','version':1}"), 3);
  assert_int_equal(count("{'_id':2,'$expr':{'$eq':[{'$type':'$version'},'double']}}"), 1);
}

static void the_document_refuses_a_stale_holder(void **state) {
  (void)state;
  dibs_table *t = events();
  char name[64];
  insert("{'_id':7,'title':'Gala','version':3}");
  snprintf(name, sizeof name, "%s/7", gateways());
  dibs_lease *old = lease_of(name);
  put("7", VALUES("one", KEEP), DIBS_OK, t, .lease = old);
  assert_int_equal(dibs_release(old, &reported), DIBS_OK);
  dibs_lease *held = lease_of(name);
  const dibs_record *sealed = get("7", DIBS_OK, t, .lease = held);
  assert_string_equal(sealed->values[0].data, "one");
  assert_string_equal(sealed->version, "4");
  assert_int_equal(sealed->fence.value, dibs_lease_fence(held).value);
  put("7", VALUES("late", KEEP), DIBS_STALE, t, .lease = old);
  assert_int_equal(result.fence.value, dibs_lease_fence(held).value);
  put("7", VALUES("late", KEEP), DIBS_STALE, t, .lease = old, .if_version = "4");
  take_away("7", DIBS_STALE, t, .lease = old);
  put("7", VALUES("late", KEEP), DIBS_CONFLICT, t, .lease = held, .if_version = "3");
  assert_int_equal(count("{'title':'one','version':4}"), 1);
  put("7", VALUES("two", KEEP), DIBS_OK, t, .lease = held, .if_version = "4");
  assert_int_equal(update("{}", "{'$inc':{'holder':1}}"), 1); /* the same fence of another lease */
  put("7", VALUES("other", KEEP), DIBS_STALE, t, .lease = held);
  get("7", DIBS_STALE, t, .lease = held);
  assert_int_equal(count("{'title':'two','version':5}"), 1);
}

/* As doc/mongodb.md shows it. */
static int64_t write_by_hand(int64_t fence, const char *title) {
  bson_t *got = find_and_modify(
      "{'findAndModify':'%s','query':{'_id':7,'$or':[{'fence':null},{'fence':{'$lte':{'$numberLong':'%" PRId64 "'}}}]},"
      "'update':{'$set':{'title':'%s','fence':{'$numberLong':'%" PRId64 "'}},'$inc':{'version':1}}}",
      gateways(), fence, title, fence);
  int64_t wrote = got != NULL;
  bson_destroy(got);
  return wrote;
}

static void a_program_without_dibs_respects_the_same_fence(void **state) {
  (void)state;
  dibs_table *t = TABLE(.key = "_id", .version = "version", .fence = "fence", .columns = "title");
  char name[64];
  insert("{'_id':7,'title':'Gala'}");
  snprintf(name, sizeof name, "%s/7", gateways());
  dibs_lease *first = lease_of(name);
  int64_t fence = (int64_t)dibs_lease_fence(first).value;
  assert_int_equal(write_by_hand(fence, "by hand"), 1);
  put("7", VALUES("one"), DIBS_OK, t, .lease = first, .if_version = "1");
  assert_int_equal(dibs_release(first, &reported), DIBS_OK);
  dibs_lease *second = lease_of(name);
  assert_int_equal(write_by_hand((int64_t)dibs_lease_fence(second).value, "two"), 1);
  put("7", VALUES("late"), DIBS_STALE, t, .lease = first);
  put("7", VALUES("three"), DIBS_OK, t, .lease = second);
  assert_int_equal(write_by_hand(fence, "late"), 0);
  assert_int_equal(count("{'title':'three','version':4}"), 1);
}

static void a_write_of_another_program_is_noticed_if_it_counts_the_version(void **state) {
  (void)state;
  dibs_table *t = events(), *hashed = TABLE(.key = "_id", .version_kind = DIBS_VERSION_HASH, .columns = "title, seats");
  insert("{'_id':7,'title':'Gala','version':1}");
  const char *was = get("7", DIBS_OK, hashed)->version;
  assert_int_equal(update("{'_id':7}", "{'$set':{'title':'x'},'$inc':{'version':1}}"), 1);
  put("7", VALUES("y", KEEP), DIBS_CONFLICT, t, .if_version = "1");
  assert_string_equal(result.version, "2");
  assert_int_equal(update("{'_id':7}", "{'$set':{'title':'unnoticed'}}"), 1);
  put("7", VALUES("y", KEEP), DIBS_CONFLICT, hashed, .if_version = was); /* the content itself is compared */
  was = get("7", DIBS_OK, hashed)->version;
  put("7", VALUES("z", KEEP), DIBS_OK, hashed, .if_version = was);
  put("7", VALUES("y", KEEP), DIBS_OK, t, .if_version = "2");
  assert_int_equal(count("{'title':'y','version':3}"), 1);
}

/* ---- New documents ---- */

static void only_a_missing_document_is_created(void **state) {
  (void)state;
  dibs_table *t = events();
  dibs_lease *lease = lease_of(gateways());
  put("7", VALUES("Gala", "5"), DIBS_OK, t, .flags = DIBS_IF_ABSENT); /* the collection, too */
  assert_string_equal(result.version, "1");
  put("7", VALUES("Ball", "5"), DIBS_CONFLICT, t, .flags = DIBS_IF_ABSENT);
  assert_message("is there already, at version \"1\"");
  put("8", VALUES(KEEP, NULL), DIBS_OK, t, .flags = DIBS_IF_ABSENT, .lease = lease);
  assert_int_equal(count("{'_id':7,'title':'Gala','seats':'5','version':1}"), 1);
  assert_int_equal(
      count("{'_id':8,'title':{'$exists':false},'$expr':{'$eq':[{'$type':'$seats'},'null']},'fence':{'$gt':0}}"), 1);
  assert_int_equal(get("8", DIBS_OK, t, .lease = lease)->fence.value, dibs_lease_fence(lease).value);
  put("abc", VALUES("\xff\xfe", KEEP), DIBS_OK, t, .flags = DIBS_IF_ABSENT);
  assert_int_equal(count("{'_id':'abc','$expr':{'$eq':[{'$type':'$title'},'binData']}}"), 1);
  assert_string_equal(get("abc", DIBS_OK, t)->values[0].data, "\xff\xfe");
}

static void another_unique_key_is_not_the_key(void **state) {
  (void)state;
  insert("{'_id':1,'slug':'a','title':'Gala'}");
  assert_true(command("{'createIndexes':'%s','indexes':[{'key':{'title':1},'name':'t','unique':true}]}", gateways()));
  dibs_table *t = events();
  put("2", VALUES("Gala", KEEP), DIBS_INVALID, t, .flags = DIBS_IF_ABSENT);
  put("2", VALUES("Ball", KEEP), DIBS_OK, t, .flags = DIBS_IF_ABSENT);
  put("2", VALUES("Gala", KEEP), DIBS_INVALID, t, .if_version = "1");
  assert_string_equal(get("2", DIBS_OK, t)->values[0].data, "Ball");
  dibs_table *by_slug = TABLE(.key = "slug", .version = "version", .columns = "title");
  get("a", DIBS_INVALID, by_slug);
  assert_message("no unique index of its own");
}

/* ---- Types ---- */

static const struct {
  const char *type, *value, *text, *new_text, *new_value, *wrong;
} types[] = {
    {"string", "'x'", "x", "$title", "'$title'", "\xff"},
    {"int", "5", "5", "-6", "-6", "six"},
    {"int", "5", "5", "6.25", "6.25", "06"},
    {"int", "5", "5", "3000000000", "{'$numberLong':'3000000000'}", ""},
    {"long", "{'$numberLong':'9007199254740993'}", "9007199254740993", "9007199254740995",
     "{'$numberLong':'9007199254740995'}", "1e"},
    {"double", "2.5", "2.5", "3", "3.0", "9007199254740993"},
    {"double", "0.1", "0.1", "1e-7", "1e-7", " 1"},
    {"double", "4.0", "4", "-0.5", "-0.5", "1."},
    {"decimal", "{'$numberDecimal':'1.10'}", "1.10", "2.20", "{'$numberDecimal':'2.20'}", "x"},
    {"bool", "true", "true", "false", "false", "0"},
    {"date", "{'$date':'2026-01-02T03:04:05.006Z'}", "2026-01-02T03:04:05.006Z", "1969-12-31T23:59:59.999Z",
     "{'$date':{'$numberLong':'-1'}}", "2026-02-31T00:00:00.000Z"},
    {"objectId", "{'$oid':'6b07c9f57dd4a3ff267ca355'}", "6b07c9f57dd4a3ff267ca355", "6b07c9f57dd4a3ff267ca356",
     "{'$oid':'6b07c9f57dd4a3ff267ca356'}", "6b07"},
    {"object", "{'a':{'b':1}}", "{ \"a\" : { \"b\" : 1 } }", "{\"c\":[]}", "{'c':[]}", "{} , \"w\" : {}"},
    {"object", "{'a':1}", "{ \"a\" : 1 }", "{\"}\":\"\\\"}\"} ", "{'}':'\\\"}'}", "{\"b\":1}} {\"c\":1"},
    {"array", "[1,'a']", "[ 1, \"a\" ]", "[[2]]", "[[2]]", "{}"},
    {"binData", "{'$binary':{'base64':'AQI=','subType':'00'}}", "\1\2", "abc",
     "{'$binary':{'base64':'YWJj','subType':'00'}}", NULL},
};
enum { TYPES = sizeof types / sizeof types[0] };

static void a_value_takes_the_type_that_the_field_has(void **state) {
  (void)state;
  dibs_table *t = events();
  for (size_t i = 0; i < TYPES; i++) {
    char key[12];
    snprintf(key, sizeof key, "%zu", i);
    insert("{'_id':%zu,'title':%s,'seats':'s','version':1}", i, types[i].value);
    const char *text = get(key, DIBS_OK, t)->values[0].data;
    assert_string_equal(text, types[i].text);
    put(key, VALUES(text, KEEP), DIBS_OK, t, .if_version = "1");
    assert_int_equal(
        count("{'_id':%zu,'$expr':{'$and':[{'$eq':['$title',{'$literal':%s}]},{'$eq':[{'$type':'$title'},'%s']}]}}", i,
              types[i].value, types[i].type),
        1);
    put(key, VALUES(types[i].new_text, KEEP), DIBS_OK, t, .if_version = "2");
    if (count("{'_id':%zu,'$expr':{'$eq':['$title',{'$literal':%s}]}}", i, types[i].new_value) != 1)
      fail_msg("%s is not %s: %s", types[i].new_text, types[i].new_value, shown("{'_id':%zu}", i));
    put(key, VALUES(NULL, KEEP), DIBS_OK, t, .if_version = "3");
    put(key, VALUES("a text", KEEP), DIBS_OK, t, .if_version = "4"); /* null has no type */
    assert_int_equal(count("{'_id':%zu,'title':'a text','seats':'s','version':5}", i), 1);
  }
}

static void a_decimal_comma_of_the_program_does_not_matter(void **state) {
  (void)state;
  dibs_table *t = events();
  insert("{'_id':7,'title':2.5,'version':1}");
  if (!setlocale(LC_NUMERIC, "de_DE.UTF-8")) skip(); /* this machine has no such locale */
  const char *text = get("7", DIBS_OK, t)->values[0].data;
  put("7", VALUES("0.125", KEEP), DIBS_OK, t, .if_version = "1");
  setlocale(LC_NUMERIC, "C");
  assert_string_equal(text, "2.5");
  assert_int_equal(count("{'title':0.125}"), 1);
}

static void a_value_of_another_type_changes_nothing(void **state) {
  (void)state;
  dibs_table *t = events();
  for (size_t i = 0; i < TYPES; i++) {
    char key[12];
    snprintf(key, sizeof key, "%zu", i);
    insert("{'_id':%zu,'title':%s,'seats':'s','version':1}", i, types[i].value);
    if (!types[i].wrong) continue;
    put(key, VALUES(types[i].wrong, "t"), DIBS_INVALID, t, .if_version = "1");
    assert_message("\"title\" of { \"_id\" : ");
    put(key, VALUES(types[i].wrong, "t"), DIBS_CONFLICT, t, .if_version = "2"); /* the guards come first */
    assert_string_equal(get(key, DIBS_OK, t)->values[0].data, types[i].text);
  }
  insert("{'_id':'re','title':{'$regularExpression':{'pattern':'a','options':''}},'version':1}");
  assert_non_null(strstr(get("re", DIBS_OK, t)->values[0].data, "pattern"));
  put("re", VALUES("x", KEEP), DIBS_INVALID, t, .if_version = "1");
  assert_message("a type that dibs does not write");
  put("re", VALUES(KEEP, "5"), DIBS_OK, t, .if_version = "1");
  assert_int_equal(count("{'version':1}"), TYPES);
}

/* ---- Odd documents ---- */

static void odd_documents_are_invalid_and_stay_as_they_are(void **state) {
  (void)state;
  dibs_table *t = events();
  char name[64];
  static const char *const odd[] = {
      "'version':'1'",
      "'version':1.5",
      "'version':[1]",
      "'version':{'$date':{'$numberLong':'1'}}",
      "'version':1,'fence':'1'",
      "'version':1,'fence':-1",
      "'version':1,'fence':1.5",
      "'version':1,'fence':[null]",
      "'version':1,'fence':true",
      "'version':1,'fence':{'$numberLong':'9223372036854775807'}",
  };
  snprintf(name, sizeof name, "%s/odd", gateways());
  dibs_lease *lease = lease_of(name);
  for (size_t i = 0; i < sizeof odd / sizeof odd[0]; i++) {
    char key[12];
    snprintf(key, sizeof key, "%zu", i);
    insert("{'_id':%zu,'title':'x',%s}", i, odd[i]);
    bool version = strncmp(odd[i], "'version':1,", 12) != 0;
    get(key, DIBS_INVALID, t);
    assert_message(version ? "\"version\" of { \"_id\" : " : "\"fence\" of { \"_id\" : ");
    put(key, VALUES("y", KEEP), DIBS_INVALID, t, .lease = lease);
    get(key, DIBS_INVALID, t, .lease = lease);
    if (version) put(key, VALUES("y", KEEP), DIBS_INVALID, t, .if_version = "1");
    assert_int_equal(count("{'_id':%zu,'title':'x'}", i), 1);
    if (!version) put(key, VALUES("y", KEEP), DIBS_OK, t, .if_version = "1"); /* the fence guards nothing here */
  }
  insert("{'_id':'fine','title':'x','version':1,'fence':7.0}");
  put("fine", VALUES("y", KEEP), DIBS_OK, t, .if_version = "1", .lease = lease);
}

/* ---- Keys ---- */

#define OID "6b07c9f57dd4a3ff267ca355"

static void keys_are_numbers_texts_and_object_ids(void **state) {
  (void)state;
  static const char *const ids[] = {
      "7", "'007'", "{'$oid':'" OID "'}", "8.0", "{'$numberLong':'9007199254740993'}", "'gr\xc3\xbc\xc3\x9f $x'"};
  static const char *const keys[] = {"7", "007", OID, "8", "9007199254740993", "gr\xc3\xbc\xc3\x9f $x"};
  dibs_table *t = events();
  for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
    insert("{'_id':%s,'title':'%zu','version':1}", ids[i], i);
    put(keys[i], VALUES("late", KEEP), DIBS_CONFLICT, t, .flags = DIBS_IF_ABSENT);
    put(keys[i], VALUES("new", KEEP), DIBS_OK, t, .if_version = "1");
    assert_int_equal(count("{'_id':%s,'title':'new','version':2}", ids[i]), 1);
    take_away(keys[i], DIBS_OK, t, .if_version = get(keys[i], DIBS_OK, t)->version);
    get(keys[i], DIBS_NOT_FOUND, t);
  }
  get("7.0", DIBS_NOT_FOUND, t);
}

static void a_number_and_a_text_of_the_same_digits_are_not_one_key(void **state) {
  (void)state;
  dibs_table *t = events();
  insert("{'_id':'7','title':'text','version':1}");
  put("7", VALUES("found", KEEP), DIBS_OK, t, .if_version = "1");
  put("8", VALUES("new", KEEP), DIBS_OK, t, .flags = DIBS_IF_ABSENT); /* a text, as all keys here */
  assert_int_equal(count("{'_id':'8'}"), 1);
  insert("{'_id':7,'title':'number','version':1}");
  get("7", DIBS_INVALID, t);
  assert_message("two documents have this key");
  put("7", VALUES("x", KEEP), DIBS_INVALID, t, .flags = DIBS_IF_ABSENT);
  put("9", VALUES("new", KEEP), DIBS_OK, t, .flags = DIBS_IF_ABSENT);
  assert_int_equal(count("{'_id':9}"), 1);
  put("8", VALUES("still a text", KEEP), DIBS_OK, t, .if_version = "1");
  assert_int_equal(count("{'_id':'8','title':'still a text'}"), 1);
}

static void another_field_may_be_the_key(void **state) {
  (void)state;
  insert("{'slug':'a','title':'x','version':1}");
  insert("{'slug':['b'],'title':'x','version':1}");
  assert_true(command("{'createIndexes':'%s','indexes':[{'key':{'slug':1},'name':'s','unique':true}]}", gateways()));
  dibs_table *t = TABLE(.key = "slug", .version = "version", .columns = "title");
  put("a", VALUES("y"), DIBS_OK, t, .if_version = "1");
  put("c", VALUES("y"), DIBS_OK, t, .flags = DIBS_IF_ABSENT);
  assert_int_equal(count("{'slug':{'$in':['a','c']},'title':'y','$expr':{'$eq':[{'$type':'$_id'},'objectId']}}"), 2);
  put("b", VALUES("y"), DIBS_NOT_FOUND, t, .if_version = "1"); /* an array is no key */
  get("b", DIBS_NOT_FOUND, t);
  assert_int_equal(count("{'slug':'b','title':'x','version':1}"), 1);
}

static void index_slugs(void) {
  assert_true(command("{'createIndexes':'%s','indexes':[{'key':{'slug':1},'name':'s','unique':true}]}", gateways()));
}

static void no_key_exists_twice_after_its_index_was_dropped(void **state) {
  (void)state;
  insert("{'slug':'a','title':'x','version':1}");
  index_slugs();
  dibs_table *t = TABLE(.key = "slug", .version = "version", .columns = "title");
  put("c", VALUES("y"), DIBS_OK, t, .flags = DIBS_IF_ABSENT);
  assert_true(command("{'dropIndexes':'%s','index':'s'}", gateways()));
  put("c", VALUES("z"), DIBS_INVALID, t, .flags = DIBS_IF_ABSENT);
  assert_message("no unique index of its own");
  assert_int_equal(count("{'slug':'c'}"), 1);
  index_slugs();
  put("d", VALUES("y"), DIBS_OK, t, .flags = DIBS_IF_ABSENT);
  put("d", VALUES("z"), DIBS_CONFLICT, t, .flags = DIBS_IF_ABSENT);
  assert_true(command("{'drop':'%s'}", gateways()));
  put("d", VALUES("y"), DIBS_INVALID, t, .flags = DIBS_IF_ABSENT); /* it would make a collection without the index */
  assert_int_equal(count("{}"), 0);
}

/* ---- Instants and hashes ---- */

static void an_instant_grows_with_each_write(void **state) {
  (void)state;
  dibs_table *t = TABLE(.key = "_id", .version = "changed", .version_kind = DIBS_VERSION_TIME, .columns = "title");
  char was[DIBS_VERSION_MAX + 1] = "";
  put("a", VALUES("0"), DIBS_OK, t, .flags = DIBS_IF_ABSENT);
  for (int i = 0; i < 5; i++) {
    const dibs_record *r = get("a", DIBS_OK, t);
    assert_string_equal(r->version, result.version);
    assert_true(strcmp(was, r->version) < 0);
    snprintf(was, sizeof was, "%s", r->version);
    put("a", VALUES("n"), DIBS_OK, t, .if_version = was);
    put("a", VALUES("late"), DIBS_CONFLICT, t, .if_version = was);
  }
  assert_int_equal(count("{'changed':{'$gte':%s,'$lte':%s}}", ago(60000), ago(-60000)), 1);
  take_away("a", DIBS_CONFLICT, t, .if_version = was);
  insert("{'_id':'b','changed':{'$date':'2099-12-31T23:59:59.999Z'}}");
  put("b", VALUES("x"), DIBS_OK, t, .if_version = "2099-12-31T23:59:59.999Z");
  assert_string_equal(result.version, "2100-01-01T00:00:00.000Z");
  insert("{'_id':'c'}");
  assert_string_equal(get("c", DIBS_OK, t)->version, "");
  put("c", VALUES("x"), DIBS_OK, t, .if_version = "");
  put("c", VALUES("x"), DIBS_CONFLICT, t, .if_version = "");
  insert("{'_id':'d','changed':'yesterday'}");
  put("d", VALUES("x"), DIBS_INVALID, t, .flags = DIBS_UNCHECKED);
  assert_message("\"changed\"");
  insert("{'_id':'e','changed':{'$date':{'$numberLong':'253402300800000'}}}"); /* the year 10000 */
  get("e", DIBS_INVALID, t);
  put("e", VALUES("x"), DIBS_INVALID, t, .if_version = "1900-01-01T00:00:00.000Z");
  assert_message("0 to 9999");
}

static void a_version_that_can_not_grow_is_not_written(void **state) {
  (void)state;
  static const char *const last[] = {"{'$numberLong':'9223372036854775807'}", "{'$numberDouble':'9007199254740991'}",
                                     "{'$date':{'$numberLong':'253402300799999'}}",
                                     "{'$date':{'$numberLong':'253402300800000'}}"};
  for (int i = 0; i < 4; i++) {
    char key[4];
    dibs_table *t = TABLE(.key = "_id", .version = "version", .columns = "title",
                          .version_kind = i < 2 ? DIBS_VERSION_NUMBER : DIBS_VERSION_TIME);
    snprintf(key, sizeof key, "%d", i);
    insert("{'_id':%d,'title':'x','version':%s}", i, last[i]);
    put(key, VALUES("y"), DIBS_INVALID, t, .flags = DIBS_UNCHECKED);
    assert_message("\"version\" of { \"_id\" : ");
    if (i < 3) put(key, VALUES("y"), DIBS_INVALID, t, .if_version = get(key, DIBS_OK, t)->version);
    assert_int_equal(count("{'_id':%d,'title':'x','version':%s}", i, last[i]), 1);
    if (i < 3) take_away(key, DIBS_OK, t, .if_version = get(key, DIBS_OK, t)->version);
  }
}

static void a_hash_distinguishes_contents(void **state) {
  (void)state;
  for (int stored = 0; stored < 2; stored++) {
    case_next();
    insert("{'_id':'x','a':'one','b':null}");
    dibs_table *t =
        TABLE(.key = "_id", .version = stored ? "tag" : NULL, .version_kind = DIBS_VERSION_HASH, .columns = "a b");
    const dibs_record *was = get("x", DIBS_OK, t);
    assert_int_equal(strlen(was->version), stored ? 0 : 64);
    put("x", VALUES("two", KEEP), DIBS_OK, t, .if_version = was->version);
    char version[DIBS_VERSION_MAX + 1];
    snprintf(version, sizeof version, "%s", result.version);
    assert_string_equal(get("x", DIBS_OK, t)->version, version);
    put("x", VALUES("late", "late"), DIBS_CONFLICT, t, .if_version = was->version);
    assert_string_equal(result.version, version);
    put("x", VALUES("two", ""), DIBS_OK, t, .if_version = version);
    assert_string_not_equal(result.version, version);
    put("x", VALUES("two", NULL), DIBS_OK, t, .if_version = result.version);
    assert_string_equal(result.version, version);
    take_away("x", DIBS_CONFLICT, t, .if_version = was->version);
    take_away("x", DIBS_OK, t, .if_version = version);
    put("x", VALUES("two", NULL), DIBS_OK, t, .flags = DIBS_IF_ABSENT);
    assert_string_equal(result.version, version);
  }
  /* As a SQL table has it: doc/tables.md. */
  assert_string_equal(result.version, "36fe11a811dc08fb1c6206377c9ba7a0237592b3181d981f7560f39a0c4baf70");
}

/* ---- What a declaration lacks ---- */

static void a_missing_part_is_named(void **state) {
  (void)state;
  dibs_table *bare = TABLE(.key = "_id", .columns = "a");
  dibs_lease *lease = lease_of(gateways());
  get("x", DIBS_INVALID, bare);
  assert_message("there is no collection");
  insert("{'_id':'x','a':'one'}");
  assert_string_equal(get("x", DIBS_OK, bare)->version, "");
  put("x", VALUES("two"), DIBS_UNSUPPORTED, bare, .if_version = "1");
  assert_message("declared without a version column");
  put("x", VALUES("two"), DIBS_UNSUPPORTED, bare, .lease = lease);
  assert_message("declared without a fence column");
  put("x", VALUES("two"), DIBS_OK, bare, .flags = DIBS_UNCHECKED);
  put("x", VALUES(KEEP), DIBS_OK, bare, .flags = DIBS_UNCHECKED);
  put("y", VALUES(KEEP), DIBS_NOT_FOUND, bare, .flags = DIBS_UNCHECKED);
  dibs_table *dollar = TABLE(.key = "_id", .columns = "a$");
  get("x", DIBS_INVALID, dollar);
  assert_message("a$");
  assert_int_equal(count("{'a':'two'}"), 1);
}

static void a_collection_may_be_in_another_database(void **state) {
  (void)state;
  char table[100];
  snprintf(table, sizeof table, "dibs_other.%s", gateways());
  dibs_table_options o = {.size = sizeof o, .table = table, .key = "_id", .version = "version", .columns = "a"};
  dibs_table *t = declare(&o);
  put("x", VALUES("one"), DIBS_OK, t, .flags = DIBS_IF_ABSENT);
  put("x", VALUES("two"), DIBS_OK, t, .if_version = "1");
  assert_string_equal(get("x", DIBS_OK, t)->values[0].data, "two");
  take_away("x", DIBS_OK, t, .if_version = "2");
}

static void a_value_has_at_most_a_megabyte(void **state) {
  (void)state;
  dibs_table *t = events();
  char *big = malloc(DIBS_RECORD_MAX + 1);
  assert_non_null(big);
  memset(big, 'x', DIBS_RECORD_MAX);
  big[DIBS_RECORD_MAX] = '\0';
  put("7", VALUES(NULL, big), DIBS_OK, t, .flags = DIBS_IF_ABSENT);
  put("7", VALUES("y", big), DIBS_INVALID, t, .if_version = "1");
  big[0] = 'y';
  put("7", VALUES(NULL, big), DIBS_OK, t, .if_version = "1");
  const dibs_record *got = get("7", DIBS_OK, t);
  assert_int_equal(got->values[1].length, DIBS_RECORD_MAX);
  assert_memory_equal(got->values[1].data, big, DIBS_RECORD_MAX);
  free(big);
}

/* ---- Many writers ---- */

enum { WRITERS = 4, ADDITIONS = 15 };
static struct {
  dibs_table *table;
  _Atomic int failures;
} race;

static dibs_status add_one(const dibs_record *record, dibs_value *values, size_t columns, void *user) {
  char *text = user;
  (void)columns;
  snprintf(text, 24, "%ld", strtol(record->values[0].data, NULL, 10) + 1);
  values[0] = (dibs_value){text, strlen(text)};
  return DIBS_OK;
}

static void *add_by_dibs(void *arg) {
  dibs_store *own = arg;
  dibs_error error;
  char text[24];
  dibs_update_options o = {.size = sizeof o, .table = race.table, .wait_ms = 60000};
  for (int i = 0; i < ADDITIONS; i++) {
    dibs_status status = dibs_record_update(own, "7", &o, add_one, text, NULL, &error);
    if (status != DIBS_OK && atomic_fetch_add(&race.failures, 1) < 3) print_error("update: %s\n", error.text);
  }
  return NULL;
}

/* Half of the writers are programs without dibs. */
static void no_update_is_lost(void **state) {
  (void)state;
  pthread_t threads[WRITERS];
  dibs_store *own[WRITERS];
  dibs_error error;
  for (int hashes = 0; hashes < 2; hashes++) {
    case_next();
    memset(&race, 0, sizeof race);
    insert("{'_id':7,'n':0}");
    race.table = hashes ? TABLE(.key = "_id", .version_kind = DIBS_VERSION_HASH, .columns = "n")
                        : TABLE(.key = "_id", .version = "v", .columns = "n");
    for (int i = 0; i < WRITERS; i++) {
      if (dibs_open(case_uri(), NULL, &own[i], &error) != DIBS_OK) fail_msg("%s", error.text);
      assert_int_equal(pthread_create(&threads[i], NULL, add_by_dibs, own[i]), 0);
    }
    for (int i = 0; i < ADDITIONS; i++)
      bson_destroy(
          find_and_modify("{'findAndModify':'%s','query':{'_id':7},'update':{'$inc':{'n':1,'v':1}}}", gateways()));
    for (int i = 0; i < WRITERS; i++) pthread_join(threads[i], NULL);
    for (int i = 0; i < WRITERS; i++) dibs_close(own[i]);
    assert_int_equal(atomic_load(&race.failures), 0);
    if (count("{'n':{'$numberLong':'%d'}}", (WRITERS + 1) * ADDITIONS) != 1) fail_msg("%s", shown("{}"));
  }
}

int main(int argc, char *argv[]) {
  if (argc != 2) return 2;
  bed_begin(argv[1]);
  const struct CMUnitTest tests[] = {
      RECORDS(a_put_needs_the_version_that_was_read),
      RECORDS(a_document_without_a_version_has_version_0),
      RECORDS(the_document_refuses_a_stale_holder),
      RECORDS(a_program_without_dibs_respects_the_same_fence),
      RECORDS(a_write_of_another_program_is_noticed_if_it_counts_the_version),
      RECORDS(only_a_missing_document_is_created),
      RECORDS(another_unique_key_is_not_the_key),
      RECORDS(a_value_takes_the_type_that_the_field_has),
      RECORDS(a_decimal_comma_of_the_program_does_not_matter),
      RECORDS(a_value_of_another_type_changes_nothing),
      RECORDS(odd_documents_are_invalid_and_stay_as_they_are),
      RECORDS(keys_are_numbers_texts_and_object_ids),
      RECORDS(a_number_and_a_text_of_the_same_digits_are_not_one_key),
      RECORDS(another_field_may_be_the_key),
      RECORDS(no_key_exists_twice_after_its_index_was_dropped),
      RECORDS(an_instant_grows_with_each_write),
      RECORDS(a_version_that_can_not_grow_is_not_written),
      RECORDS(a_hash_distinguishes_contents),
      RECORDS(a_missing_part_is_named),
      RECORDS(a_collection_may_be_in_another_database),
      RECORDS(a_value_has_at_most_a_megabyte),
      RECORDS(no_update_is_lost),
  };
  return cmocka_run_group_tests_name("mongodb records", tests, NULL, NULL);
}
