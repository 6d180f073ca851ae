/* SPDX-License-Identifier: MIT */
/*
 * The lines of cohorts, for listings of other processes.  The store's queue has one exclusive waiter of a
 * process for a name at most; the others wait in memory (cohort.c) and cost the store nothing.  A line whose first
 * waiter has waited for LINES_MS is published: all its waiters go into reports (DIBS__FAM_REPORT), each second again,
 * as long as the line is not empty.  A listing reads the reports of the other processes and adds their waiters to its
 * rows.
 *
 * Reports are for people alone: nothing is granted, queued or handed on by them.  They are as of the latest second, and
 * those of a process that died are ignored after LINES_FRESH_MS.
 *
 * A report is text.  Names and owners contain no control characters.
 *
 *   L1                       the format
 *   NAME                     for each name: the name,
 *   40                       how many wait in its line,
 *   ann@host:7               the owner of the process's leases,
 *   1520 30000               and of the LINE_ROWS oldest: for how long, and the ttl; in milliseconds
 *   1100 30000 night shift   with the owner, where it is another one
 *                            an empty line
 */
#include "base/text.h"
#include "lease/lease_impl.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum {
  LINES_MS = 1000,        /* a line that is younger is not worth a transaction; and how often it is published */
  LINES_REST_MS = 100,    /* between two searches for lines that are old enough */
  LINES_FRESH_MS = 3500,  /* three periods, and half a second */
  LINES_REPORTS = 16,     /* a process's; some hundred names */
  LINE_ROWS = 32,         /* of a line, with an age of their own: so that ten thousand waiters cost one report, too */
  LINES_READ_MS = 2000,   /* how long a listing waits for the reports */
  LINES_ROWS_MAX = 100000 /* listed at most, however many the reports have */
};

static const char report_format[] = "L1\n";

/* Where processes have lines (cohorts), and the store keeps reports. */
static bool lines_allowed(const dibs_store *store) {
  return (dibs__core_caps(store->core) & DIBS__CAP_BLOCKS) && dibs__core_families(store->core) & 1u << DIBS__FAM_REPORT;
}

/* One report of this process. */
struct line_report {
  struct dibs__report_op op; /* first */
  dibs_store *store;
  size_t len;
  char data[DIBS__REPORT_MAX];
};

struct lines {
  uint32_t requested; /* in flight: no report is changed meanwhile */
  uint32_t shown;     /* reports that the store may have, from the first on */
  struct line_report reports[LINES_REPORTS];
};

/* ---- Publishing ---- */

void dibs__lines_begin_locked(struct cohort *cohort) {
  dibs_store *store = cohort->first->store;
  cohort->lined_prev = NULL;
  cohort->lined_next = store->leases->lined;
  if (store->leases->lined) store->leases->lined->lined_prev = cohort;
  store->leases->lined = cohort;
  if (store->leases->lines_at.ns != 0 || !lines_allowed(store)) return;
  store->leases->lines_at = dibs__tick_add_ms(cohort->first->began, LINES_MS);
  dibs__watch_by_locked(store, store->leases->lines_at);
}

void dibs__lines_end_locked(dibs_store *store, struct cohort *cohort) {
  if (cohort->lined_prev)
    cohort->lined_prev->lined_next = cohort->lined_next;
  else
    store->leases->lined = cohort->lined_next;
  if (cohort->lined_next) cohort->lined_next->lined_prev = cohort->lined_prev;
}

static struct lines *lines_of_locked(dibs_store *store) {
  struct lines *lines = store->leases->lines;
  if (lines) return lines;
  lines = store->leases->lines = calloc(1, sizeof *lines);
  for (size_t i = 0; lines && i < LINES_REPORTS; i++) {
    lines->reports[i].store = store;
    dibs__random(lines->reports[i].op.id.b, sizeof lines->reports[i].op.id.b);
  }
  return lines;
}

/* The line as text; its length, less than `size`. */
static size_t write_line(const struct cohort *cohort, const char *owner, dibs__tick now, char *to, size_t size) {
  struct dibs__text text;
  uint32_t rows = 0;
  dibs__text_begin(&text, to, size - 1);
  dibs__text_addf(&text, "%s\n%" PRIu32 "\n%s\n", cohort->name, cohort->waiting, owner);
  for (const dibs_lease *lease = cohort->first; lease && rows < LINE_ROWS; lease = lease->next_local, rows++) {
    size_t before = text.len;
    dibs__text_addf(&text, "%" PRId64 " %" PRId64, (now.ns - lease->began.ns) / DIBS__NS_PER_MS, lease->ttl_ms);
    if (lease->owner) dibs__text_addf(&text, " %s", lease->owner);
    dibs__text_adds(&text, "\n");
    if (!text.cut) continue;
    text.len = before;
    break;
  }
  to[text.len++] = '\n';
  return text.len;
}

/* Into the report `*nth`, or the next one.  false: all are full. */
static bool add_line_to_report(struct lines *lines, uint32_t *nth, const struct cohort *cohort, dibs__tick now) {
  char line[DIBS__REPORT_MAX - (sizeof report_format - 1)];
  struct line_report *report = &lines->reports[*nth];
  size_t len = write_line(cohort, report->store->owner, now, line, sizeof line);
  if (report->len + len > sizeof report->data) {
    if (++*nth == LINES_REPORTS) return false;
    report = &lines->reports[*nth];
  }
  if (report->len == 0) {
    memcpy(report->data, report_format, sizeof report_format - 1);
    report->len = sizeof report_format - 1;
  }
  memcpy(report->data + report->len, line, len);
  report->len += len;
  return true;
}

static void report_published(struct dibs__op *op) {
  struct line_report *report = (struct line_report *)op;
  dibs_store *store = report->store;
  struct deferred deferred = {0};
  dibs__mutex_lock(&store->lock);
  store->in_flight--;
  store->leases->lines->requested--;
  if (store->closing) dibs__lines_publish_locked(store, dibs__tick_now(), &deferred);
  if (store->closing && store->in_flight == 0) dibs__deferred_wake(store, &deferred, &store->none_in_flight);
  dibs__mutex_unlock(&store->lock);
  dibs__deferred_answer(store, &deferred);
}

static void send_report_locked(struct lines *lines, uint32_t nth, enum dibs__report_verb verb,
                               struct deferred *deferred) {
  struct line_report *report = &lines->reports[nth];
  struct dibs__report_op *op = &report->op;
  dibs_store *store = report->store;
  op->data = dibs__str_of(report->data, report->len);
  op->keep_ms = DIBS__REPORT_KEEP_MS;
  op->want = false;
  dibs__core_head(store->core, &op->op, DIBS__FAM_REPORT, (uint16_t)verb, 0, 0, report_published);
  lines->requested++;
  store->in_flight++;
  dibs__deferred_finish(deferred, &op->op);
}

void dibs__lines_publish_locked(dibs_store *store, dibs__tick now, struct deferred *deferred) {
  struct lines *lines = store->leases->lines;
  dibs__tick next = DIBS__TICK_NEVER, again = dibs__tick_add_ms(now, LINES_MS);
  uint32_t used = 0;
  store->leases->lines_at = again;
  if (lines && lines->requested > 0) return; /* the store is slow, or away */
  for (uint32_t i = 0; lines && i < LINES_REPORTS; i++) lines->reports[i].len = 0;
  for (const struct cohort *cohort = store->leases->lined; cohort; cohort = cohort->lined_next) {
    dibs__tick old = dibs__tick_add_ms(cohort->first->began, LINES_MS);
    if (dibs__tick_before(now, old)) {
      next = dibs__tick_min(next, old);
      continue;
    }
    lines = lines_of_locked(store);
    if (!lines || !add_line_to_report(lines, &used, cohort, now)) break;
  }
  uint32_t shown = lines ? lines->shown : 0;
  if (lines) {
    if (used < LINES_REPORTS && lines->reports[used].len > 0) used++;
    lines->shown = used;
    for (uint32_t i = 0; i < used; i++) send_report_locked(lines, i, DIBS__REPORT_PUT, deferred);
    for (uint32_t i = used; i < shown; i++) send_report_locked(lines, i, DIBS__REPORT_DROP, deferred);
  }
  dibs__tick rest = dibs__tick_add_ms(now, LINES_REST_MS);
  if (used == 0 && (lines || !store->leases->lined)) /* else there was no memory */
    store->leases->lines_at = next.ns == INT64_MAX ? DIBS__TICK_ZERO : dibs__tick_before(next, rest) ? rest : next;
}

/* ---- Reading ---- */

/* A counted object: a listing does not wait for ever. */
struct reading {
  struct dibs__report_op op; /* first */
  dibs_store *store;
  _Atomic uint32_t refs; /* the caller's and the operation's */
  dibs__word answered;
};

static void reading_drop(struct reading *reading) {
  if (atomic_fetch_sub(&reading->refs, 1) != 1) return;
  free(reading->op.got);
  free(reading);
}

static void reports_answered(struct dibs__op *op) {
  struct reading *reading = (struct reading *)op;
  dibs_store *store = reading->store;
  atomic_store(&reading->answered, 1);
  dibs__mutex_lock(&store->lock);
  store->in_flight--;
  dibs__mutex_unlock(&store->lock);
  reading_drop(reading);
}

/* NULL: no memory, or it is not known. */
static struct reading *read_reports(dibs_store *store) {
  struct reading *reading = calloc(1, sizeof *reading);
  if (!reading) return NULL;
  reading->store = store;
  reading->refs = 2;
  reading->op.keep_ms = LINES_FRESH_MS;
  dibs__tick by = dibs__tick_add_ms(dibs__tick_now(), LINES_READ_MS);
  dibs__core_head(store->core, &reading->op.op, DIBS__FAM_REPORT, DIBS__REPORT_READ, DIBS__OP_READS, 0,
                  reports_answered);
  reading->op.op.by = by;
  dibs__mutex_lock(&store->lock);
  store->in_flight++;
  dibs__mutex_unlock(&store->lock);
  dibs__core_run(store->core, &reading->op.op, by);
  if (atomic_load(&reading->answered) && reading->op.op.status == DIBS_OK) return reading;
  reading_drop(reading);
  return NULL;
}

static bool is_own_report(dibs_store *store, dibs__id id) {
  bool ours = false;
  dibs__mutex_lock(&store->lock);
  for (size_t i = 0; store->leases->lines && i < LINES_REPORTS && !ours; i++)
    ours = dibs__id_equal(store->leases->lines->reports[i].op.id, id);
  dibs__mutex_unlock(&store->lock);
  return ours;
}

/* The next line, terminated.  NULL: there is none. */
static char *next_text_line(char **at, const char *end) {
  char *line = *at, *stop = line < end ? memchr(line, '\n', (size_t)(end - line)) : NULL;
  if (!stop) return NULL;
  *stop = '\0';
  *at = stop + 1;
  return line;
}

/* Of at most 12 digits.  false: it is none. */
static bool read_number(const char **at, int64_t *number) {
  const char *from = *at;
  *number = 0;
  while (**at >= '0' && **at <= '9' && *at - from < 12) *number = 10 * *number + (*(*at)++ - '0');
  return *at > from;
}

/* "1520 30000 owner" */
static bool read_row(const char *line, struct line_row *row) {
  if (!read_number(&line, &row->age_ms) || *line++ != ' ' || !read_number(&line, &row->ttl_ms)) return false;
  if (*line == ' ') row->owner = ++line;
  return row->owner == line ? dibs__check_text(line, DIBS_OWNER_MAX, "", NULL) == DIBS_OK : *line == '\0';
}

static bool append_row(struct lines_seen *seen, struct line_row row) {
  if (seen->count == LINES_ROWS_MAX) return false;
  if (seen->count == seen->capacity) {
    size_t capacity = seen->capacity ? 2 * seen->capacity : 64;
    struct line_row *more = realloc(seen->rows, capacity * sizeof *more);
    if (!more) return false;
    seen->rows = more;
    seen->capacity = capacity;
  }
  seen->rows[seen->count++] = row;
  return true;
}

/* One name.  false: the rest is not what we know. */
static bool read_line_of_name(struct lines_seen *seen, char **at, const char *end, int64_t age_ms,
                              lines_wanted_fn wanted, const void *user) {
  const char *name = next_text_line(at, end), *number = next_text_line(at, end), *owner = next_text_line(at, end);
  int64_t waiting;
  if (!owner || dibs__check_text(name, DIBS_NAME_MAX, "", NULL) != DIBS_OK || !read_number(&number, &waiting) ||
      *number || dibs__check_text(owner, DIBS_OWNER_MAX, "", NULL) != DIBS_OK)
    return false;
  bool fine = true, wants = wanted(name, user);
  char *line;
  while ((line = next_text_line(at, end)) && *line) {
    struct line_row row = {.name = name, .owner = owner};
    if (!read_row(line, &row)) return false;
    row.age_ms += age_ms;
    waiting--;
    if (wants && fine) fine = append_row(seen, row);
  }
  for (; wants && fine && line && waiting > 0; waiting--)
    fine = append_row(seen, (struct line_row){.name = name, .owner = owner, .age_ms = -1});
  return line != NULL;
}

bool dibs__lines_read(dibs_store *store, lines_wanted_fn wanted, const void *user, struct lines_seen *seen) {
  size_t bytes = 0;
  *seen = (struct lines_seen){0};
  if (!lines_allowed(store)) return true;
  struct reading *reading = read_reports(store);
  if (!reading) return true;
  for (uint32_t i = 0; i < reading->op.got_count; i++) bytes += reading->op.got[i].data.len;
  char *at = seen->text = malloc(bytes ? bytes : 1);
  for (uint32_t i = 0; at && i < reading->op.got_count; i++) {
    const struct dibs__report *report = &reading->op.got[i];
    char *end = at + report->data.len;
    if (report->data.len < sizeof report_format - 1 ||
        memcmp(report->data.p, report_format, sizeof report_format - 1) != 0)
      continue;
    if (is_own_report(store, report->id)) continue;
    memcpy(at, report->data.p, report->data.len);
    at += sizeof report_format - 1;
    while (read_line_of_name(seen, &at, end, report->age_ms, wanted, user)) continue;
    at = end;
  }
  reading_drop(reading);
  return at != NULL;
}

void dibs__lines_free(struct lines_seen *seen) {
  free(seen->rows);
  free(seen->text);
}
