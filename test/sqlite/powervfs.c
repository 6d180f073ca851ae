/* SPDX-License-Identifier: MIT */
/*
 * One lock guards everything: a write reaches the file and the list of unsynced writes in one step, and the failure is
 * one instant for all files.  After the failure threads may still write: the picture of the disk is already taken.
 * Files are known by inode, because a new database gets its name by a rename.
 */
#include "powervfs.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { DISKS = 64, PATH = 300, SECTOR = 512 };

struct bytes {
  unsigned char *p;
  size_t size;
};
/* An unsynced change: a write, or a truncation to `at` (without data). */
struct change {
  struct change *next;
  size_t at, size;
  unsigned char data[];
};
struct disk {
  ino_t inode;        /* 0: unused */
  bool named;         /* its name is on the disk */
  const char *suffix; /* the end of its name when the power failed; NULL: it had none */
  struct bytes synced, picture;
  struct change *first, **last;
};
struct file {
  sqlite3_file base;
  struct disk *disk;  /* NULL: not part of the database's durable files */
  sqlite3_file *real; /* follows this struct in memory */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static sqlite3_vfs *real_vfs, vfs_power;
static struct disk disks[DISKS];
static char database[PATH];
static struct bytes side, side_before; /* the side file at the failure, and when the store was opened */
static uint64_t chances = 1;
static unsigned calls_left, careless, boots;
static bool failed, lies;

/* ---- Helpers ---- */

static uint64_t draw(uint64_t below) {
  chances ^= chances << 13;
  chances ^= chances >> 7;
  chances ^= chances << 17;
  return chances % below;
}

static void *must(void *p) {
  if (!p) abort();
  return p;
}

static void resize(struct bytes *b, size_t size) {
  if (size > b->size) {
    b->p = must(realloc(b->p, size));
    memset(b->p + b->size, 0, size - b->size);
  }
  b->size = size;
}

static void copy_bytes(struct bytes *to, const struct bytes *from) {
  resize(to, from->size);
  if (from->size) memcpy(to->p, from->p, from->size);
}

static bool read_file(const char *path, struct bytes *to) {
  struct stat st;
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  bool fine = fd >= 0 && fstat(fd, &st) == 0;
  if (fine) {
    resize(to, (size_t)st.st_size);
    fine = read(fd, to->p, to->size) == (ssize_t)to->size;
  }
  if (fd >= 0) close(fd);
  return fine;
}

static void write_file(const char *path, const struct bytes *from) {
  int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  if (fd < 0 || (from->size && write(fd, from->p, from->size) != (ssize_t)from->size)) abort();
  close(fd);
}

/* The files whose content counts. */
static const char *const parts[] = {"", "-wal", "-journal", "-new", "-new-wal", "-new-journal"};

static void part(char path[PATH], const char *suffix) {
  snprintf(path, PATH, "%.280s%s", database, suffix);
}

/* ---- Disks ---- */

static struct disk *disk_of(ino_t inode) {
  for (int i = 0; i < DISKS; i++)
    if (disks[i].inode == inode) return &disks[i];
  return NULL;
}

static struct disk *disk_add(const char *path, ino_t inode, bool named) {
  struct disk *d = disk_of(0);
  if (!d) abort();
  *d = (struct disk){.inode = inode, .named = named};
  d->last = &d->first;
  (void)read_file(path, &d->synced);
  return d;
}

static void forget_changes(struct disk *d) {
  for (struct change *c = d->first, *next; c; c = next) {
    next = c->next;
    free(c);
  }
  d->first = NULL;
  d->last = &d->first;
}

static void disk_remove(struct disk *d) {
  forget_changes(d);
  free(d->synced.p);
  free(d->picture.p);
  *d = (struct disk){.inode = 0};
}

static void add_change(struct disk *d, const void *data, size_t size, size_t at) {
  struct change *c = must(malloc(sizeof *c + size));
  *c = (struct change){.at = at, .size = size};
  if (size) memcpy(c->data, data, size);
  *d->last = c;
  d->last = &c->next;
}

static void apply(struct bytes *to, const struct change *c, size_t from, size_t size) {
  if (c->size == 0) {
    resize(to, c->at);
    return;
  }
  if (c->at + from + size > to->size) resize(to, c->at + from + size);
  memcpy(to->p + c->at + from, c->data + from, size);
}

static void sync_disk(struct disk *d) {
  if (lies) return;
  for (struct change *c = d->first; c; c = c->next) apply(&d->synced, c, 0, c->size);
  forget_changes(d);
}

/* ---- The failure ---- */

static void apply_torn(struct bytes *to, const struct change *c) {
  for (size_t from = 0; from < c->size; from += SECTOR)
    if (draw(2)) apply(to, c, from, c->size - from < SECTOR ? c->size - from : SECTOR);
}

/* What the disk has of the unsynced changes of a file. */
static void take_picture(struct disk *d) {
  enum { NOTHING, EVERYTHING, BEGINNING, ANY, SECTORS, KINDS };
  uint64_t kind = draw(KINDS), count = 0, nth = 0;
  for (struct change *c = d->first; c; c = c->next) count++;
  uint64_t most = count ? draw(count + 1) : 0;
  copy_bytes(&d->picture, &d->synced);
  for (struct change *c = d->first; c; c = c->next, nth++) {
    bool whole = kind == EVERYTHING || (kind == BEGINNING && nth < most) || (kind == ANY && draw(2));
    bool torn = (kind == BEGINNING && nth == most) || kind == SECTORS;
    if (whole || (torn && c->size == 0 && draw(2)))
      apply(&d->picture, c, 0, c->size);
    else if (torn)
      apply_torn(&d->picture, c);
  }
}

static void fail_now(void) {
  char path[PATH];
  struct stat st;
  if (failed) return;
  failed = true;
  for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
    part(path, parts[i]);
    struct disk *d = stat(path, &st) == 0 ? disk_of(st.st_ino) : NULL;
    if (!d) continue;
    take_picture(d);
    d->suffix = parts[i];
  }
  part(path, "-dibs");
  if (!read_file(path, &side)) resize(&side, 0);
}

/* A call that changes the disk. */
static void step(void) {
  if (calls_left && --calls_left == 0) fail_now();
}

void power_arm(unsigned nth) {
  pthread_mutex_lock(&lock);
  calls_left = nth;
  pthread_mutex_unlock(&lock);
}

void power_fail(void) {
  pthread_mutex_lock(&lock);
  fail_now();
  pthread_mutex_unlock(&lock);
}

bool power_hold(void) {
  pthread_mutex_lock(&lock);
  return !failed;
}

void power_let_go(void) {
  pthread_mutex_unlock(&lock);
}

void power_seed(uint64_t seed) {
  chances = seed * UINT64_C(0x9e3779b97f4a7c15) | 1;
}

void power_lie(bool now) {
  lies = now;
}

size_t power_unsynced(void) {
  size_t size = 0;
  pthread_mutex_lock(&lock);
  for (int i = 0; i < DISKS; i++)
    for (const struct change *c = disks[i].first; c; c = c->next) size += c->size;
  pthread_mutex_unlock(&lock);
  return size;
}

unsigned power_careless(void) {
  return careless;
}

/* A name that was not on the disk for certain: the file has it, has its earlier name, or is missing. */
static const char *name_on_disk(const struct disk *d) {
  if (!d->suffix || d->named) return d->suffix;
  uint64_t which = draw(3);
  return which == 0 ? d->suffix : which == 1 && !*d->suffix ? "-new" : NULL;
}

/* In place if the file still exists: a reboot does not change inodes. */
static void restore_disk(struct disk *d) {
  char path[PATH], now[PATH];
  struct stat st;
  const char *name = name_on_disk(d);
  bool there = false;
  for (size_t i = 0; i < sizeof parts / sizeof *parts && !there; i++) {
    part(now, parts[i]);
    there = stat(now, &st) == 0 && st.st_ino == d->inode;
  }
  if (!name) {
    if (there) unlink(now);
    disk_remove(d);
    return;
  }
  part(path, name);
  if (there && strcmp(now, path) != 0 && rename(now, path) != 0) abort();
  forget_changes(d);
  copy_bytes(&d->synced, &d->picture);
  write_file(path, &d->picture);
  if (stat(path, &st) == 0) d->inode = st.st_ino;
  d->named = true;
}

/* Nobody syncs the side file: it is as at the failure, as at the start, a mixture by page, or missing. */
static void restore_side(void) {
  enum { PAGE = 4096 };
  char path[PATH];
  part(path, "-dibs");
  uint64_t which = draw(4);
  for (size_t at = 0; at + PAGE <= side.size && at + PAGE <= side_before.size; at += PAGE)
    if (which == 1 || (which == 2 && draw(2))) memcpy(side.p + at, side_before.p + at, PAGE);
  if (which == 3 || side.size == 0)
    unlink(path);
  else
    write_file(path, &side);
}

void power_restore(void) {
  char path[PATH];
  pthread_mutex_lock(&lock);
  fail_now();
  for (int i = 0; i < DISKS; i++)
    if (disks[i].inode) restore_disk(&disks[i]);
  restore_side();
  part(path, "-shm");
  unlink(path);
  part(path, "-new-shm");
  unlink(path);
  failed = false;
  calls_left = 0;
  for (int i = 0; i < DISKS; i++) disks[i].suffix = NULL;
  boots++;
  pthread_mutex_unlock(&lock);
}

/* ---- A file ---- */

static sqlite3_file *real_of(sqlite3_file *file) {
  return ((struct file *)file)->real;
}
static struct disk *disk_under(sqlite3_file *file) {
  return ((struct file *)file)->disk;
}

static int file_close(sqlite3_file *file) {
  sqlite3_file *real = real_of(file);
  return real->pMethods ? real->pMethods->xClose(real) : SQLITE_OK;
}
static int file_read(sqlite3_file *file, void *to, int size, sqlite3_int64 from) {
  return real_of(file)->pMethods->xRead(real_of(file), to, size, from);
}
static int file_write(sqlite3_file *file, const void *data, int size, sqlite3_int64 where) {
  pthread_mutex_lock(&lock);
  if (disk_under(file)) step();
  int code = real_of(file)->pMethods->xWrite(real_of(file), data, size, where);
  if (code == SQLITE_OK && disk_under(file)) add_change(disk_under(file), data, (size_t)size, (size_t)where);
  pthread_mutex_unlock(&lock);
  return code;
}
static int file_truncate(sqlite3_file *file, sqlite3_int64 size) {
  pthread_mutex_lock(&lock);
  if (disk_under(file)) step();
  int code = real_of(file)->pMethods->xTruncate(real_of(file), size);
  if (code == SQLITE_OK && disk_under(file)) add_change(disk_under(file), NULL, 0, (size_t)size);
  pthread_mutex_unlock(&lock);
  return code;
}
/* SQLite's layer syncs the folder with the first sync of a log or journal that it has made. */
static int file_sync(sqlite3_file *file, int flags) {
  (void)flags;
  struct disk *d = disk_under(file);
  pthread_mutex_lock(&lock);
  if (d) {
    step();
    sync_disk(d);
    if (!lies) d->named = true;
  }
  pthread_mutex_unlock(&lock);
  return SQLITE_OK;
}
static int file_size(sqlite3_file *file, sqlite3_int64 *size) {
  return real_of(file)->pMethods->xFileSize(real_of(file), size);
}
static int file_lock(sqlite3_file *file, int level) {
  return real_of(file)->pMethods->xLock(real_of(file), level);
}
static int file_unlock(sqlite3_file *file, int level) {
  return real_of(file)->pMethods->xUnlock(real_of(file), level);
}
static int file_check_lock(sqlite3_file *file, int *held) {
  return real_of(file)->pMethods->xCheckReservedLock(real_of(file), held);
}
static int file_control(sqlite3_file *file, int what, void *arg) {
  /* Growing a file ahead of its writes would not be seen here. */
  if (what == SQLITE_FCNTL_SIZE_HINT || what == SQLITE_FCNTL_CHUNK_SIZE) return SQLITE_OK;
  return real_of(file)->pMethods->xFileControl(real_of(file), what, arg);
}
static int file_sector(sqlite3_file *file) {
  return real_of(file)->pMethods->xSectorSize(real_of(file));
}
static int file_device(sqlite3_file *file) {
  return real_of(file)->pMethods->xDeviceCharacteristics(real_of(file));
}
static int file_shm_map(sqlite3_file *file, int page, int size, int extend, void volatile **to) {
  return real_of(file)->pMethods->xShmMap(real_of(file), page, size, extend, to);
}
static int file_shm_lock(sqlite3_file *file, int from, int count, int flags) {
  return real_of(file)->pMethods->xShmLock(real_of(file), from, count, flags);
}
static void file_shm_barrier(sqlite3_file *file) {
  real_of(file)->pMethods->xShmBarrier(real_of(file));
}
static int file_shm_unmap(sqlite3_file *file, int remove) {
  return real_of(file)->pMethods->xShmUnmap(real_of(file), remove);
}

static const sqlite3_io_methods methods = {
    .iVersion = 2, /* without memory mapping, whose writes would not be seen here */
    .xClose = file_close,
    .xRead = file_read,
    .xWrite = file_write,
    .xTruncate = file_truncate,
    .xSync = file_sync,
    .xFileSize = file_size,
    .xLock = file_lock,
    .xUnlock = file_unlock,
    .xCheckReservedLock = file_check_lock,
    .xFileControl = file_control,
    .xSectorSize = file_sector,
    .xDeviceCharacteristics = file_device,
    .xShmMap = file_shm_map,
    .xShmLock = file_shm_lock,
    .xShmBarrier = file_shm_barrier,
    .xShmUnmap = file_shm_unmap,
};

/* ---- The layer ---- */

static struct disk *disk_opened(const char *name, bool was_there) {
  struct stat st;
  char path[PATH];
  if (stat(name, &st) != 0) return NULL;
  struct disk *d = disk_of(st.st_ino);
  if (d) return d;
  part(path, "-dibs");
  if (strcmp(name, database) == 0 && !read_file(path, &side_before)) resize(&side_before, 0);
  return disk_add(name, st.st_ino, was_there && strstr(name, "-new") == NULL);
}

static int vfs_open(sqlite3_vfs *vfs, const char *name, sqlite3_file *base, int flags, int *out) {
  struct file *file = (struct file *)base;
  struct stat st;
  (void)vfs;
  file->base.pMethods = NULL;
  file->disk = NULL;
  file->real = (sqlite3_file *)(file + 1);
  file->real->pMethods = NULL;
  pthread_mutex_lock(&lock);
  bool kept = name && (flags & (SQLITE_OPEN_MAIN_DB | SQLITE_OPEN_WAL | SQLITE_OPEN_MAIN_JOURNAL));
  bool was_there = kept && stat(name, &st) == 0;
  if (kept && !was_there) step();
  int code = real_vfs->xOpen(real_vfs, name, file->real, flags, out);
  if (code == SQLITE_OK && kept) file->disk = disk_opened(name, was_there);
  if (file->real->pMethods) file->base.pMethods = &methods;
  pthread_mutex_unlock(&lock);
  return code;
}

static int vfs_delete(sqlite3_vfs *vfs, const char *name, int sync) {
  struct stat st;
  (void)vfs;
  pthread_mutex_lock(&lock);
  struct disk *d = stat(name, &st) == 0 ? disk_of(st.st_ino) : NULL;
  if (d) step();
  if (d && !failed) disk_remove(d);
  if (d && failed) d->inode = (ino_t)-1 - (ino_t)(d - disks); /* another file may get its inode */
  int code = real_vfs->xDelete(real_vfs, name, sync);
  pthread_mutex_unlock(&lock);
  return code;
}

static int vfs_access(sqlite3_vfs *vfs, const char *name, int flags, int *out) {
  (void)vfs;
  return real_vfs->xAccess(real_vfs, name, flags, out);
}

static int vfs_path(sqlite3_vfs *vfs, const char *name, int size, char *out) {
  (void)vfs;
  return real_vfs->xFullPathname(real_vfs, name, size, out);
}

void power_install(const char *path) {
  snprintf(database, sizeof database, "%s", path);
  for (int i = 0; i < DISKS; i++)
    if (disks[i].inode) disk_remove(&disks[i]);
  failed = lies = false;
  calls_left = careless = 0;
  real_vfs = sqlite3_vfs_find(NULL);
  vfs_power = *real_vfs; /* clock and randomness: those of SQLite's layer */
  vfs_power.zName = "dibs-power";
  vfs_power.pNext = NULL;
  vfs_power.szOsFile = (int)sizeof(struct file) + real_vfs->szOsFile;
  vfs_power.xOpen = vfs_open;
  vfs_power.xDelete = vfs_delete;
  vfs_power.xAccess = vfs_access;
  vfs_power.xFullPathname = vfs_path;
  sqlite3_vfs_register(&vfs_power, 1);
}

void power_remove(void) {
  sqlite3_vfs_unregister(&vfs_power);
  sqlite3_vfs_register(real_vfs, 1);
  for (int i = 0; i < DISKS; i++)
    if (disks[i].inode) disk_remove(&disks[i]);
  free(side.p);
  free(side_before.p);
  side = side_before = (struct bytes){NULL, 0};
}

/* ---- What dibs does itself (linked with --wrap) ---- */

int __wrap_fsync(int fd);
int __wrap_renameat2(int from_folder, const char *from, int to_folder, const char *to, unsigned flags);
int __real_renameat2(int from_folder, const char *from, int to_folder, const char *to, unsigned flags);
bool __wrap_dibs__boot_id(char id[37]);

int __wrap_fsync(int fd) {
  struct stat st;
  pthread_mutex_lock(&lock);
  if (fstat(fd, &st) == 0 && !lies) {
    step();
    struct disk *d = disk_of(st.st_ino);
    if (d) sync_disk(d);
    for (int i = 0; i < DISKS; i++)
      if (S_ISDIR(st.st_mode) && disks[i].inode) disks[i].named = true;
  }
  pthread_mutex_unlock(&lock);
  return 0;
}

int __wrap_renameat2(int from_folder, const char *from, int to_folder, const char *to, unsigned flags) {
  struct stat st;
  pthread_mutex_lock(&lock);
  struct disk *d = stat(from, &st) == 0 ? disk_of(st.st_ino) : NULL;
  step();
  if (d && d->first) careless++;
  int done = __real_renameat2(from_folder, from, to_folder, to, flags);
  pthread_mutex_unlock(&lock);
  return done;
}

bool __wrap_dibs__boot_id(char id[37]) {
  snprintf(id, 37, "00000000-0000-4000-8000-%012u", boots);
  return true;
}
