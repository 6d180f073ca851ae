/* SPDX-License-Identifier: MIT */
/*
 * Planned moves: one bucket with one name moves between two tiers that are up, and no client loses a lease.  Tier 1 is
 * the anchor, tier 0 the other tier.  NC clients use both; LONE clients open the anchor alone.
 *
 * Claimed: never two holders (one_holder).  Each grant has a larger fence than all before (fences_grow).  A holder
 * finds its lease at each renewal (is_kept), unless a mover was overtaken, see OVERTAKEN.
 *
 * A move: the record says that the bucket leaves its tier; the old tier receives LEAVE, and no longer grants the name
 * once it is free there; then the new tier receives the epoch (INSTALL).  A client asks the old tier first.  When
 * nothing is held there, `left` is removed from the record (END).  Then the names that the anchor serves are opened to
 * clients that open it alone (OPEN).
 *
 * Abstracted: no lease expires, no tier forgets or is down (mandate.pml), no client waits in a queue (queue.pml).  Each
 * script of a store is one step.  Every message may arrive at any later time; copies of the record may be arbitrarily
 * old; between reading the stores and writing the record anything may happen except another write of the record.  A
 * mover may stop for ever at each step; OVERTAKEN times another mover treats it as dead and creates the next epoch, and
 * the first one may continue.  The anchor's own bucket leads its epoch by its clock, by at most LEAD epochs.  A bucket
 * whose move has not arrived does not move again.
 *
 * Rules to remove: NEW_TIER_ASKED_FIRST LEFT_GRANTS INSTALL_BEFORE_LEAVE NEXT_DOES_NOT_TELL NEXT_FORGETS_LEFT
 * MOVED_AGAIN TURNED_ROUND ENDED_WHILE_HELD OPENED_WHILE_LEFT LONE_SERVED DRAWN_IGNORED TAKEN_AWAY
 * RENEWAL_STOPS_AT_MOVED
 */
#ifndef NC
#define NC 2
#endif
#ifndef LONE
#define LONE 1
#endif
#ifndef MAKERS
#define MAKERS 2
#endif
#ifndef TURNS
#define TURNS 1
#endif
#ifndef MOVES
#define MOVES 2
#endif
#ifndef OVERTAKEN
#define OVERTAKEN 0
#endif
#ifndef LEAD
#define LEAD 1
#endif
#define EMAX 20

/* The record; its version. */
byte r_epoch = 1, r_tier = 1, r_left, version;

#define OWN 0
#define SERVED 1
#define LEFT 2
typedef store {
  byte epoch, state, holder, seq, lead
};
store s[2];

byte moves, overtaken;
bit making; /* the latest epoch is in flight: no client creates the next */
byte largest, holders;

#define one_holder (holders == 0)
#define fences_grow (f > largest)
#define is_kept (overtaken > 0)
#define drawn_of(n) (s[n].epoch + s[n].lead)

inline grant(n, under) {
  s[n].seq++;
  f = drawn_of(n) * 8 + s[n].seq;
  assert(one_holder);
  assert(fences_grow);
  largest = f; f = 0;
  holders++; s[n].holder = me; mine = under
}

inline follow() { ep = r_epoch; tier = r_tier; left = r_left }

/* ---- Clients ---- */

/* Releases its lease on either tier; or its row expires after it got LOST. */
inline give_back() {
  if
  :: s[0].holder == me -> s[0].holder = 0
  :: s[0].holder != me && s[1].holder == me -> s[1].holder = 0
  :: else
  fi;
  mine = 0; turn++
}

proctype client(byte me) {
  byte ep = 1, tier = 1, left, mine, turn, f;
ask:
  if
  :: turn == TURNS -> goto end
  :: atomic { turn < TURNS && (ep != r_epoch || left != r_left) -> follow(); goto ask }
#ifdef NEW_TIER_ASKED_FIRST
  :: turn < TURNS -> goto other
#else
  :: turn < TURNS && left == 0 -> goto other
#endif
  :: atomic { turn < TURNS && left > 0 ->
       if
       :: s[1 - tier].epoch != left -> follow(); goto ask
       :: s[1 - tier].epoch == left && s[1 - tier].holder > 0 -> goto ask
       :: s[1 - tier].epoch == left && s[1 - tier].holder == 0 ->
          if
          :: s[1 - tier].state != LEFT -> grant(1 - tier, left); goto holds
          :: s[1 - tier].state == LEFT -> goto other
#ifdef LEFT_GRANTS
          :: s[1 - tier].state == LEFT -> grant(1 - tier, left); goto holds
#endif
          fi
       fi }
  fi;
other:
  atomic {
    if
    :: s[tier].epoch == ep && s[tier].state != LEFT && s[tier].holder == 0 -> grant(tier, ep); goto holds
#ifdef LEFT_GRANTS
    :: s[tier].epoch == ep && s[tier].state == LEFT && s[tier].holder == 0 -> grant(tier, ep); goto holds
#endif
    :: else -> follow(); goto ask
    fi }
holds: /* renews, with an old or a new copy */
  if
  :: atomic { ep != r_epoch || left != r_left -> follow(); goto holds }
  :: atomic { left > 0 && (mine == left || mine == ep) ->
       if
       :: s[1 - tier].epoch == left && s[1 - tier].holder == me -> goto kept
#ifdef RENEWAL_STOPS_AT_MOVED
       :: s[1 - tier].epoch != left -> goto lost
       :: s[1 - tier].epoch == left && s[1 - tier].holder != me -> goto elsewhere
#else
       :: else -> goto elsewhere
#endif
       fi }
  :: left == 0 && mine == ep -> goto elsewhere
  :: mine != ep && mine != left -> goto lost
  fi;
elsewhere:
  atomic {
    if
    :: s[tier].epoch == ep && s[tier].holder == me -> goto kept
    :: else -> goto lost
    fi }
lost:
  atomic { assert(is_kept); holders--; goto gone }
kept:
  atomic { holders--; give_back(); goto ask }
gone:
  atomic { give_back(); goto ask }
end:
}

proctype lone(byte me) {
  byte mine, turn, f;
ask:
  if
  :: turn == TURNS -> goto end
#ifdef LONE_SERVED
  :: atomic { turn < TURNS && s[1].state != LEFT && s[1].holder == 0 -> grant(1, s[1].epoch); goto holds }
#else
  :: atomic { turn < TURNS && s[1].state == OWN && s[1].holder == 0 -> grant(1, s[1].epoch); goto holds }
#endif
  :: turn < TURNS -> goto end /* it is refused, and ends */
  fi;
holds:
  atomic {
    if
    :: s[1].epoch == mine && s[1].holder == me
    :: else -> assert(is_kept)
    fi }
  atomic { holders--; give_back(); goto ask }
end:
}

/* ---- Movers: dibs__tiers_change ---- */

/* Creates the next epoch on the tier `to`; the bucket leaves `leaves`. */
inline make(to, leaves) {
  r_tier = to; r_left = leaves;
  r_epoch = (r_epoch > drawn -> r_epoch : drawn) + 1;
  version++; making = 1;
  epoch = r_epoch; tier = r_tier; left = r_left
}

inline tell() { /* LEAVE */
  atomic {
    if
    :: left == 0 -> knows = 1
    :: left > 0 && s[1 - tier].epoch == left ->
#ifdef TAKEN_AWAY
       s[1 - tier].epoch = epoch - 1;
#endif
       s[1 - tier].state = LEFT;
#ifdef DRAWN_IGNORED
       knows = 1
#else
       knows = (drawn_of(1 - tier) < epoch)
#endif
    :: else
    fi }
}

inline install() {
  atomic {
    if
    :: knows && s[tier].epoch < epoch && drawn_of(tier) < epoch ->
       s[tier].epoch = epoch; s[tier].state = SERVED; s[tier].seq = 0; s[tier].lead = 0
    :: else
    fi;
    making = (epoch == r_epoch -> 0 : making) }
}

proctype maker() {
  byte seen, drawn, arrived, epoch, tier, left;
  bit knows;
look:
  atomic { /* reads the record and the stores */
    seen = version; drawn = 0; knows = 0; arrived = 0; epoch = 0; tier = 0; left = 0;
    if
#ifndef DRAWN_IGNORED
    :: s[1].state != SERVED -> drawn = drawn_of(1)
    :: s[1].state == SERVED
#else
    :: true
#endif
    fi;
    if
#ifdef TURNED_ROUND
    :: moves < MOVES && r_left > 0 && s[r_tier].epoch != r_epoch -> goto move
#endif
#ifdef MOVED_AGAIN
    :: moves < MOVES && s[r_tier].epoch == r_epoch -> arrived = r_epoch; goto move
#else
    :: moves < MOVES && s[r_tier].epoch == r_epoch && r_left == 0 -> arrived = r_epoch; goto move
#endif
    :: !making && s[r_tier].epoch != r_epoch -> goto next
#ifdef ENDED_WHILE_HELD
    :: r_left > 0 && s[1 - r_tier].state == LEFT && s[1 - r_tier].epoch == r_left -> goto ends
#else
    :: r_left > 0 && s[1 - r_tier].state == LEFT && s[1 - r_tier].epoch == r_left && s[1 - r_tier].holder == 0 -> goto ends
#endif
#ifdef OPENED_WHILE_LEFT
    :: r_tier == 1 && s[1].epoch == r_epoch && s[1].state == SERVED -> epoch = r_epoch; goto opens
#else
    :: r_tier == 1 && r_left == 0 && s[1].epoch == r_epoch && s[1].state == SERVED -> epoch = r_epoch; goto opens
#endif
    :: else -> seen = 0; drawn = 0; goto look
    fi }
move:
  atomic {
    if
    :: version == seen && moves < MOVES -> moves++; make(1 - r_tier, arrived)
    :: else -> goto look
    fi }
#ifdef INSTALL_BEFORE_LEAVE
  knows = 1; install(); tell();
#else
  tell(); install();
#endif
  goto look;
next:
  atomic {
    if
#ifdef NEXT_FORGETS_LEFT
    :: version == seen && !making -> make(r_tier, 0)
#else
    :: version == seen && !making -> make(r_tier, r_left)
#endif
    :: else -> goto look
    fi }
#ifdef NEXT_DOES_NOT_TELL
  knows = 1; install();
#else
  tell(); install();
#endif
  goto look;
ends:
  atomic {
    if
    :: version == seen -> r_left = 0; version++
    :: else
    fi;
    goto look }
opens:
  atomic {
    if
    :: s[1].epoch == epoch && s[1].state == SERVED -> s[1].state = OWN
    :: else
    fi;
    goto look }
}

init {
  byte i;
  atomic {
    s[1].epoch = 1; s[1].state = OWN; s[0].state = SERVED;
    do
    :: i < NC -> run client(i + 1); i++
    :: i >= NC && i < NC + LONE -> run lone(i + 1); i++
    :: i >= NC + LONE && i < NC + LONE + MAKERS -> run maker(); i++
    :: else -> i = 0; break
    od }
end:
  do
  :: atomic { s[1].state == OWN && s[1].lead < LEAD -> s[1].lead++ }
  :: atomic { making && overtaken < OVERTAKEN -> overtaken++; making = 0 }
  od
}
