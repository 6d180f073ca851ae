/* SPDX-License-Identifier: MIT */
/*
 * Locks of the database fail as if another process held them (BUSY), other calls fail as a disk does; unlocking and
 * closing never fail, as with SQLite's own layer.
 */
#include "faultvfs.h"

#include <sqlite3.h>
#include <stdatomic.h>
#include <string.h>

struct file {
  sqlite3_file base;
  sqlite3_file *real; /* follows this struct in memory */
};

static sqlite3_vfs *real_vfs;
static atomic_uint calls, at, failures;
static atomic_bool lasting;

void faultvfs_arm(unsigned nth, bool for_ever) {
  atomic_store(&at, 0);
  atomic_store(&calls, 0);
  atomic_store(&failures, 0);
  atomic_store(&lasting, for_ever);
  atomic_store(&at, nth);
}

unsigned faultvfs_failed(void) {
  return atomic_load(&failures);
}

static bool fails(void) {
  unsigned nth = atomic_load(&at);
  if (nth == 0) return false;
  unsigned call = atomic_fetch_add(&calls, 1) + 1;
  bool now = call == nth || (call > nth && atomic_load(&lasting));
  if (now) atomic_fetch_add(&failures, 1);
  return now;
}

static sqlite3_file *real_of(sqlite3_file *file) {
  return ((struct file *)file)->real;
}

/* ---- A file ---- */

static int file_close(sqlite3_file *file) {
  sqlite3_file *real = real_of(file);
  return real->pMethods ? real->pMethods->xClose(real) : SQLITE_OK;
}
static int file_read(sqlite3_file *file, void *to, int size, sqlite3_int64 from) {
  if (fails()) return SQLITE_IOERR_READ;
  return real_of(file)->pMethods->xRead(real_of(file), to, size, from);
}
static int file_write(sqlite3_file *file, const void *data, int size, sqlite3_int64 where) {
  if (fails()) return SQLITE_IOERR_WRITE;
  return real_of(file)->pMethods->xWrite(real_of(file), data, size, where);
}
static int file_truncate(sqlite3_file *file, sqlite3_int64 size) {
  if (fails()) return SQLITE_IOERR_TRUNCATE;
  return real_of(file)->pMethods->xTruncate(real_of(file), size);
}
static int file_sync(sqlite3_file *file, int flags) {
  if (fails()) return SQLITE_IOERR_FSYNC;
  return real_of(file)->pMethods->xSync(real_of(file), flags);
}
static int file_size(sqlite3_file *file, sqlite3_int64 *size) {
  if (fails()) return SQLITE_IOERR_FSTAT;
  return real_of(file)->pMethods->xFileSize(real_of(file), size);
}
static int file_lock(sqlite3_file *file, int level) {
  if (fails()) return SQLITE_BUSY;
  return real_of(file)->pMethods->xLock(real_of(file), level);
}
static int file_unlock(sqlite3_file *file, int level) {
  return real_of(file)->pMethods->xUnlock(real_of(file), level);
}
static int file_check_lock(sqlite3_file *file, int *held) {
  if (fails()) return SQLITE_IOERR_CHECKRESERVEDLOCK;
  return real_of(file)->pMethods->xCheckReservedLock(real_of(file), held);
}
static int file_control(sqlite3_file *file, int what, void *arg) {
  return real_of(file)->pMethods->xFileControl(real_of(file), what, arg);
}
static int file_sector(sqlite3_file *file) {
  return real_of(file)->pMethods->xSectorSize(real_of(file));
}
static int file_device(sqlite3_file *file) {
  return real_of(file)->pMethods->xDeviceCharacteristics(real_of(file));
}
static int file_shm_map(sqlite3_file *file, int page, int size, int extend, void volatile **to) {
  if (fails()) {
    *to = NULL;
    return SQLITE_IOERR_SHMMAP;
  }
  return real_of(file)->pMethods->xShmMap(real_of(file), page, size, extend, to);
}
static int file_shm_lock(sqlite3_file *file, int from, int count, int flags) {
  if (!(flags & SQLITE_SHM_UNLOCK) && fails())
    return SQLITE_IOERR_SHMLOCK; /* SQLite would retry BUSY for ten
                                  * seconds */
  return real_of(file)->pMethods->xShmLock(real_of(file), from, count, flags);
}
static void file_shm_barrier(sqlite3_file *file) {
  real_of(file)->pMethods->xShmBarrier(real_of(file));
}
static int file_shm_unmap(sqlite3_file *file, int remove) {
  return real_of(file)->pMethods->xShmUnmap(real_of(file), remove);
}

static const sqlite3_io_methods methods = {
    .iVersion = 2,
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

static int vfs_open(sqlite3_vfs *vfs, const char *name, sqlite3_file *base, int flags, int *out) {
  struct file *file = (struct file *)base;
  (void)vfs;
  file->base.pMethods = NULL;
  file->real = (sqlite3_file *)(file + 1);
  file->real->pMethods = NULL;
  if (fails()) return SQLITE_CANTOPEN;
  int code = real_vfs->xOpen(real_vfs, name, file->real, flags, out);
  if (file->real->pMethods) file->base.pMethods = &methods;
  return code;
}

static int vfs_delete(sqlite3_vfs *vfs, const char *name, int sync) {
  (void)vfs;
  return fails() ? SQLITE_IOERR_DELETE : real_vfs->xDelete(real_vfs, name, sync);
}

static int vfs_access(sqlite3_vfs *vfs, const char *name, int flags, int *out) {
  (void)vfs;
  return fails() ? SQLITE_IOERR_ACCESS : real_vfs->xAccess(real_vfs, name, flags, out);
}

static int vfs_path(sqlite3_vfs *vfs, const char *name, int size, char *out) {
  (void)vfs;
  return real_vfs->xFullPathname(real_vfs, name, size, out);
}

static sqlite3_vfs vfs_fault;

void faultvfs_install(void) {
  real_vfs = sqlite3_vfs_find(NULL);
  vfs_fault = *real_vfs; /* clock and randomness: those of SQLite's layer */
  vfs_fault.zName = "dibs-fault";
  vfs_fault.pNext = NULL;
  vfs_fault.szOsFile = (int)sizeof(struct file) + real_vfs->szOsFile;
  vfs_fault.xOpen = vfs_open;
  vfs_fault.xDelete = vfs_delete;
  vfs_fault.xAccess = vfs_access;
  vfs_fault.xFullPathname = vfs_path;
  faultvfs_arm(0, false);
  sqlite3_vfs_register(&vfs_fault, 1);
}

void faultvfs_remove(void) {
  sqlite3_vfs_unregister(&vfs_fault);
  sqlite3_vfs_register(real_vfs, 1);
}
