/* SPDX-License-Identifier: MIT */
/*
 * The wire of Redis: the memory of replies, the names of scripts, commands out and replies in.
 *
 * Memory.  hiredis' own functions allocate and free each piece of each reply; these put one after the other into an
 * arena, which is reset as a whole when the next commands are sent.
 *
 * Sending.  A single command is two system calls: a send, and a recv that blocks for at most DIBS__REDIS_PATIENCE_MS
 * at a time (the socket's receive timeout, set once) and checks the deadline in between.  poll is used only where
 * less time than that is left, where the socket takes no more, and for several servers at once.
 *
 * Commands stay in `out` until they are answered: calls of scripts that the server has forgotten are copied from
 * there, after the scripts.
 */
#include "drivers/redis/wire.h"
#include "drivers/redis/redis_impl.h"
#include "drivers/redis/tls.h"

#include <assert.h>
#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

/* KEEP: a larger arena is freed after one use. */
enum { CHUNK = 16384, KEEP = 1 << 20, ALIGNED = 16, MAX_ELEMENTS = 1 << 24 };

struct chunk {
  struct chunk *next;
  size_t size, used;
  _Alignas(ALIGNED) char bytes[];
};

struct dibs__redis_arena {
  struct chunk *first, *at;
};

static struct chunk *new_chunk(size_t size) {
  struct chunk *c = malloc(sizeof *c + size);
  if (!c) return NULL;
  c->next = NULL;
  c->size = size;
  c->used = 0;
  return c;
}

static void *arena_alloc(struct dibs__redis_arena *arena, size_t size) {
  struct chunk *c = arena->at;
  size = (size + ALIGNED - 1) & ~(size_t)(ALIGNED - 1);
  while (c->size - c->used < size) {
    if (!c->next && !(c->next = new_chunk(size > CHUNK ? size : CHUNK))) return NULL;
    c = arena->at = c->next;
  }
  void *at = c->bytes + c->used;
  c->used += size;
  return at;
}

struct dibs__redis_arena *dibs__redis_arena_new(void) {
  struct dibs__redis_arena *arena = calloc(1, sizeof *arena);
  if (!arena) return NULL;
  arena->first = arena->at = new_chunk(CHUNK);
  if (arena->first) return arena;
  free(arena);
  return NULL;
}

static void free_chunks(struct chunk *c) {
  while (c) {
    struct chunk *next = c->next;
    free(c);
    c = next;
  }
}

/* No reply in it is used any more. */
static void arena_clear(struct dibs__redis_arena *arena) {
  size_t kept = 0;
  for (struct chunk *c = arena->first; c; c = c->next) {
    c->used = 0;
    kept += c->size;
    if (kept <= KEEP) continue;
    free_chunks(c->next);
    c->next = NULL;
  }
  arena->at = arena->first;
}

void dibs__redis_arena_free(struct dibs__redis_arena *arena) {
  if (!arena) return;
  free_chunks(arena->first);
  free(arena);
}

/* ---- The functions that hiredis calls ---- */

static redisReply *make_reply(const redisReadTask *task, size_t more) {
  redisReply *r = arena_alloc(task->privdata, sizeof *r + more);
  if (!r) return NULL;
  memset(r, 0, sizeof *r);
  r->type = task->type;
  if (task->parent) {
    redisReply *parent = task->parent->obj;
    parent->element[task->idx] = r;
  }
  return r;
}

static void *make_string(const redisReadTask *task, char *text, size_t len) {
  redisReply *r = make_reply(task, len + 1);
  if (!r) return NULL;
  r->str = (char *)(r + 1);
  memcpy(r->str, text, len);
  r->str[len] = '\0';
  r->len = len;
  return r;
}

#if HIREDIS_MAJOR >= 1
typedef size_t elements_t;
#else
typedef int elements_t;
#endif

static void *make_array(const redisReadTask *task, elements_t elements) {
  size_t count = (size_t)elements;
  if (count > MAX_ELEMENTS) return NULL;
  redisReply *r = make_reply(task, count * sizeof(redisReply *));
  if (!r) return NULL;
  r->element = (redisReply **)(r + 1);
  r->elements = count;
  memset(r->element, 0, count * sizeof(redisReply *));
  return r;
}

static void *make_integer(const redisReadTask *task, long long value) {
  redisReply *r = make_reply(task, 0);
  if (r) r->integer = value;
  return r;
}

static void *make_nil(const redisReadTask *task) {
  redisReply *r = make_reply(task, 0); /* the task has its type: a string, or an array */
  if (r) r->type = REDIS_REPLY_NIL;
  return r;
}

static void free_nothing(void *reply) {
  (void)reply; /* with its arena */
}

/* Doubles, booleans and the like come only after HELLO 3. */
static redisReplyObjectFunctions functions = {.createString = make_string,
                                              .createArray = make_array,
                                              .createInteger = make_integer,
                                              .createNil = make_nil,
                                              .freeObject = free_nothing};

redisReader *dibs__redis_arena_reader(struct dibs__redis_arena *arena) {
  redisReader *reader = redisReaderCreateWithFunctions(&functions);
  if (!reader) return NULL;
  reader->privdata = arena;
  return reader;
}

/* A server knows a script by the SHA-1 of its text (FIPS 180-4).  It is a name here, and protects nothing. */

enum { BLOCK = 64 };

static uint32_t rotate_left(uint32_t x, unsigned by) {
  return x << by | x >> (32 - by);
}

static void sha1_block(uint32_t h[5], const uint8_t block[BLOCK]) {
  uint32_t w[80], a = h[0], b = h[1], c = h[2], d = h[3], e = h[4];
  for (unsigned i = 0; i < 16; i++)
    w[i] = (uint32_t)block[4 * i] << 24 | (uint32_t)block[4 * i + 1] << 16 | (uint32_t)block[4 * i + 2] << 8 |
           block[4 * i + 3];
  for (unsigned i = 16; i < 80; i++) w[i] = rotate_left(w[i - 3] ^ w[i - 8] ^ w[i - 14] ^ w[i - 16], 1);
  for (unsigned i = 0; i < 80; i++) {
    uint32_t f, k;
    if (i < 20)
      f = (b & c) | (~b & d), k = 0x5a827999;
    else if (i < 40)
      f = b ^ c ^ d, k = 0x6ed9eba1;
    else if (i < 60)
      f = (b & c) | (b & d) | (c & d), k = 0x8f1bbcdc;
    else
      f = b ^ c ^ d, k = 0xca62c1d6;
    uint32_t next = rotate_left(a, 5) + f + e + k + w[i];
    e = d;
    d = c;
    c = rotate_left(b, 30);
    b = a;
    a = next;
  }
  h[0] += a;
  h[1] += b;
  h[2] += c;
  h[3] += d;
  h[4] += e;
}

void dibs__redis_script_name(struct dibs__redis_script *script) {
  static const char digits[] = "0123456789abcdef";
  uint32_t h[5] = {0x67452301, 0xefcdab89, 0x98badcfe, 0x10325476, 0xc3d2e1f0};
  uint8_t last[2 * BLOCK] = {0};
  size_t len = strlen(script->text), whole = len / BLOCK * BLOCK, rest = len - whole;
  const uint8_t *text = (const uint8_t *)script->text;
  for (size_t at = 0; at < whole; at += BLOCK) sha1_block(h, text + at);
  memcpy(last, text + whole, rest);
  last[rest] = 0x80;
  size_t end = rest + 9 > BLOCK ? 2 * BLOCK : BLOCK;
  for (unsigned i = 0; i < 8; i++) last[end - 1 - i] = (uint8_t)((uint64_t)len * 8 >> 8 * i);
  for (size_t at = 0; at < end; at += BLOCK) sha1_block(h, last + at);
  for (unsigned i = 0; i < 40; i++) script->sha[i] = digits[h[i / 8] >> (28 - 4 * (i % 8)) & 15];
  script->sha[40] = '\0';
}

/* ---- Commands out, replies in ---- */

typedef struct dibs__redis_link link_t;

/* READ: the reader moves the rest of a piece each time that it has parsed 1 KiB of it, so pieces are small.  IDLE_MS:
 * after such a silence a check whether the server has closed the connection is worth its cost.  RESENDS: how often
 * scripts are sent again in one go. */
enum { READ = 16384, IDLE_MS = 5, RESENDS = 3, OUT_KEEP = 1 << 20, NUMBER = 20 };

/* ---- Queuing commands ---- */

static bool out_fits(link_t *link, size_t more) {
  size_t capacity = link->out_capacity ? link->out_capacity : 1024;
  if (link->out_capacity - link->out_used >= more) return true;
  while (capacity - link->out_used < more) capacity *= 2;
  char *out = realloc(link->out, capacity);
  if (!out) return false;
  link->out = out;
  link->out_capacity = capacity;
  return true;
}

/* One command and one reply for each. */
static bool lists_fit(link_t *link, size_t count) {
  size_t capacity = link->capacity ? link->capacity : 32;
  if (count <= link->capacity) return true;
  while (capacity < count) capacity *= 2;
  redisReply **replies = realloc(link->replies, capacity * sizeof *replies);
  if (!replies) return false;
  link->replies = replies;
  struct dibs__redis_command *commands = realloc(link->commands, capacity * sizeof *commands);
  if (!commands) return false;
  link->commands = commands;
  memset(replies + link->capacity, 0, (capacity - link->capacity) * sizeof *replies);
  link->capacity = capacity;
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

static void add_command(link_t *link, size_t start, const struct dibs__redis_script *script) {
  link->commands[link->put++] = (struct dibs__redis_command){start, script};
}

bool dibs__redis_put(link_t *link, size_t count, const char *const words[], const size_t lengths[]) {
  size_t start = link->out_used;
  if (!lists_fit(link, link->put + 1) || !put_words(link, 0, NULL, NULL, count, words, lengths)) return false;
  add_command(link, start, NULL);
  return true;
}

static bool remember_script(link_t *link, const struct dibs__redis_script *script) {
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
  if (!remember_script(link, script) || !lists_fit(link, link->put + 1) ||
      !put_words(link, 3, first, first_lengths, count, words, lengths))
    return false;
  add_command(link, start, script);
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

static size_t count_forgotten(const link_t *link) {
  size_t count = 0;
  for (size_t i = 0; i < link->put; i++) count += is_forgotten(link, i);
  return count;
}

static size_t end_of_command(const link_t *link, size_t nth) {
  return nth + 1 < link->put ? link->commands[nth + 1].start : link->end;
}

/* All scripts that this link has used, then a copy of the `count` commands whose script was missing.  false: no
 * memory. */
static bool resend_scripts(link_t *link, size_t count) {
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
    size_t start = link->commands[i].start, size = end_of_command(link, i) - start;
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

/* Moves the answers of the second calls, as far as they have arrived, to the positions of the calls whose script was
 * missing. */
static void settle_resent(link_t *link) {
  redisReply *refused = NULL;
  size_t next = link->again + link->known_count;
  for (size_t i = link->again; i < next && i < link->got; i++)
    if (!refused && link->replies[i]->type == REDIS_REPLY_ERROR) refused = link->replies[i];
  for (size_t i = 0; i < link->put; i++) {
    if (!is_forgotten(link, i)) continue;
    redisReply *again = next < link->got ? link->replies[next] : NULL;
    next++;
    link->replies[i] = again;
    if (again && refused && is_forgotten(link, i)) link->replies[i] = refused; /* why it is still missing */
  }
  link->again = 0;
}

/* All expected replies have arrived.  true: and there is nothing to send again. */
static bool is_done(link_t *link) {
  if (link->again) settle_resent(link);
  size_t missing = link->known_count ? count_forgotten(link) : 0;
  return missing == 0 || link->tellings == RESENDS || !resend_scripts(link, missing);
}

/* ---- One step on a socket, which waits no longer than its name says ---- */

static void link_lost(link_t *link, int trouble) {
  link->at = DIBS__REDIS_LOST;
  link->trouble = trouble;
  link->dead = true;
}

static bool has_unsent(const link_t *link) {
  return link->out_sent < link->out_used || dibs__redis_tls_has_output(link->tls);
}

/* A closed connection must not end the user's process (SIGPIPE). */
static ssize_t send_to(link_t *link, const char *bytes, size_t count) {
  return link->tls ? dibs__redis_tls_send(link->tls, bytes, count)
                   : send(link->context->fd, bytes, count, MSG_NOSIGNAL | MSG_DONTWAIT);
}

static ssize_t receive_from(link_t *link, char *bytes, size_t count, int flags) {
  return link->tls ? dibs__redis_tls_recv(link->tls, bytes, count, flags)
                   : recv(link->context->fd, bytes, count, flags);
}

static void send_some(link_t *link) {
  while (has_unsent(link)) {
    ssize_t n = send_to(link, link->out + link->out_sent, link->out_used - link->out_sent);
    if (n >= 0) {
      link->out_sent += (size_t)n;
    } else if (errno == EAGAIN) {
      return;
    } else if (errno != EINTR) {
      link_lost(link, errno);
      return;
    }
  }
}

/* Parses what has arrived into replies. */
static void parse_replies(link_t *link) {
  while (link->got < link->wanted) {
    void *reply = NULL;
    if (redisReaderGetReply(link->context->reader, &reply) != REDIS_OK) {
      link_lost(link, EBADMSG);
      return;
    }
    if (!reply) return;
    link->replies[link->got++] = reply;
  }
  if (is_done(link)) link->at = DIBS__REDIS_DONE;
}

/* flags: MSG_DONTWAIT, or 0: waits up to the socket's receive timeout. */
static void receive_piece(link_t *link, int flags) {
  char piece[READ];
  ssize_t n = receive_from(link, piece, sizeof piece, flags);
  if (n == 0) {
    link_lost(link, 0);
  } else if (n > 0) {
    if (redisReaderFeed(link->context->reader, piece, (size_t)n) == REDIS_OK)
      parse_replies(link);
    else
      link_lost(link, ENOMEM);
  } else if (errno != EAGAIN && errno != EINTR) {
    link_lost(link, errno);
  }
}

static void receive_some(link_t *link, int flags) {
  receive_piece(link, flags);
  while (link->at == DIBS__REDIS_TALKING && dibs__redis_tls_has_input(link->tls)) {
    size_t got = link->got;
    receive_piece(link, MSG_DONTWAIT);
    if (link->got == got && !dibs__redis_tls_has_input(link->tls)) return;
  }
}

static int poll_ms(int64_t left) {
  return left > INT_MAX ? INT_MAX : (int)left;
}

/* ---- Until all replies have arrived ---- */

static void talk_one(link_t *link, dibs__tick by) {
  int64_t left = dibs__tick_left_ms(link->sent, by);
  while (link->at == DIBS__REDIS_TALKING) {
    send_some(link);
    if (link->at != DIBS__REDIS_TALKING) return;
    bool unsent = has_unsent(link);
    if (!unsent && left > DIBS__REDIS_PATIENCE_MS + 1) {
      receive_some(link, 0);
    } else {
      struct pollfd fd = {.fd = link->context->fd, .events = (short)(unsent ? POLLIN | POLLOUT : POLLIN)};
      if (poll(&fd, 1, poll_ms(left)) > 0 && (fd.revents & ~POLLOUT)) receive_some(link, MSG_DONTWAIT);
    }
    if (link->at != DIBS__REDIS_TALKING) return;
    left = dibs__tick_left_ms(dibs__tick_now(), by);
    if (left > 0) continue;
    link->at = DIBS__REDIS_LATE;
    link->dead = true;
  }
}

static void talk_all(link_t *const links[], size_t count, dibs__tick by) {
  struct pollfd fds[DIBS__REDIS_AT_ONCE];
  size_t of[DIBS__REDIS_AT_ONCE];
  for (;;) {
    nfds_t talking = 0;
    for (size_t i = 0; i < count; i++) {
      link_t *link = links[i];
      if (link && link->at == DIBS__REDIS_TALKING) send_some(link);
      if (!link || link->at != DIBS__REDIS_TALKING) continue;
      bool unsent = has_unsent(link);
      of[talking] = i;
      fds[talking++] = (struct pollfd){.fd = link->context->fd, .events = (short)(unsent ? POLLIN | POLLOUT : POLLIN)};
    }
    if (talking == 0) return;
    int64_t left = dibs__tick_left_ms(dibs__tick_now(), by);
    int ready = poll(fds, talking, poll_ms(left));
    for (size_t k = 0; k < talking; k++) {
      link_t *link = links[of[k]];
      if (ready > 0 && (fds[k].revents & ~POLLOUT)) receive_some(link, MSG_DONTWAIT);
      if (left > 0 || link->at != DIBS__REDIS_TALKING) continue;
      link->at = DIBS__REDIS_LATE;
      link->dead = true;
    }
  }
}

/* ---- Going ---- */

/* Was it closed meanwhile, or has an unrequested reply arrived? */
static bool is_open(link_t *link) {
  char byte;
  /* A server that speaks TLS also sends what is no reply: tickets of its sessions. */
  ssize_t n = link->tls ? dibs__redis_tls_recv(link->tls, &byte, 1, MSG_DONTWAIT)
                        : recv(link->context->fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) return true;
  link_lost(link, n < 0 ? errno : n == 0 ? 0 : EBADMSG);
  return false;
}

static bool is_idle(const link_t *link, dibs__tick now) {
  return dibs__tick_before(dibs__tick_add_ms(link->answered_at, IDLE_MS), now);
}

bool dibs__redis_still_open(link_t *link) {
  dibs__tick now = dibs__tick_now();
  if (link->dead || !is_idle(link, now)) return !link->dead;
  if (!is_open(link)) return false;
  link->answered_at = now;
  return true;
}

static void begin_go(link_t *link, dibs__tick now, dibs__tick by) {
  arena_clear(link->reply_arena);
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

/* The outcome.  A command that the server has not read whole did nothing. */
static dibs__status finish_go(link_t *link) {
  dibs__status status = DIBS_OK;
  if (link->again) settle_resent(link);
  if (link->at != DIBS__REDIS_DONE) {
    bool any = link->put > 0 && link->out_sent >= end_of_command(link, 0);
    status = any ? DIBS_UNKNOWN : DIBS_UNAVAILABLE;
  }
  dibs__redis_drop(link);
  if (link->out_capacity > OUT_KEEP) {
    free(link->out);
    link->out = NULL;
    link->out_capacity = 0;
  }
  link->answered_at = dibs__tick_now();
  return status;
}

static void explain_failure(const link_t *link, dibs__status status, struct dibs__result *result) {
  const char *shown = link->location->shown;
  if (link->at == DIBS__REDIS_LATE && !link->dead)
    dibs__set_message(result, "the deadline passed before the request to %s", shown);
  else if (link->at == DIBS__REDIS_LATE)
    dibs__set_message(result, "no answer from %s before the deadline", shown);
  else if (link->trouble == EPROTO && link->tls)
    dibs__set_message(result, "the connection to %s broke: TLS: %s", shown, dibs__redis_tls_why(link->tls));
  else if (link->trouble == EBADMSG)
    dibs__set_message(result, "%s does not speak Redis' protocol; check host and port", shown);
  else if (link->trouble)
    dibs__set_message(result, "the connection to %s broke: %s", shown, strerrordesc_np(link->trouble));
  else
    dibs__set_message(result, "%s closed the connection%s", shown, status == DIBS_UNKNOWN ? " before it answered" : "");
}

void dibs__redis_go_all(link_t *const links[], size_t count, dibs__tick by, dibs__status answers[],
                        struct dibs__result *result) {
  bool told = false;
  assert(count <= DIBS__REDIS_AT_ONCE);
  result->sent = dibs__tick_now();
  result->dead = false;
  for (size_t i = 0; i < count; i++)
    if (links[i]) begin_go(links[i], result->sent, by);
  if (count == 1 && links[0])
    talk_one(links[0], by);
  else
    talk_all(links, count, by);
  for (size_t i = 0; i < count; i++) {
    if (!links[i]) continue;
    answers[i] = finish_go(links[i]);
    if (answers[i] == DIBS_OK || told) continue;
    told = true;
    explain_failure(links[i], answers[i], result);
    result->dead = links[i]->dead;
  }
}

dibs__status dibs__redis_go(link_t *link, dibs__tick by, struct dibs__result *result) {
  dibs__status status = DIBS_OK;
  dibs__tick now = dibs__tick_now();
  /* A server that was restarted, or that closes idle connections, is no failure for the next caller. */
  if (link->made && !link->dead && link->put > 0 && is_idle(link, now) && dibs__tick_before(now, by)) {
    result->sent = now;
    if (is_open(link)) {
      link->answered_at = now;
    } else if (!dibs__redis_renew(link, by, result)) {
      link->answered = 0;
      result->dead = true;
      dibs__redis_drop(link);
      return DIBS_UNAVAILABLE;
    }
  }
  dibs__redis_go_all(&link, 1, by, &status, result);
  return status;
}

const redisReply *dibs__redis_reply(const link_t *link, size_t nth) {
  return nth < link->answered ? link->replies[nth] : NULL;
}

/* ---- Messages of a subscription ---- */

const redisReply *dibs__redis_message(link_t *link) {
  redisReader *reader = link->context->reader;
  void *reply = NULL;
  if (reader->ridx == -1) arena_clear(link->reply_arena); /* otherwise a part of one is there */
  if (link->dead) return NULL;
  if (redisReaderGetReply(reader, &reply) == REDIS_OK && reply) return reply;
  do {
    char piece[READ];
    ssize_t n = receive_from(link, piece, sizeof piece, MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return NULL;
    if (n <= 0 || redisReaderFeed(reader, piece, (size_t)n) != REDIS_OK ||
        redisReaderGetReply(reader, &reply) != REDIS_OK) {
      link_lost(link, n < 0 ? errno : n == 0 ? 0 : EBADMSG);
      return NULL;
    }
  } while (!reply && dibs__redis_tls_has_input(link->tls));
  return reply;
}
