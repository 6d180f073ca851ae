/* SPDX-License-Identifier: MIT */
/*
 * Is it a file of ours, and how one comes to be.
 *
 * The look is through SQLite's own file layer: closing a descriptor of one's own on the database would drop the locks
 * that SQLite holds on it elsewhere in this process.  It reads the header alone and leaves everything as it was (R20).
 *
 * A new file is made under another name and then put in place whole, so there is never half a store at the path.  An
 * empty one that somebody put there keeps its owner and mode: it is filled in place, by one transaction.
 */
#include "drivers/sqlite_parts.h"
#include "sql/schema.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

typedef enum dibs__sql_step step;
typedef struct dibs__lite_link link_t;

enum { HEADER = 100, SCHEMA_TEXT = 1024, PATH_ROOM = 4200 };

/* DIBS__LITE_PAGE, in a text.  Every transaction writes at least one page and its checksum, so a page of SQLite's usual
 * 4096 bytes costs a lone acquire 10% more; one of 1024 costs a batch of 64 10% more, since it touches more of them. */
#define PAGE_SIZE "PRAGMA page_size=2048"

static const struct dibs__sql_words words = DIBS__LITE_WORDS;

bool dibs__lite_stat(const char *path, uint64_t *device, uint64_t *inode) {
  struct stat st;
  if (stat(path, &st) != 0) return false;
  *device = (uint64_t)st.st_dev;
  *inode = (uint64_t)st.st_ino;
  return true;
}

/* ---- Looking ---- */

static uint32_t big_endian(const unsigned char *p) {
  return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
}

static dibs__status judge(const char *path, const unsigned char *header, enum dibs__lite_kind *kind,
                          struct dibs__said *said) {
  if (memcmp(header, "SQLite format 3", 16) != 0) {
    dibs__say(said, "%s is not a database of dibs; it was left as it is: name another file", path);
    return DIBS_CORRUPT;
  }
  if (big_endian(header + 68) != DIBS__LITE_APPLICATION) {
    dibs__say(said, "%s is another program's SQLite database; it was left as it is: name another file", path);
    return DIBS_CORRUPT;
  }
  if (big_endian(header + 60) > DIBS__SQL_SCHEMA) {
    dibs__say(said, "%s has schema %u, this dibs knows up to %d: use a newer dibs", path,
              (unsigned)big_endian(header + 60), DIBS__SQL_SCHEMA);
    return DIBS_TOO_NEW;
  }
  *kind = header[18] == 2 && header[19] == 2 ? DIBS__LITE_OURS : DIBS__LITE_PLAIN;
  return DIBS_OK;
}

/* Reads the header.  *size: of the file. */
static int read_header(const char *path, unsigned char *header, sqlite3_int64 *size) {
  sqlite3_vfs *vfs = sqlite3_vfs_find(NULL);
  if (!vfs) return SQLITE_ERROR;
  sqlite3_file *file = calloc(1, (size_t)vfs->szOsFile);
  const char *name = sqlite3_create_filename(path, "", "", 0, NULL);
  int code = file && name ? SQLITE_OK : SQLITE_NOMEM;
  int flags = 0;
  *size = 0;
  if (code == SQLITE_OK) code = vfs->xOpen(vfs, name, file, SQLITE_OPEN_MAIN_DB | SQLITE_OPEN_READONLY, &flags);
  if (code == SQLITE_OK) code = file->pMethods->xFileSize(file, size);
  if (code == SQLITE_OK && *size >= HEADER) code = file->pMethods->xRead(file, header, HEADER, 0);
  if (file && file->pMethods) file->pMethods->xClose(file);
  if (name) sqlite3_free_filename(name);
  free(file);
  return code;
}

static dibs__status look_at_path(const char *path, bool *there, struct dibs__said *said) {
  struct stat st;
  *there = stat(path, &st) == 0;
  if (!*there) {
    if (errno == ENOENT) return DIBS_OK;
    dibs__say(said, "can't look at %s: %s", path, strerror(errno));
    return errno == EACCES ? DIBS_DENIED : DIBS_UNAVAILABLE;
  }
  if (!S_ISREG(st.st_mode)) {
    dibs__say(said, "%s is a %s, not a file: name a file in it or another one", path,
              S_ISDIR(st.st_mode) ? "folder" : "special file");
    return DIBS_INVALID;
  }
  if (faccessat(AT_FDCWD, path, R_OK | W_OK, AT_EACCESS) != 0) {
    dibs__say(said, "%s can't be written: %s", path, strerror(errno));
    return DIBS_DENIED;
  }
  return DIBS_OK;
}

dibs__status dibs__lite_look(const char *path, enum dibs__lite_kind *kind, struct dibs__said *said) {
  unsigned char header[HEADER];
  sqlite3_int64 size;
  bool there;
  *kind = DIBS__LITE_ABSENT;
  dibs__status status = look_at_path(path, &there, said);
  if (status != DIBS_OK || !there) return status;
  int code = read_header(path, header, &size);
  if (code != SQLITE_OK) return dibs__lite_excuse_code(path, code, sqlite3_errstr(code), "read", said);
  if (size == 0) {
    *kind = DIBS__LITE_EMPTY;
    return DIBS_OK;
  }
  if (size < HEADER) {
    dibs__say(said, "%s is not a database of dibs; it was left as it is: name another file", path);
    return DIBS_CORRUPT;
  }
  return judge(path, header, kind, said);
}

/* ---- Making ---- */

static step steps_from(link_t *l, uint32_t version) {
  char text[SCHEMA_TEXT];
  step end = DIBS__SQL_FINE;
  for (; version < DIBS__SQL_SCHEMA; version++)
    for (size_t nth = 0; end == DIBS__SQL_FINE && dibs__sql_schema(&words, version, nth, text, sizeof text); nth++)
      end = dibs__lite_say(l, text);
  return end;
}

static step fill(link_t *l, uint32_t epoch, uint64_t device, uint64_t inode) {
  char text[SCHEMA_TEXT];
  bool unsure;
  step end = dibs__lite_plain(l, DIBS__LITE_BEGIN);
  if (end == DIBS__SQL_FINE) end = steps_from(l, 0);
  if (end == DIBS__SQL_FINE) end = dibs__lite_first_life(l, epoch, device, inode);
  snprintf(text, sizeof text, "PRAGMA application_id=%d;PRAGMA user_version=%d", DIBS__LITE_APPLICATION,
           DIBS__SQL_SCHEMA);
  if (end == DIBS__SQL_FINE) end = dibs__lite_say(l, text);
  if (end == DIBS__SQL_FINE) end = dibs__lite_commit(l, &unsure);
  if (end == DIBS__SQL_FINE) end = dibs__lite_say(l, "PRAGMA journal_mode=WAL");
  if (end != DIBS__SQL_FINE) dibs__lite_rollback(l);
  return end;
}

static dibs__status fill_file(struct dibs__lite *store, const char *path, const char *how, uint32_t epoch,
                              dibs__tick by, struct dibs__said *said) {
  uint64_t device = 0, inode = 0;
  link_t *l;
  dibs__status status = dibs__lite_link_open(store, path, by, &l, said);
  if (status != DIBS_OK) return status;
  sqlite3_db_config(l->db, SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 0, NULL); /* no log is to be left behind */
  step end = dibs__lite_say(l, how);
  (void)dibs__lite_stat(path, &device, &inode);
  if (end == DIBS__SQL_FINE) end = fill(l, epoch, device, inode);
  if (end != DIBS__SQL_FINE) status = dibs__lite_excuse(l, "make", said);
  dibs__lite_link_close(l);
  return status;
}

static dibs__status say_errno(const char *doing, const char *path, struct dibs__said *said) {
  int error = errno;
  dibs__say(said, "can't %s %s: %s", doing, path, strerror(error));
  if (error == EACCES || error == EPERM || error == EROFS) return DIBS_DENIED;
  return error == ENOMEM ? DIBS_NO_MEMORY : DIBS_UNAVAILABLE;
}

static dibs__status press(const char *path, int flags, struct dibs__said *said) {
  int fd = open(path, flags | O_CLOEXEC);
  if (fd < 0) return say_errno("open", path, said);
  dibs__status status = fsync(fd) == 0 ? DIBS_OK : say_errno("write", path, said);
  close(fd);
  return status;
}

/* The folder's entry too, so that a new epoch can't be lost with its file. */
static dibs__status press_folder(const char *path, struct dibs__said *said) {
  char folder[PATH_ROOM];
  const char *slash = strrchr(path, '/');
  size_t len = slash ? (size_t)(slash - path) : 0;
  if (len >= sizeof folder) return DIBS_OK;
  memcpy(folder, path, len);
  folder[len] = '\0';
  return press(!slash ? "." : len ? folder : "/", O_RDONLY | O_DIRECTORY, said);
}

static dibs__status put_in_place(const char *made, const char *path, struct dibs__said *said) {
  dibs__status status = press(made, O_RDWR, said);
  if (status != DIBS_OK) return status;
  int done = renameat2(AT_FDCWD, made, AT_FDCWD, path, RENAME_NOREPLACE);
  if (done != 0 && (errno == EINVAL || errno == ENOSYS)) done = rename(made, path); /* the file system can't tell */
  if (done != 0) return say_errno("make", path, said);
  return press_folder(path, said);
}

void dibs__lite_remove(const char *path, bool all) {
  /* A journal can be what makes its database whole: it goes only with it. */
  static const char *const parts[] = {"-wal", "-shm", "", "-journal"};
  char name[PATH_ROOM];
  for (size_t i = 0; i < (all ? 4 : 2); i++)
    if (snprintf(name, sizeof name, "%s%s", path, parts[i]) < (int)sizeof name) unlink(name);
}

bool dibs__lite_has_log(const char *path) {
  char name[PATH_ROOM];
  return snprintf(name, sizeof name, "%s-wal", path) < (int)sizeof name && access(name, F_OK) == 0;
}

static dibs__status make_new(struct dibs__lite *store, uint32_t mode, uint32_t epoch, dibs__tick by,
                             struct dibs__said *said) {
  char made[PATH_ROOM];
  int len = snprintf(made, sizeof made, "%s-new", store->path);
  if (len < 0 || len >= (int)sizeof made) {
    dibs__say(said, "the path %.80s... is too long", store->path);
    return DIBS_INVALID;
  }
  dibs__lite_remove(made, true); /* of a maker that was killed */
  int fd = open(made, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
  if (fd < 0) return say_errno("make", made, said);
  dibs__status status = fchmod(fd, (mode_t)mode) == 0 ? DIBS_OK : say_errno("set the mode of", made, said);
  close(fd); /* before SQLite has locks on it */
  /* Nobody sees it before it is whole and pressed to disk, so it needs no journal and no order of writing. */
  if (status == DIBS_OK)
    status = fill_file(store, made, PAGE_SIZE ";PRAGMA journal_mode=OFF;PRAGMA synchronous=OFF", epoch, by, said);
  if (status == DIBS_OK) status = put_in_place(made, store->path, said);
  if (status != DIBS_OK) dibs__lite_remove(made, true);
  return status;
}

dibs__status dibs__lite_make(struct dibs__lite *store, enum dibs__lite_kind kind, uint32_t mode, uint32_t epoch,
                             dibs__tick by, struct dibs__said *said) {
  if (kind == DIBS__LITE_ABSENT) return make_new(store, mode, epoch, by, said);
  return fill_file(store, store->path, PAGE_SIZE ";PRAGMA journal_mode=DELETE;PRAGMA synchronous=FULL", epoch, by,
                   said);
}

/* ---- Migrating ---- */

static step stored_version(link_t *l, uint32_t *version) {
  bool row;
  sqlite3_stmt *st = dibs__lite_ready(l, DIBS__LITE_USER_VERSION);
  step end = dibs__lite_row(l, st, &row);
  *version = row ? (uint32_t)sqlite3_column_int(st, 0) : 0;
  if (row) sqlite3_reset(st);
  return end;
}

/* The version is asked again within: who was here before us may have done it. */
static step migrate(link_t *l) {
  char text[128];
  bool unsure;
  uint32_t version;
  step end = dibs__lite_begin(l);
  if (end == DIBS__SQL_FINE) end = stored_version(l, &version);
  if (end == DIBS__SQL_FINE) end = steps_from(l, version);
  snprintf(text, sizeof text, "UPDATE dibs_meta SET version=%d;PRAGMA user_version=%d", DIBS__SQL_SCHEMA,
           DIBS__SQL_SCHEMA);
  if (end == DIBS__SQL_FINE) end = dibs__lite_say(l, text);
  if (end == DIBS__SQL_FINE) end = dibs__lite_commit(l, &unsure);
  if (end != DIBS__SQL_FINE) dibs__lite_rollback(l);
  return end;
}

step dibs__lite_migrate(link_t *l) {
  struct dibs__side *side = l->store->side;
  uint32_t version;
  step end = stored_version(l, &version);
  if (end != DIBS__SQL_FINE || version >= DIBS__SQL_SCHEMA) return end;
  if (!dibs__side_write_begin(side, l->by)) return dibs__lite_broke(l, SQLITE_BUSY);
  end = dibs__lite_full(l, true);
  if (end == DIBS__SQL_FINE) end = migrate(l);
  if (end == DIBS__SQL_FINE) end = dibs__lite_full(l, false);
  dibs__side_write_end(side);
  return end;
}
