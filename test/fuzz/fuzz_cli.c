/* SPDX-License-Identifier: MIT */
/*
 * Any bytes as a duration, a number, a command line, and a printed lease.  Either they are refused with a message, or
 * the result is correct and within its bounds.
 */
#include "base/duration.h"
#include "base/text.h"
#include "cli/cli.h"
#include "fuzz.h"

#include <stdlib.h>
#include <string.h>

enum { WORDS_MAX = 64 };

#define CHECK(what)                                                                                                    \
  do                                                                                                                   \
    if (!(what)) wrong(#what, text);                                                                                   \
  while (0)

static void wrong(const char *what, const char *text) {
  fprintf(stderr, "failed: %s\nfor: %s\n", what, text);
  abort();
}

/* The table of commands refers to these functions; none is called here. */
#define STAND_IN(name)                                                                                                 \
  int dibs__cli_##name(struct cli_call *call) {                                                                        \
    (void)call;                                                                                                        \
    abort();                                                                                                           \
  }
STAND_IN(run)
STAND_IN(lock)
STAND_IN(unlock)
STAND_IN(renew)
STAND_IN(ls)
STAND_IN(show)
STAND_IN(break)
STAND_IN(watch)
STAND_IN(record)
STAND_IN(stock)
STAND_IN(counter)
STAND_IN(rate)
STAND_IN(once)
STAND_IN(history)
STAND_IN(task)
STAND_IN(dead)
STAND_IN(worker)
STAND_IN(cron)
STAND_IN(relay)
STAND_IN(lane)
STAND_IN(start_lab)
STAND_IN(start_serve)
STAND_IN(start_gate)
STAND_IN(doctor)
STAND_IN(flag)
STAND_IN(tier)
STAND_IN(stats)
STAND_IN(help)
STAND_IN(version)

static void try_duration(const char *text) {
  char why[160] = "";
  int64_t ms;
  if (!dibs__duration_read(text, &ms, why, sizeof why)) {
    CHECK(why[0] != '\0' && memchr(why, '\0', sizeof why) != NULL && ms == 0);
    return;
  }
  CHECK(ms >= 0);
  size_t digits = strspn(text, "0123456789");
  const char *unit = text + digits;
  static const struct {
    const char *unit;
    int64_t ms;
  } plain[] = {{"ms", 1}, {"s", 1000}, {"m", 60000}, {"h", 3600000}, {"d", 86400000}};
  for (size_t k = 0; k < sizeof plain / sizeof *plain; k++) {
    if (strcmp(unit, plain[k].unit) != 0) continue;
    __extension__ __int128 wanted = 0;
    for (size_t i = 0; i < digits; i++) wanted = wanted * 10 + (text[i] - '0');
    CHECK(digits > 0 && wanted * plain[k].ms == ms);
  }
  /* The printed form is accepted, and printed the same again. */
  char span[24], again[24];
  int64_t read;
  dibs__duration_write(span, sizeof span, ms);
  CHECK(dibs__duration_read(span, &read, why, sizeof why) && read <= ms);
  dibs__duration_write(again, sizeof again, read);
  CHECK(strcmp(span, again) == 0);
}

static void try_number(const char *text) {
  uint64_t n;
  bool fine = dibs__cli_number(text, UINT64_MAX, &n);
  size_t digits = strspn(text, "0123456789");
  if (!fine)
    CHECK(n == 0 && (digits == 0 || text[digits] != '\0' || digits >= 20));
  else
    CHECK(digits == strlen(text));
  if (fine && n > 0) CHECK(!dibs__cli_number(text, n - 1, &n));
}

static void check_option(const struct cli_values *v, int64_t value, int64_t least, int64_t most, const char *text) {
  (void)v;
  CHECK(value == CLI_UNSET || (value >= least && value <= most));
}

/* Each line is one word. */
static void try_words(char *text) {
  char *argv[WORDS_MAX + 2] = {(char *)(uintptr_t) "dibs"};
  char why[600] = "", *save = NULL;
  int argc = 1;
  for (char *word = strtok_r(text, "\n", &save); word != NULL && argc <= WORDS_MAX; word = strtok_r(NULL, "\n", &save))
    argv[argc++] = word;
  struct cli_call call;
  bool fine = dibs__cli_parse(argc, argv, &call, why, sizeof why);
  CHECK(fine == (why[0] == '\0') && memchr(why, '\0', sizeof why) != NULL);
  const struct cli_values *v = &call.v;
#define CHECK_RANGE(field, least, most) check_option(v, v->field, least, most, text)
  CHECK_RANGE(ttl_ms, DIBS_TTL_MIN_MS, DIBS_TTL_MAX_MS);
  CHECK_RANGE(slots, 1, DIBS_SLOTS_MAX);
  CHECK_RANGE(count, 1, 1000000000);
  CHECK_RANGE(interval_ms, 50, 60000);
  CHECK_RANGE(wait_ms, 0, INT64_C(31622400000));
  CHECK_RANGE(percent, 0, 100);
  CHECK(call.npos >= 0 && call.npos <= CLI_POS_MAX && call.nrest >= 0 && call.nrest <= argc);
  if (!fine || call.command == NULL) return;
  CHECK(v->help || (call.npos >= call.command->pos_min && call.npos <= call.command->pos_max));
  CHECK(v->help || !call.command->rest || (call.nrest > 0 && call.rest[call.nrest] == NULL));
  CHECK(!call.command->raw || (call.nrest > 0 && strcmp(call.rest[0], call.command->name) == 0));
}

/* Prints a lease as dibs lock does. */
static void print_lease(const struct cli_lease_in *in, char *to, size_t size) {
  struct dibs__text t;
  dibs__text_begin(&t, to, size);
  if (in->name[0] != '\0') {
    dibs__text_adds(&t, "DIBS_NAME='");
    for (const char *c = in->name; *c != '\0'; c++) {
      if (*c == '\'')
        dibs__text_adds(&t, "'\\''");
      else
        dibs__text_addf(&t, "%c", *c);
    }
    dibs__text_adds(&t, "'\n");
  }
  dibs__text_addf(&t, "DIBS_LEASE=%s\n", in->id);
  if (in->has_fence) dibs__text_addf(&t, "DIBS_FENCE=%llu\n", (unsigned long long)in->fence);
  if (in->ttl_ms != CLI_UNSET) dibs__text_addf(&t, "DIBS_TTL=%lldms\n", (long long)in->ttl_ms);
  dibs__text_adds(&t, "export DIBS_NAME DIBS_LEASE DIBS_FENCE DIBS_TTL\n");
}

static void try_lease(const char *text, size_t size) {
  struct cli_lease_in in, again;
  char why[160] = "";
  if (!dibs__cli_lease_parse(text, size, &in, why, sizeof why)) {
    CHECK(why[0] != '\0' && memchr(why, '\0', sizeof why) != NULL);
    return;
  }
  CHECK(in.has_id && dibs__cli_is_id(in.id) && in.fence < (UINT64_C(1) << 53));
  CHECK(in.name[0] == '\0' || dibs__name_check(in.name, strlen(in.name), DIBS_NAME_MAX, NULL) == DIBS__NAME_OK);
  CHECK(in.ttl_ms == CLI_UNSET || in.ttl_ms >= 0);
  char printed[4 * DIBS_NAME_MAX + 512];
  print_lease(&in, printed, sizeof printed);
  CHECK(dibs__cli_lease_parse(printed, strlen(printed), &again, why, sizeof why));
  CHECK(strcmp(in.name, again.name) == 0 && strcmp(in.id, again.id) == 0 && in.fence == again.fence);
  CHECK(in.has_fence == again.has_fence && in.ttl_ms == again.ttl_ms);
}

/* The first byte selects how the rest is used. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  if (size == 0) return 0;
  char *text = malloc(size);
  if (text == NULL) return 0;
  memcpy(text, data + 1, size - 1);
  text[size - 1] = '\0';
  switch (data[0]) {
  case 'd':
    try_duration(text);
    break;
  case 'n':
    try_number(text);
    break;
  case 'w':
    try_words(text);
    break;
  default:
    try_lease((const char *)data + 1, size - 1);
    break;
  }
  free(text);
  return 0;
}
