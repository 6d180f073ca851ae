/* SPDX-License-Identifier: MIT */
#include "drivers/sqlite_place.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

/* ---- Pure parts ---- */

bool dibs__place_mode(const char *text, uint32_t *mode) {
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

const char *dibs__place_fs_flaw(uint64_t magic, bool *perhaps) {
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
  static const uint32_t fuse = 0x65735546; /* may be a network's (sshfs, virtiofs) or not (a local NTFS) */
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
static char *join(const char *folder, const char *name) {
  size_t length = strlen(folder);
  while (length > 1 && folder[length - 1] == '/') length--;
  if (length == 1 && folder[0] == '/') length = 0;
  size_t size = length + strlen(name) + 2;
  char *path = malloc(size);
  if (path) snprintf(path, size, "%.*s/%s", (int)length, folder, name);
  return path;
}

/* The home of whoever we act as; `room` is what it may live in. */
static const char *home_of(char *room, size_t size) {
  const char *home = secure_getenv("HOME");
  if (home && home[0] == '/') return home;
  struct passwd entry, *found = NULL;
  if (getpwuid_r(geteuid(), &entry, room, size, &found) != 0 || !found || !found->pw_dir || found->pw_dir[0] != '/')
    return NULL;
  return found->pw_dir;
}

static dibs__status standard_place(struct dibs__place *place, struct dibs__said *said) {
  place->standard = true;
  const char *state = secure_getenv("XDG_STATE_HOME");
  if (geteuid() == 0) {
    place->folder = strdup("/var/lib/dibs");
  } else if (state && state[0] == '/') { /* its specification: not absolute, not looked at */
    place->folder = join(state, "dibs");
  } else {
    char room[4096];
    const char *home = home_of(room, sizeof room);
    if (!home) {
      dibs__say(said, "there is no HOME to keep the store in: name a file, sqlite:///path");
      return DIBS_INVALID;
    }
    place->folder = join(home, ".local/state/dibs");
  }
  if (place->folder) place->path = join(place->folder, "dibs.db");
  return place->path ? DIBS_OK : DIBS_NO_MEMORY;
}

static dibs__status named_place(const char *path, struct dibs__place *place, struct dibs__said *said) {
  const char *slash = strrchr(path, '/');
  const char *base = slash ? slash + 1 : path;
  if (*base == '\0' || strcmp(base, ".") == 0 || strcmp(base, "..") == 0) {
    dibs__say(said, "%s names a folder: add a file name, such as dibs.db", path);
    return DIBS_INVALID;
  }
  if (!slash)
    place->folder = strdup(".");
  else
    place->folder = slash == path ? strdup("/") : strndup(path, (size_t)(slash - path));
  place->path = strdup(path);
  return place->folder && place->path ? DIBS_OK : DIBS_NO_MEMORY;
}

dibs__status dibs__place_resolve(const struct dibs__uri *uri, struct dibs__place *place, struct dibs__said *said) {
  memset(place, 0, sizeof *place);
  place->file_mode = 0600;
  const char *mode = dibs__uri_param(uri, "mode"), *fs = dibs__uri_param(uri, "fs");
  if (mode && !dibs__place_mode(mode, &place->file_mode)) {
    dibs__say(said,
              "mode=%s: wanted octal permissions such as 0600 or 0660: its owner may read and write, nobody may "
              "execute, not everybody may write",
              mode);
    return DIBS_INVALID;
  }
  if (fs && strcmp(fs, "any") != 0) {
    dibs__say(said, "fs=%s: only fs=any is known", fs);
    return DIBS_INVALID;
  }
  if (uri->hosts[0] != '\0' || uri->user) {
    dibs__say(said, "an embedded store has no host: write sqlite:///absolute/path, with three slashes");
    return DIBS_INVALID;
  }
  place->any_fs = fs != NULL;
  place->folder_mode = folder_mode_of(place->file_mode);
  dibs__status status = uri->path[0] == '\0' ? standard_place(place, said) : named_place(uri->path, place, said);
  if (status != DIBS_OK) dibs__place_free(place);
  return status;
}

void dibs__place_free(struct dibs__place *place) {
  free(place->path);
  free(place->folder);
  memset(place, 0, sizeof *place);
}

/* ---- Folders ---- */

static dibs__status refuse(const char *what, const char *path, int e, struct dibs__said *said) {
  dibs__say(said, "%s %s: %s", path, what, strerror(e));
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

/* Makes one folder with exactly these permissions; one that is there stays as it is.  false with errno. */
static bool make_one(const char *path, uint32_t mode) {
  if (mkdir(path, 0700) != 0) return errno == EEXIST;
  if (mode == 0700 && chmod(path, 0700) == 0) return true; /* against a umask that takes from the owner */
  int fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  if (fd < 0) return false;
  bool fine = fchmod(fd, (mode_t)mode) == 0;
  int e = errno;
  close(fd);
  errno = e;
  return fine;
}

/* The folders above are the owner's alone, as the XDG specification asks. */
static dibs__status make_all(const char *folder, uint32_t mode, struct dibs__said *said) {
  char *above = strdup(folder);
  if (!above) return DIBS_NO_MEMORY;
  dibs__status status = DIBS_OK;
  for (char *slash = strchr(above + 1, '/'); slash && status == DIBS_OK; slash = strchr(slash + 1, '/')) {
    *slash = '\0';
    if (!make_one(above, 0700)) status = refuse("can't be made", above, errno, said);
    *slash = '/';
  }
  if (status == DIBS_OK && !make_one(folder, mode)) status = refuse("can't be made", folder, errno, said);
  free(above);
  return status;
}

static dibs__status check_standard(const struct dibs__place *place, struct dibs__said *said) {
  struct stat s;
  if (lstat(place->folder, &s) != 0) return refuse("can't be examined", place->folder, errno, said);
  if (S_ISLNK(s.st_mode)) {
    dibs__say(said, "%s is a symbolic link: remove it, or name the store by its real path", place->folder);
    return DIBS_DENIED;
  }
  if (!S_ISDIR(s.st_mode)) {
    dibs__say(said, "%s is not a folder: move it away", place->folder);
    return DIBS_DENIED;
  }
  if (s.st_uid != geteuid()) {
    dibs__say(said, "%s belongs to user %u, not to you (%u): name another file, sqlite:///path", place->folder,
              s.st_uid, geteuid());
    return DIBS_DENIED;
  }
  uint32_t open_to = (uint32_t)s.st_mode & 0022 & ~place->folder_mode;
  if (open_to != 0) {
    dibs__say(said, "%s may be written by others (%04o): chmod %s %s", place->folder, (unsigned)s.st_mode & 07777,
              open_to & 02 ? "o-w" : "g-w", place->folder);
    return DIBS_DENIED;
  }
  return DIBS_OK;
}

/* Without links, so that two ways to one file are one store: SQLite goes by the real path too. */
static dibs__status resolve_links(struct dibs__place *place, struct dibs__said *said) {
  char *folder = realpath(place->folder, NULL);
  if (!folder && errno == ENOENT) {
    dibs__say(said, "%s does not exist: make that folder, or is its file system not mounted?", place->folder);
    return DIBS_UNAVAILABLE;
  }
  if (!folder) return refuse("can't be found", place->folder, errno, said);
  const char *slash = strrchr(place->path, '/');
  char *path = join(folder, slash ? slash + 1 : place->path);
  free(place->folder);
  free(place->path);
  place->folder = folder;
  place->path = path;
  if (!path) return DIBS_NO_MEMORY;

  struct stat s;
  if (lstat(path, &s) != 0) return errno == ENOENT ? DIBS_OK : refuse("can't be examined", path, errno, said);
  if (S_ISLNK(s.st_mode)) {
    char *real = realpath(path, NULL);
    if (!real) return refuse("is a symbolic link that can't be followed", path, errno, said);
    free(place->path);
    place->path = real;
    char *end = strrchr(real, '/');
    char *in = strndup(real, end == real ? 1 : (size_t)(end - real));
    if (!in) return DIBS_NO_MEMORY;
    free(place->folder);
    place->folder = in;
    if (stat(real, &s) != 0) return refuse("can't be examined", real, errno, said);
  }
  if (!S_ISREG(s.st_mode)) {
    dibs__say(said, "%s is not a plain file: name another one", place->path);
    return DIBS_INVALID;
  }
  return DIBS_OK;
}

dibs__status dibs__place_make_folder(struct dibs__place *place, struct dibs__said *said) {
  if (place->standard) {
    dibs__status status = make_all(place->folder, place->folder_mode, said);
    if (status == DIBS_OK) status = check_standard(place, said);
    if (status != DIBS_OK) return status;
  }
  return resolve_links(place, said);
}

/* ---- File system and file ---- */

dibs__status dibs__place_check_fs(const struct dibs__place *place, struct dibs__said *said) {
  struct statfs s;
  int r;
  do r = statfs(place->folder, &s);
  while (r != 0 && errno == EINTR);
  if (r != 0) return refuse("can't be examined", place->folder, errno, said);
  bool perhaps;
  const char *flaw = dibs__place_fs_flaw((uint32_t)s.f_type, &perhaps);
  if (!flaw || (perhaps && place->any_fs)) return DIBS_OK;
  if (perhaps)
    dibs__say(said,
              "%s is on %s, which may keep locks and shared memory from other users of the file: use a local file "
              "system, or add ?fs=any if you know that it does not",
              place->folder, flaw);
  else
    dibs__say(said,
              "%s is on a network or cluster file system (%s), where locks and shared memory do not reach other "
              "machines: use a local file system, or a store on a server",
              place->folder, flaw);
  return DIBS_UNSUPPORTED;
}

dibs__status dibs__place_prepare(const struct dibs__uri *uri, struct dibs__place *place, struct dibs__said *said) {
  dibs__status status = dibs__place_resolve(uri, place, said);
  if (status != DIBS_OK) return status;
  status = dibs__place_make_folder(place, said);
  if (status == DIBS_OK) status = dibs__place_check_fs(place, said);
  if (status != DIBS_OK) dibs__place_free(place);
  return status;
}

dibs__status dibs__place_make_file(const struct dibs__place *place, bool *made, struct dibs__said *said) {
  *made = false;
  /* O_EXCL: only a file that nobody has open is closed here again.  Closing any descriptor of a database would drop the
   * POSIX locks that SQLite holds on it in this process. */
  int fd = open(place->path, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, (mode_t)place->file_mode);
  if (fd < 0) return errno == EEXIST ? DIBS_OK : refuse("can't be made", place->path, errno, said);
  dibs__status status = DIBS_OK;
  if (fchmod(fd, (mode_t)place->file_mode) != 0) {
    status = refuse("can't be given its permissions", place->path, errno, said);
    unlink(place->path);
  }
  close(fd);
  *made = status == DIBS_OK;
  return status;
}
