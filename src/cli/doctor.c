/* SPDX-License-Identifier: MIT */
/*
 * The file of an embedded store, found among the descriptors of this process: the very file in use, under whatever
 * name.  It is inspected through these descriptors, because opening and closing it once more would drop the locks of
 * this process.
 */
#include "base/port.h"
#include "cli/cli.h"
#include "guard/guard.h"
#include "info/info.h"
#include "store/locate.h"
#include "store/store.h"
#include "store/uri.h"

#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <linux/magic.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/pidfd.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <unistd.h>

#ifndef XFS_SUPER_MAGIC
#define XFS_SUPER_MAGIC 0x58465342
#endif
#ifndef ZFS_SUPER_MAGIC
#define ZFS_SUPER_MAGIC 0x2fc12fc1
#endif

enum {
  PATH_CAPACITY = 4200,
  ENGINE_MS = 4500, /* for what a driver sees of its servers: less than a call of the core may take */
  HEADER = 100,     /* bytes; the schema's version is at 60, big end first */
  HEADER_SCHEMA = 60,
  LITTLE_MIB = 64, /* of free space: the log grows by this within minutes of heavy use */
  LONG_LOG_MIB = 256
};

static const struct {
  unsigned long magic;
  const char *name;
} systems[] = {{EXT4_SUPER_MAGIC, "ext4"}, {XFS_SUPER_MAGIC, "xfs"},   {BTRFS_SUPER_MAGIC, "btrfs"},
               {TMPFS_MAGIC, "tmpfs"},     {ZFS_SUPER_MAGIC, "zfs"},   {OVERLAYFS_SUPER_MAGIC, "overlayfs"},
               {F2FS_SUPER_MAGIC, "f2fs"}, {FUSE_SUPER_MAGIC, "fuse"}, {MSDOS_SUPER_MAGIC, "vfat"}};

/* The database among the descriptors of this process, and its path; -1: none. */
static int find_file(char path[PATH_CAPACITY]) {
  static const char magic[16] = "SQLite format 3";
  DIR *own = opendir("/proc/self/fd");
  if (own == NULL) return -1;
  int found = -1;
  const struct dirent *entry;
  while (found < 0 && (entry = readdir(own)) != NULL) {
    char *end, link[64], head[sizeof magic];
    long fd = strtol(entry->d_name, &end, 10);
    struct stat st;
    if (end == entry->d_name || fstat((int)fd, &st) != 0 || !S_ISREG(st.st_mode)) continue;
    if (pread((int)fd, head, sizeof head, 0) != (ssize_t)sizeof head || memcmp(head, magic, sizeof head) != 0) continue;
    snprintf(link, sizeof link, "/proc/self/fd/%ld", fd);
    ssize_t length = readlink(link, path, PATH_CAPACITY - 8);
    if (length <= 0) continue;
    path[length] = '\0';
    found = (int)fd;
  }
  closedir(own);
  return found;
}

static void doctor_report(struct doctor *d, const char *check, const char *next, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

static void report_at(struct doctor *d, enum dibs__finding_level level, const char *check, const char *next,
                      const char *found);

static void check_schema(struct doctor *d, int fd) {
  unsigned char head[HEADER];
  if (pread(fd, head, sizeof head, 0) != (ssize_t)sizeof head) return;
  const unsigned char *v = head + HEADER_SCHEMA;
  unsigned version = (unsigned)v[0] << 24 | (unsigned)v[1] << 16 | (unsigned)v[2] << 8 | v[3];
  if (version > 0) doctor_report(d, "schema", NULL, "version %u", version);
}

static void check_rights(struct doctor *d, int fd, const char *path) {
  struct stat file, folder;
  char parent[PATH_CAPACITY];
  if (fstat(fd, &file) != 0) return;
  snprintf(parent, sizeof parent, "%s", path);
  char *slash = strrchr(parent, '/');
  if (slash != NULL) slash[slash == parent ? 1 : 0] = '\0';
  if (slash == NULL || stat(parent, &folder) != 0) folder = (struct stat){0};
  const char *next = NULL;
  if (file.st_nlink == 0)
    next = "the file was deleted while processes use it: end every process that uses it, then start again";
  else if (file.st_nlink > 1)
    next = "remove the other hard links: each name has a log of its own, and two logs damage the file";
  else if (file.st_mode & S_IWOTH)
    next = "chmod o-w the file: every user can write to it and so break every lease";
  else if ((folder.st_mode & S_IWOTH) && !(folder.st_mode & S_ISVTX))
    next = "chmod o-w the folder: every user can replace the file";
  else if (file.st_mode & S_IROTH)
    next = "chmod o-r the file: it contains the ids of leases";
  doctor_report(d, "file", next, "%s, mode %04o, owner %u:%u", path, (unsigned)(file.st_mode & 07777),
                (unsigned)file.st_uid, (unsigned)file.st_gid);
}

static void check_space(struct doctor *d, int fd, const char *path) {
  struct statfs fs;
  if (fstatfs(fd, &fs) != 0) {
    doctor_report(d, "space", "read the message, then try again", "cannot inspect the file system: %s",
                  strerror(errno));
    return;
  }
  const char *name = NULL;
  for (size_t i = 0; i < sizeof systems / sizeof *systems; i++)
    if (systems[i].magic == (unsigned long)fs.f_type) name = systems[i].name;
  char other[32];
  snprintf(other, sizeof other, "type %#lx", (unsigned long)fs.f_type);
  unsigned long long mib = (unsigned long long)fs.f_bavail * (unsigned long long)fs.f_bsize >> 20;
  doctor_report(d, "space", mib < LITTLE_MIB ? "free some space: on a full disk dibs refuses every lease" : NULL,
                "%llu MiB free on %s", mib, name != NULL ? name : other);
  char log[PATH_CAPACITY + 8];
  struct stat st;
  snprintf(log, sizeof log, "%s-wal", path);
  if (stat(log, &st) != 0) return;
  bool is_long = st.st_size >> 20 > LONG_LOG_MIB;
  doctor_report(d, "log",
                is_long ? "find a process that has been reading the file for minutes: the log can't shrink meanwhile"
                        : NULL,
                "%lld KiB", (long long)(st.st_size >> 10));
}

/* Checks the file of an embedded store that this process has open. */
static void doctor_file(struct doctor *d) {
  char path[PATH_CAPACITY];
  int fd = find_file(path);
  if (fd < 0) return;
  check_rights(d, fd, path);
  check_schema(d, fd);
  check_space(d, fd, path);
}

/* `dibs doctor` of several stores as one: whether each is usable from here, and the state of each tier. */

/* The member in [from, end) as a store of its own, without the parameters of the whole. */
static char *copy_member_uri(const char *from, const char *end) {
  static const char whole[] = "tiers.";
  char *uri = strndup(from, (size_t)(end - from));
  char *mark = uri ? strchr(uri, '?') : NULL;
  if (!mark) return uri;
  char *to = mark + 1;
  for (char *at = to; *at;) {
    size_t len = strcspn(at, "&");
    bool more = at[len] == '&';
    if (strncmp(at, whole, sizeof whole - 1) != 0) {
      if (to > mark + 1) *to++ = '&';
      memmove(to, at, len);
      to += len;
    }
    at += len + more;
  }
  if (to == mark + 1) to = mark;
  *to = '\0';
  return uri;
}

/* Where the store is, according to its name.  NOWHERE: the name can't be read. */
static enum { NOWHERE, FILE_HERE, SERVER } position_of(const char *store) {
  char *uri = NULL;
  struct dibs__result result = {.text = ""};
  struct dibs__uri parsed;
  if (dibs__locate(store, &uri, &result) != DIBS_OK) return NOWHERE;
  bool known = dibs__uri_parse(uri, &parsed, &result) == DIBS_OK;
  bool file = known && strcmp(parsed.scheme, "sqlite") == 0;
  if (known) dibs__uri_free(&parsed);
  dibs__locate_free(uri);
  return !known ? NOWHERE : file ? FILE_HERE : SERVER;
}

/* The advice for a store that can't be opened, with what the attempt `said`. */
static const char *doctor_next(const char *store, dibs_status status, const char *said) {
  bool file = position_of(store) == FILE_HERE, server = position_of(store) == SERVER;
  switch (status) {
  case DIBS_INVALID:
    return "correct the store's URI (see \"named by\" above); dibs(1) lists schemes and parameters";
  case DIBS_DENIED:
    return file ? "run dibs as the owner of the file, or create it with ?mode=0660 for a group"
                : "check user, password and privileges; doc/internals/servers.md and redis.md list the privileges that "
                  "dibs needs";
  case DIBS_UNSUPPORTED:
    return file ? "choose a path on a local file system"
           : strstr(said, "one of several tiers")
               ? "leave it out of the tiers, or use it alone; dibs(1) lists the stores that can be tiers"
               : "install the package of that driver, or a server and client that support it";
  case DIBS_CORRUPT:
    return file ? "move the file away (dibs did not change it); dibs then creates another"
                : "do not repair the tables by hand: restore them, or choose an empty schema (?schema=, ?prefix=)";
  case DIBS_TOO_NEW:
    return "install the version of dibs that created it, or a later one";
  case DIBS_UNAVAILABLE:
    return server ? "check that the server is up and that host and port are right: try the server's own client from "
                    "this machine"
                  : "read the message, then try again";
  default:
    return "read the message, then try again";
  }
}

static void report_finding(const struct dibs__finding *finding, void *user) {
  report_at(user, finding->level, finding->check.p, finding->next.len ? finding->next.p : NULL, finding->found.p);
}

/* What the driver sees of its servers. */
static void check_engine(struct doctor *d, dibs_store *store) {
  dibs_error error = {0};
  dibs_status status = dibs__guard_engine(store, ENGINE_MS, report_finding, d, &error);
  if (status != DIBS_OK && status != DIBS_UNSUPPORTED)
    doctor_report(d, "server", "read the message, then try again", "%s", error.text);
}

static void check_member(struct doctor *d, const char *uri) {
  dibs_store_options options = {.size = sizeof options, .owner = d->globals->owner};
  dibs_error error = {0};
  dibs_store *store = NULL;
  dibs__tick before = dibs__tick_now();
  dibs_status status = dibs_open(uri, &options, &store, &error);
  int64_t us = (dibs__tick_now().ns - before.ns) / 1000;
  if (status == DIBS_OK)
    doctor_report(d, "member", NULL, "%s, opened in %lld us", dibs_store_uri(store), (long long)us);
  else
    doctor_report(d, "member", doctor_next(uri, status, error.text), "%s", error.text);
  if (status == DIBS_OK) check_engine(d, store);
  dibs_close(store);
}

static void doctor_members(struct doctor *d) {
  char *uri = NULL;
  struct dibs__result result = {.text = ""};
  if (dibs__locate(d->globals->store, &uri, &result) != DIBS_OK) return;
  const char *end = uri + strlen(uri);
  for (const char *at = uri, *comma; at < end && (at > uri || dibs__uri_next_member(at, end) < end); at = comma + 1) {
    comma = dibs__uri_next_member(at, end);
    char *one = copy_member_uri(at, comma);
    if (one) check_member(d, one);
    dibs__locate_free(one);
  }
  dibs__locate_free(uri);
}

static void check_tier(struct doctor *d, const dibs_tier_info *tier, bool anchor) {
  static const char *const hands[] = {"up", "switched off by hand", "kept on by hand"};
  if (tier->down)
    doctor_report(d, "tier",
                  "see dibs tier status for the clients that can reach it; dibs returns to the tier by itself",
                  "%s is down by the vote of its clients; it serves %u of 100 buckets", tier->name, tier->buckets);
  else if (tier->buckets < tier->wanted)
    doctor_report(d, "tier",
                  "a running client moves the rest as soon as their tiers are reachable and earlier moves have ended; "
                  "without one, dibs tier move moves them",
                  "%s serves %u of the %u buckets that it should serve", tier->name, tier->buckets, tier->wanted);
  else
    doctor_report(d, "tier", NULL, "%s is %s%s, serves %u of 100 buckets, is rolled out to %u%%", tier->name,
                  hands[tier->hand], anchor ? ", the anchor" : "", tier->buckets, tier->percent);
}

/* For a store of several tiers: each member by itself, also if the whole can't be opened; and the state of each tier.
 */
static void doctor_tiers(struct doctor *d, dibs_store *store) {
  struct cli_tiers tiers;
  dibs_error error = {0};
  dibs_status status = dibs__cli_tiers_read(store, &tiers, &error);
  size_t troubled = 0;
  if (status == DIBS_OK && !dibs__cli_tiers_confirmed(&tiers))
    doctor_report(d, "anchor", "restore it: without it no bucket moves and no flag changes",
                  "the last tier is unreachable");
  else if (status != DIBS_OK && status != DIBS_UNSUPPORTED)
    doctor_report(d, "tiers", doctor_next(d->globals->store, status, error.text), "%s", error.text);
  if (status == DIBS_OK) {
    uint32_t served = 0;
    for (size_t i = 0; i < tiers.count; i++) served += tiers.tier[i].info.buckets;
    if (served == 0) doctor_report(d, "tiers", NULL, "the tiers have not granted a lease yet, and no flag is set");
    for (size_t i = 0; i < tiers.count && served > 0; i++) check_tier(d, &tiers.tier[i].info, i + 1 == tiers.count);
    for (size_t i = 0; i < tiers.clients; i++) {
      bool down = false;
      for (uint32_t n = 0; n < tiers.client[i].info.tiers; n++) down = down || tiers.client[i].info.down[n];
      troubled += down;
    }
    if (tiers.info.restored_ms >= 0)
      doctor_report(
          d, "restored", "check dibs flag ls and dibs tier strictness, then confirm with dibs tier bump",
          "the anchor went back: its record is older than it was, as after the restore of a backup; dibs raised "
          "all epochs");
    if (tiers.info.pinned >= 0 && (size_t)tiers.info.pinned < tiers.count)
      doctor_report(d, "moved", NULL, "all names were moved to %s by hand; dibs tier move auto ends that",
                    tiers.tier[tiers.info.pinned].name);
    doctor_report(d, "epochs",
                  dibs__cli_tiers_few_epochs(&tiers)
                      ? "find out what uses them: dibs stats counts moves and epochs, and dibs tier bump uses many"
                      : NULL,
                  "%u%% of the epochs are left", tiers.info.epochs_left_percent);
    doctor_report(d, "clients", troubled ? "see dibs tier status" : NULL,
                  "%u clients, %zu of them in trouble with a tier; strictness %s", tiers.info.clients, troubled,
                  dibs__info_strictness(tiers.info.strictness));
  }
  dibs__cli_tiers_free(&tiers);
}

/* `dibs doctor` checks the store and the machine.  It prints a line for each finding, with advice where there is
 * trouble. */

enum {
  ROUNDS = 15,
  SLOW_US = 50000, /* a lease that costs more than this turns every short job into a long one */
  STEPS = 3
};

static void report_at(struct doctor *d, enum dibs__finding_level level, const char *check, const char *next,
                      const char *found) {
  static const char *const words[] = {
      [DIBS__FINDING_FINE] = "fine", [DIBS__FINDING_WARNING] = "WARNING", [DIBS__FINDING_TROUBLE] = "TROUBLE"};
  static const char *const levels[] = {
      [DIBS__FINDING_FINE] = "fine", [DIBS__FINDING_WARNING] = "warning", [DIBS__FINDING_TROUBLE] = "trouble"};
  if (level > DIBS__FINDING_TROUBLE) level = DIBS__FINDING_TROUBLE;
  d->trouble = d->trouble || level == DIBS__FINDING_TROUBLE;
  if (d->globals->json) {
    dibs__json_open(&d->json, NULL, '{');
    dibs__json_text(&d->json, "check", check);
    dibs__json_bool(&d->json, "fine", level != DIBS__FINDING_TROUBLE);
    dibs__json_text(&d->json, "level", levels[level]);
    dibs__json_text(&d->json, "found", found);
    dibs__json_text(&d->json, "next", next);
    dibs__json_close(&d->json, '}');
    return;
  }
  printf("%-7s  %-8s ", words[level], check);
  dibs__cli_put(stdout, found, 0);
  putchar('\n');
  if (next == NULL) return;
  printf("         %-8s -> ", "");
  dibs__cli_put(stdout, next, 0);
  putchar('\n');
}

/* `next` is the advice; NULL: all is fine. */
static void doctor_report(struct doctor *d, const char *check, const char *next, const char *format, ...) {
  char text[900];
  va_list args;
  va_start(args, format);
  vsnprintf(text, sizeof text, format, args);
  va_end(args);
  report_at(d, next != NULL ? DIBS__FINDING_TROUBLE : DIBS__FINDING_FINE, check, next, text);
}

static void check_machine(struct doctor *d) {
  char boot[37];
  if (dibs__boot_id(boot))
    doctor_report(d, "boot", NULL, "boot id %s", boot);
  else
    doctor_report(d, "boot", "mount /proc, without subset=pid: the embedded store refuses to open without it",
                  "cannot read the kernel's boot id");
  int64_t offset_ns = dibs__boot_clock_offset_ns();
  dibs__tick first = dibs__tick_now(), second = dibs__tick_now();
  if (dibs__tick_before(second, first))
    doctor_report(d, "clock", "look for a kernel or hypervisor update: leases depend on this clock",
                  "the boot-time clock went backwards");
  else if (offset_ns != 0)
    doctor_report(d, "clock", NULL,
                  "boot-time clock, %lld s off in a time namespace: do not share the store outside it",
                  (long long)(offset_ns / 1000000000));
  else
    doctor_report(d, "clock", NULL, "boot-time clock, which continues while the machine is suspended");
  int fd = pidfd_open(getpid(), 0);
  int error = errno;
  if (fd >= 0) close(fd);
  bool proc = access("/proc/self/stat", R_OK) == 0;
  if (fd >= 0 && proc)
    doctor_report(d, "minder", NULL, "dibs run can end a command with all processes that it started");
  else
    doctor_report(d, "minder",
                  "mount /proc and allow pidfd_open: without them dibs run ends only the command's process group", "%s",
                  proc ? strerror(error) : "cannot read /proc");
}

static int count_row(const dibs_lease_info *info, void *user) {
  size_t *counts = user;
  counts[info->state == DIBS_WAITS || info->state == DIBS_OFFERED]++;
  return 0;
}

static void check_list(struct doctor *d, dibs_store *store) {
  size_t counts[2] = {0, 0};
  dibs_error error = {0};
  dibs_status status = dibs_list(store, NULL, count_row, counts, &error);
  if (status == DIBS_OK)
    doctor_report(d, "leases", NULL, "%zu held, %zu waiting", counts[0], counts[1]);
  else
    doctor_report(d, "leases", "read the message, then try again", "%s", error.text);
}

/* What the store keeps, and what it does not: each engine has its own set. */
static void check_families(struct doctor *d, dibs_store *store) {
  static const struct {
    enum dibs__family family;
    const char *words;
  } rows[] = {{DIBS__FAM_RECORD, "records"}, {DIBS__FAM_STOCK, "stocks"},     {DIBS__FAM_ONCE, "once keys"},
              {DIBS__FAM_TASK, "tasks"},     {DIBS__FAM_COUNTER, "counters"}, {DIBS__FAM_RUN, "history"}};
  char kept[300], missing[300] = "";
  uint32_t families, caps;
  dibs__guard_keeps(store, &families, &caps);
  snprintf(kept, sizeof kept, "leases (exclusive%s%s)", caps & DIBS__CAP_SHARED ? ", shared" : "",
           caps & DIBS__CAP_COUNTED ? ", counted" : "");
  bool lanes = caps & DIBS__CAP_COUNTED && !(caps & DIBS__CAP_FENCES_APART);
  snprintf(lanes ? kept + strlen(kept) : missing, 20, "%slanes", lanes ? ", " : "");
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
    bool tables = rows[i].family == DIBS__FAM_TASK && caps & DIBS__CAP_TASK_TABLES;
    char *to = tables || families & (1u << rows[i].family) ? kept : missing;
    size_t used = strlen(to);
    snprintf(to + used, sizeof kept - used, "%s%s%s", used ? ", " : "", rows[i].words,
             tables ? " of your own table" : "");
  }
  doctor_report(d, "keeps", NULL, "%s%s%s", kept, *missing ? "; not: " : "", missing);
  if (caps & DIBS__CAP_SESSION)
    doctor_report(d, "session", NULL, "leases end with the connection of their process; dibs lock is refused");
}

static int by_size(const void *a, const void *b) {
  int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
  return (x > y) - (x < y);
}

/* Microseconds of each step, added to us[step][round]. */
static dibs_status measure_round(dibs_store *store, const char *name, int64_t us[STEPS][ROUNDS], size_t round,
                                 dibs_error *error) {
  dibs_lease_options options = {.size = sizeof options, .flags = DIBS_NO_RENEW};
  dibs_lease *lease = NULL;
  dibs__tick at[STEPS + 1];
  at[0] = dibs__tick_now();
  dibs_status status = dibs_acquire(store, name, &options, &lease, error);
  at[1] = dibs__tick_now();
  if (status == DIBS_OK) status = dibs_renew(lease, 0, error);
  at[2] = dibs__tick_now();
  if (status == DIBS_OK) status = dibs_release(lease, error);
  at[3] = dibs__tick_now();
  dibs_lease_free(lease);
  for (size_t i = 0; i < STEPS; i++) us[i][round] = (at[i + 1].ns - at[i].ns) / 1000;
  return status;
}

static void check_lease(struct doctor *d, dibs_store *store) {
  static const char *const words[STEPS] = {"acquire", "renew", "release"};
  int64_t us[STEPS][ROUNDS];
  char id[33], name[64];
  dibs__cli_draw_id(id);
  snprintf(name, sizeof name, "dibs.doctor.%s", id);
  dibs_error error = {0};
  dibs_status status = DIBS_OK;
  for (size_t i = 0; i < ROUNDS && status == DIBS_OK; i++) status = measure_round(store, name, us, i, &error);
  if (status != DIBS_OK) {
    doctor_report(d, "lease", "read the message; nothing works until a lease can be acquired", "%s", error.text);
    return;
  }
  int64_t total = 0;
  for (size_t i = 0; i < STEPS; i++) {
    qsort(us[i], ROUNDS, sizeof us[i][0], by_size);
    total += us[i][ROUNDS / 2];
    doctor_report(d, words[i], NULL, "median %lld us, longest %lld us of %d", (long long)us[i][ROUNDS / 2],
                  (long long)us[i][ROUNDS - 1], ROUNDS);
  }
  if (total > SLOW_US)
    doctor_report(d, "speed",
                  position_of(d->globals->store) == FILE_HERE
                      ? "check whether the disk or the machine is overloaded (iostat, top)"
                      : "check whether the server is overloaded or the network is slow (ping)",
                  "a lease costs %lld ms", (long long)(total / 1000));
}

/* What named the store; and can every user read a password in that file? */
static void check_source(struct doctor *d) {
  static const char *const words[] = {[DIBS__BY_ENVIRONMENT] = "DIBS_STORE",
                                      [DIBS__BY_USER_FILE] = "your dibs.ini",
                                      [DIBS__BY_SYSTEM_FILE] = "the system's dibs.ini",
                                      [DIBS__BY_DEFAULT] = "nothing; the default file"};
  const struct cli_globals *g = d->globals;
  char *name = NULL;
  enum dibs__named_by by = DIBS__BY_ENVIRONMENT;
  struct dibs__result result = {.text = ""};
  struct stat st;
  if (!g->store_given && dibs__locate_default(&name, &by, &result) != DIBS_OK) return; /* opening it says why */
  const char *whole = g->store_given ? g->store : name, *by_words = g->store_given ? "--store" : words[by];
  if (!whole) return;
  size_t length = strcspn(whole, "#");
  char file[PATH_MAX];
  bool is_file = dibs__locate_is_file(whole) && length < sizeof file;
  snprintf(file, sizeof file, "%.*s", is_file ? (int)length : 0, whole);
  bool open = is_file && stat(file, &st) == 0 && (st.st_mode & S_IROTH) && dibs__locate_tells_secret(whole);
  doctor_report(d, "named by", open ? "chmod o-r the file: every user can read the password in it" : NULL, "%s%s%s",
                by_words, is_file ? ": " : "", is_file ? whole : "");
  dibs__locate_free(name);
}

static void check_store(struct doctor *d, bool probe) {
  const struct cli_globals *g = d->globals;
  dibs_store_options options = {.size = sizeof options, .owner = g->owner};
  dibs_error error = {0};
  dibs_store *store = NULL;
  dibs__tick before = dibs__tick_now();
  dibs_status status = dibs_open(g->store, &options, &store, &error);
  int64_t us = (dibs__tick_now().ns - before.ns) / 1000;
  if (status != DIBS_OK) {
    doctor_report(d, "store", doctor_next(g->store, status, error.text), "%s", error.text);
    return;
  }
  doctor_report(d, "store", NULL, "%s, opened in %lld us", dibs_store_uri(store), (long long)us);
  check_engine(d, store);
  check_families(d, store);
  if (probe) check_lease(d, store);
  check_list(d, store);
  doctor_tiers(d, store);
  /* After the list: by now the file is open. */
  doctor_file(d);
  dibs_close(store);
}

int dibs__cli_doctor(struct cli_call *call) {
  const struct cli_globals *g = &call->v.globals;
  struct doctor d = {.globals = g, .json = {.out = stdout}};
  if (g->json) {
    dibs__json_open(&d.json, NULL, '{');
    dibs__json_text(&d.json, "version", dibs_version());
    dibs__json_open(&d.json, "checks", '[');
  } else {
    doctor_report(&d, "dibs", NULL, "version %s", dibs_version());
  }
  check_machine(&d);
  check_source(&d);
  doctor_members(&d);
  check_store(&d, call->v.probe);
  if (g->json) {
    dibs__json_close(&d.json, ']');
    dibs__json_bool(&d.json, "fine", !d.trouble);
    dibs__json_close(&d.json, '}');
  }
  int code = dibs__cli_flush(g);
  if (code != CLI_DONE || !d.trouble) return code;
  return dibs__cli_fail(g, CLI_TROUBLE, "", "doctor found trouble; see the advice after each ->");
}
