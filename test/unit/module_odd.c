/* SPDX-License-Identifier: MIT */
/* A module with a defect, which DIBS__ODD selects; built once for each defect. */
#include "store/registry.h"

enum { ODD_FINE, ODD_ABI, ODD_SIZE, ODD_NOTHING, ODD_OTHER_SCHEME, ODD_NOT_WHOLE };

static dibs__status odd_open(const struct dibs__uri *uri, struct dibs__dstore *const inner[], size_t count,
                             dibs__tick by, struct dibs__dstore **store, struct dibs__result *reported) {
  (void)inner, (void)count, (void)by;
  *store = NULL;
  dibs__set_message(reported, "odd was opened as %s", uri->shown); /* a function of libdibs: the module found it */
  return DIBS_UNAVAILABLE;
}

static void odd_close(struct dibs__dstore *store) {
  (void)store;
}

static dibs__status odd_connect(struct dibs__dstore *store, dibs__tick by, struct dibs__session **session,
                                struct dibs__identity *identity, struct dibs__result *reported) {
  (void)store, (void)by, (void)session, (void)identity, (void)reported;
  return DIBS_UNAVAILABLE;
}

static void odd_disconnect(struct dibs__session *session) {
  (void)session;
}

static dibs__status odd_run(struct dibs__session *session, struct dibs__op *const ops[], size_t count, dibs__tick by,
                            struct dibs__result *reported) {
  (void)session, (void)ops, (void)count, (void)by, (void)reported;
  return DIBS_UNAVAILABLE;
}

static dibs__status odd_events(struct dibs__dstore *store, struct dibs__event *events, size_t cap, size_t *count,
                               dibs__tick by) {
  (void)store, (void)events, (void)cap, (void)count, (void)by;
  return DIBS_UNAVAILABLE;
}

static dibs__status odd_list(struct dibs__session *session, const struct dibs__list *list, dibs__tick by,
                             struct dibs__result *reported) {
  (void)session, (void)list, (void)by, (void)reported;
  return DIBS_UNAVAILABLE;
}

static const char *const schemes[] = {DIBS__ODD == ODD_OTHER_SCHEME ? "something-else" : DIBS__ODD_NAME, NULL};

static const struct dibs__driver odd_driver = {
    .size = sizeof(struct dibs__driver) - (DIBS__ODD == ODD_SIZE ? 8 : 0),
    .abi = DIBS__DRIVER_ABI + (DIBS__ODD == ODD_ABI ? 1 : 0),
    .name = "odd",
    .schemes = schemes,
    .open = odd_open,
    .close = odd_close,
    .connect = odd_connect,
    .disconnect = odd_disconnect,
    .run = odd_run,
    .events = odd_events,
    .wake = DIBS__ODD == ODD_NOT_WHOLE ? NULL : odd_close,
    .list = odd_list,
};

DIBS__MODULE_API dibs__module_fn DIBS__ODD_SYMBOL;

const struct dibs__driver *DIBS__ODD_SYMBOL(void) {
  return DIBS__ODD == ODD_NOTHING ? NULL : &odd_driver;
}
