/* SPDX-License-Identifier: MIT */
/*
 * A member of a topic.  Its thread looks at the topic every look_ms:
 *
 *   not a member:  read P, become one
 *   a member:      who else is?  -> the assignment -> begin what is to be mine, hand over what is not
 *   P changed, the membership is lost, or the user leaves:  hand over all; when all is given back, leave
 *
 * Two members may see different members for a while.  Both then wait for one lease, or none does: the lease decides,
 * and the next look corrects it.
 */
#include "dibs/admin.h"
#include "lane/lane_impl.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { LOOK_PART = 10, LOOK_MOST_MS = 1000, LOOK_LEAST_MS = 10, BEGIN_TRIES = 3 };

typedef struct dibs_lane_member member_t;

void dibs__lane_member_drop(member_t *m) {
  if (atomic_fetch_sub(&m->refs, 1) != 1) return;
  dibs_store *store = m->store;
  free(m->owner);
  free(m->assigned);
  free(m->seen);
  free(m->slot);
  dibs__mutex_destroy(&m->lock);
  free(m);
  if (store) dibs__store_drop(store);
}

static void keep_trouble(member_t *m, dibs_status status, const dibs_error *error) {
  dibs__mutex_lock(&m->lock);
  if (status == DIBS_OK)
    (void)dibs__fine(&m->trouble);
  else
    m->trouble = *error;
  dibs__mutex_unlock(&m->lock);
}

/* ---- P ---- */

/* While no lane is waited for or held.  false: no memory. */
static bool set_lanes(member_t *m, uint32_t lanes) {
  struct dibs_lane **slot = calloc(lanes, sizeof *slot);
  uint32_t *assigned = calloc(lanes, sizeof *assigned);
  if (!slot || !assigned) {
    free(slot);
    free(assigned);
    return false;
  }
  dibs__mutex_lock(&m->lock);
  free(m->slot);
  free(m->assigned);
  m->slot = slot;
  m->assigned = assigned;
  m->lanes = m->counts.lanes = lanes;
  m->counts.assigned = 0;
  m->seen_count = 0;
  dibs__mutex_unlock(&m->lock);
  return true;
}

/* It joined with the old P as its number, and can't continue. */
static void end_member(member_t *m, uint32_t lanes) {
  dibs__mutex_lock(&m->lock);
  (void)dibs__fail(&m->trouble, DIBS_CONFLICT,
                   "the topic \"%s\" has %" PRIu32 " lanes by now, and this member was started for %" PRIu32
                   ": start it for the new number",
                   m->topic, lanes, m->lanes);
  m->leaving = true;
  dibs__mutex_unlock(&m->lock);
}

/* The topic's present P; 0: unknown. */
static dibs_status read_lanes(member_t *m, uint32_t *lanes, dibs_error *error) {
  struct lane_topic at;
  *lanes = 0;
  if (!m->recorded) return dibs__lane_topic_by_members(m->store, m->topic, lanes, error);
  dibs_status status = dibs__lane_topic_read(m->store, m->topic, &at, error);
  if (status == DIBS_OK) *lanes = at.lanes;
  return status;
}

/* ---- Becoming a member, and leaving ---- */

static void leave(member_t *m) {
  dibs__mutex_lock(&m->lock);
  dibs_lease *membership = m->membership;
  m->membership = NULL;
  m->counts.members = m->counts.assigned = 0;
  dibs__mutex_unlock(&m->lock);
  if (!membership) return;
  (void)dibs_release(membership, NULL); /* what is not released ends with its ttl */
  dibs_lease_free(membership);
}

/* The members have another number of slots, which says P: see lane_impl.h. */
static dibs_status explain_slots(const member_t *m, dibs_error *error) {
  dibs_error ignored;
  uint32_t lanes = 0;
  if (dibs__lane_topic_by_members(m->store, m->topic, &lanes, &ignored) != DIBS_OK || !lanes || lanes == m->lanes)
    return dibs__fail(error, DIBS_INVALID,
                      "members of \"%s\" with another number of lanes than %" PRIu32 " must end first", m->topic,
                      m->lanes);
  return dibs__fail(error, DIBS_INVALID,
                    "\"%s\" has members with %" PRIu32 " lanes, and not %" PRIu32
                    ": end them first, or give their number",
                    m->topic, lanes, m->lanes);
}

static dibs_status become_member(member_t *m, dibs_error *error) {
  dibs_lease *membership = NULL;
  dibs_lease_options options = {.size = sizeof options,
                                .mode = DIBS_COUNTED,
                                .slots = MEMBERS_BASE + m->lanes,
                                .ttl_ms = m->ttl_ms,
                                .owner = m->owner};
  dibs_status status = dibs_acquire(m->store, m->members_name, &options, &membership, error);
  if (status == DIBS_INVALID) return explain_slots(m, error);
  if (status != DIBS_OK) return status;
  m->clear = false;
  m->seen_count = 0;
  dibs__mutex_lock(&m->lock);
  m->membership = membership;
  m->counts.joined++;
  dibs__mutex_unlock(&m->lock);
  return DIBS_OK;
}

/* A change of P between reading it and becoming a member is noticed by the first look, before any lane is acquired. */
static void rejoin(member_t *m) {
  uint32_t lanes;
  dibs_error error = {0};
  dibs_status status = read_lanes(m, &lanes, &error);
  if (status == DIBS_OK && lanes && lanes != m->lanes) {
    if (!m->follows) {
      end_member(m, lanes);
      return;
    }
    if (!set_lanes(m, lanes)) status = dibs__fail(&error, DIBS_NO_MEMORY, "out of memory for %" PRIu32 " lanes", lanes);
  }
  if (status == DIBS_OK) status = become_member(m, &error);
  keep_trouble(m, status, &error);
}

static bool is_member(member_t *m) {
  dibs__mutex_lock(&m->lock);
  bool is = m->membership && dibs_lease_alive(m->membership);
  dibs__mutex_unlock(&m->lock);
  return is;
}

/* ---- Looking ---- */

struct look {
  const member_t *member;
  uint32_t own; /* slot */
  uint32_t *slots;
  size_t count, capacity;
  bool self;   /* it sees this member: the answer is of the store that has the topic's leases */
  bool others; /* lanes of another P are in use */
  bool no_memory;
};

static int add_member(const dibs_lease_info *info, void *user) {
  struct look *look = user;
  if (info->state == DIBS_WAITS || info->state == DIBS_BROKEN || info->slots != MEMBERS_BASE + look->member->lanes)
    return 0;
  if (look->count == look->capacity) {
    size_t capacity = look->capacity ? 2 * look->capacity : 16;
    uint32_t *more = realloc(look->slots, capacity * sizeof *more);
    look->no_memory = !more;
    if (!more) return 1;
    look->slots = more;
    look->capacity = capacity;
  }
  look->slots[look->count++] = info->slot;
  look->self = look->self || info->slot == look->own;
  return 0;
}

static int find_other_lanes(const dibs_lease_info *info, void *user) {
  struct look *look = user;
  uint32_t lanes, number;
  if (info->state == DIBS_WAITS || info->state == DIBS_BROKEN) return 0;
  const char *behind = info->name + strlen(look->member->prefix);
  if (dibs__lane_name_read(behind, &lanes, &number)) look->others = look->others || lanes != look->member->lanes;
  look->self = look->self || (strcmp(behind, "members") == 0 && info->slot == look->own);
  return look->others;
}

static int smaller_first(const void *a, const void *b) {
  uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
  return (x > y) - (x < y);
}

/* After the change of P: is every lane of the old one given back?  An answer that does not have this member is not of
 * the store that has the leases (several tiers, right after one was opened). */
static dibs_status check_clear(member_t *m, struct look *look, dibs_error *error) {
  if (m->clear) return DIBS_OK;
  look->self = false;
  dibs_status status = dibs_list(m->store, m->prefix, find_other_lanes, look, error);
  m->clear = status == DIBS_OK && look->self && !look->others;
  return status;
}

/* false: no memory. */
static bool assign(member_t *m, struct look *look) {
  qsort(look->slots, look->count, sizeof *look->slots, smaller_first);
  if (look->count == m->seen_count && memcmp(look->slots, m->seen, look->count * sizeof *look->slots) == 0) return true;
  if (!dibs__lane_assign(look->slots, look->count, m->lanes, m->assigned)) return false;
  free(m->seen);
  m->seen = look->slots;
  m->seen_count = look->count;
  look->slots = NULL;
  return true;
}

static void apply(member_t *m, uint32_t own) {
  uint32_t index = 0, mine = 0;
  while (m->seen[index] != own) index++;
  for (uint32_t number = 0; number < m->lanes; number++) {
    bool is_mine = m->assigned[number] == index;
    mine += is_mine;
    dibs__mutex_lock(&m->lock);
    bool has = m->slot[number] != NULL;
    dibs__mutex_unlock(&m->lock);
    if (is_mine && !has)
      (void)dibs__lane_begin(m, number);
    else if (!is_mine && has)
      dibs__lane_hand_over(m, number);
  }
  dibs__mutex_lock(&m->lock);
  m->counts.members = (uint32_t)m->seen_count;
  m->counts.assigned = mine;
  dibs__mutex_unlock(&m->lock);
}

static dibs_status look_around(member_t *m, struct look *look, dibs_error *error) {
  uint32_t lanes = 0;
  dibs_status status = dibs_show(m->store, m->members_name, add_member, look, error);
  if (status == DIBS_NOT_FOUND) status = DIBS_OK;
  if (status == DIBS_OK && m->recorded) status = read_lanes(m, &lanes, error);
  if (status == DIBS_OK && lanes && lanes != m->lanes) {
    if (m->follows)
      m->next = lanes;
    else
      end_member(m, lanes);
    dibs__lane_rouse(m);
    return DIBS_OK;
  }
  if (status != DIBS_OK || !look->self || look->no_memory) return status;
  status = check_clear(m, look, error);
  if (status != DIBS_OK || !m->clear || !is_member(m)) return status;
  if (assign(m, look))
    apply(m, look->own);
  else
    look->no_memory = true;
  return DIBS_OK;
}

static void look(member_t *m) {
  struct look look = {.member = m};
  dibs_error error = {0};
  dibs__mutex_lock(&m->lock);
  look.own = dibs_lease_slot(m->membership);
  m->counts.looked++;
  dibs__mutex_unlock(&m->lock);
  dibs_status status = look_around(m, &look, &error);
  if (look.no_memory) status = dibs__fail(&error, DIBS_NO_MEMORY, "out of memory for the lanes of \"%s\"", m->topic);
  dibs__mutex_lock(&m->lock);
  bool ends = m->leaving;
  dibs__mutex_unlock(&m->lock);
  if (!ends) keep_trouble(m, status, &error); /* else the reason of the end stays */
  free(look.slots);
}

/* ---- The thread ---- */

/* All lanes are to be given back.  true: they are. */
static bool hand_all_over(member_t *m) {
  for (uint32_t number = 0; number < m->lanes; number++) dibs__lane_hand_over(m, number);
  dibs__mutex_lock(&m->lock);
  bool none = m->count == 0;
  dibs__mutex_unlock(&m->lock);
  return none;
}

/* Does what is to be done now.  false: the member has left.  *look_at: of the latest look; then of the next. */
static bool step(member_t *m, dibs__tick *look_at) {
  dibs__mutex_lock(&m->lock);
  bool freed = m->freed, leaving = m->leaving, joined = m->membership != NULL;
  dibs__mutex_unlock(&m->lock);
  if (freed) return false;
  if (leaving || m->next || (joined && !is_member(m))) {
    if (!hand_all_over(m)) {
      *look_at = DIBS__TICK_NEVER; /* each lane that ends wakes this thread */
      return true;
    }
    leave(m);
    if (leaving) return false;
    if (m->next && !set_lanes(m, m->next)) { /* no memory now */
      *look_at = dibs__tick_add_ms(dibs__tick_now(), m->look_ms);
      return true;
    }
    m->next = 0;
    joined = false;
    *look_at = DIBS__TICK_ZERO;
  }
  if (dibs__tick_before(dibs__tick_now(), *look_at)) return true;
  if (!joined) rejoin(m);
  if (is_member(m)) look(m);
  *look_at = dibs__tick_add_ms(dibs__tick_now(), m->look_ms);
  return true;
}

static void run_member(void *arg) {
  member_t *m = arg;
  dibs__tick look_at = DIBS__TICK_ZERO;
  for (;;) {
    uint32_t seen = atomic_load(&m->word);
    if (!step(m, &look_at)) break;
    (void)dibs__word_wait(&m->word, seen, look_at, false);
  }
  dibs__mutex_lock(&m->lock);
  m->left = true;
  dibs__mutex_unlock(&m->lock);
  atomic_fetch_add(&m->calm_word, 1);
  dibs__word_wake(&m->calm_word, UINT32_MAX, false);
}

/* ---- Joining ---- */

static dibs_status check_options(const char *topic, dibs_lane_options *o, dibs_error *error) {
  dibs_status status = dibs__lane_check_topic(topic, error);
  if (status != DIBS_OK) return status;
  if (!o->on_gain || !o->on_lose)
    return dibs__fail(error, DIBS_INVALID, "dibs_lane_join: on_gain and on_lose are both needed");
  if (o->reserved != 0) return dibs__fail(error, DIBS_INVALID, "dibs_lane_join: `reserved` of the options is not 0");
  if (o->lanes > DIBS_LANES_MAX)
    return dibs__fail(error, DIBS_INVALID, "a topic has 1 to %d lanes, not %" PRIu32, DIBS_LANES_MAX, o->lanes);
  if (o->ttl_ms == 0) o->ttl_ms = DIBS_TTL_DEFAULT_MS;
  if (o->ttl_ms < DIBS_TTL_MIN_MS || o->ttl_ms > DIBS_TTL_MAX_MS)
    return dibs__fail(error, DIBS_INVALID, "the ttl must be between 100 ms and 24 h, not %" PRId64 " ms", o->ttl_ms);
  if (o->look_ms == 0) o->look_ms = o->ttl_ms / LOOK_PART < LOOK_MOST_MS ? o->ttl_ms / LOOK_PART : LOOK_MOST_MS;
  if (o->look_ms < LOOK_LEAST_MS)
    return dibs__fail(error, DIBS_INVALID, "look_ms is %" PRId64 ": give at least %d, or 0", o->look_ms, LOOK_LEAST_MS);
  return o->owner ? dibs__check_text(o->owner, DIBS_OWNER_MAX, "the owner", error) : DIBS_OK;
}

/* NULL: no memory. */
static member_t *make_member(dibs_store *store, const char *topic, const dibs_lane_options *o) {
  member_t *m = calloc(1, sizeof *m);
  if (!m) return NULL;
  dibs__mutex_init(&m->lock);
  m->refs = 1;
  atomic_fetch_add(&store->refs, 1);
  m->store = store;
  memcpy(m->topic, topic, strlen(topic) + 1);
  dibs__lane_members_name(topic, m->members_name);
  dibs__lane_prefix(topic, m->prefix);
  m->follows = o->lanes == 0;
  m->ttl_ms = o->ttl_ms;
  m->look_ms = o->look_ms;
  m->on_gain = o->on_gain;
  m->on_lose = o->on_lose;
  m->user = o->user;
  m->owner = o->owner ? strdup(o->owner) : NULL;
  if (!o->owner || m->owner) return m;
  dibs__lane_member_drop(m);
  return NULL;
}

/* While P is being changed, members of the old one are left, and the thread tries again until they have ended. */
static dibs_status begin(member_t *m, uint32_t lanes, dibs_error *error) {
  struct lane_topic at;
  dibs_status status = DIBS_INVALID;
  for (int i = 0; i < BEGIN_TRIES && status == DIBS_INVALID; i++) {
    status = dibs__lane_topic_open(m->store, m->topic, lanes, &at, error);
    if (status != DIBS_OK) return status;
    m->recorded = at.recorded;
    if (!set_lanes(m, at.lanes))
      return dibs__fail(error, DIBS_NO_MEMORY, "out of memory for %" PRIu32 " lanes", at.lanes);
    status = become_member(m, error);
    if (status == DIBS_INVALID && m->recorded) status = DIBS_OK;
    /* Else another first member was faster, with another P: the next round has it. */
  }
  if (status != DIBS_OK) return status;
  m->thread = dibs__thread_start("dibs-lanes", run_member, m);
  return m->thread ? DIBS_OK : dibs__fail(error, DIBS_NO_MEMORY, "the system can't start another thread");
}

dibs_status dibs_lane_join(dibs_store *store, const char *topic, const dibs_lane_options *given,
                           dibs_lane_member **member, dibs_error *error) {
  dibs_lane_options o = DIBS_LANE_OPTIONS_INIT;
  if (member) *member = NULL;
  if (!member || !given || !topic)
    return dibs__fail(error, DIBS_INVALID,
                      "dibs_lane_join: the topic, the options or the pointer for the member is NULL");
  if (dibs__check_size(given->size, sizeof o, "dibs_lane_options", error) != DIBS_OK) return DIBS_INVALID;
  memcpy(&o, given, given->size);
  dibs_status status = dibs__enter(store, "dibs_lane_join", error);
  if (status != DIBS_OK) return status;
  status = check_options(topic, &o, error);
  if (status == DIBS_OK && !(dibs__core_caps(store->core) & DIBS__CAP_COUNTED))
    status =
        dibs__fail(error, DIBS_UNSUPPORTED,
                   "%s: %s has no counted leases, which lanes need; use another store (dibs doctor lists what each "
                   "keeps)",
                   topic, store->shown);
  if (status == DIBS_OK && dibs__core_caps(store->core) & DIBS__CAP_FENCES_APART)
    status = dibs__fail(error, DIBS_UNSUPPORTED,
                        "%s: in %s the fences of different names are not in one order, which lanes need; use another "
                        "store",
                        topic, store->shown);
  member_t *m = status == DIBS_OK ? make_member(store, topic, &o) : NULL;
  if (status == DIBS_OK && !m) status = dibs__fail(error, DIBS_NO_MEMORY, "out of memory for the member");
  *member = m; /* before the thread starts: on_gain may use it */
  if (m) status = begin(m, o.lanes, error);
  if (status != DIBS_OK && m) {
    *member = NULL;
    leave(m);
    dibs__lane_member_drop(m);
  }
  dibs__exit(store);
  return status == DIBS_OK ? dibs__fine(error) : status;
}

dibs_status dibs_lane_leave(dibs_lane_member *m, int64_t wait_ms, dibs_error *error) {
  if (!m) return dibs__fail(error, DIBS_INVALID, "dibs_lane_leave: the member is NULL");
  if (wait_ms < DIBS_FOREVER)
    return dibs__fail(error, DIBS_INVALID, "wait_ms is %" PRId64 ": give 0, a positive time or DIBS_FOREVER", wait_ms);
  if (dibs__check_process(m->store, "dibs_lane_leave", "the member", error) != DIBS_OK) return DIBS_INVALID;
  dibs__tick by = wait_ms == DIBS_FOREVER ? DIBS__TICK_NEVER : dibs__tick_add_ms(dibs__tick_now(), wait_ms);
  dibs__mutex_lock(&m->lock);
  m->leaving = true;
  dibs__mutex_unlock(&m->lock);
  dibs__lane_rouse(m);
  for (;;) {
    uint32_t seen = atomic_load(&m->calm_word);
    dibs__mutex_lock(&m->lock);
    bool left = m->left;
    uint32_t count = m->count;
    dibs__mutex_unlock(&m->lock);
    if (left) return dibs__fine(error);
    if (!dibs__tick_before(dibs__tick_now(), by))
      return dibs__fail(error, DIBS_TIMEOUT, "%" PRIu32 " lanes of \"%s\" are not given back yet", count, m->topic);
    (void)dibs__word_wait(&m->calm_word, seen, by, false);
  }
}

void dibs_lane_member_free(dibs_lane_member *m) {
  if (!m || !dibs__is_of_this_process(m->store)) return; /* a child's copy has no thread to join */
  dibs__mutex_lock(&m->lock);
  m->leaving = m->freed = true;
  dibs__mutex_unlock(&m->lock);
  dibs__lane_rouse(m);
  dibs__thread_join(m->thread);
  for (bool calm = false; !calm;) {
    uint32_t seen = atomic_load(&m->calm_word);
    dibs__mutex_lock(&m->lock);
    calm = m->calls == 0 || m->calls_thread == dibs__thread_self(); /* in its own callback it may be freed, too */
    dibs__mutex_unlock(&m->lock);
    if (!calm) (void)dibs__word_wait(&m->calm_word, seen, DIBS__TICK_NEVER, false);
  }
  dibs__lane_take_all(m);
  dibs__mutex_lock(&m->lock);
  dibs_lease *membership = m->membership;
  m->membership = NULL;
  dibs__mutex_unlock(&m->lock);
  dibs_lease_free(membership);
  dibs__lane_member_drop(m);
}

dibs_status dibs_lane_count(dibs_lane_member *m, dibs_lane_counts *counts, dibs_error *error) {
  if (!m || !counts) return dibs__fail(error, DIBS_INVALID, "dibs_lane_count: the member or counts is NULL");
  size_t size = counts->size;
  if (dibs__check_size(size, sizeof *counts, "dibs_lane_counts", error) != DIBS_OK) return DIBS_INVALID;
  if (dibs__check_process(m->store, "dibs_lane_count", "the member", error) != DIBS_OK) return DIBS_INVALID;
  dibs__mutex_lock(&m->lock);
  memcpy(counts, &m->counts, size);
  dibs__mutex_unlock(&m->lock);
  counts->size = size;
  return dibs__fine(error);
}

void dibs_lane_trouble(dibs_lane_member *m, dibs_error *error) {
  if (!error) return;
  (void)dibs__fine(error);
  if (!m || dibs__check_process(m->store, "dibs_lane_trouble", "the member", error) != DIBS_OK) return;
  dibs__mutex_lock(&m->lock);
  *error = m->trouble;
  dibs__mutex_unlock(&m->lock);
}
