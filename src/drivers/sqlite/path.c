/* SPDX-License-Identifier: MIT */
#include "drivers/sqlite/path.h"
#include "base/port.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

/* ---- Pure parts ---- */

bool dibs__location_mode(const char *text, uint32_t *mode) {
  size_t length = strlen(text);
  if (length == 4 && text[0] == '0') text++, length--;
  if (length != 3) return false;
  uint32_t bits = 0;
  for (; *text; text++) {
    if (*text < '0' || *text > '7') return false;
    bits = bits * 8 + (uint32_t)(*text - '0');
  }
  if ((bits & 0600) != 0600 || (bits & 0113) != 0) return false;
  *mode = bits;
  return true;
}

const char *dibs__location_fs_flaw(uint64_t magic, bool *perhaps) {
  static const struct {
    uint32_t magic;
    const char *name;
  } network[] = {
      {0x00006969, "NFS"},
      {0x0000517b, "SMB"},
      {0xff534d42, "CIFS"},
      {0xfe534d42, "SMB"},
      {0x01021997, "9p"},
      {0x00c36400, "Ceph"},
      {0x5346414f, "AFS"},
      {0x6b414653, "AFS"},
      {0x73757245, "Coda"},
      {0x0000564c, "NCP"},
      {0x7461636f, "OCFS2"},
      {0x01161970, "GFS2"},
      {0x0bd00bd0, "Lustre"},
      {0x47504653, "GPFS"},
      {0xaad7aaea, "PanFS"},
      {0x19830326, "BeeGFS"},
      {0x20030528, "OrangeFS"},
      {0x61636673, "ACFS"},
      {0xbeefdead, "SNFS"},
      {0x013111a8, "IBRIX"},
      {0x786f4256, "VirtualBox shared folder"},
      {0xbacbacbc, "VMware shared folder"},
      {0x7c7c6673, "Parallels shared folder"},
  };
  static const uint32_t fuse = 0x65735546; /* may be on a network (sshfs, virtiofs) or not (a local NTFS) */
  *perhaps = magic == fuse;
  if (magic == fuse) return "FUSE";
  for (size_t i = 0; i < sizeof network / sizeof *network; i++)
    if (network[i].magic == magic) return network[i].name;
  return NULL;
}

static uint32_t folder_mode_of(uint32_t file_mode) {
  uint32_t execute = (file_mode >> 2 | file_mode >> 1) & 0111;
  return file_mode | execute;
}

/* ---- Resolving ---- */

/* "a/b" from "a" and "b"; NULL when out of memory. */
static char *join_path(const char *folder, const char *name) {
  size_t length = strlen(folder);
  while (length > 1 && folder[length - 1] == '/') length--;
  if (length == 1 && folder[0] == '/') length = 0;
  size_t size = length + strlen(name) + 2;
  char *path = malloc(size);
  if (path) snprintf(path, size, "%.*s/%s", (int)length, folder, name);
  return path;
}

static dibs__status standard_location(struct dibs__location *location, struct dibs__result *result) {
  location->standard = true;
  const char *state = secure_getenv("XDG_STATE_HOME");
  if (geteuid() == 0) {
    location->folder = strdup("/var/lib/dibs");
  } else if (state && state[0] == '/') { /* as its specification requires: a relative path is ignored */
    location->folder = join_path(state, "dibs");
  } else {
    char capacity[4096];
    const char *home = dibs__home_folder(capacity, sizeof capacity);
    if (!home) {
      dibs__set_message(result, "HOME is not set, so the default store has no folder: name a file, sqlite:///path");
      return DIBS_INVALID;
    }
    location->folder = join_path(home, ".local/state/dibs");
  }
  if (location->folder) location->path = join_path(location->folder, "dibs.db");
  return location->path ? DIBS_OK : DIBS_NO_MEMORY;
}

static dibs__status named_location(const char *path, struct dibs__location *location, struct dibs__result *result) {
  const char *slash = strrchr(path, '/');
  const char *base = slash ? slash + 1 : path;
  if (*base == '\0' || strcmp(base, ".") == 0 || strcmp(base, "..") == 0) {
    dibs__set_message(result, "%s names a folder: add a file name, such as dibs.db", path);
    return DIBS_INVALID;
  }
  if (!slash)
    location->folder = strdup(".");
  else
    location->folder = slash == path ? strdup("/") : strndup(path, (size_t)(slash - path));
  location->path = strdup(path);
  return location->folder && location->path ? DIBS_OK : DIBS_NO_MEMORY;
}

dibs__status dibs__location_resolve(const struct dibs__uri *uri, struct dibs__location *location,
                                    struct dibs__result *result) {
  memset(location, 0, sizeof *location);
  location->file_mode = 0600;
  const char *mode = dibs__uri_param(uri, "mode"), *fs = dibs__uri_param(uri, "fs");
  if (mode && !dibs__location_mode(mode, &location->file_mode)) {
    dibs__set_message(result,
                      "mode=%s is not octal permissions such as 0600 or 0660: the owner must read and write, no user "
                      "may execute, and not every user may write",
                      mode);
    return DIBS_INVALID;
  }
  if (fs && strcmp(fs, "any") != 0) {
    dibs__set_message(result, "fs=%s is not fs=any", fs);
    return DIBS_INVALID;
  }
  if (uri->hosts[0] != '\0' || uri->user) {
    dibs__set_message(result, "an embedded store has no host: write sqlite:///absolute/path, with three slashes");
    return DIBS_INVALID;
  }
  location->any_fs = fs != NULL;
  location->folder_mode = folder_mode_of(location->file_mode);
  dibs__status status =
      uri->path[0] == '\0' ? standard_location(location, result) : named_location(uri->path, location, result);
  if (status != DIBS_OK) dibs__location_free(location);
  return status;
}

void dibs__location_free(struct dibs__location *location) {
  free(location->path);
  free(location->folder);
  memset(location, 0, sizeof *location);
}

/* ---- Folders ---- */

static dibs__status refuse_folder(const char *what, const char *path, int e, struct dibs__result *result) {
  dibs__set_message(result, "%s %s: %s", path, what, strerror(e));
  switch (e) {
  case EACCES:
  case EPERM:
  case EROFS:
  case ELOOP:
    return DIBS_DENIED;
  case ENOMEM:
    return DIBS_NO_MEMORY;
  case ENAMETOOLONG:
    return DIBS_INVALID;
  default:
    return DIBS_UNAVAILABLE;
  }
}

/* Makes one folder with exactly these permissions; an existing one stays as it is.  false with errno. */
static bool make_folder(const char *path, uint32_t mode) {
  if (mkdir(path, 0700) != 0) return errno == EEXIST;
  if (mode == 0700 && chmod(path, 0700) == 0) return true; /* against a umask that takes permissions from the owner */
  int fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  if (fd < 0) return false;
  bool fine = fchmod(fd, (mode_t)mode) == 0;
  int e = errno;
  close(fd);
  errno = e;
  return fine;
}

/* The folders above are for the owner alone, as the XDG specification requires. */
static dibs__status make_folders(const char *folder, uint32_t mode, struct dibs__result *result) {
  char *above = strdup(folder);
  if (!above) return DIBS_NO_MEMORY;
  dibs__status status = DIBS_OK;
  for (char *slash = strchr(above + 1, '/'); slash && status == DIBS_OK; slash = strchr(slash + 1, '/')) {
    *slash = '\0';
    if (!make_folder(above, 0700)) status = refuse_folder("can't be created", above, errno, result);
    *slash = '/';
  }
  if (status == DIBS_OK && !make_folder(folder, mode))
    status = refuse_folder("can't be created", folder, errno, result);
  free(above);
  return status;
}

static dibs__status check_standard(const struct dibs__location *location, struct dibs__result *result) {
  struct stat s;
  if (lstat(location->folder, &s) != 0) return refuse_folder("can't be inspected", location->folder, errno, result);
  if (S_ISLNK(s.st_mode)) {
    dibs__set_message(result, "%s is a symbolic link: remove it, or name the store by its real path", location->folder);
    return DIBS_DENIED;
  }
  if (!S_ISDIR(s.st_mode)) {
    dibs__set_message(result, "%s is not a folder: move it away", location->folder);
    return DIBS_DENIED;
  }
  if (s.st_uid != geteuid()) {
    dibs__set_message(result, "%s belongs to user %u, not to you (%u): name another file, sqlite:///path",
                      location->folder, s.st_uid, geteuid());
    return DIBS_DENIED;
  }
  uint32_t open_to = (uint32_t)s.st_mode & 0022 & ~location->folder_mode;
  if (open_to != 0) {
    dibs__set_message(result, "other users can write to %s (%04o): chmod %s %s", location->folder,
                      (unsigned)s.st_mode & 07777, open_to & 02 ? "o-w" : "g-w", location->folder);
    return DIBS_DENIED;
  }
  return DIBS_OK;
}

/* Resolves links, so that two paths to one file are one store: SQLite uses the real path too. */
static dibs__status resolve_links(struct dibs__location *location, struct dibs__result *result) {
  char *folder = realpath(location->folder, NULL);
  if (!folder && errno == ENOENT) {
    dibs__set_message(result, "%s does not exist: create that folder, or mount its file system", location->folder);
    return DIBS_UNAVAILABLE;
  }
  if (!folder) return refuse_folder("can't be found", location->folder, errno, result);
  const char *slash = strrchr(location->path, '/');
  char *path = join_path(folder, slash ? slash + 1 : location->path);
  free(location->folder);
  free(location->path);
  location->folder = folder;
  location->path = path;
  if (!path) return DIBS_NO_MEMORY;

  struct stat s;
  if (lstat(path, &s) != 0) return errno == ENOENT ? DIBS_OK : refuse_folder("can't be inspected", path, errno, result);
  if (S_ISLNK(s.st_mode)) {
    char *real = realpath(path, NULL);
    if (!real) return refuse_folder("is a symbolic link that can't be followed", path, errno, result);
    free(location->path);
    location->path = real;
    char *end = strrchr(real, '/');
    char *in = strndup(real, end == real ? 1 : (size_t)(end - real));
    if (!in) return DIBS_NO_MEMORY;
    free(location->folder);
    location->folder = in;
    if (stat(real, &s) != 0) return refuse_folder("can't be inspected", real, errno, result);
  }
  if (!S_ISREG(s.st_mode)) {
    dibs__set_message(result, "%s is not a plain file: name another one", location->path);
    return DIBS_INVALID;
  }
  return DIBS_OK;
}

dibs__status dibs__location_make_folder(struct dibs__location *location, struct dibs__result *result) {
  if (location->standard) {
    dibs__status status = make_folders(location->folder, location->folder_mode, result);
    if (status == DIBS_OK) status = check_standard(location, result);
    if (status != DIBS_OK) return status;
  }
  return resolve_links(location, result);
}

/* ---- File system and file ---- */

/* UNSUPPORTED: the file system does not keep locks reliably, and why. */
static dibs__status location_check_fs(const struct dibs__location *location, struct dibs__result *result) {
  struct statfs s;
  int r;
  do r = statfs(location->folder, &s);
  while (r != 0 && errno == EINTR);
  if (r != 0) return refuse_folder("can't be inspected", location->folder, errno, result);
  bool perhaps;
  const char *flaw = dibs__location_fs_flaw((uint32_t)s.f_type, &perhaps);
  if (!flaw || (perhaps && location->any_fs)) return DIBS_OK;
  if (perhaps)
    dibs__set_message(result,
                      "%s is on %s, which may hide locks and shared memory from other processes that use the file: use "
                      "a local file system, or add ?fs=any if you know that it does not",
                      location->folder, flaw);
  else
    dibs__set_message(result,
                      "%s is on a network or cluster file system (%s), where locks and shared memory do not reach "
                      "other machines: use a local file system, or a store on a server",
                      location->folder, flaw);
  return DIBS_UNSUPPORTED;
}

dibs__status dibs__location_prepare(const struct dibs__uri *uri, struct dibs__location *location,
                                    struct dibs__result *result) {
  dibs__status status = dibs__location_resolve(uri, location, result);
  if (status != DIBS_OK) return status;
  status = dibs__location_make_folder(location, result);
  if (status == DIBS_OK) status = location_check_fs(location, result);
  if (status != DIBS_OK) dibs__location_free(location);
  return status;
}
