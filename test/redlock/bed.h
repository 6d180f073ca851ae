/* SPDX-License-Identifier: MIT */
#ifndef DIBS_TEST_REDLOCK_BED_H
#define DIBS_TEST_REDLOCK_BED_H
/*
 * Helpers of the tests of redlock://: several Redis servers of their own (nodes.sh), and the parties of the contract's
 * tests.  Each case has keys of its own, so that nodes are new to it.
 */
#include "contract/harness.h"

enum { NODES_MAX = 8 };

void bed_begin(void);
int bed_case(void **state); /* all nodes run */
int bed_case_end(void **state);

/* ---- Nodes ---- */

void node_kill(size_t node);
void node_start(size_t node); /* with an empty memory */
void node_pause(size_t node);
void node_resume(size_t node);
uint16_t node_port(size_t node);
/* Sends a command to one node; returns its integer, or its string as an integer; -1: nil or an error. */
int64_t node_say(size_t node, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* The keys of a name in this case. */
const char *key_of(const char *name);
const char *bucket_key_of(const char *name);

/* ---- Stores ---- */

/* A store of the first `count` nodes with these parameters ("&max_ttl=1000"); `ports` replaces the nodes' ports unless
 *NULL.
 */
const char *quorum(size_t count, const char *params, const uint16_t ports[]);

/* A ttl that does not end while a case runs. */
enum { LONG_TTL = 60000 };
#define take(p, name, id, ...) acquire(p, name, id, .ttl = LONG_TTL, ##__VA_ARGS__)
#define keep_on(p, name, id, fence, ...) renew(p, name, id, fence, .ttl = LONG_TTL, ##__VA_ARGS__)

/* Sends the request once, for any answer. */
struct answer {
  dibs__status run;
  struct dibs__lease_op op;
  struct dibs__result reported;
  int64_t took_ms;
};
struct answer send_request(struct party *p, enum dibs__lease_verb verb, const char *name, int id, dibs__fence fence,
                           struct how how);
#define request_for(p, name, id, ...)                                                                                  \
  send_request(p, DIBS__ACQUIRE, name, id, DIBS__FENCE_NONE, (struct how){.try_only = true, ##__VA_ARGS__})
/* Repeats the request until it is granted. */
struct dibs__lease_op granted_at_last(struct party *p, const char *name, int id, uint32_t ttl_ms);
int64_t now_ms(void);

#define NODE_CASE(f)                                                                                                   \
  { #f, f, bed_case, bed_case_end, NULL }

#endif
