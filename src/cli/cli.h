/* SPDX-License-Identifier: MIT */
#ifndef DIBS_CLI_CLI_H
#define DIBS_CLI_CLI_H
/*
 * What the commands of `dibs` share.  One file a command; each gets a call that is parsed already and returns an exit
 * code of exits.h.  Options, commands, help, man pages and completions follow two tables: options.c and commands.c.
 */
#include "cli/exits.h"
#include "dibs.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

/* Options of every command. */
struct cli_globals {
  const char *command; /* for messages; "" before it is known */
  const char *store;   /* --store, else DIBS_STORE, else NULL: the default store */
  const char *owner;   /* --owner, else NULL */
  bool store_given;    /* by --store, not by the environment */
  bool json, quiet;
};

/* ---- Options (options.c) ---- */

#define CLI_KEEP_MAX_MS (INT64_C(3653) * 86400000) /* ten years */
#define CLI_UNSET INT64_C(-2)                      /* a duration or number that was not given */

/* X(name, kind, argument, help, least, most, field) */
#define CLI_OPTIONS(X)                                                                                                 \
  X(store, TEXT, "URI", "the store; else $DIBS_STORE, else the default file", 0, 0, globals.store)                     \
  X(json, FLAG, "", "print JSON for programs", 0, 0, globals.json)                                                     \
  X(quiet, FLAG, "", "say nothing of plain answers (busy, timed out, absent, stale)", 0, 0, globals.quiet)             \
  X(owner, TEXT, "LABEL", "who acts, for people to read (user@host:pid)", 0, 0, globals.owner)                         \
  X(help, FLAG, "", "print the help of the command", 0, 0, help)                                                       \
  X(ttl, DURATION, "TIME", "how long the lease lasts without renewal (30s)", DIBS_TTL_MIN_MS, DIBS_TTL_MAX_MS, ttl_ms) \
  X(wait, DURATION, "TIME", "how long to wait (for ever)", 0, INT64_C(31622400000), wait_ms)                           \
  X(try, FLAG, "", "do not wait at all", 0, 0, try_once)                                                               \
  X(shared, FLAG, "", "as one of many readers", 0, 0, shared)                                                          \
  X(slots, COUNT, "N", "as one of at most N holders", 1, DIBS_SLOTS_MAX, slots)                                        \
  X(grace, DURATION, "TIME", "between TERM and KILL (2s or ttl/4, the shorter)", 0, DIBS_TTL_MAX_MS, grace_ms)         \
  X(now, FLAG, "", "do not wait for the holder; two may hold for up to ttl/3", 0, 0, now)                              \
  X(interval, DURATION, "TIME", "how often to look (500ms)", 50, INT64_C(60000), interval_ms)                          \
  X(count, COUNT, "N", "end after N changes", 1, INT64_C(1000000000), count)                                           \
  X(keep, DURATION, "TIME", "how long the answer is kept (24h)", 1, CLI_KEEP_MAX_MS, keep_ms)                          \
  X(retry, FLAG, "", "keep no failure, and take none: run it again", 0, 0, retry)                                      \
  X(forget, FLAG, "", "forget the answer; run nothing", 0, 0, forget)                                                  \
  X(claim, TEXT, "ID", "who repeats it finds what was taken (drawn)", 0, 0, claim)                                     \
  X(partial, FLAG, "", "take what is left if it is less", 0, 0, partial)                                               \
  X(strategy, TEXT, "S", "how it is done (coalesced)", 0, 0, strategy)                                                 \
  X(table, TEXT, "FILE#NAME", "a table of yours, as the INI file declares it", 0, 0, table)                            \
  X(if, TEXT, "VERSION", "only if it still has this version", 0, 0, if_version)                                        \
  X(create, FLAG, "", "only if there is none", 0, 0, create)                                                           \
  X(force, FLAG, "", "whatever is there, whoever uses it: no guard", 0, 0, force)                                      \
  X(percent, COUNT, "N", "for so many percent of the names, always the same", 0, 100, percent)

enum {
#define CLI__OPTION_ENUM(name, kind, arg, help, least, most, field) CLI_OPT_##name,
  CLI_OPTIONS(CLI__OPTION_ENUM)
#undef CLI__OPTION_ENUM
      CLI_OPT_COUNT
};
#define CLI_TAKES(name) (1u << CLI_OPT_##name)
#define CLI_TAKES_GLOBALS (CLI_TAKES(store) | CLI_TAKES(json) | CLI_TAKES(quiet) | CLI_TAKES(owner) | CLI_TAKES(help))

enum cli_kind { CLI_FLAG, CLI_TEXT, CLI_DURATION, CLI_COUNT };
struct cli_option {
  const char *name; /* without the dashes */
  enum cli_kind kind;
  const char *arg, *help;
  int64_t least, most; /* durations in ms */
  size_t at;           /* in struct cli_values */
};
extern const struct cli_option dibs__cli_options[CLI_OPT_COUNT];

/* What was given; durations and numbers are CLI_UNSET unless given. */
struct cli_values {
  struct cli_globals globals;
  int64_t ttl_ms, wait_ms, grace_ms, interval_ms, slots, count, keep_ms, percent;
  const char *claim, *strategy;
  const char *table, *if_version;
  bool create, force;
  bool help, try_once, shared, now, retry, forget, partial;
};

enum { CLI_POS_MAX = 2 + DIBS_COLUMNS_MAX };
struct cli_command;
struct cli_call {
  const struct cli_command *command;
  struct cli_values v;
  const char *pos[CLI_POS_MAX];
  int npos;
  char **rest; /* what stands behind "--", or what a raw command shall parse itself; NULL at the end */
  int nrest;
};

/* Parses argv (argv[0] is skipped); a refused one is described in `wrong`.  `rest` points into argv, whose order may
 * be changed. */
bool dibs__cli_parse(int argc, char **argv, struct cli_call *call, char *wrong, size_t wrong_size);

/* "500ms" "30s" "2m" "1h" to milliseconds.  false, with what is wrong behind `option`. */
bool dibs__cli_duration(const char *text, int64_t *ms, char *wrong, size_t wrong_size);
bool dibs__cli_number(const char *text, uint64_t most, uint64_t *out);

/* ---- Commands (commands.c, help.c) ---- */

struct cli_command {
  const char *name, *args, *summary;
  uint32_t options; /* CLI_TAKES bits beside the globals */
  uint32_t exits;   /* CLI_MAY bits */
  uint8_t pos_min, pos_max;
  bool rest; /* a command line behind "--" is needed */
  bool raw;  /* parses its own options; globals are taken out before */
  int (*main)(struct cli_call *call);
  const char *text, *example;
};
extern const struct cli_command dibs__cli_commands[]; /* name NULL at the end */
const struct cli_command *dibs__cli_command_find(const char *name);
/* The entry nearest to a misspelt one, or NULL when none is near. */
const char *dibs__cli_nearest(const char *wrong, const char *(*nth)(size_t i, const void *arg), const void *arg);

void dibs__cli_help_command(const struct cli_command *command, FILE *out);
void dibs__cli_help_all(FILE *out);

int dibs__cli_run(struct cli_call *call);
int dibs__cli_lock(struct cli_call *call);
int dibs__cli_unlock(struct cli_call *call);
int dibs__cli_renew(struct cli_call *call);
int dibs__cli_ls(struct cli_call *call);
int dibs__cli_show(struct cli_call *call);
int dibs__cli_break(struct cli_call *call);
int dibs__cli_watch(struct cli_call *call);
int dibs__cli_record(struct cli_call *call);
int dibs__cli_stock(struct cli_call *call);
int dibs__cli_once(struct cli_call *call);
int dibs__cli_flag(struct cli_call *call);
int dibs__cli_tier(struct cli_call *call);
int dibs__cli_stats(struct cli_call *call);
int dibs__cli_doctor(struct cli_call *call);
int dibs__cli_lab(struct cli_call *call); /* raw */
int dibs__cli_help(struct cli_call *call);
int dibs__cli_version(struct cli_call *call);
/* bench.c; argv[0] is "bench", the globals are taken out. */
int dibs_cli_bench(int argc, char **argv, const struct cli_globals *globals);

/* ---- Messages (say.c) ---- */

/* One line on standard error, `dibs: ...`, or with --json an object; returns `code`.  `status` is "" or a status's
 * name.  --quiet silences plain answers only. */
int dibs__cli_fail(const struct cli_globals *globals, int code, const char *status, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
/* The same for what the library answered; `what` is said when it gave no text. */
int dibs__cli_fail_status(const struct cli_globals *globals, dibs_status status, const dibs_error *error,
                          const char *what);
int dibs__cli_exit_of(dibs_status status);
/* A remark that is no failure: `dibs: ...`; not with --quiet or --json. */
void dibs__cli_note(const struct cli_globals *globals, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Flushes standard output: CLI_DONE, or CLI_FAILED and a line when it can't be written. */
int dibs__cli_flush(const struct cli_globals *globals);

/* ---- Stores and leases (common.c) ---- */

/* Opens the store of the globals; CLI_DONE, else an exit code, said. */
int dibs__cli_open(const struct cli_globals *globals, uint32_t flags, dibs_store **store);
/* The store's URI for another process: what was given, relative files made absolute.  malloc'd; NULL: no memory. */
char *dibs__cli_store_uri(const struct cli_globals *globals, const dibs_store *store);
/* mode, slots, ttl, wait and owner as given.  CLI_DONE or CLI_USAGE, said. */
int dibs__cli_lease_options(const struct cli_values *values, dibs_lease_options *options);
/* Draws an id, so that asking again after UNKNOWN finds its own grant. */
void dibs__cli_draw_id(char id[33]);

/* The lease that lock, or run, told about: from the environment or standard input, never from arguments. */
struct cli_lease_in {
  char name[DIBS_NAME_MAX + 1]; /* "" when not told */
  char id[33];
  uint64_t fence;
  int64_t ttl_ms; /* CLI_UNSET when not told */
  bool has_id, has_fence;
};
enum { CLI_LEASE_IN_MAX = 8192 };
/* Lines as lock prints them, its JSON, or "ID FENCE".  false with what is wrong. */
bool dibs__cli_lease_parse(const char *text, size_t length, struct cli_lease_in *in, char *wrong, size_t wrong_size);
/* One of DIBS_NAME, DIBS_LEASE, DIBS_FENCE, DIBS_TTL; other keys are passed over. */
bool dibs__cli_lease_keep(const char *key, const char *value, struct cli_lease_in *in, char *wrong, size_t wrong_size);
/* Name, id and fence of a call: NAME from arguments or DIBS_NAME, the rest by DIBS_LEASE and DIBS_FENCE, or from
 * standard input when an argument is "-".  CLI_DONE or CLI_USAGE, said. */
int dibs__cli_lease_in(const struct cli_call *call, int first_pos, struct cli_lease_in *in);
int dibs__cli_lease_adopt(const struct cli_call *call, dibs_store *store, const struct cli_lease_in *in,
                          dibs_lease **lease);
/* The table of --table, FILE or FILE#SECTION; NULL if none was given.  CLI_DONE, else an exit code, said. */
int dibs__cli_table(const struct cli_call *call, dibs_table **table);
/* 32 hexadecimal digits. */
bool dibs__cli_is_id(const char *text);

/* ---- Output (json.c, table.c, rows.c) ---- */

/* Writes JSON; commas by itself.  A key is given for members of an object, NULL for elements of an array. */
struct cli_json {
  FILE *out;
  bool comma;
  int depth;
};
void dibs__cli_json_open(struct cli_json *json, const char *key, char bracket);
void dibs__cli_json_close(struct cli_json *json, char bracket);
void dibs__cli_json_text(struct cli_json *json, const char *key, const char *text); /* NULL: null */
void dibs__cli_json_int(struct cli_json *json, const char *key, int64_t number);
void dibs__cli_json_uint(struct cli_json *json, const char *key, uint64_t number);
void dibs__cli_json_real(struct cli_json *json, const char *key, double number);
void dibs__cli_json_bool(struct cli_json *json, const char *key, bool yes);

/* Reads one code point; invalid bytes are U+FFFD, one each.  Returns how many bytes it took, at least 1. */
size_t dibs__cli_utf8(const char *text, size_t length, uint32_t *point);
/* Columns on a terminal; control characters count as one. */
size_t dibs__cli_width(const char *text);
/* Prints with control characters shown as '?', cut to `width` columns with an ellipsis (0: as it is). */
void dibs__cli_put(FILE *out, const char *text, size_t width);
/* Columns of the terminal that `fd` is; 0: none. */
size_t dibs__cli_columns(int fd);

enum { CLI_CELLS_MAX = 12 };
struct cli_table;
/* `heads` are the columns, ended by NULL; a head that begins with '>' is set to the right, one that begins with '*'
 * is the first to be cut when the terminal is narrow, one with '-' is left out when that is not enough. */
struct cli_table *dibs__cli_table_new(const char *const *heads);
/* Adds the next cell of the current row; copies it.  false: no memory. */
bool dibs__cli_table_add(struct cli_table *table, const char *text);
void dibs__cli_table_print(const struct cli_table *table, size_t columns, FILE *out);
void dibs__cli_table_free(struct cli_table *table);

/* A kept copy of what dibs_list tells. */
struct cli_row {
  dibs_lease_info info;
  char *name, *owner;
};
struct cli_rows {
  struct cli_row *row;
  size_t count, room;
  bool full; /* no memory was left */
};
int dibs__cli_rows_add(const dibs_lease_info *info, void *rows); /* a dibs_list_fn */
void dibs__cli_rows_free(struct cli_rows *rows);
void dibs__cli_rows_table(const struct cli_rows *rows, size_t columns, FILE *out);
void dibs__cli_row_json(struct cli_json *json, const struct cli_row *row, const char *event, int64_t at_ms);
const char *dibs__cli_state_name(uint32_t state);
const char *dibs__cli_mode_name(dibs_mode mode);
/* "29.1s", "2m05s", "450ms". */
void dibs__cli_span(char *to, size_t size, int64_t ms);

#endif
