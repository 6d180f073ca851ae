/* SPDX-License-Identifier: MIT */
/* Stores that are named by a section of an INI file. */
#include "store/locate.h"
#include "unit.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char folder[64], file[96];

static void put(const char *text, size_t len) {
  FILE *f = fopen(file, "w");
  assert_non_null(f);
  assert_int_equal(fwrite(text, 1, len, f), len);
  assert_int_equal(fclose(f), 0);
}

/* The section of a file with that text means that URI. */
static void means(const char *text, const char *section, const char *want) {
  char name[160], *uri;
  struct dibs__said said = {.text = ""};
  put(text, strlen(text));
  snprintf(name, sizeof name, "%s%s", file, section);
  if (dibs__locate(name, &uri, &said) != DIBS_OK) fail_msg("%s: %s", section, said.text);
  assert_string_equal(uri, want);
  dibs__locate_free(uri);
}

/* It is refused, in words that have `say` in them and no secret. */
static void refuses(const char *text, const char *section, const char *say) {
  char name[160], *uri = name;
  struct dibs__said said = {.text = ""};
  put(text, strlen(text));
  snprintf(name, sizeof name, "%s%s", file, section);
  assert_int_equal(dibs__locate(name, &uri, &said), DIBS_INVALID);
  assert_null(uri);
  if (!strstr(said.text, say)) fail_msg("'%s' is not in '%s'", say, said.text);
  if (!strstr(said.text, "app.ini")) fail_msg("no file is named in '%s'", said.text);
  if (strstr(said.text, "hunter") || strstr(said.text, "app:")) fail_msg("a password: %s", said.text);
}

static void a_name_is_told_from_a_uri(void **state) {
  static const char *const files[] = {"app.ini",        "app.ini#live",     "./app.ini",     "/etc/x/app.ini#a.b",
                                      "a#b/app.ini",    "a#b/app.ini#live", "app.ini#x.ini", "/srv/a:b/app.ini",
                                      "./a:b/app.ini#", "redis://is/an.ini"};
  static const char *const uris[] = {"memory:",       "sqlite:x.ini",      ".ini",    "app.conf", "app.ini.old#live",
                                     "redis://h/0",   "sqlite:a.db#x.ini", "app.INI", "",         "redis://h:1/app.ini",
                                     "memory:a.ini#x"};
  (void)state;
  /* The last of the files has a colon and is none. */
  for (size_t i = 0; i < COUNT_OF(files); i++) {
    bool is = dibs__locate_is_file(files[i]);
    if (is != (i + 1 < COUNT_OF(files))) fail_msg("%s", files[i]);
  }
  for (size_t i = 0; i < COUNT_OF(uris); i++)
    if (dibs__locate_is_file(uris[i])) fail_msg("%s", uris[i]);
  for (size_t i = 0; i < COUNT_OF(uris); i++) {
    char *uri;
    struct dibs__said said = {.text = ""};
    assert_int_equal(dibs__locate(uris[i], &uri, &said), DIBS_OK);
    assert_string_equal(uri, uris[i]);
    dibs__locate_free(uri);
  }
}

static void a_section_says_which_store(void **state) {
  (void)state;
  const char *two = "\xef\xbb\xbf# ours\r\n[store]\r\nstore = memory:\r\n[live]\r\n"
                    "store=redis://cache,mysql://app:hunter2@db/app # both\r\n";
  means(two, "", "memory:");
  means(two, "#", "memory:");
  means(two, "#store", "memory:");
  means(two, "#live", "redis://cache,mysql://app:hunter2@db/app");
  means("[a]\nstore = mysql://app:#hunter;2@db/app\n", "#a", "mysql://app:#hunter;2@db/app");
  means("[a]\ntiers.x = 1\n[b]\nstore = memory:\n", "#b", "memory:");
}

static void parameters_of_tiers_come_to_the_last_member(void **state) {
  (void)state;
  means("[a]\ntiers.strictness = strict\nstore = redis://c,mysql://d/app\ntiers.timeout = 300\n[b]\ntiers.wait=9\n",
        "#a", "redis://c,mysql://d/app?tiers.strictness=strict&tiers.timeout=300");
  means("[a]\nstore = redis://c?prefix=q,mysql://d/app\ntiers.timeout = 300\n", "#a",
        "redis://c?prefix=q,mysql://d/app?tiers.timeout=300");
  means("[a]\nstore = redis://c,mysql://d/app?prefix=q\ntiers.timeout = 300\n", "#a",
        "redis://c,mysql://d/app?prefix=q&tiers.timeout=300");
  /* A comma within what the last member's own parameters say begins no other. */
  means("[a]\nstore = redis://c,postgres:///app?host=a,b\ntiers.timeout = 300\n", "#a",
        "redis://c,postgres:///app?host=a,b&tiers.timeout=300");
  means("[a]\nstore = redis://c,postgres://a:1,b:2/app\ntiers.timeout = 300\n", "#a",
        "redis://c,postgres://a:1,b:2/app?tiers.timeout=300");
}

static void files_are_in_the_folder_of_the_ini_file(void **state) {
  (void)state;
  char want[300];
  snprintf(want, sizeof want, "sqlite://%s/a.db?mode=0660,SQLite:///b.db,trace+sqlite://%s/c/d.db,sqlite:", folder,
           folder);
  means("[a]\nstore = sqlite:a.db?mode=0660,SQLite:///b.db,trace+sqlite:c/d.db,sqlite:\n", "#a", want);
  char here[200];
  assert_non_null(getcwd(here, sizeof here));
  assert_int_equal(chdir(folder), 0);
  struct dibs__said said = {.text = ""};
  char *uri;
  assert_int_equal(mkdir("sub%", 0700), 0);
  assert_int_equal(rename("app.ini", "sub%/x.ini"), 0);
  assert_int_equal(dibs__locate("sub%/x.ini#a", &uri, &said), DIBS_OK);
  assert_string_equal(uri, "sqlite:sub%25/a.db?mode=0660,SQLite:///b.db,trace+sqlite:sub%25/c/d.db,sqlite:");
  dibs__locate_free(uri);
  assert_int_equal(rename("sub%/x.ini", "x.ini"), 0);
  assert_int_equal(dibs__locate("x.ini#a", &uri, &said), DIBS_OK);
  assert_string_equal(uri, "sqlite:a.db?mode=0660,SQLite:///b.db,trace+sqlite:c/d.db,sqlite:");
  dibs__locate_free(uri);
  assert_int_equal(unlink("x.ini") | rmdir("sub%") | chdir(here), 0);
}

static void a_name_is_found_from_another_folder(void **state) {
  static const char *const pairs[][3] = {
      {"app.ini#live", "/srv/a b", "/srv/a b/app.ini#live"},
      {"conf/app.ini", "/srv/100%", "/srv/100%/conf/app.ini"},
      {"/etc/app.ini#x", "/srv", "/etc/app.ini#x"},
      {"app.ini", "/", "/app.ini"},
      {"sqlite:a.db", "/srv/100%,#?", "sqlite:///srv/100%25%2C%23%3F/a.db"},
      {"sqlite:a.db", "/", "sqlite:///./a.db"},
      {"sqlite:a.db?x=1,fault+sqlite:b.db", "/srv/", "sqlite:///srv/a.db?x=1,fault+sqlite:///srv/b.db"},
      {"redis://c:1,d:2,sqlite:b.db?x=y:z", "/srv", "redis://c:1,d:2,sqlite:///srv/b.db?x=y:z"},
      {"sqlite:", "/srv", "sqlite:"},
      {"sqlite:?mode=0660", "/srv", "sqlite:?mode=0660"},
      {"sqlite:///a.db", "/srv", "sqlite:///a.db"},
      {"sqlite:/a.db", "/srv", "sqlite:/a.db"},
      {"memory:a", "/srv", "memory:a"},
      {"redis://:p@h/0", "/srv", "redis://:p@h/0"},
      {"", "/srv", ""},
  };
  (void)state;
  for (size_t i = 0; i < COUNT_OF(pairs); i++) {
    char *whole = dibs__locate_from(pairs[i][0], pairs[i][1]);
    assert_string_equal(whole, pairs[i][2]);
    dibs__locate_free(whole);
  }
}

static void what_is_wrong_is_said_and_no_password(void **state) {
  (void)state;
  refuses("", "#live", "has no section [live]");
  refuses("[a]\nstore = memory:\n", "", "has no section [store]");
  refuses("[a]\nstore = memory:\n", "#A", "has no section [A]");
  refuses("[live]\n", "#live", "[live] has no store: write store = URI");
  refuses("[live]\ntiers.wait = 3\n", "#live", "[live] has no store");
  refuses("[live]\nstore =\n", "#live", ":2: store is a URI");
  refuses("[live]\nstore = memory:\nstore = mysql://app:hunter2@db/app\n", "#live", ":3: 'store' is there twice");
  refuses("[live]\nstor = mysql://app:hunter2@db/app\n", "#live", ":2: there is no key 'stor'");
  refuses("[live]\nstore = memory:\ntier.wait = 3\n", "#live", ":3: there is no key 'tier.wait'");
  refuses("[live]\nstore = memory:\ntiers.wait = a&b=hunter2\n", "#live", ":3: the value of tiers.wait has letters");
  refuses("[live]\nstore = memory:\ntiers.wait =\n", "#live", ":3: the value of tiers.wait");
  /* Also in a section that is not asked for. */
  refuses("[live]\nstore = memory:\n[old]\ncolour = red\n", "#live", ":4: there is no key 'colour'");
  refuses("[live]\nstore = memory:\n[old]\nstore =\n", "#live", ":4: store is a URI");
  refuses("store = memory:\n[live]\n", "#live", ":1: 'store' stands in no section");
  refuses("[live]\nstore = memory:\n[live]\n", "#live", ":3: there is a section [live] above");
  /* A password without its key. */
  refuses("[live]\nmysql://app:hunter2@db/app\n", "#live", ":2: what stands here is neither [section] nor key = value");
  refuses("[live]\nstore mysql://app:hunter2@db/app?x=1\n", "#live", ":2: what stands here is no key");
  refuses("[live]\n[mysql://app:hunter2@db/app\n", "#live", ":2: what stands here begins a section");
  refuses("[mysql://app:hunter2@db/app]\n", "#live", ":1: what stands here is no name of a section");
  char text[4000] = "[live]\nstore = memory:\n", value[DIBS_NAME_MAX];
  memset(value, 'x', sizeof value - 1);
  value[sizeof value - 1] = '\0';
  for (int i = 0; i < 9; i++) snprintf(text + strlen(text), sizeof text - strlen(text), "tiers.%d = %s\n", i, value);
  refuses(text, "#live", "too many parameters");
}

static void a_file_that_can_not_be_read(void **state) {
  char name[160], *uri;
  struct dibs__said said = {.text = ""};
  (void)state;
  snprintf(name, sizeof name, "%s/none.ini#live", folder);
  assert_int_equal(dibs__locate(name, &uri, &said), DIBS_UNAVAILABLE);
  assert_non_null(strstr(said.text, "none.ini can't be read: No such file"));
  snprintf(name, sizeof name, "%s/dir.ini", folder);
  assert_int_equal(mkdir(name, 0700), 0);
  assert_int_equal(dibs__locate(name, &uri, &said), DIBS_UNAVAILABLE);
  assert_int_equal(rmdir(name), 0);
  assert_non_null(strstr(said.text, "dir.ini can't be read: Is a directory"));
  if (geteuid() != 0) {
    put("[live]\nstore = memory:\n", 22);
    assert_int_equal(chmod(file, 0), 0);
    assert_int_equal(dibs__locate(file, &uri, &said), DIBS_DENIED);
    assert_int_equal(unlink(file), 0);
  }
  char longer[6000];
  memset(longer, 'x', sizeof longer);
  memcpy(longer + sizeof longer - 5, ".ini", 5);
  assert_int_equal(dibs__locate(longer, &uri, &said), DIBS_INVALID);
  assert_non_null(strstr(said.text, "too long"));
  char nul[] = "[live]\nstore = mem\0ory:\n";
  put(nul, sizeof nul - 1);
  snprintf(name, sizeof name, "%s#live", file);
  assert_int_equal(dibs__locate(name, &uri, &said), DIBS_INVALID);
}

static int make_folder(void **state) {
  const char *tmp = getenv("TMPDIR");
  (void)state;
  snprintf(folder, sizeof folder, "%.30s/dibs-locate.XXXXXX", tmp && *tmp ? tmp : "/tmp");
  if (!mkdtemp(folder)) return 1;
  snprintf(file, sizeof file, "%s/app.ini", folder);
  return 0;
}

static int remove_folder(void **state) {
  (void)state;
  unlink(file);
  return rmdir(folder);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_name_is_told_from_a_uri),
      cmocka_unit_test(a_section_says_which_store),
      cmocka_unit_test(parameters_of_tiers_come_to_the_last_member),
      cmocka_unit_test(files_are_in_the_folder_of_the_ini_file),
      cmocka_unit_test(a_name_is_found_from_another_folder),
      cmocka_unit_test(what_is_wrong_is_said_and_no_password),
      cmocka_unit_test(a_file_that_can_not_be_read),
  };
  return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
