/* SPDX-License-Identifier: MIT */
#include "bed.h"

#include <dirent.h>
#include <fcntl.h>
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

int bed_ms = BED_MS;

/* ---- Folders ---- */

void bed_make(struct bed *bed, const char *within) {
  memset(bed, 0, sizeof *bed);
  snprintf(bed->folder, sizeof bed->folder, "%.100s/dibs-sqlite-XXXXXX", within);
  assert_non_null(mkdtemp(bed->folder));
  snprintf(bed->path, sizeof bed->path, "%s/test.db", bed->folder);
}

void bed_remove(struct bed *bed) {
  DIR *dir = opendir(bed->folder);
  if (!dir) return;
  for (struct dirent *entry; (entry = readdir(dir));) {
    if (entry->d_name[0] == '.') continue;
    if (unlinkat(dirfd(dir), entry->d_name, 0) != 0) (void)unlinkat(dirfd(dir), entry->d_name, AT_REMOVEDIR);
  }
  closedir(dir);
  rmdir(bed->folder);
}

int bed_begin(void **state) {
  bed_ms = BED_MS;
  struct bed *bed = malloc(sizeof *bed);
  const char *within = getenv("TMPDIR");
  if (!bed) return -1;
  bed_make(bed, within ? within : "/tmp");
  *state = bed;
  return 0;
}

int bed_end(void **state) {
  bed_remove(*state);
  free(*state);
  return 0;
}

/* ---- Stores ---- */

dibs__tick bed_by(void) {
  return dibs__tick_add_ms(dibs__tick_now(), bed_ms);
}

dibs__id bed_id(int n) {
  dibs__id id = {{0xd1, 0xb5}};
  memcpy(id.b + 4, &n, sizeof n);
  return id;
}

bool slot_mandate_followed(struct slot *slot) {
  if (slot->session && !slot->reported.dead) return true;
  if (slot->session) slot->store->driver->disconnect(slot->session);
  slot->session = NULL;
  return slot->store->driver->connect(slot->store, bed_by(), &slot->session, &slot->identity, &slot->reported) ==
         DIBS_OK;
}

dibs__status slot_try_at(struct bed *bed, const char *path, struct slot *slot) {
  const struct dibs__driver *driver = &dibs__sqlite_driver;
  struct dibs__uri uri;
  char text[300];
  memset(slot, 0, sizeof *slot);
  slot->bed = bed;
  snprintf(text, sizeof text, "sqlite://%s", path);
  assert_int_equal(dibs__uri_parse(text, &uri, &slot->reported), DIBS_OK);
  dibs__status status = driver->open(&uri, NULL, 0, bed_by(), &slot->store, &slot->reported);
  dibs__uri_free(&uri);
  if (status == DIBS_OK) {
    status = driver->connect(slot->store, bed_by(), &slot->session, &slot->identity, &slot->reported);
    if (status != DIBS_OK) driver->close(slot->store);
  } else {
    assert_null(slot->store);
  }
  bed->reported = slot->reported;
  if (status != DIBS_OK) {
    assert_true(strlen(bed->reported.text) > 0);
    memset(slot, 0, sizeof *slot);
  }
  return status;
}

dibs__status slot_try(struct bed *bed, struct slot *slot) {
  return slot_try_at(bed, bed->path, slot);
}

void slot_open(struct bed *bed, struct slot *slot) {
  if (slot_try(bed, slot) != DIBS_OK) fail_msg("%s", bed->reported.text);
}

void slot_close(struct slot *slot) {
  if (slot->session) slot->store->driver->disconnect(slot->session);
  if (slot->store) slot->store->driver->close(slot->store);
  memset(slot, 0, sizeof *slot);
}

/* ---- Operations ---- */

dibs__status slot_run(struct slot *slot, struct dibs__op *op) {
  struct dibs__op *ops[1] = {op};
  op->status = DIBS_UNKNOWN;
  dibs__status status = slot->store->driver->run(slot->session, ops, 1, bed_by(), &slot->reported);
  if (status != DIBS_OK) assert_true(strlen(slot->reported.text) > 0);
  return status;
}

/* Repeats the operation under the current mandate after MOVED. */
static struct dibs__lease_op run_lease(struct slot *slot, struct dibs__lease_op op) {
  op.op.family = DIBS__FAM_LEASE;
  op.op.bucket = dibs__bucket(op.name);
  for (int i = 0; i < 2; i++) {
    op.op.mandate = slot->mandates[op.op.bucket];
    dibs__status status = slot_run(slot, &op.op);
    if (status != DIBS_OK) op.op.status = status;
    if (op.op.status != DIBS__MOVED) break;
    slot->mandates[op.op.bucket] = op.op.has;
  }
  return op;
}

static struct dibs__lease_op lease(const char *name, int id, uint16_t verb) {
  struct dibs__lease_op op = {.op.verb = verb};
  op.name = dibs__str_of(name, strlen(name));
  op.owner = dibs__str_of("test", 4);
  op.id = bed_id(id);
  op.ttl_ms = 60000;
  return op;
}

struct dibs__lease_op slot_acquire(struct slot *slot, const char *name, int id) {
  return run_lease(slot, lease(name, id, DIBS__ACQUIRE));
}

struct dibs__lease_op slot_queue(struct slot *slot, const char *name, int id) {
  struct dibs__lease_op op = lease(name, id, DIBS__ACQUIRE);
  op.queue = true;
  return run_lease(slot, op);
}

struct dibs__lease_op slot_renew(struct slot *slot, const char *name, int id, dibs__fence fence) {
  struct dibs__lease_op op = lease(name, id, DIBS__RENEW);
  op.fence = fence;
  return run_lease(slot, op);
}

struct dibs__lease_op slot_release(struct slot *slot, const char *name, int id, dibs__fence fence) {
  struct dibs__lease_op op = lease(name, id, DIBS__RELEASE);
  op.fence = fence;
  return run_lease(slot, op);
}

static struct dibs__record_op run_record(struct slot *slot, struct dibs__record_op op, const char *key) {
  op.op.family = DIBS__FAM_RECORD;
  op.key = dibs__str_of(key, strlen(key));
  op.op.bucket = dibs__bucket(op.key);
  dibs__status status = slot_run(slot, &op.op);
  if (status != DIBS_OK) op.op.status = status;
  return op;
}

struct dibs__record_op slot_save(struct slot *slot, const char *key, int id, dibs__fence fence, const char *data) {
  struct dibs__record_op op = {.op.verb = DIBS__RECORD_PUT, .guards = DIBS__IF_FENCE, .id = bed_id(id), .fence = fence};
  op.data = dibs__str_of(data, strlen(data));
  return run_record(slot, op, key);
}

struct dibs__record_op slot_load(struct slot *slot, const char *key) {
  return run_record(slot, (struct dibs__record_op){.op.verb = DIBS__RECORD_LOAD, .op.flags = DIBS__OP_READS}, key);
}

dibs__mandate slot_mandate(struct slot *slot, const char *name) {
  struct dibs__anchor_op op = {.op.family = DIBS__FAM_ANCHOR, .op.verb = DIBS__ANCHOR_READ};
  op.op.bucket = dibs__bucket(dibs__str_of(name, strlen(name)));
  assert_int_equal(slot_run(slot, &op.op), DIBS_OK);
  assert_int_equal(op.op.status, DIBS_OK);
  return op.current;
}

/* ---- Files ---- */

static uint64_t add_bytes(uint64_t sum, const void *data, size_t size) {
  const unsigned char *p = data;
  for (size_t i = 0; i < size; i++) sum = (sum ^ p[i]) * UINT64_C(0x100000001b3);
  return sum;
}

static uint64_t add_file(uint64_t sum, const char *path) {
  char data[65536];
  struct stat st;
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return add_bytes(sum, "unreadable", 10);
  for (ssize_t n; (n = read(fd, data, sizeof data)) > 0;) sum = add_bytes(sum, data, (size_t)n);
  assert_int_equal(fstat(fd, &st), 0);
  close(fd);
  sum = add_bytes(sum, &st.st_mode, sizeof st.st_mode);
  sum = add_bytes(sum, &st.st_ino, sizeof st.st_ino);
  return add_bytes(sum, &st.st_mtim, sizeof st.st_mtim);
}

struct sight bed_sight(const struct bed *bed) {
  struct sight sight = {.sum = 0};
  struct dirent **entries;
  int count = scandir(bed->folder, &entries, NULL, alphasort);
  assert_true(count >= 0);
  for (int i = 0; i < count; i++) {
    char path[512];
    snprintf(path, sizeof path, "%s/%s", bed->folder, entries[i]->d_name);
    if (entries[i]->d_name[0] != '.') {
      size_t used = strlen(sight.names);
      snprintf(sight.names + used, sizeof sight.names - used, "%s ", entries[i]->d_name);
      sight.sum = add_file(sight.sum, path);
      sight.files++;
    }
    free(entries[i]);
  }
  free(entries);
  return sight;
}

void expect_same_sight(const struct bed *bed, const struct sight *before) {
  struct sight after = bed_sight(bed);
  assert_string_equal(after.names, before->names);
  assert_true(after.sum == before->sum);
}

void bed_write(const char *path, const void *data, size_t size) {
  int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  assert_true(fd >= 0);
  assert_int_equal(write(fd, data, size), (ssize_t)size);
  close(fd);
}

void bed_copy(const char *from, const char *to) {
  char data[65536];
  int in = open(from, O_RDONLY | O_CLOEXEC), out = open(to, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  assert_true(in >= 0 && out >= 0);
  for (ssize_t n; (n = read(in, data, sizeof data)) > 0;) assert_int_equal(write(out, data, (size_t)n), n);
  close(in);
  close(out);
}

void bed_sql(const char *path, const char *text) {
  sqlite3 *db;
  char *error = NULL;
  assert_int_equal(sqlite3_open_v2(path, &db, SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE, NULL), SQLITE_OK);
  sqlite3_busy_timeout(db, BED_MS);
  if (sqlite3_exec(db, text, NULL, NULL, &error) != SQLITE_OK) fail_msg("%s: %s", text, error);
  assert_int_equal(sqlite3_close(db), SQLITE_OK);
}

void bed_checkpoint(const char *path) {
  bed_sql(path, "PRAGMA wal_checkpoint(TRUNCATE)");
}
