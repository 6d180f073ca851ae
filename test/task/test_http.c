/* SPDX-License-Identifier: MIT */
/* The client for HTTP against a receiver that behaves badly.  Arguments: python3, the receiver's program. */
#include "task/http.h"
#include "unit/unit.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static const char *python, *program;
static char log_file[] = "/tmp/dibs-http-XXXXXX";
static pid_t receiver = -1;
static int receiver_in = -1;
static unsigned port;

static int start_receiver(void **state) {
  (void)state;
  int in[2], out[2], log = mkstemp(log_file);
  if (log < 0 || pipe2(in, O_CLOEXEC) != 0 || pipe2(out, O_CLOEXEC) != 0) return -1;
  close(log);
  receiver = fork();
  if (receiver == 0) {
    dup2(in[0], STDIN_FILENO);
    dup2(out[1], STDOUT_FILENO);
    execlp(python, python, program, log_file, (char *)NULL);
    _exit(127);
  }
  close(in[0]);
  close(out[1]);
  receiver_in = in[1];
  FILE *said = fdopen(out[0], "r");
  int read = said != NULL ? fscanf(said, "%u", &port) : 0;
  if (said != NULL) fclose(said);
  return read == 1 ? 0 : -1;
}

static int stop_receiver(void **state) {
  (void)state;
  close(receiver_in);
  unlink(log_file);
  return waitpid(receiver, NULL, 0) == receiver ? 0 : -1;
}

/* ---- Requests ---- */

static struct dibs__http *open_client(const char *path, int64_t total_ms) {
  char url[200], why[512];
  snprintf(url, sizeof url, "http://127.0.0.1:%u/%s", port, path);
  struct dibs__http_options options = {
      .url = url, .agent = "test", .connect_ms = 2000, .total_ms = total_ms, .connections = 8};
  struct dibs__http *http;
  if (!dibs__http_open(&options, &http, why, sizeof why)) fail_msg("%s", why);
  return http;
}

static bool never(void *arg) {
  (void)arg;
  return false;
}

static const char *const headers[] = {"Content-Type: application/octet-stream", "Idempotency-Key: outbox-1", NULL};

static struct dibs__reply post(const char *path, int64_t total_ms, const char *body, size_t length) {
  struct dibs__http *http = open_client(path, total_ms);
  struct dibs__http_request request = {.headers = headers, .body = body, .length = length};
  struct dibs__reply reply;
  dibs__http_send(http, &request, never, NULL);
  dibs__reply_judge(&request.answer, 0, &reply);
  dibs__http_close(http);
  return reply;
}

/* The last line of the log. */
static void read_log(char *line, size_t size) {
  char next[4096];
  FILE *log = fopen(log_file, "r");
  assert_non_null(log);
  line[0] = '\0';
  while (fgets(next, sizeof next, log)) snprintf(line, size, "%s", next);
  fclose(log);
}

/* ---- Tests ---- */

static void a_message_arrives_with_its_headers(void **state) {
  (void)state;
  char line[4096];
  struct dibs__reply reply = post("status/202?body=taken", 5000, "a\0\xff", 3);
  assert_int_equal(reply.verdict, DIBS__REPLY_DONE);
  assert_string_equal(reply.text, "HTTP 202: taken");
  read_log(line, sizeof line);
  assert_non_null(strstr(line, "\"body\": \"a\\u0000\\u00ff\""));
  assert_non_null(strstr(line, "\"idempotency-key\": \"outbox-1\""));
  assert_non_null(strstr(line, "\"content-type\": \"application/octet-stream\""));
  assert_null(strstr(line, "\"expect\""));
  assert_int_equal(post("status/200", 5000, "", 0).verdict, DIBS__REPLY_DONE);
}

static void a_huge_message_arrives_whole(void **state) {
  (void)state;
  enum { LENGTH = 16 * 1024 * 1024 };
  char *body = malloc(LENGTH);
  assert_non_null(body);
  memset(body, 'x', LENGTH);
  assert_int_equal(post("status/200", 60000, body, LENGTH).verdict, DIBS__REPLY_DONE);
  /* The receiver answers before it has read it, and closes: that is an answer, or a closed connection. */
  struct dibs__reply reply = post("early", 20000, body, LENGTH);
  assert_int_not_equal(reply.verdict, DIBS__REPLY_DONE);
  assert_int_not_equal(reply.text[0], '\0');
  free(body);
}

static void headers_of_a_response_count(void **state) {
  (void)state;
  struct dibs__reply reply = post("status/429?Retry-After=7", 5000, "x", 1);
  assert_int_equal(reply.verdict, DIBS__REPLY_FAIL);
  assert_int_equal(reply.least_ms, 7000);
  reply = post(
      "status/503?Retry-After=Sun,%2006%20Nov%201994%2008:49:47%20GMT&Date=Sun,%2006%20Nov%201994%2008:49:37%20GMT",
      5000, "x", 1);
  assert_int_equal(reply.least_ms, 10000);
  reply = post("status/301?Location=http://elsewhere/", 5000, "x", 1);
  assert_int_equal(reply.verdict, DIBS__REPLY_DEAD);
  assert_string_equal(reply.text, "HTTP 301, a redirect, which is not followed; to: http://elsewhere/");
}

static void hostile_receivers_are_failed_tries(void **state) {
  (void)state;
  static const char *const paths[] = {"close",   "reset", "garbage",  "old",  "short",
                                      "headers", "line",  "continue", "hang", "drip"};
  for (size_t i = 0; i < COUNT_OF(paths); i++) {
    dibs__tick began = dibs__tick_now();
    struct dibs__reply reply = post(paths[i], 500, "x", 1);
    int64_t took_ms = dibs__tick_left_ms(began, dibs__tick_now());
    print_message("%s: %s\n", paths[i], reply.text);
    assert_int_equal(reply.verdict, DIBS__REPLY_FAIL);
    assert_int_not_equal(reply.text[0], '\0');
    assert_null(strstr(reply.text, "HTTP 2"));
    if (took_ms > LONG_MS) fail_msg("%s took %lld ms", paths[i], (long long)took_ms);
  }
}

/* Its status is an answer: the rest of the body is not read. */
static void an_endless_body_ends(void **state) {
  (void)state;
  struct dibs__reply reply = post("endless/200", 60000, "x", 1);
  assert_int_equal(reply.verdict, DIBS__REPLY_DONE);
  reply = post("endless/404", 60000, "x", 1);
  assert_int_equal(reply.verdict, DIBS__REPLY_DEAD);
  assert_int_equal(strlen(reply.text), strlen("HTTP 404: ") + DIBS__REPLY_BODY);
}

static void a_body_of_any_bytes_is_text(void **state) {
  (void)state;
  struct dibs__reply reply = post("nul", 5000, "x", 1);
  assert_int_equal(strncmp(reply.text, "HTTP 500: a b? [2Jcccc", 22), 0);
}

static void nobody_listens(void **state) {
  (void)state;
  unsigned before = port;
  port = 1;
  struct dibs__reply reply = post("status/200", 5000, "x", 1);
  port = before;
  assert_int_equal(reply.verdict, DIBS__REPLY_FAIL);
  assert_non_null(strstr(reply.text, "connect"));
}

static bool at_once(void *arg) {
  (*(int *)arg)++;
  return true;
}

static void a_request_can_be_given_up(void **state) {
  (void)state;
  struct dibs__http *http = open_client("hang", 60000);
  struct dibs__http_request request = {.headers = headers, .body = "x", .length = 1};
  int calls = 0;
  dibs__tick began = dibs__tick_now();
  dibs__http_send(http, &request, at_once, &calls);
  assert_true(dibs__tick_left_ms(began, dibs__tick_now()) < LONG_MS);
  assert_int_equal(calls, 1);
  assert_int_equal(request.answer.status, 0);
  assert_string_equal(request.answer.trouble, "it was given up");
  dibs__http_close(http);
}

/* ---- Many at once ---- */

enum { SENDERS = 8, EACH = 50 };
struct sender {
  struct dibs__http *http;
  dibs__thread *thread;
  int delivered;
};

static void send_each(void *arg) {
  struct sender *sender = arg;
  for (int i = 0; i < EACH; i++) {
    struct dibs__http_request request = {.headers = headers, .body = "x", .length = 1};
    dibs__http_send(sender->http, &request, never, NULL);
    sender->delivered += request.answer.status == 200;
  }
}

static void many_threads_share_a_few_connections(void **state) {
  (void)state;
  struct dibs__http *http = open_client("slow/2", 20000);
  struct sender senders[SENDERS];
  char before[4096], after[4096];
  unsigned first = 0, last = 0;
  assert_int_equal(post("status/200", 5000, "x", 1).verdict, DIBS__REPLY_DONE);
  read_log(before, sizeof before);
  for (int i = 0; i < SENDERS; i++) {
    senders[i] = (struct sender){.http = http};
    senders[i].thread = dibs__thread_start("sender", send_each, &senders[i]);
    assert_non_null(senders[i].thread);
  }
  for (int i = 0; i < SENDERS; i++) {
    dibs__thread_join(senders[i].thread);
    assert_int_equal(senders[i].delivered, EACH);
  }
  dibs__http_close(http);
  assert_int_equal(post("status/200", 5000, "x", 1).verdict, DIBS__REPLY_DONE);
  read_log(after, sizeof after);
  assert_int_equal(sscanf(strstr(before, "\"connection\": "), "\"connection\": %u", &first), 1);
  assert_int_equal(sscanf(strstr(after, "\"connection\": "), "\"connection\": %u", &last), 1);
  assert_true(last - first - 1 <= SENDERS);
}

static void wrong_options_are_refused_at_once(void **state) {
  (void)state;
  static const char *const urls[][2] = {
      {"ftp://host/", "https://"}, {"host", "URL"}, {"", "URL"}, {"file:///etc/passwd", "URL"}};
  struct dibs__http *http;
  char why[512];
  for (size_t i = 0; i < COUNT_OF(urls); i++) {
    struct dibs__http_options options = {
        .url = urls[i][0], .agent = "test", .connect_ms = 1000, .total_ms = 1000, .connections = 1};
    assert_false(dibs__http_open(&options, &http, why, sizeof why));
    assert_null(http);
    if (!strstr(why, urls[i][1])) fail_msg("%s: %s", urls[i][0], why);
  }
  struct dibs__http_options options = {.url = "https://host/",
                                       .ca = "/no/such/file",
                                       .agent = "test",
                                       .connect_ms = 1000,
                                       .total_ms = 1000,
                                       .connections = 1};
  assert_false(dibs__http_open(&options, &http, why, sizeof why));
  assert_non_null(strstr(why, "/no/such/file"));
}

int main(int argc, char **argv) {
  if (argc != 3) return 2;
  python = argv[1];
  program = argv[2];
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_message_arrives_with_its_headers),
      cmocka_unit_test(a_huge_message_arrives_whole),
      cmocka_unit_test(headers_of_a_response_count),
      cmocka_unit_test(hostile_receivers_are_failed_tries),
      cmocka_unit_test(an_endless_body_ends),
      cmocka_unit_test(a_body_of_any_bytes_is_text),
      cmocka_unit_test(nobody_listens),
      cmocka_unit_test(a_request_can_be_given_up),
      cmocka_unit_test(many_threads_share_a_few_connections),
      cmocka_unit_test(wrong_options_are_refused_at_once),
  };
  return cmocka_run_group_tests(tests, start_receiver, stop_receiver);
}
