/* SPDX-License-Identifier: MIT */
#include "serve/notify.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

void dibs__notify_send(const char *state) {
  struct sockaddr_un address = {.sun_family = AF_UNIX};
  const char *path = getenv("NOTIFY_SOCKET");
  size_t length = path ? strlen(path) : 0;
  if (length < 2 || length >= sizeof address.sun_path || (*path != '/' && *path != '@')) return;
  memcpy(address.sun_path, path, length);
  if (*path == '@') address.sun_path[0] = '\0'; /* an abstract socket */
  int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return;
  socklen_t size = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + length);
  (void)!sendto(fd, state, strlen(state), MSG_NOSIGNAL | MSG_DONTWAIT, (struct sockaddr *)&address, size);
  close(fd);
}

void dibs__notify_open(struct notify *notify) {
  const char *usec = getenv("WATCHDOG_USEC"), *pid = getenv("WATCHDOG_PID");
  *notify = (struct notify){0};
  if (!usec || (pid && strtoll(pid, NULL, 10) != getpid())) return;
  long long ms = strtoll(usec, NULL, 10) / 1000 / 2; /* twice as often as needed, as sd_watchdog_enabled(3) advises */
  if (ms > 0) notify->watchdog_ms = ms;
}

int64_t dibs__notify_tick(struct notify *notify, dibs__tick now, int64_t most_ms) {
  if (notify->watchdog_ms == 0) return most_ms;
  if (!dibs__tick_before(now, notify->next)) {
    dibs__notify_send("WATCHDOG=1");
    notify->next = dibs__tick_add_ms(now, notify->watchdog_ms);
  }
  int64_t left_ms = dibs__tick_left_ms(now, notify->next);
  return left_ms < most_ms ? left_ms : most_ms;
}
