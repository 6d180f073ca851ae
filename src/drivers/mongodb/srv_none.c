/* SPDX-License-Identifier: MIT */
/* mongodb+srv:// where the C library has no res_nquery. */
#include "drivers/mongodb/mongodb_impl.h"

bool dibs__mongo_srv_valid(const char *name) {
  (void)name;
  return true;
}

dibs__status dibs__mongo_srv(const char *name, const char *given, const char *shown, dibs__tick by, char **hosts,
                             char **options, struct dibs__result *result) {
  (void)name, (void)given, (void)by;
  *hosts = *options = NULL;
  dibs__set_message(result, "%.100s: this build can't look up SRV records; name the hosts in mongodb://", shown);
  return DIBS_UNSUPPORTED;
}
