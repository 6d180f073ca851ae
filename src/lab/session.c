/* SPDX-License-Identifier: MIT */
#include "lab/session.h"

#include <stdio.h>
#include <string.h>

static void obey(struct lab_session *s) {
  struct dibs__sql_wire *wire = s->line.wire;
  s->changed = 0;
  s->number = 0;
  s->words[0] = '\0';
  if (strcmp(s->text, "ROLLBACK") == 0) {
    dibs__sql_rollback(wire); /* also where the engine has done it by itself */
    s->step = DIBS__SQL_FINE;
    return;
  }
  s->step = dibs__lab_say(&s->line, s->text, NULL, 0);
  if (s->step != DIBS__SQL_FINE) {
    s->trouble = wire->trouble;
    snprintf(s->words, sizeof s->words, "%s", wire->words);
    return;
  }
  s->changed = wire->engine->changed(wire, 0);
  if (wire->engine->rows(wire, 0) > 0) s->number = dibs__sql_cell_number(wire, 0, 0, 0);
}

static void body(void *arg) {
  struct lab_session *s = arg;
  for (uint32_t done = 0;;) {
    while (atomic_load(&s->asked) == done) dibs__word_wait(&s->asked, done, DIBS__TICK_NEVER, false);
    if (s->leave) return;
    obey(s);
    atomic_store(&s->answered, ++done);
    dibs__word_wake(&s->answered, 1, false);
  }
}

bool dibs__lab_session_open(struct lab *lab, struct lab_session *s) {
  struct dibs__said said = {0};
  if (dibs__lab_line_open(lab->door, &s->line, &said) != DIBS_OK) return dibs__lab_fail(lab, "%s", said.text);
  s->thread = dibs__thread_start("dibs-lab-session", body, s);
  return s->thread || dibs__lab_fail(lab, "the system has no thread left");
}

void dibs__lab_session_ask(struct lab_session *s, const char *text) {
  snprintf(s->text, sizeof s->text, "%s", text);
  atomic_fetch_add(&s->asked, 1);
  dibs__word_wake(&s->asked, 1, false);
}

bool dibs__lab_session_wait(struct lab_session *s, int64_t ms) {
  dibs__tick by = dibs__tick_add_ms(dibs__tick_now(), ms);
  for (;;) {
    uint32_t answered = atomic_load(&s->answered);
    if (answered == atomic_load(&s->asked)) return true;
    if (!dibs__tick_before(dibs__tick_now(), by)) return false;
    dibs__word_wait(&s->answered, answered, by, false);
  }
}

void dibs__lab_session_close(struct lab_session *s) {
  if (s->thread) {
    (void)dibs__lab_session_wait(s, LAB_LINE_MS * 2);
    s->leave = true;
    atomic_fetch_add(&s->asked, 1);
    dibs__word_wake(&s->asked, 1, false);
    dibs__thread_join(s->thread);
    s->thread = NULL;
  }
  dibs__lab_line_close(&s->line);
}
