/* SPDX-License-Identifier: MIT */
/*
 * TLS over the socket of a link.  OpenSSL reads and writes memory; the bytes travel by this file's own send and recv,
 * so that deadlines, MSG_NOSIGNAL and the socket's receive timeout are those of a link without TLS.
 */
#include "drivers/redis/tls.h"

#include <arpa/inet.h>
#include <errno.h>
#include <limits.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* PIECE: a record of TLS has at most so much content. */
enum { PIECE = 16384 };

const char *const dibs__redis_tls_params[] = {"ca", "cert", "key", "tls_name", "insecure", NULL};

struct dibs__redis_tls_context {
  SSL_CTX *ssl;
  bool insecure;
  char *name; /* NULL: that of the host */
};

struct dibs__redis_tls {
  SSL *ssl;
  BIO *in, *out; /* the SSL's own */
  int fd;
  char why[160];
};

/* ---- Certificates ---- */

/* The reason of OpenSSL's latest error, which may be none. */
static const char *reason(void) {
  unsigned long code = ERR_peek_last_error();
  const char *text = code ? ERR_reason_error_string(code) : NULL;
  return text ? text : "unknown error";
}

static dibs__status refuse_file(const char *key, const char *file, struct dibs__result *result) {
  const char *why = access(file, R_OK) == 0 ? reason() : strerrordesc_np(errno);
  dibs__set_message(result, "can't use %s=%.120s of the store URI: %.100s", key, file, why);
  return DIBS_INVALID;
}

static dibs__status load_files(SSL_CTX *ssl, const struct dibs__uri *uri, bool insecure, struct dibs__result *result) {
  const char *ca = dibs__uri_param(uri, "ca"), *cert = dibs__uri_param(uri, "cert"), *key = dibs__uri_param(uri, "key");
  if (insecure && ca) {
    dibs__set_message(result, "insecure=1 checks no certificate, so ca= has no effect: remove one of them");
    return DIBS_INVALID;
  }
  if (!cert != !key) {
    dibs__set_message(result, "give both cert= and key=, or neither");
    return DIBS_INVALID;
  }
  ERR_clear_error();
  if (ca && SSL_CTX_load_verify_file(ssl, ca) != 1) return refuse_file("ca", ca, result);
  if (!ca && !insecure && SSL_CTX_set_default_verify_paths(ssl) != 1) {
    dibs__set_message(result, "can't load the system's certificates: name the server's authority with ca=FILE");
    return DIBS_INVALID;
  }
  if (cert && SSL_CTX_use_certificate_chain_file(ssl, cert) != 1) return refuse_file("cert", cert, result);
  if (key && (SSL_CTX_use_PrivateKey_file(ssl, key, SSL_FILETYPE_PEM) != 1 || SSL_CTX_check_private_key(ssl) != 1))
    return refuse_file("key", key, result);
  return DIBS_OK;
}

/* Once in a process, where people see it: every answer of such a connection may come from somebody else. */
static void warn_of_insecure(const char *shown) {
  static _Atomic bool warned;
  if (atomic_exchange(&warned, true)) return;
  fprintf(stderr,
          "dibs: WARNING: insecure=1: the certificate of %s is not checked; anyone on the network path can read and "
          "change what dibs does there. Remove it, and name the authority with ca=FILE\n",
          shown);
}

void dibs__redis_tls_context_free(struct dibs__redis_tls_context *context) {
  if (!context) return;
  SSL_CTX_free(context->ssl);
  free(context->name);
  free(context);
}

dibs__status dibs__redis_tls_context(const struct dibs__uri *uri, struct dibs__redis_tls_context **out,
                                     struct dibs__result *result) {
  int64_t insecure = 0;
  *out = NULL;
  dibs__status status = dibs__uri_number(uri, "insecure", 0, 1, 0, &insecure, result);
  if (status != DIBS_OK) return status;
  const char *name = dibs__uri_param(uri, "tls_name");
  struct dibs__redis_tls_context *context = calloc(1, sizeof *context);
  if (context) context->ssl = SSL_CTX_new(TLS_client_method());
  if (context && name) context->name = strdup(name);
  if (!context || !context->ssl || (name && !context->name)) {
    dibs__redis_tls_context_free(context);
    dibs__set_message(result, "out of memory for TLS");
    return DIBS_NO_MEMORY;
  }
  context->insecure = insecure == 1;
  SSL_CTX_set_min_proto_version(context->ssl, TLS1_2_VERSION);
  SSL_CTX_set_verify(context->ssl, context->insecure ? SSL_VERIFY_NONE : SSL_VERIFY_PEER, NULL);
  SSL_CTX_set_mode(context->ssl, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
  status = load_files(context->ssl, uri, context->insecure, result);
  if (status != DIBS_OK) {
    dibs__redis_tls_context_free(context);
    return status;
  }
  if (context->insecure) warn_of_insecure(uri->shown);
  *out = context;
  return DIBS_OK;
}

/* ---- Bytes ---- */

static void note_why(struct dibs__redis_tls *tls) {
  snprintf(tls->why, sizeof tls->why, "%s", reason());
}

const char *dibs__redis_tls_why(const struct dibs__redis_tls *tls) {
  return tls ? tls->why : "";
}

bool dibs__redis_tls_has_output(const struct dibs__redis_tls *tls) {
  return tls && BIO_pending(tls->out) > 0;
}

bool dibs__redis_tls_has_input(const struct dibs__redis_tls *tls) {
  return tls && (SSL_pending(tls->ssl) > 0 || BIO_pending(tls->in) > 0);
}

/* 0: all output has left; -1: see errno. */
static int flush_output(struct dibs__redis_tls *tls) {
  char *bytes;
  long count;
  while ((count = BIO_get_mem_data(tls->out, &bytes)) > 0) {
    ssize_t n = send(tls->fd, bytes, (size_t)count, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n < 0) return -1;
    char dropped[PIECE]; /* a BIO of memory gives up what was read */
    for (ssize_t left = n; left > 0;) {
      int read = BIO_read(tls->out, dropped, left < PIECE ? (int)left : PIECE);
      if (read <= 0) break;
      left -= read;
    }
  }
  return 0;
}

ssize_t dibs__redis_tls_send(struct dibs__redis_tls *tls, const void *bytes, size_t count) {
  if (flush_output(tls) < 0) return -1;
  if (count == 0) return 0;
  ERR_clear_error();
  int n = SSL_write(tls->ssl, bytes, count < PIECE ? (int)count : PIECE);
  if (n <= 0) {
    note_why(tls);
    errno = EPROTO;
    return -1;
  }
  if (flush_output(tls) < 0 && errno != EAGAIN && errno != EINTR) return -1;
  return n;
}

/* Receives what the socket has.  As recv. */
static ssize_t fill_input(struct dibs__redis_tls *tls, int flags) {
  char piece[PIECE];
  ssize_t n = recv(tls->fd, piece, sizeof piece, flags);
  if (n > 0 && BIO_write(tls->in, piece, (int)n) != n) {
    errno = ENOMEM;
    return -1;
  }
  return n;
}

ssize_t dibs__redis_tls_recv(struct dibs__redis_tls *tls, void *bytes, size_t count, int flags) {
  for (;;) {
    ERR_clear_error();
    int n = SSL_read(tls->ssl, bytes, count < INT_MAX ? (int)count : INT_MAX);
    if (n > 0) return n;
    int error = SSL_get_error(tls->ssl, n);
    if (error == SSL_ERROR_ZERO_RETURN) return 0;
    if (error != SSL_ERROR_WANT_READ) {
      note_why(tls);
      errno = EPROTO;
      return -1;
    }
    ssize_t got = fill_input(tls, flags);
    if (got <= 0) return got;
  }
}

/* ---- Shaking hands ---- */

static bool is_number(const char *host) {
  struct in6_addr address;
  return inet_pton(AF_INET, host, &address) == 1 || inet_pton(AF_INET6, host, &address) == 1;
}

static bool expect_name(struct dibs__redis_tls *tls, const char *host, bool insecure) {
  bool number = is_number(host);
  char name[256]; /* OpenSSL's macro casts a const away */
  snprintf(name, sizeof name, "%s", host);
  if (!number && SSL_set_tlsext_host_name(tls->ssl, name) != 1) return false;
  if (insecure) return true;
  X509_VERIFY_PARAM *expected = SSL_get0_param(tls->ssl);
  X509_VERIFY_PARAM_set_hostflags(expected, X509_CHECK_FLAG_NO_PARTIAL_WILDCARDS);
  return (number ? X509_VERIFY_PARAM_set1_ip_asc(expected, host) : X509_VERIFY_PARAM_set1_host(expected, host, 0)) == 1;
}

/* errno; 0: there are bytes, or the end. */
static int wait_for(int fd, short what, dibs__tick by) {
  for (;;) {
    int64_t left = dibs__tick_left_ms(dibs__tick_now(), by);
    struct pollfd ready = {.fd = fd, .events = what};
    int got = poll(&ready, 1, left > INT_MAX ? INT_MAX : (int)left);
    if (got > 0) return 0;
    if (got < 0 && errno != EINTR) return errno;
    if (left == 0) return ETIMEDOUT;
  }
}

/* Why OpenSSL refused, for people. */
static dibs__status explain(struct dibs__redis_tls *tls, const char *host, const char *shown,
                            struct dibs__result *result) {
  /* With insecure=1 the result is there, too, and is no cause. */
  long verified = SSL_get_verify_mode(tls->ssl) == SSL_VERIFY_NONE ? X509_V_OK : SSL_get_verify_result(tls->ssl);
  int code = ERR_GET_REASON(ERR_peek_error());
  if (verified == X509_V_ERR_HOSTNAME_MISMATCH || verified == X509_V_ERR_IP_ADDRESS_MISMATCH) {
    dibs__set_message(result,
                      "%s: the server's certificate is not for \"%.100s\": connect by the name that it has, or name "
                      "that with tls_name=",
                      shown, host);
    return DIBS_DENIED;
  }
  if (verified == X509_V_ERR_CERT_HAS_EXPIRED || verified == X509_V_ERR_CERT_NOT_YET_VALID) {
    dibs__set_message(result, "%s: %s: renew the certificate, or correct the clock", shown,
                      verified == X509_V_ERR_CERT_HAS_EXPIRED ? "the server's certificate has expired"
                                                              : "the server's certificate is not valid yet");
    return DIBS_DENIED;
  }
  if (verified != X509_V_OK) {
    dibs__set_message(result, "%s: the server's certificate is not trusted (%s): name its authority with ca=FILE",
                      shown, X509_verify_cert_error_string(verified));
    return DIBS_DENIED;
  }
  if (code == SSL_R_WRONG_VERSION_NUMBER || code == SSL_R_HTTP_REQUEST || code == SSL_R_PACKET_LENGTH_TOO_LONG) {
    dibs__set_message(result, "%s does not speak TLS there: name its port for TLS (tls-port), or write redis://",
                      shown);
    return DIBS_INVALID;
  }
  dibs__set_message(result, "can't connect to %s: TLS: %.100s", shown, reason());
  return DIBS_UNAVAILABLE;
}

static dibs__status shake(struct dibs__redis_tls *tls, const char *host, dibs__tick by, const char *shown,
                          struct dibs__result *result) {
  for (;;) {
    ERR_clear_error();
    int done = SSL_do_handshake(tls->ssl);
    int error = done == 1 ? SSL_ERROR_NONE : SSL_get_error(tls->ssl, done);
    int trouble = flush_output(tls) < 0 ? errno : 0;
    if (done == 1 && trouble == 0) return DIBS_OK;
    if (error != SSL_ERROR_WANT_READ && error != SSL_ERROR_NONE) return explain(tls, host, shown, result);
    bool full = trouble == EAGAIN || trouble == EINTR;
    if (trouble == 0 || full) trouble = wait_for(tls->fd, full ? POLLOUT : POLLIN, by);
    ssize_t n = 1;
    if (trouble == 0 && !full) {
      n = fill_input(tls, MSG_DONTWAIT);
      trouble = n < 0 && errno != EAGAIN && errno != EINTR ? errno : 0;
    }
    if (trouble == 0 && n != 0) continue;
    dibs__set_message(result, "can't connect to %s: TLS: %s", shown,
                      n == 0                 ? "the server closed the connection; is this its port for TLS?"
                      : trouble == ETIMEDOUT ? "no answer before the deadline; is this its port for TLS?"
                                             : strerrordesc_np(trouble));
    return DIBS_UNAVAILABLE;
  }
}

void dibs__redis_tls_free(struct dibs__redis_tls *tls) {
  if (!tls) return;
  SSL_free(tls->ssl); /* and its BIOs */
  free(tls);
}

dibs__status dibs__redis_tls_open(struct dibs__redis_tls_context *context, const char *host, int fd, dibs__tick by,
                                  const char *shown, struct dibs__redis_tls **out, struct dibs__result *result) {
  struct dibs__redis_tls *tls = calloc(1, sizeof *tls);
  *out = NULL;
  if (context->name) host = context->name;
  if (tls) tls->ssl = SSL_new(context->ssl);
  if (tls && tls->ssl) {
    tls->fd = fd;
    tls->in = BIO_new(BIO_s_mem());
    tls->out = BIO_new(BIO_s_mem());
  }
  if (!tls || !tls->ssl || !tls->in || !tls->out || !expect_name(tls, host, context->insecure)) {
    if (tls) BIO_free(tls->in), BIO_free(tls->out);
    dibs__redis_tls_free(tls);
    dibs__set_message(result, "out of memory for a connection to %s", shown);
    return DIBS_NO_MEMORY;
  }
  BIO_set_mem_eof_return(tls->in, -1);
  SSL_set_bio(tls->ssl, tls->in, tls->out);
  SSL_set_connect_state(tls->ssl);
  dibs__status status = shake(tls, host, by, shown, result);
  if (status != DIBS_OK) {
    dibs__redis_tls_free(tls);
    return status;
  }
  *out = tls;
  return DIBS_OK;
}

bool dibs__redis_tls_words(const struct dibs__redis_tls *tls, char *to, size_t size) {
  snprintf(to, size, "%s, %s", SSL_get_version(tls->ssl), SSL_get_cipher_name(tls->ssl));
  return SSL_get_verify_mode(tls->ssl) != SSL_VERIFY_NONE && SSL_get_verify_result(tls->ssl) == X509_V_OK;
}
