/* SPDX-License-Identifier: MIT */
#ifndef DIBS_SERVE_TASK_LIST_H
#define DIBS_SERVE_TASK_LIST_H
#include "dibs/task.h"
#include "serve/server.h"

/* Adds `tasks`, a page of those that match, and `next` to the answer of the request.  Blocks for I/O. */
dibs_status dibs__tasks_page_write(struct request *r, const dibs_task_filter *filter, int64_t limit, dibs_error *error);

#endif
