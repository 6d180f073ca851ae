/* SPDX-License-Identifier: MIT */
/*
 * hostile short|long|bad: prints the strings, each followed by a NUL.  In scripts: mapfile -d '' -t names < <(hostile
 * short)
 */
#include "hostile.h"

#include <stdio.h>
#include <string.h>

int main(int argc, char *argv[]) {
  static const struct {
    const char *name;
    const struct hostile *list;
    const size_t *count;
  } lists[] = {{"short", hostile_short, &hostile_short_count},
               {"long", hostile_long, &hostile_long_count},
               {"bad", hostile_bad, &hostile_bad_count}};
  for (size_t i = 0; i < 3; i++) {
    if (argc != 2 || strcmp(argv[1], lists[i].name) != 0) continue;
    for (size_t k = 0; k < *lists[i].count; k++) fwrite(lists[i].list[k].p, 1, lists[i].list[k].len + 1, stdout);
    return 0;
  }
  fprintf(stderr, "usage: hostile short|long|bad\n");
  return 2;
}
