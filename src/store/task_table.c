/* SPDX-License-Identifier: MIT */
/* What every store refuses of tasks in the user's own table (R77), before it looks at the table. */
#include "store/task.h"
#include "store/values.h"

#include <stdio.h>

typedef struct dibs__task_op task_op;

static bool has_items(const task_op *op) {
  return op->op.verb == DIBS__TASK_EXTEND || op->op.verb == DIBS__TASK_END;
}

static void clear_answer(task_op *op) {
  op->got = NULL;
  op->got_count = 0;
  op->next_ms = -1;
  op->why[0] = '\0';
  for (uint32_t i = 0; has_items(op) && i < op->count; i++) {
    op->items[i].status = DIBS_UNKNOWN;
    op->items[i].due_ms = 0;
    op->items[i].locked_now[0] = '\0';
  }
}

static bool is_unsupported(task_op *op) {
  const struct dibs__task_filter *filter = &op->filter;
  uint32_t verb = op->op.verb;
  if (!op->table->locked_at)
    snprintf(op->why, sizeof op->why, "table %.60s was declared without phase, locked_at and updated_at",
             op->table->table);
  else if (!has_items(op) && verb != DIBS__TASK_CLAIM && verb != DIBS__TASK_LIST)
    snprintf(op->why, sizeof op->why,
             "the rows of the table \"%.64s\" are yours: insert, change and count them yourself", op->table->table);
  else if (verb == DIBS__TASK_LIST &&
           (op->errors || filter->nr || filter->after || filter->serial.len || filter->text.len))
    snprintf(op->why, sizeof op->why, "the table \"%.64s\" has no numbers, keys and errors of tasks", op->table->table);
  else
    return false;
  op->op.status = DIBS_UNSUPPORTED;
  return true;
}

static bool is_invalid(task_op *op) {
  const char *wrong = NULL;
  uint32_t verb = op->op.verb;
  bool items = has_items(op), times = verb == DIBS__TASK_CLAIM || verb == DIBS__TASK_EXTEND;
  if (op->timeout_ms < 0 || op->timeout_ms > DIBS__TASK_WAIT_MAX_MS || (times && op->timeout_ms == 0))
    wrong = "the timeout of the claim is missing, or longer than ten years";
  else if (!items && (op->most == 0 || op->most > DIBS__TASK_ITEMS))
    wrong = "the number of rows must be from 1 to 1000";
  else if (items && op->count > DIBS__TASK_ITEMS)
    wrong = "more than 1000 items";
  else if (verb == DIBS__TASK_CLAIM && op->phase_count > DIBS__TASK_PHASES)
    wrong = "more than 16 phases";
  else if (op->filter.older_ms < 0 || op->filter.older_ms > DIBS__TASK_WAIT_MAX_MS)
    wrong = "the age is below 0, or more than ten years";
  if (!wrong) return false;
  op->op.status = DIBS_INVALID;
  snprintf(op->why, sizeof op->why, "%s", wrong);
  return true;
}

DIBS__MODULE_API bool dibs__task_table_refuses(task_op *op) {
  clear_answer(op);
  return is_unsupported(op) || is_invalid(op);
}

DIBS__MODULE_API bool dibs__task_table_refuses_item(task_op *op, struct dibs__task_item *item) {
  bool ends = op->op.verb == DIBS__TASK_END;
  bool waits = ends && (item->verdict == DIBS__TASK_END_WAIT || item->verdict == DIBS__TASK_END_FAIL);
  item->status = DIBS_OK;
  if (ends && (item->verdict == DIBS__TASK_END_DONE || item->verdict == DIBS__TASK_END_DEAD)) {
    item->status = DIBS_UNSUPPORTED;
    snprintf(op->why, sizeof op->why, "the rows of the table \"%.64s\" are yours: end a task by its phase",
             op->table->table);
  } else if (item->key.len == 0 || item->fence.v == 0 || item->fence.v > INT64_MAX || item->locked.len == 0 ||
             (ends && item->verdict > DIBS__TASK_END_GIVE) ||
             (waits && (item->delay_ms < 0 || item->delay_ms > DIBS__TASK_WAIT_MAX_MS || op->timeout_ms <= 0))) {
    item->status = DIBS_INVALID;
  }
  return item->status != DIBS_OK;
}
