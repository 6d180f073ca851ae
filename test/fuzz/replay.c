/* SPDX-License-Identifier: MIT */
/*
 * Gives a fuzz target the files of a folder, and each of them with small changes, which are always the same: so every
 * test run, with any compiler, repeats what a fuzzer once found.
 *
 *   fuzz_NAME FOLDER [CHANGES]     changes of each file, 200 by default
 */
#include "fuzz.h"

#include <dirent.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { INPUT_MAX = 8192 };

static uint64_t drawn = 1;

static uint64_t draw(uint64_t below) {
  drawn ^= drawn << 13, drawn ^= drawn >> 7, drawn ^= drawn << 17;
  return drawn % below;
}

/* Makes one small change; returns the new size. */
static size_t change(uint8_t *input, size_t size) {
  static const char likely[] = ":/?@&=%+,.[]*#0a \n\x7f\xc3\xa9";
  size_t at = (size_t)draw(size + 1);
  switch (draw(5)) {
  case 0: /* replaces a byte */
    if (at < size) input[at] = (uint8_t)draw(256);
    return size;
  case 1: /* replaces a byte by a special one */
    if (at < size) input[at] = (uint8_t)likely[draw(sizeof likely - 1)];
    return size;
  case 2: /* inserts a byte */
    if (size == INPUT_MAX) return size;
    memmove(input + at + 1, input + at, size - at);
    input[at] = (uint8_t)likely[draw(sizeof likely - 1)];
    return size + 1;
  case 3: /* removes a byte */
    if (at == size) return size;
    memmove(input + at, input + at + 1, size - at - 1);
    return size - 1;
  default: /* truncates */
    return draw(4) ? size : at;
  }
}

static bool replay(const char *folder, const char *name, long changes) {
  static uint8_t input[INPUT_MAX], changed[INPUT_MAX];
  char path[4096];
  snprintf(path, sizeof path, "%s/%s", folder, name);
  FILE *file = fopen(path, "rb");
  if (!file) return false;
  size_t size = fread(input, 1, sizeof input, file);
  bool read_all = !ferror(file);
  fclose(file);
  if (!read_all) return false;
  LLVMFuzzerTestOneInput(input, size);
  for (long i = 0; i < changes; i++) {
    size_t now = size;
    memcpy(changed, input, size);
    for (uint64_t times = 1 + draw(4); times > 0; times--) now = change(changed, now);
    /* In memory of exactly its size, so that a sanitizer reports reads beyond it. */
    uint8_t *exact = malloc(now + 1);
    if (!exact) return false;
    memcpy(exact, changed, now);
    LLVMFuzzerTestOneInput(exact, now);
    free(exact);
  }
  return true;
}

int main(int argc, char **argv) {
  long changes = argc > 2 ? strtol(argv[2], NULL, 10) : 200;
  DIR *folder = argc > 1 ? opendir(argv[1]) : NULL;
  if (!folder) {
    fprintf(stderr, "usage: %s FOLDER [CHANGES]\n", argv[0]);
    return 2;
  }
  long files = 0;
  for (struct dirent *entry; (entry = readdir(folder));) {
    if (entry->d_name[0] == '.') continue;
    if (!replay(argv[1], entry->d_name, changes)) {
      fprintf(stderr, "cannot read %s/%s\n", argv[1], entry->d_name);
      return 1;
    }
    files++;
  }
  closedir(folder);
  printf("%ld files, %ld changes of each\n", files, changes);
  return files > 0 ? 0 : 1;
}
