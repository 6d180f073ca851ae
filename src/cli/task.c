/* SPDX-License-Identifier: MIT */
/* `dibs task` and `dibs dead`: adding, listing and changing tasks. */
#include "base/duration.h"
#include "base/port.h"
#include "base/text.h"
#include "cli/cli.h"
#include "info/info.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
  FAILED = 1 << DIBS_TASK_DEAD | 1 << DIBS_TASK_PARKED,
  SECOND_MS = 1000,
  PROGRESS_PAGE = 5000, /* tasks between two drawings */
  LOST_MOST = 5,        /* answers, one after the other: then a change ends with UNKNOWN */
  SHOWN_PAYLOAD = 2000  /* bytes of a payload in `show`; --json has all of it */
};

/* One call. */
struct task_call {
  const struct cli_call *call;
  const struct cli_globals *globals;
  const struct cli_values *v;
  dibs_store *store;
  dibs_task_filter filter;
  dibs_table *own; /* of --table; NULL: tasks of dibs' own */
  dibs_error error;
  uint64_t count; /* listed or changed up to now */
  struct dibs__json json;
  struct cli_table *table;
  bool full; /* no memory was left for the table */
};

/* ---- Words to values ---- */

static int set_states(struct task_call *t) {
  uint32_t states;
  size_t length;
  if (t->v->state == NULL) return CLI_DONE;
  if (*t->v->state == '\0')
    return dibs__cli_fail(t->globals, CLI_USAGE, "INVALID", "--state is empty; see dibs help task");
  const char *wrong = dibs__info_task_states(t->v->state, &states, &length);
  t->filter.states |= states;
  if (wrong == NULL) return CLI_DONE;
  return dibs__cli_fail(t->globals, CLI_USAGE, "INVALID", "--state: there is no state '%.*s'; see dibs help task",
                        length < 40 ? (int)length : 40, wrong);
}

static int set_filter(struct task_call *t) {
  const struct cli_values *v = t->v;
  t->filter.size = sizeof t->filter;
  t->filter.kind = v->kind;
  t->filter.phase = v->phase;
  t->filter.serial = v->key;
  t->filter.text = v->error;
  t->filter.older_ms = v->older_ms == CLI_UNSET ? 0 : v->older_ms;
  return set_states(t);
}

static int read_nr(const struct task_call *t, const char *word, uint64_t *nr) {
  if (dibs__cli_number(word, INT64_MAX, nr) && *nr > 0) return CLI_DONE;
  return dibs__cli_fail(t->globals, CLI_USAGE, "INVALID", "'%.40s' is not the number of a task", word);
}

static int read_priority(const struct task_call *t, int32_t *priority) {
  const char *word = t->v->priority;
  uint64_t n = 0;
  if (word == NULL) return CLI_DONE;
  bool below = word[0] == '-';
  if (!dibs__cli_number(word + below, DIBS_TASK_PRIORITY, &n))
    return dibs__cli_fail(t->globals, CLI_USAGE, "INVALID", "--priority: '%.40s' is not a number from -%d to %d", word,
                          DIBS_TASK_PRIORITY, DIBS_TASK_PRIORITY);
  *priority = below ? -(int32_t)n : (int32_t)n;
  return CLI_DONE;
}

static int fail_store(const struct task_call *t, dibs_status status) {
  return dibs__cli_fail_status(t->globals, status, &t->error, "tasks");
}

/* The tasks to list: NR, or with --table the rows of the user's table, or one of them by its key. */
static int set_listed(struct task_call *t, const char *word) {
  int code = t->v->table != NULL ? dibs__cli_table(t->call, &t->own) : CLI_DONE;
  if (code != CLI_DONE) return code;
  if (t->own == NULL && t->v->timeout_ms != CLI_UNSET)
    return dibs__cli_fail(t->globals, CLI_USAGE, "INVALID", "--timeout says how long a claim lasts in --table");
  if (t->own == NULL) return word != NULL ? read_nr(t, word, &t->filter.nr) : CLI_DONE;
  t->filter.table = t->own;
  t->filter.key = word;
  t->filter.timeout_ms = t->v->timeout_ms != CLI_UNSET ? t->v->timeout_ms : 0;
  return CLI_DONE;
}

/* A table, or as JSON an object with one list. */
static int begin_list(struct task_call *t, const char *list, const char *const *heads) {
  t->json.out = stdout;
  if (t->globals->json) {
    dibs__json_open(&t->json, NULL, '{');
    dibs__json_open(&t->json, list, '[');
    return CLI_DONE;
  }
  t->table = dibs__cli_table_new(heads);
  return t->table != NULL ? CLI_DONE : dibs__cli_fail(t->globals, CLI_FAILED, "NO_MEMORY", "out of memory");
}

static int end_list(struct task_call *t, dibs_status status) {
  if (t->globals->json) {
    dibs__json_close(&t->json, ']');
    dibs__json_close(&t->json, '}');
  } else if (t->count > 0) {
    dibs__cli_table_print(t->table, dibs__cli_columns(STDOUT_FILENO), stdout);
  }
  dibs__cli_table_free(t->table);
  if (t->full) fputs("(out of memory: the table is incomplete)\n", stdout);
  return status == DIBS_OK ? dibs__cli_flush(t->globals) : fail_store(t, status);
}

/* ---- Adding ---- */

struct payload {
  char *read; /* malloc'd; NULL: an argument */
  const char *bytes;
  size_t length;
};

static int read_descriptor(const struct task_call *t, int fd, const char *name, struct payload *p) {
  size_t capacity = DIBS_RECORD_MAX + 1; /* one byte more shows that it is too long */
  p->bytes = p->read = malloc(capacity);
  if (p->read == NULL) return dibs__cli_fail(t->globals, CLI_FAILED, "NO_MEMORY", "out of memory; nothing was added");
  while (p->length < capacity) {
    ssize_t got = read(fd, p->read + p->length, capacity - p->length);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0)
      return dibs__cli_fail(t->globals, CLI_FAILED, "", "cannot read %s: %s; nothing was added", name, strerror(errno));
    if (got == 0) return CLI_DONE;
    p->length += (size_t)got;
  }
  return dibs__cli_fail(t->globals, CLI_USAGE, "INVALID", "a payload has at most %d bytes; nothing was added",
                        DIBS_RECORD_MAX);
}

static int read_payload(const struct task_call *t, const char *word, struct payload *p) {
  if (word == NULL || (word[0] != '@' && strcmp(word, "-") != 0)) {
    p->bytes = word;
    p->length = word != NULL ? strlen(word) : 0;
    return CLI_DONE;
  }
  if (word[0] == '-') return read_descriptor(t, STDIN_FILENO, "standard input", p);
  int fd = open(word + 1, O_RDONLY | O_CLOEXEC);
  if (fd < 0)
    return dibs__cli_fail(t->globals, CLI_USAGE, "INVALID",
                          "cannot read %s: %s; for a payload that begins with @ use standard input: -", word + 1,
                          strerror(errno));
  int code = read_descriptor(t, fd, word + 1, p);
  close(fd);
  return code;
}

static int report_added(const struct task_call *t, dibs_status status, uint64_t nr) {
  if (t->globals->json) {
    struct dibs__json j = {.out = stdout};
    dibs__json_open(&j, NULL, '{');
    dibs__json_uint(&j, "task", nr);
    dibs__json_text(&j, "kind", t->call->pos[1]);
    dibs__json_text(&j, "status", dibs_status_name(status));
    dibs__json_close(&j, '}');
  } else {
    printf("%" PRIu64 "\n", nr);
  }
  return dibs__cli_flush(t->globals);
}

static int task_add(struct task_call *t) {
  const struct cli_values *v = t->v;
  dibs_task_options o = {.size = sizeof o, .phase = v->phase, .serial = v->key, .unique = v->unique};
  struct payload p = {0};
  uint64_t nr = 0;
  if (v->delay_ms != CLI_UNSET) o.delay_ms = v->delay_ms;
  if (v->tries != CLI_UNSET) o.tries = (uint32_t)v->tries;
  if (v->wait_ms != CLI_UNSET) o.wait_ms = v->wait_ms > 0 ? v->wait_ms : 1;
  int code = read_priority(t, &o.priority);
  if (code == CLI_DONE) code = read_payload(t, t->call->npos > 2 ? t->call->pos[2] : NULL, &p);
  if (code == CLI_DONE) code = dibs__cli_open(t->globals, 0, &t->store);
  if (code == CLI_DONE) {
    dibs_status status = dibs_task_add(t->store, t->call->pos[1], p.bytes, p.length, &o, &nr, &t->error);
    /* That the text is there already is the purpose of --unique, and not a failure. */
    code = status == DIBS_OK || status == DIBS_REPLAY ? report_added(t, status, nr) : fail_store(t, status);
  }
  free(p.read);
  return code;
}

/* ---- Listing ---- */

/* A row of the user's has a key instead of a number, and no more than these. */
static void json_row(struct dibs__json *j, const dibs_task_info *info) {
  dibs__json_text(j, "row", info->key);
  dibs__json_text(j, "state", dibs__info_task_state(info->state));
  dibs__json_text(j, "phase", info->phase);
  dibs__json_known(j, "fence", (int64_t)info->fence.value, info->fence.value != 0);
  dibs__json_known(j, "due_at_ms", info->due_ms, info->due_ms != 0);
  dibs__json_int(j, "changed_at_ms", info->at_ms);
}

static void json_task(struct dibs__json *j, const dibs_task_info *info, bool payload) {
  if (info->key[0] != '\0') {
    json_row(j, info);
    return;
  }
  dibs__info_task(j, info);
  if (!payload) return;
  dibs__json_uint(j, "payload_bytes", info->length);
  dibs__json_bytes(j, "payload", info->payload, info->length);
}

static void since(char *to, size_t size, int64_t instant_ms) {
  int64_t ms = dibs__wall_ms() - instant_ms;
  if (instant_ms == 0)
    snprintf(to, size, "-");
  else
    dibs__duration_write(to, size, ms > 0 ? ms : 0);
}

/* Until the claim or the wait ends. */
static void left_cell(char *to, size_t size, const dibs_task_info *info) {
  int64_t ms = info->due_ms - dibs__wall_ms();
  if (info->state != DIBS_TASK_CLAIMED && info->state != DIBS_TASK_WAITING)
    snprintf(to, size, "-");
  else
    dibs__duration_write(to, size, ms > 0 ? ms : 0);
}

/* The end of a text says more: its last line. */
static const char *last_line(const char *text, size_t length, char *to, size_t size) {
  while (length > 0 && (text[length - 1] == '\n' || text[length - 1] == '\0')) length--;
  size_t at = length;
  while (at > 0 && text[at - 1] != '\n') at--;
  size_t n = length - at < size - 1 ? length - at : size - 1;
  memcpy(to, text + at, n);
  to[n] = '\0';
  return to;
}

static bool add_row(struct cli_table *table, const dibs_task_info *info) {
  char nr[24], tries[32] = "-", age[24], left[24], text[200];
  bool row = info->key[0] != '\0';
  snprintf(nr, sizeof nr, "%" PRIu64, info->nr);
  if (!row) snprintf(tries, sizeof tries, "%" PRIu32 "/%" PRIu32, info->fails, info->tries);
  since(age, sizeof age, row ? info->at_ms : info->made_ms);
  left_cell(left, sizeof left, info);
  const char *const cells[] = {row ? info->key : nr,
                               info->kind,
                               dibs__info_task_state(info->state),
                               info->phase[0] != '\0' ? info->phase : "-",
                               info->serial[0] != '\0' ? info->serial : "-",
                               tries,
                               age,
                               left,
                               last_line(info->text, info->text_length, text, sizeof text)};
  for (size_t i = 0; i < sizeof cells / sizeof *cells; i++)
    if (!dibs__cli_table_add(table, cells[i])) return false;
  return true;
}

static int list_row(const dibs_task_info *info, void *user) {
  struct task_call *t = user;
  t->count++;
  if (t->globals->json) {
    dibs__json_open(&t->json, NULL, '{');
    json_task(&t->json, info, false);
    dibs__json_close(&t->json, '}');
  } else if (!add_row(t->table, info)) {
    t->full = true;
    return 1;
  }
  return t->v->count != CLI_UNSET && t->count == (uint64_t)t->v->count;
}

static int task_ls(struct task_call *t) {
  static const char *const heads[] = {">=TASK",   "*KIND",  "=STATE", "-PHASE", "*-KEY",
                                      ">-FAILED", ">--AGE", ">-LEFT", "*TEXT",  NULL};
  int code = set_filter(t);
  if (code == CLI_DONE) code = set_listed(t, t->call->npos > 1 ? t->call->pos[1] : NULL);
  if (code == CLI_DONE) code = dibs__cli_open(t->globals, 0, &t->store);
  if (code != CLI_DONE) return code;
  code = begin_list(t, "tasks", heads);
  if (code != CLI_DONE) return code;
  dibs_status status = dibs_tasks_list(t->store, &t->filter, 0, list_row, t, &t->error);
  return end_list(t, status);
}

/* ---- One task ---- */

static void print_instant(const char *word, int64_t ms) {
  char ago[24];
  if (ms == 0) return;
  since(ago, sizeof ago, ms);
  printf("%s %s ago\n", word, ago);
}

static void print_text(const char *text, size_t length) {
  for (size_t at = 0; at < length;) {
    uint32_t point;
    size_t took = dibs__cli_utf8(text + at, length - at, &point);
    bool shown =
        point == '\n' || point == '\t' || (point >= 0x20 && point != 0xfffd && (point < 0x7f || point >= 0xa0));
    if (shown)
      fwrite(text + at, 1, took, stdout);
    else
      putchar('?');
    at += took;
  }
  if (length > 0 && text[length - 1] != '\n') putchar('\n');
}

static void print_left(const dibs_task_info *info) {
  char left[24];
  left_cell(left, sizeof left, info);
  if (strcmp(left, "-") != 0) printf("%s for %s\n", dibs__info_task_state(info->state), left);
}

static void print_row(const dibs_task_info *info) {
  printf("row %s\ntable %s\nstate %s\nphase %s\nfence %" PRIu64 "\n", info->key, info->kind,
         dibs__info_task_state(info->state), info->phase, info->fence.value);
  print_instant("changed", info->at_ms);
  print_left(info);
}

static int print_task(const dibs_task_info *info, void *user) {
  struct task_call *t = user;
  t->count++;
  if (t->globals->json) {
    json_task(&t->json, info, true);
    return 1;
  }
  if (info->key[0] != '\0') {
    print_row(info);
    return 1;
  }
  printf("task %" PRIu64 "\nkind %s\nstate %s\n", info->nr, info->kind, dibs__info_task_state(info->state));
  if (info->phase[0] != '\0') printf("phase %s\n", info->phase);
  if (info->serial[0] != '\0') printf("key %s\n", info->serial);
  if (info->unique[0] != '\0') printf("unique %s\n", info->unique);
  printf("failed %" PRIu32 " of %" PRIu32 "\nattempts %" PRIu32 "\nfence %" PRIu64 "\n", info->fails, info->tries,
         info->attempts, info->fence.value);
  if (info->priority != 0) printf("priority %" PRId32 "\n", info->priority);
  if (info->owner[0] != '\0') printf("claimed by %s\n", info->owner);
  print_instant("added", info->made_ms);
  print_instant("begun", info->began_ms);
  print_instant("changed", info->at_ms);
  print_left(info);
  if (info->state == DIBS_TASK_DONE && info->text_length > 0) {
    puts("result:");
    print_text(info->text, info->text_length);
  }
  printf("payload, %zu bytes:\n", info->length);
  print_text(info->payload, info->length < SHOWN_PAYLOAD ? info->length : SHOWN_PAYLOAD);
  if (info->length > SHOWN_PAYLOAD) puts("(the rest is in --json)");
  return 1;
}

static int print_error(const dibs_task_info *info, void *user) {
  struct task_call *t = user;
  if (t->globals->json) {
    dibs__json_open(&t->json, NULL, '{');
    dibs__json_uint(&t->json, "fence", info->fence.value);
    dibs__json_text(&t->json, "owner", info->owner);
    dibs__json_int(&t->json, "at_ms", info->at_ms);
    dibs__json_bytes(&t->json, "text", info->text, info->text_length);
    dibs__json_close(&t->json, '}');
    return 0;
  }
  char ago[24];
  since(ago, sizeof ago, info->at_ms);
  printf("error of claim %" PRIu64 ", %s ago, by %s:\n", info->fence.value, ago, info->owner);
  print_text(info->text, info->text_length);
  return 0;
}

static int task_show(struct task_call *t) {
  int code = set_listed(t, t->call->pos[1]);
  t->filter.size = sizeof t->filter;
  t->json.out = stdout;
  if (code == CLI_DONE) code = dibs__cli_open(t->globals, 0, &t->store);
  if (code != CLI_DONE) return code;
  if (t->globals->json) dibs__json_open(&t->json, NULL, '{');
  dibs_status status = dibs_tasks_list(t->store, &t->filter, DIBS_LIST_PAYLOADS, print_task, t, &t->error);
  if (status == DIBS_OK && t->count > 0 && t->own == NULL) {
    if (t->globals->json) dibs__json_open(&t->json, "errors", '[');
    status = dibs_task_errors(t->store, t->filter.nr, print_error, t, &t->error);
    if (t->globals->json) dibs__json_close(&t->json, ']');
  }
  if (t->globals->json) dibs__json_close(&t->json, '}');
  code = dibs__cli_flush(t->globals);
  if (status != DIBS_OK) return fail_store(t, status);
  if (t->count > 0) return code;
  if (t->own != NULL)
    return dibs__cli_fail(t->globals, CLI_ABSENT, "NOT_FOUND", "there is no row '%s' in %s", t->call->pos[1],
                          t->v->table);
  if (t->filter.states != 0)
    return dibs__cli_fail(t->globals, CLI_ABSENT, "NOT_FOUND", "no task %s is dead or parked; see dibs task show %s",
                          t->call->pos[1], t->call->pos[1]);
  return dibs__cli_fail(t->globals, CLI_ABSENT, "NOT_FOUND",
                        "there is no task %s; finished tasks are deleted after the time of `dibs task kind`",
                        t->call->pos[1]);
}

/* ---- Changing ---- */

static void show_progress(const struct task_call *t, const char *word) {
  char line[64];
  snprintf(line, sizeof line, "%s: %" PRIu64 " tasks", word, t->count);
  dibs__cli_progress(line);
}

/* At most --rate in each second; or all at once, in pages if the progress is shown.  Without --count a page whose
 * answer was lost is repeated, because the tasks that it changed do not match again. */
static dibs_status change_in_pages(struct task_call *t, dibs_task_change change, const char *word, uint64_t most) {
  uint32_t flags = t->v->dry_run ? DIBS_CHANGE_DRY : 0;
  bool slowly = t->v->rate != CLI_UNSET && !t->v->dry_run, shown = dibs__cli_shows_progress(t->globals);
  uint64_t page = slowly ? (uint64_t)t->v->rate : shown ? PROGRESS_PAGE : 0, done = 0;
  dibs_status status = DIBS_OK;
  uint32_t lost = 0;
  for (bool more = true; more;) {
    uint64_t left = most - done, now = most > 0 && (page == 0 || left < page) ? left : page;
    uint64_t changed = 0, last = 0;
    dibs__tick next = dibs__tick_add_ms(dibs__tick_now(), SECOND_MS);
    status = dibs_tasks_change(t->store, change, &t->filter, flags, now, &changed, &last, &t->error);
    done += changed;
    t->count += changed;
    if (last > 0) t->filter.after = last;
    lost = status == DIBS_UNKNOWN ? lost + 1 : 0;
    more = status == DIBS_OK && page > 0 && changed == now && (most == 0 || done < most);
    more = more || (lost > 0 && lost < LOST_MOST && page > 0 && most == 0);
    if (more && shown) show_progress(t, word);
    if (more && slowly) dibs__nap_ms(dibs__tick_left_ms(dibs__tick_now(), next));
  }
  if (shown && done >= page) dibs__cli_progress(NULL);
  return status;
}

/* What a word of the command line has done. */
static const char *past_of(const char *word) {
  static const char *const words[][2] = {
      {"retry", "retried"}, {"requeue", "requeued"}, {"cancel", "cancelled"}, {"purge", "purged"}};
  for (size_t i = 0; i < sizeof words / sizeof *words; i++)
    if (strcmp(words[i][0], word) == 0) return words[i][1];
  return word;
}

static int report_changed(const struct task_call *t, const char *word) {
  if (t->globals->json) {
    struct dibs__json j = {.out = stdout};
    dibs__json_open(&j, NULL, '{');
    dibs__json_text(&j, "change", word);
    dibs__json_bool(&j, "dry_run", t->v->dry_run);
    dibs__json_uint(&j, "tasks", t->count);
    dibs__json_close(&j, '}');
  } else {
    printf("%s%s %" PRIu64 "\n", t->v->dry_run ? "would " : "", t->v->dry_run ? word : past_of(word), t->count);
  }
  return dibs__cli_flush(t->globals);
}

static int change_listed(struct task_call *t, dibs_task_change change, const char *word) {
  dibs_status status = DIBS_OK;
  int code = CLI_DONE;
  for (int i = 1; i < t->call->npos && status == DIBS_OK && code == CLI_DONE; i++) {
    uint64_t before = t->count;
    code = read_nr(t, t->call->pos[i], &t->filter.nr);
    t->filter.after = 0;
    if (code == CLI_DONE) status = change_in_pages(t, change, word, 0);
    if (code == CLI_DONE && status == DIBS_OK && t->count == before)
      dibs__cli_note(t->globals, "task %s: nothing to %s; see dibs task show %s", t->call->pos[i], word,
                     t->call->pos[i]);
  }
  if (code != CLI_DONE) return code;
  if (status != DIBS_OK) return fail_store(t, status);
  if (t->count > 0) return report_changed(t, word);
  return dibs__cli_fail(t->globals, CLI_ABSENT, "NOT_FOUND", "no task that was named can be changed by %s", word);
}

static int change(struct task_call *t, dibs_task_change change, const char *word) {
  const dibs_task_filter *f = &t->filter;
  int code = set_filter(t);
  if (code != CLI_DONE) return code;
  bool filtered = f->kind != NULL || f->phase != NULL || f->serial != NULL || f->text != NULL || f->older_ms != 0 ||
                  t->v->state != NULL;
  if (t->call->npos < 2 && !filtered)
    return dibs__cli_fail(t->globals, CLI_USAGE, "INVALID",
                          "which tasks?  Give their numbers, or --kind or another filter; see dibs help %s",
                          t->call->command->name);
  code = dibs__cli_open(t->globals, 0, &t->store);
  if (code != CLI_DONE) return code;
  if (t->call->npos > 1) return change_listed(t, change, word);
  dibs_status status = change_in_pages(t, change, word, t->v->count == CLI_UNSET ? 0 : (uint64_t)t->v->count);
  if (status == DIBS_OK) return report_changed(t, word);
  if (t->count > 0) dibs__cli_note(t->globals, "%s: %" PRIu64 " tasks were changed before", word, t->count);
  return fail_store(t, status);
}

static int task_retry(struct task_call *t) {
  return change(t, DIBS_TASK_RETRY, t->call->pos[0]);
}
static int task_cancel(struct task_call *t) {
  return change(t, DIBS_TASK_CANCEL, "cancel");
}
static int task_purge(struct task_call *t) {
  return change(t, DIBS_TASK_PURGE, "purge");
}

/* ---- Kinds ---- */

static void json_kind(struct dibs__json *j, const dibs_task_kind *kind) {
  dibs__json_open(j, NULL, '{');
  dibs__json_text(j, "kind", kind->kind);
  for (uint32_t i = 0; i < DIBS_TASK_STATES; i++) dibs__json_uint(j, dibs__info_task_state(i), kind->states[i]);
  dibs__json_known(j, "oldest_ready_age_ms", kind->oldest_ms, kind->oldest_ms >= 0);
  dibs__json_known(j, "running_limit", kind->running, kind->running != 0);
  dibs__json_bool(j, "paused", kind->paused != 0);
  dibs__json_known(j, "keep_ms", kind->keep_ms, kind->keep_ms >= 0);
  dibs__json_text(j, "topic", kind->topic != NULL && kind->topic[0] != '\0' ? kind->topic : NULL);
  dibs__json_close(j, '}');
}

static int count_row(const dibs_task_kind *kind, void *user) {
  struct task_call *t = user;
  t->count++;
  if (t->globals->json) {
    json_kind(&t->json, kind);
    return 0;
  }
  char cells[DIBS_TASK_STATES][24], oldest[24] = "-";
  /* What has arrived is ready, unless its time has not come. */
  static const dibs_task_state shown[] = {DIBS_TASK_READY,  DIBS_TASK_CLAIMED, DIBS_TASK_WAITING, DIBS_TASK_BLOCKED,
                                          DIBS_TASK_PARKED, DIBS_TASK_DONE,    DIBS_TASK_DEAD,    DIBS_TASK_CANCELLED};
  if (kind->oldest_ms >= 0) dibs__duration_write(oldest, sizeof oldest, kind->oldest_ms);
  bool fine = dibs__cli_table_add(t->table, kind->kind);
  for (size_t i = 0; i < sizeof shown / sizeof *shown && fine; i++) {
    uint64_t n = kind->states[shown[i]] + (i == 0 ? kind->states[DIBS_TASK_ARRIVED] : 0);
    snprintf(cells[i], sizeof cells[i], "%" PRIu64, n);
    fine = dibs__cli_table_add(t->table, cells[i]);
  }
  fine = fine && dibs__cli_table_add(t->table, oldest) && dibs__cli_table_add(t->table, kind->paused ? "paused" : "");
  t->full = !fine;
  return !fine;
}

static int task_counts(struct task_call *t) {
  static const char *const heads[] = {"*KIND",  ">=READY", ">=CLAIMED",   ">-WAITING", ">-BLOCKED", ">=PARKED",
                                      ">-DONE", ">=DEAD",  ">-CANCELLED", ">--OLDEST", "-",         NULL};
  int code = dibs__cli_open(t->globals, 0, &t->store);
  if (code != CLI_DONE) return code;
  code = begin_list(t, "kinds", heads);
  if (code != CLI_DONE) return code;
  const char *kind = t->call->npos > 1 ? t->call->pos[1] : NULL;
  dibs_status status = dibs_tasks_count(t->store, kind, count_row, t, &t->error);
  return end_list(t, status);
}

static int print_kind(const dibs_task_kind *kind, void *user) {
  struct task_call *t = user;
  char keep[24] = "7d";
  t->count++;
  if (t->globals->json) {
    json_kind(&t->json, kind);
    return 0;
  }
  if (kind->keep_ms >= 0) dibs__duration_write(keep, sizeof keep, kind->keep_ms);
  printf("running %" PRIu32 "%s\npaused %s\nkeep %s\n", kind->running, kind->running == 0 ? " (no limit)" : "",
         kind->paused ? "on" : "off", keep);
  if (kind->topic != NULL && kind->topic[0] != '\0') printf("topic %s\n", kind->topic);
  return 0;
}

static int read_settings(const struct task_call *t, dibs_kind_options *o) {
  const struct cli_values *v = t->v;
  if (v->running != CLI_UNSET) {
    o->set |= DIBS_KIND_RUNNING;
    o->running = (uint32_t)v->running;
  }
  if (v->keep_ms != CLI_UNSET) {
    o->set |= DIBS_KIND_KEEP;
    o->keep_ms = v->keep_ms;
  }
  if (v->no_lanes) o->set |= DIBS_KIND_NO_LANES;
  if (v->paused == NULL) return CLI_DONE;
  o->set |= DIBS_KIND_PAUSED;
  o->paused = strcmp(v->paused, "on") == 0;
  if (o->paused || strcmp(v->paused, "off") == 0) return CLI_DONE;
  return dibs__cli_fail(t->globals, CLI_USAGE, "INVALID", "--paused: '%.40s' is not on or off", v->paused);
}

static int task_kind(struct task_call *t) {
  dibs_kind_options o = DIBS_KIND_OPTIONS_INIT;
  dibs_status status = DIBS_OK;
  int code = read_settings(t, &o);
  if (code == CLI_DONE) code = dibs__cli_open(t->globals, 0, &t->store);
  if (code != CLI_DONE) return code;
  t->json.out = stdout;
  const char *kind = t->call->pos[1];
  if (o.set != 0) status = dibs_task_kind_set(t->store, kind, &o, &t->error);
  if (status == DIBS_OK) status = dibs_tasks_count(t->store, kind, print_kind, t, &t->error);
  if (status != DIBS_OK) return fail_store(t, status);
  if (t->count > 0) return dibs__cli_flush(t->globals);
  dibs_task_kind none = {.size = sizeof none, .kind = kind, .oldest_ms = -1, .keep_ms = -1};
  (void)print_kind(&none, t);
  return dibs__cli_flush(t->globals);
}

/* ---- The commands ---- */

#define FILTER (CLI_TAKES(kind) | CLI_TAKES(phase) | CLI_TAKES(key) | CLI_TAKES(older) | CLI_TAKES(error))
#define OWN (CLI_TAKES(table) | CLI_TAKES(timeout))
#define CHANGE (FILTER | CLI_TAKES(state) | CLI_TAKES(dry_run) | CLI_TAKES(rate) | CLI_TAKES(count))

struct task_verb {
  const char *name, *args;
  int least, most; /* positions after the verb */
  cli_option_set takes;
  int (*act)(struct task_call *t);
};

static const struct task_verb task_verbs[] = {
    {"add", "KIND [PAYLOAD]", 1, 2,
     CLI_TAKES(phase) | CLI_TAKES(key) | CLI_TAKES(unique) | CLI_TAKES(delay) | CLI_TAKES(priority) | CLI_TAKES(tries) |
         CLI_TAKES(wait),
     task_add},
    {"ls", "[NR]", 0, 1, FILTER | CLI_TAKES(state) | CLI_TAKES(count) | OWN, task_ls},
    {"show", "NR", 1, 1, OWN, task_show},
    {"retry", "[NR...]", 0, CLI_POS_MAX, CHANGE, task_retry},
    {"cancel", "[NR...]", 0, CLI_POS_MAX, CHANGE, task_cancel},
    {"purge", "[NR...]", 0, CLI_POS_MAX, CHANGE, task_purge},
    {"counts", "[KIND]", 0, 1, 0, task_counts},
    {"kind", "KIND", 1, 1, CLI_TAKES(running) | CLI_TAKES(paused) | CLI_TAKES(keep) | CLI_TAKES(no_lanes), task_kind},
    {0}};

static const struct task_verb dead_verbs[] = {
    {"ls", "[NR]", 0, 1, FILTER | CLI_TAKES(count), task_ls},
    {"show", "NR", 1, 1, 0, task_show},
    {"requeue", "[NR...]", 0, CLI_POS_MAX, CHANGE & ~CLI_TAKES(state), task_retry},
    {"purge", "[NR...]", 0, CLI_POS_MAX, CHANGE & ~CLI_TAKES(state), task_purge},
    {0}};

static const char *nth_verb(size_t i, const void *arg) {
  const struct task_verb *verbs = arg;
  return verbs[i].name;
}

/* CLI_DONE, or CLI_USAGE after a message. */
static int check_verb(const struct cli_call *call, const struct task_verb *verb) {
  const struct cli_globals *g = &call->v.globals;
  const char *command = call->command->name;
  cli_option_set stray = call->given & ~CLI_TAKES_GLOBALS & ~verb->takes;
  if (stray != 0)
    return dibs__cli_fail(g, CLI_USAGE, "INVALID", "dibs %s %s does not take --%s", command, verb->name,
                          dibs__cli_first_option(stray));
  if (call->npos - 1 < verb->least)
    return dibs__cli_fail(g, CLI_USAGE, "INVALID", "an argument is missing: dibs %s %s %s", command, verb->name,
                          verb->args);
  if (call->npos - 1 > verb->most)
    return dibs__cli_fail(g, CLI_USAGE, "INVALID", "unexpected argument '%.40s': dibs %s %s %s",
                          call->pos[1 + verb->most], command, verb->name, verb->args);
  return CLI_DONE;
}

static int run_verb(const struct cli_call *call, const struct task_verb *verbs, uint32_t only) {
  struct task_call t = {.call = call, .globals = &call->v.globals, .v = &call->v, .filter = {.states = only}};
  const struct task_verb *verb = verbs;
  while (verb->name != NULL && strcmp(verb->name, call->pos[0]) != 0) verb++;
  if (verb->name == NULL) {
    const char *near = dibs__nearest(call->pos[0], nth_verb, verbs);
    return dibs__cli_fail(t.globals, CLI_USAGE, "INVALID", "dibs %s has no '%.40s'; %s%s%s", call->command->name,
                          call->pos[0], near != NULL ? "did you mean " : "see dibs help ",
                          near != NULL ? near : call->command->name, near != NULL ? "?" : "");
  }
  int code = check_verb(call, verb);
  if (code == CLI_DONE) code = verb->act(&t);
  dibs_close(t.store);
  dibs_table_free(t.own);
  return code;
}

int dibs__cli_task(struct cli_call *call) {
  return run_verb(call, task_verbs, 0);
}

int dibs__cli_dead(struct cli_call *call) {
  return run_verb(call, dead_verbs, FAILED);
}
