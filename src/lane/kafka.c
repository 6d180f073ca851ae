/* SPDX-License-Identifier: MIT */
#include "lane/kafka.h"

static const struct dibs__module_part module_part = {
    .file = DIBS__KAFKA_MODULE_FILE,
    .symbol = DIBS__KAFKA_MODULE_SYMBOL,
    .lacks = "has no Kafka",
    .package = "libdibs-kafka",
    .library = "librdkafka",
    .head = {sizeof(struct dibs__kafka_module), DIBS__KAFKA_MODULE_ABI}};

const struct dibs__kafka_module *dibs__kafka_load(struct dibs__module *module, char *why, size_t size) {
  return (const struct dibs__kafka_module *)dibs__module_load_part(&module_part, module, why, size);
}
