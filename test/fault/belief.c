/* SPDX-License-Identifier: MIT */
/*
 * Writes down what the clients of this process believe.  One lock guards all beliefs of the process: a look and its
 * record are one step with respect to a renewal by hand and the end of a lease, so that no stale claim is written after
 * them.
 */
#include "belief.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

enum { LOOK_MS = 4, HELD_MAX = 256 };

struct beliefs {
  struct belief_file *file;
  dibs__thread *looker;
  _Atomic bool stops;
  dibs__mutex lock; /* guards the members below, and the fields of beliefs that looks write */
  struct held {
    struct belief *belief; /* NULL: free */
    dibs_lease *lease;
    bool shortening;
  } held[HELD_MAX];
};

/* The slot of a held belief; NULL: a free slot, which always exists. */
static struct held *held_of(struct beliefs *beliefs, const struct belief *belief) {
  size_t i = 0;
  while (i < HELD_MAX - 1 && beliefs->held[i].belief != belief) i++;
  if (beliefs->held[i].belief != belief) abort(); /* more than any program here has at once */
  return &beliefs->held[i];
}

static bool look_locked(struct belief *belief, dibs_lease *lease, bool shortening) {
  int64_t before = dibs__tick_now().ns;
  int64_t left = dibs_lease_left_ms(lease); /* rounded up */
  bool alive = dibs_lease_alive(lease) && left > 0;
  if (!alive) {
    if (belief->from != 0 && belief->dead == 0) atomic_store(&belief->dead, dibs__tick_now().ns);
    return false;
  }
  /* It was not alive past its claim, and the answer of a renewal came later: that is no early end. */
  if (belief->dead != 0 && belief->dead >= belief->until) atomic_store(&belief->dead, 0);
  atomic_store(&belief->seen, before);
  if (!shortening) atomic_store(&belief->until, before + (left - 1) * DIBS__NS_PER_MS);
  if (belief->from == 0) {
    belief->slot = dibs_lease_slot(lease);
    belief->fence = dibs_lease_fence(lease).value;
    belief->from = dibs__tick_now().ns;
  }
  return true;
}

static void look_on(void *arg) {
  struct beliefs *beliefs = arg;
  while (!atomic_load(&beliefs->stops)) {
    dibs__mutex_lock(&beliefs->lock);
    for (size_t i = 0; i < HELD_MAX; i++)
      if (beliefs->held[i].belief)
        look_locked(beliefs->held[i].belief, beliefs->held[i].lease, beliefs->held[i].shortening);
    dibs__mutex_unlock(&beliefs->lock);
    dibs__nap_ms(LOOK_MS);
  }
}

struct beliefs *beliefs_open(const char *folder, uint32_t process, bool looks) {
  char path[512];
  struct beliefs *beliefs = calloc(1, sizeof *beliefs);
  snprintf(path, sizeof path, "%s/process-%u.beliefs", folder, process);
  int fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  bool fine = beliefs && fd >= 0 && ftruncate(fd, sizeof *beliefs->file) == 0;
  if (fine) beliefs->file = mmap(NULL, sizeof *beliefs->file, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (!fine || beliefs->file == MAP_FAILED) {
    perror(path);
    if (fd >= 0) close(fd);
    free(beliefs);
    return NULL;
  }
  close(fd);
  beliefs->file->process = process;
  dibs__mutex_init(&beliefs->lock);
  if (looks && !(beliefs->looker = dibs__thread_start("looker", look_on, beliefs))) abort();
  return beliefs;
}

void beliefs_close(struct beliefs *beliefs) {
  if (!beliefs) return;
  atomic_store(&beliefs->stops, true);
  dibs__thread_join(beliefs->looker);
  dibs__mutex_destroy(&beliefs->lock);
  munmap(beliefs->file, sizeof *beliefs->file);
  free(beliefs);
}

struct belief *belief_request(struct beliefs *beliefs, const struct belief *request) {
  uint32_t at = atomic_fetch_add(&beliefs->file->count, 1);
  if (at >= BELIEFS_MAX) return NULL;
  struct belief *belief = &beliefs->file->at[at];
  belief->name = request->name;
  belief->mode = request->mode;
  belief->renews = request->renews;
  belief->id[0] = request->id[0];
  belief->id[1] = request->id[1];
  belief->ttl_ms = request->ttl_ms;
  belief->process = beliefs->file->process;
  belief->handle = request->handle;
  belief->requested = dibs__tick_now().ns;
  atomic_store(&belief->written, 1);
  return belief;
}

void belief_granted(struct beliefs *beliefs, struct belief *belief, dibs_lease *lease) {
  dibs__mutex_lock(&beliefs->lock);
  struct held *held = held_of(beliefs, NULL);
  look_locked(belief, lease, false);
  *held = (struct held){.belief = belief, .lease = lease};
  dibs__mutex_unlock(&beliefs->lock);
  atomic_store(&belief->answered, 1);
}

void belief_refused(struct belief *belief, bool taken_back) {
  if (taken_back) atomic_store(&belief->gave_back, belief->requested);
  atomic_store(&belief->answered, 1);
}

void belief_renewing(struct beliefs *beliefs, struct belief *belief, dibs_lease *lease, uint32_t ttl_ms) {
  dibs__mutex_lock(&beliefs->lock);
  look_locked(belief, lease, false);
  bool shorter = ttl_ms < belief->ttl_ms;
  if (shorter) {
    held_of(beliefs, belief)->shortening = true;
    atomic_store(&belief->until, atomic_load(&belief->seen));
    if (belief->shortened == 0) atomic_store(&belief->shortened, dibs__tick_now().ns);
  } else {
    belief->ttl_ms = ttl_ms;
  }
  dibs__mutex_unlock(&beliefs->lock);
}

void belief_renewed(struct beliefs *beliefs, struct belief *belief, dibs_lease *lease) {
  dibs__mutex_lock(&beliefs->lock);
  held_of(beliefs, belief)->shortening = false;
  look_locked(belief, lease, false);
  dibs__mutex_unlock(&beliefs->lock);
}

void belief_end(struct beliefs *beliefs, struct belief *belief, dibs_lease *lease, bool released) {
  dibs__mutex_lock(&beliefs->lock);
  struct held *held = held_of(beliefs, belief);
  look_locked(belief, lease, held->shortening);
  *held = (struct held){.belief = NULL};
  int64_t now = dibs__tick_now().ns;
  atomic_store(&belief->ended, now);
  if (released) atomic_store(&belief->gave_back, now);
  dibs__mutex_unlock(&beliefs->lock);
}

void belief_given(struct belief *belief) {
  atomic_store(&belief->given, dibs__tick_now().ns);
}

bool belief_look(struct beliefs *beliefs, struct belief *belief, dibs_lease *lease) {
  dibs__mutex_lock(&beliefs->lock);
  bool alive = look_locked(belief, lease, held_of(beliefs, belief)->shortening);
  dibs__mutex_unlock(&beliefs->lock);
  return alive;
}

struct belief_event *belief_event(struct beliefs *beliefs, enum belief_event_kind kind, uint32_t process,
                                  uint16_t name) {
  uint32_t at = atomic_fetch_add(&beliefs->file->event_count, 1);
  if (at >= BELIEF_EVENTS_MAX) return NULL;
  struct belief_event *event = &beliefs->file->events[at];
  event->kind = kind;
  event->process = process;
  event->name = name;
  event->from = dibs__tick_now().ns; /* before the last store: an event without it has not begun */
  return event;
}

void belief_event_over(struct belief_event *event) {
  if (event) atomic_store(&event->to, dibs__tick_now().ns);
}
