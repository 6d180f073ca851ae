/* SPDX-License-Identifier: MIT */
/* From histories to lives, writes and looks. */
#include "checker.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { RUN_MAX = 64 /* hand-offs inside a process before other processes are served */ };

static void *grow(void *all, size_t count, size_t size) {
  if (count & (count - 1)) return all; /* the capacity is the next power of two */
  void *more = realloc(all, (count ? count * 2 : 1) * size);
  if (!more) abort();
  return more;
}
#define ADD(array, count)                                                                                              \
  ((array) = grow((array), (count), sizeof *(array)), memset(&(array)[count], 0, sizeof *(array)), &(array)[(count)++])

double check_ms(const struct check *check, int64_t at) {
  return (double)(at - check->began) / (double)DIBS__NS_PER_MS;
}

uint32_t check_overtake_bound(const struct check *check) {
  return RUN_MAX * check->bounds->threads * (check->bounds->parties > 1 ? check->bounds->parties - 1 : 1);
}

/* ---- One record ---- */

static struct write *last_write(struct check *check, size_t from, const struct reported *reported) {
  for (size_t i = check->write_count; i-- > from;)
    if (check->writes[i].name == reported->name && check->writes[i].fence == reported->fence &&
        check->writes[i].ended == 0)
      return &check->writes[i];
  return NULL;
}

static void tell_incarnation(struct incarnation *incarnation, const struct reported *reported, enum what what) {
  switch (what) {
  case REPORTED_GRANT:
    incarnation->grant_at = reported->at;
    incarnation->until = reported->value;
    incarnation->fence = reported->fence;
    break;
  case REPORTED_ALIVE:
    if (reported->value > incarnation->until) incarnation->until = reported->value;
    break;
  case REPORTED_GONE:
    incarnation->gone_at = reported->at;
    incarnation->gone_status = reported->value;
    break;
  case REPORTED_LETTING:
    incarnation->letting_at = reported->at;
    break;
  case REPORTED_RELEASED:
    incarnation->released_at = reported->at;
    incarnation->release_status = reported->value;
    break;
  case REPORTED_LOST:
    incarnation->lost_at = reported->at;
    incarnation->losses++;
    break;
  default:
    break;
  }
}

/* The looks of one thread follow each other. */
struct looking {
  uint32_t thread;
  int64_t began;
};

static void read_reported(struct check *check, const size_t *by_number, uint32_t requests, size_t first_write,
                          struct looking looking[64], const struct reported *reported) {
  enum what what = (enum what)atomic_load(&reported->what);
  struct write *write;
  switch (what) {
  case REPORTED_NOTHING:
    return;
  case REPORTED_SAVING:
    write = ADD(check->writes, check->write_count);
    *write = (struct write){
        .name = reported->name, .number = reported->value, .began = reported->at, .fence = reported->fence};
    write->status = DIBS_UNKNOWN;
    return;
  case REPORTED_SAVED:
    write = last_write(check, first_write, reported);
    if (!write) return;
    write->ended = reported->at;
    write->status = reported->extra;
    return;
  case REPORTED_LOOKING:
    looking[reported->thread % 64] = (struct looking){reported->thread, reported->at};
    return;
  case REPORTED_LOOKED:
    *ADD(check->looks, check->look_count) =
        (struct look){reported->name, reported->value, looking[reported->thread % 64].began, reported->at};
    return;
  default:
    break;
  }
  size_t incarnation = reported->lease <= requests ? by_number[reported->lease] : 0;
  if (incarnation > 0) tell_incarnation(&check->lives[incarnation - 1], reported, what);
}

static void read_party(struct check *check, const struct history *history) {
  struct looking looking[64] = {{0, 0}};
  uint32_t count = atomic_load(&history->count), requests = atomic_load(&history->requests);
  if (count > HISTORY_CAPACITY) count = HISTORY_CAPACITY;
  size_t first_write = check->write_count;
  size_t *by_number = calloc((size_t)requests + 1, sizeof *by_number); /* of a lease: its index in lives, from 1 */
  if (!by_number) abort();
  check->party_count++;
  for (uint32_t i = 0; i < count; i++) { /* requests first: a callback may precede the record of its own request */
    const struct reported *reported = &history->reported[i];
    if (atomic_load(&reported->what) != REPORTED_REQUEST || reported->lease > requests) continue;
    struct incarnation *incarnation = ADD(check->lives, check->incarnation_count);
    *incarnation = (struct incarnation){.party = history->party,
                                        .number = reported->lease,
                                        .name = reported->name,
                                        .mode = reported->mode,
                                        .request_at = reported->at,
                                        .wait_ms = reported->value,
                                        .ttl_ms = reported->extra};
    by_number[reported->lease] = check->incarnation_count;
    if (check->began == 0 || reported->at < check->began) check->began = reported->at;
  }
  for (uint32_t i = 0; i < count; i++)
    read_reported(check, by_number, requests, first_write, looking, &history->reported[i]);
  free(by_number);
}

static void disturb(struct check *check, const struct reported *reported, enum what what) {
  struct disturbance *d = NULL;
  if (what == REPORTED_STOP || what == REPORTED_KILL) {
    d = ADD(check->disturbances, check->disturbance_count);
    *d = (struct disturbance){reported->lease, reported->at, INT64_MAX};
    *(reported->lease == 0 ? &check->outages : what == REPORTED_STOP ? &check->stops : &check->kills) += 1;
    return;
  }
  for (size_t i = check->disturbance_count; what == REPORTED_GO_ON && i-- > 0;) {
    if (check->disturbances[i].party != reported->lease) continue;
    check->disturbances[i].to = reported->at;
    return;
  }
}

static void read_parent(struct check *check, const struct history *history) {
  uint32_t count = atomic_load(&history->count);
  for (uint32_t i = 0; i < count && i < HISTORY_CAPACITY; i++) {
    enum what what = (enum what)atomic_load(&history->reported[i].what);
    disturb(check, &history->reported[i], what);
    if (what == REPORTED_OVER) check->over = history->reported[i].at;
  }
}

static bool read_file(struct check *check, const char *path) {
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return false;
  struct history *history = mmap(NULL, sizeof *history, PROT_READ, MAP_SHARED, fd, 0);
  close(fd);
  if (history == MAP_FAILED) return false;
  if (history->party == 0)
    read_parent(check, history);
  else
    read_party(check, history);
  munmap(history, sizeof *history);
  return true;
}

/* ---- All ---- */

bool check_read(struct check *check, const char *folder) {
  DIR *dir = opendir(folder);
  bool fine = dir != NULL;
  for (struct dirent *entry; fine && (entry = readdir(dir));) {
    char path[512];
    const char *dot = strstr(entry->d_name, ".history");
    if (!dot || dot[strlen(".history")] != '\0') continue;
    snprintf(path, sizeof path, "%s/%s", folder, entry->d_name);
    fine = read_file(check, path);
  }
  if (dir) closedir(dir);
  return fine && check->over != 0;
}

void check_free(struct check *check) {
  free(check->lives);
  free(check->writes);
  free(check->looks);
  free(check->disturbances);
}

struct incarnation **check_copy(struct incarnation **lives, size_t count) {
  struct incarnation **copy = malloc((count ? count : 1) * sizeof(struct incarnation *));
  if (!copy) abort();
  memcpy(copy, lives, count * sizeof(struct incarnation *));
  return copy;
}

struct incarnation **check_lives_of(struct check *check, uint16_t name, size_t *count) {
  struct incarnation **lives = NULL;
  *count = 0;
  for (size_t i = 0; i < check->incarnation_count; i++)
    if (check->lives[i].name == name) {
      lives = grow(lives, *count, sizeof(struct incarnation *));
      lives[(*count)++] = &check->lives[i];
    }
  return lives;
}

static int64_t end_of(const struct check *check, const struct incarnation *incarnation) {
  if (incarnation->gone_at) return incarnation->gone_at;
  if (incarnation->released_at) return incarnation->released_at;
  if (incarnation->letting_at) return incarnation->letting_at;
  return check->over;
}

bool check_disturbed(const struct check *check, const struct incarnation *incarnation) {
  int64_t end = end_of(check, incarnation);
  for (size_t i = 0; i < check->disturbance_count; i++) {
    const struct disturbance *d = &check->disturbances[i];
    if (check_concerns(d, incarnation) && d->from < end && d->to > incarnation->request_at) return true;
  }
  return false;
}
