/* SPDX-License-Identifier: MIT */
#ifndef DIBS_TASK_ZONE_H
#define DIBS_TASK_ZONE_H
/*
 * Time zones from the system's database (TZif files, RFC 9636).  The C library knows one zone for a whole process; a
 * crontab may have one for each job.
 */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct dibs__zone; /* immutable */

/* A stretch of time with one distance to UTC.  Instants are in seconds since 1970, UTC. */
struct dibs__zone_span {
  int64_t begin, end; /* [begin, end); INT64_MIN and INT64_MAX if it has none */
  int32_t ahead_s;    /* of UTC: local time is instant + ahead_s */
  int32_t before_s;   /* the same just before `begin`; equal to ahead_s if there is no begin */
};

/* Loads a zone by its name ("Europe/Berlin") from $TZDIR, or /usr/share/zoneinfo.  "UTC" needs no file.  false: `wrong`
 * has a message. */
bool dibs__zone_load(const char *name, struct dibs__zone **zone, char *wrong, size_t wrong_size);
/* From the bytes of a TZif file. */
bool dibs__zone_read(const void *bytes, size_t size, struct dibs__zone **zone, char *wrong, size_t wrong_size);
void dibs__zone_free(struct dibs__zone *zone); /* NULL is fine */

struct dibs__zone_span dibs__zone_at(const struct dibs__zone *zone, int64_t instant);

#endif
