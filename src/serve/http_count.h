/* SPDX-License-Identifier: MIT */
#ifndef DIBS_SERVE_HTTP_COUNT_H
#define DIBS_SERVE_HTTP_COUNT_H
/* How many requests were answered, by route and status, and how long they took.  In the loop only. */
#include <stdbool.h>

struct server;
struct request;
struct meter;

bool dibs__http_counts_open(struct server *server);
void dibs__http_counts_close(struct server *server);
/* Its answer is about to be sent. */
void dibs__http_count(const struct request *r);
void dibs__http_counts_add(const struct server *server, struct meter *meter);

#endif
