/* SPDX-License-Identifier: MIT */
/* The dashboard: its files, which are compiled into the program (web/embed.py). */
#include "serve/web.h"
#include "serve/server.h"

#include <string.h>

/* Nothing is fetched from anywhere else, nothing is in a frame, and no text of the store can become a script. */
static const char policy[] = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
                             "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

static const struct web_file *find_file(const char *name) {
  for (size_t i = 0; i < dibs__web_file_count; i++)
    if (strcmp(dibs__web_files[i].name, name) == 0) return &dibs__web_files[i];
  return NULL;
}

static bool header_has(const struct request *r, const char *header, const char *word) {
  const char *value = MHD_lookup_connection_value(r->connection, MHD_HEADER_KIND, header);
  return value && strstr(value, word);
}

/* A browser asks again with the tag each time, so a new server is never mixed with old files. */
static void send_file(struct request *r, const struct web_file *file) {
  bool known = header_has(r, MHD_HTTP_HEADER_IF_NONE_MATCH, file->tag);
  bool packed = header_has(r, MHD_HTTP_HEADER_ACCEPT_ENCODING, "gzip");
  unsigned char *bytes = packed ? file->gzip : file->bytes;
  size_t length = known ? 0 : packed ? file->gzip_length : file->length;
  struct MHD_Response *answer = MHD_create_response_from_buffer(length, bytes, MHD_RESPMEM_PERSISTENT);
  if (!answer) {
    dibs__answer_problem(r, DIBS_NO_MEMORY, NULL);
    return;
  }
  MHD_add_response_header(answer, MHD_HTTP_HEADER_CONTENT_TYPE, file->type);
  MHD_add_response_header(answer, MHD_HTTP_HEADER_ETAG, file->tag);
  MHD_add_response_header(answer, MHD_HTTP_HEADER_CACHE_CONTROL, "no-cache");
  MHD_add_response_header(answer, MHD_HTTP_HEADER_VARY, "Accept-Encoding");
  MHD_add_response_header(answer, "Content-Security-Policy", policy);
  MHD_add_response_header(answer, "X-Content-Type-Options", "nosniff");
  MHD_add_response_header(answer, "Referrer-Policy", "no-referrer");
  if (packed && !known) MHD_add_response_header(answer, MHD_HTTP_HEADER_CONTENT_ENCODING, "gzip");
  r->answer.status = known ? 304 : 200;
  r->answer_bytes = length;
  r->own_answer = answer;
  dibs__answer_end(r);
}

static void get_page(struct request *r) {
  send_file(r, find_file("index.html"));
}

static void get_file(struct request *r) {
  const struct web_file *file = find_file(r->param[0]);
  if (file)
    send_file(r, file);
  else
    dibs__answer_refuse(r, 404, "no-such-path", "the dashboard has no file %.80s", r->param[0]);
}

const struct route dibs__web_routes[] = {{METHOD_GET, "/", SCOPE_NONE, get_page, 0, NULL, "getDashboard", "200 304",
                                          "The dashboard, for a browser", "", "text/html"},
                                         {METHOD_GET, "/web/{file}", SCOPE_NONE, get_file, 0, NULL, "getDashboardFile",
                                          "200 304 404", "A file of the dashboard", "", "*/*"},
                                         {.path = NULL}};
