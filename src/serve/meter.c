/* SPDX-License-Identifier: MIT */
#include "serve/meter.h"
#include "base/text.h"
#include "fleet/fleet.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
  FAMILIES_MAX = 128, /* there are about fifty */

  STEPS_FROM = 10, /* of dibs_latency: steps[i] counts what is below 2^(10+i) ns */
  STEP_EVERY = 2   /* a bucket for each fourfold time: 13 of them */
};

struct sample {
  size_t family;
  struct label labels[METER_LABELS + 1]; /* values are malloc'd */
  double value;
  dibs_latency *latency; /* malloc'd; NULL: `value`, or */
  dibs_sizes *sizes;     /* malloc'd */
};

struct family {
  const char *name, *help;
  uint32_t kind;
};

struct meter {
  struct family families[FAMILIES_MAX];
  size_t family_count;
  struct sample *samples;
  size_t count, capacity;
  bool failed;
};

struct meter *dibs__meter_new(void) {
  return calloc(1, sizeof(struct meter));
}

static void free_sample(struct sample *s) {
  for (size_t i = 0; i < METER_LABELS; i++) free((char *)(uintptr_t)s->labels[i].value);
  free(s->latency);
  free(s->sizes);
}

void dibs__meter_free(struct meter *m) {
  if (!m) return;
  for (size_t i = 0; i < m->count; i++) free_sample(&m->samples[i]);
  free(m->samples);
  free(m);
}

bool dibs__meter_is_whole(const struct meter *m) {
  return !m->failed;
}

/* ---- Collecting ---- */

/* Its number; FAMILIES_MAX: there are too many. */
static size_t find_family(struct meter *m, const char *name, uint32_t kind, const char *help) {
  size_t i = 0;
  while (i < m->family_count && strcmp(m->families[i].name, name) != 0) i++;
  if (i == m->family_count && i < FAMILIES_MAX) m->families[m->family_count++] = (struct family){name, help, kind};
  return i;
}

static struct sample *add_sample(struct meter *m, size_t family, const struct label labels[]) {
  if (m->count == m->capacity) {
    size_t capacity = m->capacity ? 2 * m->capacity : 256;
    struct sample *more = realloc(m->samples, capacity * sizeof *more);
    m->failed = m->failed || !more;
    if (!more) return NULL;
    m->samples = more;
    m->capacity = capacity;
  }
  struct sample *s = &m->samples[m->count++];
  *s = (struct sample){.family = family};
  for (size_t i = 0; labels && labels[i].name && i < METER_LABELS; i++) {
    s->labels[i] = (struct label){labels[i].name, strdup(labels[i].value)};
    m->failed = m->failed || !s->labels[i].value;
  }
  return s;
}

void dibs__meter_add(struct meter *m, const char *family, uint32_t kind, const char *help, const struct label labels[],
                     double value) {
  size_t nth = find_family(m, family, kind, help);
  struct sample *s = nth < FAMILIES_MAX ? add_sample(m, nth, labels) : NULL;
  if (s) s->value = value;
}

void dibs__meter_add_latency(struct meter *m, const char *family, const char *help, const struct label labels[],
                             const dibs_latency *latency) {
  size_t nth = find_family(m, family, DIBS_LATENCY, help);
  struct sample *s = nth < FAMILIES_MAX ? add_sample(m, nth, labels) : NULL;
  if (!s) return;
  s->latency = malloc(sizeof *latency);
  m->failed = m->failed || !s->latency;
  if (s->latency) *s->latency = *latency;
}

void dibs__meter_add_sizes(struct meter *m, const char *family, const char *help, const struct label labels[],
                           const dibs_sizes *sizes) {
  size_t nth = find_family(m, family, DIBS_SIZES, help);
  struct sample *s = nth < FAMILIES_MAX ? add_sample(m, nth, labels) : NULL;
  if (!s) return;
  s->sizes = malloc(sizeof *sizes);
  m->failed = m->failed || !s->sizes;
  if (s->sizes) *s->sizes = *sizes;
}

void dibs__meter_add_hist(struct meter *m, const char *family, const char *help, const struct label labels[],
                          const struct dibs__hist *hist) {
  dibs_latency latency;
  dibs__latency_of(hist, &latency);
  dibs__meter_add_latency(m, family, help, labels, &latency);
}

/* ---- As text ---- */

/* "lock.acquired" is dibs_lock_acquired. */
static void write_name(struct dibs__text *to, const struct family *f) {
  dibs__text_adds(to, "dibs_");
  for (const char *p = f->name; *p; p++) dibs__text_addf(to, "%c", *p == '.' ? '_' : *p);
  if (f->kind == DIBS_COUNTER) dibs__text_adds(to, "_total");
}

static void put(struct dibs__json *to, const struct dibs__text *text) {
  dibs__json_put(to, text->to, text->len);
}

/* A label's value may be the kind of a task: any text without control characters. */
static void write_value(struct dibs__text *to, const char *value) {
  for (const char *p = value; *p; p++)
    if (*p == '\\' || *p == '"')
      dibs__text_addf(to, "\\%c", *p);
    else
      dibs__text_addf(to, "%c", *p);
}

/* `le`: of a bucket; NULL: none. */
static void write_labels(struct dibs__text *to, const struct sample *s, const char *le) {
  const char *before = "{";
  for (size_t i = 0; s->labels[i].name; i++, before = ",") {
    dibs__text_addf(to, "%s%s=\"", before, s->labels[i].name);
    write_value(to, s->labels[i].value ? s->labels[i].value : "");
    dibs__text_adds(to, "\"");
  }
  if (le) {
    dibs__text_addf(to, "%sle=\"%s\"", before, le);
    before = ",";
  }
  if (before[0] == ',') dibs__text_adds(to, "}");
}

enum { LINE_BYTES = 4096 };

static void write_line(struct dibs__json *to, const struct family *f, const struct sample *s, const char *suffix,
                       const char *le, double value) {
  char memory[LINE_BYTES];
  struct dibs__text line;
  dibs__text_begin(&line, memory, sizeof memory);
  write_name(&line, f);
  dibs__text_adds(&line, suffix);
  write_labels(&line, s, le);
  dibs__text_addf(&line, " %.17g\n", value);
  put(to, &line);
}

static void write_sizes(struct dibs__json *to, const struct family *f, const struct sample *s) {
  const dibs_sizes *sizes = s->sizes;
  char le[32];
  struct dibs__text text;
  for (unsigned i = 0; i < DIBS_SIZES_STEPS; i++) {
    dibs__text_begin(&text, le, sizeof le);
    dibs__text_addf(&text, "%u", 1u << i);
    write_line(to, f, s, "_bucket", le, (double)sizes->steps[i]);
  }
  write_line(to, f, s, "_bucket", "+Inf", (double)sizes->count);
  write_line(to, f, s, "_sum", NULL, (double)sizes->sum);
  write_line(to, f, s, "_count", NULL, (double)sizes->count);
}

static void write_histogram(struct dibs__json *to, const struct family *f, const struct sample *s) {
  const dibs_latency *l = s->latency;
  char le[32];
  struct dibs__text text;
  for (unsigned i = 0; i < DIBS_LATENCY_STEPS; i += STEP_EVERY) {
    dibs__text_begin(&text, le, sizeof le);
    dibs__text_addf(&text, "%.9g", (double)(UINT64_C(1) << (STEPS_FROM + i)) / 1e9);
    write_line(to, f, s, "_bucket", le, (double)l->steps[i]);
  }
  write_line(to, f, s, "_bucket", "+Inf", (double)l->count);
  write_line(to, f, s, "_sum", NULL, (double)l->sum / 1e9);
  write_line(to, f, s, "_count", NULL, (double)l->count);
}

static void write_head(struct dibs__json *to, const struct family *f) {
  static const char *const kinds[] = {
      [DIBS_COUNTER] = "counter", [DIBS_GAUGE] = "gauge", [DIBS_LATENCY] = "histogram", [DIBS_SIZES] = "histogram"};
  char memory[LINE_BYTES];
  struct dibs__text text;
  dibs__text_begin(&text, memory, sizeof memory);
  dibs__text_adds(&text, "# HELP ");
  write_name(&text, f);
  dibs__text_addf(&text, " %s\n# TYPE ", f->help);
  write_name(&text, f);
  dibs__text_addf(&text, " %s\n", kinds[f->kind]);
  put(to, &text);
}

void dibs__meter_write_text(const struct meter *m, struct dibs__json *to) {
  for (size_t n = 0; n < m->family_count; n++) {
    const struct family *f = &m->families[n];
    write_head(to, f);
    for (size_t i = 0; i < m->count; i++) {
      const struct sample *s = &m->samples[i];
      if (s->family != n) continue;
      if (s->latency)
        write_histogram(to, f, s);
      else if (s->sizes)
        write_sizes(to, f, s);
      else
        write_line(to, f, s, "", NULL, s->value);
    }
  }
}

/* ---- As JSON ---- */

static void write_number(struct dibs__json *to, const char *key, double number) {
  char memory[32];
  struct dibs__text text;
  dibs__text_begin(&text, memory, sizeof memory);
  dibs__text_addf(&text, "%.15g", number);
  dibs__json_raw(to, key, text.to, text.len);
}

static void write_latency(struct dibs__json *to, const dibs_latency *l) {
  dibs__json_uint(to, "count", l->count);
  write_number(to, "sum", (double)l->sum / 1e9);
  write_number(to, "max", (double)l->max / 1e9);
  write_number(to, "p50", (double)l->p50 / 1e9);
  write_number(to, "p90", (double)l->p90 / 1e9);
  write_number(to, "p99", (double)l->p99 / 1e9);
  write_number(to, "p999", (double)l->p999 / 1e9);
}

static void write_sizes_of(struct dibs__json *to, const dibs_sizes *sizes) {
  dibs__json_uint(to, "count", sizes->count);
  dibs__json_uint(to, "sum", sizes->sum);
  dibs__json_uint(to, "max", sizes->max);
  dibs__json_open(to, "buckets", '{');
  for (unsigned i = 0; i < DIBS_SIZES_STEPS; i++) {
    char key[16];
    struct dibs__text text;
    dibs__text_begin(&text, key, sizeof key);
    dibs__text_addf(&text, "%u", 1u << i);
    dibs__json_uint(to, key, sizes->steps[i]);
  }
  dibs__json_close(to, '}');
}

static void write_sample(struct dibs__json *to, const struct sample *s) {
  dibs__json_open(to, NULL, '{');
  dibs__json_open(to, "labels", '{');
  for (size_t i = 0; s->labels[i].name; i++) dibs__json_text(to, s->labels[i].name, s->labels[i].value);
  dibs__json_close(to, '}');
  if (s->latency)
    write_latency(to, s->latency);
  else if (s->sizes)
    write_sizes_of(to, s->sizes);
  else
    write_number(to, "value", s->value);
  dibs__json_close(to, '}');
}

static void write_family(const struct meter *m, struct dibs__json *to, size_t nth) {
  static const char *const kinds[] = {
      [DIBS_COUNTER] = "counter", [DIBS_GAUGE] = "gauge", [DIBS_LATENCY] = "latency", [DIBS_SIZES] = "sizes"};
  const struct family *f = &m->families[nth];
  dibs__json_open(to, NULL, '{');
  dibs__json_text(to, "name", f->name);
  dibs__json_text(to, "type", kinds[f->kind]);
  dibs__json_text(to, "help", f->help);
  dibs__json_open(to, "samples", '[');
  for (size_t i = 0; i < m->count; i++)
    if (m->samples[i].family == nth) write_sample(to, &m->samples[i]);
  dibs__json_close(to, ']');
  dibs__json_close(to, '}');
}

bool dibs__meter_write_json(const struct meter *m, struct dibs__json *to, const char *family) {
  size_t nth = 0;
  if (family) {
    while (nth < m->family_count && strcmp(m->families[nth].name, family) != 0) nth++;
    if (nth < m->family_count) write_family(m, to, nth);
    return nth < m->family_count;
  }
  dibs__json_open(to, NULL, '{');
  dibs__json_open(to, "metrics", '[');
  for (; nth < m->family_count; nth++) write_family(m, to, nth);
  dibs__json_close(to, ']');
  dibs__json_close(to, '}');
  return true;
}
