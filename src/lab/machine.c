/* SPDX-License-Identifier: MIT */
/*
 * What figures depend on: when and with which version they were measured, the machine, and the settings that decide
 * what a commit survives.  Without a name of the machine: reports are passed on.
 */
#include "base/date.h"
#include "lab/lab.h"
#include "lab/locks.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/utsname.h>
#include <unistd.h>

enum { LINE_MAX_BYTES = 512 };

/* The text after "KEY:" in the first such line of a file of /proc. */
static bool proc_value(const char *path, const char *key, char *to, size_t size) {
  char line[LINE_MAX_BYTES];
  FILE *file = fopen(path, "re");
  bool found = false;
  to[0] = '\0';
  while (file && !found && fgets(line, sizeof line, file)) {
    char *colon = strchr(line, ':');
    found = colon && strncmp(line, key, strlen(key)) == 0;
    if (!found) continue;
    colon++;
    colon += strspn(colon, " \t");
    snprintf(to, size, "%.*s", (int)strcspn(colon, "\n"), colon);
  }
  if (file) fclose(file);
  return found;
}

void dibs__lab_machine(struct lab_sheet *sheet) {
  int64_t now = dibs__wall_ms() / 1000, year, month, day, days = dibs__day_of(now), rest = now - days * DIBS__DAY_S;
  char model[200];
  struct utsname name;
  dibs__date_of(days, &year, &month, &day);
  dibs__lab_fact(sheet, "date", "Date", "%04" PRId64 "-%02" PRId64 "-%02" PRId64 " %02d:%02d UTC", year, month, day,
                 (int)(rest / 3600), (int)(rest / 60 % 60));
  dibs__lab_fact(sheet, "version", "dibs", "%s", dibs_version());
  if (!proc_value("/proc/cpuinfo", "model name", model, sizeof model)) snprintf(model, sizeof model, "unknown");
  if (uname(&name) != 0) return;
  double memory = (double)sysconf(_SC_PHYS_PAGES) * (double)sysconf(_SC_PAGESIZE) / (1024.0 * 1024 * 1024);
  dibs__lab_fact(sheet, "machine", "Machine", "%ld processors (%s), %.1f GiB memory, %s %.40s, %.20s",
                 sysconf(_SC_NPROCESSORS_ONLN), model, memory, name.sysname, name.release, name.machine);
}

static bool text_of(struct lab_line *line, const char *sql, char *to, size_t size) {
  to[0] = '\0';
  if (dibs__lab_run_sql(line, sql, NULL, 0) != DIBS__SQL_OK || line->wire->engine->rows(line->wire, 0) == 0)
    return false;
  struct dibs__sql_value cell = line->wire->engine->cell(line->wire, 0, 0, 0, DIBS__SQL_TEXT);
  snprintf(to, size, "%.*s", (int)cell.len, cell.p ? cell.p : "");
  return to[0] != '\0';
}

static void embedded_durability(struct lab *lab) {
  static const char *const levels[] = {"OFF", "NORMAL", "FULL", "EXTRA"};
  char mode[64];
  int64_t level;
  if (!text_of(&lab->line, "PRAGMA journal_mode", mode, sizeof mode)) return;
  if (dibs__lab_number(&lab->line, "PRAGMA synchronous", -1, &level) != DIBS__SQL_OK || level < 0 || level > 3) return;
  dibs__lab_fact(&lab->sheet, "durability", "Durability", "journal_mode=%s, synchronous=%s", mode, levels[level]);
}

void dibs__lab_durability(struct lab *lab) {
  char text[400];
  const struct dibs__sql_engine *engine = lab->line.wire->engine;
  if (!engine->sessions) {
    embedded_durability(lab);
    return;
  }
  bool postgres = strcmp(engine->name, "PostgreSQL") == 0;
  const char *sql = postgres ? "SELECT 'fsync=' || current_setting('fsync') || ', synchronous_commit=' || "
                               "current_setting('synchronous_commit') || ', full_page_writes=' || "
                               "current_setting('full_page_writes') || ', wal_sync_method=' || "
                               "current_setting('wal_sync_method')"
                             : "SELECT CONCAT('innodb_flush_log_at_trx_commit=', @@innodb_flush_log_at_trx_commit, "
                               "', sync_binlog=', @@sync_binlog, ', log_bin=', @@log_bin, ', innodb_doublewrite=', "
                               "@@innodb_doublewrite)";
  if (text_of(&lab->line, sql, text, sizeof text)) dibs__lab_fact(&lab->sheet, "durability", "Durability", "%s", text);
}

void dibs__lab_lock_durability(struct lab *lab) {
  for (size_t i = 0; i < lab->locks_count; i++) {
    char why[200], append[64], sync[64], save[100], info[2000], version[40] = "";
    if (!dibs__lab_lock_fits(LAB_LOCK_SPIN, lab->locks[i])) continue;
    struct lab_redis *redis = dibs__lab_redis_open(lab->locks[i], why, sizeof why);
    if (!redis) continue;
    const char *ask[][3] = {{"CONFIG", "GET", "appendonly"},
                            {"CONFIG", "GET", "appendfsync"},
                            {"CONFIG", "GET", "save"},
                            {"INFO", "server", NULL}};
    bool known = dibs__lab_redis_run(redis, ask[3], 2, info, sizeof info) == LAB_REDIS_DONE;
    const char *at = known ? strstr(info, "redis_version:") : NULL;
    if (at) snprintf(version, sizeof version, " %.*s", (int)strcspn(at + 14, "\r\n"), at + 14);
    if (dibs__lab_redis_run(redis, ask[0], 3, append, sizeof append) == LAB_REDIS_DONE &&
        dibs__lab_redis_run(redis, ask[1], 3, sync, sizeof sync) == LAB_REDIS_DONE &&
        dibs__lab_redis_run(redis, ask[2], 3, save, sizeof save) == LAB_REDIS_DONE)
      dibs__lab_fact(&lab->sheet, "locks_durability", "Durability of locks",
                     "Redis%s: appendonly=%s, appendfsync=%s, save=\"%s\"", version, append, sync, save);
    dibs__lab_redis_close(redis);
    return;
  }
}
