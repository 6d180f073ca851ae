/* SPDX-License-Identifier: MIT */
/*
 * GET /v1/events: server-sent events.  All of it runs in the loop.
 *
 * Events are kept in one ring for all clients, and each client has its place in it: a client costs no memory for what
 * it has not read.  When the ring has dropped events that a client did not read, the client gets whole lists instead.
 * The same happens when it connects; a client that connects again with Last-Event-ID goes on at its place, if the ring
 * still has it.
 */
#include "base/text.h"
#include "serve/watch.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
  STREAM_WATCHES = 8,   /* of one client */
  RING = 1024,          /* events: those of a busy store in some minutes, */
  RING_BYTES = 8 << 20, /* and so large at most */
  BEAT_MS = 10000,      /* a client that gets nothing else gets a comment: it learns soon that a server is gone */
  RETRY_MS = 1000       /* when a client connects again */
};

struct stream {
  struct stream *before, *after;
  struct request *request;
  uint64_t watches[STREAM_WATCHES];
  bool needs_list[STREAM_WATCHES]; /* changes are no use before it */
  size_t watch_count;
  uint64_t next;       /* the first event that it has not got */
  struct event *event; /* that it is being sent */
  char frame[128];     /* before the text of the event, or alone */
  size_t frame_length, sent;
  bool waits, asleep, ended;
  dibs__tick beat_at;
};

struct streams {
  struct watcher *watcher;
  struct event *ring[RING]; /* by number modulo RING */
  uint64_t first, end;      /* numbers: the oldest in the ring, and the next new one */
  size_t bytes;
  char boot[9]; /* numbers of another server are not ours */
  struct stream *first_stream;
  uint32_t count;
  dibs__tick tick_at;
};

/* ---- The ring ---- */

static void unuse(struct event *event) {
  if (--event->uses > 0) return;
  free(event->text);
  free(event);
}

static void drop_oldest(struct streams *streams) {
  struct event *oldest = streams->ring[streams->first++ % RING];
  streams->bytes -= oldest->length;
  unuse(oldest);
}

static void keep(struct streams *streams, struct event *event) {
  while (streams->end - streams->first == RING || (streams->bytes > RING_BYTES && streams->end > streams->first))
    drop_oldest(streams);
  event->uses = 1;
  streams->bytes += event->length;
  streams->ring[streams->end++ % RING] = event;
}

/* ---- A client ---- */

/* Is the event for this client? */
static bool concerns(const struct stream *stream, const struct event *event) {
  for (size_t i = 0; i < stream->watch_count; i++)
    if (stream->watches[i] == event->watch)
      return stream->needs_list[i] ? strcmp(event->kind, "change") != 0 : !event->requested;
  return false;
}

static void take_event(struct stream *stream, struct event *event) {
  for (size_t i = 0; i < stream->watch_count; i++)
    if (stream->watches[i] == event->watch) stream->needs_list[i] = false;
  stream->event = event;
  event->uses++;
}

static void need_list(struct streams *streams, struct stream *stream, size_t nth) {
  stream->needs_list[nth] = true;
  dibs__watch_again(streams->watcher, stream->watches[nth]);
}

static void set_frame(struct stream *stream, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void set_frame(struct stream *stream, const char *format, ...) {
  va_list args;
  va_start(args, format);
  int length = vsnprintf(stream->frame, sizeof stream->frame, format, args);
  va_end(args);
  stream->frame_length = (size_t)length;
  stream->sent = 0;
}

/* Begins to send the next event of its watches.  false: there is none. */
static bool next_event(struct streams *streams, struct stream *stream) {
  if (stream->next < streams->first) { /* it was too slow: what it missed is in whole lists */
    for (size_t i = 0; i < stream->watch_count; i++) need_list(streams, stream, i);
    stream->next = streams->end;
  }
  while (stream->next < streams->end) {
    uint64_t nr = stream->next++;
    struct event *event = streams->ring[nr % RING];
    if (!concerns(stream, event)) continue;
    set_frame(stream, "id: %s-%" PRIu64 "\nevent: %s\ndata: ", streams->boot, nr, event->kind);
    take_event(stream, event);
    return true;
  }
  return false;
}

static const char event_end[] = "\n\n";

/* Copies what fits of the frame, the event's text and its end. */
static size_t copy_out(struct stream *stream, char *to, size_t most) {
  const struct {
    const char *text;
    size_t length;
  } parts[] = {{stream->frame, stream->frame_length},
               {stream->event ? stream->event->text : "", stream->event ? stream->event->length : 0},
               {event_end, stream->event ? sizeof event_end - 1 : 0}};
  size_t copied = 0, from = stream->sent;
  for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
    size_t length = from < parts[i].length ? parts[i].length - from : 0;
    if (length > most - copied) length = most - copied;
    if (length > 0) memcpy(to + copied, parts[i].text + from, length);
    from = from > parts[i].length ? from - parts[i].length : 0;
    copied += length;
  }
  stream->sent += copied;
  if (stream->sent < parts[0].length + parts[1].length + parts[2].length) return copied;
  if (stream->event) unuse(stream->event);
  stream->event = NULL;
  stream->frame_length = stream->sent = 0;
  return copied;
}

static void wake(struct stream *stream) {
  if (!stream->asleep) return;
  stream->asleep = false;
  dibs__http_resume(stream->request);
}

/* The client hung up, its token was removed, or the server stops. */
static void end_stream(struct request *r) {
  struct stream *stream = r->work;
  stream->ended = true;
  wake(stream);
}

/* MHD has space for more. */
static ssize_t send_more(void *cls, uint64_t at, char *to, size_t most) {
  struct stream *stream = cls;
  struct request *r = stream->request;
  (void)at;
  if (!stream->waits) { /* from now on the loop notices when the client hangs up */
    stream->waits = true;
    r->suspended = r->listens = true;
    dibs__wait_begin(r, end_stream);
  }
  if (stream->ended) return MHD_CONTENT_READER_END_OF_STREAM;
  dibs__tick now = dibs__tick_now();
  bool beats = dibs__tick_before(stream->beat_at, now);
  if (stream->frame_length == 0 && !next_event(r->server->streams, stream) && beats) set_frame(stream, ":\n\n");
  if (stream->frame_length > 0) {
    stream->beat_at = dibs__tick_add_ms(now, BEAT_MS);
    return (ssize_t)copy_out(stream, to, most);
  }
  stream->asleep = true;
  MHD_suspend_connection(r->connection);
  return 0;
}

static void free_stream(struct request *r) {
  struct stream *stream = r->work;
  struct streams *streams = r->server->streams;
  if (stream->waits) dibs__wait_end(r);
  for (size_t i = 0; i < stream->watch_count && streams->watcher; i++)
    dibs__watch_leave(streams->watcher, stream->watches[i]);
  if (stream->event) unuse(stream->event);
  if (stream->before)
    stream->before->after = stream->after;
  else
    streams->first_stream = stream->after;
  if (stream->after) stream->after->before = stream->before;
  streams->count--;
  r->work = NULL;
  free(stream);
}

/* ---- The request ---- */

struct events_in {
  const char *watch, *last, *prefix;
};

#define IN(member) offsetof(struct events_in, member)
static const struct field events_fields[] = {
    {.name = "watch",
     .place = FIELD_QUERY,
     .at = IN(watch),
     .least = 1,
     .most = 4096,
     .needed = true,
     .help = "the lists, separated by blanks: /v1/leases?prefix=app /v1/kinds.  Up to 8 of /v1/leases, /v1/stocks, "
             "/v1/counters, /v1/lanes, /v1/lanes/TOPIC, /v1/kinds, /v1/tasks, /v1/tiers, /v1/flags, /v1/cron, "
             "/v1/cron/FLEET, /v1/history"},
    {.name = "prefix",
     .place = FIELD_QUERY,
     .at = IN(prefix),
     .most = DIBS_NAME_MAX,
     .help = "for a token that is limited to some names: its prefix, which each list must have, too"},
    {.name = "Last-Event-ID",
     .place = FIELD_HEADER,
     .at = IN(last),
     .least = 1,
     .most = 64,
     .help = "go on after this event, if the daemon still has it; else the lists are sent again"},
    {.name = NULL}};

/* The number of the event after `id`; 0: it is none of ours. */
static uint64_t number_after(const struct streams *streams, const char *id) {
  size_t boot = strlen(streams->boot);
  if (!id || strncmp(id, streams->boot, boot) != 0 || id[boot] != '-') return 0;
  const char *digits = id + boot + 1;
  if (!*digits || strspn(digits, "0123456789") != strlen(digits)) return 0;
  uint64_t nr = strtoull(digits, NULL, 10) + 1;
  return nr > streams->first && nr <= streams->end ? nr : 0;
}

/* false: the request was answered. */
static bool join_watches(struct stream *stream, char *targets, const char *last) {
  struct request *r = stream->request;
  struct streams *streams = r->server->streams;
  uint64_t at = number_after(streams, last);
  for (char *rest = targets, *target; (target = strsep(&rest, " "));) {
    uint64_t made_at = 0;
    if (!*target) continue;
    if (stream->watch_count == STREAM_WATCHES) {
      dibs__answer_refuse(r, 400, "invalid", "watch: it has more than %d lists", STREAM_WATCHES);
      return false;
    }
    uint64_t nr = dibs__watch_join(streams->watcher, r, target, streams->end, &made_at);
    if (nr == 0) return false;
    stream->watches[stream->watch_count++] = nr;
    if (at == 0 || made_at > at) need_list(streams, stream, stream->watch_count - 1);
  }
  stream->next = at ? at : streams->end;
  return true;
}

static struct stream *make_stream(struct request *r) {
  struct streams *streams = r->server->streams;
  struct stream *stream = calloc(1, sizeof *stream);
  if (!stream) return NULL;
  stream->request = r;
  stream->beat_at = dibs__tick_add_ms(dibs__tick_now(), BEAT_MS);
  stream->after = streams->first_stream;
  if (stream->after) stream->after->before = stream;
  streams->first_stream = stream;
  streams->count++;
  r->work = stream;
  r->end = free_stream;
  return stream;
}

static bool make_answer(struct stream *stream) {
  struct request *r = stream->request;
  r->own_answer = MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, 8192, send_more, stream, NULL);
  if (!r->own_answer) return false;
  MHD_add_response_header(r->own_answer, MHD_HTTP_HEADER_CONTENT_TYPE, "text/event-stream");
  MHD_add_response_header(r->own_answer, MHD_HTTP_HEADER_CACHE_CONTROL, "no-store");
  MHD_add_response_header(r->own_answer, "X-Accel-Buffering", "no"); /* nginx would keep events back */
  set_frame(stream, "retry: %d\n\n", RETRY_MS);
  r->answer.status = 200;
  r->endless = true;
  return true;
}

static void get_events(struct request *r) {
  const struct events_in *in = r->in;
  struct streams *streams = r->server->streams;
  uint32_t most = r->server->config.event_clients;
  if (streams->count >= most) {
    dibs__answer_refuse(r, 503, "overload", "%u clients of events are connected already (--event-clients)", most);
    return;
  }
  if (!dibs__may_wait(r)) return;
  char *targets = strdup(in->watch);
  struct stream *stream = targets ? make_stream(r) : NULL;
  bool joined = stream && join_watches(stream, targets, in->last);
  free(targets);
  if (!stream || (joined && !make_answer(stream)))
    dibs__answer_problem(r, DIBS_NO_MEMORY, NULL);
  else if (joined)
    dibs__answer_end(r);
}

/* ---- For the loop ---- */

static void events_ready(struct server *server, struct source *source) {
  struct streams *streams = server->streams;
  (void)source;
  for (struct event *event = dibs__watcher_take(streams->watcher), *next; event; event = next) {
    next = event->next;
    keep(streams, event);
    for (struct stream *stream = streams->first_stream; stream; stream = stream->after)
      if (concerns(stream, event)) wake(stream);
  }
}

void dibs__events_tick(struct server *server, dibs__tick now) {
  struct streams *streams = server->streams;
  if (dibs__tick_before(now, streams->tick_at)) return;
  streams->tick_at = dibs__tick_add_ms(now, 1000);
  for (struct stream *stream = streams->first_stream; stream; stream = stream->after) {
    if (!dibs__auth_still_admits(stream->request)) stream->ended = true; /* before it waited for the first time */
    if (stream->ended || dibs__tick_before(stream->beat_at, now)) wake(stream);
  }
}

void dibs__events_changed(struct server *server) {
  if (server->streams && server->streams->watcher && server->streams->count > 0)
    dibs__watcher_changed(server->streams->watcher);
}

bool dibs__events_open(struct server *server) {
  struct streams *streams = server->streams = calloc(1, sizeof *streams);
  uint8_t bytes[16];
  char hex[33];
  int fd;
  if (!streams) return false;
  dibs__random(bytes, sizeof bytes);
  dibs__hex_write(bytes, hex);
  memcpy(streams->boot, hex, sizeof streams->boot - 1);
  streams->first = streams->end = 1;
  streams->watcher = dibs__watcher_open(server, &fd);
  return streams->watcher && dibs__loop_add(server, &server->events_source, fd, events_ready);
}

void dibs__events_end_all(struct server *server) {
  if (!server->streams) return;
  dibs__watcher_close(server->streams->watcher);
  server->streams->watcher = NULL;
}

void dibs__events_close(struct server *server) {
  struct streams *streams = server->streams;
  if (!streams) return;
  while (streams->first < streams->end) drop_oldest(streams);
  free(streams);
  server->streams = NULL;
}

const struct route dibs__event_routes[] = {
    {METHOD_GET, "/v1/events", SCOPE_READ, get_events, sizeof(struct events_in), events_fields, "watchLists",
     "200 404 405", "What changes in lists, as server-sent events",
     "`list` has the whole answer of the GET of a list; `change` has new and "
     "changed rows (`set`), and the names of rows "
     "that the list no longer has (`removed`); `problem` has the problem that the "
     "GET was answered with.  `left_ms` counts "
     "down and ages up by themselves, without an event.",
     "text/event-stream"},
    {.path = NULL}};
