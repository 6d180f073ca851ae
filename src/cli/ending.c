/* SPDX-License-Identifier: MIT */
/*
 * Ending a whole tree: the group by one call that no fork escapes, then all the rest by walking.  Whoever is killed
 * can't start anything any more, and what was started during a walk is found by the next.
 */
#include "cli/minder.h"
#include "cli/process.h"

#include <unistd.h>

enum {
  FIRST_LOOK_MS = 2, /* between walks after KILL */
  GIVE_UP_MS = 3000  /* what a kernel does not end within this is stuck in it, and runs no code of its own any more */
};

static void signal_all(struct ending *ending, int signo) {
  if (ending->group != 0) kill(-ending->group, signo);
  struct cli_tree tree = dibs__cli_tree_signal(getpid(), signo, ending->group);
  ending->left.alive = tree.alive;
  ending->left.refused = tree.refused;
}

void dibs__cli_ending_begin(struct ending *ending, pid_t group, dibs__tick kill_at) {
  *ending = (struct ending){.began = true, .group = group, .kill_at = kill_at, .look_at = kill_at};
  dibs__tick now = dibs__tick_now();
  bool too_late = !dibs__tick_before(now, kill_at);
  /* Who was stopped itself may come long after the time to kill, and needs its time for that all the same. */
  ending->give_up_at = dibs__tick_add_ms(too_late ? now : kill_at, GIVE_UP_MS);
  if (too_late) return; /* to be polite */
  signal_all(ending, SIGTERM);
  /* A stopped process can't tidy up. */
  signal_all(ending, SIGCONT);
}

bool dibs__cli_ending_step(struct ending *ending, bool none_left) {
  if (none_left) {
    ending->left.alive = ending->left.refused = 0;
    return true;
  }
  dibs__tick now = dibs__tick_now();
  if (dibs__tick_before(now, ending->look_at)) return false;
  signal_all(ending, SIGKILL);
  bool only_refused = ending->left.alive > 0 && ending->left.alive == ending->left.refused;
  if (only_refused && ending->group == 0) return true;
  int64_t late_ms = dibs__tick_left_ms(ending->kill_at, now);
  ending->look_at = dibs__tick_add_ms(now, FIRST_LOOK_MS + late_ms / 8);
  return !dibs__tick_before(now, ending->give_up_at);
}
