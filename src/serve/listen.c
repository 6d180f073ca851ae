/* SPDX-License-Identifier: MIT */
#include "serve/listen.h"
#include "base/text.h"
#include "handle/handle.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

static int listen_unix(const char *path, dibs_error *error) {
  struct sockaddr_un address = {.sun_family = AF_UNIX};
  struct stat st;
  int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (strlen(path) >= sizeof address.sun_path) {
    dibs__fail(error, DIBS_INVALID, "the path of the socket, %s, is longer than %zu bytes", path,
               sizeof address.sun_path - 1);
    goto fail;
  }
  strncpy(address.sun_path, path, sizeof address.sun_path - 1);
  if (fd >= 0 && stat(path, &st) == 0 && S_ISSOCK(st.st_mode)) {
    /* Left behind by a daemon that was killed?  A living one takes the connection, or is too busy for it. */
    if (connect(fd, (struct sockaddr *)&address, sizeof address) == 0 || errno == EAGAIN) {
      dibs__fail(error, DIBS_INVALID, "another program listens at %s", path);
      goto fail;
    }
    if (errno == ECONNREFUSED) unlink(path);
  }
  if (fd >= 0 && bind(fd, (struct sockaddr *)&address, sizeof address) == 0 && listen(fd, SOMAXCONN) == 0) return fd;
  dibs__fail(error, DIBS_INVALID, "cannot listen at %s: %s", path, strerror(errno));
fail:
  if (fd >= 0) close(fd);
  return -1;
}

static bool is_loopback(const struct sockaddr *address) {
  if (address->sa_family == AF_INET6) return IN6_IS_ADDR_LOOPBACK(&((const struct sockaddr_in6 *)address)->sin6_addr);
  return ntohl(((const struct sockaddr_in *)address)->sin_addr.s_addr) >> 24 == 127;
}

static int listen_at(const struct addrinfo *to) {
  int fd = socket(to->ai_family, to->ai_socktype | SOCK_NONBLOCK | SOCK_CLOEXEC, to->ai_protocol), on = 1;
  if (fd < 0) return -1;
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (to->ai_family == AF_INET6) setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &on, sizeof on);
  if (bind(fd, to->ai_addr, to->ai_addrlen) == 0 && listen(fd, SOMAXCONN) == 0) return fd;
  int kept = errno;
  close(fd);
  errno = kept;
  return -1;
}

/* Other machines can reach every address but loopback.  A service has no tokens: Authorization is for what is behind
 * it. */
static bool is_guarded(const struct serve_config *config, bool service) {
  return config && config->certificate && (config->tokens || (service && config->client_ca));
}

static void refuse_public(const struct serve_config *config, const char *address, bool service, dibs_error *error) {
  if (!config)
    dibs__fail(error, DIBS_INVALID, "%s is not a loopback address: what is served there is for this machine alone",
               address);
  else
    dibs__fail(error, DIBS_INVALID,
               "%s is not a loopback address: other machines need %s and TLS; give %s, --cert and --key", address,
               service ? "certificates" : "tokens", service ? "--client-ca" : "--tokens");
}

/* "127.0.0.1:7380", "[::1]:7380". */
static int listen_tcp(const struct serve_config *config, bool service, const char *text, dibs_error *error) {
  char host[256];
  const char *colon = strrchr(text, ':');
  size_t length = colon ? (size_t)(colon - text) : 0;
  struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE | AI_NUMERICSERV}, *found = NULL;
  bool bracketed = length >= 2 && text[0] == '[' && text[length - 1] == ']';
  if (length == 0 || length >= sizeof host) {
    dibs__fail(error, DIBS_INVALID, "%s is not an address: write HOST:PORT, [HOST]:PORT or unix:PATH", text);
    return -1;
  }
  memcpy(host, text + bracketed, length - 2 * bracketed);
  host[length - 2 * bracketed] = '\0';
  if (strspn(colon + 1, "0123456789") != strlen(colon + 1) || strtoul(colon + 1, NULL, 10) > UINT16_MAX) {
    dibs__fail(error, DIBS_INVALID, "%s is not an address: the port is a number up to 65535", text);
    return -1;
  }
  int failure = getaddrinfo(host, colon + 1, &hints, &found);
  bool open = failure == 0 && !is_guarded(config, service) && !is_loopback(found->ai_addr);
  int fd = failure == 0 && !open ? listen_at(found) : -1;
  if (open)
    refuse_public(config, text, service, error);
  else if (fd < 0)
    dibs__fail(error, DIBS_INVALID, "cannot listen at %s: %s", text, failure ? gai_strerror(failure) : strerror(errno));
  if (failure == 0) freeaddrinfo(found);
  return fd;
}

int dibs__socket_listen(const struct serve_config *config, bool service, const char *address, bool *local,
                        dibs_error *error) {
  *local = strncmp(address, "unix:", 5) == 0;
  return *local ? listen_unix(address + 5, error) : listen_tcp(config, service, address, error);
}

/* ---- Sockets that systemd has made ---- */

enum { FIRST_PASSED = 3 }; /* sd_listen_fds(3) */

int dibs__sockets_count(void) {
  const char *pid = getenv("LISTEN_PID"), *count = getenv("LISTEN_FDS");
  if (!pid || !count || strtoll(pid, NULL, 10) != getpid()) return 0;
  long found = strtol(count, NULL, 10);
  return found < 0 ? 0 : found > SERVE_ADDRESSES_MAX ? SERVE_ADDRESSES_MAX + 1 : (int)found;
}

/* A stream socket that listens, at an address that the configuration allows. */
static bool take_passed(const struct serve_config *config, bool service, int fd, bool *local, dibs_error *error) {
  struct sockaddr_storage address = {0};
  socklen_t size = sizeof address, int_size = sizeof(int);
  int type = 0, listens = 0;
  char host[64] = "", port[8] = "", text[80];
  if (getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &int_size) != 0 || type != SOCK_STREAM ||
      getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &int_size) != 0 || !listens ||
      getsockname(fd, (struct sockaddr *)&address, &size) != 0) {
    dibs__fail(error, DIBS_INVALID, "descriptor %d of LISTEN_FDS is not a stream socket that listens", fd);
    return false;
  }
  *local = address.ss_family == AF_UNIX;
  if (!*local && address.ss_family != AF_INET && address.ss_family != AF_INET6) {
    dibs__fail(error, DIBS_INVALID, "descriptor %d of LISTEN_FDS is neither a TCP nor a Unix socket", fd);
    return false;
  }
  if (!*local && !is_guarded(config, service) && !is_loopback((struct sockaddr *)&address)) {
    getnameinfo((struct sockaddr *)&address, size, host, sizeof host, port, sizeof port,
                NI_NUMERICHOST | NI_NUMERICSERV);
    struct dibs__text to;
    dibs__text_begin(&to, text, sizeof text);
    dibs__text_addf(&to, "%s port %s", host, port);
    refuse_public(config, text, service, error);
    return false;
  }
  return fcntl(fd, F_SETFD, FD_CLOEXEC) == 0 && fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK) == 0;
}

bool dibs__sockets_passed(const struct serve_config *config, bool service, struct passed_sockets *passed,
                          dibs_error *error) {
  int count = dibs__sockets_count();
  *passed = (struct passed_sockets){0};
  if (count > SERVE_ADDRESSES_MAX) {
    dibs__fail(error, DIBS_INVALID, "LISTEN_FDS: %d sockets at most", SERVE_ADDRESSES_MAX);
    return false;
  }
  for (int i = 0; i < count; i++) {
    passed->fd[i] = FIRST_PASSED + i;
    if (!take_passed(config, service, passed->fd[i], &passed->local[i], error)) return false;
  }
  passed->count = (size_t)count;
  return true;
}
