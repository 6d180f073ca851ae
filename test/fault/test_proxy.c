/* SPDX-License-Identifier: MIT */
/* The proxy does to connections what its commands say, and nothing else.  Its argument: the proxy as a program. */
#include "proxy_bed.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/port.h"

static const char *program;

/* ---- Passing ---- */

static void bytes_arrive_and_are_counted(void **state) {
  (void)state;
  struct bed bed = bed_make(FRAME_RAW);
  int fd = client_connect(&bed);
  client_say(fd, "one\n");
  client_hears(fd, "one");
  assert_int_equal(proxied_stat(bed.proxied, "accepted"), 1);
  assert_int_equal(proxied_stat(bed.proxied, "open"), 1);
  assert_int_equal(proxied_stat(bed.proxied, "up"), 4);
  assert_int_equal(proxied_stat(bed.proxied, "down"), 4);
  close(fd);
  bed_end(&bed);
}

/* More bytes than all buffers on the way hold, while the reader waits at first: the flow must stop, continue, and stay
 * in order. */
static void a_flood_arrives_whole_and_in_order(void **state) {
  (void)state;
  enum { FLOOD = 24 * 1024 * 1024, PIECE = 64 * 1024 };
  struct bed bed = bed_make(FRAME_RAW);
  int fd = client_connect(&bed);
  static uint8_t piece[PIECE];
  fcntl(fd, F_SETFL, O_NONBLOCK);
  size_t sent = 0, got = 0;
  while (got < FLOOD) {
    struct pollfd ready = {.fd = fd, .events = (short)(POLLIN | (sent < FLOOD ? POLLOUT : 0))};
    assert_int_equal(poll(&ready, 1, LONG_MS), 1);
    if (ready.revents & POLLOUT) {
      for (size_t i = 0; i < PIECE; i++) piece[i] = (uint8_t)((sent + i) * 2654435761u >> 24 | 0x80);
      size_t left = FLOOD - sent;
      ssize_t n = send(fd, piece, left < PIECE ? left : PIECE, MSG_NOSIGNAL);
      if (n > 0)
        sent += (size_t)n;
      else
        assert_int_equal(errno, EAGAIN);
      /* Writing fills all buffers first. */
      if (n > 0) continue;
    }
    ssize_t n = recv(fd, piece, PIECE, 0);
    if (n < 0) assert_int_equal(errno, EAGAIN);
    assert_int_not_equal(n, 0);
    for (ssize_t i = 0; i < n; i++, got++)
      if (piece[i] != (uint8_t)(got * 2654435761u >> 24 | 0x80)) fail_msg("byte %zu differs", got);
  }
  close(fd);
  bed_end(&bed);
}

static void ends_pass_after_the_bytes_before_them(void **state) {
  (void)state;
  struct bed bed = bed_make(FRAME_RAW);
  int one = client_connect(&bed), two = client_connect(&bed);
  client_say(one, "one\n");
  client_say(two, "two\n");
  client_hears(two, "two");
  shutdown(one, SHUT_WR);
  assert_true(echo_sees_ends(&bed, 1, 0));
  client_hears(one, "one");
  assert_int_equal(client_end(one), CLIENT_ENDED);
  echo_hang_up(&bed);
  assert_int_equal(client_end(two), CLIENT_ENDED);
  close(one);
  close(two);
  bed_end(&bed);
}

static void a_reset_of_the_client_reaches_the_server(void **state) {
  (void)state;
  struct bed bed = bed_make(FRAME_RAW);
  int fd = client_connect(&bed);
  client_say(fd, "one\n");
  client_hears(fd, "one");
  setsockopt(fd, SOL_SOCKET, SO_LINGER, &(struct linger){.l_onoff = 1}, sizeof(struct linger));
  close(fd);
  assert_true(echo_sees_ends(&bed, 0, 1));
  bed_end(&bed);
}

static void a_server_that_is_down_resets_the_client(void **state) {
  (void)state;
  char why[PROXY_WHY], to[32];
  struct bed bed = bed_make(FRAME_RAW), behind = {0};
  snprintf(to, sizeof to, "127.0.0.1:%u", (unsigned)proxied_port(bed.proxied));
  tell(&bed, "refuse"); /* so that the port refuses, and no other program can take it */
  behind.proxied = proxied_start(&(struct proxy_options){.to = to}, why);
  assert_non_null(behind.proxied);
  int fd = client_connect(&behind);
  assert_int_equal(client_end(fd), CLIENT_RESET);
  close(fd);
  proxied_stop(behind.proxied);
  bed_end(&bed);
}

/* ---- Delay ---- */

static void delay_applies_to_each_direction_and_keeps_the_order(void **state) {
  (void)state;
  enum { MS = 60, REPORTED = 20 };
  struct bed bed = bed_make(FRAME_RAW);
  int fd = client_connect(&bed);
  tell(&bed, "delay 60");
  dibs__tick began = dibs__tick_now();
  char line[16];
  for (int i = 0; i < REPORTED; i++) {
    snprintf(line, sizeof line, "line %d\n", i);
    client_say(fd, line);
  }
  for (int i = 0; i < REPORTED; i++) {
    snprintf(line, sizeof line, "line %d", i);
    client_hears(fd, line);
  }
  int64_t took = dibs__tick_left_ms(began, dibs__tick_now());
  assert_in_range(took, 2 * MS, LONG_MS);
  /* The delays overlap. */
  assert_true(took < MS * REPORTED);
  tell(&bed, "pass");
  began = dibs__tick_now();
  client_say(fd, "soon\n");
  client_hears(fd, "soon");
  assert_true(dibs__tick_left_ms(began, dibs__tick_now()) < 2 * MS);
  close(fd);
  bed_end(&bed);
}

/* ---- Cutting ---- */

static void cut_resets_all_and_new_ones_pass(void **state) {
  (void)state;
  struct bed bed = bed_make(FRAME_RAW);
  int one = client_connect(&bed), two = client_connect(&bed);
  client_say(one, "one\n");
  client_hears(one, "one");
  client_say(two, "two\n");
  client_hears(two, "two");
  char answer[PROXY_LINE];
  assert_true(proxied_say(bed.proxied, "cut", answer));
  assert_string_equal(answer, "ok 2");
  assert_int_equal(client_end(one), CLIENT_RESET);
  assert_int_equal(client_end(two), CLIENT_RESET);
  assert_true(echo_sees_ends(&bed, 0, 2));
  int three = client_connect(&bed);
  client_say(three, "three\n");
  client_hears(three, "three");
  close(one);
  close(two);
  close(three);
  bed_end(&bed);
}

static void a_request_cut_before_never_reaches_the_server(void **state) {
  (void)state;
  struct bed bed = bed_make(FRAME_RAW);
  int fd = client_connect(&bed);
  tell(&bed, "cut-before-request COMMIT");
  client_say(fd, "begin\n");
  client_hears(fd, "begin");
  client_say(fd, "commit\n");
  assert_int_equal(client_end(fd), CLIENT_RESET);
  assert_true(echo_sees_ends(&bed, 0, 1));
  assert_int_equal(echo_lines(&bed), 1);
  assert_int_equal(proxied_stat(bed.proxied, "fired"), 1);
  close(fd);
  /* The trigger fired once. */
  fd = client_connect(&bed);
  client_say(fd, "commit\n");
  client_hears(fd, "commit");
  close(fd);
  bed_end(&bed);
}

static void a_request_cut_after_is_done_and_not_answered(void **state) {
  (void)state;
  struct bed bed = bed_make(FRAME_RAW);
  int fd = client_connect(&bed);
  tell(&bed, "cut-after-request commit");
  client_say(fd, "begin\n");
  client_hears(fd, "begin");
  client_say(fd, "slow commit\n");
  /* The server is slow; the client sees the end only after the server has finished. */
  assert_int_equal(client_end(fd), CLIENT_RESET);
  assert_true(echo_heard(&bed, "slow commit"));
  assert_true(echo_sees_ends(&bed, 1, 0));
  close(fd);
  bed_end(&bed);
}

static void bytes_after_a_request_cut_after_are_not_forwarded(void **state) {
  (void)state;
  struct bed bed = bed_make(FRAME_REDIS);
  int fd = client_connect(&bed);
  tell(&bed, "cut-after-request commit");
  client_say(fd, "begin\ncommit\nmore\n");
  assert_true(echo_hears(&bed, "commit"));
  assert_true(echo_sees_ends(&bed, 1, 0));
  assert_int_equal(echo_lines(&bed), 2);
  close(fd);
  bed_end(&bed);
}

static void an_orphan_lands_after_its_client_was_cut(void **state) {
  (void)state;
  struct bed bed = bed_make(FRAME_RAW);
  int fd = client_connect(&bed);
  tell(&bed, "orphan-request commit 1000");
  dibs__tick began = dibs__tick_now();
  client_say(fd, "commit\n");
  assert_int_equal(client_end(fd), CLIENT_RESET);
  assert_false(echo_heard(&bed, "commit"));
  assert_true(dibs__tick_left_ms(began, dibs__tick_now()) < 1000);
  assert_true(echo_hears(&bed, "commit"));
  assert_true(dibs__tick_left_ms(began, dibs__tick_now()) >= 1000);
  assert_true(echo_sees_ends(&bed, 1, 0));
  close(fd);
  bed_end(&bed);
}

static void hold_delays_one_request_and_what_follows_it(void **state) {
  (void)state;
  struct bed bed = bed_make(FRAME_RAW);
  int held = client_connect(&bed), free_one = client_connect(&bed);
  tell(&bed, "hold-request commit 300");
  dibs__tick began = dibs__tick_now();
  client_say(held, "commit\n");
  while (proxied_stat(bed.proxied, "fired") < 1) dibs__nap_ms(1);
  client_say(held, "after\n");
  client_say(free_one, "commit\n");
  client_hears(free_one, "commit");
  assert_true(dibs__tick_left_ms(began, dibs__tick_now()) < 300);
  client_hears(held, "commit");
  assert_true(dibs__tick_left_ms(began, dibs__tick_now()) >= 300);
  client_hears(held, "after");
  close(held);
  close(free_one);
  bed_end(&bed);
}

static void a_trigger_waits_for_the_nth_match_and_fires_several_times(void **state) {
  (void)state;
  struct bed bed = bed_make(FRAME_RAW);
  tell(&bed, "cut-before-request nth=3 times=2 x\\x79\\sz\\\\");
  for (int i = 1; i <= 6; i++) {
    int fd = client_connect(&bed);
    client_say(fd, "XY Z\\\n");
    if (i == 3 || i == 4)
      assert_int_equal(client_end(fd), CLIENT_RESET);
    else
      client_hears(fd, "XY Z\\");
    close(fd);
  }
  tell(&bed, "cut-before-request times=0 always");
  for (int i = 0; i < 3; i++) {
    int fd = client_connect(&bed);
    client_say(fd, "always\n");
    assert_int_equal(client_end(fd), CLIENT_RESET);
    close(fd);
  }
  tell(&bed, "pass");
  int fd = client_connect(&bed);
  client_say(fd, "always\n");
  client_hears(fd, "always");
  close(fd);
  bed_end(&bed);
}

/* ---- Silence ---- */

static void stall_loses_nothing(void **state) {
  (void)state;
  struct bed bed = bed_make(FRAME_RAW);
  int old = client_connect(&bed);
  client_say(old, "one\n");
  client_hears(old, "one");
  tell(&bed, "stall");
  int new = client_connect(&bed);
  client_say(old, "two\n");
  client_say(new, "three\n");
  client_hears_nothing(old);
  assert_int_equal(echo_lines(&bed), 1);
  tell(&bed, "pass");
  client_hears(old, "two");
  client_hears(new, "three");
  close(old);
  close(new);
  bed_end(&bed);
}

static void half_open_drops_bytes_silently(void **state) {
  (void)state;
  struct bed bed = bed_make(FRAME_RAW);
  int gone = client_connect(&bed), old = client_connect(&bed);
  client_say(gone, "one\n");
  client_hears(gone, "one");
  client_say(old, "one\n");
  client_hears(old, "one");
  tell(&bed, "half-open");
  int new = client_connect(&bed);
  assert_true(new >= 0);
  client_say(old, "two\n");
  client_say(new, "three\n");
  close(gone);
  client_hears_nothing(old);
  client_hears_nothing(new);
  /* The server still has both connections. */
  assert_int_equal(echo_open(&bed), 2);
  assert_int_equal(echo_lines(&bed), 2);
  tell(&bed, "pass");
  assert_int_equal(client_end(old), CLIENT_RESET);
  assert_int_equal(client_end(new), CLIENT_RESET);
  assert_true(echo_sees_ends(&bed, 0, 2));
  close(old);
  close(new);
  bed_end(&bed);
}

static void refuse_refuses_new_connections_until_pass(void **state) {
  (void)state;
  struct bed bed = bed_make(FRAME_RAW);
  int old = client_connect(&bed);
  client_say(old, "one\n");
  client_hears(old, "one");
  for (int i = 0; i < 3; i++) {
    tell(&bed, "refuse");
    assert_int_equal(client_connect(&bed), -1);
    assert_int_equal(errno, ECONNREFUSED);
    client_say(old, "two\n");
    client_hears(old, "two");
    tell(&bed, "pass");
    int new = client_connect(&bed);
    assert_true(new >= 0);
    client_say(new, "three\n");
    client_hears(new, "three");
    close(new);
  }
  close(old);
  bed_end(&bed);
}

static void new_connections_go_to_the_new_address(void **state) {
  (void)state;
  struct bed bed = bed_make(FRAME_RAW), other = bed_make(FRAME_RAW);
  char line[64];
  int old = client_connect(&bed);
  client_say(old, "one\n");
  client_hears(old, "one");
  snprintf(line, sizeof line, "to 127.0.0.1:%u", (unsigned)proxied_port(other.proxied));
  tell(&bed, line);
  tell(&bed, "pass");
  int new = client_connect(&bed);
  client_say(new, "two\n");
  client_hears(new, "two");
  client_say(old, "three\n");
  client_hears(old, "three");
  assert_true(echo_heard(&other, "two") && echo_heard(&bed, "three"));
  assert_false(echo_heard(&bed, "two") || echo_heard(&other, "three"));
  close(old);
  close(new);
  bed_end(&bed);
  bed_end(&other);
}

/* ---- Requests ---- */

/* The ends of requests must not depend on how the bytes are split. */
static void ends_at(enum frame_protocol protocol, const char *bytes, size_t size, const size_t *ends, size_t count) {
  for (size_t step = 1; step <= size; step++) {
    struct framer framer = {.protocol = protocol};
    size_t at = 0, seen = 0;
    while (at < size) {
      bool ended = false;
      size_t part = size - at < step ? size - at : step;
      at += frame_take(&framer, (const uint8_t *)bytes + at, part, &ended);
      if (!ended) continue;
      assert_true(seen < count);
      assert_int_equal(at, ends[seen++]);
    }
    assert_int_equal(seen, count);
  }
}
#define ENDS_AT(protocol, bytes, ...)                                                                                  \
  ends_at(protocol, bytes, sizeof(bytes) - 1, (const size_t[]){__VA_ARGS__}, COUNT_OF(((const size_t[]){__VA_ARGS__})))

static void requests_end_as_the_protocol_defines(void **state) {
  (void)state;
  /* A request for TLS, start-up, a query, then parse + bind + execute + sync as one, then bind + flush, then
   * terminate. */
  ENDS_AT(FRAME_POSTGRES,
          "\0\0\0\x08\x04\xd2\x16\x2f"
          "\0\0\0\x0b\0\x03\0\0u\0\0"
          "Q\0\0\0\x06x\0"
          "P\0\0\0\x08\0x\0\0"
          "B\0\0\0\x05y"
          "E\0\0\0\x04"
          "S\0\0\0\x04"
          "B\0\0\0\x05S"
          "H\0\0\0\x04"
          "X\0\0\0\x04",
          8, 19, 26, 51, 62, 67);
  ENDS_AT(FRAME_MYSQL,
          "\x05\0\0\0\x03"
          "abcd"
          "\0\0\0\x01"
          "\x01\0\0\0\x01",
          9, 13, 18);
  ENDS_AT(FRAME_REDIS,
          "*2\r\n$3\r\nGET\r\n$4\r\n\r\n*1\r\n"
          "PING\r\n"
          "*1\r\n$4\r\nEXEC\r\n"
          "*1\r\n$0\r\n\r\n"
          "an inline command that is longer than what is kept of a line\r\n",
          23, 29, 43, 53, 115);
}

static void a_full_packet_continues_in_the_next(void **state) {
  (void)state;
  enum { FULL = 0xffffff };
  uint8_t *bytes = calloc(1, FULL + 4 + 5);
  assert_non_null(bytes);
  memset(bytes, 0xff, 3);
  bytes[FULL + 4] = 1;
  struct framer framer = {.protocol = FRAME_MYSQL};
  bool ended = false;
  assert_int_equal(frame_take(&framer, bytes, FULL + 4 + 5, &ended), FULL + 4 + 5);
  assert_true(ended);
  free(bytes);
}

static void a_request_in_pieces_is_cut_as_a_whole(void **state) {
  (void)state;
  struct bed bed = bed_make(FRAME_REDIS);
  int fd = client_connect(&bed);
  tell(&bed, "cut-before-request secret");
  client_say(fd, "*1\r\n$3\r\nabc\r\n*1\r\n$10\r\nse");
  assert_true(echo_hears(&bed, "abc\r"));
  size_t lines = echo_lines(&bed);
  client_hears(fd, "*1\r");
  client_hears(fd, "$3\r");
  client_hears(fd, "abc\r");
  client_hears_nothing(fd);
  client_say(fd, "cretxxxx\r\n");
  assert_int_equal(client_end(fd), CLIENT_RESET);
  assert_true(echo_sees_ends(&bed, 0, 1));
  assert_int_equal(echo_lines(&bed), lines);
  close(fd);
  bed_end(&bed);
}

/* The trigger is armed in the middle of a request that is partly forwarded, and removed in the middle of the next. */
static void held_bytes_are_forwarded_at_pass(void **state) {
  (void)state;
  struct bed bed = bed_make(FRAME_REDIS);
  int fd = client_connect(&bed);
  client_say(fd, "*1\r\n$4\r\n");
  client_hears(fd, "*1\r");
  client_hears(fd, "$4\r");
  tell(&bed, "cut-before-request never");
  client_say(fd, "abcd\r\n*1\r\n");
  client_hears(fd, "abcd\r");
  client_hears_nothing(fd);
  tell(&bed, "pass");
  client_hears(fd, "*1\r");
  client_say(fd, "$4\r\nefgh\r\n");
  client_hears(fd, "$4\r");
  client_hears(fd, "efgh\r");
  close(fd);
  bed_end(&bed);
}

/* ---- Lines ---- */

static void wrong_commands_are_refused_with_a_reason(void **state) {
  (void)state;
  static const char *const wrong[] = {"nonsense",
                                      "delay",
                                      "delay x",
                                      "delay -1",
                                      "delay 99999999999",
                                      "cut now",
                                      "to",
                                      "to nowhere",
                                      "to 127.0.0.1:",
                                      "cut-after-request",
                                      "cut-after-request nth=1",
                                      "cut-after-request nth=x y",
                                      "cut-before-request times=-1 y",
                                      "cut-before-request \\q",
                                      "cut-before-request \\x0",
                                      "hold-request COMMIT",
                                      "hold-request COMMIT soon",
                                      "hold-request 5",
                                      "orphan-request 5"};
  struct bed bed = bed_make(FRAME_RAW);
  char answer[PROXY_LINE];
  for (size_t i = 0; i < COUNT_OF(wrong); i++) {
    if (proxied_say(bed.proxied, wrong[i], answer)) fail_msg("%s was taken", wrong[i]);
    assert_true(strncmp(answer, "error ", 6) == 0);
  }
  char long_line[PROXY_LINE];
  memset(long_line, 'x', sizeof long_line);
  long_line[sizeof long_line - 2] = '\0';
  assert_false(proxied_say(bed.proxied, long_line, answer));
  for (int i = 0; i < 16; i++) tell(&bed, "cut-before-request x");
  assert_false(proxied_say(bed.proxied, "cut-before-request x", answer));
  char why[PROXY_WHY];
  assert_null(proxied_start(&(struct proxy_options){.to = "nowhere"}, why));
  assert_non_null(strstr(why, "nowhere"));
  char to[32];
  snprintf(to, sizeof to, "127.0.0.1:%u", (unsigned)proxied_port(bed.proxied));
  assert_null(proxied_start(&(struct proxy_options){.to = to, .port = proxied_port(bed.proxied)}, why));
  assert_non_null(strstr(why, "in use"));
  bed_end(&bed);
}

/* Reads a line of the program's output. */
static void read_line(int fd, char *line, size_t size) {
  size_t have = 0;
  do {
    assert_true(have < size);
    struct pollfd ready = {.fd = fd, .events = POLLIN};
    assert_int_equal(poll(&ready, 1, LONG_MS), 1);
    assert_int_equal(read(fd, line + have, 1), 1);
  } while (line[have++] != '\n');
  line[have - 1] = '\0';
}

static pid_t start_program(int *in, int *out, char *const argv[]) {
  int input[2], output[2];
  assert_int_equal(pipe2(input, O_CLOEXEC), 0);
  assert_int_equal(pipe2(output, O_CLOEXEC), 0);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, input[0], STDIN_FILENO);
  posix_spawn_file_actions_adddup2(&actions, output[1], STDOUT_FILENO);
  pid_t pid = -1;
  assert_int_equal(posix_spawn(&pid, argv[0], &actions, NULL, argv, environ), 0);
  posix_spawn_file_actions_destroy(&actions);
  close(input[0]);
  close(output[1]);
  *in = input[1];
  *out = output[0];
  return pid;
}

static void the_program_obeys_its_input_and_ends_at_its_end(void **state) {
  (void)state;
  struct bed bed = bed_make(FRAME_RAW);
  char to[32], line[128], *path = strdup(program);
  snprintf(to, sizeof to, "127.0.0.1:%u", (unsigned)proxied_port(bed.proxied));
  int in, out, status;
  pid_t pid = start_program(&in, &out, (char *[]){path, to, NULL});
  read_line(out, line, sizeof line);
  assert_true(strncmp(line, "listening ", 10) == 0);
  assert_in_range(atoi(line + 10), 1, 65535);
  assert_int_equal(write(in, "delay 5\nsta", 11), 11);
  read_line(out, line, sizeof line);
  assert_string_equal(line, "ok");
  assert_int_equal(write(in, "ts\nx\n", 5), 5);
  read_line(out, line, sizeof line);
  assert_string_equal(line, "ok accepted=0 open=0 doomed=0 up=0 down=0 fired=0");
  read_line(out, line, sizeof line);
  assert_string_equal(line, "error no such command: x");
  close(in);
  assert_int_equal(waitpid(pid, &status, 0), pid);
  assert_int_equal(status, 0);
  close(out);
  free(path);
  bed_end(&bed);
}

static void the_program_obeys_a_socket(void **state) {
  (void)state;
  char folder[] = "/tmp/dibs-proxy.XXXXXX", line[128], control[] = "--control", quiet[] = "127.0.0.1:1";
  assert_non_null(mkdtemp(folder));
  struct sockaddr_un at = {.sun_family = AF_UNIX};
  snprintf(at.sun_path, sizeof at.sun_path, "%s/control", folder);
  char *path = strdup(program);
  int in, out, status;
  pid_t pid = start_program(&in, &out, (char *[]){path, control, at.sun_path, quiet, NULL});
  read_line(out, line, sizeof line); /* the socket exists from now on */
  for (int i = 0; i < 3; i++) {
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&at, sizeof at), 0);
    const char *command = i < 2 ? "half-open\n" : "quit\n";
    assert_int_equal(write(fd, command, strlen(command)), strlen(command));
    read_line(fd, line, sizeof line);
    assert_string_equal(line, "ok");
    close(fd);
  }
  assert_int_equal(waitpid(pid, &status, 0), pid);
  assert_int_equal(status, 0);
  assert_int_equal(rmdir(folder), 0); /* its socket is removed */
  close(in);
  close(out);
  free(path);
}

int main(int argc, char *argv[]) {
  if (argc != 2) return 2;
  program = argv[1];
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(bytes_arrive_and_are_counted),
      cmocka_unit_test(a_flood_arrives_whole_and_in_order),
      cmocka_unit_test(ends_pass_after_the_bytes_before_them),
      cmocka_unit_test(a_reset_of_the_client_reaches_the_server),
      cmocka_unit_test(a_server_that_is_down_resets_the_client),
      cmocka_unit_test(delay_applies_to_each_direction_and_keeps_the_order),
      cmocka_unit_test(cut_resets_all_and_new_ones_pass),
      cmocka_unit_test(a_request_cut_before_never_reaches_the_server),
      cmocka_unit_test(a_request_cut_after_is_done_and_not_answered),
      cmocka_unit_test(bytes_after_a_request_cut_after_are_not_forwarded),
      cmocka_unit_test(an_orphan_lands_after_its_client_was_cut),
      cmocka_unit_test(hold_delays_one_request_and_what_follows_it),
      cmocka_unit_test(a_trigger_waits_for_the_nth_match_and_fires_several_times),
      cmocka_unit_test(stall_loses_nothing),
      cmocka_unit_test(half_open_drops_bytes_silently),
      cmocka_unit_test(refuse_refuses_new_connections_until_pass),
      cmocka_unit_test(new_connections_go_to_the_new_address),
      cmocka_unit_test(requests_end_as_the_protocol_defines),
      cmocka_unit_test(a_full_packet_continues_in_the_next),
      cmocka_unit_test(a_request_in_pieces_is_cut_as_a_whole),
      cmocka_unit_test(held_bytes_are_forwarded_at_pass),
      cmocka_unit_test(wrong_commands_are_refused_with_a_reason),
      cmocka_unit_test(the_program_obeys_its_input_and_ends_at_its_end),
      cmocka_unit_test(the_program_obeys_a_socket),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
