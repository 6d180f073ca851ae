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

enum { RUN_MAX = 64 /* hand-offs inside a process before others get their turn */ };

static void *grow(void *all, size_t count, size_t size) {
  if (count & (count - 1)) return all; /* room is the next power of two */
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

static struct write *last_write(struct check *check, size_t from, const struct said *said) {
  for (size_t i = check->write_count; i-- > from;)
    if (check->writes[i].name == said->name && check->writes[i].fence == said->fence && check->writes[i].ended == 0)
      return &check->writes[i];
  return NULL;
}

static void tell_life(struct life *life, const struct said *said, enum what what) {
  switch (what) {
  case SAID_GRANT:
    life->grant_at = said->at;
    life->until = said->value;
    life->slot = said->extra;
    life->fence = said->fence;
    break;
  case SAID_ALIVE:
    if (said->value > life->until) life->until = said->value;
    break;
  case SAID_GONE:
    life->gone_at = said->at;
    life->gone_status = said->value;
    break;
  case SAID_LETTING:
    life->letting_at = said->at;
    break;
  case SAID_RELEASED:
    life->released_at = said->at;
    life->release_status = said->value;
    break;
  case SAID_LOST:
    life->lost_at = said->at;
    life->losses++;
    break;
  default:
    break;
  }
}

/* Looks of one thread follow each other. */
struct looking {
  uint32_t thread;
  int64_t began;
};

static void read_said(struct check *check, const size_t *by_number, uint32_t asks, size_t first_write,
                      struct looking looking[64], const struct said *said) {
  enum what what = (enum what)atomic_load(&said->what);
  struct write *write;
  switch (what) {
  case SAID_NOTHING:
    return;
  case SAID_SAVING:
    write = ADD(check->writes, check->write_count);
    *write = (struct write){.name = said->name, .number = said->value, .began = said->at, .fence = said->fence};
    write->status = DIBS_UNKNOWN;
    return;
  case SAID_SAVED:
    write = last_write(check, first_write, said);
    if (!write) return;
    write->ended = said->at;
    write->status = said->extra;
    return;
  case SAID_LOOKING:
    looking[said->thread % 64] = (struct looking){said->thread, said->at};
    return;
  case SAID_LOOKED:
    *ADD(check->looks, check->look_count) =
        (struct look){said->name, said->value, looking[said->thread % 64].began, said->at};
    return;
  default:
    break;
  }
  size_t life = said->lease <= asks ? by_number[said->lease] : 0;
  if (life > 0) tell_life(&check->lives[life - 1], said, what);
}

static void read_party(struct check *check, const struct history *history) {
  struct looking looking[64] = {{0, 0}};
  uint32_t count = atomic_load(&history->count), asks = atomic_load(&history->asks);
  if (count > HISTORY_ROOM) count = HISTORY_ROOM;
  size_t first_write = check->write_count;
  size_t *by_number = calloc((size_t)asks + 1, sizeof *by_number); /* of a lease: its place in lives, from 1 */
  if (!by_number) abort();
  check->party_count++;
  for (uint32_t i = 0; i < count; i++) { /* asks first: a callback may have overtaken the record of its own ask */
    const struct said *said = &history->said[i];
    if (atomic_load(&said->what) != SAID_ASK || said->lease > asks) continue;
    struct life *life = ADD(check->lives, check->life_count);
    *life = (struct life){.party = history->party,
                          .number = said->lease,
                          .name = said->name,
                          .mode = said->mode,
                          .ask_at = said->at,
                          .wait_ms = said->value,
                          .ttl_ms = said->extra};
    by_number[said->lease] = check->life_count;
    if (check->began == 0 || said->at < check->began) check->began = said->at;
  }
  for (uint32_t i = 0; i < count; i++) read_said(check, by_number, asks, first_write, looking, &history->said[i]);
  free(by_number);
}

static void disturb(struct check *check, const struct said *said, enum what what) {
  struct disturbance *d = NULL;
  if (what == SAID_STOP || what == SAID_KILL) {
    d = ADD(check->disturbances, check->disturbance_count);
    *d = (struct disturbance){said->lease, said->at, INT64_MAX};
    *(said->lease == 0 ? &check->outages : what == SAID_STOP ? &check->stops : &check->kills) += 1;
    return;
  }
  for (size_t i = check->disturbance_count; what == SAID_GO_ON && i-- > 0;) {
    if (check->disturbances[i].party != said->lease) continue;
    check->disturbances[i].to = said->at;
    return;
  }
}

static void read_parent(struct check *check, const struct history *history) {
  uint32_t count = atomic_load(&history->count);
  for (uint32_t i = 0; i < count && i < HISTORY_ROOM; i++) {
    enum what what = (enum what)atomic_load(&history->said[i].what);
    disturb(check, &history->said[i], what);
    if (what == SAID_OVER) check->over = history->said[i].at;
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

static int64_t claim_end(const struct life *life) {
  return life->letting_at != 0 && life->letting_at < life->until ? life->letting_at : life->until;
}

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
  for (size_t i = 0; i < check->life_count; i++) check->lives[i].claim_end = claim_end(&check->lives[i]);
  return fine && check->over != 0;
}

void check_free(struct check *check) {
  free(check->lives);
  free(check->writes);
  free(check->looks);
  free(check->disturbances);
}

struct life **check_copy(struct life **lives, size_t count) {
  struct life **copy = malloc((count ? count : 1) * sizeof(struct life *));
  if (!copy) abort();
  memcpy(copy, lives, count * sizeof(struct life *));
  return copy;
}

struct life **check_lives_of(struct check *check, uint16_t name, size_t *count) {
  struct life **lives = NULL;
  *count = 0;
  for (size_t i = 0; i < check->life_count; i++)
    if (check->lives[i].name == name) {
      lives = grow(lives, *count, sizeof(struct life *));
      lives[(*count)++] = &check->lives[i];
    }
  return lives;
}

static int64_t end_of(const struct check *check, const struct life *life) {
  if (life->gone_at) return life->gone_at;
  if (life->released_at) return life->released_at;
  if (life->letting_at) return life->letting_at;
  return check->over;
}

bool check_disturbed(const struct check *check, const struct life *life) {
  int64_t end = end_of(check, life);
  for (size_t i = 0; i < check->disturbance_count; i++) {
    const struct disturbance *d = &check->disturbances[i];
    if (check_concerns(d, life) && d->from < end && d->to > life->ask_at) return true;
  }
  return false;
}
