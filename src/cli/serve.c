/* SPDX-License-Identifier: MIT */
/* The program dibs-serve, which `dibs serve` becomes, with the same arguments; its options. */
#include "cli/serve_options.h"
#include "serve/auth.h"
#include "serve/listen.h"

#include <stdlib.h>
#include <string.h>

static int print_help(const struct cli_globals *globals) {
  puts(
      "usage: dibs serve [OPTION...]\n\n"
      "Serves the store over HTTP/1.1, with JSON: leases, records, stocks and tasks for programs in any language.\n"
      "It is stateless: any number of daemons can serve one store, and a daemon that is killed loses nothing that it\n"
      "acknowledged.  TERM or INT ends it: waiting requests are answered 503 at once, and running requests have up to\n"
      "10 s to finish.  /openapi.json describes all requests.\n\n"
      "  --config FILE      an INI file with these options in its section [serve], without the dashes, and store; the\n"
      "                     environment, as DIBS_SERVE_LISTEN, comes before it, and options before both\n"
      "  --listen ADDRESS   HOST:PORT, [HOST]:PORT or unix:PATH (127.0.0.1:7380); may be repeated.  Addresses that\n"
      "                     other machines can reach need --tokens, --cert and --key\n"
      "  --tokens FILE      a line LABEL SCOPE PREFIX sha256:HASH for each token; SCOPE is read, use or admin, PREFIX\n"
      "                     how its names begin, or * for all.  HUP reads it again.  Without it every client may send\n"
      "                     every request\n"
      "  --cert FILE        the certificate, with its chain, and\n"
      "  --key FILE         its key, in PEM: TLS 1.2 and 1.3 at all addresses but Unix sockets.  HUP reads them again\n"
      "  --client-ca FILE   clients need a certificate that one in this file signed.  HUP reads it again\n"
      "  --access-log FILE  a line of JSON for each request; -: to standard output.  HUP opens it again\n"
      "  --cors ORIGIN      pages of this origin, as https://app.example, may use the daemon from a browser; may be\n"
      "                     repeated.  Others may not, but those that the daemon itself serves\n"
      "  --threads N        threads for requests that block: tasks, listings and /readyz (16)\n"
      "  --connections N    the maximum number of connections, at all addresses together (20000)\n"
      "  --waiters N        the maximum number of requests that wait for a lease or a task (15000); more are\n"
      "                     answered 503\n"
      "  --body BYTES       the maximum size of a request's body (2097152); a larger one is answered 413\n"
      "  --header BYTES     the maximum size of the request line with the headers (8192)\n"
      "  --bodies MIB       the maximum memory for the bodies of all requests (256); more are answered 503\n"
      "  --requests N       the maximum number of requests that run and do not wait (10000); more are answered 503\n"
      "  --event-clients N  the maximum number of clients of /v1/events (1000); more are answered 503\n"
      "  --watched-lists N  the maximum number of lists that they watch together (64); more are answered 503\n"
      "  --queue N          the maximum number of requests that wait for one of --threads (1024); more are answered "
      "503\n"
      "  --page N           the maximum number of entries in a page of a list (1000)\n"
      "  --session-ids N    the maximum number of waiters and leases of one client with --store http://... (100000);\n"
      "                     more are answered 503\n"
      "  --rate N           the maximum number of requests a second of one token (0: no limit); more are answered 429\n"
      "  --idle SECONDS     a connection without a request is closed after this time (60)\n"
      "  --read SECONDS     a client must have sent its request after this time (30), otherwise it is disconnected\n"
      "  --send SECONDS     a client must have read its answer after this time (60), otherwise it is disconnected\n"
      "  --store URI        the store; else $DIBS_STORE, else dibs.ini, else a file\n\n"
      "  --new-token LABEL  prints a new token and its line for the file of --tokens, and ends; with\n"
      "  --scope SCOPE      its scope: read, use or admin (use)\n"
      "  --prefix TEXT      how the names begin that it may use (all names)\n\n"
      "Exit codes: 0 it was ended by a signal; others as in dibs help exits.\n\n"
      "Example: dibs serve --store postgres://app@db/app");
  return dibs__cli_flush(globals);
}

/* ---- Tokens ---- */

static int print_token(const struct cli_globals *g, const struct serve_options *options) {
  struct new_token made;
  enum scope scope = SCOPE_USE;
  dibs_error error = {0};
  if (options->scope && !dibs__scope_read(options->scope, &scope))
    return dibs__cli_fail(g, CLI_USAGE, "INVALID", "serve: --scope: '%.40s' is not read, use or admin", options->scope);
  if (dibs__token_make(options->new_token, scope, options->prefix ? options->prefix : "", &made, &error) != DIBS_OK)
    return dibs__cli_fail(g, CLI_USAGE, "INVALID", "serve: --new-token: %s", error.text);
  if (g->json) {
    struct dibs__json j = {.out = stdout};
    dibs__json_open(&j, NULL, '{');
    dibs__json_text(&j, "token", made.secret);
    dibs__json_text(&j, "line", made.line);
    dibs__json_close(&j, '}');
  } else {
    printf("%s\n%s\n", made.secret, made.line);
  }
  return dibs__cli_flush(g);
}

/* ---- Serving ---- */

static const struct serve_config *ready_config;

static void report_ready(const char *store) {
  int passed = dibs__sockets_count();
  if (passed > 0) {
    dibs__cli_daemon_note("serving %s at %d sockets of systemd", store, passed);
    return;
  }
  for (size_t i = 0; i < ready_config->address_count; i++)
    dibs__cli_daemon_note("serving %s at %s", store, ready_config->addresses[i]);
}

static int run_serve(struct cli_call *call) {
  const struct cli_globals *g = &call->v.globals;
  struct serve_options options = {.config = {.note = dibs__cli_daemon_note, .act = dibs__cli_daemon_action}};
  dibs_error error = {0};
  dibs__cli_daemon_notes(g);
  int code = dibs__serve_options_read(call, &options);
  if (code != CLI_DONE) goto out;
  if (options.daemon.help || options.new_token) {
    code = options.daemon.help ? print_help(g) : print_token(g, &options);
    goto out;
  }
  ready_config = &options.config;
  dibs_status status = dibs__serve(&options.config, report_ready, &error);
  if (status != DIBS_OK) code = dibs__cli_fail_status(g, status, &error, "cannot serve the store");
out:
  dibs__daemon_options_free(&options.daemon);
  return code;
}

const struct cli_command dibs__cli_commands[] = {
    {"serve", "[OPTION...]", "serve the store over HTTP", 0,
     CLI_MAY(DONE) | CLI_MAY(FAILED) | CLI_MAY(STORE) | CLI_MAY(USAGE), 0, 0, false, true, run_serve, "",
     "dibs serve --listen 127.0.0.1:7380"},
    {"help", "[COMMAND|exits]", "print help", 0, CLI_MAY(DONE) | CLI_MAY(FAILED) | CLI_MAY(USAGE), 0, 1, false, false,
     dibs__cli_help, "", "dibs help serve"},
    {"version", "", "print the version", 0, CLI_MAY(DONE) | CLI_MAY(FAILED) | CLI_MAY(USAGE), 0, 0, false, false,
     dibs__cli_version, "", "dibs-serve version --json"},
    {0}};

const struct cli_program dibs__cli_program = {"dibs-serve", "a store of dibs over HTTP", NULL};

int main(int argc, char **argv) {
  return dibs__cli_main(argc, argv);
}
