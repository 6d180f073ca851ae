/* SPDX-License-Identifier: MIT */
/* The strategies that stand beside each other. */
#include "lab/lab.h"

#include <stdio.h>
#include <string.h>

/* The default first, what is broken last. */
const struct lab_way dibs__lab_ways[] = {
    {"coalesced", "all that wait for the row are decided together", LAB_ONE_STORE, DIBS_COALESCED, true},
    {"atomic", "one conditional statement each", LAB_OWN_STORE, DIBS_ATOMIC, true},
    {"pessimistic", "the row is locked first", LAB_OWN_STORE, DIBS_PESSIMISTIC, true},
    {"optimistic", "written if nobody did in between, else again", LAB_OWN_STORE, DIBS_OPTIMISTIC, true},
    {"named", "a lease around the transaction", LAB_OWN_STORE, DIBS_NAMED, true},
    {"fenced", "a lease, and a row that refuses older fences", LAB_OWN_STORE, DIBS_FENCED, true},
    {"child-first", "by hand: the applicant's row first, then the counted one", LAB_CHILD_FIRST, DIBS_ATOMIC, true},
    {"none", "read, then written as if alone", LAB_OWN_STORE, DIBS_UNGUARDED, false},
};
const size_t dibs__lab_way_count = sizeof dibs__lab_ways / sizeof *dibs__lab_ways;

/* Is `name` one of the words of the list? */
static bool listed(const char *list, const char *name) {
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

bool dibs__lab_way_wanted(const struct lab *lab, const struct lab_way *way) {
  if (way->kind == LAB_CHILD_FIRST && !lab->door) return false;
  return !lab->strategies || listed(lab->strategies, way->name);
}
