/* SPDX-License-Identifier: MIT */
#include "task/crontab.h"
#include "base/duration.h"
#include "base/map.h"
#include "base/text.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { VARIABLES_MAX = 256, ZONES_MAX = 64 };
#define DURATION_MAX_MS (INT64_C(366) * 86400000)

#define DIGITS "0123456789"
#define SMALL "abcdefghijklmnopqrstuvwxyz"
#define LARGE "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
#define BLANKS " \t"

/* A zone is loaded once for a file. */
struct loaded {
  const char *name;
  struct dibs__zone *zone; /* NULL: it can't be loaded, see `wrong` */
  char wrong[200];
};

/* Where a job is in the list. */
struct named {
  struct dibs__map_node node; /* first */
  size_t job;
};

struct reading {
  struct dibs__crontab tab; /* first: what a caller gets */
  void **owned;
  size_t owned_count, owned_capacity;
  struct loaded *zones;
  size_t zone_count;
  struct dibs__map names; /* of struct named */
  const char **variables; /* of the lines below, NULL at the end */
  size_t variable_count;
  bool variables_used;   /* by a job above: its list does not change any more */
  const char *zone_name; /* of the lines below */
  uint32_t line;
  bool no_memory;
};

/* ---- Memory, freed together ---- */

static void *keep(struct reading *r, void *memory) {
  if (memory && r->owned_count == r->owned_capacity) {
    size_t wanted = r->owned_capacity * 2 + 64;
    void **bigger = realloc(r->owned, wanted * sizeof *bigger);
    if (bigger) {
      r->owned = bigger;
      r->owned_capacity = wanted;
    } else {
      free(memory);
      memory = NULL;
    }
  }
  if (memory)
    r->owned[r->owned_count++] = memory;
  else
    r->no_memory = true;
  return memory;
}

static char *keep_text(struct reading *r, const char *from, size_t length) {
  char *text = keep(r, malloc(length + 1));
  if (!text) return NULL;
  memcpy(text, from, length);
  text[length] = '\0';
  return text;
}

/* One more element of an array.  NULL: no memory. */
static void *grow(struct reading *r, void *array, size_t *count, size_t size) {
  void **p = array;
  if ((*count & (*count - 1)) == 0) { /* it is full: its size doubles */
    void *bigger = realloc(*p, (*count ? *count * 2 : 1) * size);
    if (!bigger) {
      r->no_memory = true;
      return NULL;
    }
    *p = bigger;
  }
  void *element = (char *)*p + (*count)++ * size;
  memset(element, 0, size);
  return element;
}

static bool flaw(struct reading *r, const char *format, ...) __attribute__((format(printf, 2, 3)));
static bool flaw(struct reading *r, const char *format, ...) {
  if (r->tab.flaw_count == DIBS__CRONTAB_FLAWS) return false;
  struct dibs__cron_flaw *f = grow(r, &r->tab.flaws, &r->tab.flaw_count, sizeof *f);
  va_list args;
  uint32_t code;
  if (!f) return false;
  f->line = r->line;
  va_start(args, format);
  vsnprintf(f->message, sizeof f->message, format, args);
  va_end(args);
  if (r->tab.flaw_count == DIBS__CRONTAB_FLAWS)
    snprintf(f->message, sizeof f->message, "this line and others below it are wrong, too");
  /* A quoted word may be cut within a character, or not be UTF-8 at all. */
  for (size_t at = 0, n; f->message[at]; at += n) {
    n = dibs__utf8_next(f->message + at, strlen(f->message + at), &code);
    if (n > 0) continue;
    f->message[at] = '?';
    n = 1;
  }
  return false;
}

/* ---- Zones ---- */

static const struct dibs__zone *find_zone(struct reading *r, const char *name) {
  struct loaded *found = NULL;
  for (size_t i = 0; i < r->zone_count && !found; i++)
    if (strcmp(r->zones[i].name, name) == 0) found = &r->zones[i];
  if (!found) {
    if (r->zone_count == ZONES_MAX) {
      (void)flaw(r, "there are more than %d time zones", ZONES_MAX);
      return NULL;
    }
    const char *own = keep_text(r, name, strlen(name));
    if (!own || !(found = grow(r, &r->zones, &r->zone_count, sizeof *found))) return NULL;
    found->name = own;
    (void)dibs__zone_load(name, &found->zone, found->wrong, sizeof found->wrong);
  }
  if (!found->zone) (void)flaw(r, "%s", found->wrong);
  return found->zone;
}

/* ---- Variables ---- */

static bool set_variable(struct reading *r, const char *name, size_t length, const char *value) {
  char *text = keep(r, malloc(length + strlen(value) + 2));
  if (!text) return false;
  memcpy(text, name, length);
  text[length] = '=';
  memcpy(text + length + 1, value, strlen(value) + 1);
  size_t at = 0;
  while (at < r->variable_count && strncmp(r->variables[at], text, length + 1) != 0) at++;
  if (at == VARIABLES_MAX) return flaw(r, "there are more than %d variables", VARIABLES_MAX);
  if (!r->variables || r->variables_used) {
    const char **list = keep(r, calloc(VARIABLES_MAX + 1, sizeof *list));
    if (!list) return false;
    if (r->variable_count) memcpy(list, r->variables, r->variable_count * sizeof *list);
    r->variables = list;
    r->variables_used = false;
  }
  r->variables[at] = text;
  r->variable_count += at == r->variable_count;
  return true;
}

/* NAME = VALUE, with or without quotes around the value. */
static bool read_variable(struct reading *r, char *line) {
  size_t length = strspn(line, LARGE SMALL DIGITS "_");
  char *value = line + length + strspn(line + length, BLANKS);
  if (*value++ != '=')
    return flaw(r, "'%.40s' is neither a schedule nor NAME=VALUE; a job begins with its time, like 30 2 * * *", line);
  value += strspn(value, BLANKS);
  size_t n = strlen(value);
  if (n > 1 && (*value == '"' || *value == '\'') && value[n - 1] == *value) {
    value[n - 1] = '\0';
    value++;
  }
  line[length] = '\0';
  if (strcmp(line, "CRON_TZ") == 0) {
    /* The jobs below must not fire by another zone. */
    const char *zone = keep_text(r, value, strlen(value));
    if (zone) r->zone_name = zone;
    return zone && find_zone(r, value);
  }
  if (strcmp(line, "RANDOM_DELAY") == 0)
    return flaw(r, "RANDOM_DELAY is not supported; write jitter=5m before the command of a job");
  return set_variable(r, line, length, value);
}

/* ---- Settings ---- */

static const char *const settings[] = {"name", "zone", "catch-up", "overlap", "timeout", "jitter", NULL};

static const char *nth_setting(size_t i, const void *arg) {
  (void)arg;
  return settings[i];
}

/* A word before the command that looks like a setting.  Its name is no setting: with an underscore, and unlike one, it
 * begins the command (http_proxy=...); otherwise a typing error would become a part of the command. */
static bool refuse_setting(struct reading *r, const char *name) {
  const char *near = dibs__nearest(name, nth_setting, NULL);
  if (!near && strchr(name, '_')) return true;
  return flaw(r, "unknown setting '%.40s='%s%s%s; to set a variable for the command, write env %.40s=...", name,
              near ? ": did you mean " : " (name, zone, catch-up, overlap, timeout, jitter)", near ? near : "",
              near ? "=?" : "", name);
}

static bool set_duration(struct reading *r, const char *setting, const char *value, int64_t *to) {
  char why[120];
  if (!dibs__duration_read(value, to, why, sizeof why)) return flaw(r, "%s=: %s", setting, why);
  if (*to > DURATION_MAX_MS) return flaw(r, "%s=%.40s is longer than 366d", setting, value);
  return *to > 0 || flaw(r, "%s=%s has to be longer than 0", setting, value);
}

static bool set_catch_up(struct reading *r, struct dibs__cron_job *job, const char *value) {
  static const struct {
    const char *name;
    dibs_catch_up value;
  } ways[] = {{"none", DIBS_CATCH_UP_NONE}, {"last", DIBS_CATCH_UP_LAST}, {"all", DIBS_CATCH_UP_ALL}};
  size_t length = strcspn(value, ":");
  for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
    if (strlen(ways[i].name) != length || memcmp(ways[i].name, value, length) != 0) continue;
    job->catch_up = ways[i].value;
    if (value[length] == '\0') return true;
    if (job->catch_up == DIBS_CATCH_UP_NONE) return flaw(r, "catch-up=none has no window; write catch-up=none");
    return set_duration(r, "catch-up", value + length + 1, &job->window_ms);
  }
  return flaw(r, "catch-up=%.40s is not known; write none, last:1h or all:1h", value);
}

static bool set_overlap(struct reading *r, struct dibs__cron_job *job, const char *value) {
  static const char *const ways[] = {"skip", "queue", "allow"};
  for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
    if (strcmp(ways[i], value) != 0) continue;
    job->overlap = (dibs_overlap)i;
    return true;
  }
  return flaw(r, "overlap=%.40s is not known; write skip, queue or allow", value);
}

static bool set_name(struct reading *r, struct dibs__cron_job *job, const char *value) {
  enum dibs__name_flaw wrong = dibs__name_check(value, strlen(value), DIBS__CRONTAB_NAME, NULL);
  if (wrong != DIBS__NAME_OK) return flaw(r, "the job's name '%.60s' %s", value, dibs__name_flaw_text(wrong));
  return (job->name = keep_text(r, value, strlen(value))) != NULL;
}

static bool set_one(struct reading *r, struct dibs__cron_job *job, size_t which, const char *value) {
  switch (which) {
  case 0:
    return set_name(r, job, value);
  case 1:
    return (job->zone_name = keep_text(r, value, strlen(value))) != NULL;
  case 2:
    return set_catch_up(r, job, value);
  case 3:
    return set_overlap(r, job, value);
  case 4:
    return set_duration(r, settings[which], value, &job->timeout_ms);
  default:
    return set_duration(r, settings[which], value, &job->jitter_ms);
  }
}

/* "timeout=2h".  *is_setting is false if the word begins the command.  `seen`: one bit for each setting. */
static bool read_setting(struct reading *r, struct dibs__cron_job *job, char *word, unsigned *seen, bool *is_setting) {
  char *equals = strchr(word, '=');
  size_t i = 0;
  *is_setting = equals && strspn(word, SMALL "-_") == (size_t)(equals - word) && equals > word;
  if (!*is_setting) return true;
  *equals = '\0';
  while (settings[i] && strcmp(settings[i], word) != 0) i++;
  if (!settings[i] && !refuse_setting(r, word)) return false;
  *equals = '=';
  *is_setting = settings[i] != NULL;
  if (!*is_setting) return true;
  if (*seen >> i & 1) return flaw(r, "%s= occurs twice", settings[i]);
  *seen |= 1U << i;
  if (strpbrk(equals + 1, "\"'$;`\\"))
    return flaw(r, "'%.60s' is a setting, not for the shell: its value is one word without quotes", word);
  return set_one(r, job, i, equals + 1);
}

/* ---- Jobs ---- */

/* Could the word be the weekdays of a schedule: "*", "1-5", "mon-fri"?  "php" and "apt-get" are commands.  Also those
 * of Quartz, "?", "6L" and "fri#3", which schedule.c refuses: as a command they would shift the fields before them. */
static bool is_weekdays(const char *word, size_t length) {
  static const char days[] = "sunmontuewedthufrisat";
  for (size_t i = 0; i < length;) {
    size_t letters = strspn(word + i, SMALL LARGE), others = strspn(word + i + letters, DIGITS "*,-/#?");
    bool last = letters > 0 && word[i + letters - 1] == 'L', day = last && letters == 1;
    for (const char *at = days; *at && letters - last == 3; at += 3) day = day || strncasecmp(word + i, at, 3) == 0;
    if ((letters != 0 && !day) || letters + others == 0) return false;
    i += letters + others;
  }
  return length > 0;
}

/* How much of the line is the schedule: @daily, five fields, or six if the sixth word could be weekdays. */
static size_t schedule_length(const char *line) {
  size_t end = 0;
  if (*line == '@') return strcspn(line, BLANKS);
  for (size_t fields = 0, at = 0; fields < 6 && line[at]; fields++) {
    size_t length = strcspn(line + at, BLANKS);
    if (fields == 5 && !is_weekdays(line + at, length)) break;
    end = at + length;
    at = end + strspn(line + end, BLANKS);
  }
  return end;
}

/* Separates the command from its input: % is a new line, \% a percent sign. */
static bool read_command(struct reading *r, struct dibs__cron_job *job, const char *from) {
  char *to = keep(r, malloc(strlen(from) + 2));
  if (!to) return false;
  job->command = to;
  for (; *from; from++) {
    if (*from == '\\' && from[1] == '%') {
      *to++ = *++from;
    } else if (*from != '%') {
      *to++ = *from;
    } else if (job->input) {
      *to++ = '\n';
    } else {
      *to++ = '\0';
      job->input = to;
    }
  }
  if (job->input && (to == job->input || to[-1] != '\n')) *to++ = '\n';
  *to = '\0';
  return true;
}

const struct dibs__cron_job *dibs__crontab_find(const struct dibs__crontab *tab, const char *name) {
  const struct reading *r = (const struct reading *)tab;
  uint64_t hash = dibs__hash(name, strlen(name));
  for (const struct dibs__map_node *n = dibs__map_head(&r->names, hash); n; n = n->next) {
    const struct dibs__cron_job *job = &tab->jobs[((const struct named *)n)->job];
    if (n->hash == hash && strcmp(job->name, name) == 0) return job;
  }
  return NULL;
}

static bool take_job(struct reading *r, const struct dibs__cron_job *job) {
  if (r->tab.job_count == DIBS__CRONTAB_JOBS) return flaw(r, "there are more than %d jobs", DIBS__CRONTAB_JOBS);
  const struct dibs__cron_job *other = dibs__crontab_find(&r->tab, job->name);
  if (other && other->line > 0)
    return flaw(r, "the job '%.60s' already exists on line %" PRIu32 "; give one of them another name", job->name,
                other->line);
  if (other) return flaw(r, "the job '%.60s' already exists; give one of them another name", job->name);
  struct named *named = keep(r, calloc(1, sizeof *named));
  struct dibs__cron_job *to = named ? grow(r, &r->tab.jobs, &r->tab.job_count, sizeof *to) : NULL;
  if (!to) return false;
  *to = *job;
  named->job = r->tab.job_count - 1;
  dibs__map_add(&r->names, &named->node, dibs__hash(job->name, strlen(job->name)));
  return true;
}

/* A line and a job of a list both have a zone and variables. */
static bool complete_job(struct reading *r, struct dibs__cron_job *job) {
  if (!(job->zone = find_zone(r, job->zone_name))) return false;
  if (!r->variables && !(r->variables = keep(r, calloc(1, sizeof *r->variables)))) return false;
  job->environment = r->variables;
  r->variables_used = true;
  return take_job(r, job);
}

static bool read_job(struct reading *r, char *line) {
  char wrong[200];
  struct dibs__cron_job job = {.line = r->line, .zone_name = r->zone_name, .window_ms = DIBS__CRONTAB_WINDOW_MS};
  size_t length = schedule_length(line);
  char *rest = line + length + strspn(line + length, BLANKS);
  if (!(job.text = keep_text(r, line, length))) return false;
  if (!dibs__schedule_read(job.text, &job.schedule, wrong, sizeof wrong)) return flaw(r, "%s", wrong);
  unsigned seen = 0;
  for (bool is_setting = true; *rest;) {
    size_t n = strcspn(rest, BLANKS);
    char *word = keep_text(r, rest, n);
    if (!word || !read_setting(r, &job, word, &seen, &is_setting)) return false;
    if (!is_setting) break;
    rest += n + strspn(rest + n, BLANKS);
  }
  if (!*rest || *rest == '%') return flaw(r, "the job has no command");
  if (!read_command(r, &job, rest)) return false;
  if (!job.name && strlen(job.command) > DIBS__CRONTAB_NAME)
    return flaw(r, "the command is too long to be the job's name; write name=NAME before it");
  if (!job.name && !set_name(r, &job, job.command)) return false;
  return complete_job(r, &job);
}

static bool check_time(struct reading *r, const char *name, const char *what, int64_t ms) {
  return (ms >= 0 && ms <= DURATION_MAX_MS) ||
         flaw(r, "the job '%.60s': %s is %" PRId64 ": give 0 to 366 days, in ms", name, what, ms);
}

static bool check_spec(struct reading *r, const dibs_cron_job *spec) {
  const char *name = spec->name;
  if (!name || !spec->schedule) return flaw(r, "a job has no %s", name ? "schedule" : "name");
  if ((unsigned)spec->catch_up > DIBS_CATCH_UP_ALL || (unsigned)spec->overlap > DIBS_OVERLAP_ALLOW)
    return flaw(r, "the job '%.60s': its catch_up or overlap is not known", name);
  if (strlen(spec->schedule) > DIBS__SCHEDULE_MAX || (spec->command && strlen(spec->command) > DIBS__CRONTAB_LINE))
    return flaw(r, "the job '%.60s': its schedule or command is too long", name);
  return check_time(r, name, "window_ms", spec->window_ms) && check_time(r, name, "timeout_ms", spec->timeout_ms) &&
         check_time(r, name, "jitter_ms", spec->jitter_ms);
}

static bool add_job(struct reading *r, const dibs_cron_job *spec, const char *zone) {
  char wrong[200];
  if (!check_spec(r, spec)) return false;
  struct dibs__cron_job job = {.catch_up = spec->catch_up,
                               .overlap = spec->overlap,
                               .window_ms = spec->window_ms ? spec->window_ms : DIBS__CRONTAB_WINDOW_MS,
                               .timeout_ms = spec->timeout_ms,
                               .jitter_ms = spec->jitter_ms};
  const char *command = spec->command ? spec->command : "";
  if (spec->zone) zone = spec->zone;
  if (!set_name(r, &job, spec->name)) return false;
  job.text = keep_text(r, spec->schedule, strlen(spec->schedule));
  job.zone_name = keep_text(r, zone, strlen(zone));
  job.command = keep_text(r, command, strlen(command));
  if (r->no_memory) return false;
  if (!dibs__schedule_read(job.text, &job.schedule, wrong, sizeof wrong))
    return flaw(r, "the job '%.60s': %s", job.name, wrong);
  return complete_job(r, &job);
}

bool dibs__crontab_add(struct dibs__crontab *tab, const dibs_cron_job *job, const char *zone) {
  struct reading *r = (struct reading *)tab;
  r->line = 0;
  (void)add_job(r, job, zone);
  return !r->no_memory;
}

/* ---- The file ---- */

static void read_line(struct reading *r, const char *from, size_t length) {
  if (length > 0 && from[length - 1] == '\r') length--;
  if (length > DIBS__CRONTAB_LINE) {
    (void)flaw(r, "the line is longer than %d bytes", DIBS__CRONTAB_LINE);
    return;
  }
  if (memchr(from, '\0', length)) {
    (void)flaw(r, "the line contains a zero byte");
    return;
  }
  char *line = keep_text(r, from, length);
  if (!line) return;
  while (length > 0 && strchr(BLANKS, line[length - 1])) line[--length] = '\0';
  line += strspn(line, BLANKS);
  if (*line == '\0' || *line == '#') return;
  if (strchr(LARGE SMALL "_", *line))
    (void)read_variable(r, line);
  else
    (void)read_job(r, line);
}

struct dibs__crontab *dibs__crontab_read(const char *text, size_t length, const char *zone) {
  struct reading *r = calloc(1, sizeof *r);
  if (!r) return NULL;
  r->no_memory = !dibs__map_init(&r->names);
  r->zone_name = keep_text(r, zone, strlen(zone));
  if (length > DIBS__CRONTAB_MAX) {
    (void)flaw(r, "the file is larger than %d bytes", DIBS__CRONTAB_MAX);
    length = 0;
  }
  if (length >= 3 && memcmp(text, "\xef\xbb\xbf", 3) == 0) { /* a byte order mark */
    text += 3;
    length -= 3;
  }
  for (const char *end = text + length; text < end && !r->no_memory;) {
    const char *newline = memchr(text, '\n', (size_t)(end - text)), *stop = newline ? newline : end;
    r->line++;
    read_line(r, text, (size_t)(stop - text));
    text = newline ? newline + 1 : end;
  }
  if (!r->no_memory) return &r->tab;
  dibs__crontab_free(&r->tab);
  return NULL;
}

void dibs__crontab_free(struct dibs__crontab *tab) {
  struct reading *r = (struct reading *)tab;
  if (!r) return;
  for (size_t i = 0; i < r->zone_count; i++) dibs__zone_free(r->zones[i].zone);
  for (size_t i = 0; i < r->owned_count; i++) free(r->owned[i]);
  free(r->owned);
  dibs__map_free(&r->names);
  free(r->zones);
  free(r->tab.jobs);
  free(r->tab.flaws);
  free(r);
}
