/* SPDX-License-Identifier: MIT */
/* Who is alive, and what sessions are told. */
#include "drivers/memory_parts.h"

static struct dibs__mem_open *find_open(const struct dibs__memory *m, uint64_t session) {
  struct dibs__mem_open *open = m->opens;
  while (open && open->session != session) open = open->next;
  return open && !open->dead ? open : NULL;
}

bool dibs__mem_alive(const struct dibs__memory *m, uint64_t session) {
  return find_open(m, session) != NULL;
}

static void ring(struct dibs__mem_open *open) {
  atomic_fetch_add(&open->bell, 1);
  dibs__word_wake(&open->bell, 1, false);
}

static void put_event(struct dibs__mem_open *open, struct dibs__event event) {
  if (open->count == DIBS__MEM_EVENTS)
    open->overflow = true;
  else
    open->ring[(open->head + open->count++) % DIBS__MEM_EVENTS] = event;
  ring(open);
}

void dibs__mem_post(struct dibs__memory *m, uint64_t session, enum dibs__event_what what, dibs__id id) {
  dibs__mem_post_event(m, session, &(struct dibs__event){.what = what, .id = id});
}

void dibs__mem_post_event(struct dibs__memory *m, uint64_t session, const struct dibs__event *event) {
  const size_t cap = sizeof m->held_events / sizeof m->held_events[0];
  if (m->hush) {
    /* One more than there is room for stands for "look again". */
    if (m->held_count < cap) m->held_events[m->held_count] = (struct dibs__mem_hushed){session, *event};
    if (m->held_count <= cap) m->held_count++;
    return;
  }
  struct dibs__mem_open *open = find_open(m, session);
  if (open) put_event(open, *event);
}

void dibs__mem_post_all(struct dibs__memory *m, enum dibs__event_what what) {
  for (struct dibs__mem_open *open = m->opens; open; open = open->next)
    put_event(open, (struct dibs__event){.what = what});
}

void dibs__mem_speak_up(struct dibs__memory *m, bool committed) {
  const size_t cap = sizeof m->held_events / sizeof m->held_events[0];
  m->hush = false;
  for (size_t i = 0; committed && i < m->held_count && i < cap; i++)
    dibs__mem_post_event(m, m->held_events[i].session, &m->held_events[i].event);
  if (committed && m->held_count > cap) dibs__mem_post_all(m, DIBS__EV_RECHECK);
  m->held_count = 0;
}

dibs__status dibs__mem_events(struct dibs__dstore *store, struct dibs__event *events, size_t cap, size_t *count,
                              dibs__tick by) {
  struct dibs__mem_open *open = dibs__mem_open_of(store);
  *count = 0;
  for (;;) {
    dibs__mutex_lock(&open->memory->lock);
    uint32_t seen = atomic_load(&open->bell); /* before looking: what rings later ends the sleep */
    bool up = open->woken;
    open->woken = false;
    while (*count < cap && open->count) {
      events[(*count)++] = open->ring[open->head];
      open->head = (open->head + 1) % DIBS__MEM_EVENTS;
      open->count--;
    }
    if (*count < cap && open->overflow) {
      events[(*count)++] = (struct dibs__event){.what = DIBS__EV_RECHECK};
      open->overflow = false;
    }
    dibs__mutex_unlock(&open->memory->lock);
    if (*count || up || cap == 0) return DIBS_OK;
    if (!dibs__word_wait(&open->bell, seen, by, false)) return DIBS_OK;
  }
}

void dibs__mem_wake(struct dibs__dstore *store) {
  struct dibs__mem_open *open = dibs__mem_open_of(store);
  dibs__mutex_lock(&open->memory->lock);
  open->woken = true;
  dibs__mutex_unlock(&open->memory->lock);
  ring(open);
}
