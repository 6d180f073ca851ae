/* SPDX-License-Identifier: MIT */
/*
 * TLS.  libmicrohttpd gets the certificate at each handshake, from a callback that has no argument of ours: hence
 * the certificates of this process are in a list here.  It belongs to the loop.
 *
 * GnuTLS does not copy what the callback returns, and a client decides how long its handshake takes.  So certificates
 * are freed at the end only; a certificate that has not changed is not added again.
 *
 * The authorities of clients belong to the credentials of a daemon of libmicrohttpd, which has one for each address and
 * gives access to it only by its sessions.  So the first session that needs them after a change replaces them: in its
 * handshake, or before its next request.
 */
#include "serve/tls.h"
#include "base/sha256.h"
#include "handle/handle.h"
#include "serve/server.h"

#include <errno.h>
#include <gnutls/abstract.h>
#include <gnutls/gnutls.h>
#include <gnutls/x509.h>
#include <stdlib.h>
#include <string.h>

enum { CHAIN_MAX = 16, DIGEST = 65 };

/* A certificate with its chain, and its key. */
struct certificate {
  gnutls_pcert_st chain[CHAIN_MAX];
  unsigned count;
  gnutls_privkey_t key;
  char digest[DIGEST]; /* of both files */
  struct certificate *older;
};

static struct certificate *newest;
/* In PEM, as they were at the start, for libmicrohttpd; data NULL: clients need no certificate. */
static gnutls_datum_t authorities;
static gnutls_datum_t replaced_by; /* what HUP has read; data NULL: they were not changed */
static uint64_t changes;           /* of the authorities */

static struct {
  gnutls_certificate_credentials_t of;
  uint64_t changes; /* that it has */
} trusted[LISTENERS_MAX];

static void free_certificate(struct certificate *c) {
  if (!c) return;
  for (unsigned i = 0; i < c->count; i++) gnutls_pcert_deinit(&c->chain[i]);
  if (c->key) gnutls_privkey_deinit(c->key);
  free(c);
}

static dibs_status cannot_use(dibs_error *error, const char *what, const char *path, int code) {
  const char *reason = code == GNUTLS_E_FILE_ERROR ? strerror(errno) : gnutls_strerror(code);
  return dibs__fail(error, DIBS_INVALID, "cannot use the %s in %s: %s", what, path, reason);
}

/* Does it have the key of its first certificate? */
static bool has_own_key(const struct certificate *c) {
  unsigned char of_certificate[64], of_key[64];
  size_t certificate_size = sizeof of_certificate, key_size = sizeof of_key;
  gnutls_pubkey_t public;
  if (gnutls_pubkey_init(&public) != 0) return false;
  bool same =
      gnutls_pubkey_import_privkey(public, c->key, 0, 0) == 0 &&
      gnutls_pubkey_get_key_id(public, GNUTLS_KEYID_USE_SHA256, of_key, &key_size) == 0 &&
      gnutls_pubkey_get_key_id(c->chain[0].pubkey, GNUTLS_KEYID_USE_SHA256, of_certificate, &certificate_size) == 0 &&
      key_size == certificate_size && memcmp(of_key, of_certificate, key_size) == 0;
  gnutls_pubkey_deinit(public);
  return same;
}

static dibs_status import(struct certificate *c, const struct serve_config *config, const gnutls_datum_t *chain,
                          const gnutls_datum_t *key, dibs_error *error) {
  unsigned count = CHAIN_MAX;
  int code = gnutls_pcert_list_import_x509_raw(c->chain, &count, chain, GNUTLS_X509_FMT_PEM, 0);
  if (code == 0 && count == 0) code = GNUTLS_E_NO_CERTIFICATE_FOUND;
  if (code != 0) return cannot_use(error, "certificate", config->certificate, code);
  c->count = count;
  code = gnutls_privkey_init(&c->key);
  if (code == 0) code = gnutls_privkey_import_x509_raw(c->key, key, GNUTLS_X509_FMT_PEM, NULL, 0);
  if (code != 0) return cannot_use(error, "key", config->key, code);
  /* Otherwise every handshake would fail after one of two files was replaced. */
  if (has_own_key(c)) return DIBS_OK;
  return dibs__fail(error, DIBS_INVALID, "the key in %s is not that of the certificate in %s", config->key,
                    config->certificate);
}

static void digest_files(const gnutls_datum_t *chain, const gnutls_datum_t *key, char digest[DIGEST]) {
  struct dibs__sha256 hash;
  dibs__sha256_begin(&hash);
  dibs__sha256_add(&hash, chain->data, chain->size);
  dibs__sha256_add(&hash, "", 1); /* PEM has no NUL */
  dibs__sha256_add(&hash, key->data, key->size);
  dibs__sha256_end(&hash, digest);
}

/* The files, as a certificate at the front of the list, if it differs from the present one. */
static dibs_status load(const struct serve_config *config, dibs_error *error) {
  gnutls_datum_t chain = {NULL, 0}, key = {NULL, 0};
  struct certificate *c = calloc(1, sizeof *c);
  dibs_status status = c ? DIBS_OK : dibs__fail(error, DIBS_NO_MEMORY, "out of memory for the certificate");
  int code = gnutls_load_file(config->certificate, &chain);
  if (status == DIBS_OK && code != 0) status = cannot_use(error, "certificate", config->certificate, code);
  if (status == DIBS_OK && (code = gnutls_load_file(config->key, &key)) != 0)
    status = cannot_use(error, "key", config->key, code);
  if (status != DIBS_OK) goto out;
  digest_files(&chain, &key, c->digest);
  if (newest && strcmp(newest->digest, c->digest) == 0) goto out;
  status = import(c, config, &chain, &key, error);
  if (status != DIBS_OK) goto out;
  c->older = newest;
  newest = c;
  c = NULL;
out:
  free_certificate(c);
  gnutls_free(chain.data);
  if (key.data) gnutls_memset(key.data, 0, key.size);
  gnutls_free(key.data);
  return status;
}

/* Loads the authorities, after a test that they are certificates.  *to changes only if it is OK. */
static dibs_status load_authorities(const char *path, gnutls_datum_t *to, dibs_error *error) {
  gnutls_datum_t text = {NULL, 0};
  gnutls_x509_crt_t *found = NULL;
  unsigned count = 0;
  int code = gnutls_load_file(path, &text); /* with a NUL after them, as libmicrohttpd needs it */
  if (code == 0) code = gnutls_x509_crt_list_import2(&found, &count, &text, GNUTLS_X509_FMT_PEM, 0);
  if (code < 0) {
    gnutls_free(text.data);
    return cannot_use(error, "authorities of clients", path, code);
  }
  for (unsigned i = 0; i < count; i++) gnutls_x509_crt_deinit(found[i]);
  gnutls_free(found);
  gnutls_free(to->data);
  *to = text;
  return DIBS_OK;
}

static bool is_same(const gnutls_datum_t *a, const gnutls_datum_t *b) {
  return a->size == b->size && memcmp(a->data, b->data, a->size) == 0;
}

static void reload_authorities(const struct serve_config *config) {
  const gnutls_datum_t *present = replaced_by.data ? &replaced_by : &authorities;
  gnutls_datum_t text = {NULL, 0};
  dibs_error error = {0};
  if (load_authorities(config->client_ca, &text, &error) != DIBS_OK) {
    config->note("the authorities of clients stay as they were: %s", error.text);
  } else if (is_same(&text, present)) {
    gnutls_free(text.data);
  } else {
    gnutls_free(replaced_by.data);
    replaced_by = text;
    changes++;
    config->note("clients need a certificate of the authorities in %s", config->client_ca);
  }
}

/* The credentials of the session have the present authorities.  false: they cannot. */
static bool trust_present(gnutls_session_t session) {
  gnutls_certificate_credentials_t credentials;
  gnutls_x509_trust_list_t list;
  size_t i = 0;
  if (changes == 0) return true;
  if (gnutls_credentials_get(session, GNUTLS_CRD_CERTIFICATE, (void **)&credentials) != 0) return false;
  while (i < LISTENERS_MAX && trusted[i].of && trusted[i].of != credentials) i++;
  if (i == LISTENERS_MAX) return false;
  if (trusted[i].changes == changes) return true;
  if (gnutls_x509_trust_list_init(&list, 0) != 0) return false;
  if (gnutls_x509_trust_list_add_trust_mem(list, &replaced_by, NULL, GNUTLS_X509_FMT_PEM, GNUTLS_TL_USE_IN_TLS, 0) <
      0) {
    gnutls_x509_trust_list_deinit(list, 1);
    return false;
  }
  gnutls_certificate_set_trust_list(credentials, list, 0); /* frees the one before */
  trusted[i].of = credentials;
  trusted[i].changes = changes;
  return true;
}

dibs_status dibs__tls_open(const struct server *server, dibs_error *error) {
  const struct serve_config *config = &server->config;
  if (!config->certificate) return DIBS_OK;
  dibs_status status = load(config, error);
  if (status == DIBS_OK && config->client_ca) status = load_authorities(config->client_ca, &authorities, error);
  return status;
}

void dibs__tls_reload(const struct server *server) {
  const struct certificate *before = newest;
  const struct serve_config *config = &server->config;
  dibs_error error = {0};
  if (!config->certificate) return;
  if (load(config, &error) != DIBS_OK)
    config->note("the certificate stays as it was: %s", error.text);
  else if (newest != before)
    config->note("new connections get the certificate in %s", config->certificate);
  if (config->client_ca) reload_authorities(config);
}

void dibs__tls_close(void) {
  for (struct certificate *c; (c = newest);) {
    newest = c->older;
    free_certificate(c);
  }
  gnutls_free(authorities.data);
  gnutls_free(replaced_by.data);
  authorities = replaced_by = (gnutls_datum_t){NULL, 0};
  memset(trusted, 0, sizeof trusted);
  changes = 0;
}

/* ---- Connections ---- */

static int give_certificate(gnutls_session_t session, const gnutls_datum_t *names, int name_count,
                            const gnutls_pk_algorithm_t *algorithms, int algorithm_count, gnutls_pcert_st **chain,
                            unsigned *count, gnutls_privkey_t *key) {
  (void)names, (void)name_count, (void)algorithms, (void)algorithm_count;
  (void)trust_present(session); /* for the names of authorities that the client is sent; requests are checked */
  *chain = newest->chain;
  *count = newest->count;
  *key = newest->key;
  return 0;
}

unsigned dibs__tls_options(struct MHD_OptionItem items[TLS_OPTIONS_MAX]) {
  static char priorities[] = "NORMAL:-VERS-ALL:+VERS-TLS1.3:+VERS-TLS1.2";
  size_t count = 0;
  void *callback;
  gnutls_certificate_retrieve_function2 *give = give_certificate;
  memcpy(&callback, &give, sizeof callback);
  items[count++] = (struct MHD_OptionItem){MHD_OPTION_HTTPS_CERT_CALLBACK, 0, callback};
  items[count++] = (struct MHD_OptionItem){MHD_OPTION_HTTPS_PRIORITIES, 0, priorities};
  if (authorities.data) items[count++] = (struct MHD_OptionItem){MHD_OPTION_HTTPS_MEM_TRUST, 0, authorities.data};
  items[count] = (struct MHD_OptionItem){MHD_OPTION_END, 0, NULL};
  return MHD_USE_TLS;
}

/* For the purpose of clients: a certificate of a server, which the same authority may sign, is none. */
static bool is_signed(gnutls_session_t session) {
  char purpose[] = GNUTLS_KP_TLS_WWW_CLIENT;
  gnutls_typed_vdata_st data = {GNUTLS_DT_KEY_PURPOSE_OID, (unsigned char *)purpose, 0};
  unsigned flaws = 0;
  return gnutls_certificate_verify_peers(session, &data, 1, &flaws) == 0 && flaws == 0;
}

bool dibs__tls_admits(struct request *r) {
  const union MHD_ConnectionInfo *info;
  if (!r->server->config.client_ca) return true;
  info = MHD_get_connection_info(r->connection, MHD_CONNECTION_INFO_GNUTLS_SESSION);
  if (!info || !info->tls_session) return true; /* a Unix socket: its folder says who may connect */
  if (trust_present(info->tls_session) && is_signed(info->tls_session)) return true;
  dibs__answer_refuse(r, 403, "certificate", "dibs needs a client certificate of the authority that it knows");
  return false;
}
