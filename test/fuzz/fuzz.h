/* SPDX-License-Identifier: MIT */
#ifndef DIBS_TEST_FUZZ_H
#define DIBS_TEST_FUZZ_H
/* A fuzz target is this function, in libFuzzer's words; replay.c calls it when there is no fuzzer. */
#include <stddef.h>
#include <stdint.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#endif
