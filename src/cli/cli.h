/* SPDX-License-Identifier: MIT */
#ifndef DIBS_CLI_CLI_H
#define DIBS_CLI_CLI_H
/*
 * Shared by the commands of `dibs`.  Each command has a file; its function gets a parsed call and returns an exit code
 * of cli.h.  Options, commands, help, man pages and completions follow two tables, in options.c and commands.c.
 */
#include "base/json.h"
#include "dibs/admin.h"
#include "dibs/lane.h"
#include "dibs/task.h"
#include "store/run.h"

#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/types.h>

/* Options of every command. */
struct cli_globals {
  const char *command; /* for messages; "" before it is known */
  const char *store;   /* --store, else DIBS_STORE, else NULL: what dibs_open(NULL) opens */
  const char *owner;   /* --owner, else NULL */
  bool store_given;    /* by --store, not by the environment */
  bool json, quiet;
};

/* ---- Options (options.c) ---- */

#define CLI_KEEP_MAX_MS (INT64_C(3653) * 86400000) /* ten years */
#define CLI_UNSET INT64_C(-2)                      /* a duration or number that was not given */

/* X(word of the enum, name, kind, argument, help, least, most, field) */
#define CLI_OPTIONS(X)                                                                                                 \
  X(store, "store", TEXT, "URI", "the store; else $DIBS_STORE, else dibs.ini, else a file", 0, 0, globals.store)       \
  X(json, "json", FLAG, "", "print JSON for programs", 0, 0, globals.json)                                             \
  X(quiet, "quiet", FLAG, "", "no message for plain answers (busy, timed out, absent, stale)", 0, 0, globals.quiet)    \
  X(owner, "owner", TEXT, "LABEL", "the owner that other people see (user@host:pid)", 0, 0, globals.owner)             \
  X(help, "help", FLAG, "", "print the help of the command", 0, 0, help)                                               \
  X(ttl, "ttl", DURATION, "TIME", "how long the lease lasts without renewal (30s)", DIBS_TTL_MIN_MS, DIBS_TTL_MAX_MS,  \
    ttl_ms)                                                                                                            \
  X(wait, "wait", DURATION, "TIME", "how long to wait (for ever)", 0, INT64_C(31622400000), wait_ms)                   \
  X(try, "try", FLAG, "", "do not wait", 0, 0, try_once)                                                               \
  X(shared, "shared", FLAG, "", "acquire as one of many readers", 0, 0, shared)                                        \
  X(slots, "slots", COUNT, "N", "acquire as one of at most N holders", 1, DIBS_SLOTS_MAX, slots)                       \
  X(grace, "grace", DURATION, "TIME", "time between TERM and KILL (2s or ttl/4, the shorter)", 0, DIBS_TTL_MAX_MS,     \
    grace_ms)                                                                                                          \
  X(at_least, "at-least", DURATION, "TIME", "how long the name stays held from the start on, at least", 0,             \
    DIBS_TTL_MAX_MS, at_least_ms)                                                                                      \
  X(max, "max", DURATION, "TIME", "how long the command may run; then dibs ends it", 1, CLI_KEEP_MAX_MS, max_ms)       \
  X(now, "now", FLAG, "", "do not wait for the holder; two may hold for up to ttl/3", 0, 0, now)                       \
  X(interval, "interval", DURATION, "TIME", "time between two reads of the store (500ms)", 50, INT64_C(60000),         \
    interval_ms)                                                                                                       \
  X(count, "count", COUNT, "N", "end after N changes", 1, INT64_C(1000000000), count)                                  \
  X(keep, "keep", DURATION, "TIME", "how long the result is kept (24h)", 1, CLI_KEEP_MAX_MS, keep_ms)                  \
  X(retry, "retry", FLAG, "", "do not keep a failure; run the command again after one", 0, 0, retry)                   \
  X(forget, "forget", FLAG, "", "delete the kept result, or the refused sums", 0, 0, forget)                           \
  X(claim, "claim", TEXT, "ID", "the id of the claim, for repeating the call (random)", 0, 0, claim)                   \
  X(partial, "partial", FLAG, "", "take the rest if it is less than N", 0, 0, partial)                                 \
  X(strategy, "strategy", TEXT, "S", "the method (coalesced)", 0, 0, strategy)                                         \
  X(table, "table", TEXT, "FILE#NAME", "your own table, as the INI file declares it", 0, 0, table)                     \
  X(if, "if", TEXT, "VERSION", "only if the record has this version", 0, 0, if_version)                                \
  X(create, "create", FLAG, "", "only if the record does not exist", 0, 0, create)                                     \
  X(force, "force", FLAG, "", "write without a guard", 0, 0, force)                                                    \
  X(probe, "probe", FLAG, "", "also acquire leases, which writes to the store", 0, 0, probe)                           \
  X(percent, "percent", COUNT, "N", "on for N percent of the names, always the same ones", 0, 100, percent)            \
  X(reenter, "reenter", FLAG, "", "run under the lease of an outer dibs, if it has one", 0, 0, reenter)                \
  X(no_history, "no-history", FLAG, "", "leave no row in the history", 0, 0, no_history)                               \
  X(keep_output, "keep-output", FLAG, "", "pass the output on through dibs, and keep its end", 0, 0, keep_output)      \
  X(failed, "failed", FLAG, "", "only runs that did not end well", 0, 0, failed)                                       \
  X(prefix, "prefix", TEXT, "TEXT", "only of names that begin with it", 0, 0, prefix)                                  \
  X(since, "since", TEXT, "WHEN", "only those that ended since then: 24h, or a date", 0, 0, since)                     \
  X(until, "until", TEXT, "WHEN", "only those that ended before", 0, 0, until)                                         \
  X(last, "last", COUNT, "N", "the last N of them (50)", 1, INT64_C(1000000), last)                                    \
  X(output, "output", FLAG, "", "with the last lines of their output", 0, 0, output)                                   \
  X(keep_for, "keep-for", TEXT, "TIME", "how long the store keeps a run from now on, or off", 0, 0, keep_for)          \
  X(kind, "kind", TEXT, "KIND", "of this kind", 0, 0, kind)                                                            \
  X(phase, "phase", TEXT, "PHASE", "in this phase", 0, 0, phase)                                                       \
  X(key, "key", TEXT, "KEY", "with this key; tasks of one key run one at a time, in their order", 0, 0, key)           \
  X(unique, "unique", TEXT, "TEXT", "add nothing while an unfinished task has this text", 0, 0, unique)                \
  X(delay, "delay", DURATION, "TIME", "when it may run, from now", 0, CLI_KEEP_MAX_MS, delay_ms)                       \
  X(priority, "priority", TEXT, "N", "the largest first, from -1000 to 1000 (0)", 0, 0, priority)                      \
  X(tries, "tries", COUNT, "N", "how often it may fail (10)", 1, 1000000, tries)                                       \
  X(state, "state", TEXT, "STATE", "in this state; or several, with commas between", 0, 0, state)                      \
  X(older, "older", DURATION, "TIME", "unchanged for so long", 0, CLI_KEEP_MAX_MS, older_ms)                           \
  X(error, "error", TEXT, "TEXT", "with this text in its latest error", 0, 0, error)                                   \
  X(dry_run, "dry-run", FLAG, "", "only count the tasks", 0, 0, dry_run)                                               \
  X(rate, "rate", COUNT, "N", "change at most N tasks a second", 1, 1000000, rate)                                     \
  X(running, "running", COUNT, "N", "at most N of the kind run at one time (0: no limit)", 0, 1000000, running)        \
  X(paused, "paused", TEXT, "on|off", "on: no task of the kind is begun", 0, 0, paused)                                \
  X(jobs, "jobs", COUNT, "N", "how many tasks run at one time (1)", 1, 1000, jobs)                                     \
  X(exec, "exec", TEXT, "CMD", "the command, for sh -c", 0, 0, exec)                                                   \
  X(timeout, "timeout", DURATION, "TIME", "how long a claim lasts without extension (30s)", 1000, DIBS_TTL_MAX_MS,     \
    timeout_ms)                                                                                                        \
  X(drain, "drain", DURATION, "TIME", "how long running commands may take to end (30s)", 0, CLI_KEEP_MAX_MS, drain_ms) \
  X(once, "once", FLAG, "", "do what is ready, then end", 0, 0, once)                                                  \
  X(max_tasks, "max-tasks", COUNT, "N", "end after N tasks", 1, INT64_C(1000000000), max_tasks)                        \
  X(verbose, "verbose", FLAG, "", "a line for each task, also if standard error is no terminal", 0, 0, verbose)        \
  X(name, "name", TEXT, "NAME", "what the nodes of a crontab share (the name of its file)", 0, 0, name)                \
  X(to, "to", TEXT, "URL", "send each message to this URL, by POST", 0, 0, to)                                         \
  X(lines, "stdout", FLAG, "", "print each message as a line of JSON", 0, 0, lines)                                    \
  X(header, "header", LIST, "TEXT", "a header line for --to, or @FILE with such lines; may be repeated", 0, 0,         \
    headers)                                                                                                           \
  X(ca, "ca", TEXT, "FILE", "the certificates that sign the receiver's (those of the system)", 0, 0, ca)               \
  X(level, "level", TEXT, "L", "durable, shared or buffered (durable)", 0, 0, level)                                   \
  X(limit, "limit", TEXT, "N/TIME", "the quota: 100/1m", 0, 0, limit)                                                  \
  X(batch, "batch", COUNT, "N", "how many messages to claim in advance (--jobs; --stdout: 1000)", 1, DIBS_TASKS_MAX,   \
    batch)                                                                                                             \
  X(lanes, "lanes", COUNT, "P", "how many lanes the topic has", 1, DIBS_LANES_MAX, lanes)                              \
  X(topic, "topic", TEXT, "TOPIC", "own lanes of this topic, and do their tasks in order", 0, 0, topic)                \
  X(no_lanes, "no-lanes", FLAG, "", "the tasks of the kind go to no lanes any more", 0, 0, no_lanes)                   \
  X(brokers, "brokers", TEXT, "HOST:PORT", "of Kafka; or several, with commas between", 0, 0, brokers)                 \
  X(group, "group", TEXT, "GROUP", "the consumer group of Kafka", 0, 0, group)                                         \
  X(setting, "setting", LIST, "NAME=VALUE", "a setting of librdkafka; may be repeated", 0, 0, settings)                \
  X(sql, "sql", FLAG, "", "standard output is SQL, for one transaction with the offset", 0, 0, sql)

enum {
#define CLI__OPTION_ENUM(word, name, kind, arg, help, least, most, field) CLI_OPT_##word,
  CLI_OPTIONS(CLI__OPTION_ENUM)
#undef CLI__OPTION_ENUM
      CLI_OPT_COUNT
};
/* A set of options, a bit for each. */
__extension__ typedef unsigned __int128 cli_option_set;
#define CLI_BIT(nth) ((cli_option_set)1 << (nth))
#define CLI_TAKES(name) CLI_BIT(CLI_OPT_##name)
_Static_assert(CLI_OPT_COUNT <= 128, "the options of a command are bits");
#define CLI_TAKES_GLOBALS (CLI_TAKES(store) | CLI_TAKES(json) | CLI_TAKES(quiet) | CLI_TAKES(owner) | CLI_TAKES(help))

enum cli_kind { CLI_FLAG, CLI_TEXT, CLI_DURATION, CLI_COUNT, CLI_LIST };
struct cli_option {
  const char *name; /* without the dashes */
  enum cli_kind kind;
  const char *arg, *help;
  int64_t least, most; /* durations in ms */
  size_t at;           /* in struct cli_values */
};
extern const struct cli_option dibs__cli_options[CLI_OPT_COUNT];
/* The name of the first one of a set that is not empty. */
const char *dibs__cli_first_option(cli_option_set set);

/* The words of an option that may be repeated, NULL at the end. */
enum { CLI_WORDS_MAX = 32 };
struct cli_words {
  const char *word[CLI_WORDS_MAX + 1];
};

/* The options of a call; durations and numbers are CLI_UNSET if they are missing. */
struct cli_values {
  struct cli_globals globals;
  int64_t ttl_ms, wait_ms, grace_ms, at_least_ms, max_ms, interval_ms, slots, count, keep_ms, percent, last;
  int64_t delay_ms, tries, older_ms, rate, running, jobs, timeout_ms, drain_ms, max_tasks;
  int64_t batch, lanes;
  const char *claim, *strategy;
  const char *level;
  const char *table, *if_version;
  const char *kind, *phase, *key, *unique, *priority, *state, *error, *paused, *exec;
  const char *to, *ca, *limit, *brokers, *group, *topic;
  struct cli_words headers, settings;
  bool create, force, probe;
  bool help, try_once, shared, now, retry, forget, partial, reenter;
  bool dry_run, once, verbose, sql, no_lanes;
  const char *prefix, *since, *until, *keep_for, *name;
  bool no_history, keep_output, failed, output, lines;
};

enum { CLI_POS_MAX = 2 + DIBS_COLUMNS_MAX };
struct cli_command;
struct cli_call {
  const struct cli_command *command;
  struct cli_values v;
  cli_option_set given; /* CLI_TAKES bits of the options that were given */
  const char *pos[CLI_POS_MAX];
  int npos;
  char **rest; /* the words after "--", or those that a raw command parses itself; ends with NULL */
  int nrest;
};

/* Parses argv (argv[0] is skipped); false: `wrong` has the reason.  `rest` points into argv, whose order may change. */
bool dibs__cli_parse(int argc, char **argv, struct cli_call *call, char *wrong, size_t wrong_size);

bool dibs__cli_number(const char *text, uint64_t most, uint64_t *out);

/* ---- Commands (commands.c, program.c; those of dibs-lab: lab/command.c) ---- */

struct cli_command {
  const char *name, *args, *summary;
  cli_option_set options; /* CLI_TAKES bits beside the globals */
  uint32_t exits;         /* CLI_MAY bits */
  uint8_t pos_min, pos_max;
  bool rest; /* a command line behind "--" is needed */
  bool raw;  /* parses its own options; globals are taken out before */
  int (*main)(struct cli_call *call);
  const char *text, *example;
};
/* dibs and dibs-lab share the code of options.c, output.c, program.c and table.c.  Each defines these two: */
extern const struct cli_command dibs__cli_commands[]; /* name NULL at the end */
extern const struct cli_program {
  const char *name, *summary;
  void (*refused)(const struct cli_call *call); /* before the message about a wrong command line; may be NULL */
} dibs__cli_program;
const struct cli_command *dibs__cli_command_find(const char *name);
int dibs__cli_main(int argc, char **argv);

int dibs__cli_run(struct cli_call *call);
int dibs__cli_lock(struct cli_call *call);
/* Prints a line that makes `eval "$(dibs lock ...)"` fail with that code, because eval of an empty text succeeds. */
void dibs__cli_lock_failed(const struct cli_globals *globals, int code);
int dibs__cli_unlock(struct cli_call *call);
int dibs__cli_renew(struct cli_call *call);
int dibs__cli_ls(struct cli_call *call);
int dibs__cli_show(struct cli_call *call);
int dibs__cli_break(struct cli_call *call);
int dibs__cli_watch(struct cli_call *call);
int dibs__cli_record(struct cli_call *call);
int dibs__cli_stock(struct cli_call *call);
int dibs__cli_counter(struct cli_call *call);
int dibs__cli_rate(struct cli_call *call);
int dibs__cli_once(struct cli_call *call);
int dibs__cli_task(struct cli_call *call);
int dibs__cli_dead(struct cli_call *call);
int dibs__cli_worker(struct cli_call *call);
int dibs__cli_relay(struct cli_call *call);
int dibs__cli_lane(struct cli_call *call);
int dibs__cli_flag(struct cli_call *call);
int dibs__cli_tier(struct cli_call *call);
int dibs__cli_stats(struct cli_call *call);
int dibs__cli_history(struct cli_call *call);
int dibs__cli_cron(struct cli_call *call);
int dibs__cli_doctor(struct cli_call *call);
int dibs__cli_start_lab(struct cli_call *call);   /* lab and bench: becomes dibs-lab */
int dibs__cli_start_serve(struct cli_call *call); /* becomes dibs-serve */
int dibs__cli_start_gate(struct cli_call *call);  /* becomes dibs-gate */
int dibs__cli_help(struct cli_call *call);
int dibs__cli_version(struct cli_call *call);

/* The program of that name in the folder of the running one; otherwise the name itself, which execvp finds in PATH. */
const char *dibs__cli_find_program(const char *name, char *path, size_t size);

/* ---- Messages (output.c) ---- */

/* One line on standard error, `dibs: ...`, or with --json an object; returns `code`.  `status` is "" or a status's
 * name.  --quiet silences plain answers only. */
int dibs__cli_fail(const struct cli_globals *globals, int code, const char *status, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
/* The same for a status of the library; `what` is the message if the library gave no text. */
int dibs__cli_fail_status(const struct cli_globals *globals, dibs_status status, const dibs_error *error,
                          const char *what);
int dibs__cli_exit_of(dibs_status status);
/* A note, not a failure: `dibs: ...`; not with --quiet or --json. */
void dibs__cli_note(const struct cli_globals *globals, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* For a daemon: the globals of the notes that dibs__cli_daemon_note writes from then on. */
void dibs__cli_daemon_notes(const struct cli_globals *globals);
void dibs__cli_daemon_note(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* A line of the log of actions: with --quiet and --json, too. */
void dibs__cli_daemon_action(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* How long an error waits for a reader that has stopped reading; a note is dropped sooner. */
enum { CLI_ERROR_MS = 2000, CLI_NOTE_MS = 50 };
/* A line, a few, or a JSON object, written at once. */
struct cli_line {
  FILE *out;
  char *text;
  size_t length;
};
/* Every message so far was written to standard error; not those that --quiet leaves out. */
bool dibs__cli_all_said(void);
bool dibs__cli_line_open(struct cli_line *line); /* false: no memory */
/* Writes it to standard output or error within `ms`.  false: not all of it, with errno. */
bool dibs__cli_line_send(struct cli_line *line, int fd, int64_t ms);
/* Prints a note of `doing` (a participle), the name, and its holder; prints nothing if there is no holder. */
void dibs__cli_note_holder(const struct cli_globals *globals, dibs_store *store, const char *name, const char *doing);
/* A list as JSON, of rows that come one by one: before each row; and at the end.  So an error before the first row
 * prints no list, and a later one a list that is complete as JSON. */
void dibs__cli_list_begin(struct dibs__json *json);
void dibs__cli_list_end(struct dibs__json *json, bool fine);
/* Flushes standard output: CLI_DONE, or CLI_FAILED and a line when it can't be written. */
int dibs__cli_flush(const struct cli_globals *globals);

/* ---- Writing without waiting (output.c) ---- */

/* write(), but neither waits for a reader (EAGAIN) nor raises SIGPIPE (EPIPE). */
ssize_t dibs__cli_write_now(int fd, const char *bytes, size_t length);

/* ---- Stores and leases (acquire.c) ---- */

/* Opens the store of the globals; CLI_DONE, otherwise an exit code, after a message. */
int dibs__cli_open(const struct cli_globals *globals, uint32_t flags, dibs_store **store);
/* The same, not longer than *wait_ms (0: no limit of its own), which becomes what is left of it. */
int dibs__cli_open_within(const struct cli_globals *globals, int64_t *wait_ms, dibs_store **store);
/* The store's URI for another process: relative file names are made absolute.  malloc'd; NULL: no memory. */
char *dibs__cli_store_uri(const struct cli_globals *globals, const dibs_store *store);
/* mode, slots, ttl, wait and owner of the options.  CLI_DONE, or CLI_USAGE after a message. */
int dibs__cli_lease_options(const struct cli_values *values, dibs_lease_options *options);
/* Draws an id, so that a repeated request after UNKNOWN finds its own grant. */
void dibs__cli_draw_id(char id[33]);

/* A lease that lock or run acquired: from the environment or standard input, never from arguments. */
struct cli_lease_in {
  char name[DIBS_NAME_MAX + 1]; /* "" if missing */
  char id[33];
  uint64_t fence;
  int64_t ttl_ms; /* CLI_UNSET if missing */
  bool has_id, has_fence;
};
enum { CLI_LEASE_IN_MAX = 8192 };
/* Lines as lock prints them, its JSON, or "ID FENCE".  false: `wrong` has the reason. */
bool dibs__cli_lease_parse(const char *text, size_t length, struct cli_lease_in *in, char *wrong, size_t wrong_size);
/* One of DIBS_NAME, DIBS_LEASE, DIBS_FENCE, DIBS_TTL; it ignores other keys. */
bool dibs__cli_lease_keep(const char *key, const char *value, struct cli_lease_in *in, char *wrong, size_t wrong_size);
/* Name, id and fence of a call: NAME from arguments or DIBS_NAME, the rest from DIBS_LEASE and DIBS_FENCE, or from
 * standard input if an argument is "-".  CLI_DONE, or CLI_USAGE after a message. */
int dibs__cli_lease_in(const struct cli_call *call, int first_pos, struct cli_lease_in *in);
int dibs__cli_lease_adopt(const struct cli_call *call, dibs_store *store, const struct cli_lease_in *in,
                          dibs_lease **lease);
/* The table of --table, FILE or FILE#SECTION; NULL without --table.  CLI_DONE, otherwise an exit code, after a message.
 */
int dibs__cli_table(const struct cli_call *call, dibs_table **table);
/* 32 hexadecimal digits. */
bool dibs__cli_is_id(const char *text);

/* ---- The leases that this process runs under (acquire.c) ---- */

/* A lease of an outer `dibs run` or `dibs lock`.  DIBS_NAME, DIBS_LEASE, DIBS_FENCE, DIBS_SLOT describe the innermost
 * one, DIBS_HELD the others. */
struct cli_outer {
  char name[DIBS_NAME_MAX + 1];
  char id[33];
  uint64_t fence;
  dibs_mode mode;
};
/* The innermost lease of that name.  false: there is none. */
bool dibs__cli_outer_find(const char *name, struct cli_outer *outer);
/* Does it still hold its name in this store? */
bool dibs__cli_outer_holds(const struct cli_globals *globals, dibs_store *store, const struct cli_outer *outer);
/* DIBS_HELD for a command under a further lease; "" without an outer lease.  It drops the oldest if they do not fit. */
enum { CLI_HELD_MAX = 4096 };
void dibs__cli_outer_list(char held[CLI_HELD_MAX]);

/* ---- Output (output.c, table.c) ---- */

/* Reads one code point; invalid bytes are U+FFFD, one each.  Returns how many bytes it took, at least 1. */
size_t dibs__cli_utf8(const char *text, size_t length, uint32_t *point);
/* Columns on a terminal; control characters count as one. */
size_t dibs__cli_width(const char *text);
/* Prints with control characters shown as '?', cut to `width` columns with an ellipsis (0: as it is). */
void dibs__cli_put(FILE *out, const char *text, size_t width);
/* Columns of the terminal that `fd` is; 0: none. */
size_t dibs__cli_columns(int fd);
/* Whether someone sees the progress of long work: on a terminal, and not with --quiet. */
bool dibs__cli_shows_progress(const struct cli_globals *globals);
/* Draws the one line of progress again, on stderr; NULL removes it. */
void dibs__cli_progress(const char *text);

enum { CLI_CELLS_MAX = 12 };
struct cli_table;
/* `heads` are the columns, ended by NULL.  Marks before a head: '>' aligns the column to the right, '*' is cut first if
 * the terminal is narrow, '-' is then left out, '--' is left out last, '=' is never cut. */
struct cli_table *dibs__cli_table_new(const char *const *heads);
/* Adds the next cell of the current row; copies it.  false: no memory. */
bool dibs__cli_table_add(struct cli_table *table, const char *text);
void dibs__cli_table_print(const struct cli_table *table, size_t columns, FILE *out);
void dibs__cli_table_free(struct cli_table *table);

/* Its leases are session locks (lock= in the URI): the server keeps neither their names nor a ttl. */
bool dibs__cli_has_session_locks(const dibs_store *store);
const char *dibs__cli_mode_name(dibs_mode mode);

/*
 * The one table of exit codes.  `dibs help exits`, the help of each command and dibs(1) are generated from it or
 * checked against it.  The codes are above those that commands commonly use and below those of a shell, and with each
 * dibs prints a line to standard error, so that a child's own status cannot be confused with one of dibs.
 *
 * X(name, number, statuses, text)
 */
#define CLI_EXITS(X)                                                                                                   \
  X(DONE, 0, "OK REPLAY", "done, now or before; run, once: the command's own status")                                  \
  X(OVERTIME, 114, "", "run: the command ran longer than --max; dibs ended it")                                        \
  X(CONFLICT, 115, "CONFLICT", "another client changed it since you read it; nothing changed")                         \
  X(TROUBLE, 116, "", "doctor, lab: something needs attention")                                                        \
  X(ABSENT, 117, "NOT_FOUND", "no holder and no waiter, or it does not exist")                                         \
  X(STALE, 118, "STALE", "a newer fence was seen; nothing changed")                                                    \
  X(FAILED, 119, "NO_MEMORY CANCELLED", "no memory, process or output, or the minder was killed")                      \
  X(BUSY, 120, "HELD FULL", "held (--try), too little left (stock, rate), or the sum does not fit (counter)")          \
  X(TIMEOUT, 121, "TIMEOUT", "still held at the end of --wait")                                                        \
  X(LOST, 122, "LOST", "the lease was lost or broken; run, once: dibs ended the command")                              \
  X(STORE, 123, "UNAVAILABLE DENIED CORRUPT TOO_NEW", "the store is unusable: down, not permitted, damaged, newer")    \
  X(UNKNOWN, 124, "UNKNOWN", "the outcome is not known; repeating it is safe, but for counter add")                    \
  X(USAGE, 125, "INVALID UNSUPPORTED", "the command line is wrong, or the store does not support it")                  \
  X(NOEXEC, 126, "", "run, once, lane: cannot execute the command (lab, bench, serve, gate: the program)")             \
  X(NOCMD, 127, "", "run, once, lane: the command (lab, bench, serve, gate: the program) was not found")               \
  X(SIGNAL, 128, "", "128+N: signal N ended the command, or dibs while it waited")

enum cli_exit {
#define CLI__EXIT_ENUM(name, number, statuses, text) CLI_##name = number,
  CLI_EXITS(CLI__EXIT_ENUM)
#undef CLI__EXIT_ENUM
};

/* As bits, for the exit codes of a command. */
enum {
  CLI__BIT_BEFORE = -1,
#define CLI__EXIT_INDEX(name, number, statuses, text) CLI__BIT_##name,
  CLI_EXITS(CLI__EXIT_INDEX)
#undef CLI__EXIT_INDEX
};
#define CLI_MAY(name) (1u << CLI__BIT_##name)

/* Waiting for a lease while dibs handles signals: shared by lock and run. */

/* Signals are read from a descriptor and interrupt nothing.  Signals that were ignored when dibs started stay ignored.
 */
struct cli_signals {
  int fd;
  sigset_t before; /* the mask at the start of dibs, for its child */
};
int dibs__cli_signals_open(const struct cli_globals *globals, struct cli_signals *signals);
void dibs__cli_signals_close(struct cli_signals *signals);
/* The next signal, or 0. */
int dibs__cli_signals_next(const struct cli_signals *signals);

/* Opens the store with DIBS_STORE_LOOP.  It tries an unreachable server again during wait_ms, and reduces wait_ms by
 * the time that this took.  CLI_DONE, or an exit code after a message; 128 + N when signal N ended it. */
int dibs__cli_reach(const struct cli_globals *globals, dibs_lease_options *options, const struct cli_signals *signals,
                    dibs_store **store);

/* Acquires with these options; the store is open with DIBS_STORE_LOOP.  CLI_DONE, or an exit code after a message; 128
 * + N when signal N ended the wait. */
int dibs__cli_acquire(const struct cli_globals *globals, dibs_store *store, const char *name,
                      dibs_lease_options *options, const struct cli_signals *signals, dibs_lease **lease);

/* What the files of `dibs record` share. */

struct record_call {
  const struct cli_call *call;
  const struct cli_globals *globals;
  const char *key;
  dibs_table *table; /* NULL: dibs' own */
  dibs_store *store;
  dibs_lease *lease; /* NULL: none */
  char *data;        /* standard input, where it is the value */
  size_t length;
  bool given; /* the values are among the arguments */
};

/* A copy of the state of a store's tiers, and its output for people and programs.  For tier and stats. */

struct cli_tiers {
  dibs_tiers_info info;
  struct {
    dibs_tier_info info;
    char name[64], uri[256], trouble[200];
  } tier[DIBS_TIERS_MAX];
  size_t count;
  struct cli_tier_client {
    dibs_tier_client info;
    char owner[DIBS_OWNER_MAX + 1];
  } * client;
  size_t clients, capacity;
  bool full; /* no memory was left */
};

/* Free the result with dibs__cli_tiers_free also after a failure. */
dibs_status dibs__cli_tiers_read(dibs_store *store, struct cli_tiers *tiers, dibs_error *error);
void dibs__cli_tiers_free(struct cli_tiers *tiers);
/* So few epochs are left that an operator must find out what uses them. */
bool dibs__cli_tiers_few_epochs(const struct cli_tiers *tiers);
/* Did the anchor confirm this state just now? */
bool dibs__cli_tiers_confirmed(const struct cli_tiers *tiers);
/* A summary in one or two sentences, and the table. */
void dibs__cli_tiers_table(const struct cli_tiers *tiers, size_t columns, FILE *out);
/* As the members of an object. */
void dibs__cli_tiers_json(const struct cli_tiers *tiers, struct dibs__json *json);

/* The parts of doctor.c share this. */

/* One finding: printed at once, or added to the JSON. */
struct doctor {
  const struct cli_globals *globals;
  struct dibs__json json;
  bool trouble;
};

/*
 * The result of a command that `dibs once` keeps: its status, and its output, in order.
 */

enum { CAPTURED_OUT, CAPTURED_ERR, CAPTURED_STREAMS };

/* While the command runs. */
struct captured {
  char *parts;
  size_t len, capacity;
  size_t latest; /* where the latest part begins; its stream is `stream` */
  int stream;    /* -1: none */
  bool cut;      /* some output did not fit; all later output is dropped, too */
  uint64_t written[CAPTURED_STREAMS], left_out;
};
void dibs__cli_captured_begin(struct captured *captured);
void dibs__cli_captured_add(struct captured *captured, int stream, const char *bytes, size_t len);
/* malloc'd; NULL: no memory. */
char *dibs__cli_captured_whole(const struct captured *captured, int status, int64_t took_ms, size_t *length);
void dibs__cli_captured_free(struct captured *captured);

/* A kept result. */
struct captured_result {
  int status;
  int64_t took_ms;
  uint64_t written[CAPTURED_STREAMS], left_out; /* bytes */
  const char *parts;                            /* points into the text that was read */
  size_t len;
};
/* false: the text is not a result of dibs once. */
bool dibs__cli_captured_read(const char *text, size_t length, struct captured_result *result);
/* The next part; *at begins with 0.  false: that was the last. */
bool dibs__cli_captured_next(const struct captured_result *result, size_t *at, int *stream, const char **bytes,
                             size_t *len);

/*
 * The output of a command, on its way to dibs' standard output and error, and a copy of it (cli.h).
 *
 * Nothing blocks while the command runs: a slow reader makes the command wait, as without dibs, and never the loop that
 * renews the lease.  If there is no reader any more, the output is still kept.
 */

struct tee_stream {
  int from, to;
  char *pending; /* read and not yet written: [at, at + len) */
  size_t at, len, capacity;
  int broken; /* errno of writing */
};

/* The last bytes of an output. */
struct cli_last {
  char bytes[DIBS__RUN_OUTPUT_MAX];
  uint64_t seen; /* all bytes so far */
};
void dibs__cli_last_add(struct cli_last *tail, const char *bytes, size_t len);
/* How many there are. */
size_t dibs__cli_last_read(const struct cli_last *tail, char to[DIBS__RUN_OUTPUT_MAX]);

struct tee {
  struct tee_stream stream[CAPTURED_STREAMS];
  struct captured captured; /* empty if `tail_only` */
  struct cli_last tail;
  bool tail_only;
};
/* `ends` are for the command; close them once it has them.  CLI_DONE, or CLI_FAILED after a message. */
int dibs__cli_tee_open(struct tee *tee, const struct cli_globals *globals, int ends[CAPTURED_STREAMS]);
void dibs__cli_tee_close(struct tee *tee);
/* The command has ended: reads its remaining output. */
void dibs__cli_tee_finish(struct tee *tee);
/* Writes the pending output; may block.  CLI_DONE; or CLI_FAILED, after a message, if it could not be written.  A
 * missing reader, or a stream that was closed at the start of dibs, is not a failure. */
int dibs__cli_tee_flush(struct tee *tee, const struct cli_globals *globals);

/* The descriptors to poll, and the work to do then. */
enum { TEE_POLLS = 4 };
void dibs__cli_tee_request(const struct tee *tee, struct pollfd polls[TEE_POLLS]);
void dibs__cli_tee_step(struct tee *tee, const struct pollfd polls[TEE_POLLS]);

#endif
