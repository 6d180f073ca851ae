/* SPDX-License-Identifier: MIT */
/* Requests to etcd's JSON gateway as text, and its answers as values.  Keys and values travel in base64. */
#include "drivers/etcd/etcd_impl.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- Text ---- */

static bool grow(struct dibs__etcd_text *t, size_t more) {
  if (t->failed) return false;
  if (t->len + more + 1 <= t->cap) return true;
  size_t cap = t->cap ? t->cap : 512;
  while (cap < t->len + more + 1) cap *= 2;
  char *grown = realloc(t->p, cap);
  t->failed = !grown;
  if (!grown) return false;
  t->p = grown;
  t->cap = cap;
  return true;
}

void dibs__etcd_put_bytes(struct dibs__etcd_text *t, const char *bytes, size_t len) {
  if (!grow(t, len)) return;
  if (len) memcpy(t->p + t->len, bytes, len);
  t->len += len;
  t->p[t->len] = '\0';
}

void dibs__etcd_put(struct dibs__etcd_text *t, const char *words) {
  dibs__etcd_put_bytes(t, words, strlen(words));
}

void dibs__etcd_putf(struct dibs__etcd_text *t, const char *format, ...) {
  char line[256];
  va_list args;
  va_start(args, format);
  int len = vsnprintf(line, sizeof line, format, args);
  va_end(args);
  if (len < 0 || (size_t)len >= sizeof line)
    t->failed = true;
  else
    dibs__etcd_put_bytes(t, line, (size_t)len);
}

void dibs__etcd_put_base64(struct dibs__etcd_text *t, const char *bytes, size_t len) {
  static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  const uint8_t *from = (const uint8_t *)bytes;
  if (!grow(t, (len + 2) / 3 * 4 + 2)) return;
  char *to = t->p + t->len;
  *to++ = '"';
  for (size_t i = 0; i < len; i += 3) {
    uint32_t three = (uint32_t)from[i] << 16;
    if (i + 1 < len) three |= (uint32_t)from[i + 1] << 8;
    if (i + 2 < len) three |= from[i + 2];
    *to++ = digits[three >> 18];
    *to++ = digits[three >> 12 & 63];
    *to++ = '=';
    *to++ = '=';
    if (i + 1 < len) to[-2] = digits[three >> 6 & 63];
    if (i + 2 < len) to[-1] = digits[three & 63];
  }
  *to++ = '"';
  t->len = (size_t)(to - t->p);
  *to = '\0';
}

void dibs__etcd_text_free(struct dibs__etcd_text *t) {
  free(t->p);
  *t = (struct dibs__etcd_text){0};
}

/* ---- Keys ---- */

static bool is_plain(uint8_t byte) {
  return byte > ' ' && byte != 0x7f && byte != '/' && byte != '%';
}

static void key_add(struct dibs__etcd_key *key, const char *text) {
  size_t len = strlen(text);
  if (key->len + len >= sizeof key->text) return; /* never: see DIBS__ETCD_KEY */
  memcpy(key->text + key->len, text, len + 1);
  key->len += len;
}

void dibs__etcd_key(const struct dibs__etcd *store, const char *kind, dibs__str name, struct dibs__etcd_key *key) {
  static const char digits[] = "0123456789ABCDEF";
  key->len = 0;
  key_add(key, store->location.prefix);
  key_add(key, kind);
  key_add(key, "/");
  if (!name.len) return;
  for (uint32_t i = 0; i < name.len && i < DIBS_NAME_MAX; i++) {
    uint8_t byte = (uint8_t)name.p[i];
    char *to = key->text + key->len;
    if (is_plain(byte)) {
      *to = (char)byte;
      key->len++;
      continue;
    }
    to[0] = '%';
    to[1] = digits[byte >> 4];
    to[2] = digits[byte & 15];
    key->len += 3;
  }
  key->text[key->len] = '\0';
  key_add(key, "/");
}

void dibs__etcd_key_id(const struct dibs__etcd_key *range, dibs__id id, struct dibs__etcd_key *key) {
  static const char digits[] = "0123456789abcdef";
  char hex[2 * sizeof id.b + 1];
  for (size_t i = 0; i < sizeof id.b; i++) {
    hex[2 * i] = digits[id.b[i] >> 4];
    hex[2 * i + 1] = digits[id.b[i] & 15];
  }
  hex[2 * sizeof id.b] = '\0';
  if (key != range) *key = *range;
  key_add(key, hex);
}

static int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

bool dibs__etcd_key_read(const struct dibs__etcd *store, const char *kind, const struct dibs__etcd_key *key, char *name,
                         uint32_t *len, const char **rest) {
  struct dibs__etcd_key head;
  dibs__etcd_key(store, kind, (dibs__str){0}, &head);
  *len = 0;
  if (key->len <= head.len || memcmp(key->text, head.text, head.len) != 0) return false;
  const char *at = key->text + head.len;
  for (; *at && *at != '/'; at++) {
    int byte = (uint8_t)*at;
    if (*len == DIBS_NAME_MAX) return false;
    if (*at == '%') {
      if (hex_digit(at[1]) < 0 || hex_digit(at[2]) < 0) return false;
      byte = hex_digit(at[1]) * 16 + hex_digit(at[2]);
      at += 2;
    }
    name[(*len)++] = (char)byte;
  }
  *rest = at + 1;
  return *at == '/' && *len > 0;
}

/* ---- Transactions ---- */

void dibs__etcd_txn_begin(struct dibs__etcd_txn *txn) {
  txn->compare.len = txn->success.len = txn->failure.len = 0;
}

void dibs__etcd_txn_free(struct dibs__etcd_txn *txn) {
  dibs__etcd_text_free(&txn->compare);
  dibs__etcd_text_free(&txn->success);
  dibs__etcd_text_free(&txn->failure);
}

void dibs__etcd_txn_put(struct dibs__etcd_text *to, const struct dibs__etcd_txn *txn) {
  dibs__etcd_put(to, "{\"compare\":[");
  dibs__etcd_put_bytes(to, txn->compare.p, txn->compare.len);
  dibs__etcd_put(to, "],\"success\":[");
  dibs__etcd_put_bytes(to, txn->success.p, txn->success.len);
  if (txn->failure.len) {
    dibs__etcd_put(to, "],\"failure\":[");
    dibs__etcd_put_bytes(to, txn->failure.p, txn->failure.len);
  }
  dibs__etcd_put(to, "]}");
  if (txn->compare.failed || txn->success.failed || txn->failure.failed) to->failed = true;
}

static void comma(struct dibs__etcd_text *to) {
  if (to->len) dibs__etcd_put(to, ",");
}

/* The end of the range of all keys that begin so: the last byte, a slash, plus one. */
static void put_range_end(struct dibs__etcd_text *to, const struct dibs__etcd_key *range) {
  struct dibs__etcd_key end = *range;
  end.text[end.len - 1]++;
  dibs__etcd_put(to, ",\"range_end\":");
  dibs__etcd_put_base64(to, end.text, end.len);
}

/* Without `result`: must be equal. */
static void put_compare(struct dibs__etcd_text *to, const struct dibs__etcd_key *key, bool range, const char *target,
                        const char *result, const char *field, uint64_t revision) {
  comma(to);
  dibs__etcd_putf(to, "{\"target\":\"%s\",\"%s\":\"%" PRIu64 "\",\"key\":", target, field, revision);
  dibs__etcd_put_base64(to, key->text, key->len);
  if (range) put_range_end(to, key);
  if (result) dibs__etcd_putf(to, ",\"result\":\"%s\"", result);
  dibs__etcd_put(to, "}");
}

void dibs__etcd_compare(struct dibs__etcd_txn *txn, const struct dibs__etcd_key *key, enum dibs__etcd_target target,
                        uint64_t revision) {
  if (target == DIBS__ETCD_CREATE)
    put_compare(&txn->compare, key, false, "CREATE", NULL, "create_revision", revision);
  else
    put_compare(&txn->compare, key, false, "MOD", NULL, "mod_revision", revision);
}

void dibs__etcd_compare_empty(struct dibs__etcd_txn *txn, const struct dibs__etcd_key *range) {
  put_compare(&txn->compare, range, true, "CREATE", NULL, "create_revision", 0);
}

void dibs__etcd_compare_first(struct dibs__etcd_txn *txn, const struct dibs__etcd_key *range, uint64_t revision) {
  put_compare(&txn->compare, range, true, "CREATE", "GREATER", "create_revision", revision - 1);
}

void dibs__etcd_compare_since(struct dibs__etcd_txn *txn, const struct dibs__etcd_key *range, uint64_t revision) {
  put_compare(&txn->compare, range, true, "MOD", "LESS", "mod_revision", revision + 1);
}

void dibs__etcd_op_put(struct dibs__etcd_text *to, const struct dibs__etcd_key *key, const char *value, size_t len,
                       int64_t lease) {
  comma(to);
  dibs__etcd_put(to, "{\"request_put\":{\"key\":");
  dibs__etcd_put_base64(to, key->text, key->len);
  dibs__etcd_put(to, ",\"value\":");
  dibs__etcd_put_base64(to, value, len);
  if (lease > 0) dibs__etcd_putf(to, ",\"lease\":\"%" PRId64 "\"", lease);
  if (lease < 0) dibs__etcd_put(to, ",\"ignore_lease\":true");
  dibs__etcd_put(to, "}}");
}

static void op_delete(struct dibs__etcd_text *to, const struct dibs__etcd_key *key, bool range) {
  comma(to);
  dibs__etcd_put(to, "{\"request_delete_range\":{\"key\":");
  dibs__etcd_put_base64(to, key->text, key->len);
  if (range) put_range_end(to, key);
  dibs__etcd_put(to, "}}");
}

void dibs__etcd_op_delete(struct dibs__etcd_text *to, const struct dibs__etcd_key *key) {
  op_delete(to, key, false);
}

void dibs__etcd_op_delete_range(struct dibs__etcd_text *to, const struct dibs__etcd_key *range) {
  op_delete(to, range, true);
}

void dibs__etcd_op_get(struct dibs__etcd_text *to, const struct dibs__etcd_key *key) {
  comma(to);
  dibs__etcd_put(to, "{\"request_range\":{\"key\":");
  dibs__etcd_put_base64(to, key->text, key->len);
  dibs__etcd_put(to, "}}");
}

void dibs__etcd_range_body(struct dibs__etcd_text *to, const struct dibs__etcd_key *range, const char *more) {
  dibs__etcd_put(to, "{\"key\":");
  dibs__etcd_put_base64(to, range->text, range->len);
  put_range_end(to, range);
  dibs__etcd_put(to, more);
  dibs__etcd_put(to, "}");
}

void dibs__etcd_op_range(struct dibs__etcd_text *to, const struct dibs__etcd_key *range, const char *more) {
  comma(to);
  dibs__etcd_put(to, "{\"request_range\":");
  dibs__etcd_range_body(to, range, more);
  dibs__etcd_put(to, "}");
}

void dibs__etcd_op_txn(struct dibs__etcd_text *to, const struct dibs__etcd_txn *txn) {
  comma(to);
  dibs__etcd_put(to, "{\"request_txn\":");
  dibs__etcd_txn_put(to, txn);
  dibs__etcd_put(to, "}");
}

/* ---- Answers ---- */

int64_t dibs__etcd_number(const json_t *object, const char *key) {
  const json_t *value = json_object_get(object, key);
  if (json_is_integer(value)) return json_integer_value(value);
  const char *text = json_string_value(value);
  return text ? (int64_t)strtoll(text, NULL, 10) : 0;
}

static int base64_digit(char c) {
  if (c >= 'A' && c <= 'Z') return c - 'A';
  if (c >= 'a' && c <= 'z') return c - 'a' + 26;
  if (c >= '0' && c <= '9') return c - '0' + 52;
  return c == '+' ? 62 : c == '/' ? 63 : -1;
}

/* `to` has room for 3 bytes for each 4 characters. */
static size_t base64_read(const char *from, char *to) {
  uint32_t bits = 0;
  size_t len = 0;
  for (unsigned count = 0; base64_digit(*from) >= 0; from++) {
    bits = bits << 6 | (uint32_t)base64_digit(*from);
    count += 6;
    if (count < 8) continue;
    count -= 8;
    to[len++] = (char)(uint8_t)(bits >> count);
  }
  return len;
}

char *dibs__etcd_bytes(const json_t *object, const char *key, size_t *len) {
  const json_t *value = json_object_get(object, key);
  const char *text = json_is_string(value) ? json_string_value(value) : "";
  char *bytes = malloc(strlen(text) / 4 * 3 + 4);
  *len = 0;
  if (!bytes) return NULL;
  *len = base64_read(text, bytes);
  bytes[*len] = '\0';
  return bytes;
}

bool dibs__etcd_key_of(const json_t *kv, struct dibs__etcd_key *key) {
  const char *text = json_string_value(json_object_get(kv, "key"));
  key->len = 0;
  key->text[0] = '\0';
  if (!text || strlen(text) / 4 * 3 + 4 > sizeof key->text) return false;
  key->len = base64_read(text, key->text);
  key->text[key->len] = '\0';
  return true;
}

json_t *dibs__etcd_value(const json_t *kv) {
  size_t len;
  char *bytes = dibs__etcd_bytes(kv, "value", &len);
  json_t *value = bytes ? json_loadb(bytes, len, JSON_ALLOW_NUL, NULL) : NULL;
  free(bytes);
  if (json_is_object(value)) return value;
  json_decref(value);
  return NULL;
}

const json_t *dibs__etcd_range_at(const json_t *responses, size_t nth) {
  return json_object_get(json_array_get(responses, nth), "response_range");
}
