/* SPDX-License-Identifier: MIT */
/*
 * What `dibs serve` is compared with: a bare libmicrohttpd in the same mode, which reads the requests and answers the
 * same bytes without any work.
 *
 *   floor-serve PORT      at 127.0.0.1, until it is ended
 */
#include <arpa/inet.h>
#include <microhttpd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define ID "0123456789abcdef0123456789abcdef"
#define FENCE "7740398493674204000"

/* As the daemon's (http.c): libmicrohttpd clears it after each request. */
enum { CONNECTION_MEMORY = 8192 + 128 * 64 + 4096 };

static const char lease[] =
    "{\"name\":\"pairs/00\",\"id\":\"" ID "\",\"fence\":" FENCE ",\"left_ms\":29999,\"slot\":0,\"tier\":\"sqlite\"}";
static const char claim[] =
    "{\"key\":\"seats\",\"claim\":\"000-0000000\",\"amount\":1,\"used\":1000000,\"limit\":1000000000}";

static const char task[] = "{\"task\":1000000,\"status\":\"OK\"}";
static const char record[] = "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx";

static char *copy_of(const char *text) {
  size_t size = strlen(text) + 1;
  char *copy = malloc(size);
  if (copy) memcpy(copy, text, size);
  return copy;
}

/* The body is allocated for each answer, as the daemon does. */
static enum MHD_Result answer(struct MHD_Connection *connection, unsigned status, const char *text) {
  char *body = copy_of(text);
  if (!body) return MHD_NO;
  struct MHD_Response *response = MHD_create_response_from_buffer(strlen(text), body, MHD_RESPMEM_MUST_FREE);
  if (!response) return MHD_NO;
  const char *type = text == record ? "application/octet-stream" : "application/json";
  MHD_add_response_header(response, MHD_HTTP_HEADER_CONTENT_TYPE, type);
  MHD_add_response_header(response, MHD_HTTP_HEADER_CACHE_CONTROL, "no-store");
  if (text == lease) {
    MHD_add_response_header(response, "Dibs-Lease", ID);
    MHD_add_response_header(response, "Dibs-Fence", FENCE);
  } else if (text == record) {
    MHD_add_response_header(response, MHD_HTTP_HEADER_ETAG, "\"1\"");
  }
  enum MHD_Result result = MHD_queue_response(connection, status, response);
  MHD_destroy_response(response);
  return result;
}

static enum MHD_Result handle(void *cls, struct MHD_Connection *connection, const char *url, const char *method,
                              const char *version, const char *part, size_t *size, void **context) {
  static int begun;
  (void)cls, (void)version, (void)part;
  if (!*context) {
    *context = &begun;
    return MHD_YES;
  }
  if (*size > 0) {
    *size = 0;
    return MHD_YES;
  }
  if (strcmp(method, "POST") == 0) return answer(connection, 201, strncmp(url, "/v1/kinds/", 10) == 0 ? task : lease);
  if (strcmp(method, "GET") == 0) return answer(connection, 200, record);
  return strcmp(method, "PUT") == 0 ? answer(connection, 201, claim) : answer(connection, 204, "");
}

int main(int argc, char *argv[]) {
  if (argc != 2) {
    fputs("usage: floor-serve PORT\n", stderr);
    return 2;
  }
  struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)strtoul(argv[1], NULL, 10))};
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  struct MHD_Daemon *daemon = MHD_start_daemon(MHD_USE_EPOLL_INTERNAL_THREAD | MHD_USE_ERROR_LOG, 0, NULL, NULL, handle,
                                               NULL, MHD_OPTION_SOCK_ADDR, &address, MHD_OPTION_CONNECTION_LIMIT,
                                               20000u, MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)CONNECTION_MEMORY,
                                               MHD_OPTION_LISTEN_BACKLOG_SIZE, 1024u, MHD_OPTION_END);
  if (!daemon) return 1;
  for (;;) pause();
}
