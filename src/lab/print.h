/* SPDX-License-Identifier: MIT */
#ifndef DIBS_LAB_PRINT_H
#define DIBS_LAB_PRINT_H
/* What the command prints: print.c. */
#include "base/json.h"
#include "lab/lab.h"

void dibs__lab_print(const struct lab_sheet *sheet, FILE *out);
/* One object. */
void dibs__lab_json(struct dibs__json *json, const struct lab_sheet *sheet);
/* A lab's progress function. */
void dibs__lab_progress(const struct lab_progress *progress, void *user);

#endif
