/* SPDX-License-Identifier: MIT */
/*
 * Fences and seals: each of NC clients changes all of NR records (read, add one, save) under TURNS leases of one name.
 *
 * Claimed: no acknowledged increment is lost; the content of several records on which a client bases a decision is
 * unchanged when it saves; the fences that a record accepts never decrease.
 *
 * Abstracted: a lease may expire at any moment, and a holder may be paused for ever, so leases exclude no client here:
 * only the records protect themselves.  The store is a single volatile one, which forgets its sequence FLUSHES times and
 * then grants the same fences to other clients.  The digest of a lease's id is the id itself: collisions are not modelled.
 * All clients use the same order of records.
 *
 * READ_AFTER_SEALS reads when all records are sealed; otherwise each seal reads its own record.  Both hold.
 * Rules to remove: NO_SEAL SEAL_AFTER_READ READ_BEFORE_ALL_SEALED NO_OWNER_DIGEST FENCE_NOT_COMPARED
 */
#ifndef NC
#define NC 2
#endif
#ifndef TURNS
#define TURNS 2
#endif
#ifndef NR
#define NR 2
#endif
#ifndef FLUSHES
#define FLUSHES 1
#endif

#define lease_of(me, turn) (1 + (me) * TURNS + (turn))
#if defined(FENCE_NOT_COMPARED)
#define refused(r, f, lease) false
#elif defined(NO_OWNER_DIGEST)
#define refused(r, f, lease) ((f) < r_fence[r])
#else
#define refused(r, f, lease) ((f) < r_fence[r] || ((f) == r_fence[r] && (lease) != r_lease[r]))
#endif

byte seq, flushes;
byte r_fence[NR], r_lease[NR], r_value[NR];

#define fence_never_falls(r, f) ((f) >= r_fence[r])
#define read_still_stands(r) (v[r] == r_value[r])

inline seal(r, f, lease) {
  if
  :: refused(r, f, lease) -> goto over
  :: else -> assert(fence_never_falls(r, f)); r_fence[r] = f; r_lease[r] = lease
  fi
}

inline read_all() {
  i = 0;
  do
  :: i < NR -> v[i] = r_value[i]; i++
  :: else -> i = 0; break
  od
}

proctype client(byte me) {
  byte turn, f, i, j;
  byte v[NR];
again:
  if
  :: turn == TURNS -> goto end
  :: else -> d_step { seq++; f = seq }
  fi;

#if defined(SEAL_AFTER_READ) || defined(NO_SEAL)
  read_all();
#endif
#ifndef NO_SEAL
  do
  :: atomic { i < NR -> seal(i, f, lease_of(me, turn));
#if !defined(SEAL_AFTER_READ) && !defined(READ_AFTER_SEALS) && !defined(READ_BEFORE_ALL_SEALED)
       v[i] = r_value[i];
#endif
       i++ }
#ifdef READ_BEFORE_ALL_SEALED
     if
     :: i == 1 -> read_all(); i = 1
     :: else
     fi
#endif
  :: atomic { i == NR -> i = 0; break }
  od;
#endif
#ifdef READ_AFTER_SEALS
  read_all();
#endif

  do
  :: atomic { i < NR ->
       if
       :: refused(i, f, lease_of(me, turn)) -> goto over
       :: else -> assert(fence_never_falls(i, f))
       fi;
       /* All records that it has read, at the first save: the saved content may depend on any of them. */
       j = i;
       do
       :: j < NR -> assert(read_still_stands(j)); j = (i == 0 -> j + 1 : NR)
       :: else -> j = 0; break
       od;
       r_fence[i] = f; r_lease[i] = lease_of(me, turn); r_value[i] = v[i] + 1; i++ }
  :: i == NR -> break
  od;
over:
  atomic { turn++; f = 0; i = 0; j = 0;
    do
    :: j < NR -> v[j] = 0; j++
    :: else -> j = 0; break
    od;
    goto again }
end:
}

init {
  byte i;
  atomic {
    do
    :: i < NC -> run client(i); i++
    :: else -> break
    od }
  do
  :: d_step { flushes < FLUSHES -> flushes++; seq = 0 }
  :: break
  od
}
