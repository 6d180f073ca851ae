/* SPDX-License-Identifier: MIT */
/*
 * The file of an embedded store, found among the descriptors of this process: so it is the very file that is in use,
 * whatever names lead to it.  It is looked at through those descriptors; opening it once more and closing that would
 * take away the locks which this process has on it.
 */
#include "cli/doctor.h"

#include <dirent.h>
#include <errno.h>
#include <linux/magic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <unistd.h>

#ifndef XFS_SUPER_MAGIC
#define XFS_SUPER_MAGIC 0x58465342
#endif
#ifndef ZFS_SUPER_MAGIC
#define ZFS_SUPER_MAGIC 0x2fc12fc1
#endif

enum {
  PATH_ROOM = 4200,
  HEADER = 100, /* bytes; the schema's version is at 60, big end first */
  HEADER_SCHEMA = 60,
  LITTLE_MIB = 64, /* of free space: the log grows by this within minutes of hard work */
  LONG_LOG_MIB = 256
};

static const struct {
  unsigned long magic;
  const char *name;
} systems[] = {{EXT4_SUPER_MAGIC, "ext4"}, {XFS_SUPER_MAGIC, "xfs"},   {BTRFS_SUPER_MAGIC, "btrfs"},
               {TMPFS_MAGIC, "tmpfs"},     {ZFS_SUPER_MAGIC, "zfs"},   {OVERLAYFS_SUPER_MAGIC, "overlayfs"},
               {F2FS_SUPER_MAGIC, "f2fs"}, {FUSE_SUPER_MAGIC, "fuse"}, {MSDOS_SUPER_MAGIC, "vfat"}};

/* The database among our descriptors, and its path; -1: none. */
static int find_file(char path[PATH_ROOM]) {
  static const char magic[16] = "SQLite format 3";
  DIR *own = opendir("/proc/self/fd");
  if (own == NULL) return -1;
  int found = -1;
  const struct dirent *entry;
  while (found < 0 && (entry = readdir(own)) != NULL) {
    char *end, link[64], head[sizeof magic];
    long fd = strtol(entry->d_name, &end, 10);
    struct stat st;
    if (end == entry->d_name || fstat((int)fd, &st) != 0 || !S_ISREG(st.st_mode)) continue;
    if (pread((int)fd, head, sizeof head, 0) != (ssize_t)sizeof head || memcmp(head, magic, sizeof head) != 0) continue;
    snprintf(link, sizeof link, "/proc/self/fd/%ld", fd);
    ssize_t length = readlink(link, path, PATH_ROOM - 8);
    if (length <= 0) continue;
    path[length] = '\0';
    found = (int)fd;
  }
  closedir(own);
  return found;
}

static void check_schema(struct doctor *d, int fd) {
  unsigned char head[HEADER];
  if (pread(fd, head, sizeof head, 0) != (ssize_t)sizeof head) return;
  const unsigned char *v = head + HEADER_SCHEMA;
  unsigned version = (unsigned)v[0] << 24 | (unsigned)v[1] << 16 | (unsigned)v[2] << 8 | v[3];
  if (version > 0) dibs__cli_doctor_say(d, "schema", NULL, "version %u", version);
}

static void check_rights(struct doctor *d, int fd, const char *path) {
  struct stat file, folder;
  char parent[PATH_ROOM];
  if (fstat(fd, &file) != 0) return;
  snprintf(parent, sizeof parent, "%s", path);
  char *slash = strrchr(parent, '/');
  if (slash != NULL) slash[slash == parent ? 1 : 0] = '\0';
  if (slash == NULL || stat(parent, &folder) != 0) folder = (struct stat){0};
  const char *next = NULL;
  if (file.st_nlink == 0)
    next = "the file was deleted while it is in use: end every process that uses it, and begin anew";
  else if (file.st_nlink > 1)
    next = "remove the other hard links: two names would have two logs, and damage it";
  else if (file.st_mode & S_IWOTH)
    next = "chmod o-w it: everybody can write and so break every lease";
  else if ((folder.st_mode & S_IWOTH) && !(folder.st_mode & S_ISVTX))
    next = "chmod o-w the folder: everybody can put another file in its place";
  else if (file.st_mode & S_IROTH)
    next = "chmod o-r it: it holds the ids of leases";
  dibs__cli_doctor_say(d, "file", next, "%s, mode %04o, owner %u:%u", path, (unsigned)(file.st_mode & 07777),
                       (unsigned)file.st_uid, (unsigned)file.st_gid);
}

static void check_space(struct doctor *d, int fd, const char *path) {
  struct statfs fs;
  if (fstatfs(fd, &fs) != 0) {
    dibs__cli_doctor_say(d, "space", "see the message", "the file system can't be asked: %s", strerror(errno));
    return;
  }
  const char *name = NULL;
  for (size_t i = 0; i < sizeof systems / sizeof *systems; i++)
    if (systems[i].magic == (unsigned long)fs.f_type) name = systems[i].name;
  char other[32];
  snprintf(other, sizeof other, "type %#lx", (unsigned long)fs.f_type);
  unsigned long long mib = (unsigned long long)fs.f_bavail * (unsigned long long)fs.f_bsize >> 20;
  dibs__cli_doctor_say(d, "space", mib < LITTLE_MIB ? "make room: a full disk refuses every lease" : NULL,
                       "%llu MiB free on %s", mib, name != NULL ? name : other);
  char log[PATH_ROOM + 8];
  struct stat st;
  snprintf(log, sizeof log, "%s-wal", path);
  if (stat(log, &st) != 0) return;
  bool is_long = st.st_size >> 20 > LONG_LOG_MIB;
  dibs__cli_doctor_say(d, "log",
                       is_long ? "look for a process that reads the file for minutes: it keeps the log" : NULL,
                       "%lld KiB", (long long)(st.st_size >> 10));
}

void dibs__cli_doctor_file(struct doctor *d) {
  char path[PATH_ROOM];
  int fd = find_file(path);
  if (fd < 0) return;
  check_rights(d, fd, path);
  check_schema(d, fd);
  check_space(d, fd, path);
}
