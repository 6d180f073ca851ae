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
  struct dibs__result reported = {.text = ""};
  put(text, strlen(text));
  snprintf(name, sizeof name, "%s%s", file, section);
  if (dibs__locate(name, &uri, &reported) != DIBS_OK) fail_msg("%s: %s", section, reported.text);
  assert_string_equal(uri, want);
  dibs__locate_free(uri);
}

/* It is refused with a message that contains `say` and no secret. */
static void refuses(const char *text, const char *section, const char *say) {
  char name[160], *uri = name;
  struct dibs__result reported = {.text = ""};
  put(text, strlen(text));
  snprintf(name, sizeof name, "%s%s", file, section);
  assert_int_equal(dibs__locate(name, &uri, &reported), DIBS_INVALID);
  assert_null(uri);
  if (!strstr(reported.text, say)) fail_msg("'%s' is not in '%s'", say, reported.text);
  if (!strstr(reported.text, "app.ini")) fail_msg("no file is named in '%s'", reported.text);
  if (strstr(reported.text, "hunter") || strstr(reported.text, "app:")) fail_msg("a password: %s", reported.text);
}

static void a_name_differs_from_a_uri(void **state) {
  static const char *const files[] = {"app.ini",        "app.ini#live",     "./app.ini",     "/etc/x/app.ini#a.b",
                                      "a#b/app.ini",    "a#b/app.ini#live", "app.ini#x.ini", "/srv/a:b/app.ini",
                                      "./a:b/app.ini#", "redis://is/an.ini"};
  static const char *const uris[] = {"memory:",       "sqlite:x.ini",      ".ini",    "app.conf", "app.ini.old#live",
                                     "redis://h/0",   "sqlite:a.db#x.ini", "app.INI", "",         "redis://h:1/app.ini",
                                     "memory:a.ini#x"};
  (void)state;
  /* The last of these has a colon and is not a URI. */
  for (size_t i = 0; i < COUNT_OF(files); i++) {
    bool is = dibs__locate_is_file(files[i]);
    if (is != (i + 1 < COUNT_OF(files))) fail_msg("%s", files[i]);
  }
  for (size_t i = 0; i < COUNT_OF(uris); i++)
    if (dibs__locate_is_file(uris[i])) fail_msg("%s", uris[i]);
  for (size_t i = 0; i < COUNT_OF(uris); i++) {
    char *uri;
    struct dibs__result reported = {.text = ""};
    assert_int_equal(dibs__locate(uris[i], &uri, &reported), DIBS_OK);
    assert_string_equal(uri, uris[i]);
    dibs__locate_free(uri);
  }
}

static void the_printed_form_of_a_name(void **state) {
  static const char *const secret[] = {"postgres://app:hunter2@db/app", "redis://:hunter2@cache,sqlite:x.db",
                                       "redis://h,h2/0?sentinel=x&sentinel_password=hunter2", "hunter2"};
  static const char *const open[] = {"postgres://app@db/app", "sqlite:x.db", "/etc/x/app.ini#live",
                                     "memory:", "redis://cache,mysql://db/app"};
  (void)state;
  for (size_t i = 0; i < COUNT_OF(secret); i++)
    if (!dibs__locate_has_secret(secret[i])) fail_msg("%s has a secret", secret[i]);
  for (size_t i = 0; i < COUNT_OF(open); i++)
    if (dibs__locate_has_secret(open[i])) fail_msg("%s has no secret", open[i]);
}

static void stores_with_a_server(void **state) {
  static const char *const server[] = {"postgres://db/app", "mysql:///app?socket=/run/x", "trace+redis://h/0",
                                       "redis://h/0,sqlite:x.db"};
  static const char *const none[] = {"sqlite:x.db", "memory:", "fault+sqlite:x.db", "sqlite:a.db,sqlite:b.db", "what"};
  (void)state;
  for (size_t i = 0; i < COUNT_OF(server); i++)
    if (!dibs__locate_has_server(server[i])) fail_msg("%s has a server", server[i]);
  for (size_t i = 0; i < COUNT_OF(none); i++)
    if (dibs__locate_has_server(none[i])) fail_msg("%s has no server", none[i]);
}

static void an_unnamed_store(void **state) {
  struct dibs__result reported = {.text = ""};
  enum dibs__named_by by;
  char *name;
  (void)state;
  assert_int_equal(setenv("DIBS_STORE", "", 1), 0);
  assert_int_equal(dibs__locate_default(&name, &by, &reported), DIBS_INVALID);
  assert_null(name);
  assert_non_null(strstr(reported.text, "DIBS_STORE is empty"));
  assert_int_equal(setenv("DIBS_STORE", "memory:x", 1), 0);
  assert_int_equal(dibs__locate_default(&name, &by, &reported), DIBS_OK);
  assert_int_equal(by, DIBS__BY_ENVIRONMENT);
  assert_string_equal(name, "memory:x");
  dibs__locate_free(name);
  assert_int_equal(unsetenv("DIBS_STORE"), 0);
}

static void a_section_names_a_store(void **state) {
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

static void parameters_of_tiers_go_to_the_last_member(void **state) {
  (void)state;
  means("[a]\ntiers.strictness = strict\nstore = redis://c,mysql://d/app\ntiers.timeout = 300\n[b]\ntiers.wait=9\n",
        "#a", "redis://c,mysql://d/app?tiers.strictness=strict&tiers.timeout=300");
  means("[a]\nstore = redis://c?prefix=q,mysql://d/app\ntiers.timeout = 300\n", "#a",
        "redis://c?prefix=q,mysql://d/app?tiers.timeout=300");
  means("[a]\nstore = redis://c,mysql://d/app?prefix=q\ntiers.timeout = 300\n", "#a",
        "redis://c,mysql://d/app?prefix=q&tiers.timeout=300");
  /* A comma within a parameter of the last member does not begin another member. */
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
  struct dibs__result reported = {.text = ""};
  char *uri;
  assert_int_equal(mkdir("sub%", 0700), 0);
  assert_int_equal(rename("app.ini", "sub%/x.ini"), 0);
  assert_int_equal(dibs__locate("sub%/x.ini#a", &uri, &reported), DIBS_OK);
  assert_string_equal(uri, "sqlite:sub%25/a.db?mode=0660,SQLite:///b.db,trace+sqlite:sub%25/c/d.db,sqlite:");
  dibs__locate_free(uri);
  assert_int_equal(rename("sub%/x.ini", "x.ini"), 0);
  assert_int_equal(dibs__locate("x.ini#a", &uri, &reported), DIBS_OK);
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

static void mistakes_are_reported_without_passwords(void **state) {
  (void)state;
  refuses("", "#live", "has no section [live]");
  refuses("[a]\nstore = memory:\n", "", "has no section [store]");
  refuses("[a]\nstore = memory:\n", "#A", "has no section [A]");
  refuses("[live]\n", "#live", "[live] has no store: write store = URI");
  refuses("[live]\ntiers.wait = 3\n", "#live", "[live] has no store");
  refuses("[live]\nstore =\n", "#live", ":2: store is not a URI");
  refuses("[live]\nstore = memory:\nstore = mysql://app:hunter2@db/app\n", "#live", ":3: 'store' occurs twice");
  refuses("[live]\nstor = mysql://app:hunter2@db/app\n", "#live", ":2: the key 'stor' is unknown");
  refuses("[live]\nstore = memory:\ntier.wait = 3\n", "#live", ":3: the key 'tier.wait' is unknown");
  refuses("[live]\nstore = memory:\ntiers.wait = a&b=hunter2\n", "#live", ":3: the value of tiers.wait has other");
  refuses("[live]\nstore = memory:\ntiers.wait =\n", "#live", ":3: the value of tiers.wait");
  /* Also in a section that is not used. */
  refuses("[live]\nstore = memory:\n[old]\ncolour = red\n", "#live", ":4: the key 'colour' is unknown");
  refuses("[live]\nstore = memory:\n[old]\nstore =\n", "#live", ":4: store is not a URI");
  refuses("store = memory:\n[live]\n", "#live", ":1: 'store' is outside of a section");
  refuses("[live]\nstore = memory:\n[live]\n", "#live", ":3: the section [live] already exists above");
  /* A password without its key. */
  refuses("[live]\nmysql://app:hunter2@db/app\n", "#live",
          ":2: the text on this line is neither [section] nor key = value");
  refuses("[live]\nstore mysql://app:hunter2@db/app?x=1\n", "#live", ":2: the text on this line is not a key");
  refuses("[live]\n[mysql://app:hunter2@db/app\n", "#live", ":2: the text on this line begins a section");
  refuses("[mysql://app:hunter2@db/app]\n", "#live", ":1: the text on this line is not a section name");
  char text[4000] = "[live]\nstore = memory:\n", value[DIBS_NAME_MAX];
  memset(value, 'x', sizeof value - 1);
  value[sizeof value - 1] = '\0';
  for (int i = 0; i < 9; i++) snprintf(text + strlen(text), sizeof text - strlen(text), "tiers.%d = %s\n", i, value);
  refuses(text, "#live", "too many parameters");
}

static void an_unreadable_file_is_reported(void **state) {
  char name[160], *uri;
  struct dibs__result reported = {.text = ""};
  (void)state;
  snprintf(name, sizeof name, "%s/none.ini#live", folder);
  assert_int_equal(dibs__locate(name, &uri, &reported), DIBS_UNAVAILABLE);
  assert_non_null(strstr(reported.text, "none.ini: No such file"));
  snprintf(name, sizeof name, "%s/dir.ini", folder);
  assert_int_equal(mkdir(name, 0700), 0);
  assert_int_equal(dibs__locate(name, &uri, &reported), DIBS_UNAVAILABLE);
  assert_int_equal(rmdir(name), 0);
  assert_non_null(strstr(reported.text, "dir.ini: Is a directory"));
  if (geteuid() != 0) {
    put("[live]\nstore = memory:\n", 22);
    assert_int_equal(chmod(file, 0), 0);
    assert_int_equal(dibs__locate(file, &uri, &reported), DIBS_DENIED);
    assert_int_equal(unlink(file), 0);
  }
  char longer[6000];
  memset(longer, 'x', sizeof longer);
  memcpy(longer + sizeof longer - 5, ".ini", 5);
  assert_int_equal(dibs__locate(longer, &uri, &reported), DIBS_INVALID);
  assert_non_null(strstr(reported.text, "too long"));
  char nul[] = "[live]\nstore = mem\0ory:\n";
  put(nul, sizeof nul - 1);
  snprintf(name, sizeof name, "%s#live", file);
  assert_int_equal(dibs__locate(name, &uri, &reported), DIBS_INVALID);
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
      cmocka_unit_test(a_name_differs_from_a_uri),
      cmocka_unit_test(the_printed_form_of_a_name),
      cmocka_unit_test(stores_with_a_server),
      cmocka_unit_test(an_unnamed_store),
      cmocka_unit_test(a_section_names_a_store),
      cmocka_unit_test(parameters_of_tiers_go_to_the_last_member),
      cmocka_unit_test(files_are_in_the_folder_of_the_ini_file),
      cmocka_unit_test(a_name_is_found_from_another_folder),
      cmocka_unit_test(mistakes_are_reported_without_passwords),
      cmocka_unit_test(an_unreadable_file_is_reported),
  };
  return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
