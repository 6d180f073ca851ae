/* SPDX-License-Identifier: MIT */
/* dibs-test-proxy: the proxy as a program, controlled by its standard input or through a socket. */
#include <errno.h>
#include <getopt.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "proxy.h"

static const char usage[] =
    "usage: dibs-test-proxy [--listen PORT] [--protocol raw|postgres|mysql|redis] [--control SOCKET] HOST:PORT\n"
    "\n"
    "Prints `listening PORT`, then forwards 127.0.0.1:PORT (default: a free port) to HOST:PORT.\n"
    "Commands are lines of its standard input; it answers each with `ok ...` or `error ...` and quits at their end.\n"
    "With --control they arrive through connections to a Unix socket instead, and `quit` ends it.\n"
    "\n"
    "  pass   delay MS   cut   stall   half-open   refuse   to HOST:PORT   stats   quit\n"
    "  cut-before-request [nth=N] [times=N] PATTERN       cut-after-request [nth=N] [times=N] PATTERN\n"
    "  orphan-request [nth=N] [times=N] PATTERN MS        hold-request [nth=N] [times=N] PATTERN MS\n"
    "\n"
    "test/fault/proxy.h describes each command.\n";

struct arguments {
  struct proxy_options options;
  const char *control;
};

/* -1: continue; otherwise the exit status. */
static int parse(int argc, char *argv[], struct arguments *out) {
  static const struct option options[] = {{"listen", required_argument, NULL, 'l'},
                                          {"protocol", required_argument, NULL, 'p'},
                                          {"control", required_argument, NULL, 'c'},
                                          {"help", no_argument, NULL, 'h'},
                                          {NULL, 0, NULL, 0}};
  for (int got; (got = getopt_long(argc, argv, "h", options, NULL)) != -1;) {
    char *end = NULL;
    unsigned long port = 0;
    switch (got) {
    case 'l':
      port = strtoul(optarg, &end, 10);
      if (*end || end == optarg || port > 65535) {
        fprintf(stderr, "dibs-test-proxy: not a port: %s\n", optarg);
        return 2;
      }
      out->options.port = (uint16_t)port;
      break;
    case 'p':
      if (!frame_protocol_named(optarg, &out->options.protocol)) {
        fprintf(stderr, "dibs-test-proxy: unknown protocol: %s (use raw, postgres, mysql or redis)\n", optarg);
        return 2;
      }
      break;
    case 'c':
      out->control = optarg;
      break;
    case 'h':
      fputs(usage, stdout);
      return 0;
    default:
      fputs(usage, stderr);
      return 2;
    }
  }
  if (optind != argc - 1) {
    fputs(usage, stderr);
    return 2;
  }
  out->options.to = argv[optind];
  return -1;
}

int main(int argc, char *argv[]) {
  struct arguments arguments = {0};
  int code = parse(argc, argv, &arguments);
  if (code >= 0) return code;

  /* The reader of the answers may have gone; that ends the answer, not the proxy. */
  sigaction(SIGPIPE, &(struct sigaction){.sa_handler = SIG_IGN}, NULL);
  struct rlimit files;
  if (getrlimit(RLIMIT_NOFILE, &files) == 0) {
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);
  }

  char why[PROXY_WHY] = "no memory";
  struct proxy *proxy = proxy_open(&arguments.options, why);
  bool told = proxy != NULL;
  if (told && arguments.control) told = proxy_listen_at(proxy, arguments.control, why);
  if (!told) {
    fprintf(stderr, "dibs-test-proxy: %s\n", why);
    proxy_close(proxy);
    return 1;
  }
  printf("listening %u\n", (unsigned)proxy_port(proxy));
  fflush(stdout);
  if (arguments.control || proxy_listen_to(proxy, STDIN_FILENO, STDOUT_FILENO, true)) proxy_run(proxy);
  proxy_close(proxy);
  return 0;
}
