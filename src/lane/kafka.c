/* SPDX-License-Identifier: MIT */
#include "lane/kafka.h"

#include <stdio.h>

const struct dibs__kafka_module *dibs__kafka_load(struct dibs__module *module, char *why, size_t size) {
  char text[512];
  switch (dibs__module_load(DIBS__KAFKA_MODULE_FILE, DIBS__KAFKA_MODULE_SYMBOL, NULL, module, text, sizeof text)) {
  case DIBS__MODULE_LOADED:
    break;
  case DIBS__MODULE_BROKEN:
    snprintf(why, size, "%s", text);
    return NULL;
  case DIBS__MODULE_MISSING:
    snprintf(why, size,
             "this dibs has no Kafka: " DIBS__KAFKA_MODULE_FILE " is not in %s; install the package "
             "libdibs-kafka, or build dibs with librdkafka",
             text);
    return NULL;
  }
  const struct dibs__kafka_module *calls = ((dibs__kafka_module_fn *)module->function)();
  if (calls != NULL && calls->abi == DIBS__KAFKA_MODULE_ABI && calls->size == sizeof *calls) return calls;
  snprintf(why, size, "%s is of another version of dibs; install the one of this version", module->file);
  dibs__module_unload(module);
  return NULL;
}
