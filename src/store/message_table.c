/* SPDX-License-Identifier: MIT */
/* The members of each family's operation that travel, with their limits: see message.h. */
#include "store/message_impl.h"

/* Where each driver checks a member itself, and has an answer for it, a larger limit passes here, too. */
#define LOOSE (16u << 20)
#define TASK_MS (INT64_C(1) << 62)

#define T struct dibs__lease_op
static const struct member lease_request[] = {M(T, name, DIBS_NAME_MAX),
                                              M(T, owner, DIBS_OWNER_MAX),
                                              M(T, id, 0),
                                              M(T, fence, DIBS__FENCE_MAX),
                                              M(T, mode, UINT32_MAX),
                                              M(T, slots, DIBS_SLOTS_MAX),
                                              M(T, ttl_ms, DIBS_TTL_MAX_MS),
                                              M(T, want_block, UINT32_MAX),
                                              M(T, ticket, INT64_MAX),
                                              M(T, queue, 1),
                                              M(T, now, 1),
                                              M(T, only_waits, 1),
                                              LAST};
static const struct member lease_answer[] = {M(T, fence, DIBS__FENCE_MAX),
                                             M(T, ticket, UINT64_MAX),
                                             M(T, waiting, 1),
                                             M(T, got_block, DIBS__BLOCK_MAX),
                                             M(T, slot, DIBS_SLOTS_MAX),
                                             M(T, was, UINT32_MAX), /* or `ahead` */
                                             ANY_INT(T, until),
                                             {.kind = KEPT, .at = offsetof(T, tier), .most = 64},
                                             ANY_INT(T, recheck),
                                             LAST};
#undef T

#define T struct dibs__anchor_op
static const struct member anchor_request[] = {M(T, above, DIBS__FENCE_MAX), LAST};
static const struct member anchor_answer[] = {M(T, current.epoch, UINT32_MAX),
                                              {.kind = CHARS,
                                               .at = offsetof(T, current.incarnation),
                                               .size = sizeof(dibs__incarnation),
                                               .most = 1}, /* all bytes */
                                              M(T, served, 1),
                                              M(T, left, 1),
                                              M(T, used, 1),
                                              M(T, last, UINT64_MAX),
                                              LAST};
#undef T

#define T struct dibs__record_op
static const struct member record_request[] = {M(T, key, LOOSE),
                                               M(T, id, 0),
                                               M(T, fence, DIBS__FENCE_MAX),
                                               M(T, data, LOOSE),
                                               M(T, guards, 2 * DIBS__IF_DIGEST - 1),
                                               M(T, if_version, LOOSE),
                                               M(T, if_digest, UINT64_MAX),
                                               LAST};
static const struct member record_answer[] = {M(T, seen, UINT64_MAX),   M(T, version, UINT64_MAX),
                                              BLOB_OF(T, got, got_len), CHARS_OF(T, version_text),
                                              CHARS_OF(T, why),         LAST};
#undef T

#define T struct dibs__stock_row
static const struct member stock_row[] = {M(T, key, DIBS_NAME_MAX), ANY_INT(T, used), ANY_INT(T, limit), LAST};
#undef T

#define T struct dibs__stock_op
static const struct member stock_request[] = {M(T, strategy, DIBS_FENCED),
                                              M(T, partial, 1),
                                              M(T, key, DIBS_NAME_MAX),
                                              M(T, claim, DIBS_NAME_MAX),
                                              M(T, owner, DIBS_OWNER_MAX),
                                              SIGNED(T, amount, 0, INT64_MAX),
                                              M(T, id, 0),
                                              M(T, fence, DIBS__FENCE_MAX),
                                              M(T, tries, UINT32_MAX),
                                              LAST};
static const struct member stock_answer[] = {
    ANY_INT(T, got),
    ANY_INT(T, used),
    ANY_INT(T, limit),
    M(T, retries, UINT32_MAX),
    M(T, deadlocks, UINT32_MAX),
    CHARS_OF(T, why),
    ELEMENTS(ROWS, T, rows, row_count, struct dibs__stock_row, DIBS__STOCK_ROWS, stock_row, VERB(DIBS__STOCK_LIST)),
    LAST};
#undef T

#define T struct dibs__once_op
static const struct member once_request[] = {
    M(T, key, LOOSE),  M(T, id, 0), M(T, fence, DIBS__FENCE_MAX), SIGNED(T, keep_ms, -TASK_MS, TASK_MS),
    M(T, data, LOOSE), LAST};
static const struct member once_answer[] = {BLOB_OF(T, got, got_len), ANY_INT(T, age_ms), ANY_INT(T, left_ms), LAST};
#undef T

static const struct member report_row[] = {M(struct dibs__report, id, 0), ANY_INT(struct dibs__report, age_ms),
                                           M(struct dibs__report, data, DIBS__REPORT_MAX), LAST};
#define T struct dibs__report_op
static const struct member report_request[] = {M(T, id, 0), M(T, data, DIBS__REPORT_MAX),
                                               SIGNED(T, keep_ms, 0, DIBS__TASK_MS_MAX), M(T, want, 1), LAST};
static const struct member report_answer[] = {
    ELEMENTS(ROWS, T, got, got_count, struct dibs__report, DIBS__REPORTS_MAX, report_row, 0), LAST};
#undef T

#define T struct dibs__task_new
static const struct member task_new[] = {M(T, phase, LOOSE),
                                         M(T, serial, LOOSE),
                                         M(T, unique, LOOSE),
                                         M(T, payload, LOOSE),
                                         SIGNED(T, at_ms, -TASK_MS, TASK_MS),
                                         SIGNED(T, delay_ms, -TASK_MS, TASK_MS),
                                         SIGNED(T, priority, INT32_MIN, INT32_MAX),
                                         M(T, tries, UINT32_MAX),
                                         LAST};
static const struct member task_new_answer[] = {SIGNED(T, status, 0, DIBS__MOVED), M(T, nr, UINT64_MAX),
                                                M(T, repeated, 1), LAST};
#undef T

#define T struct dibs__task_item
static const struct member task_item[] = {M(T, nr, UINT64_MAX),
                                          M(T, fence, UINT64_MAX),
                                          M(T, phase, LOOSE),
                                          M(T, text, LOOSE),
                                          M(T, verdict, UINT32_MAX),
                                          M(T, tries, UINT32_MAX),
                                          SIGNED(T, delay_ms, -TASK_MS, TASK_MS),
                                          LAST};
static const struct member task_item_answer[] = {SIGNED(T, status, 0, DIBS__MOVED), M(T, repeated, 1),
                                                 ANY_INT(T, due_ms), LAST};
#undef T

#define T struct dibs__task_row
static const struct member task_row[] = {M(T, nr, UINT64_MAX),
                                         M(T, fence, UINT64_MAX),
                                         M(T, kind, DIBS_NAME_MAX),
                                         M(T, phase, DIBS_NAME_MAX),
                                         M(T, serial, DIBS_NAME_MAX),
                                         M(T, unique, DIBS_NAME_MAX),
                                         M(T, payload, DIBS_RECORD_MAX),
                                         M(T, by, DIBS_OWNER_MAX),
                                         M(T, text, DIBS_RECORD_MAX),
                                         M(T, state, UINT32_MAX),
                                         M(T, attempts, UINT32_MAX),
                                         M(T, fails, UINT32_MAX),
                                         M(T, tries, UINT32_MAX),
                                         SIGNED(T, priority, INT32_MIN, INT32_MAX),
                                         ANY_INT(T, made_ms),
                                         ANY_INT(T, due_ms),
                                         ANY_INT(T, began_ms),
                                         ANY_INT(T, at_ms),
                                         LAST};
#undef T

#define T struct dibs__task_kind
static const struct member task_kind[] = {M(T, kind, DIBS_NAME_MAX),
                                          M(T, states[0], UINT64_MAX),
                                          M(T, states[1], UINT64_MAX),
                                          M(T, states[2], UINT64_MAX),
                                          M(T, states[3], UINT64_MAX),
                                          M(T, states[4], UINT64_MAX),
                                          M(T, states[5], UINT64_MAX),
                                          M(T, states[6], UINT64_MAX),
                                          M(T, states[7], UINT64_MAX),
                                          M(T, states[8], UINT64_MAX),
                                          ANY_INT(T, oldest_ms),
                                          M(T, running, UINT32_MAX),
                                          M(T, paused, 1),
                                          ANY_INT(T, keep_ms),
                                          M(T, topic, DIBS_NAME_MAX),
                                          LAST};
#undef T

#define T struct dibs__task_lane
static const struct member task_lane[] = {M(T, lane, UINT32_MAX), M(T, fence, UINT64_MAX), LAST};
static const struct member task_lane_answer[] = {SIGNED(T, status, 0, DIBS__MOVED), LAST};
#undef T

static const struct member phase_name[] = {{.kind = TEXT, .most = LOOSE}, LAST};

#define T struct dibs__task_op
#define OF_ITEMS (VERB(DIBS__TASK_EXTEND) | VERB(DIBS__TASK_END))
static const struct member task_request[] = {
    M(T, kind, LOOSE),
    ELEMENTS(ARRAY, T, news, count, struct dibs__task_new, LOOSE, task_new, VERB(DIBS__TASK_ADD)),
    ELEMENTS(ARRAY, T, items, count, struct dibs__task_item, LOOSE, task_item, OF_ITEMS),
    M(T, token, LOOSE),
    SIGNED(T, token_ms, -TASK_MS, TASK_MS),
    M(T, wants_new, 1),
    M(T, id, 0),
    M(T, again, 1),
    ELEMENTS(ARRAY, T, phases, phase_count, dibs__str, LOOSE, phase_name, VERB(DIBS__TASK_CLAIM)),
    M(T, by, LOOSE),
    SIGNED(T, timeout_ms, -TASK_MS, TASK_MS),
    M(T, most, UINT32_MAX),
    ELEMENTS(ARRAY, T, lanes, lane_count, struct dibs__task_lane, LOOSE, task_lane, VERB(DIBS__TASK_CLAIM)),
    M(T, of_lanes, UINT32_MAX),
    M(T, topic, LOOSE),
    M(T, from, UINT32_MAX),
    M(T, filter.nr, UINT64_MAX),
    M(T, filter.after, UINT64_MAX),
    M(T, filter.kind, LOOSE),
    M(T, filter.phase, LOOSE),
    M(T, filter.serial, LOOSE),
    M(T, filter.states, UINT32_MAX),
    SIGNED(T, filter.older_ms, -TASK_MS, TASK_MS),
    M(T, filter.text, LOOSE),
    M(T, change, LOOSE),
    M(T, dry, 1),
    M(T, errors, 1),
    M(T, payloads, 1),
    M(T, set, UINT32_MAX),
    M(T, running, UINT32_MAX),
    M(T, paused, 1),
    SIGNED(T, keep_ms, -TASK_MS, TASK_MS),
    LAST};
static const struct member task_answer[] = {
    ELEMENTS(EACH, T, news, count, struct dibs__task_new, DIBS__TASK_ITEMS, task_new_answer, VERB(DIBS__TASK_ADD)),
    ELEMENTS(EACH, T, items, count, struct dibs__task_item, DIBS__TASK_ITEMS, task_item_answer, OF_ITEMS),
    ELEMENTS(EACH, T, lanes, lane_count, struct dibs__task_lane, LOOSE, task_lane_answer, VERB(DIBS__TASK_CLAIM)),
    M(T, from, UINT32_MAX),
    ELEMENTS(ROWS, T, got, got_count, struct dibs__task_row, DIBS__TASK_ITEMS, task_row,
             VERB(DIBS__TASK_CLAIM) | VERB(DIBS__TASK_LIST)),
    ELEMENTS(ROWS, T, got, got_count, struct dibs__task_kind, UINT32_MAX, task_kind, VERB(DIBS__TASK_COUNT)),
    ANY_INT(T, next_ms),
    M(T, more, 1),
    M(T, changed, UINT64_MAX),
    M(T, last, UINT64_MAX),
    CHARS_OF(T, why),
    LAST};
#undef T

#define T struct dibs__run_row
static const struct member run_row[] = {M(T, id, 0),
                                        M(T, name, DIBS_NAME_MAX),
                                        M(T, kind, DIBS_NAME_MAX),
                                        M(T, host, DIBS_OWNER_MAX),
                                        M(T, command, DIBS__RUN_COMMAND_MAX),
                                        M(T, output, DIBS__RUN_OUTPUT_MAX),
                                        M(T, fence, UINT64_MAX),
                                        M(T, nr, UINT64_MAX),
                                        M(T, how, UINT32_MAX),
                                        SIGNED(T, code, INT32_MIN, INT32_MAX),
                                        ANY_INT(T, began_ms),
                                        ANY_INT(T, ended_ms),
                                        LAST};
#undef T

#define T struct dibs__run_op
static const struct member run_request[] = {M(T, row.id, 0),
                                            M(T, row.name, LOOSE),
                                            M(T, row.kind, LOOSE),
                                            M(T, row.host, LOOSE),
                                            M(T, row.command, LOOSE),
                                            M(T, row.output, LOOSE),
                                            M(T, row.fence, DIBS__FENCE_MAX),
                                            M(T, row.nr, INT64_MAX),
                                            M(T, row.how, LOOSE),
                                            SIGNED(T, row.code, INT32_MIN, INT32_MAX),
                                            SIGNED(T, row.began_ms, -TASK_MS, TASK_MS),
                                            SIGNED(T, row.ended_ms, -TASK_MS, TASK_MS),
                                            SIGNED(T, keep_ms, -TASK_MS, TASK_MS),
                                            M(T, name, LOOSE),
                                            M(T, prefix, LOOSE),
                                            M(T, kind, LOOSE),
                                            M(T, nr, INT64_MAX),
                                            M(T, failed, 1),
                                            SIGNED(T, since_ms, -TASK_MS, TASK_MS),
                                            SIGNED(T, before_ms, -TASK_MS, TASK_MS),
                                            M(T, before_id, 0),
                                            M(T, most, LOOSE),
                                            LAST};
static const struct member run_answer[] = {
    ELEMENTS(ROWS, T, got, got_count, struct dibs__run_row, DIBS__RUN_ROWS, run_row, 0), M(T, off, 1),
    ANY_INT(T, now_ms), LAST};
#undef T

#define T struct dibs__counter_item
static const struct member counter_item[] = {M(T, key, LOOSE), ANY_INT(T, delta), LAST};
static const struct member counter_item_answer[] = {SIGNED(T, status, 0, DIBS__MOVED), ANY_INT(T, number), LAST};
#undef T

#define T struct dibs__counter_row
static const struct member counter_row[] = {M(T, key, DIBS_NAME_MAX), ANY_INT(T, number), LAST};
#undef T

#define T struct dibs__counter_op
#define OF_KEYS (VERB(DIBS__COUNTER_ADD) | VERB(DIBS__COUNTER_READ))
static const struct member counter_request[] = {
    ELEMENTS(ARRAY, T, items, count, struct dibs__counter_item, LOOSE, counter_item, OF_KEYS),
    M(T, source, 0),
    M(T, sequence, INT64_MAX),
    M(T, guard, 0),
    M(T, fence, DIBS__FENCE_MAX),
    M(T, prefix, LOOSE),
    M(T, after, LOOSE),
    M(T, most, UINT32_MAX),
    M(T, key, LOOSE),
    SIGNED(T, amount, 0, INT64_MAX),
    SIGNED(T, limit, 0, INT64_MAX),
    SIGNED(T, per_ms, 0, INT64_MAX),
    LAST};
static const struct member counter_answer[] = {
    ELEMENTS(EACH, T, items, count, struct dibs__counter_item, DIBS__COUNTER_ITEMS, counter_item_answer, OF_KEYS),
    ELEMENTS(ROWS, T, got, got_count, struct dibs__counter_row, DIBS__COUNTER_ROWS, counter_row,
             VERB(DIBS__COUNTER_LIST)),
    ANY_INT(T, wait_ms), CHARS_OF(T, why), LAST};
#undef T

#define T struct dibs__finding
static const struct member finding[] = {M(T, check, DIBS__ENGINE_CHECK_MAX), M(T, found, DIBS__ENGINE_TEXT_MAX),
                                        M(T, next, DIBS__ENGINE_TEXT_MAX), M(T, level, DIBS__FINDING_TROUBLE), LAST};
#undef T

#define T struct dibs__engine_op
static const struct member engine_request[] = {LAST};
static const struct member engine_answer[] = {
    ELEMENTS(ROWS, T, got, got_count, struct dibs__finding, DIBS__ENGINE_FINDINGS, finding, 0), LAST};
#undef T

const struct dibs__shape dibs__shapes[DIBS__FAM_COUNT] = {
    [DIBS__FAM_LEASE] = {lease_request, lease_answer},       [DIBS__FAM_ANCHOR] = {anchor_request, anchor_answer},
    [DIBS__FAM_RECORD] = {record_request, record_answer},    [DIBS__FAM_STOCK] = {stock_request, stock_answer},
    [DIBS__FAM_ONCE] = {once_request, once_answer},          [DIBS__FAM_REPORT] = {report_request, report_answer},
    [DIBS__FAM_TASK] = {task_request, task_answer},          [DIBS__FAM_RUN] = {run_request, run_answer},
    [DIBS__FAM_COUNTER] = {counter_request, counter_answer}, [DIBS__FAM_ENGINE] = {engine_request, engine_answer},
};
