/* SPDX-License-Identifier: MIT */
/* The program dibs-gate, which `dibs gate` becomes, with the same arguments; its options. */
#include "cli/gate.h"
#include "cli/daemon_options.h"
#include "gate/gate.h"
#include "serve/listen.h"

#include <stdlib.h>
#include <string.h>

struct gate_options {
  struct daemon_options daemon;
  struct gate_config config;
};

#define AT(field) offsetof(struct gate_options, field)

static const char *const require_words[] = {
    [GATE_REQUIRE_WRITES] = "writes", [GATE_REQUIRE_ALL] = "all", [GATE_REQUIRE_NONE] = "none", NULL};

static const struct daemon_row rows[] = {
    {.name = "config", .kind = DAEMON_TEXT, .at = AT(daemon.file), .line_only = true},
    {.name = "listen", .kind = DAEMON_ADDRESSES},
    {.name = "upstream", .kind = DAEMON_TEXT, .at = AT(config.upstream)},
    {.name = "ca", .kind = DAEMON_TEXT, .at = AT(config.ca)},
    {.name = "scope", .kind = DAEMON_TEXT, .at = AT(config.scope)},
    {.name = "cert", .kind = DAEMON_TEXT, .at = AT(config.serve.certificate)},
    {.name = "key", .kind = DAEMON_TEXT, .at = AT(config.serve.key)},
    {.name = "client-ca", .kind = DAEMON_TEXT, .at = AT(config.serve.client_ca)},
    {.name = "access-log", .kind = DAEMON_TEXT, .at = AT(config.serve.access_log)},
    {.name = "metrics-listen", .kind = DAEMON_TEXT, .at = AT(config.metrics)},
    {.name = "require", .kind = DAEMON_WORD, .at = AT(config.require), .words = require_words},
    {.name = "order", .kind = DAEMON_FLAG, .at = AT(config.order)},
    {.name = "check-lease", .kind = DAEMON_FLAG, .at = AT(config.check_lease)},
    {"wait", DAEMON_DURATION, AT(config.wait_ms), 0, 86400000, 10000, false, NULL},
    {"connect", DAEMON_DURATION, AT(config.connect_ms), 1, 3600000, 5000, false, NULL},
    {"timeout", DAEMON_DURATION, AT(config.silence_ms), 1, 86400000, 60000, false, NULL},
    {"keep", DAEMON_DURATION, AT(config.keep_ms), 0, INT64_C(315360000000), 86400000, false, NULL},
    {"body", DAEMON_NUMBER, AT(config.serve.body_bytes), 1024, 64 << 20, 2 << 20, false, NULL},
    {"bodies", DAEMON_NUMBER, AT(config.serve.bodies_mib), 1, 1 << 20, 256, false, NULL},
    {"header", DAEMON_NUMBER, AT(config.head_bytes), 1024, 262144, 16384, false, NULL},
    {"connections", DAEMON_NUMBER, AT(config.serve.connections), 1, 1000000, 4096, false, NULL},
    {"upstream-connections", DAEMON_NUMBER, AT(config.upstream_connections), 1, 65536, 256, false, NULL},
    {"waiters", DAEMON_NUMBER, AT(config.serve.waiters), 0, 1000000, 4096, false, NULL},
    {"idle", DAEMON_NUMBER, AT(config.serve.idle_s), 1, 86400, 60, false, NULL},
    {"read", DAEMON_NUMBER, AT(config.serve.read_s), 1, 86400, 30, false, NULL},
};
_Static_assert(sizeof rows / sizeof *rows <= DAEMON_OPTIONS_MAX, "each row may have a value in the file");

static const struct daemon_program program = {.name = "gate",
                                              .variables = "DIBS_GATE_",
                                              .address = "127.0.0.1:7381",
                                              .rows = rows,
                                              .row_count = sizeof rows / sizeof *rows,
                                              .config_at = AT(config.serve),
                                              .store_at = AT(config.serve.store)};

static int print_help(const struct cli_globals *globals) {
  puts(
      "usage: dibs gate --upstream URL [OPTION...]\n"
      "       dibs gate fence NAME [--set FENCE]\n\n"
      "A reverse proxy in front of a service that does not check fences.  A request with the headers Dibs-Name and\n"
      "Dibs-Fence goes on only if no newer fence of that name was seen; the store remembers the newest in the same\n"
      "step, for all gates.  Otherwise it is answered 409.  A request that is repeated with its Idempotency-Key gets\n"
      "the answer of the first.  TERM or INT ends the gate: running requests have up to 10 s to finish.  dibs gate\n"
      "fence --help: the highest fence of a name.\n\n"
      "  --upstream URL     the service: http://HOST[:PORT][/PATH], https://... or unix:PATH\n"
      "  --config FILE      an INI file with these options in its section [gate], without the dashes, and store; the\n"
      "                     environment, as DIBS_GATE_LISTEN, comes before it, and options before both.  Options\n"
      "                     without a value are on or off there\n"
      "  --listen ADDRESS   HOST:PORT, [HOST]:PORT or unix:PATH (127.0.0.1:7381); may be repeated.  Addresses that\n"
      "                     other machines can reach need --cert, --key and --client-ca\n"
      "  --cert FILE        the certificate, with its chain, and\n"
      "  --key FILE         its key, in PEM: TLS 1.2 and 1.3 at all addresses but Unix sockets.  HUP reads them again\n"
      "  --client-ca FILE   clients need a certificate that one in this file signed.  HUP reads it again\n"
      "  --require WHICH    which requests must have a fence: writes (all but GET, HEAD and OPTIONS), all, or none\n"
      "                     (writes); others are answered 428\n"
      "  --order            one request of a name at a time, first come first served, at all gates together\n"
      "  --check-lease      the lease of the name must be held, under a fence that the request can have; others are\n"
      "                     answered 410, and their fences are not remembered\n"
      "  --wait TIME        how long a request may wait for those before it (10s), with --order or with the same key\n"
      "  --timeout TIME     how long the service may send and take nothing (60s); then 504\n"
      "  --connect TIME     how long connecting to the service may take (5s)\n"
      "  --keep TIME        how long the answers of Idempotency-Keys are kept (24h); 0s: the gate ignores the header\n"
      "  --scope TEXT       the keys belong to it (the URL of --upstream)\n"
      "  --ca FILE          certificates that sign the service's (those of the system)\n"
      "  --metrics-listen ADDRESS   a loopback address or unix:PATH for /metrics, /healthz and /readyz (none)\n"
      "  --access-log FILE  a line of JSON for each request; -: to standard output.  HUP opens it again\n"
      "  --body BYTES       the maximum size of the body of a request with an Idempotency-Key (2097152)\n"
      "  --bodies MIB       the maximum memory for bodies that are kept as a whole (256); more are answered 503\n"
      "  --header BYTES     the maximum size of the headers of a request, and of an answer (16384)\n"
      "  --connections N    the maximum number of connections from clients (4096)\n"
      "  --upstream-connections N   the same to the service (256)\n"
      "  --waiters N        the maximum number of requests that wait for those before them (4096); more are\n"
      "                     answered 503, with 0 all that must wait\n"
      "  --idle SECONDS     a client that sends and takes nothing for so long is cut (60)\n"
      "  --read SECONDS     a client must have sent headers and a body up to 64 KiB after this time (30); with\n"
      "                     --order, from its turn on, the whole body\n"
      "  --store URI        the store; else $DIBS_STORE, else dibs.ini, else a file\n"
      "  --set FENCE        of dibs gate fence: from now on the gates pass fences of NAME from this one on\n\n"
      "Exit codes: 0 it was ended by a signal; others as in dibs help exits.\n\n"
      "Example: dibs gate --upstream http://127.0.0.1:8080 --store postgres://app@db/app");
  return dibs__cli_flush(globals);
}

static const struct gate_config *ready_config;

static void report_ready(const char *store) {
  (void)store;
  const struct serve_config *serve = &ready_config->serve;
  int passed = dibs__sockets_count();
  if (passed > 0) dibs__cli_daemon_note("a gate to %s at %d sockets of systemd", ready_config->upstream, passed);
  for (size_t i = 0; i < serve->address_count && passed == 0; i++)
    dibs__cli_daemon_note("a gate to %s at %s", ready_config->upstream, serve->addresses[i]);
}

static int run_gate(struct cli_call *call) {
  const struct cli_globals *g = &call->v.globals;
  struct gate_options options = {.config.serve = {.note = dibs__cli_daemon_note, .threads = 1, .queue = 1024}};
  const struct gate_config *config = &options.config;
  dibs_error error = {0};
  if (call->nrest > 1 && strcmp(call->rest[1], "fence") == 0) return dibs__cli_gate_fence(call);
  int code = dibs__daemon_options_read(call, &program, &options);
  if (code == CLI_DONE && options.daemon.help) {
    code = print_help(g);
    goto out;
  }
  if (code == CLI_DONE && !config->upstream)
    code = dibs__cli_fail(g, CLI_USAGE, "INVALID", "gate: give --upstream URL: the service behind the gate");
  if (code != CLI_DONE) goto out;
  dibs__cli_daemon_notes(g);
  ready_config = config;
  dibs_status status = dibs__gate(config, report_ready, &error);
  if (status != DIBS_OK) code = dibs__cli_fail_status(g, status, &error, "cannot open the gate");
out:
  dibs__daemon_options_free(&options.daemon);
  return code;
}

const struct cli_command dibs__cli_commands[] = {
    {"gate", "--upstream URL [OPTION...]", "refuse stale fences in front of a service that does not check them", 0,
     CLI_MAY(DONE) | CLI_MAY(FAILED) | CLI_MAY(STORE) | CLI_MAY(USAGE), 0, 0, false, true, run_gate, "",
     "dibs gate --upstream http://127.0.0.1:8080"},
    {"help", "[COMMAND|exits]", "print help", 0, CLI_MAY(DONE) | CLI_MAY(FAILED) | CLI_MAY(USAGE), 0, 1, false, false,
     dibs__cli_help, "", "dibs help gate"},
    {"version", "", "print the version", 0, CLI_MAY(DONE) | CLI_MAY(FAILED) | CLI_MAY(USAGE), 0, 0, false, false,
     dibs__cli_version, "", "dibs-gate version --json"},
    {0}};

const struct cli_program dibs__cli_program = {"dibs-gate", "fences for a service that does not check them", NULL};

int main(int argc, char **argv) {
  return dibs__cli_main(argc, argv);
}
