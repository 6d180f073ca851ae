/* SPDX-License-Identifier: MIT */
#ifndef DIBS_TEST_FAULT_TALLY_H
#define DIBS_TEST_FAULT_TALLY_H
/*
 * Clients that may be killed at any instant write down their takes and gives; the check compares them with the
 * database.
 *
 * One line for each, written by one write() to a file that is only appended to, so that it survives kill -9:
 *
 *   T STOCK CLAIM AMOUNT     about to take          t CLAIM STATUS GOT   its answer
 *   G STOCK CLAIM 0          about to give          g CLAIM STATUS GOT   its answer
 *   S STOCK USED LIMIT       a reading of the stock
 */
#include "dibs.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { TALLY_CLAIM = 40, TALLY_STOCK = 24 };

/* A claim in the database. */
struct tally_row {
  char claim[TALLY_CLAIM], stock[TALLY_STOCK];
  int64_t amount;
  bool given;
};

struct tally_stock {
  char name[TALLY_STOCK];
  int64_t used, limit;
};

struct tally_sums {
  uint64_t seen, takes, taken, refused, unavailable, unknown, unknown_in, killed, killed_in, gives, given;
};

/* Reads FOLDER/client-*.log, compares, and prints what is wrong.  Returns how many rules are broken. */
int tally_check(const char *folder, struct tally_row *rows, size_t row_count, const struct tally_stock *stocks,
                size_t stock_count, struct tally_sums *sums);

#endif
