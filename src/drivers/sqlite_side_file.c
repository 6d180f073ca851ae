/* SPDX-License-Identifier: MIT */
/*
 * FILE-dibs as a file: making it, its gate, its size, its mapping, and locks on bytes that it will never have.
 *
 * The locks are OFD locks: they belong to the open file description, so two open stores in one process exclude each
 * other as two processes do, closing some other descriptor of the file does not drop them (the trap of POSIX locks),
 * and the kernel drops them when the process dies, however it dies.
 */
#include "drivers/sqlite_side_page.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

enum { GATE_NAP_MS = 1 };

/* ---- Locks ---- */

static bool ofd(const struct dibs__side *side, int command, short type, int64_t start, int64_t length,
                struct flock *lock) {
  *lock = (struct flock){.l_type = type, .l_whence = SEEK_SET, .l_start = start, .l_len = length};
  int r;
  do r = fcntl(side->fd, command, lock);
  while (r < 0 && errno == EINTR);
  return r == 0;
}

bool dibs__side_lock(struct dibs__side *side, int64_t byte) {
  struct flock lock;
  if (ofd(side, F_OFD_SETLK, F_WRLCK, byte, 1, &lock)) return true;
  if (errno == EACCES) errno = EAGAIN;
  return false;
}

void dibs__side_unlock(struct dibs__side *side, int64_t byte) {
  struct flock lock;
  ofd(side, F_OFD_SETLK, F_UNLCK, byte, 1, &lock);
}

bool dibs__side_somebody(struct dibs__side *side, uint32_t *slot) {
  struct flock lock;
  if (!ofd(side, F_OFD_GETLK, F_WRLCK, DIBS__LOCK_SLOTS, DIBS__SIDE_SLOTS, &lock) || lock.l_type == F_UNLCK)
    return false;
  *slot = (uint32_t)(lock.l_start - DIBS__LOCK_SLOTS);
  return *slot < DIBS__SIDE_SLOTS;
}

bool dibs__side_slot_locked(struct dibs__side *side, uint32_t slot) {
  struct flock lock;
  /* When the kernel can't tell (it always can): alive.  A wait too long is better than a lock taken from the living. */
  return !ofd(side, F_OFD_GETLK, F_WRLCK, DIBS__LOCK_SLOTS + slot, 1, &lock) || lock.l_type != F_UNLCK;
}

/* ---- Which file ---- */

bool dibs__side_file_id(int folder, const char *path, int flags, struct dibs__file_id *id) {
  struct statx s;
  if (statx(folder, path, flags, STATX_INO | STATX_BTIME, &s) != 0) return false;
  id->device = makedev(s.stx_dev_major, s.stx_dev_minor);
  id->inode = s.stx_ino;
  id->born_ns = 0;
  if (s.stx_mask & STATX_BTIME) id->born_ns = (uint64_t)s.stx_btime.tv_sec * UINT64_C(1000000000) + s.stx_btime.tv_nsec;
  return true;
}

/* ---- Opening ---- */

static dibs__status refuse_open(const struct dibs__side *side, struct dibs__said *said) {
  int e = errno;
  switch (e) {
  case ELOOP:
    dibs__say(said, "%s is a symbolic link, which dibs does not follow here: remove it", side->path);
    return DIBS_DENIED;
  case EACCES:
  case EPERM:
    dibs__say(said, "%s can't be opened for writing: %s; whoever made it must let you write (see ?mode=)", side->path,
              strerror(e));
    return DIBS_DENIED;
  case EROFS:
    dibs__say(said, "%s can't be made: the file system is mounted read-only", side->path);
    return DIBS_DENIED;
  case EISDIR:
    dibs__say(said, "%s is a folder, and should be a file made by dibs: move it away", side->path);
    return DIBS_CORRUPT;
  case ENOENT:
  case ENOTDIR:
    dibs__say(said, "%s can't be made: its folder does not exist", side->path);
    return DIBS_UNAVAILABLE;
  default:
    dibs__say(said, "%s can't be opened: %s", side->path, strerror(e));
    return e == ENOMEM ? DIBS_NO_MEMORY : DIBS_UNAVAILABLE;
  }
}

/* As SQLite does for its own side files: where the database is there already, its owner and permissions stand, so that
 * root looking once does not lock out the file's users. */
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
    if (side->fd < 0 && errno == EEXIST) continue; /* somebody else made it in between */
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

static dibs__status enter_gate(struct dibs__side *side, dibs__tick by, struct dibs__said *said) {
  while (!dibs__side_lock(side, DIBS__LOCK_GATE)) {
    if (errno != EAGAIN) {
      dibs__say(said, "%s can't be locked: %s; the store needs a file system with locks", side->path, strerror(errno));
      return errno == ENOLCK || errno == EINVAL || errno == EOPNOTSUPP ? DIBS_UNSUPPORTED : DIBS_UNAVAILABLE;
    }
    if (!dibs__tick_before(dibs__tick_now(), by)) {
      dibs__say(said, "%s: another process is opening the store and has not come to an end; is it stopped?",
                side->path);
      return DIBS_UNAVAILABLE;
    }
    dibs__nap_ms(GATE_NAP_MS);
  }
  side->gate = true;
  return DIBS_OK;
}

/* Does the path still name what we have opened? */
static bool still_there(const struct dibs__side *side) {
  struct stat ours, named;
  return fstat(side->fd, &ours) == 0 && lstat(side->path, &named) == 0 && ours.st_dev == named.st_dev &&
         ours.st_ino == named.st_ino;
}

/* Nobody else forks meanwhile, and a child that shares our description does not come to be. */
static void close_fd(struct dibs__side *side) {
  dibs__side_fork_hold();
  if (side->fd >= 0) close(side->fd);
  side->fd = -1;
  side->gate = false;
  dibs__side_fork_let_go();
}

dibs__status dibs__side_file_open(struct dibs__side *side, const char *database, uint32_t mode, dibs__tick by,
                                  struct dibs__said *said) {
  for (;;) {
    dibs__side_fork_hold();
    bool fine = open_or_make(side, database, mode);
    dibs__side_fork_let_go();
    if (!fine) return refuse_open(side, said);

    struct stat s;
    if (fstat(side->fd, &s) != 0 || !S_ISREG(s.st_mode)) {
      dibs__say(said, "%s is not a plain file: move it away", side->path);
      close_fd(side);
      return DIBS_CORRUPT;
    }
    dibs__status status = enter_gate(side, by, said);
    if (status != DIBS_OK) {
      close_fd(side); /* left where it is, even if we made it: who has the gate uses it */
      return status;
    }
    /* Race: whoever had the gate before us failed and took the file away that it had made; we would go on with a file
     * that nobody else can find.  Closed by looking again now: with the gate held nobody takes it away. */
    if (still_there(side)) return DIBS_OK;
    close_fd(side);
    if (!dibs__tick_before(dibs__tick_now(), by)) {
      dibs__say(said, "%s is made and taken away again and again: is another process failing to open the store?",
                side->path);
      return DIBS_UNAVAILABLE;
    }
  }
}

/* ---- Size and mapping ---- */

static dibs__status refuse_size(const struct dibs__side *side, int e, struct dibs__said *said) {
  dibs__say(said, "%s needs %zu KiB: %s; make room and try again", side->path, sizeof(struct dibs__page) / 1024,
            strerror(e));
  return DIBS_UNAVAILABLE;
}

/* Room on disk for every byte before it is mapped: a hole that can't be filled is a SIGBUS in the user's process. */
static int allocate(int fd) {
  int e;
  do e = posix_fallocate(fd, 0, (off_t)sizeof(struct dibs__page));
  while (e == EINTR);
  return e;
}

static dibs__status map_page(struct dibs__side *side, struct dibs__said *said) {
  dibs__side_fork_hold();
  void *at = mmap(NULL, sizeof(struct dibs__page), PROT_READ | PROT_WRITE, MAP_SHARED, side->fd, 0);
  int e = errno;
  if (at != MAP_FAILED) madvise(at, sizeof(struct dibs__page), MADV_DONTFORK);
  dibs__side_fork_let_go();
  if (at == MAP_FAILED) {
    dibs__say(said, "%s can't be mapped: %s", side->path, strerror(e));
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

dibs__status dibs__side_file_map(struct dibs__side *side, bool *known, struct dibs__said *said) {
  struct stat s;
  struct front front = {0};
  if (fstat(side->fd, &s) != 0 || pread(side->fd, &front, sizeof front, 0) < 0) {
    dibs__say(said, "%s can't be read: %s", side->path, strerror(errno));
    return DIBS_UNAVAILABLE;
  }
  if (front.magic == DIBS__PAGE_MAGIC && front.layout > DIBS__PAGE_LAYOUT) {
    dibs__say(said, "%s has layout %u and this dibs knows %u: use the newer dibs", side->path, front.layout,
              DIBS__PAGE_LAYOUT);
    return DIBS_TOO_NEW;
  }
  *known = is_ours(&front, s.st_size);
  if (!*known) {
    uint32_t slot;
    if (dibs__side_somebody(side, &slot)) {
      dibs__say(said, "%s was damaged while in use: stop every process that uses the store, then try again",
                side->path);
      return DIBS_CORRUPT;
    }
    side->fresh = side->fresh && s.st_size == 0;
    if (ftruncate(side->fd, 0) != 0) return refuse_size(side, errno, said);
  }
  /* Holes: after copying with a tool that makes them. */
  if (!*known || s.st_blocks * 512 < (off_t)sizeof(struct dibs__page)) {
    int e = allocate(side->fd);
    if (e != 0) return refuse_size(side, e, said);
  }
  return map_page(side, said);
}

void dibs__side_file_close(struct dibs__side *side) {
  /* With the gate held nobody else uses it or is about to: who waits at the gate will find it gone and make another. */
  if (side->fd >= 0 && side->gate && side->fresh) unlink(side->path);
  if (side->page) munmap(side->page, sizeof(struct dibs__page));
  side->page = NULL;
  close_fd(side);
}
