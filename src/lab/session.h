/* SPDX-License-Identifier: MIT */
#ifndef DIBS_LAB_SESSION_H
#define DIBS_LAB_SESSION_H
/* A database session with a thread of its own, so that a statement of it may wait while another session goes on. */
#include "lab/lab.h"

enum { LAB_SQL_MAX = 512 };

struct lab_session {
  struct lab_line line;
  dibs__thread *thread;
  /* Asked: the session's thread may look once `asked` has grown; the other side may look when `answered` is equal. */
  dibs__word asked, answered;
  char text[LAB_SQL_MAX];
  bool leave;
  enum dibs__sql_step step;
  enum dibs__sql_trouble trouble;
  uint64_t changed;
  int64_t number; /* the first cell, of a statement that gives one */
  char words[200];
};
bool dibs__lab_session_open(struct lab *lab, struct lab_session *session);
void dibs__lab_session_close(struct lab_session *session); /* waits for what goes on; also one that was not opened */
/* Sends; nothing may be going on. */
void dibs__lab_session_ask(struct lab_session *session, const char *text);
/* true: it has been answered, and the answer may be looked at. */
bool dibs__lab_session_wait(struct lab_session *session, int64_t ms);

#endif
