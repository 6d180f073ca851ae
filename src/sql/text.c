/* SPDX-License-Identifier: MIT */
/* Templates of SQL: see text.h. */
#include "sql/text.h"

#include <stdlib.h>
#include <string.h>

static const struct dibs__table own = {.key = "name",
                                       .fence = "fence",
                                       .owner = "owner",
                                       .used = "used",
                                       .limit = "most",
                                       .claim = "claim",
                                       .stock = "stock",
                                       .amount = "amount",
                                       .given = "given",
                                       .taker = "taker",
                                       .taken = "taken"};

/* flat: the letters of columns */
static const char *column_of(const struct dibs__table *t, char which) {
  switch (which) {
  case 'k':
    return t->key;
  case 'v':
    return t->version;
  case 'f':
    return t->fence;
  case 'o':
    return t->owner;
  case 'u':
    return t->used;
  case 'm':
    return t->limit;
  case 'c':
    return t->claim;
  case 's':
    return t->stock;
  case 'a':
    return t->amount;
  case 'g':
    return t->given;
  case 't':
    return t->taker;
  case 'w':
    return t->taken;
  case 'n':
    return t->count;
  case 'P':
    return t->phase;
  case 'L':
    return t->locked_at;
  case 'U':
    return t->updated_at;
  default:
    return NULL;
  }
}

static bool is_column(char which) {
  return which && strchr("kvfoumcsagtwnPLU", which) != NULL;
}

static bool is_of_claims(char which) {
  return strchr("csagtw", which) != NULL;
}

/* With its table's name: some engines take an unknown quoted name for a text. */
static void add_column(struct dibs__text *to, const struct dibs__sql_names *n, char which) {
  const struct dibs__table *t = n->table ? n->table : &own;
  const char *name = column_of(t, which);
  if (!name)
    dibs__text_adds(to, "NULL");
  else if (n->table)
    dibs__sql_add_column(to, n->engine, is_of_claims(which) ? t->claims : t->table, name);
  else
    dibs__text_adds(to, name);
}

/* A column that is set. */
static void add_target(struct dibs__text *to, const struct dibs__sql_names *n, char which) {
  if (n->table)
    dibs__sql_add_name(to, n->engine, column_of(n->table, which));
  else
    dibs__text_adds(to, column_of(&own, which));
}

/* Within the engine's expression for it; the column alone if there is none, or the column is dibs' own. */
static void add_between(struct dibs__text *to, const struct dibs__sql_names *n, const char *const around[2],
                        char which) {
  bool some = n->table && around[0] && column_of(n->table, which);
  if (some) dibs__text_adds(to, around[0]);
  add_column(to, n, which);
  if (some) dibs__text_adds(to, around[1]);
}

static void add_is_key(struct dibs__text *to, const struct dibs__sql_names *n, char which) {
  add_column(to, n, which);
  dibs__text_addf(to, " = $%zu", n->before + 1);
  if (!n->table) return;
  dibs__text_adds(to, " AND ");
  add_between(to, n, n->engine->exact, which);
  dibs__text_addf(to, " = $%zu", n->before + (n->key_text ? n->key_text : 1));
}

static void add_counts(struct dibs__text *to, const struct dibs__sql_names *n, char which) {
  if (!n->table) return;
  dibs__text_adds(to, " AND ");
  add_column(to, n, which);
  dibs__text_adds(to, " BETWEEN 0 AND 9223372036854775807");
  if (!n->engine->whole[0]) return;
  dibs__text_adds(to, " AND ");
  add_between(to, n, n->engine->whole, which);
}

static void add_table(struct dibs__text *to, const struct dibs__sql_names *n, char which) {
  if (n->table) {
    dibs__sql_add_name(to, n->engine, which == 'S' ? n->table->table : n->table->claims);
    return;
  }
  dibs__text_adds(to, n->prefix);
  dibs__text_adds(to, which == 'S' ? "stock" : "claim");
}

/* ---- Marks ---- */

/* `at` follows "@{".  Returns the position after the word. */
static const char *add_word(struct dibs__text *to, const struct dibs__sql_names *n, const char *at) {
  const struct dibs__sql_engine *e = n->engine;
  const struct dibs__sql_word words[] = {
      {"lock", e->for_update},
      {"now", e->now_ms},
      {"start", n->inside && e->start_may_lie ? e->now_ms : e->start_ms},
      {"leave", e->on_conflict ? " ON CONFLICT DO NOTHING" : " ON DUPLICATE KEY UPDATE name = VALUES(name)"},
      {NULL, NULL}};
  size_t length = strcspn(at, "}");
  for (const struct dibs__sql_word *lists[] = {words, n->words}, **list = lists; list < lists + 2; list++)
    for (const struct dibs__sql_word *w = *list; w && w->name; w++)
      if (strlen(w->name) == length && memcmp(w->name, at, length) == 0) dibs__text_adds(to, w->text);
  return at + length + (at[length] == '}');
}

/* `at` follows "@[".  Returns the position after the whole block if it is not for this table, else after its head. */
static const char *enter_block(const struct dibs__sql_names *n, const char *at) {
  bool without = *at == '!';
  const char *letter = at + without;
  bool has = *letter == '*' ? n->table != NULL : column_of(n->table ? n->table : &own, *letter) != NULL;
  const char *end = strstr(at, "@]");
  if (has != without || !end) return letter + 1;
  return end + 2;
}

/* `at` follows '@'.  Returns the position after the mark. */
static const char *add_mark(struct dibs__text *to, const struct dibs__sql_names *n, const char *at) {
  if (*at == 'S' || *at == 'C') {
    add_table(to, n, *at);
    return at + 1;
  }
  if (*at == '@') { /* a variable of the engine's: @@port */
    dibs__text_adds(to, "@@");
    return at + 1;
  }
  if (*at == '{') return add_word(to, n, at + 1);
  if (*at == '[') return enter_block(n, at + 1);
  if (*at == ']') return at + 1;
  if (is_column(*at)) {
    add_column(to, n, *at);
    return at + 1;
  }
  if (!*at || !is_column(at[1])) {
    dibs__text_adds(to, "@");
    return at;
  }
  switch (*at) {
  case '^':
    add_target(to, n, at[1]);
    return at + 2;
  case '=':
    add_between(to, n, n->engine->as_is, at[1]);
    return at + 2;
  case '~':
    add_between(to, n, n->engine->exact, at[1]);
    return at + 2;
  case '?':
    add_between(to, n, n->engine->whole, at[1]);
    return at + 2;
  case '#':
    add_counts(to, n, at[1]);
    return at + 2;
  case '!':
    add_is_key(to, n, at[1]);
    return at + 2;
  default:
    dibs__text_adds(to, "@");
    return at;
  }
}

/* `at` is at '$'.  Returns the position after the value; $rows stays. */
static const char *add_value(struct dibs__text *to, const struct dibs__sql_names *n, const char *at) {
  size_t number = 0, digits = strspn(at + 1, "0123456789");
  for (size_t i = 1; i <= digits; i++) number = number * 10 + (size_t)(at[i] - '0');
  if (digits)
    dibs__text_addf(to, "$%zu", n->before + number);
  else
    dibs__text_add(to, at, 1);
  return at + 1 + digits;
}

static const char prefix[] = "dibs_";

static bool is_plain(const struct dibs__sql_names *n, const char *at) {
  if (*at == '@') return false;
  if (*at == '$') return n->before == 0;
  return *at != 'd' || strncmp(at, prefix, sizeof prefix - 1) != 0;
}

void dibs__sql_compose(struct dibs__text *to, const struct dibs__sql_names *n, const char *from) {
  for (const char *at = from; *at;) {
    const char *plain = at;
    while (*at && is_plain(n, at)) at++;
    dibs__text_add(to, plain, (size_t)(at - plain));
    if (*at == '@') {
      at = add_mark(to, n, at + 1);
    } else if (*at == '$') {
      at = add_value(to, n, at);
    } else if (*at) {
      dibs__text_adds(to, n->prefix);
      at += sizeof prefix - 1;
    }
  }
}

enum { MORE = 1024 /* than the template */ };

char *dibs__sql_composed(const struct dibs__sql_names *names, const char *from) {
  for (size_t size = strlen(from) + MORE;; size *= 2) {
    char *made = malloc(size);
    struct dibs__text text;
    if (!made) return NULL;
    dibs__text_begin(&text, made, size);
    dibs__sql_compose(&text, names, from);
    if (!text.cut) {
      char *fitting = realloc(made, text.len + 1);
      return fitting ? fitting : made;
    }
    free(made);
  }
}
