/* SPDX-License-Identifier: MIT */
/*
 * `dibs relay KIND`: a worker (dibs/task.h) whose work is to deliver a message.  With --exec it is `dibs worker`.
 *
 * The main thread waits for signals and looks at the worker; the worker's threads deliver.  `ending` tells them to
 * begin nothing that can wait, `hurry` to give up what they have begun.
 */
#include "base/date.h"
#include "base/text.h"
#include "cli/job.h"
#include "cli/relay_kafka.h"
#include "task/http.h"
#include "task/task.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

enum {
  JOBS = 16,
  BATCH = 1000, /* of lines */
  LOOK_MS = 100,
  DRAIN_MS = 5000, /* for what has been begun, beside the time of a request */
  HEADERS_MAX = 64,
  HEADER_FILE_MAX = 65536,
  OWN_HEADERS = 8,
  OWN_HEADER_SIZE = 3 * DIBS_NAME_MAX + 64 /* a name of which each byte is %XX, and more */
};
#define TIMEOUT_MS INT64_C(10000)
#define CONNECT_MS INT64_C(5000)

struct relay {
  /* Immutable while the worker runs. */
  const struct cli_globals *globals;
  const struct cli_values *values;
  const char *kind;
  struct cli_signals signals;
  dibs_store *store;
  dibs_worker *worker;
  struct dibs__http *http;   /* --to */
  struct relay_kafka *kafka; /* or --to kafka:// */
  char *header_file;         /* memory of headers */
  const char *headers[HEADERS_MAX];
  size_t header_count;
  bool typed;   /* one of them is Content-Type */
  int notifier; /* ends the waits of main and of the delivering threads */
  /* Any thread. */
  _Atomic bool ending, hurry;
  _Atomic int broken; /* errno of standard output; with kafka: EPIPE when its producer can't be used any more */
};

/* ---- --to ---- */

/* The request is given up if the claim of the message is over, or after a second signal. */
struct sending {
  const struct relay *relay;
  const dibs_task *task;
};

static bool is_given_up(void *arg) {
  const struct sending *s = arg;
  return s->relay->hurry || dibs_task_left_ms(s->task) == 0;
}

struct own_headers {
  char memory[OWN_HEADERS][OWN_HEADER_SIZE];
  const char *line[HEADERS_MAX + OWN_HEADERS + 1];
  size_t count;
};

static void add_number(struct own_headers *h, const char *name, uint64_t number) {
  snprintf(h->memory[h->count], OWN_HEADER_SIZE, "%s: %" PRIu64, name, number);
  h->line[h->count] = h->memory[h->count];
  h->count++;
}

static void add_text(struct own_headers *h, const char *name, const char *text) {
  struct dibs__text line;
  dibs__text_begin(&line, h->memory[h->count], OWN_HEADER_SIZE);
  dibs__text_addf(&line, "%s: ", name);
  dibs__header_add(&line, text, strlen(text));
  h->line[h->count] = h->memory[h->count];
  h->count++;
}

/* The instant at which the message was added is a part of the key: after the restore of a backup another message may
 * get its number. */
static void add_idempotency_key(struct own_headers *h, const dibs_task *task) {
  size_t nth = h->count;
  add_text(h, "Idempotency-Key", task->kind);
  size_t length = strlen(h->memory[nth]);
  snprintf(h->memory[nth] + length, OWN_HEADER_SIZE - length, "-%" PRIu64 "-%" PRId64, task->nr, task->made_ms);
}

static void make_headers(const struct relay *r, const dibs_task *task, struct own_headers *h) {
  h->count = 0;
  add_idempotency_key(h, task);
  add_text(h, "Dibs-Kind", task->kind);
  add_number(h, "Dibs-Task", task->nr);
  add_number(h, "Dibs-Fence", task->fence.value);
  add_number(h, "Dibs-Attempt", task->attempt);
  if (*task->serial != '\0') add_text(h, "Dibs-Key", task->serial);
  if (*task->phase != '\0') add_text(h, "Dibs-Phase", task->phase);
  if (!r->typed) h->line[h->count++] = "Content-Type: application/octet-stream";
  for (size_t i = 0; i < r->header_count; i++) h->line[h->count++] = r->headers[i];
  h->line[h->count] = NULL;
}

static dibs_verdict send_message(dibs_task *task, dibs_work_reply *reply, void *user) {
  const struct relay *r = user;
  struct own_headers headers;
  struct sending sending = {r, task};
  make_headers(r, task, &headers);
  struct dibs__http_request request = {.headers = headers.line, .body = task->payload, .length = task->length};
  dibs__http_send(r->http, &request, is_given_up, &sending);
  struct dibs__reply judged;
  dibs__reply_judge(&request.answer, dibs__wall_ms(), &judged);
  if (request.answer.status == 0 && r->hurry) return DIBS_END_RELEASE;
  if (judged.verdict == DIBS__REPLY_DONE) return DIBS_END_DONE;
  snprintf(reply->text, sizeof reply->text, "%s", judged.text);
  reply->least_ms = judged.least_ms;
  if (r->values->tries != CLI_UNSET) reply->tries = (uint32_t)r->values->tries;
  return judged.verdict == DIBS__REPLY_DEAD ? DIBS_END_DEAD : DIBS_END_FAIL;
}

static dibs_verdict send_to_kafka(dibs_task *task, dibs_work_reply *reply, void *user) {
  struct relay *r = user;
  struct own_headers headers;
  struct sending sending = {r, task};
  bool broken = false;
  if (r->broken != 0) return DIBS_END_RELEASE;
  make_headers(r, task, &headers);
  dibs_verdict verdict =
      dibs__cli_relay_kafka_send(r->kafka, task, headers.line, is_given_up, &sending, reply, &broken);
  if (broken) {
    int none = 0;
    if (atomic_compare_exchange_strong(&r->broken, &none, EPIPE)) dibs__cli_note(r->globals, "Kafka: %s", reply->text);
    dibs__notifier_raise(r->notifier);
  }
  if (r->values->tries != CLI_UNSET) reply->tries = (uint32_t)r->values->tries;
  return verdict;
}

/* ---- --stdout ---- */

static bool is_utf8(const char *bytes, size_t length) {
  uint32_t code;
  for (size_t at = 0, took; at < length; at += took)
    if ((took = dibs__utf8_next(bytes + at, length - at, &code)) == 0) return false;
  return true;
}

/* "2026-11-23T07:19:04.512Z" */
static void write_instant(char *to, size_t size, int64_t ms) {
  int64_t second = ms / 1000, day = dibs__day_of(second), rest = second - day * DIBS__DAY_S, year, month, date;
  dibs__date_of(day, &year, &month, &date);
  snprintf(to, size,
           "%04" PRId64 "-%02" PRId64 "-%02" PRId64 "T%02" PRId64 ":%02" PRId64 ":%02" PRId64 ".%03" PRId64 "Z", year,
           month, date, rest / 3600, rest / 60 % 60, rest % 60, ms % 1000);
}

static void print_message(FILE *out, const dibs_task *task) {
  struct dibs__json j = {.out = out};
  char made[64];
  write_instant(made, sizeof made, task->made_ms);
  dibs__json_open(&j, NULL, '{');
  dibs__json_uint(&j, "nr", task->nr);
  dibs__json_text(&j, "kind", task->kind);
  dibs__json_text(&j, "key", task->serial);
  dibs__json_text(&j, "phase", task->phase);
  dibs__json_uint(&j, "fence", task->fence.value);
  dibs__json_uint(&j, "attempt", task->attempt);
  dibs__json_text(&j, "made", made);
  if (is_utf8(task->payload, task->length))
    dibs__json_bytes(&j, "payload", task->payload, task->length);
  else
    dibs__json_base64(&j, "payload_base64", task->payload, task->length);
  dibs__json_close(&j, '}');
}

/* Waits until standard output takes more. */
static void await_reader(const struct relay *r) {
  struct pollfd fds[] = {{STDOUT_FILENO, POLLOUT, 0}, {r->ending ? -1 : r->notifier, POLLIN, 0}};
  if (poll(fds, 2, LOOK_MS) > 0 && fds[0].revents != 0) dibs__nap_ms(1); /* a pipe may be too full for all of it */
}

/* Writes a whole line.  It waits for a reader as long as the relay runs; then it begins no line, and waits until
 * `hurry` for the rest of a line that it has begun.  false: the line is not written, or not all of it. */
static bool write_line(struct relay *r, const char *bytes, size_t length) {
  for (size_t at = 0; at < length;) {
    ssize_t sent = dibs__cli_write_now(STDOUT_FILENO, bytes + at, length - at);
    if (sent > 0) {
      at += (size_t)sent;
    } else if (sent < 0 && errno != EAGAIN) {
      r->broken = errno;
      dibs__notifier_raise(r->notifier);
      return false;
    } else {
      if (r->hurry || (r->ending && at == 0)) return false;
      await_reader(r);
    }
  }
  return true;
}

static dibs_verdict write_message(dibs_task *task, dibs_work_reply *reply, void *user) {
  struct relay *r = user;
  char *text = NULL;
  size_t length = 0;
  (void)reply;
  if (r->broken != 0) return DIBS_END_RELEASE;
  FILE *out = open_memstream(&text, &length);
  if (out == NULL) return DIBS_END_RELEASE;
  print_message(out, task);
  bool written = fclose(out) == 0 && write_line(r, text, length);
  free(text);
  return written ? DIBS_END_DONE : DIBS_END_RELEASE;
}

/* ---- Headers of the user ---- */

static int fail_header(const struct relay *r, const char *line, const char *flaw) {
  /* The value may be a secret. */
  return dibs__cli_fail(r->globals, CLI_USAGE, "INVALID", "--header: '%.*s' %s", (int)strcspn(line, ":\r\n"), line,
                        flaw);
}

static int add_header(struct relay *r, const char *line) {
  static const char *const own[] = {"idempotency-key", "content-length", "transfer-encoding", "expect"};
  size_t name = strcspn(line, ":");
  if (name == 0 || line[name] != ':' || strcspn(line, " \t\r\n\"(),/;<=>?@[\\]{}") < name)
    return fail_header(r, line, "is not a header; write 'Name: value'");
  for (const char *at = line; *at != '\0'; at++)
    if ((unsigned char)*at < ' ' && *at != '\t') return fail_header(r, line, "has a control character in its value");
  for (size_t i = 0; i < sizeof own / sizeof *own; i++)
    if (strlen(own[i]) == name && strncasecmp(line, own[i], name) == 0)
      return fail_header(r, line, "is a header that dibs sets itself");
  if (strncasecmp(line, "dibs-", 5) == 0) return fail_header(r, line, "is a header that dibs sets itself");
  if (r->header_count == HEADERS_MAX) return fail_header(r, line, "is one header too many");
  if (name == strlen("content-type") && strncasecmp(line, "content-type", name) == 0) r->typed = true;
  r->headers[r->header_count++] = line;
  return CLI_DONE;
}

/* Lines of headers; empty ones are skipped.  One file: its memory is kept. */
static int read_headers(struct relay *r, const char *path) {
  if (r->header_file != NULL)
    return dibs__cli_fail(r->globals, CLI_USAGE, "INVALID", "--header: only one file can be read, and '%s' is another",
                          path);
  FILE *file = fopen(path, "re");
  r->header_file = calloc(1, HEADER_FILE_MAX + 1);
  size_t length = 0;
  int error = file == NULL ? errno : 0;
  if (file != NULL && r->header_file != NULL) length = fread(r->header_file, 1, HEADER_FILE_MAX, file);
  if (file != NULL && ferror(file)) error = errno;
  if (file != NULL) fclose(file);
  if (r->header_file == NULL) error = ENOMEM;
  if (error != 0)
    return dibs__cli_fail(r->globals, CLI_USAGE, "INVALID", "--header: cannot read '%s': %s", path, strerror(error));
  if (length == HEADER_FILE_MAX || strlen(r->header_file) != length)
    return dibs__cli_fail(r->globals, CLI_USAGE, "INVALID", "--header: '%s' is not a short file of lines", path);
  int code = CLI_DONE;
  char *rest = r->header_file, *line;
  while (code == CLI_DONE && (line = strsep(&rest, "\n")) != NULL) {
    line[strcspn(line, "\r")] = '\0';
    if (*line != '\0') code = add_header(r, line);
  }
  return code;
}

static int open_http(struct relay *r) {
  const struct cli_values *v = r->values;
  int code = CLI_DONE;
  for (size_t i = 0; code == CLI_DONE && v->headers.word[i] != NULL; i++)
    code = v->headers.word[i][0] == '@' ? read_headers(r, v->headers.word[i] + 1) : add_header(r, v->headers.word[i]);
  if (code != CLI_DONE) return code;
  char agent[64], why[512];
  snprintf(agent, sizeof agent, "dibs/%s", dibs_version());
  int64_t total_ms = v->timeout_ms != CLI_UNSET ? v->timeout_ms : TIMEOUT_MS;
  struct dibs__http_options options = {.url = v->to,
                                       .ca = v->ca,
                                       .agent = agent,
                                       .connect_ms = total_ms < CONNECT_MS ? total_ms : CONNECT_MS,
                                       .total_ms = total_ms,
                                       .connections = v->jobs != CLI_UNSET ? (uint32_t)v->jobs : JOBS};
  if (dibs__http_open(&options, &r->http, why, sizeof why)) return CLI_DONE;
  return dibs__cli_fail(r->globals, CLI_USAGE, "UNSUPPORTED", "--to: %s", why);
}

static int open_receiver(struct relay *r) {
  const struct cli_values *v = r->values;
  if (!dibs__cli_is_kafka(v->to)) return open_http(r);
  return dibs__cli_relay_kafka_open(r->globals, v->to, v->settings.word,
                                    v->timeout_ms != CLI_UNSET ? v->timeout_ms : TIMEOUT_MS, &r->kafka);
}

/* ---- Running ---- */

static int check_options(const struct relay *r) {
  const struct cli_values *v = r->values;
  const struct cli_globals *g = r->globals;
  if ((v->to != NULL) + (v->exec != NULL) + v->lines != 1)
    return dibs__cli_fail(g, CLI_USAGE, "INVALID",
                          "where are the messages delivered? give exactly one of --to URL, --exec CMD and --stdout");
  if (v->exec != NULL && (v->ca != NULL || v->headers.word[0] != NULL))
    return dibs__cli_fail(g, CLI_USAGE, "INVALID", "%s is an option of --to", v->ca != NULL ? "--ca" : "--header");
  if (v->exec != NULL && v->batch != CLI_UNSET)
    return dibs__cli_fail(g, CLI_USAGE, "INVALID", "--batch: with --exec no message is claimed in advance");
  const char *stray = v->ca != NULL                ? "--ca"
                      : v->headers.word[0] != NULL ? "--header"
                      : v->timeout_ms != CLI_UNSET ? "--timeout"
                      : v->jobs != CLI_UNSET       ? "--jobs"
                      : v->tries != CLI_UNSET      ? "--tries"
                                                   : NULL;
  bool kafka = v->to != NULL && dibs__cli_is_kafka(v->to);
  if (kafka && (v->ca != NULL || v->headers.word[0] != NULL))
    return dibs__cli_fail(g, CLI_USAGE, "INVALID", "%s is for HTTP; for Kafka see --setting",
                          v->ca != NULL ? "--ca" : "--header");
  if (!kafka && v->settings.word[0] != NULL)
    return dibs__cli_fail(g, CLI_USAGE, "INVALID", "--setting is an option of --to kafka://...");
  if (v->lines && stray != NULL)
    return dibs__cli_fail(g, CLI_USAGE, "INVALID", "--stdout has no use for %s; see dibs help relay", stray);
  return CLI_DONE;
}

static int start_worker(struct relay *r) {
  const struct cli_values *v = r->values;
  dibs_worker_options options = {.size = sizeof options,
                                 .owner = r->globals->owner,
                                 .timeout_ms = v->ttl_ms != CLI_UNSET ? v->ttl_ms : 0,
                                 .poll_ms = v->once ? LOOK_MS : 0,
                                 .user = r};
  if (v->lines) {
    /* One thread: lines are not mixed.  Twice the batch: one is written while the next is claimed. */
    options.work = write_message;
    options.threads = 1;
    options.prefetch = 2 * (uint32_t)(v->batch != CLI_UNSET ? v->batch : BATCH);
  } else {
    options.work = r->kafka != NULL ? send_to_kafka : send_message;
    options.threads = v->jobs != CLI_UNSET ? (uint32_t)v->jobs : JOBS;
    options.prefetch = v->batch != CLI_UNSET ? (uint32_t)v->batch : options.threads;
  }
  dibs_error error = {0};
  dibs_status status = dibs_worker_start(r->store, r->kind, &options, &r->worker, &error);
  return status == DIBS_OK ? CLI_DONE : dibs__cli_fail_status(r->globals, status, &error, r->kind);
}

/* Failures that do not pass by waiting. */
static bool is_final(dibs_status status) {
  return status == DIBS_INVALID || status == DIBS_DENIED || status == DIBS_UNSUPPORTED || status == DIBS_CORRUPT ||
         status == DIBS_TOO_NEW;
}

static bool has_answered(const struct relay *r) {
  dibs_worker_counts counts = {.size = sizeof counts};
  return dibs_worker_count(r->worker, &counts, NULL) == DIBS_OK && counts.claimed + counts.idle > 0;
}

/* Reports a change.  CLI_DONE, or an exit code after a message.  A store that answered and is DENIED now may be
 * read-only for a while, as during maintenance or a failover. */
static int look_at_trouble(const struct relay *r, dibs_status *before) {
  dibs_error error = {0};
  dibs_worker_trouble(r->worker, &error);
  if (error.status == *before) return CLI_DONE;
  if (is_final(error.status) && !(error.status == DIBS_DENIED && has_answered(r)))
    return dibs__cli_fail_status(r->globals, error.status, &error, r->kind);
  if (error.status == DIBS_OK)
    dibs__cli_note(r->globals, "the store answers again");
  else
    dibs__cli_note(r->globals, "%s; the relay tries again", error.text);
  *before = error.status;
  return CLI_DONE;
}

/* The counters at a moment at which nothing was held. */
struct empty {
  bool seen;
  uint64_t idle, claimed;
};

/* Nothing is held, and a claim that began after that was seen found nothing.  (Two looks may both fall between the end
 * of a message and the claim of the next one with its key: then something was claimed between them.) */
static bool is_idle(const struct relay *r, struct empty *empty) {
  dibs_worker_counts counts = {.size = sizeof counts};
  if (dibs_worker_count(r->worker, &counts, NULL) != DIBS_OK || counts.held > 0) {
    empty->seen = false;
    return false;
  }
  if (empty->seen && counts.claimed == empty->claimed) return counts.idle > empty->idle + 1;
  *empty = (struct empty){true, counts.idle, counts.claimed};
  return false;
}

/* Until a signal, a failure or, with --once, the last message. */
static int run_relay(struct relay *r) {
  struct pollfd fds[] = {{r->signals.fd, POLLIN, 0}, {r->notifier, POLLIN, 0}};
  dibs_status trouble = DIBS_OK;
  struct empty empty = {.seen = false};
  int code = CLI_DONE;
  for (;;) {
    (void)poll(fds, 2, LOOK_MS);
    if (r->broken != 0 || dibs__cli_signals_next(&r->signals) != 0) return CLI_DONE;
    if ((code = look_at_trouble(r, &trouble)) != CLI_DONE) return code;
    if (r->values->once && is_idle(r, &empty)) return CLI_DONE;
  }
}

static void drain(struct relay *r) {
  int64_t ms = DRAIN_MS + (r->values->timeout_ms != CLI_UNSET ? r->values->timeout_ms : TIMEOUT_MS);
  dibs__tick by = dibs__tick_add_ms(dibs__tick_now(), ms);
  r->ending = true;
  dibs__notifier_raise(r->notifier);
  while (!r->hurry && dibs_worker_stop(r->worker, LOOK_MS, NULL) == DIBS_TIMEOUT)
    if (dibs__cli_signals_next(&r->signals) != 0 || !dibs__tick_before(dibs__tick_now(), by)) r->hurry = true;
  dibs__worker_end(r->worker); /* it gives up on a store that does not answer */
}

static void report_counts(const struct relay *r) {
  dibs_worker_counts c = {.size = sizeof c};
  if (dibs_worker_count(r->worker, &c, NULL) != DIBS_OK) return;
  if (!r->globals->json) {
    dibs__cli_note(r->globals,
                   "delivered %" PRIu64 " messages; failed tries: %" PRIu64 ", dead at once: %" PRIu64
                   ", given back: %" PRIu64 ", not recorded: %" PRIu64,
                   c.done, c.failed, c.dead, c.released, c.refused + c.unsent);
    return;
  }
  struct cli_line line;
  if (!dibs__cli_line_open(&line)) return;
  struct dibs__json j = {.out = line.out};
  dibs__json_open(&j, NULL, '{');
  dibs__json_text(&j, "command", "relay");
  dibs__json_text(&j, "kind", r->kind);
  dibs__json_uint(&j, "delivered", c.done);
  dibs__json_uint(&j, "failed", c.failed);
  dibs__json_uint(&j, "dead", c.dead);
  dibs__json_uint(&j, "released", c.released);
  dibs__json_uint(&j, "refused", c.refused + c.unsent);
  dibs__json_close(&j, '}');
  (void)dibs__cli_line_send(&line, STDERR_FILENO, CLI_ERROR_MS);
}

static int relay_messages(struct relay *r) {
  dibs_lease_options reach = {.size = sizeof reach, .wait_ms = r->values->once ? 0 : DIBS_FOREVER};
  int code = r->values->to != NULL ? open_receiver(r) : CLI_DONE;
  if (code == CLI_DONE) code = dibs__cli_reach(r->globals, &reach, &r->signals, &r->store);
  if (code == CLI_DONE) code = start_worker(r);
  if (code != CLI_DONE) return code;
  code = run_relay(r);
  drain(r);
  if (r->broken != 0 && r->kafka != NULL)
    code = dibs__cli_fail(r->globals, CLI_FAILED, "", "the producer can't go on; start the relay again");
  else if (r->broken != 0)
    code = dibs__cli_fail(r->globals, CLI_FAILED, "", "cannot write standard output: %s", strerror(r->broken));
  if (code == CLI_DONE) report_counts(r);
  return code;
}

/* As `dibs worker` does it, but each exit status other than 0 is a failed try. */
static int run_commands(const struct relay *r) {
  const struct cli_values *v = r->values;
  char shell[] = "sh", option[] = "-c";
  char *argv[] = {shell, option, (char *)(uintptr_t)v->exec, NULL};
  struct work_plan plan = {
      .kind = r->kind, .timeout_ms = v->ttl_ms, .max_ms = v->timeout_ms, .tries = v->tries, .zero_or_failed = true};
  return dibs__cli_work(v, &plan, argv);
}

int dibs__cli_relay(struct cli_call *call) {
  struct relay r = {.globals = &call->v.globals, .values = &call->v, .kind = call->pos[0], .notifier = -1};
  int code = check_options(&r);
  if (code == CLI_DONE && call->v.exec != NULL) return run_commands(&r);
  if (code == CLI_DONE) code = dibs__cli_signals_open(r.globals, &r.signals);
  if (code != CLI_DONE) return code;
  r.notifier = dibs__notifier_open();
  if (r.notifier >= 0)
    code = relay_messages(&r);
  else
    code = dibs__cli_fail(r.globals, CLI_FAILED, "", "no descriptor is left: %s", strerror(errno));
  dibs_worker_free(r.worker);
  dibs__http_close(r.http);
  dibs__cli_relay_kafka_close(r.kafka);
  dibs_close(r.store);
  if (r.notifier >= 0) dibs__notifier_close(r.notifier);
  dibs__cli_signals_close(&r.signals);
  free(r.header_file);
  return code;
}
