/* SPDX-License-Identifier: MIT */
/* The page of a sheet: well-formed and self-contained for any content. */
#include "lab/sheet.h"
#include "page.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define NASTY "</script><img src=x onerror=alert(1)> \"'& \xff\xc0\x80\x01\x1b[31m \xf0\x9f\x8e\x9f"

static const struct lab_column columns[] = {
    {"name", "na<me", LAB_TEXT}, {"count", "count", LAB_COUNT}, {"ms", "ms", LAB_MS}, {"verdict", "verdict", LAB_TEXT}};

static char *page_of(const struct lab_sheet *sheet) {
  char *html = NULL;
  size_t length = 0;
  FILE *out = open_memstream(&html, &length);
  assert_non_null(out);
  dibs__lab_report(sheet, out);
  fclose(out);
  const char *wrong = page_wrong(html, length);
  if (wrong) fail_msg("%s", wrong);
  return html;
}

/* Text with a character that reverses the rest. */
static void no_text_reverses_the_page(void **state) {
  (void)state;
  static const unsigned char bytes[] = {'a', 0xe2, 0x80, 0xae, 'b', 0xe2, 0x81, 0xa6, 'c', 0};
  char *html = NULL;
  size_t length = 0;
  FILE *out = open_memstream(&html, &length);
  assert_non_null(out);
  dibs__lab_escape(out, (const char *)bytes);
  fclose(out);
  assert_string_equal(html, "a&#xfffd;b&#xfffd;c");
  free(html);
}

static void an_empty_sheet_is_a_page(void **state) {
  (void)state;
  struct lab_sheet sheet = {0};
  free(page_of(&sheet));
}

static void no_text_of_a_store_becomes_markup(void **state) {
  (void)state;
  struct lab_sheet s = {.experiment = "race"};
  dibs__lab_title(&s, NASTY, NASTY);
  dibs__lab_fact(&s, "store", "Store", "%s", NASTY);
  dibs__lab_note(&s, "%s", NASTY);
  struct lab_table *table = dibs__lab_table(&s, "t", NASTY, NASTY, columns, 4);
  dibs__lab_put_text(&s, table, LAB_PLAIN, NASTY);
  dibs__lab_put(&s, table, 1234567);
  dibs__lab_put(&s, table, (double)NAN);
  dibs__lab_put_text(&s, table, LAB_BAD, NASTY);
  for (int shape = LAB_BARS; shape <= LAB_HILLS; shape++) {
    struct lab_plot *plot = dibs__lab_plot(&s, "p", (enum lab_shape)shape, NASTY, NASTY);
    plot->x_title = plot->y_title = NASTY;
    struct lab_series *series = dibs__lab_series(&s, plot, NASTY, LAB_PLAIN);
    dibs__lab_point(&s, series, 1, 2);
    dibs__lab_point(&s, series, 2, 3);
  }
  struct lab_timeline *timeline = dibs__lab_timeline(&s, "l", NASTY, NASTY, NASTY, NASTY);
  for (int side = -1; side < 2; side++) dibs__lab_step(&s, timeline, side, LAB_EXPECTED, NASTY, NASTY);
  char *html = page_of(&s);
  assert_null(strstr(html, "<img"));
  assert_null(strstr(html, "onerror=alert(1)>"));
  assert_non_null(strstr(html, "1,234,567"));
  assert_false(s.full);
  free(html);
  dibs__lab_sheet_free(&s);
}

/* Axes of tiny values, and of values that are far apart. */
static void any_figures_can_be_drawn(void **state) {
  (void)state;
  static const double values[][2] = {{0, 0}, {1, 1}, {1e-9, 1e-9}, {1, 1e12}, {-5, 7}, {1e300, 2e300}, {0, 1e-300}};
  for (size_t i = 0; i < sizeof values / sizeof *values; i++) {
    for (int shape = LAB_BARS; shape <= LAB_HILLS; shape++)
      for (int logs = 0; logs < 4; logs++) {
        struct lab_sheet s = {.experiment = "contend"};
        struct lab_plot *plot = dibs__lab_plot(&s, "p", (enum lab_shape)shape, "plot", "");
        plot->log_x = logs & 1;
        plot->log_y = logs & 2;
        struct lab_series *series = dibs__lab_series(&s, plot, "one", LAB_PLAIN);
        for (size_t n = 0; n < 2; n++) dibs__lab_point(&s, series, values[i][n], values[i][n]);
        dibs__lab_point(&s, series, (double)INFINITY, 1); /* left out */
        assert_int_equal(series->count, 2);
        (void)dibs__lab_series(&s, plot, "empty", LAB_BAD);
        char *html = page_of(&s);
        assert_null(strstr(html, "nan"));
        assert_null(strstr(html, "inf"));
        free(html);
        dibs__lab_sheet_free(&s);
      }
  }
}

static void a_broken_promise_is_reported_first(void **state) {
  (void)state;
  struct lab_sheet s = {.experiment = "race"};
  dibs__lab_title(&s, "title", "");
  char *html = page_of(&s);
  assert_non_null(strstr(html, "Every promise held."));
  free(html);
  s.broken = true;
  html = page_of(&s);
  assert_non_null(strstr(html, "A promise was broken"));
  assert_null(strstr(html, "Every promise held."));
  free(html);
  s.broken = false;
  s.interrupted = true;
  html = page_of(&s);
  assert_non_null(strstr(html, "Ended early"));
  free(html);
  dibs__lab_sheet_free(&s);
}

static void figures_are_readable(void **state) {
  (void)state;
  static const struct {
    enum lab_kind kind;
    double number;
    const char *text;
  } cases[] = {{LAB_COUNT, 0, "0"},         {LAB_COUNT, 1234567, "1,234,567"}, {LAB_COUNT, -1234, "-1,234"},
               {LAB_MS, 0.123, "0.12"},     {LAB_MS, 12.34, "12.3"},           {LAB_RATE, 35123.4, "35,123"},
               {LAB_TIMES, 1.234, "1.23x"}, {LAB_TIMES, 135.2, "135.2x"}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    char text[64];
    struct lab_cell cell = {.number = cases[i].number};
    dibs__lab_figure(text, sizeof text, cases[i].kind, &cell);
    assert_string_equal(text, cases[i].text);
  }
}

/* The verdict is the second column of a page, wherever it is in the table. */
static void a_phone_shows_the_verdict_first(void **state) {
  (void)state;
  struct lab_sheet s = {.experiment = "race"};
  struct lab_table *table = dibs__lab_table(&s, "t", "title", "", columns, 4);
  dibs__lab_put_text(&s, table, LAB_PLAIN, "atomic");
  dibs__lab_put(&s, table, 11);
  dibs__lab_put(&s, table, 22);
  dibs__lab_put_text(&s, table, LAB_GOOD, "correct");
  char *html = page_of(&s);
  assert_non_null(strstr(html, "<th scope=\"row\">atomic</th><td class=\"good\">correct</td><td class=\"n\">11</td>"));
  const char *verdict = strstr(html, ">verdict</th>"), *count = strstr(html, ">count</th>");
  assert_non_null(verdict);
  assert_non_null(count);
  assert_true(verdict < count);
  free(html);
  dibs__lab_sheet_free(&s);
}

/* The index escapes, refers to each page, and counts verdicts. */
static void an_index_lists_experiments(void **state) {
  (void)state;
  static struct lab_index index;
  struct lab_sheet s = {.experiment = "race"}, failed = {.experiment = "deadlock"};
  dibs__lab_title(&s, NASTY, "");
  dibs__lab_fact(&s, "machine", "Machine", "%s", NASTY);
  dibs__lab_fact_number(&s, "seats", "Seats", 1234567, "");
  assert_string_equal(s.facts[1].text, "1,234,567");
  struct lab_table *table = dibs__lab_table(&s, "t", "title", "", columns, 4);
  for (int i = 0; i < 3; i++) {
    dibs__lab_put_text(&s, table, LAB_PLAIN, "atomic");
    dibs__lab_put(&s, table, 11);
    dibs__lab_put(&s, table, 22);
    dibs__lab_put_text(&s, table, i ? LAB_GOOD : LAB_EXPECTED, "verdict");
  }
  dibs__lab_fail_sheet(&failed, NASTY);
  dibs__lab_index_add(&index, &s);
  dibs__lab_index_add(&index, &failed);
  char *html = NULL;
  size_t length = 0;
  FILE *out = open_memstream(&html, &length);
  assert_non_null(out);
  dibs__lab_index_write(&index, out);
  fclose(out);
  const char *wrong = page_wrong(html, length);
  if (wrong) fail_msg("%s", wrong);
  assert_non_null(strstr(html, "<a href=\"race.html\">"));
  assert_non_null(strstr(html, "2 correct; 1 broken, as expected"));
  assert_non_null(strstr(html, "Not run: "));
  assert_null(strstr(html, "<img"));
  free(html);
  dibs__lab_index_free(&index);
  dibs__lab_sheet_free(&s);
  dibs__lab_sheet_free(&failed);
}

static void the_checker_finds_faults(void **state) {
  (void)state;
  static const char *const faults[] = {
      "<html>",
      "<!DOCTYPE html>\n<html><p></html>",
      "<!DOCTYPE html>\n<html><p class=x></p></html>",
      "<!DOCTYPE html>\n<html>a & b</html>",
      "<!DOCTYPE html>\n<html><a href=\"x\"></a></html>",
      "<!DOCTYPE html>\n<html><a href=\"https://x.org/race.html\"></a></html>",
      "<!DOCTYPE html>\n<html><link href=\"race.html\"/></html>",
      "<!DOCTYPE html>\n<html><style>a{background:url(x)}</style></html>",
      "<!DOCTYPE html>\n<html><script>fetch('x')</script></html>",
      "<!DOCTYPE html>\n<html><p id=\"a\"></p><p id=\"a\"></p></html>",
      "<!DOCTYPE html>\n<html>\xff</html>",
      "<!DOCTYPE html>\n<html></html>more",
  };
  for (size_t i = 0; i < sizeof faults / sizeof *faults; i++)
    if (!page_wrong(faults[i], strlen(faults[i]))) fail_msg("not found: %s", faults[i]);
  static const char fine[] = "<!DOCTYPE html>\n<html><p id=\"a\">x &amp; y<br/></p></html>\n";
  assert_null(page_wrong(fine, strlen(fine)));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(an_empty_sheet_is_a_page),   cmocka_unit_test(no_text_of_a_store_becomes_markup),
      cmocka_unit_test(any_figures_can_be_drawn),   cmocka_unit_test(a_broken_promise_is_reported_first),
      cmocka_unit_test(figures_are_readable),       cmocka_unit_test(the_checker_finds_faults),
      cmocka_unit_test(no_text_reverses_the_page),  cmocka_unit_test(a_phone_shows_the_verdict_first),
      cmocka_unit_test(an_index_lists_experiments),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
