/* SPDX-License-Identifier: MIT */
#include "lab/own.h"
#include "base/text.h"
#include "lab/locks.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum { READY_MS = 20000, PORTS = 5 /* another process may take a free port first */, NOT_INSTALLED = 127 };

/* ---- A folder ---- */

bool dibs__lab_folder_make(char folder[LAB_FOLDER_MAX]) {
  const char *temporary = secure_getenv("TMPDIR");
  bool plain =
      temporary && temporary[0] == '/' && strlen(temporary) < LAB_FOLDER_MAX - 32 && !strpbrk(temporary, "%?#& \"'\\,");
  snprintf(folder, LAB_FOLDER_MAX, "%s/dibs-lab-XXXXXX", plain ? temporary : "/tmp");
  if (mkdtemp(folder)) return true;
  folder[0] = '\0';
  return false;
}

void dibs__lab_folder_remove(const char *folder) {
  if (!folder[0]) return;
  DIR *dir = opendir(folder);
  for (struct dirent *entry; dir && (entry = readdir(dir));) unlinkat(dirfd(dir), entry->d_name, 0);
  if (dir) closedir(dir);
  rmdir(folder);
}

/* ---- A Redis ---- */

/* A port that is free now; 0: none. */
static uint16_t free_port(void) {
  struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  socklen_t size = sizeof at;
  int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  bool fine =
      fd >= 0 && bind(fd, (struct sockaddr *)&at, size) == 0 && getsockname(fd, (struct sockaddr *)&at, &size) == 0;
  if (fd >= 0) close(fd);
  return fine ? ntohs(at.sin_port) : 0;
}

/* The password is in a file of the folder: every user can see arguments, and reach the loopback interface. */
static bool write_config(const struct lab_own_redis *own, char *path, size_t size) {
  snprintf(path, size, "%s/redis.conf", own->folder);
  int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  FILE *file = fd >= 0 ? fdopen(fd, "w") : NULL;
  if (!file) {
    if (fd >= 0) close(fd);
    return false;
  }
  fprintf(file,
          "bind 127.0.0.1\nport %u\nrequirepass %s\ndir %s\nlogfile %s/redis.log\nsave \"\"\nappendonly no\n"
          "maxmemory-policy noeviction\ndaemonize no\n",
          own->port, own->password, own->folder, own->folder);
  bool bad = ferror(file) != 0;
  return fclose(file) == 0 && !bad;
}

int dibs__lab_own_redis_helper(int argc, char **argv) {
  if (argc < 1) return 1;
  struct sigaction ignore = {.sa_handler = SIG_IGN};
  sigaction(SIGINT, &ignore, NULL); /* of the keyboard: the lab ends it */
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  static const char *const programs[] = {"redis-server", "valkey-server"};
  for (size_t i = 0; i < sizeof programs / sizeof *programs; i++) {
    char *program = strdup(programs[i]);
    if (program) execvp(program, (char *[]){program, argv[0], NULL});
    free(program);
  }
  return NOT_INSTALLED;
}

enum answer { ANSWERS, ENDED, MISSING, SILENT };

static enum answer await_answer(struct lab *lab, struct lab_own_redis *own) {
  dibs__tick by = dibs__tick_add_ms(dibs__tick_now(), READY_MS);
  char why[200], text[100];
  int status;
  while (dibs__tick_before(dibs__tick_now(), by) && !dibs__lab_ended(lab)) {
    if (waitpid(own->pid, &status, WNOHANG) == own->pid) {
      own->pid = 0;
      return WIFEXITED(status) && WEXITSTATUS(status) == NOT_INSTALLED ? MISSING : ENDED;
    }
    const char *ping[] = {"PING"};
    struct lab_redis *redis = dibs__lab_redis_open(own->uri, why, sizeof why);
    bool fine = redis && dibs__lab_redis_run(redis, ping, 1, text, sizeof text) == LAB_REDIS_DONE;
    dibs__lab_redis_close(redis);
    if (fine) return ANSWERS;
    dibs__nap_ms(20);
  }
  return SILENT;
}

static enum answer launch(struct lab *lab, struct lab_own_redis *own) {
  char verb[] = "redis", path[LAB_FOLDER_MAX + 16];
  snprintf(own->uri, sizeof own->uri, "redis://:%s@127.0.0.1:%u/0", own->password, own->port);
  if (!write_config(own, path, sizeof path)) {
    dibs__lab_fail(lab, "cannot write %s: %s", path, strerror(errno));
    return SILENT;
  }
  if (!dibs__lab_spawn(NULL, (char *[]){verb, path, NULL}, &own->pid, lab->why, sizeof lab->why)) return SILENT;
  return await_answer(lab, own);
}

static bool explain(struct lab *lab, enum answer answer) {
  if (answer == MISSING)
    return dibs__lab_fail(lab, "this experiment starts a Redis of its own, and the program redis-server is not "
                               "installed: install it (Debian: apt install redis-server) or put it into PATH");
  if (answer == ENDED) return dibs__lab_fail(lab, "the lab's own redis-server ended at once");
  if (!lab->why[0]) dibs__lab_fail(lab, "the lab's own redis-server did not answer for %d s", READY_MS / 1000);
  return false;
}

bool dibs__lab_own_redis_start(struct lab *lab, struct lab_own_redis *own) {
  enum answer answer = ENDED;
  lab->why[0] = '\0';
  if (!dibs__lab_redis_built())
    return dibs__lab_fail(lab, "this experiment needs a Redis, and this dibs-lab was built without hiredis");
  if (own->port) {
    answer = launch(lab, own);
    return answer == ANSWERS || explain(lab, answer);
  }
  if (!dibs__lab_folder_make(own->folder))
    return dibs__lab_fail(lab, "cannot create a folder for a Redis: %s", strerror(errno));
  uint8_t drawn[16];
  dibs__random(drawn, sizeof drawn);
  dibs__hex_write(drawn, own->password);
  for (int i = 0; i < PORTS && answer == ENDED; i++) {
    own->port = free_port();
    answer = launch(lab, own);
  }
  return answer == ANSWERS || explain(lab, answer);
}

void dibs__lab_own_redis_kill(struct lab_own_redis *own) {
  if (!own->pid) return;
  kill(own->pid, SIGKILL);
  while (waitpid(own->pid, NULL, 0) < 0 && errno == EINTR) continue;
  own->pid = 0;
}

void dibs__lab_own_redis_end(struct lab_own_redis *own) {
  dibs__lab_own_redis_kill(own);
  dibs__lab_folder_remove(own->folder);
  own->folder[0] = '\0';
}

dibs_status dibs__lab_own_tiers_open(const struct lab_own_redis *own, dibs_store **store, dibs_error *error) {
  char uri[LAB_FOLDER_MAX + 400];
  /* Shorter than the defaults, so that a failure and a return are visible within seconds. */
  snprintf(uri, sizeof uri,
           "%s,sqlite://%s/anchor.db?tiers.dwell=1000&tiers.timeout=300&tiers.wait=300&tiers.window=10", own->uri,
           own->folder);
  return dibs_open(uri, NULL, store, error);
}
