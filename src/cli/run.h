/* SPDX-License-Identifier: MIT */
#ifndef DIBS_CLI_RUN_H
#define DIBS_CLI_RUN_H
/*
 * Processes, their trees, signals as descriptors, the terminal: the parts of Linux that only `dibs run` needs.
 */
#include "base/port.h"
#include "cli/cli.h"

#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

/* ---- Starting (process.c) ---- */

/* fork() of a process that has one thread.  -1 and errno. */
pid_t dibs__cli_fork(void);

struct cli_spawn {
  char *const *argv;
  const sigset_t *mask; /* of the child */
  int tty;              /* given to the child before it runs; -1: not */
  int in, out, err;     /* its standard streams; -1: ours */
};
/* Starts argv in a process group of its own, found by PATH as execvp does.  0 and *pid, or the errno of exec.  The
 * kernel kills the started process (SIGKILL) when the calling thread ends; a set-user-ID or set-capability program and
 * the processes that it starts are exempt from that.  The caller has one thread. */
int dibs__cli_spawn(const struct cli_spawn *spawn, pid_t *pid);

/* A descriptor that is readable from an instant of the boot-time clock on, also if the machine slept meanwhile; poll's
 * own timeout does not count that.  -1 and errno. */
int dibs__cli_alarm_open(void);
void dibs__cli_alarm_set(int fd, dibs__tick at); /* DIBS__TICK_NEVER: off */
void dibs__cli_alarm_clear(int fd);

/* ---- Trees (process.c) ---- */

/* The result of a walk over a tree. */
struct cli_tree {
  size_t alive;   /* processes below the root that have not ended */
  size_t refused; /* of those, processes that could not be signalled */
};
/* Sends `signo` to every process below `root` but those of process group `except` (0: none).  Processes that are
 * started during the walk may be missed: walk again. */
struct cli_tree dibs__cli_tree_signal(pid_t root, int signo, pid_t except);

/* ---- The terminal (process.c) ---- */

int dibs__cli_tty_open(void);       /* the controlling terminal; -1: none */
bool dibs__cli_tty_is_ours(int fd); /* our process group is in the foreground */
void dibs__cli_tty_give(int fd, pid_t group);
/* Takes it back if `group` has it. */
void dibs__cli_tty_take(int fd, pid_t group);
/* Stops our process group as the terminal would.  false: it could not be stopped (nobody could continue it). */
bool dibs__cli_stop_self(void);

/*
 * The minder: a small process between `dibs run` and its command.
 *
 *   shell -- dibs -- minder -- command -- the processes that the command starts
 *
 * It starts the command, and ends it and all its descendants before the lease can be somebody else's: on an order from
 * dibs, when the last deadline from dibs passes (dibs is stopped, or could not renew), and when dibs is gone.  It is
 * forked before the store is opened, so it has one thread and nothing of the store; it has its own process group, so
 * that signals to dibs' group do not reach it; it is a subreaper, so that no descendant leaves its tree.  dibs is a
 * subreaper as well, and ends the tree itself if the minder is killed, or does not act in time (stopped, frozen).  If
 * both are killed together, the kernel kills the command: SIGKILL is its parent-death signal.  While all of them are
 * stopped, none can act; then only the fence refuses a late write.
 *
 * Ending comes first.  Neither dibs nor the minder writes anything before the command is over: the reader of standard
 * error may have stopped reading.
 *
 * They talk over a socket pair that keeps messages whole.  As long as the minder acts, it alone signals the command: as
 * its parent it knows whether the command's pid is still the command's.  dibs walks over the tree below the minder.
 */

enum minder_word {
  /* dibs to minder */
  MINDER_START = 1, /* number: make the terminal the command's; ns: the deadline; text: environment, K=V\0... */
  MINDER_DEADLINE,  /* ns */
  MINDER_SIGNAL,    /* number: for the command's group */
  MINDER_GRACE,     /* number: another grace, in ms */
  MINDER_END,       /* TERM now, KILL after the grace, or at the deadline if that is earlier */
  /* minder to dibs */
  MINDER_STARTED,     /* number: the command's pid */
  MINDER_NOT_STARTED, /* number: errno */
  MINDER_STOPPED,     /* number: the signal that stopped the command */
  MINDER_ENDING,      /* it began to end the command; number: 0 after dibs' order, 1 because the deadline was near */
  MINDER_ENDED        /* number: wait status; left: processes that could not be ended */
};

struct minder_head {
  uint32_t word;
  int32_t number;
  int64_t ns; /* of a dibs__tick */
  uint64_t left;
};

enum { MINDER_TEXT_MAX = 16384 };
struct minder_message {
  struct minder_head head;
  char text[MINDER_TEXT_MAX];
};

struct minder_plan {
  const struct cli_globals *globals;
  const char *name; /* for messages */
  char *const *argv;
  sigset_t mask; /* the command's */
  int64_t grace_ms;
  int tty;          /* -1: none */
  int in, out, err; /* the command's standard streams; -1: as dibs' */
  bool task;        /* `name` is the kind of a task, and not a lease */
};

struct minder {
  pid_t pid;
  int fd;
};

/* Forks the minder; the process must have one thread.  CLI_DONE, or CLI_FAILED, said. */
int dibs__cli_minder_start(const struct minder_plan *plan, struct minder *minder);

/* The minder itself, in a process of one thread that was forked for it; `dibs` is its end of the socket. */
_Noreturn void dibs__cli_mind(const struct minder_plan *plan, int dibs);

/*
 * The launcher: a small process that forks minders for a process that has several threads by then (launch.c).
 *
 *   dibs -- launcher -- minder -- command
 *
 * It is forked before the store is opened.  For each command it gets one message, with the minder's end of a socket
 * pair, and answers with the minder's pid: from then on dibs and the minder talk to each other, as above.  It is a
 * subreaper, so that dibs finds below it what a killed minder leaves.  It ends when dibs is gone; minders end their
 * commands by themselves.
 */
struct launcher {
  pid_t pid;
  int fd; /* -1: none */
};

enum { LAUNCH_TEXT_MAX = 131072 };

struct launch {
  const char *name;               /* for messages */
  const char *const *argv;        /* NULL at the end; or NULL: the launcher's */
  const char *const *environment; /* "K=V", added to that of dibs; NULL at the end; or NULL: nothing is added */
  int64_t grace_ms;
  int in, out;        /* standard input; standard output and error.  The caller closes them */
  bool keeps_streams; /* standard output and error are those of dibs; `out` has no effect */
  bool keeps_errors;  /* standard error is that of dibs */
  bool holds_a_lease; /* `name` is that of a lease, and not the kind of a task: for messages */
};

/* CLI_DONE, or CLI_FAILED after a message.  The process has one thread; `mask` is that of the commands; `argv` is for
 * commands without one of their own, or NULL. */
int dibs__cli_launcher_start(const struct cli_globals *globals, const sigset_t *mask, char *const *argv,
                             struct launcher *launcher);
/* Makes a minder, which waits for MINDER_START; close its socket.  Blocks for ten seconds at most.  One thread at a
 * time.  false, and errno: EPIPE when the launcher is gone or does not act; it must not be used again then. */
bool dibs__cli_launch(const struct launcher *launcher, const struct launch *launch, struct minder *minder);
void dibs__cli_launcher_end(struct launcher *launcher);

/* false: it is gone. */
bool dibs__cli_minder_send(int fd, const struct minder_head *head, const char *text, size_t length);
/* The next message, without waiting: 1, 0 for none, -1 when the other side is gone. */
int dibs__cli_minder_receive(int fd, struct minder_head *head, char *text, size_t *length);

/* ---- Ending a tree (run.c) ---- */

/* Ends everything below process `root`: TERM at the beginning, KILL at `kill_at`, and again until nothing is left, for
 * a bounded time.  The polling loop takes the steps. */
struct ending {
  bool began;
  pid_t root;
  pid_t group; /* the command's group while its leader is not reaped, else 0 */
  dibs__tick kill_at, give_up_at, look_at;
  struct cli_tree_left {
    size_t alive, refused;
  } left;
};
void dibs__cli_ending_begin(struct ending *ending, pid_t root, pid_t group, dibs__tick kill_at);
/* Does what is due.  true when nothing is left, or nothing more can be done; otherwise outer_grants_at is when to call
 * again. */
bool dibs__cli_ending_step(struct ending *ending, bool none_left);

/*
 * A command under a lease: shared by run.c and once.c.
 *
 * begin -> open the store, acquire run->lease -> command -> release -> lost? not started? else run->status -> end
 */

struct tee;

/* A command's output, whose last bytes are kept. */
struct tail_pipe {
  int from; /* does not block; -1: at its end */
  struct cli_last tail;
};
/* Reads what has arrived. */
void dibs__cli_tail_pipe_read(struct tail_pipe *pipe);

struct run {
  const struct cli_globals *globals;
  const char *name;
  char *const *argv;
  dibs_lease_options options;
  int64_t grace_ms;
  int64_t lasts_ms;    /* how long the lease lasts after a renewal: the ttl, or less if the store grants less */
  int64_t at_least_ms; /* how long the name stays held from `began` on; CLI_UNSET or 0: as long as the command runs */
  int64_t max_ms;      /* how long the command may run; CLI_UNSET or 0: as long as it likes */
  struct cli_signals signals;
  struct minder minder;
  dibs_store *store;
  dibs_lease *lease;
  int alarm, tty;  /* tty: -1 when there is none */
  int out, err;    /* the command's; -1: ours.  Set before begin */
  struct tee *tee; /* reads the other ends; NULL: they have no reader */
  dibs__tick began, ended;
  const char *kind;     /* for the history; NULL: it is not kept */
  dibs_status released; /* the answer to the release of the lease */
  /* Of a task: */
  int64_t (*left_ms)(const struct run *run); /* how long its claim certainly lasts.  NULL: `lease` says it */
  struct tail_pipe *tail;                    /* NULL: none */
  pid_t orphans;                             /* orphans are below it when the minder is killed; 0: below dibs */
  int end_fd;                                /* readable: end the command now; -1: none */

  /* While it runs. */
  int64_t full_grace_ms; /* grace_ms for the whole ttl */
  pid_t command;         /* its pid and its group; 0 before it starts */
  bool had_tty;          /* the command was given the terminal */
  bool lost;             /* the library reported it, or no time is left */
  bool end_sent;         /* dibs sent the minder an order to end the command, or the minder began by itself */
  bool acting;           /* the minder has sent TERM; else dibs does, at act_at */
  bool late;             /* the minder ended it by itself, at the deadline */
  bool overtime;         /* it ran longer than max_ms, and dibs gave the order to end it */
  bool stopped;          /* end_fd was readable, and dibs gave the order to end it */
  bool orphaned;         /* the minder was killed */
  int ended_by;          /* a signal that was passed on and asks to end; 0: none */
  bool over;
  int status;                 /* wait status, once over */
  int start_error;            /* errno of exec, if it was not started */
  uint64_t left;              /* processes that could not be ended */
  dibs__tick deadline;        /* the latest that the minder knows: KILL is due */
  dibs__tick tell_at;         /* when to send the next one */
  dibs__tick max_at;          /* when it has run for max_ms; DIBS__TICK_NEVER: no limit */
  dibs__tick kill_at, act_at; /* while it is ended: when KILL is due; when dibs acts if the minder has not ended it */
  struct ending ending;       /* by dibs, because the minder does not act */
};

/* Options, grace, signals, the terminal, and the minder's process; one thread only, no store yet.  CLI_DONE, or an exit
 * code after a message.  `end` follows in either case. */
int dibs__cli_run_begin(struct run *run, const struct cli_values *values);
void dibs__cli_run_end(struct run *run);
/* Runs it to its end, under the held lease.  CLI_DONE; or an exit code after a message, and nothing was run. */
int dibs__cli_run_command(struct run *run);
/* The same with an environment of the caller's: "K=V" and "K=" (remove K), each with its NUL.  run->minder, alarm and
 * began are set. */
void dibs__cli_run_loop(struct run *run, const char *environment, size_t length);
/* The command could not be started because this machine has no memory, process or descriptor left: later, or elsewhere,
 * it can be. */
bool dibs__cli_run_lacks_means(const struct run *run);
/* Appends a string to such an environment; a string that does not fit is left out. */
void dibs__cli_run_variable(char to[MINDER_TEXT_MAX], size_t *length, const char *key, const char *value);
/* "the command exited with 3". */
void dibs__cli_run_describe(char *to, size_t size, int status);
/* A time between TERM and KILL that suits a lease, or a claim, of so long. */
int64_t dibs__cli_run_grace(int64_t ttl_ms);
/* Whether the outcome is more than a status: an exit code, after a message.  CLI_DONE: run->status has it.  `released`
 * is the answer to the release of the lease. */
int dibs__cli_run_trouble(struct run *run, dibs_status released);
/* As a shell reports it. */
int dibs__cli_run_code(int status);
/* Keeps the run in the history of its store, which is open: after the release of the lease, and for a second at most.
 */
void dibs__cli_run_keep(const struct run *run, const char *name);
/* By --no-history or DIBS_HISTORY=off. */
bool dibs__cli_history_is_off(const struct cli_values *values);

/* How it ended, in the row. */
void dibs__cli_history_describe(const struct run *run, struct dibs__run_row *row);

/* The rows of a worker: a thread writes them while the worker goes on. */
struct history_writer;
struct run_task {
  uint64_t nr, fence;
  bool failed; /* the task; some exit statuses other than 0 are no failure */
};
/* For runs of `argv` for tasks of the kind `name`, which stays valid.  NULL after a note: no rows are written. */
struct history_writer *dibs__cli_history_start(const struct cli_globals *globals, dibs_store *store, const char *name,
                                               char *const *argv);
/* A command that has ended, with run->tail.  Any thread; does not block.  A row that finds too many before it is
 * dropped. */
void dibs__cli_history_add(struct history_writer *writer, const struct run *run, const struct run_task *task);
/* Writes the rows that are left, for a second at most, says how many were dropped, and frees it; accepts NULL.  Before
 * the store is closed. */
void dibs__cli_history_end(struct history_writer *writer);

#endif
