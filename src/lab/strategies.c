/* SPDX-License-Identifier: MIT */
/* The strategies that the lab compares, and where the locks of some of them are. */
#include "lab/lab.h"
#include "lab/locks.h"
#include "store/uri.h"

#include <stdio.h>
#include <string.h>

enum { PROBE_MS = 10000 };

/* The default first, the broken ones last. */
const struct lab_way dibs__lab_ways[] = {
    {"coalesced", "all requests that wait for the row are decided together", LAB_ONE_STORE, DIBS_COALESCED, true,
     LAB_NO_LOCK, LAB_AROUND},
    {"atomic", "one conditional statement for each booking", LAB_OWN_STORE, DIBS_ATOMIC, true, LAB_NO_LOCK, LAB_AROUND},
    {"pessimistic", "the row is locked first", LAB_OWN_STORE, DIBS_PESSIMISTIC, true, LAB_NO_LOCK, LAB_AROUND},
    {"optimistic", "read, then written if the row has not changed; otherwise again", LAB_OWN_STORE, DIBS_OPTIMISTIC,
     true, LAB_NO_LOCK, LAB_AROUND},
    {"named", "a lease around the transaction", LAB_OWN_STORE, DIBS_NAMED, true, LAB_NO_LOCK, LAB_AROUND},
    {"fenced", "a lease, and the row refuses older fences", LAB_OWN_STORE, DIBS_FENCED, true, LAB_NO_LOCK, LAB_AROUND},
    {"redis-lease", "a lease of dibs in Redis around the transaction", LAB_LOCKED, DIBS_ATOMIC, true, LAB_LOCK_LEASE,
     LAB_AROUND},
    {"redlock", "a lease of dibs in a majority of Redis servers", LAB_LOCKED, DIBS_ATOMIC, true, LAB_LOCK_QUORUM,
     LAB_AROUND},
    {"session-lease", "a lease of dibs as a lock of a database server", LAB_LOCKED, DIBS_ATOMIC, true, LAB_LOCK_SESSION,
     LAB_AROUND},
    {"redis-spin", "by hand: SET NX PX, tried again every 50 ms", LAB_LOCKED, DIBS_ATOMIC, true, LAB_LOCK_SPIN,
     LAB_AROUND},
    {"get-lock", "by hand: the server's GET_LOCK, released after the commit", LAB_LOCKED, DIBS_ATOMIC, true,
     LAB_LOCK_SERVER, LAB_AROUND},
    {"child-first", "by hand: the applicant's row first, then the counted one", LAB_CHILD_FIRST, DIBS_ATOMIC, true,
     LAB_NO_LOCK, LAB_AROUND},
    {"get-lock-early", "by hand: GET_LOCK, released before the commit", LAB_LOCKED, DIBS_ATOMIC, false, LAB_LOCK_SERVER,
     LAB_EARLY},
    {"transaction-order", "by hand: a lock that is taken and released inside the transaction", LAB_LOCKED, DIBS_ATOMIC,
     false, LAB_LOCK_ANY, LAB_INSIDE},
    {"none", "by hand: read, then written as if alone", LAB_UNGUARDED, DIBS_ATOMIC, false, LAB_NO_LOCK, LAB_AROUND},
};
const size_t dibs__lab_way_count = sizeof dibs__lab_ways / sizeof *dibs__lab_ways;

/* Is `name` one of the words of the list? */
static bool list_has(const char *list, const char *name) {
  size_t length = strlen(name);
  for (const char *at = list; at; at = strchr(at, ',')) {
    at += *at == ',';
    if (strncmp(at, name, length) == 0 && (at[length] == '\0' || at[length] == ',')) return true;
  }
  return false;
}

bool dibs__lab_ways_known(const char *list, char *wrong, size_t size) {
  for (const char *at = list; at; at = strchr(at, ',')) {
    at += *at == ',';
    size_t length = strcspn(at, ",");
    bool found = false;
    for (size_t i = 0; i < dibs__lab_way_count && !found; i++)
      found = strlen(dibs__lab_ways[i].name) == length && strncmp(at, dibs__lab_ways[i].name, length) == 0;
    if (found) continue;
    snprintf(wrong, size, "%.*s", (int)length, at);
    return false;
  }
  return true;
}

/* The same database: then its schema has one kind of leases, rows or locks of the server (session-locks.md). */
static bool same_database(const char *a, const char *b) {
  struct dibs__uri x, y;
  struct dibs__result result = {0};
  if (dibs__uri_parse(a, &x, &result) != DIBS_OK) return false;
  bool same = dibs__uri_parse(b, &y, &result) == DIBS_OK;
  if (!same) {
    dibs__uri_free(&x);
    return false;
  }
  same = strcmp(x.hosts, y.hosts) == 0 && strcmp(x.path, y.path) == 0;
  dibs__uri_free(&x);
  dibs__uri_free(&y);
  return same;
}

const char *dibs__lab_lock_uri(const struct lab *lab, const struct lab_way *way) {
  for (size_t i = 0; i < lab->locks_count; i++) {
    if (!dibs__lab_lock_fits(way->lock, lab->locks[i])) continue;
    if (way->lock != LAB_LOCK_SESSION || !same_database(lab->locks[i], lab->uri)) return lab->locks[i];
  }
  bool own = way->lock == LAB_LOCK_SERVER || way->lock == LAB_LOCK_ANY;
  return own && lab->server ? lab->uri : NULL;
}

/* Strategies with a lock elsewhere run only with --locks, or by name. */
static bool is_requested(const struct lab *lab, const struct lab_way *way) {
  if (lab->strategies) return list_has(lab->strategies, way->name);
  return way->lock == LAB_NO_LOCK || lab->locks_count > 0;
}

bool dibs__lab_way_wanted(const struct lab *lab, const struct lab_way *way) {
  if (dibs__lab_by_hand(way) && !lab->connection) return false;
  if (way->lock != LAB_NO_LOCK && !dibs__lab_lock_uri(lab, way)) return false;
  return is_requested(lab, way);
}

/* Requested strategies without a store for their lock become notes.  false: one of them was requested by name. */
static bool check_locks(struct lab *lab) {
  if (!lab->connection) return true;
  for (size_t i = 0; i < dibs__lab_way_count; i++) {
    const struct lab_way *way = &dibs__lab_ways[i];
    if (way->lock == LAB_NO_LOCK || !is_requested(lab, way) || dibs__lab_lock_uri(lab, way)) continue;
    const char *hiredis = way->lock == LAB_LOCK_SPIN && !dibs__lab_redis_built() ? ", and a dibs-lab with hiredis" : "";
    const char *other = way->lock == LAB_LOCK_SESSION ? ", in another database than the rows" : "";
    lab->trouble = DIBS_INVALID;
    if (lab->strategies)
      return dibs__lab_fail(lab, "%s needs --locks %s%s%s", way->name, dibs__lab_lock_example(way->lock), other,
                            hiredis);
    lab->trouble = DIBS_UNAVAILABLE;
    dibs__lab_note(&lab->sheet, "%s was omitted: it needs --locks %s%s%s.", way->name,
                   dibs__lab_lock_example(way->lock), other, hiredis);
  }
  return true;
}

/* Each store of --locks grants a lock, so that an experiment of minutes does not end without its result. */
static bool probe_locks(struct lab *lab) {
  for (size_t i = 0; i < dibs__lab_way_count; i++) {
    const struct lab_way *way = &dibs__lab_ways[i];
    if (way->lock == LAB_NO_LOCK || !dibs__lab_way_wanted(lab, way)) continue;
    struct lab_lock lock = {0};
    dibs_error error = {0};
    char key[LAB_KEY_MAX], why[LAB_WHY_MAX];
    dibs__lab_key(key, lab->run, 0);
    struct lab_locks *locks = dibs__lab_locks_open(way->lock, dibs__lab_lock_uri(lab, way), why, sizeof why);
    bool fine = locks && dibs__lab_lock_connect(&lock, locks, why, sizeof why);
    if (fine && dibs__lab_lock_take(&lock, key, PROBE_MS, &error) != DIBS_OK) {
      snprintf(why, sizeof why, "%s", error.text);
      fine = false;
    }
    dibs__lab_lock_disconnect(&lock);
    dibs__lab_locks_close(locks);
    if (!fine) return dibs__lab_fail(lab, "%s cannot take its lock: %s", way->name, why);
  }
  return true;
}

static void add_lock_facts(struct lab *lab) {
  char shown[900] = "";
  for (size_t i = 0; i < lab->locks_count; i++) {
    struct dibs__uri uri;
    struct dibs__result result = {0};
    if (dibs__uri_parse(lab->locks[i], &uri, &result) != DIBS_OK) continue;
    size_t length = strlen(shown);
    snprintf(shown + length, sizeof shown - length, "%s%s", length ? ", " : "", uri.shown);
    dibs__uri_free(&uri);
  }
  if (!shown[0]) return;
  dibs__lab_fact(&lab->sheet, "locks", "Locks", "%s", shown);
  dibs__lab_lock_durability(lab);
}

bool dibs__lab_locks_ready(struct lab *lab) {
  add_lock_facts(lab);
  return check_locks(lab) && probe_locks(lab);
}
