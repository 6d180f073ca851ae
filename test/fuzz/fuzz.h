/* SPDX-License-Identifier: MIT */
#ifndef DIBS_TEST_FUZZ_H
#define DIBS_TEST_FUZZ_H
/* A fuzz target is this function, as libFuzzer defines it; replay.c calls it without a fuzzer. */
#include <stddef.h>
#include <stdint.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#endif
