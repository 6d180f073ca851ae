/* SPDX-License-Identifier: MIT */
#ifndef DIBS_SERVE_WEB_H
#define DIBS_SERVE_WEB_H
/* The files of web/, as web/embed.py writes them into the program. */
#include <stddef.h>

struct web_file {
  const char *name, *type, *tag; /* "app.js", its media type, its ETag */
  unsigned char *bytes, *gzip;   /* not const, because MHD takes no const */
  size_t length, gzip_length;
};
extern const struct web_file dibs__web_files[];
extern const size_t dibs__web_file_count;

#endif
