/* SPDX-License-Identifier: MIT */
/* page_check FILE: prints the mistake that page.h finds in the page and exits with 1, or exits with 0. */
#include "page.h"

#include <stdio.h>
#include <stdlib.h>

enum { MOST = 4 * 1024 * 1024 };

int main(int argc, char **argv) {
  FILE *file = argc > 1 ? fopen(argv[1], "re") : NULL;
  char *html = malloc(MOST + 1);
  if (!file || !html) {
    fprintf(stderr, "page_check: cannot read %s\n", argc > 1 ? argv[1] : "(no file)");
    free(html);
    return 1;
  }
  size_t length = fread(html, 1, MOST, file);
  html[length] = '\0';
  fclose(file);
  const char *wrong = page_wrong(html, length);
  if (wrong) printf("%s\n", wrong);
  free(html);
  return wrong != NULL;
}
