/* SPDX-License-Identifier: MIT */
/* All routes: what the server takes, and what /openapi.json says. */
#include "serve/server.h"

extern const struct route dibs__lease_routes[];
extern const struct route dibs__name_routes[];
extern const struct route dibs__record_routes[];
extern const struct route dibs__stock_routes[];
extern const struct route dibs__counter_routes[];
extern const struct route dibs__lane_routes[];
extern const struct route dibs__lane_member_routes[];
extern const struct route dibs__once_routes[];
extern const struct route dibs__claim_routes[];
extern const struct route dibs__task_routes[];
extern const struct route dibs__task_list_routes[];
extern const struct route dibs__outbox_routes[];
extern const struct route dibs__kind_routes[];
extern const struct route dibs__phase_routes[];
extern const struct route dibs__history_routes[];
extern const struct route dibs__fleet_routes[];
extern const struct route dibs__cron_routes[];
extern const struct route dibs__metric_routes[];
extern const struct route dibs__store_routes[];
extern const struct route dibs__operation_routes[];
extern const struct route dibs__event_routes[];
extern const struct route dibs__series_routes[];
extern const struct route dibs__web_routes[];

const struct route *const dibs__routes[] = {
    dibs__lease_routes,   dibs__name_routes,   dibs__record_routes,      dibs__stock_routes,
    dibs__counter_routes, dibs__lane_routes,   dibs__lane_member_routes, dibs__once_routes,
    dibs__claim_routes,   dibs__task_routes,   dibs__task_list_routes,   dibs__outbox_routes,
    dibs__kind_routes,    dibs__phase_routes,  dibs__history_routes,     dibs__fleet_routes,
    dibs__cron_routes,    dibs__metric_routes, dibs__store_routes,       dibs__operation_routes,
    dibs__event_routes,   dibs__series_routes, dibs__web_routes,         NULL,
};
