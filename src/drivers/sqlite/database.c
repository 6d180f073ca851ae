/* SPDX-License-Identifier: MIT */
/*
 * The database file: whether it is a dibs database, how a new one is made, migration, incarnations.
 *
 * The check uses SQLite's own file layer: closing another descriptor of the database would drop the locks that SQLite
 * holds on it elsewhere in this process.  It reads the header alone and changes nothing (R20).
 *
 * A new file is made under another name and then renamed whole, so there is never half a store at the path.  An empty
 * file that exists already keeps its owner and mode: one transaction fills it.
 *
 * A new incarnation begins if the database may not be the same as at the last grant: another boot (the log is not
 * synced to disk at each grant), another file or machine (a copy), or fences below those in the side file (an older
 * file restored).  Then all grants, waiters and breaks are deleted, since they belong to another timeline, and every
 * bucket begins an epoch above all known epochs.  A bucket that is served for an anchor elsewhere begins none: it
 * becomes void, which the anchor's clients get as an answer.
 *
 * Order of writing: database (synced to disk), then the side file.  A crash in between leaves a database whose
 * incarnation the side file does not know, and the next open begins one more.
 */
#include "drivers/sqlite/sqlite_impl.h"
#include "sql/wire.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

typedef enum dibs__sql_rc sql_rc;
typedef struct dibs__sqlite_link link_t;

static sql_rc meta_load(link_t *l, struct dibs__sqlite_meta *meta) {
  bool found;
  memset(meta, 0, sizeof *meta);
  sqlite3_stmt *st = dibs__sqlite_ready(l, DIBS__SQLITE_META);
  sql_rc end = dibs__sqlite_row(l, st, &found);
  if (end != DIBS__SQL_OK) return end;
  if (!found) return dibs__sqlite_wrong(l);
  meta->version = (uint32_t)sqlite3_column_int64(st, 0);
  const void *incarnation = sqlite3_column_blob(st, 1);
  bool whole = incarnation && sqlite3_column_bytes(st, 1) == (int)sizeof meta->incarnation.b;
  if (whole) memcpy(meta->incarnation.b, incarnation, sizeof meta->incarnation.b);
  meta->device = (uint64_t)sqlite3_column_int64(st, 2);
  meta->inode = (uint64_t)sqlite3_column_int64(st, 3);
  dibs__str boot = dibs__sqlite_read_text(st, 4);
  if (boot.len < sizeof meta->boot) memcpy(meta->boot, boot.p, boot.len);
  sqlite3_reset(st);
  return whole ? DIBS__SQL_OK : dibs__sqlite_wrong(l);
}

static sql_rc meta_save(link_t *l, const dibs__incarnation *incarnation, uint64_t device, uint64_t inode) {
  char boot[37] = "";
  sqlite3_stmt *st = dibs__sqlite_ready(l, DIBS__SQLITE_META_SET);
  if (!st) return DIBS__SQL_FAILED;
  (void)dibs__boot_id(boot);
  sqlite3_bind_int64(st, 1, DIBS__SQL_SCHEMA);
  sqlite3_bind_blob(st, 2, incarnation->b, sizeof incarnation->b, SQLITE_STATIC);
  sqlite3_bind_int64(st, 3, (sqlite3_int64)device);
  sqlite3_bind_int64(st, 4, (sqlite3_int64)inode);
  sqlite3_bind_text(st, 5, boot, -1, SQLITE_STATIC);
  return dibs__sqlite_do(l, st);
}

/* The bucket rows and the meta row of a new database. */
static sql_rc first_incarnation(link_t *l, uint32_t epoch, uint64_t device, uint64_t inode) {
  dibs__incarnation incarnation;
  dibs__random(&incarnation, sizeof incarnation);
  sql_rc end = meta_save(l, &incarnation, device, inode);
  for (int bucket = 0; bucket < DIBS__BUCKETS && end == DIBS__SQL_OK; bucket++) {
    sqlite3_stmt *st = dibs__sqlite_ready(l, DIBS__ROWS_BUCKET_ADD);
    if (!st) return DIBS__SQL_FAILED;
    sqlite3_bind_int64(st, 1, bucket);
    sqlite3_bind_blob(st, 2, incarnation.b, sizeof incarnation.b, SQLITE_STATIC);
    sqlite3_bind_int64(st, 3, epoch);
    end = dibs__sqlite_do(l, st);
  }
  return end;
}

/* All epochs in the database, also of another incarnation: the next one must be above them. */
static sql_rc largest_epoch(link_t *l, uint32_t *epoch) {
  struct dibs__sql_bucket *row;
  *epoch = dibs__side_epoch(l->store->side);
  for (uint16_t bucket = 0; bucket < DIBS__BUCKETS; bucket++) {
    sql_rc end = dibs__sqlite_bucket_get(l, bucket, &row);
    if (end != DIBS__SQL_OK && end != DIBS__SQL_OTHER) return end;
    if (row->mandate.epoch > *epoch) *epoch = row->mandate.epoch;
    uint32_t marked = dibs__fence_epoch(dibs__side_marked(l->store->side, bucket));
    /* Of an older file: the latest installed mandate is remembered all the same. */
    if (row->served != DIBS__SQL_OWN && marked > row->mandate.epoch) {
      row->mandate.epoch = marked;
      (void)dibs__sqlite_bucket_put(l, bucket);
    }
    if (marked > *epoch) *epoch = marked;
  }
  return DIBS__SQL_OK;
}

static sql_rc rewrite_incarnation(link_t *l, const dibs__incarnation *incarnation, uint32_t epoch) {
  sql_rc end = dibs__sqlite_message(l, "DELETE FROM dibs_holder; DELETE FROM dibs_deep; DELETE FROM dibs_break;"
                                       "DELETE FROM dibs_name WHERE name <> ''");
  if (end != DIBS__SQL_OK) return end;
  sqlite3_stmt *st = dibs__sqlite_ready(l, DIBS__SQLITE_BUCKETS_SET);
  if (!st) return DIBS__SQL_FAILED;
  sqlite3_bind_blob(st, 1, incarnation->b, sizeof incarnation->b, SQLITE_STATIC);
  sqlite3_bind_int64(st, 2, epoch);
  end = dibs__sqlite_do(l, st);
  if (end != DIBS__SQL_OK) return end;
  if (sqlite3_changes(l->db) != DIBS__BUCKETS) return dibs__sqlite_wrong(l);
  return meta_save(l, incarnation, l->store->device, l->store->inode);
}

/* Moves an epoch into the database file soon: a copy of that file alone, without its log, has it too. */
static void checkpoint_epoch(link_t *l) {
  struct dibs__side *side = l->store->side;
  int pages, copied;
  if (!dibs__side_copy_begin(side, dibs__side_copies(side))) return;
  int code = sqlite3_wal_checkpoint_v2(l->db, "main", SQLITE_CHECKPOINT_PASSIVE, &pages, &copied);
  if (code == SQLITE_OK && pages == copied) dibs__side_copied(side);
  dibs__side_copy_end(side);
}

sql_rc dibs__sqlite_new_incarnation(link_t *l) {
  uint32_t epoch;
  dibs__incarnation incarnation;
  bool unsure;
  sql_rc end = dibs__sqlite_full(l, true);
  if (end == DIBS__SQL_OK) end = dibs__sqlite_begin(l);
  if (end == DIBS__SQL_OK) end = largest_epoch(l, &epoch);
  if (end == DIBS__SQL_OK && epoch >= DIBS__EPOCH_MAX) end = dibs__sqlite_broke(l, SQLITE_RANGE);
  dibs__random(&incarnation, sizeof incarnation);
  if (end == DIBS__SQL_OK) end = rewrite_incarnation(l, &incarnation, epoch + 1);
  memset(l->known, 0, sizeof l->known);
  if (end == DIBS__SQL_OK) end = dibs__sqlite_commit(l, &unsure);
  if (end != DIBS__SQL_OK) return end;
  dibs__side_begin(l->store->side, &incarnation, epoch + 1);
  checkpoint_epoch(l);
  return DIBS__SQL_OK;
}

sql_rc dibs__sqlite_next_epoch(link_t *l, uint16_t bucket) {
  struct dibs__sql_bucket *row;
  bool unsure;
  sql_rc end = dibs__sqlite_full(l, true);
  if (end == DIBS__SQL_OK) end = dibs__sqlite_begin(l);
  if (end == DIBS__SQL_OK) end = dibs__sqlite_bucket_get(l, bucket, &row);
  if (end != DIBS__SQL_OK) return end;
  if (!dibs__sql_next_epoch(row)) return dibs__sqlite_broke(l, SQLITE_RANGE);
  end = dibs__sqlite_bucket_put(l, bucket);
  dibs__fence mark = dibs__sql_last(row);
  if (end == DIBS__SQL_OK) end = dibs__sqlite_commit(l, &unsure);
  if (end != DIBS__SQL_OK) return end;
  dibs__side_mark(l->store->side, bucket, mark, (dibs__when){0});
  checkpoint_epoch(l);
  return DIBS__SQL_OK;
}

/* Is a bucket below the fences that the side file had before this read of the database began?  Other processes may
 * grant, and mark, meanwhile: their new marks must not count. */
static sql_rc below_marks(link_t *l, const dibs__fence marked[DIBS__BUCKETS], bool *below) {
  struct dibs__sql_bucket *row;
  *below = false;
  for (uint16_t bucket = 0; bucket < DIBS__BUCKETS; bucket++) {
    sql_rc end = dibs__sqlite_bucket_get(l, bucket, &row);
    if (end != DIBS__SQL_OK && end != DIBS__SQL_OTHER) return end;
    if (dibs__fence_below(dibs__sql_last(row), marked[bucket])) *below = true;
  }
  return DIBS__SQL_OK;
}

static sql_rc is_other(link_t *l, const struct dibs__side_memory *memory, struct dibs__sqlite_meta *meta, bool *other) {
  char boot[37] = "";
  bool below = false, unsure;
  dibs__fence marked[DIBS__BUCKETS];
  for (uint16_t bucket = 0; bucket < DIBS__BUCKETS; bucket++)
    marked[bucket] = dibs__side_marked(l->store->side, bucket);
  sql_rc end = dibs__sqlite_plain(l, DIBS__SQLITE_BEGIN_READ);
  if (end == DIBS__SQL_OK) end = meta_load(l, meta);
  if (end == DIBS__SQL_OK) end = below_marks(l, marked, &below);
  if (end == DIBS__SQL_OK) end = dibs__sqlite_commit(l, &unsure);
  memset(l->known, 0, sizeof l->known);
  (void)dibs__boot_id(boot);
  *other = memory->state == DIBS__SIDE_NEW || below ||
           memcmp(meta->incarnation.b, memory->incarnation.b, sizeof meta->incarnation.b) != 0 ||
           meta->device != l->store->device || meta->inode != l->store->inode || strcmp(meta->boot, boot) != 0;
  return end;
}

sql_rc dibs__sqlite_settle_incarnation(link_t *l, bool made, const struct dibs__side_memory *memory) {
  struct dibs__sqlite_meta meta;
  bool other;
  sql_rc end = is_other(l, memory, &meta, &other);
  if (end != DIBS__SQL_OK) return end;
  if (made) dibs__side_begin(l->store->side, &meta.incarnation, l->buckets[0].mandate.epoch);
  if (made || !other) return DIBS__SQL_OK;
  /* A new incarnation would end every lease, so check again while nobody can grant. */
  if (!dibs__side_write_begin(l->store->side, l->by)) return dibs__sqlite_broke(l, SQLITE_BUSY);
  end = is_other(l, memory, &meta, &other);
  if (end == DIBS__SQL_OK && other) end = dibs__sqlite_new_incarnation(l);
  dibs__side_write_end(l->store->side);
  return end == DIBS__SQL_OK ? dibs__sqlite_full(l, false) : end;
}

/* ---- The file ---- */

enum { HEADER = 100, SCHEMA_TEXT = 4096, PATH_CAPACITY = 4200 };

/* DIBS__SQLITE_PAGE, in a text.  Every transaction writes at least one page and its checksum, so a page of SQLite's
 * usual 4096 bytes costs a single acquire 10% more; one of 1024 costs a batch of 64 10% more, since it touches more of
 * them. */
#define PAGE_SIZE "PRAGMA page_size=2048"

static const struct dibs__sql_words words = DIBS__SQLITE_WORDS;

bool dibs__sqlite_stat(const char *path, uint64_t *device, uint64_t *inode) {
  struct stat st;
  if (stat(path, &st) != 0) return false;
  *device = (uint64_t)st.st_dev;
  *inode = (uint64_t)st.st_ino;
  return true;
}

/* ---- Checking ---- */

static uint32_t big_endian(const unsigned char *p) {
  return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
}

static dibs__status judge_header(const char *path, const unsigned char *header, enum dibs__sqlite_kind *kind,
                                 struct dibs__result *result) {
  if (memcmp(header, "SQLite format 3", 16) != 0) {
    dibs__set_message(result, "%s is not a database of dibs; dibs did not change it: name another file", path);
    return DIBS_CORRUPT;
  }
  if (big_endian(header + 68) != DIBS__SQLITE_APPLICATION) {
    dibs__set_message(result, "%s is the SQLite database of another program; dibs did not change it: name another file",
                      path);
    return DIBS_CORRUPT;
  }
  if (big_endian(header + 60) > DIBS__SQL_SCHEMA) {
    dibs__set_message(result, "%s has schema %u, this dibs supports up to %d: use a newer dibs", path,
                      (unsigned)big_endian(header + 60), DIBS__SQL_SCHEMA);
    return DIBS_TOO_NEW;
  }
  *kind = header[18] == 2 && header[19] == 2 ? DIBS__SQLITE_OURS : DIBS__SQLITE_PLAIN;
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

static dibs__status look_at_path(const char *path, bool *there, struct dibs__result *result) {
  struct stat st;
  *there = stat(path, &st) == 0;
  if (!*there) {
    if (errno == ENOENT) return DIBS_OK;
    dibs__set_message(result, "can't inspect %s: %s", path, strerror(errno));
    return errno == EACCES ? DIBS_DENIED : DIBS_UNAVAILABLE;
  }
  if (!S_ISREG(st.st_mode)) {
    dibs__set_message(result, "%s is a %s, not a file: name a file in it, or another file", path,
                      S_ISDIR(st.st_mode) ? "folder" : "special file");
    return DIBS_INVALID;
  }
  if (faccessat(AT_FDCWD, path, R_OK | W_OK, AT_EACCESS) != 0) {
    dibs__set_message(result, "can't write %s: %s", path, strerror(errno));
    return DIBS_DENIED;
  }
  return DIBS_OK;
}

dibs__status dibs__sqlite_look(const char *path, enum dibs__sqlite_kind *kind, struct dibs__result *result) {
  unsigned char header[HEADER];
  sqlite3_int64 size;
  bool there;
  *kind = DIBS__SQLITE_ABSENT;
  dibs__status status = look_at_path(path, &there, result);
  if (status != DIBS_OK || !there) return status;
  int code = read_header(path, header, &size);
  if (code != SQLITE_OK) return dibs__sqlite_excuse_code(path, code, sqlite3_errstr(code), "read", result);
  if (size == 0) {
    *kind = DIBS__SQLITE_EMPTY;
    return DIBS_OK;
  }
  if (size < HEADER) {
    dibs__set_message(result, "%s is not a database of dibs; dibs did not change it: name another file", path);
    return DIBS_CORRUPT;
  }
  return judge_header(path, header, kind, result);
}

/* ---- Making ---- */

static sql_rc steps_from(link_t *l, uint32_t version) {
  char text[SCHEMA_TEXT];
  sql_rc end = DIBS__SQL_OK;
  for (; version < DIBS__SQL_SCHEMA; version++)
    for (size_t nth = 0; end == DIBS__SQL_OK && dibs__sql_schema(&words, version, nth, text, sizeof text); nth++)
      end = dibs__sqlite_message(l, text);
  return end;
}

static sql_rc fill_database(link_t *l, uint32_t epoch, uint64_t device, uint64_t inode) {
  char text[SCHEMA_TEXT];
  bool unsure;
  sql_rc end = dibs__sqlite_plain(l, DIBS__SQLITE_BEGIN);
  if (end == DIBS__SQL_OK) end = steps_from(l, 0);
  if (end == DIBS__SQL_OK) end = first_incarnation(l, epoch, device, inode);
  snprintf(text, sizeof text, "PRAGMA application_id=%d;PRAGMA user_version=%d", DIBS__SQLITE_APPLICATION,
           DIBS__SQL_SCHEMA);
  if (end == DIBS__SQL_OK) end = dibs__sqlite_message(l, text);
  if (end == DIBS__SQL_OK) end = dibs__sqlite_commit(l, &unsure);
  if (end == DIBS__SQL_OK) end = dibs__sqlite_message(l, "PRAGMA journal_mode=WAL");
  if (end != DIBS__SQL_OK) dibs__sqlite_rollback(l);
  return end;
}

static dibs__status fill_file(struct dibs__lite *store, const char *path, const char *how, uint32_t epoch,
                              dibs__tick by, struct dibs__result *result) {
  uint64_t device = 0, inode = 0;
  link_t *l;
  dibs__status status = dibs__sqlite_link_open(store, path, by, &l, result);
  if (status != DIBS_OK) return status;
  sqlite3_db_config(l->db, SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 0, NULL); /* no log must be left */
  sql_rc end = dibs__sqlite_message(l, how);
  (void)dibs__sqlite_stat(path, &device, &inode);
  if (end == DIBS__SQL_OK) end = fill_database(l, epoch, device, inode);
  if (end != DIBS__SQL_OK) status = dibs__sqlite_excuse(l, "make", result);
  dibs__sqlite_link_close(l);
  return status;
}

static dibs__status say_errno(const char *doing, const char *path, struct dibs__result *result) {
  int error = errno;
  dibs__set_message(result, "can't %s %s: %s", doing, path, strerror(error));
  if (error == EACCES || error == EPERM || error == EROFS) return DIBS_DENIED;
  return error == ENOMEM ? DIBS_NO_MEMORY : DIBS_UNAVAILABLE;
}

static dibs__status sync_path(const char *path, int flags, struct dibs__result *result) {
  int fd = open(path, flags | O_CLOEXEC);
  if (fd < 0) return say_errno("open", path, result);
  dibs__status status = fsync(fd) == 0 ? DIBS_OK : say_errno("write", path, result);
  close(fd);
  return status;
}

/* Syncs the folder's entry too, so that a new epoch can't be lost with its file. */
static dibs__status sync_folder(const char *path, struct dibs__result *result) {
  char folder[PATH_CAPACITY];
  const char *slash = strrchr(path, '/');
  size_t len = slash ? (size_t)(slash - path) : 0;
  if (len >= sizeof folder) return DIBS_OK;
  memcpy(folder, path, len);
  folder[len] = '\0';
  return sync_path(!slash ? "." : len ? folder : "/", O_RDONLY | O_DIRECTORY, result);
}

static dibs__status put_in_location(const char *made, const char *path, struct dibs__result *result) {
  dibs__status status = sync_path(made, O_RDWR, result);
  if (status != DIBS_OK) return status;
  int done = renameat2(AT_FDCWD, made, AT_FDCWD, path, RENAME_NOREPLACE);
  if (done != 0 && (errno == EINVAL || errno == ENOSYS))
    done = rename(made, path); /* the file system does not support it */
  if (done != 0) return say_errno("make", path, result);
  return sync_folder(path, result);
}

void dibs__sqlite_remove(const char *path, bool all) {
  /* A hot journal completes its database, so it is removed only together with it. */
  static const char *const parts[] = {"-wal", "-shm", "", "-journal"};
  char name[PATH_CAPACITY];
  for (size_t i = 0; i < (all ? 4 : 2); i++)
    if (snprintf(name, sizeof name, "%s%s", path, parts[i]) < (int)sizeof name) unlink(name);
}

bool dibs__sqlite_has_log(const char *path) {
  char name[PATH_CAPACITY];
  return snprintf(name, sizeof name, "%s-wal", path) < (int)sizeof name && access(name, F_OK) == 0;
}

static dibs__status make_new(struct dibs__lite *store, uint32_t mode, uint32_t epoch, dibs__tick by,
                             struct dibs__result *result) {
  char made[PATH_CAPACITY];
  int len = snprintf(made, sizeof made, "%s-new", store->path);
  if (len < 0 || len >= (int)sizeof made) {
    dibs__set_message(result, "the path %.80s... is too long", store->path);
    return DIBS_INVALID;
  }
  dibs__sqlite_remove(made, true); /* of an open that was killed */
  int fd = open(made, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
  if (fd < 0) return say_errno("make", made, result);
  dibs__status status = fchmod(fd, (mode_t)mode) == 0 ? DIBS_OK : say_errno("set the mode of", made, result);
  close(fd); /* before SQLite has locks on it */
  /* No process sees it before it is whole and synced to disk, so it needs no journal and no order of writing. */
  if (status == DIBS_OK)
    status = fill_file(store, made, PAGE_SIZE ";PRAGMA journal_mode=OFF;PRAGMA synchronous=OFF", epoch, by, result);
  if (status == DIBS_OK) status = put_in_location(made, store->path, result);
  if (status != DIBS_OK) dibs__sqlite_remove(made, true);
  return status;
}

dibs__status dibs__sqlite_make(struct dibs__lite *store, enum dibs__sqlite_kind kind, uint32_t mode, uint32_t epoch,
                               dibs__tick by, struct dibs__result *result) {
  if (kind == DIBS__SQLITE_ABSENT) return make_new(store, mode, epoch, by, result);
  return fill_file(store, store->path, PAGE_SIZE ";PRAGMA journal_mode=DELETE;PRAGMA synchronous=FULL", epoch, by,
                   result);
}

/* ---- Migrating ---- */

static sql_rc stored_version(link_t *l, uint32_t *version) {
  bool row;
  sqlite3_stmt *st = dibs__sqlite_ready(l, DIBS__SQLITE_USER_VERSION);
  sql_rc end = dibs__sqlite_row(l, st, &row);
  *version = row ? (uint32_t)sqlite3_column_int(st, 0) : 0;
  if (row) sqlite3_reset(st);
  return end;
}

/* The version is read again within the transaction: another process may have migrated it. */
static sql_rc migrate(link_t *l) {
  char text[128];
  bool unsure;
  uint32_t version;
  sql_rc end = dibs__sqlite_begin(l);
  if (end == DIBS__SQL_OK) end = stored_version(l, &version);
  if (end == DIBS__SQL_OK) end = steps_from(l, version);
  snprintf(text, sizeof text, "UPDATE dibs_meta SET version=%d;PRAGMA user_version=%d", DIBS__SQL_SCHEMA,
           DIBS__SQL_SCHEMA);
  if (end == DIBS__SQL_OK) end = dibs__sqlite_message(l, text);
  if (end == DIBS__SQL_OK) end = dibs__sqlite_commit(l, &unsure);
  if (end != DIBS__SQL_OK) dibs__sqlite_rollback(l);
  return end;
}

sql_rc dibs__sqlite_migrate(link_t *l) {
  struct dibs__side *side = l->store->side;
  uint32_t version;
  sql_rc end = stored_version(l, &version);
  if (end != DIBS__SQL_OK || version >= DIBS__SQL_SCHEMA) return end;
  if (!dibs__side_write_begin(side, l->by)) return dibs__sqlite_broke(l, SQLITE_BUSY);
  end = dibs__sqlite_full(l, true);
  if (end == DIBS__SQL_OK) end = migrate(l);
  if (end == DIBS__SQL_OK) end = dibs__sqlite_full(l, false);
  dibs__side_write_end(side);
  return end;
}
