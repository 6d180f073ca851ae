/* SPDX-License-Identifier: MIT */
/*
 * The side file: its file, locks and mapping, incarnations, slots, and what it remembers.  The writers' queue, hints
 * and notifications are in side_queue.c.
 *
 * The locks are OFD locks on bytes that the file never has: they belong to the open file description, so two open
 * stores in one process exclude each other as two processes do, closing another descriptor of the file does not drop
 * them (the trap of POSIX locks), and the kernel drops them when the process dies, however it dies.
 *
 * A fork without exec gives the child our open file descriptions, and with them our OFD locks: if we were killed, the
 * byte of our slot would stay locked, and we would seem alive as long as the child lives, perhaps as owner of the
 * writer lock.  So children close these descriptors before fork returns in them.  (The page itself is not inherited,
 * MADV_DONTFORK: a mapping holds the description, too.)
 *
 * Opening, all under the gate: file, size and mapping; is it the same machine run (boot, clock, file)?  If not, and
 * another process is alive: refuse.  If not, and none is alive: clear the incarnation *first*, then write the new
 * boot, so that a kill in between leaves a page without an incarnation and never an old one under a new boot.  Then a
 * slot.
 */
#include "drivers/sqlite/side_impl.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

/* Guarded by `lock`, which is also held across every fork. */
static pthread_mutex_t sides_lock = PTHREAD_MUTEX_INITIALIZER;
static struct dibs__side *first_side;
static bool watched;

static void before_fork(void) {
  pthread_mutex_lock(&sides_lock);
}

static void in_parent(void) {
  pthread_mutex_unlock(&sides_lock);
}

static void in_child(void) {
  for (struct dibs__side *side = first_side; side; side = side->next)
    if (side->fd >= 0) close(side->fd);
  first_side = NULL;
  pthread_mutex_unlock(&sides_lock);
}

static bool side_fork_add(struct dibs__side *side) {
  pthread_mutex_lock(&sides_lock);
  bool fine = watched || pthread_atfork(before_fork, in_parent, in_child) == 0;
  watched = fine;
  if (fine) {
    side->next = first_side;
    first_side = side;
  }
  pthread_mutex_unlock(&sides_lock);
  return fine;
}

/* A forked child shares the description and would keep its parent's locks alive: children close the descriptors of all
 * sides on the list.  Forks wait for `lock`; side->fd changes only under it. */
static void side_fork_remove(struct dibs__side *side) {
  pthread_mutex_lock(&sides_lock);
  for (struct dibs__side **at = &first_side; *at; at = &(*at)->next)
    if (*at == side) {
      *at = side->next;
      break;
    }
  pthread_mutex_unlock(&sides_lock);
}

static void fork_lock(void) {
  pthread_mutex_lock(&sides_lock);
}

static void fork_unlock(void) {
  pthread_mutex_unlock(&sides_lock);
}

/* ---- The file ---- */

enum { GATE_NAP_MS = 1 };

/* ---- Locks ---- */

static bool ofd_lock(const struct dibs__side *side, int command, short type, int64_t start, int64_t length,
                     struct flock *lock) {
  *lock = (struct flock){.l_type = type, .l_whence = SEEK_SET, .l_start = start, .l_len = length};
  int r;
  do r = fcntl(side->fd, command, lock);
  while (r < 0 && errno == EINTR);
  return r == 0;
}

/* false with errno: EAGAIN if another open store has it. */
static bool side_lock(struct dibs__side *side, int64_t byte) {
  struct flock lock;
  if (ofd_lock(side, F_OFD_SETLK, F_WRLCK, byte, 1, &lock)) return true;
  if (errno == EACCES) errno = EAGAIN;
  return false;
}

static void side_unlock(struct dibs__side *side, int64_t byte) {
  struct flock lock;
  ofd_lock(side, F_OFD_SETLK, F_UNLCK, byte, 1, &lock);
}

/* Does another open store hold a slot?  *slot: the first one. */
static bool other_store_lives(struct dibs__side *side, uint32_t *slot) {
  struct flock lock;
  if (!ofd_lock(side, F_OFD_GETLK, F_WRLCK, DIBS__LOCK_SLOTS, DIBS__SIDE_SLOTS, &lock) || lock.l_type == F_UNLCK)
    return false;
  *slot = (uint32_t)(lock.l_start - DIBS__LOCK_SLOTS);
  return *slot < DIBS__SIDE_SLOTS;
}

bool dibs__side_slot_locked(struct dibs__side *side, uint32_t slot) {
  struct flock lock;
  /* If the kernel can't answer (it always can): alive.  A wait too long is better than a lock taken from a live
   * process. */
  return !ofd_lock(side, F_OFD_GETLK, F_WRLCK, DIBS__LOCK_SLOTS + slot, 1, &lock) || lock.l_type != F_UNLCK;
}

/* ---- File identity ---- */

static bool side_file_id(int folder, const char *path, int flags, struct dibs__file_id *id) {
  struct statx s;
  if (statx(folder, path, flags, STATX_INO | STATX_BTIME, &s) != 0) return false;
  id->device = makedev(s.stx_dev_major, s.stx_dev_minor);
  id->inode = s.stx_ino;
  id->born_ns = 0;
  if (s.stx_mask & STATX_BTIME) id->born_ns = (uint64_t)s.stx_btime.tv_sec * UINT64_C(1000000000) + s.stx_btime.tv_nsec;
  return true;
}

/* ---- Opening ---- */

static dibs__status refuse_open(const struct dibs__side *side, struct dibs__result *result) {
  int e = errno;
  switch (e) {
  case ELOOP:
    dibs__set_message(result, "%s is a symbolic link, which dibs does not follow here: remove it", side->path);
    return DIBS_DENIED;
  case EACCES:
  case EPERM:
    dibs__set_message(result, "can't open %s for writing: %s; its owner must give you write permission (see ?mode=)",
                      side->path, strerror(e));
    return DIBS_DENIED;
  case EROFS:
    dibs__set_message(result, "can't create %s: the file system is mounted read-only", side->path);
    return DIBS_DENIED;
  case EISDIR:
    dibs__set_message(result, "%s is a folder, where dibs needs a file: move it away", side->path);
    return DIBS_CORRUPT;
  case ENOENT:
  case ENOTDIR:
    dibs__set_message(result, "can't create %s: its folder does not exist", side->path);
    return DIBS_UNAVAILABLE;
  default:
    dibs__set_message(result, "can't open %s: %s", side->path, strerror(e));
    return e == ENOMEM ? DIBS_NO_MEMORY : DIBS_UNAVAILABLE;
  }
}

/* As SQLite does for its own side files: an existing database determines owner and permissions, so that a command of
 * root does not lock out the file's users. */
static bool make_like(int fd, const char *database, uint32_t mode) {
  struct stat s;
  if (stat(database, &s) == 0) {
    mode = (uint32_t)(s.st_mode & 0666) | 0600;
    if (geteuid() == 0 && fchown(fd, s.st_uid, s.st_gid) != 0) return false;
  }
  return fchmod(fd, (mode_t)mode) == 0; /* exactly, whatever the umask */
}

/* Opens it, or makes it: then fresh.  false with errno. */
static bool open_or_make(struct dibs__side *side, const char *database, uint32_t mode) {
  const int flags = O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NOCTTY;
  for (;;) {
    side->fresh = false;
    side->fd = open(side->path, flags);
    if (side->fd >= 0 || errno != ENOENT) return side->fd >= 0;
    side->fd = open(side->path, flags | O_CREAT | O_EXCL, (mode_t)mode);
    if (side->fd < 0 && errno == EEXIST) continue; /* another process made it in between */
    if (side->fd < 0) return false;
    side->fresh = true;
    if (make_like(side->fd, database, mode)) return true;
    int e = errno;
    unlink(side->path);
    close(side->fd);
    side->fd = -1;
    errno = e;
    return false;
  }
}

static dibs__status enter_gate(struct dibs__side *side, dibs__tick by, struct dibs__result *result) {
  while (!side_lock(side, DIBS__LOCK_GATE)) {
    if (errno != EAGAIN) {
      dibs__set_message(result, "can't lock %s: %s; the store needs a file system with locks", side->path,
                        strerror(errno));
      return errno == ENOLCK || errno == EINVAL || errno == EOPNOTSUPP ? DIBS_UNSUPPORTED : DIBS_UNAVAILABLE;
    }
    if (!dibs__tick_before(dibs__tick_now(), by)) {
      dibs__set_message(result,
                        "%s: another process has been opening the store for too long; check whether it is stopped",
                        side->path);
      return DIBS_UNAVAILABLE;
    }
    dibs__nap_ms(GATE_NAP_MS);
  }
  side->gate = true;
  return DIBS_OK;
}

/* Does the path still lead to the opened file? */
static bool still_there(const struct dibs__side *side) {
  struct stat ours, named;
  return fstat(side->fd, &ours) == 0 && lstat(side->path, &named) == 0 && ours.st_dev == named.st_dev &&
         ours.st_ino == named.st_ino;
}

/* No fork happens meanwhile, so that no child shares our description. */
static void close_fd(struct dibs__side *side) {
  fork_lock();
  if (side->fd >= 0) close(side->fd);
  side->fd = -1;
  side->gate = false;
  fork_unlock();
}

/* Opens or creates FILE-dibs and takes the gate. */
static dibs__status side_file_open(struct dibs__side *side, const char *database, uint32_t mode, dibs__tick by,
                                   struct dibs__result *result) {
  for (;;) {
    fork_lock();
    bool fine = open_or_make(side, database, mode);
    fork_unlock();
    if (!fine) return refuse_open(side, result);

    struct stat s;
    if (fstat(side->fd, &s) != 0 || !S_ISREG(s.st_mode)) {
      dibs__set_message(result, "%s is not a regular file: move it away", side->path);
      close_fd(side);
      return DIBS_CORRUPT;
    }
    dibs__status status = enter_gate(side, by, result);
    if (status != DIBS_OK) {
      close_fd(side); /* it stays, even if this open made it: the process with the gate uses it */
      return status;
    }
    /* Race: the process that had the gate before us failed and removed the file that it had made; we would go on with a
     * file that nobody else can find.  Closed by checking again now: while we hold the gate nobody removes it. */
    if (still_there(side)) return DIBS_OK;
    close_fd(side);
    if (!dibs__tick_before(dibs__tick_now(), by)) {
      dibs__set_message(result,
                        "another process creates and removes %s repeatedly; check whether it fails to open the store",
                        side->path);
      return DIBS_UNAVAILABLE;
    }
  }
}

/* ---- Size and mapping ---- */

static dibs__status refuse_size(const struct dibs__side *side, int e, struct dibs__result *result) {
  dibs__set_message(result, "%s needs %zu KiB: %s; free some space and try again", side->path,
                    sizeof(struct dibs__page) / 1024, strerror(e));
  return DIBS_UNAVAILABLE;
}

/* Allocates disk space for every byte before it is mapped: a hole that can't be filled is a SIGBUS in the user's
 * process. */
static int allocate(int fd) {
  int e;
  do e = posix_fallocate(fd, 0, (off_t)sizeof(struct dibs__page));
  while (e == EINTR);
  return e;
}

static dibs__status map_page(struct dibs__side *side, struct dibs__result *result) {
  fork_lock();
  void *at = mmap(NULL, sizeof(struct dibs__page), PROT_READ | PROT_WRITE, MAP_SHARED, side->fd, 0);
  int e = errno;
  if (at != MAP_FAILED) madvise(at, sizeof(struct dibs__page), MADV_DONTFORK);
  fork_unlock();
  if (at == MAP_FAILED) {
    dibs__set_message(result, "can't map %s: %s", side->path, strerror(e));
    return e == ENOMEM ? DIBS_NO_MEMORY : DIBS_UNSUPPORTED;
  }
  side->page = at;
  return DIBS_OK;
}

/* The first line of a page as it lies in the file. */
struct front {
  uint64_t magic;
  uint32_t layout, slots, ring, buckets;
  uint64_t size;
};

static bool is_ours(const struct front *front, off_t size) {
  return front->magic == DIBS__PAGE_MAGIC && front->layout == DIBS__PAGE_LAYOUT && front->slots == DIBS__SIDE_SLOTS &&
         front->ring == DIBS__SIDE_RING && front->buckets == DIBS__BUCKETS &&
         front->size == sizeof(struct dibs__page) && size == (off_t)sizeof(struct dibs__page);
}

/* Under the gate: gives the file its size and maps it.  *known: it holds a page of this layout.  Otherwise it is all
 * zeros now, and no process is alive.  UNAVAILABLE CORRUPT TOO_NEW. */
static dibs__status side_file_map(struct dibs__side *side, bool *known, struct dibs__result *result) {
  struct stat s;
  struct front front = {0};
  if (fstat(side->fd, &s) != 0 || pread(side->fd, &front, sizeof front, 0) < 0) {
    dibs__set_message(result, "can't read %s: %s", side->path, strerror(errno));
    return DIBS_UNAVAILABLE;
  }
  if (front.magic == DIBS__PAGE_MAGIC && front.layout > DIBS__PAGE_LAYOUT) {
    dibs__set_message(result, "%s has layout %u, this dibs supports %u: use the newer dibs", side->path, front.layout,
                      DIBS__PAGE_LAYOUT);
    return DIBS_TOO_NEW;
  }
  *known = is_ours(&front, s.st_size);
  if (!*known) {
    uint32_t slot;
    if (other_store_lives(side, &slot)) {
      dibs__set_message(result, "%s was damaged while in use: stop every process that uses the store, then try again",
                        side->path);
      return DIBS_CORRUPT;
    }
    side->fresh = side->fresh && s.st_size == 0;
    if (ftruncate(side->fd, 0) != 0) return refuse_size(side, errno, result);
  }
  /* Holes: after a copy with a tool that makes them. */
  if (!*known || s.st_blocks * 512 < (off_t)sizeof(struct dibs__page)) {
    int e = allocate(side->fd);
    if (e != 0) return refuse_size(side, e, result);
  }
  return map_page(side, result);
}

/* Under the gate: removes the file, if it was made here and is `fresh`; unmaps, unlocks everything, closes. */
static void side_file_close(struct dibs__side *side) {
  /* While we hold the gate nobody else uses it or is about to: a process that waits at the gate finds it gone and makes
   * another. */
  if (side->fd >= 0 && side->gate && side->fresh) unlink(side->path);
  if (side->page) munmap(side->page, sizeof(struct dibs__page));
  side->page = NULL;
  close_fd(side);
}

/* ---- Opening ---- */

/* The store's clock is read and rounded at different instants by different processes. */
enum { CLOCK_SLACK_MS = 10 };
#define GENERATIONS_MASK ((UINT64_C(1) << 40) - 1)
#define GENERATION_END (UINT64_C(1) << 46) /* a session is a positive number of 64 bits */

/* ---- The boot ---- */

struct boot {
  uint64_t boot[5];
  int64_t clock_offset_ns;
  struct dibs__file_id page;
};

/* Without a boot id it refuses.  To take an unknown boot as the same one could treat leases that a power cut lost as
 * valid; to take it as a new one ends every lease whenever the last process closes the store, and shuts out processes
 * that know the boot. */
static dibs__status read_boot(const struct dibs__side *side, struct boot *boot, struct dibs__result *result) {
  char id[40] = "";
  memset(boot, 0, sizeof *boot);
  if (!dibs__boot_id(id)) {
    dibs__set_message(result,
                      "can't read /proc/sys/kernel/random/boot_id, without which leases of an earlier boot can't be "
                      "distinguished from valid ones: mount /proc without subset=pid (systemd: ProcSubset=all); %s",
                      side->path);
    return DIBS_UNSUPPORTED;
  }
  memcpy(boot->boot, id, sizeof boot->boot);
  boot->clock_offset_ns = dibs__boot_clock_offset_ns();
  if (side_file_id(side->fd, "", AT_EMPTY_PATH, &boot->page)) return DIBS_OK;
  dibs__set_message(result, "can't inspect %s: %s", side->path, strerror(errno));
  return DIBS_UNAVAILABLE;
}

static bool same_file(const struct dibs__page_file *known, const struct dibs__file_id *id) {
  return atomic_load(&known->device) == id->device && atomic_load(&known->inode) == id->inode &&
         atomic_load(&known->born_ns) == id->born_ns;
}

static void remember_file(struct dibs__page_file *known, const struct dibs__file_id *id) {
  atomic_store(&known->device, id->device);
  atomic_store(&known->inode, id->inode);
  atomic_store(&known->born_ns, id->born_ns);
}

static bool same_boot(struct dibs__page_head *head, const struct boot *boot) {
  /* INT64_MIN: the offset is unknown, and two unknown offsets may differ. */
  bool same = boot->clock_offset_ns != INT64_MIN && atomic_load(&head->clock_offset_ns) == boot->clock_offset_ns;
  for (int i = 0; i < 5; i++) same = same && atomic_load(&head->boot[i]) == boot->boot[i];
  /* A clock before the latest one shown is another clock, whatever the ids are (a machine that was restored). */
  int64_t now_ms = dibs__tick_now().ns / DIBS__NS_PER_MS;
  return same && atomic_load(&head->latest_ms) <= now_ms + CLOCK_SLACK_MS && same_file(&head->page, &boot->page);
}

static void begin_boot(struct dibs__page_head *head, const struct boot *boot) {
  atomic_store(&head->standing, 0);
  uint64_t generations;
  dibs__random(&generations, sizeof generations);
  atomic_store(&head->generations, generations & GENERATIONS_MASK);
  atomic_store(&head->latest_ms, 0);
  atomic_store(&head->writer, 0);
  remember_file(&head->database, &(struct dibs__file_id){0, 0, 0});
  remember_file(&head->page, &boot->page);
  atomic_store(&head->clock_offset_ns, boot->clock_offset_ns);
  for (int i = 0; i < 5; i++) atomic_store(&head->boot[i], boot->boot[i]);
}

static void fill_page(struct dibs__page_head *head, const struct boot *boot) {
  begin_boot(head, boot);
  atomic_store(&head->layout, DIBS__PAGE_LAYOUT);
  atomic_store(&head->slots, DIBS__SIDE_SLOTS);
  atomic_store(&head->ring, DIBS__SIDE_RING);
  atomic_store(&head->buckets, DIBS__BUCKETS);
  atomic_store(&head->size, sizeof(struct dibs__page));
  /* Race: killed before this line: the next open finds no page, and fills it again. */
  atomic_store(&head->magic, DIBS__PAGE_MAGIC);
}

static dibs__status enter_boot(struct dibs__side *side, bool known, struct dibs__result *result) {
  struct dibs__page_head *head = &side->page->head;
  struct boot boot;
  dibs__status status = read_boot(side, &boot, result);
  if (status != DIBS_OK) return status;
  if (!known) {
    fill_page(head, &boot);
    return DIBS_OK;
  }
  uint32_t slot;
  bool same = same_boot(head, &boot), somebody = other_store_lives(side, &slot);
  if (!same && somebody) {
    dibs__set_message(result,
                      "%s: process %u uses the store under another boot or boot-time clock (a container with its own "
                      "time namespace, or another machine), so that leases can't be compared: stop one side",
                      side->path, atomic_load(&side->page->slots[slot].pid));
    return DIBS_UNSUPPORTED;
  }
  if (!same) begin_boot(head, &boot);
  return DIBS_OK;
}

/* ---- The page's memory ---- */

/* Waits for a begin() under the writer lock to end; one whose process was killed half way never does. */
enum { TORN_TRIES = 1000 };

static bool read_incarnation(struct dibs__page_head *head, dibs__incarnation *incarnation) {
  for (int i = 0; i < TORN_TRIES; i++, dibs__spin_pause()) {
    uint32_t before = atomic_load(&head->standing), words[5];
    if (before == 0) return false;
    for (int k = 0; k < 5; k++) words[k] = atomic_load(&head->incarnation[k]);
    if (before % 2 != 0 || atomic_load(&head->standing) != before) continue;
    memcpy(incarnation->b, words, sizeof incarnation->b);
    return true;
  }
  return false;
}

static void read_memory(struct dibs__side *side, struct dibs__side_memory *memory) {
  memset(memory, 0, sizeof *memory);
  bool valid = read_incarnation(&side->page->head, &memory->incarnation);
  memory->state = valid ? DIBS__SIDE_SAME : DIBS__SIDE_NEW;
  memory->epoch = dibs__side_epoch(side);
}

void dibs__side_begin(struct dibs__side *side, const dibs__incarnation *incarnation, uint32_t epoch) {
  struct dibs__page_head *head = &side->page->head;
  side->fresh = false;
  /* The epoch first: a process that reads the new incarnation then has this epoch too, and a kill here costs only an
   * epoch. */
  uint32_t last = atomic_load(&head->epoch);
  while (last < epoch && !atomic_compare_exchange_weak(&head->epoch, &last, epoch)) {
  }
  uint32_t writing = atomic_load(&head->standing) | 1, words[5];
  atomic_store(&head->standing, writing);
  memcpy(words, incarnation->b, sizeof words);
  for (int i = 0; i < 5; i++) atomic_store(&head->incarnation[i], words[i]);
  for (int i = 0; i < DIBS__BUCKETS; i++) atomic_store(&head->marks[i], 0);
  uint32_t written = writing + 1;
  atomic_store(&head->standing, written == 0 ? 2 : written);
}

void dibs__side_mark(struct dibs__side *side, uint16_t bucket, dibs__fence fence, dibs__when now) {
  struct dibs__page_head *head = &side->page->head;
  if (bucket < DIBS__BUCKETS) {
    uint64_t mark = atomic_load_explicit(&head->marks[bucket], memory_order_relaxed);
    while (mark < fence.v && !atomic_compare_exchange_weak(&head->marks[bucket], &mark, fence.v)) {
    }
  }
  int64_t latest = atomic_load_explicit(&head->latest_ms, memory_order_relaxed);
  while (latest < now.ms && !atomic_compare_exchange_weak(&head->latest_ms, &latest, now.ms)) {
  }
}

bool dibs__side_copy_begin(struct dibs__side *side, uint64_t committed) {
  if (dibs__side_copies(side) != committed || atomic_exchange(&side->copies, true)) return false;
  bool locked = side_lock(side, DIBS__LOCK_COPY);
  if (locked && dibs__side_copies(side) == committed) return true;
  if (locked) side_unlock(side, DIBS__LOCK_COPY);
  atomic_store(&side->copies, false);
  return false;
}

void dibs__side_copy_end(struct dibs__side *side) {
  side_unlock(side, DIBS__LOCK_COPY);
  atomic_store(&side->copies, false);
}

void dibs__side_copied(struct dibs__side *side) {
  atomic_fetch_add(&side->page->head.copies, 1);
}

uint64_t dibs__side_copies(const struct dibs__side *side) {
  return atomic_load(&side->page->head.copies);
}

dibs__fence dibs__side_marked(const struct dibs__side *side, uint16_t bucket) {
  if (bucket >= DIBS__BUCKETS) return DIBS__FENCE_NONE;
  return (dibs__fence){atomic_load(&side->page->head.marks[bucket])};
}

uint32_t dibs__side_epoch(const struct dibs__side *side) {
  return atomic_load(&side->page->head.epoch);
}

dibs__status dibs__side_match_file(struct dibs__side *side, const char *database, struct dibs__side_memory *memory,
                                   struct dibs__result *result) {
  struct dibs__page_head *head = &side->page->head;
  struct dibs__file_id id;
  if (!side_file_id(AT_FDCWD, database, 0, &id)) {
    dibs__set_message(result, "can't inspect %s: %s", database, strerror(errno));
    return DIBS_UNAVAILABLE;
  }
  if (same_file(&head->database, &id)) return DIBS_OK;

  uint32_t slot;
  if (atomic_load(&head->database.inode) != 0 && other_store_lives(side, &slot)) {
    /* Others go on in the file that had this name before: two stores would grant the same names. */
    dibs__set_message(
        result, "%s was replaced by another file while process %u has the former file open: stop that process first",
        database, atomic_load(&side->page->slots[slot].pid));
    return DIBS_UNAVAILABLE;
  }
  atomic_store(&head->standing, 0); /* before the file is remembered, as in begin_boot */
  remember_file(&head->database, &id);
  read_memory(side, memory);
  return DIBS_OK;
}

/* ---- Slots ---- */

static dibs__status take_slot(struct dibs__side *side, struct dibs__result *result) {
  uint32_t slot = 0;
  while (slot < DIBS__SIDE_SLOTS && !side_lock(side, DIBS__LOCK_SLOTS + slot)) {
    if (errno != EAGAIN) {
      dibs__set_message(result, "can't lock %s: %s", side->path, strerror(errno));
      return DIBS_UNAVAILABLE;
    }
    slot++;
  }
  if (slot == DIBS__SIDE_SLOTS) {
    dibs__set_message(result, "%s: the store is already open %d times, which is the limit: close some of them",
                      side->path, DIBS__SIDE_SLOTS);
    return DIBS_UNAVAILABLE;
  }
  struct dibs__page_slot *mine = &side->page->slots[slot];
  side->slot = slot;
  dibs__side_queue_heal(side);

  uint64_t generation = atomic_load(&mine->generation) + 1, first = atomic_load(&side->page->head.generations);
  if (generation <= first || generation >= GENERATION_END) generation = (first & GENERATIONS_MASK) + 1;
  /* Hints for the former owner are not for us; only consumers move `head`. */
  atomic_store(&mine->head, atomic_load(&mine->tail));
  atomic_store(&mine->dropped, 0);
  side->heard = atomic_load(&mine->notifier);
  atomic_store(&mine->pid, dibs__process_id());
  atomic_store(&mine->generation, generation);
  side->session = generation << 16 | (slot + 1);
  side->tag = dibs__side_queue_tag(slot, generation);
  return DIBS_OK;
}

uint64_t dibs__side_session(const struct dibs__side *side) {
  return side->session;
}

bool dibs__side_alive(struct dibs__side *side, uint64_t session) {
  uint32_t slot;
  uint64_t generation;
  if (session == side->session) return true; /* our own locks are invisible */
  if (!dibs__side_split(session, &slot, &generation) || slot == side->slot) return false;
  /* Race: the owner dies and the slot gets a new owner between the two checks.  The new owner raises the generation as
   * soon as it has the byte; in between the answer is "alive", and a later check answers correctly. */
  return dibs__side_slot_locked(side, slot) && atomic_load(&side->page->slots[slot].generation) == generation;
}

uint32_t dibs__side_pid(struct dibs__side *side, uint64_t session) {
  uint32_t slot;
  uint64_t generation;
  if (!dibs__side_split(session, &slot, &generation) || !dibs__side_alive(side, session)) return 0;
  return atomic_load(&side->page->slots[slot].pid);
}

/* ---- Opening and closing ---- */

void dibs__side_gate_leave(struct dibs__side *side) {
  if (!side->gate) return;
  side->fresh = false;
  side_unlock(side, DIBS__LOCK_GATE);
  side->gate = false;
}

void dibs__side_close(struct dibs__side *side) {
  if (!side) return;
  /* In a forked child the descriptor is closed and the page not mapped; the numbers may mean something else by now. */
  if (side->process == dibs__process_generation()) {
    if (side->session != 0) {
      dibs__side_queue_heal(side);
      atomic_store(&side->page->slots[side->slot].pid, 0);
    }
    side_file_close(side);
    side_fork_remove(side);
  }
  free(side->path);
  free(side);
}

dibs__status dibs__side_open(const char *database, uint32_t mode, dibs__tick by, struct dibs__side **side,
                             struct dibs__side_memory *memory, struct dibs__result *result) {
  *side = NULL;
  memset(memory, 0, sizeof *memory);
  struct dibs__side *mine = calloc(1, sizeof *mine);
  if (!mine) return DIBS_NO_MEMORY;
  mine->fd = -1;
  mine->process = dibs__process_generation();

  dibs__status status = DIBS_NO_MEMORY;
  bool known;
  size_t size = strlen(database) + sizeof "-dibs";
  mine->path = malloc(size);
  if (!mine->path) goto out;
  snprintf(mine->path, size, "%s-dibs", database);
  if (!side_fork_add(mine)) goto out;

  status = side_file_open(mine, database, mode, by, result);
  if (status == DIBS_OK) status = side_file_map(mine, &known, result);
  if (status == DIBS_OK) status = enter_boot(mine, known, result);
  if (status == DIBS_OK) status = take_slot(mine, result);
  if (status != DIBS_OK) goto out;
  read_memory(mine, memory);
  *side = mine;
  mine = NULL;
out:
  dibs__side_close(mine);
  return status;
}
