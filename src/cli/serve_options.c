/* SPDX-License-Identifier: MIT */
#include "cli/serve_options.h"

#define AT(field) offsetof(struct serve_options, field)

static const struct daemon_row rows[] = {
    {.name = "config", .kind = DAEMON_TEXT, .at = AT(daemon.file), .line_only = true},
    {.name = "listen", .kind = DAEMON_ADDRESSES},
    {.name = "tokens", .kind = DAEMON_TEXT, .at = AT(config.tokens)},
    {.name = "cert", .kind = DAEMON_TEXT, .at = AT(config.certificate)},
    {.name = "key", .kind = DAEMON_TEXT, .at = AT(config.key)},
    {.name = "client-ca", .kind = DAEMON_TEXT, .at = AT(config.client_ca)},
    {.name = "access-log", .kind = DAEMON_TEXT, .at = AT(config.access_log)},
    {.name = "cors", .kind = DAEMON_ORIGINS},
    {"threads", DAEMON_NUMBER, AT(config.threads), 1, 1024, 16, false, NULL},
    {"connections", DAEMON_NUMBER, AT(config.connections), 1, 1000000, 20000, false, NULL},
    {"waiters", DAEMON_NUMBER, AT(config.waiters), 0, 1000000, 15000, false, NULL},
    {"body", DAEMON_NUMBER, AT(config.body_bytes), 1024, 64 << 20, 2 << 20, false, NULL},
    {"header", DAEMON_NUMBER, AT(config.header_bytes), 1024, 1 << 20, 8192, false, NULL},
    {"bodies", DAEMON_NUMBER, AT(config.bodies_mib), 1, 1 << 20, 256, false, NULL},
    {"requests", DAEMON_NUMBER, AT(config.requests), 1, 1000000, 10000, false, NULL},
    {"event-clients", DAEMON_NUMBER, AT(config.event_clients), 0, 1000000, 1000, false, NULL},
    {"watched-lists", DAEMON_NUMBER, AT(config.watched_lists), 1, 10000, 64, false, NULL},
    {"queue", DAEMON_NUMBER, AT(config.queue), 1, 1000000, 1024, false, NULL},
    {"page", DAEMON_NUMBER, AT(config.page), 1, 10000, 1000, false, NULL},
    {"session-ids", DAEMON_NUMBER, AT(config.session_ids), 1, 10000000, 100000, false, NULL},
    {"rate", DAEMON_NUMBER, AT(config.rate), 0, 1000000, 0, false, NULL},
    {"idle", DAEMON_NUMBER, AT(config.idle_s), 1, 86400, 60, false, NULL},
    {"read", DAEMON_NUMBER, AT(config.read_s), 1, 86400, 30, false, NULL},
    {"send", DAEMON_NUMBER, AT(config.send_s), 1, 86400, 60, false, NULL},
    {.name = "new-token", .kind = DAEMON_TEXT, .at = AT(new_token), .line_only = true},
    {.name = "scope", .kind = DAEMON_TEXT, .at = AT(scope), .line_only = true},
    {.name = "prefix", .kind = DAEMON_TEXT, .at = AT(prefix), .line_only = true},
};

static const struct daemon_program program = {.name = "serve",
                                              .variables = "DIBS_SERVE_",
                                              .address = "127.0.0.1:7380",
                                              .rows = rows,
                                              .row_count = sizeof rows / sizeof *rows,
                                              .config_at = AT(config),
                                              .store_at = AT(config.store)};
_Static_assert(sizeof rows / sizeof *rows <= DAEMON_OPTIONS_MAX, "each row may have a value in the file");

int dibs__serve_options_read(struct cli_call *call, struct serve_options *options) {
  int code = dibs__daemon_options_read(call, &program, options);
  if (code == CLI_DONE && !options->new_token && (options->scope || options->prefix))
    code = dibs__cli_fail(&call->v.globals, CLI_USAGE, "INVALID",
                          "serve: --scope and --prefix are of --new-token; the file of --tokens contains those of a "
                          "token");
  return code;
}
