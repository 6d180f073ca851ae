/* SPDX-License-Identifier: MIT */
/*
 * Commands out, replies in.
 *
 * A lone command is two calls of the system: a send, and a recv that blocks for at most DIBS__REDIS_PATIENCE_MS at a
 * time (the socket's receive timeout, set once) and looks at the deadline in between.  poll is asked only where less
 * than that is left, where the socket takes no more, and where several servers are asked at once.
 *
 * Commands stay in `out` until they are answered: what a server that has forgotten its scripts did not know is copied
 * from there, behind the scripts.
 */
#include "drivers/redis_wire.h"
#include "drivers/redis_room.h"

#include <assert.h>
#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

typedef struct dibs__redis_link link_t;

/* READ: the reader moves what is left of a piece each time that it has parsed 1 KiB of it, so pieces are small.
 * IDLE_MS: behind such a silence it is worth asking whether the server has closed the connection.  TELLINGS: how often
 * scripts are told in one go. */
enum { READ = 16384, IDLE_MS = 5, TELLINGS = 3, OUT_KEEP = 1 << 20, NUMBER = 20 };

/* ---- What is put ---- */

static bool out_fits(link_t *link, size_t more) {
  size_t room = link->out_room ? link->out_room : 1024;
  if (link->out_room - link->out_used >= more) return true;
  while (room - link->out_used < more) room *= 2;
  char *out = realloc(link->out, room);
  if (!out) return false;
  link->out = out;
  link->out_room = room;
  return true;
}

/* Commands and replies, one for each. */
static bool lists_fit(link_t *link, size_t count) {
  size_t room = link->room ? link->room : 32;
  if (count <= link->room) return true;
  while (room < count) room *= 2;
  redisReply **replies = realloc(link->replies, room * sizeof *replies);
  if (!replies) return false;
  link->replies = replies;
  struct dibs__redis_command *commands = realloc(link->commands, room * sizeof *commands);
  if (!commands) return false;
  link->commands = commands;
  memset(replies + link->room, 0, (room - link->room) * sizeof *replies);
  link->room = room;
  return true;
}

/* "*3\r\n", "$17\r\n" */
static char *write_size(char *to, char kind, size_t number) {
  char digits[NUMBER];
  size_t n = 0;
  *to++ = kind;
  do digits[n++] = (char)('0' + number % 10);
  while ((number /= 10) > 0);
  while (n > 0) *to++ = digits[--n];
  *to++ = '\r';
  *to++ = '\n';
  return to;
}

static char *write_word(char *to, const char *word, size_t len) {
  to = write_size(to, '$', len);
  memcpy(to, word, len);
  to += len;
  *to++ = '\r';
  *to++ = '\n';
  return to;
}

enum { WORD_MORE = NUMBER + 5 };

/* The words of `first`, then the others. */
static bool put_words(link_t *link, size_t first_count, const char *const first[], const size_t first_lengths[],
                      size_t count, const char *const words[], const size_t lengths[]) {
  size_t size = (first_count + count + 1) * WORD_MORE;
  for (size_t i = 0; i < first_count; i++) size += first_lengths[i];
  for (size_t i = 0; i < count; i++) size += lengths[i];
  if (!out_fits(link, size)) return false;
  char *to = write_size(link->out + link->out_used, '*', first_count + count);
  for (size_t i = 0; i < first_count; i++) to = write_word(to, first[i], first_lengths[i]);
  for (size_t i = 0; i < count; i++) to = write_word(to, words[i], lengths[i]);
  link->out_used = (size_t)(to - link->out);
  return true;
}

static void began(link_t *link, size_t start, const struct dibs__redis_script *script) {
  link->commands[link->put++] = (struct dibs__redis_command){start, script};
}

bool dibs__redis_put(link_t *link, size_t count, const char *const words[], const size_t lengths[]) {
  size_t start = link->out_used;
  if (!lists_fit(link, link->put + 1) || !put_words(link, 0, NULL, NULL, count, words, lengths)) return false;
  began(link, start, NULL);
  return true;
}

static bool know(link_t *link, const struct dibs__redis_script *script) {
  for (size_t i = 0; i < link->known_count; i++)
    if (link->known[i] == script) return true;
  if (link->known_count == DIBS__REDIS_SCRIPTS) return false;
  link->known[link->known_count++] = script;
  return true;
}

bool dibs__redis_put_script(link_t *link, const struct dibs__redis_script *script, size_t keys, size_t count,
                            const char *const words[], const size_t lengths[]) {
  char number[NUMBER + 3];
  size_t start = link->out_used;
  assert(keys <= count && script->sha[0]);
  size_t number_len = (size_t)(write_size(number, '$', keys) - number) - 3;
  const char *first[] = {"EVALSHA", script->sha, number + 1};
  const size_t first_lengths[] = {7, 40, number_len};
  if (!know(link, script) || !lists_fit(link, link->put + 1) ||
      !put_words(link, 3, first, first_lengths, count, words, lengths))
    return false;
  began(link, start, script);
  return true;
}

void dibs__redis_drop(link_t *link) {
  link->put = 0;
  link->out_used = link->out_sent = 0;
}

/* ---- Scripts that the server has forgotten ---- */

static bool is_forgotten(const link_t *link, size_t nth) {
  const redisReply *r = link->replies[nth];
  return link->commands[nth].script && r && r->type == REDIS_REPLY_ERROR && strncmp(r->str, "NOSCRIPT", 8) == 0;
}

static size_t forgotten(const link_t *link) {
  size_t count = 0;
  for (size_t i = 0; i < link->put; i++) count += is_forgotten(link, i);
  return count;
}

static size_t end_of(const link_t *link, size_t nth) {
  return nth + 1 < link->put ? link->commands[nth + 1].start : link->end;
}

/* All scripts that this link has used, then once more the `count` commands that found none.  false: no memory. */
static bool tell(link_t *link, size_t count) {
  const char *words[] = {"SCRIPT", "LOAD", NULL};
  size_t lengths[] = {6, 4, 0}, used = link->out_used;
  bool fine = lists_fit(link, link->wanted + link->known_count + count);
  for (size_t i = 0; fine && i < link->known_count; i++) {
    words[2] = link->known[i]->text;
    lengths[2] = strlen(words[2]);
    fine = put_words(link, 3, words, lengths, 0, NULL, NULL);
  }
  for (size_t i = 0; fine && i < link->put; i++) {
    if (!is_forgotten(link, i)) continue;
    size_t start = link->commands[i].start, size = end_of(link, i) - start;
    fine = out_fits(link, size);
    if (!fine) break;
    memcpy(link->out + link->out_used, link->out + start, size);
    link->out_used += size;
  }
  if (!fine) {
    link->out_used = used;
    return false;
  }
  link->again = link->wanted;
  link->wanted += link->known_count + count;
  link->tellings++;
  return true;
}

/* Puts the answers of the second asking, as far as they have arrived, in the places of those that found no script. */
static void settle(link_t *link) {
  redisReply *refused = NULL;
  size_t next = link->again + link->known_count;
  for (size_t i = link->again; i < next && i < link->got; i++)
    if (!refused && link->replies[i]->type == REDIS_REPLY_ERROR) refused = link->replies[i];
  for (size_t i = 0; i < link->put; i++) {
    if (!is_forgotten(link, i)) continue;
    redisReply *again = next < link->got ? link->replies[next] : NULL;
    next++;
    link->replies[i] = again;
    if (again && refused && is_forgotten(link, i)) link->replies[i] = refused; /* why it is still not there */
  }
  link->again = 0;
}

/* All that was wanted has been answered.  true: and nothing more is wanted. */
static bool is_done(link_t *link) {
  if (link->again) settle(link);
  size_t missing = link->known_count ? forgotten(link) : 0;
  return missing == 0 || link->tellings == TELLINGS || !tell(link, missing);
}

/* ---- One step on a socket, none of which waits longer than its name says ---- */

static void lose(link_t *link, int trouble) {
  link->at = DIBS__REDIS_LOST;
  link->trouble = trouble;
  link->dead = true;
}

static void send_some(link_t *link) {
  while (link->out_sent < link->out_used) {
    /* A connection that is gone must not end the user's process (SIGPIPE). */
    ssize_t n = send(link->context->fd, link->out + link->out_sent, link->out_used - link->out_sent,
                     MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n > 0) {
      link->out_sent += (size_t)n;
    } else if (errno == EAGAIN) {
      return;
    } else if (errno != EINTR) {
      lose(link, errno);
      return;
    }
  }
}

/* What has arrived, as replies. */
static void parse(link_t *link) {
  while (link->got < link->wanted) {
    void *reply = NULL;
    if (redisReaderGetReply(link->context->reader, &reply) != REDIS_OK) {
      lose(link, EBADMSG);
      return;
    }
    if (!reply) return;
    link->replies[link->got++] = reply;
  }
  if (is_done(link)) link->at = DIBS__REDIS_DONE;
}

/* flags: MSG_DONTWAIT, or 0: for as long as the socket is patient. */
static void hear(link_t *link, int flags) {
  char piece[READ];
  ssize_t n = recv(link->context->fd, piece, sizeof piece, flags);
  if (n == 0) {
    lose(link, 0);
  } else if (n > 0) {
    if (redisReaderFeed(link->context->reader, piece, (size_t)n) == REDIS_OK)
      parse(link);
    else
      lose(link, ENOMEM);
  } else if (errno != EAGAIN && errno != EINTR) {
    lose(link, errno);
  }
}

static int poll_ms(int64_t left) {
  return left > INT_MAX ? INT_MAX : (int)left;
}

/* ---- Until all is answered ---- */

static void talk(link_t *link, dibs__tick by) {
  int64_t left = dibs__tick_left_ms(link->sent, by);
  while (link->at == DIBS__REDIS_TALKING) {
    send_some(link);
    if (link->at != DIBS__REDIS_TALKING) return;
    bool unsent = link->out_sent < link->out_used;
    if (!unsent && left > DIBS__REDIS_PATIENCE_MS + 1) {
      hear(link, 0);
    } else {
      struct pollfd fd = {.fd = link->context->fd, .events = (short)(unsent ? POLLIN | POLLOUT : POLLIN)};
      if (poll(&fd, 1, poll_ms(left)) > 0 && (fd.revents & ~POLLOUT)) hear(link, MSG_DONTWAIT);
    }
    if (link->at != DIBS__REDIS_TALKING) return;
    left = dibs__tick_left_ms(dibs__tick_now(), by);
    if (left > 0) continue;
    link->at = DIBS__REDIS_LATE;
    link->dead = true;
  }
}

static void talk_all(link_t *const links[], size_t count, dibs__tick by) {
  struct pollfd fds[DIBS__REDIS_HOSTS];
  size_t of[DIBS__REDIS_HOSTS];
  for (;;) {
    nfds_t talking = 0;
    for (size_t i = 0; i < count; i++) {
      link_t *link = links[i];
      if (link && link->at == DIBS__REDIS_TALKING) send_some(link);
      if (!link || link->at != DIBS__REDIS_TALKING) continue;
      bool unsent = link->out_sent < link->out_used;
      of[talking] = i;
      fds[talking++] = (struct pollfd){.fd = link->context->fd, .events = (short)(unsent ? POLLIN | POLLOUT : POLLIN)};
    }
    if (talking == 0) return;
    int64_t left = dibs__tick_left_ms(dibs__tick_now(), by);
    int ready = poll(fds, talking, poll_ms(left));
    for (size_t k = 0; k < talking; k++) {
      link_t *link = links[of[k]];
      if (ready > 0 && (fds[k].revents & ~POLLOUT)) hear(link, MSG_DONTWAIT);
      if (left > 0 || link->at != DIBS__REDIS_TALKING) continue;
      link->at = DIBS__REDIS_LATE;
      link->dead = true;
    }
  }
}

/* ---- Going ---- */

/* Has it been closed while nobody looked, or has something come that nobody asked for? */
static bool is_open(link_t *link) {
  char byte;
  ssize_t n = recv(link->context->fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) return true;
  lose(link, n < 0 ? errno : n == 0 ? 0 : EBADMSG);
  return false;
}

static bool is_idle(const link_t *link, dibs__tick now) {
  return dibs__tick_before(dibs__tick_add_ms(link->heard, IDLE_MS), now);
}

static void begin(link_t *link, dibs__tick now, dibs__tick by) {
  dibs__redis_room_clear(link->reply_room);
  if (link->put) memset(link->replies, 0, link->put * sizeof(redisReply *));
  link->sent = now;
  link->answered = link->put;
  link->wanted = link->put;
  link->got = 0;
  link->out_sent = 0;
  link->end = link->out_used;
  link->again = 0;
  link->tellings = 0;
  link->at = link->put > 0 ? DIBS__REDIS_TALKING : DIBS__REDIS_DONE;
  if (link->put == 0) return;
  if (link->dead) {
    link->at = DIBS__REDIS_LOST;
  } else if (!dibs__tick_before(now, by)) {
    link->at = DIBS__REDIS_LATE;
  } else if (is_idle(link, now)) {
    (void)is_open(link);
  }
}

/* What has become of it.  A command of which the server has not all did nothing. */
static dibs__status finish(link_t *link) {
  dibs__status status = DIBS_OK;
  if (link->again) settle(link);
  if (link->at != DIBS__REDIS_DONE) {
    bool any = link->put > 0 && link->out_sent >= end_of(link, 0);
    status = any ? DIBS_UNKNOWN : DIBS_UNAVAILABLE;
  }
  dibs__redis_drop(link);
  if (link->out_room > OUT_KEEP) {
    free(link->out);
    link->out = NULL;
    link->out_room = 0;
  }
  link->heard = dibs__tick_now();
  return status;
}

static void tell_why(const link_t *link, dibs__status status, struct dibs__said *said) {
  const char *shown = link->place->shown;
  if (link->at == DIBS__REDIS_LATE && !link->dead)
    dibs__say(said, "no time was left to ask %s", shown);
  else if (link->at == DIBS__REDIS_LATE)
    dibs__say(said, "no answer from %s before the deadline", shown);
  else if (link->trouble == EBADMSG)
    dibs__say(said, "%s answered what is not Redis' protocol", shown);
  else if (link->trouble)
    dibs__say(said, "the connection to %s broke: %s", shown, strerrordesc_np(link->trouble));
  else
    dibs__say(said, "%s closed the connection%s", shown, status == DIBS_UNKNOWN ? " before it answered" : "");
}

void dibs__redis_go_all(link_t *const links[], size_t count, dibs__tick by, dibs__status answers[],
                        struct dibs__said *said) {
  bool told = false;
  assert(count <= DIBS__REDIS_HOSTS);
  said->sent = dibs__tick_now();
  said->dead = false;
  for (size_t i = 0; i < count; i++)
    if (links[i]) begin(links[i], said->sent, by);
  if (count == 1 && links[0])
    talk(links[0], by);
  else
    talk_all(links, count, by);
  for (size_t i = 0; i < count; i++) {
    if (!links[i]) continue;
    answers[i] = finish(links[i]);
    if (answers[i] == DIBS_OK || told) continue;
    told = true;
    tell_why(links[i], answers[i], said);
    said->dead = links[i]->dead;
  }
}

dibs__status dibs__redis_go(link_t *link, dibs__tick by, struct dibs__said *said) {
  dibs__status status = DIBS_OK;
  dibs__tick now = dibs__tick_now();
  /* A server that was restarted, or ends idle connections, is no trouble of whoever comes next. */
  if (link->made && !link->dead && link->put > 0 && is_idle(link, now) && dibs__tick_before(now, by)) {
    said->sent = now;
    if (is_open(link)) {
      link->heard = now;
    } else if (!dibs__redis_renew(link, by, said)) {
      link->answered = 0;
      said->dead = true;
      dibs__redis_drop(link);
      return DIBS_UNAVAILABLE;
    }
  }
  dibs__redis_go_all(&link, 1, by, &status, said);
  return status;
}

const redisReply *dibs__redis_reply(const link_t *link, size_t nth) {
  return nth < link->answered ? link->replies[nth] : NULL;
}

/* ---- What comes without being asked for ---- */

const redisReply *dibs__redis_message(link_t *link) {
  redisReader *reader = link->context->reader;
  void *reply = NULL;
  if (reader->ridx == -1) dibs__redis_room_clear(link->reply_room); /* else a part of one lies there */
  if (link->dead) return NULL;
  if (redisReaderGetReply(reader, &reply) == REDIS_OK && reply) return reply;
  char piece[READ];
  ssize_t n = recv(link->context->fd, piece, sizeof piece, MSG_DONTWAIT);
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) return NULL;
  if (n <= 0 || redisReaderFeed(reader, piece, (size_t)n) != REDIS_OK ||
      redisReaderGetReply(reader, &reply) != REDIS_OK) {
    lose(link, n < 0 ? errno : n == 0 ? 0 : EBADMSG);
    return NULL;
  }
  return reply;
}
