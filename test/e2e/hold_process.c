/* SPDX-License-Identifier: MIT */
/*
 * hold_process PID: stops a process until this one ends, so that no SIGCONT continues it. Prints a line when the
 * process is stopped. 77: tracing is not permitted here.
 */
#include <stdio.h>
#include <stdlib.h>
#include <sys/ptrace.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

int main(int argc, char **argv) {
  int status;
  pid_t pid = argc == 2 ? (pid_t)strtol(argv[1], NULL, 10) : 0;
  if (pid <= 0 || ptrace(PTRACE_SEIZE, pid, NULL, NULL) != 0) return 77;
  if (ptrace(PTRACE_INTERRUPT, pid, NULL, NULL) != 0 || waitpid(pid, &status, 0) != pid) return 1;
  puts("held");
  fflush(stdout);
  /* Waits until it is killed. */
  while (waitpid(pid, &status, 0) == pid && WIFSTOPPED(status)) continue;
  return 0;
}
