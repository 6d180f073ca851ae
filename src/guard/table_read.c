/* SPDX-License-Identifier: MIT */
/* Declaring a table by a section of an INI file.  The whole file must be right, not only the section. */
#include "guard/table.h"

#include "base/ini.h"
#include "lease/room.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static const struct {
  const char *key;
  size_t at;
} fields[] = {
#define FIELD(name)                                                                                                    \
  { #name, offsetof(dibs_table_options, name) }
    FIELD(table),        FIELD(key),         FIELD(version),     FIELD(version_kind), FIELD(fence), FIELD(owner),
    FIELD(columns),      FIELD(used),        FIELD(limit),       FIELD(claims),       FIELD(claim), FIELD(claim_stock),
    FIELD(claim_amount), FIELD(claim_given), FIELD(claim_owner), FIELD(claim_time),
#undef FIELD
};
enum { FIELDS = sizeof fields / sizeof fields[0] };

struct declaring {
  const char *wanted; /* NULL: the only one */
  size_t sections;
  unsigned line; /* of the section; 0: not seen */
  dibs_table_options options;
  char values[FIELDS][DIBS__INI_LINE + 1];
};

static const char *entry(void *user, const char *section, const char *key, const char *value, unsigned line) {
  struct declaring *d = user;
  bool mine = !d->wanted || strcmp(section, d->wanted) == 0;
  if (!key) {
    d->sections++;
    if (mine && d->line == 0) d->line = line;
    return NULL;
  }
  for (size_t i = 0; i < FIELDS; i++) {
    if (strcmp(key, fields[i].key) != 0) continue;
    if (*value == '\0') return "a key without a value: leave it out";
    if (!mine) return NULL;
    memcpy(d->values[i], value, strlen(value) + 1);
    *(const char **)(void *)((char *)&d->options + fields[i].at) = d->values[i];
    return NULL;
  }
  return "there is no such key; a table has table, key, version, version_kind, fence, owner, columns, used, limit, "
         "claims and claim...";
}

static dibs_status read_file(const char *file, char **text, size_t *len, dibs_error *error) {
  int wrong = dibs__ini_load(file, text, len);
  if (wrong == 0) return DIBS_OK;
  return dibs__fail(error, wrong == ENOMEM ? DIBS_NO_MEMORY : DIBS_UNAVAILABLE, "%.200s can't be opened: %s", file,
                    strerror(wrong));
}

static dibs_status declare(struct declaring *d, const char *file, dibs_table **table, dibs_error *error) {
  dibs_error why;
  if (!d->wanted && d->sections != 1)
    return dibs__fail(error, DIBS_INVALID, "%.200s has %zu sections: say which table is meant", file, d->sections);
  if (d->line == 0)
    return dibs__fail(error, DIBS_NOT_FOUND, "%.200s has no section [%.64s]", file, d->wanted ? d->wanted : "");
  dibs_status status = dibs_table_declare(&d->options, table, &why);
  if (status == DIBS_OK) return dibs__fine(error);
  return dibs__fail(error, status, "%.200s:%u: %.200s", file, d->line, why.text);
}

dibs_status dibs_table_read(const char *file, const char *section, dibs_table **table, dibs_error *error) {
  char *text = NULL;
  size_t len = 0;
  if (!table) return dibs__fail(error, DIBS_INVALID, "dibs_table_read: no place for the table was given");
  *table = NULL;
  if (!file || !*file) return dibs__fail(error, DIBS_INVALID, "dibs_table_read: no file was named");
  struct declaring *d = calloc(1, sizeof *d);
  if (!d) return dibs__fail(error, DIBS_NO_MEMORY, "out of memory for %.200s", file);
  d->wanted = section && *section ? section : NULL;
  d->options.size = sizeof d->options;
  struct dibs__ini ini = {.entry = entry, .user = d};
  dibs_status status = read_file(file, &text, &len, error);
  if (status == DIBS_OK && !dibs__ini_parse(&ini, text, len))
    status = dibs__fail(error, DIBS_INVALID, "%.200s:%u: %s", file, ini.line, ini.wrong);
  if (status == DIBS_OK) status = declare(d, file, table, error);
  free(text);
  free(d);
  return status;
}
