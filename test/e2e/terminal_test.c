/* SPDX-License-Identifier: MIT */
/*
 * `dibs run` on a terminal, under a shell with job control.  Each scenario is a process that acts as the shell: the
 * leader of a session on a pseudo-terminal, with dibs as a job in a process group of its own. The test writes
 * keystrokes to the master side. TAP.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

enum { DEADLINE_MS = 20000, STEP_MS = 10, SEEN = 65536 };

static const char *dibs;
static char folder[] = "/tmp/dibs-terminal.XXXXXX";

/* ---- The shell of one scenario ---- */

static int master, slave;
static char seen[SEEN]; /* what the terminal showed */
static size_t seen_length;

static _Noreturn void fail(const char *format, ...) __attribute__((format(printf, 1, 2)));
static _Noreturn void fail(const char *format, ...) {
  va_list args;
  va_start(args, format);
  printf("#   ");
  vprintf(format, args);
  va_end(args);
  printf("\n#   the terminal showed: ");
  for (size_t i = 0; i < seen_length; i++) putchar(seen[i] == '\n' || seen[i] == '\r' ? '|' : seen[i]);
  putchar('\n');
  fflush(stdout);
  exit(1);
}

static void read_master(int ms) {
  struct pollfd fd = {master, POLLIN, 0};
  if (poll(&fd, 1, ms) <= 0 || seen_length + 1 >= sizeof seen) return;
  ssize_t got = read(master, seen + seen_length, sizeof seen - 1 - seen_length);
  if (got > 0) seen_length += (size_t)got;
  seen[seen_length] = '\0';
}

static void wait_for(const char *words) {
  for (int ms = 0; strstr(seen, words) == NULL; ms += STEP_MS) {
    if (ms > DEADLINE_MS) fail("never saw '%s'", words);
    read_master(STEP_MS);
  }
}

static void type(const char *keys) {
  if (write(master, keys, strlen(keys)) != (ssize_t)strlen(keys)) fail("can't type: %s", strerror(errno));
}

static void begin_shell(void) {
  struct winsize size = {24, 80, 0, 0};
  setsid();
  master = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
  if (master < 0 || grantpt(master) != 0 || unlockpt(master) != 0) fail("no pseudo-terminal: %s", strerror(errno));
  slave = open(ptsname(master), O_RDWR | O_CLOEXEC);
  if (slave < 0 || tcgetpgrp(slave) != getpgrp()) fail("no controlling terminal: %s", strerror(errno));
  ioctl(master, TIOCSWINSZ, &size);
  /* As in an interactive shell. */
  struct sigaction ignore = {.sa_handler = SIG_IGN};
  sigaction(SIGTTOU, &ignore, NULL);
  sigaction(SIGTTIN, &ignore, NULL);
  sigaction(SIGTSTP, &ignore, NULL);
  sigaction(SIGINT, &ignore, NULL);
}

/* A job: `out` is where its standard output goes, -1 for the terminal. */
static pid_t start(bool foreground, int out, const char *const *words) {
  pid_t pid = fork();
  if (pid < 0) fail("fork: %s", strerror(errno));
  if (pid == 0) {
    struct sigaction plain = {.sa_handler = SIG_DFL};
    setpgid(0, 0);
    if (foreground) tcsetpgrp(slave, getpid());
    const int signals[] = {SIGTTOU, SIGTTIN, SIGTSTP, SIGINT};
    for (size_t i = 0; i < sizeof signals / sizeof *signals; i++) sigaction(signals[i], &plain, NULL);
    dup2(slave, 0);
    dup2(out >= 0 ? out : slave, 1);
    dup2(slave, 2);
    execv(words[0], (char *const *)(uintptr_t)words);
    _exit(127);
  }
  setpgid(pid, pid);
  if (foreground) tcsetpgrp(slave, pid);
  return pid;
}

/* Waits until the job stops or ends, and takes the terminal back, as shells do. */
static int wait_job(pid_t job) {
  int status;
  for (int ms = 0;; ms += STEP_MS) {
    pid_t pid = waitpid(job, &status, WNOHANG | WUNTRACED);
    if (pid == job) break;
    if (ms > DEADLINE_MS) fail("the job neither stopped nor ended");
    read_master(STEP_MS);
  }
  read_master(STEP_MS);
  tcsetpgrp(slave, getpgrp());
  return status;
}

static void continue_job(pid_t job, bool foreground) {
  if (foreground) tcsetpgrp(slave, job);
  kill(-job, SIGCONT);
}

static void wait_foreground(pid_t not_this) {
  for (int ms = 0; tcgetpgrp(slave) == not_this; ms += STEP_MS) {
    if (ms > DEADLINE_MS) fail("the terminal still belongs to %d", (int)not_this);
    read_master(STEP_MS);
  }
}

#define DIBS_RUN(script)                                                                                               \
  (const char *const[]) {                                                                                              \
    dibs, "run", "name", "--", "/bin/sh", "-c", script, NULL                                                           \
  }

static void expect_exit(int status, int code) {
  if (!WIFEXITED(status) || WEXITSTATUS(status) != code) fail("status %#x instead of exit %d", (unsigned)status, code);
}

/* ---- Scenarios ---- */

static void command_has_the_terminal(void) {
  pid_t job = start(true, -1, DIBS_RUN("read -r line && echo \"got $line\""));
  wait_foreground(job);
  type("words\n");
  wait_for("got words");
  expect_exit(wait_job(job), 0);
}

static void terminal_is_taken_back(void) {
  pid_t job = start(true, -1, DIBS_RUN("exit 3"));
  int status;
  /* Does not use wait_job, which takes the terminal back itself. */
  while (waitpid(job, &status, 0) < 0 && errno == EINTR) continue;
  if (tcgetpgrp(slave) != job) fail("the terminal belongs to %d, not to the job", (int)tcgetpgrp(slave));
  expect_exit(status, 3);
}

static void interrupt_ends_command_and_dibs(void) {
  pid_t job = start(true, -1, DIBS_RUN("echo ready; exec sleep 60"));
  wait_for("ready");
  type("\x03");
  int status = wait_job(job);
  if (!WIFSIGNALED(status) || WTERMSIG(status) != SIGINT) fail("status %#x, not ended by INT", (unsigned)status);
}

static void an_interrupt_that_the_command_handles_does_not_end_it(void) {
  pid_t job = start(true, -1, DIBS_RUN("trap 'exit 5' INT; echo ready; while :; do sleep 0.05; done"));
  wait_for("ready");
  type("\x03");
  expect_exit(wait_job(job), 5);
}

static void stopped_by_the_terminal_and_continued(void) {
  pid_t job = start(true, -1, DIBS_RUN("echo ready; read -r line; echo \"got $line\"; exit 4"));
  wait_for("ready");
  type("\x1a");
  int status = wait_job(job);
  if (!WIFSTOPPED(status)) fail("status %#x, not stopped", (unsigned)status);
  continue_job(job, true);
  wait_foreground(job);
  type("again\n");
  wait_for("got again");
  expect_exit(wait_job(job), 4);
}

static void stopped_and_continued_in_the_background(void) {
  /* Not a loop of short commands: a shell that is just starting a command may be unable to stop. */
  if (mkfifo("go", 0600) != 0) fail("no pipe: %s", strerror(errno));
  pid_t job = start(true, -1, DIBS_RUN("echo ready; read -r line < go; exit 6"));
  wait_for("ready");
  type("\x1a");
  if (!WIFSTOPPED(wait_job(job))) fail("not stopped");
  continue_job(job, false);
  int go = open("go", O_WRONLY);
  if (write(go, "\n", 1) != 1 || close(go) != 0) fail("no pipe: %s", strerror(errno));
  expect_exit(wait_job(job), 6);
  unlink("go");
}

static void a_background_command_that_reads_stops_until_it_is_in_the_foreground(void) {
  pid_t job = start(false, -1, DIBS_RUN("read -r line; echo \"got $line\""));
  int status = wait_job(job);
  if (!WIFSTOPPED(status)) fail("status %#x, not stopped", (unsigned)status);
  continue_job(job, true);
  type("late\n");
  wait_for("got late");
  expect_exit(wait_job(job), 0);
}

static void in_a_pipeline_the_command_gets_the_terminal_when_it_reads(void) {
  int ends[2];
  if (pipe(ends) != 0) fail("pipe: %s", strerror(errno));
  pid_t job = start(true, ends[1], DIBS_RUN("echo begun >&2; read -r line; echo \"got $line\" >&2"));
  wait_for("begun");
  type("piped\n");
  wait_for("got piped");
  expect_exit(wait_job(job), 0);
}

static void a_command_that_is_stopped_past_its_ttl_ends(void) {
  const char *const words[] = {dibs, "run", "name", "--ttl", "1s", "--", "/bin/sh", "-c", "echo ready; exec sleep 60",
                               NULL};
  pid_t job = start(true, -1, words);
  wait_for("ready");
  type("\x1a");
  if (!WIFSTOPPED(wait_job(job))) fail("not stopped");
  pid_t next = start(true, -1, DIBS_RUN("echo next holds"));
  wait_for("next holds");
  expect_exit(wait_job(next), 0);
  continue_job(job, true);
  expect_exit(wait_job(job), 122);
  wait_for("could not renew it in time");
}

static void a_waiter_at_a_terminal_sees_the_holder(void) {
  pid_t first = start(false, -1, DIBS_RUN("while [ ! -e free ]; do sleep 0.05; done"));
  const char *const words[] = {dibs, "ls", NULL};
  for (int tries = 0; strstr(seen, "holds") == NULL; tries++) {
    if (tries > 100) fail("the first never held the name");
    expect_exit(wait_job(start(true, -1, words)), 0);
  }
  pid_t second = start(true, -1, DIBS_RUN("echo my turn"));
  wait_for("waiting for 'name', held by ");
  if (close(open("free", O_CREAT | O_WRONLY, 0600)) != 0) fail("no file: %s", strerror(errno));
  wait_for("my turn");
  expect_exit(wait_job(second), 0);
  expect_exit(wait_job(first), 0);
  unlink("free");
}

static void watch_redraws_changes(void) {
  const char *const watch[] = {dibs, "watch", "--interval", "50ms", NULL};
  const char *const lock[] = {dibs, "lock", "seen", "--ttl", "1m", "--owner", "the owner", NULL};
  pid_t job = start(true, -1, watch);
  wait_for("no name is held");
  pid_t other = fork();
  if (other == 0) {
    dup2(open("/dev/null", O_WRONLY), 1);
    execv(lock[0], (char *const *)(uintptr_t)lock);
    _exit(127);
  }
  wait_for("the owner");
  wait_for("59."); /* the remaining time is updated while nothing else changes */
  wait_for("58.");
  type("\x03");
  expect_exit(wait_job(job), 128 + SIGINT);
}

static void hang_up_reaches_the_command(void) {
  pid_t job = start(true, -1, DIBS_RUN("trap 'echo hung >hung; exit 0' HUP; echo ready; while :; do sleep 0.05; done"));
  wait_for("ready");
  kill(job, SIGHUP);
  wait_job(job);
  struct stat st;
  if (stat("hung", &st) != 0) fail("the command saw no hang-up");
}

/* ---- All of them ---- */

static const struct {
  const char *name;
  void (*play)(void);
} scenarios[] = {
#define SCENARIO(name)                                                                                                 \
  { #name, name }
    SCENARIO(command_has_the_terminal),
    SCENARIO(terminal_is_taken_back),
    SCENARIO(interrupt_ends_command_and_dibs),
    SCENARIO(an_interrupt_that_the_command_handles_does_not_end_it),
    SCENARIO(stopped_by_the_terminal_and_continued),
    SCENARIO(stopped_and_continued_in_the_background),
    SCENARIO(a_background_command_that_reads_stops_until_it_is_in_the_foreground),
    SCENARIO(in_a_pipeline_the_command_gets_the_terminal_when_it_reads),
    SCENARIO(a_command_that_is_stopped_past_its_ttl_ends),
    SCENARIO(a_waiter_at_a_terminal_sees_the_holder),
    SCENARIO(watch_redraws_changes),
    SCENARIO(hang_up_reaches_the_command),
};
enum { SCENARIOS = sizeof scenarios / sizeof *scenarios };

int main(void) {
  dibs = getenv("DIBS");
  if (dibs == NULL || mkdtemp(folder) == NULL || chdir(folder) != 0) {
    printf("Bail out! DIBS is not set, or there is no folder\n");
    return 1;
  }
  char uri[64];
  snprintf(uri, sizeof uri, "sqlite://%s/dibs.db", folder);
  setenv("DIBS_STORE", uri, 1);
  printf("1..%d\n", (int)SCENARIOS);
  int bad = 0;
  for (size_t i = 0; i < SCENARIOS; i++) {
    fflush(stdout);
    pid_t shell = fork();
    if (shell == 0) {
      begin_shell();
      scenarios[i].play();
      exit(0);
    }
    int status = -1;
    while (shell > 0 && waitpid(shell, &status, 0) < 0 && errno == EINTR) continue;
    bad += status != 0;
    printf("%sok %zu - %s\n", status == 0 ? "" : "not ", i + 1, scenarios[i].name);
  }
  const char *const left[] = {"dibs.db", "dibs.db-wal", "dibs.db-shm", "dibs.db-dibs", "hung"};
  for (size_t i = 0; i < sizeof left / sizeof *left; i++) unlink(left[i]);
  if (chdir("/") == 0) rmdir(folder);
  return bad == 0 ? 0 : 1;
}
