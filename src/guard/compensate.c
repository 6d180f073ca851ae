/* SPDX-License-Identifier: MIT */
/* Several writes that no transaction holds together: done in order, taken back in the other. */
#include "base/text.h"
#include "lease/room.h"

#include <string.h>

enum { WAIT_DEFAULT_MS = 5000, PAUSE_FIRST_MS = 5, PAUSE_MOST_MS = 200, STEPS_MAX = 1000 };

struct going {
  const dibs_step *steps;
  size_t count;
  dibs__tick by;
  dibs_steps_result result;
  struct dibs__text text;
};

static bool done(dibs_status status) {
  return status == DIBS_OK || status == DIBS_REPLAY;
}

static bool gone(dibs_status status) {
  return done(status) || status == DIBS_NOT_FOUND;
}

/* Until it is gone, refused for good, or the time is over: once in any case. */
static dibs_status undo(struct going *g, const dibs_step *step, dibs_error *why) {
  dibs_status status;
  int64_t pause = PAUSE_FIRST_MS;
  for (;;) {
    *why = (dibs_error){0};
    g->result.undo_tries++;
    status = step->undo(step->user, why);
    if (status != DIBS_UNAVAILABLE && status != DIBS_UNKNOWN) return status;
    if (dibs__tick_left_ms(dibs__tick_now(), g->by) <= pause) return status;
    dibs__nap_ms(pause);
    if (pause < PAUSE_MOST_MS) pause *= 2;
  }
}

static void remains(struct going *g, size_t i, dibs_status status, const dibs_error *why) {
  if (g->result.left == 0) dibs__text_adds(&g->text, "; to be undone by hand: ");
  if (g->result.left > 0) dibs__text_adds(&g->text, ", ");
  dibs__text_addf(&g->text, "\"%.60s\" (", g->steps[i].name);
  if (!why)
    dibs__text_adds(&g->text, "it has no undo)");
  else
    dibs__text_addf(&g->text, "%s%s%.80s)", dibs_status_name(status), why->text[0] ? ": " : "", why->text);
  if (why && g->result.undo == DIBS_OK) g->result.undo = status;
  g->result.left++;
  g->result.first_left = i; /* they come from the last on */
}

static void undo_all(struct going *g, size_t from) {
  for (size_t i = from; i-- > 0;) {
    dibs_error why;
    if (!g->steps[i].undo) {
      remains(g, i, DIBS_OK, NULL);
      continue;
    }
    dibs_status status = undo(g, &g->steps[i], &why);
    if (!gone(status)) remains(g, i, status, &why);
  }
}

static dibs_status check(const dibs_step *steps, size_t count, int64_t wait_ms, const dibs_steps_result *result,
                         dibs_error *error) {
  if ((!steps && count > 0) || count > STEPS_MAX || wait_ms < 0)
    return dibs__fail(error, DIBS_INVALID, "dibs_steps: no steps, more than %d, or a time below 0", STEPS_MAX);
  if (result && (result->size < sizeof(size_t) || result->size > sizeof *result))
    return dibs__fail(error, DIBS_INVALID, "result.size is %zu: set it to sizeof(dibs_steps_result)", result->size);
  for (size_t i = 0; i < count; i++)
    if (!steps[i].name || !steps[i].act)
      return dibs__fail(error, DIBS_INVALID, "dibs_steps: step %zu has no name or no act", i + 1);
  return DIBS_OK;
}

dibs_status dibs_steps(const dibs_step *steps, size_t count, int64_t wait_ms, dibs_steps_result *result,
                       dibs_error *error) {
  char text[sizeof error->text];
  struct going g = {.steps = steps, .count = count};
  dibs_error why = {0};
  dibs_status status = check(steps, count, wait_ms, result, error);
  if (status != DIBS_OK) return status;
  while (g.result.done < count && done(status)) {
    why = (dibs_error){0};
    status = steps[g.result.done].act(steps[g.result.done].user, &why);
    if (done(status)) g.result.done++;
  }
  if (done(status)) {
    status = dibs__fine(error);
  } else {
    size_t failed = g.result.done;
    g.by = dibs__tick_add_ms(dibs__tick_now(), wait_ms ? wait_ms : WAIT_DEFAULT_MS);
    dibs__text_begin(&g.text, text, sizeof text);
    dibs__text_addf(&g.text, "step %zu, \"%.60s\", failed: %s%s%.120s", failed + 1, steps[failed].name,
                    dibs_status_name(status), why.text[0] ? ": " : "", why.text);
    undo_all(&g, failed + (status == DIBS_UNKNOWN)); /* it may be done, too */
    if (g.result.left == 0) dibs__text_adds(&g.text, "; all that was done before is undone");
    dibs__fail(error, status, "%s", text);
  }
  size_t size = result ? result->size : 0;
  g.result.size = size;
  if (result) memcpy(result, &g.result, size);
  return status;
}
