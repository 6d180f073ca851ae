/* SPDX-License-Identifier: MIT */
#include "serve/log.h"
#include "handle/handle.h"
#include "serve/server.h"
#include "serve/trace.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum {
  LINES_MAX = 1 << 20, /* bytes for a reader that is behind; later lines are dropped and counted */
  PIPE_PART = 4096     /* a pipe or socket that is writable takes as much without waiting */
};

/* ---- The file ---- */

/* -1 and errno. */
static int open_log(const char *path, bool *regular) {
  struct stat st;
  int fd = strcmp(path, "-") == 0 ? fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 3)
                                  : open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NOCTTY, 0640);
  if (fd >= 0) *regular = fstat(fd, &st) == 0 && S_ISREG(st.st_mode);
  return fd;
}

dibs_status dibs__log_open(struct server *server, dibs_error *error) {
  struct log *log = &server->log;
  log->fd = -1;
  if (!server->config.access_log) return DIBS_OK;
  log->fd = open_log(server->config.access_log, &log->regular);
  if (log->fd >= 0) return DIBS_OK;
  return dibs__fail(error, DIBS_INVALID, "cannot write the access log %s: %s", server->config.access_log,
                    strerror(errno));
}

void dibs__log_reload(struct server *server) {
  struct log *log = &server->log;
  const char *path = server->config.access_log;
  bool regular = false;
  if (log->fd < 0 || strcmp(path, "-") == 0) return;
  dibs__log_flush(server);
  int fd = open_log(path, &regular);
  if (fd < 0) {
    server->config.note("the access log stays the file that it was: cannot open %s: %s", path, strerror(errno));
    return;
  }
  close(log->fd);
  log->fd = fd;
  log->regular = regular;
}

void dibs__log_close(struct server *server) {
  struct log *log = &server->log;
  if (log->fd < 0) return;
  dibs__log_flush(server);
  dibs__json_free(&log->lines);
  close(log->fd);
  log->fd = -1;
}

/* ---- Writing ---- */

static bool is_writable(const struct log *log) {
  struct pollfd fd = {.fd = log->fd, .events = POLLOUT};
  return log->regular || (poll(&fd, 1, 0) == 1 && (fd.revents & POLLOUT));
}

static void report_failure(struct server *server) {
  if (!server->log.failing) server->config.note("cannot write the access log: %s", strerror(errno));
  server->log.failing = true;
}

void dibs__log_flush(struct server *server) {
  struct log *log = &server->log;
  size_t done = 0;
  while (log->fd >= 0 && done < log->lines.length && is_writable(log)) {
    size_t length = log->lines.length - done;
    if (!log->regular && length > PIPE_PART) length = PIPE_PART;
    ssize_t written = write(log->fd, log->lines.text + done, length);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) {
      report_failure(server);
      done = log->lines.length; /* they are lost: a full disk must not fill the memory, too */
      break;
    }
    log->failing = false;
    done += (size_t)written;
  }
  if (done == 0) return;
  memmove(log->lines.text, log->lines.text + done, log->lines.length - done);
  log->lines.length -= done;
}

/* ---- Lines ---- */

/* "2026-11-23T17:59:07.123Z" */
static void write_time(struct dibs__json *j, int64_t ms) {
  char seconds[32], text[48];
  struct tm tm;
  time_t t = (time_t)(ms / 1000);
  gmtime_r(&t, &tm);
  strftime(seconds, sizeof seconds, "%Y-%m-%dT%H:%M:%S", &tm);
  snprintf(text, sizeof text, "%s.%03dZ", seconds, (int)(ms % 1000));
  dibs__json_text(j, "time", text);
}

static void write_client(struct dibs__json *j, const struct request *r) {
  const union MHD_ConnectionInfo *info = MHD_get_connection_info(r->connection, MHD_CONNECTION_INFO_CLIENT_ADDRESS);
  const struct sockaddr *address = info ? info->client_addr : NULL;
  char text[INET6_ADDRSTRLEN] = "unix";
  if (address && address->sa_family == AF_INET)
    inet_ntop(AF_INET, &((const struct sockaddr_in *)address)->sin_addr, text, sizeof text);
  else if (address && address->sa_family == AF_INET6)
    inet_ntop(AF_INET6, &((const struct sockaddr_in6 *)address)->sin6_addr, text, sizeof text);
  dibs__json_text(j, "client", text);
}

static const char *method_of(const struct request *r) {
  static const char *const words[METHOD_COUNT] = {"GET", "POST", "PUT", "PATCH", "DELETE"};
  return r->method < METHOD_COUNT ? words[r->method] : NULL;
}

/* A service has no routes.  Without the query, which may have secrets. */
static void write_path(struct dibs__json *j, const struct request *r) {
  if (r->target) dibs__json_bytes(j, "path", r->target, strcspn(r->target, "?"));
}

static void write_dropped(struct log *log) {
  dibs__json_open(&log->lines, NULL, '{');
  write_time(&log->lines, dibs__wall_ms());
  dibs__json_uint(&log->lines, "dropped", log->dropped);
  dibs__json_close(&log->lines, '}');
  log->dropped = 0;
}

void dibs__log_request(const struct request *r) {
  struct log *log = &r->server->log;
  struct dibs__json *j = &log->lines;
  if (log->fd < 0) return;
  if (j->length > LINES_MAX || j->failed) {
    if (j->failed) dibs__json_free(j);
    log->dropped++;
    return;
  }
  if (log->dropped > 0) write_dropped(log);
  dibs__tick end = r->queued ? r->queued_at : dibs__tick_now();
  char trace[TRACE_LENGTH + 1];
  dibs__json_open(j, NULL, '{');
  write_time(j, dibs__wall_ms());
  write_client(j, r);
  dibs__json_text(j, "token", r->token ? dibs__auth_label(r) : NULL);
  dibs__json_text(j, "method", method_of(r));
  if (r->server->service)
    write_path(j, r);
  else
    dibs__json_text(j, "route", r->route ? r->route->path : NULL);
  dibs__json_text(j, "name", r->param[0]);
  dibs__json_known(j, "status", r->answer.status, r->queued);
  dibs__json_real(j, "duration_ms", (double)(end.ns - r->began.ns) / (double)DIBS__NS_PER_MS);
  dibs__json_uint(j, "bytes", r->answer_bytes);
  if (r->outcome) dibs__json_text(j, "outcome", r->outcome);
  if (dibs__trace_of(r, trace)) dibs__json_text(j, "trace", trace);
  dibs__json_close(j, '}');
}
