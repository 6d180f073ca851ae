# SPDX-License-Identifier: MIT
"""dibs.h, dibs/admin.h, dibs/task.h, dibs/cron.h, dibs/counter.h, dibs/lane.h, dibs/transaction.h and dibs/kafka.h for ctypes: the same names, fields and functions, and nothing more.

layout_test.py compares all of it with what a C compiler makes of the headers.  dibs.py is the client that is made of this.
"""
import ctypes
import enum
import os
from ctypes import (CFUNCTYPE, POINTER, c_char, c_char_p, c_int, c_int32, c_int64, c_size_t, c_uint32, c_uint64,
                    c_void_p)

# ---- Constants ----


class Status(enum.IntEnum):
    """dibs_status: how a call ended.  Numbers are only appended: treat one that you do not know as trouble."""

    OK = 0
    HELD = 1
    TIMEOUT = 2
    LOST = 3
    STALE = 4
    CONFLICT = 5
    FULL = 6
    REPLAY = 7
    NOT_FOUND = 8
    INVALID = 9
    DENIED = 10
    UNSUPPORTED = 11
    CANCELLED = 12
    UNAVAILABLE = 13
    UNKNOWN = 14
    CORRUPT = 15
    TOO_NEW = 16
    NO_MEMORY = 17


VERSION_MAJOR, VERSION_MINOR, VERSION_PATCH = 0, 1, 0
NAME_MAX, OWNER_MAX, SLOTS_MAX, MANY_MAX = 255, 127, 65535, 1024
RECORD_MAX, VERSION_MAX, COLUMNS_MAX = 1048576, 127, 32
TTL_MIN_MS, TTL_MAX_MS, TTL_DEFAULT_MS = 100, 86400000, 30000
FOREVER = -1
STORE_LOOP = 1
EXCLUSIVE, SHARED, COUNTED = 0, 1, 2
NO_RENEW = 1
VERSION_NUMBER, VERSION_TIME, VERSION_HASH = 0, 1, 2
TIME_MS, TIME_S = 0, 1
KEEP = c_size_t(-1).value
IF_ABSENT, UNCHECKED = 1, 2
COALESCED, ATOMIC, PESSIMISTIC, OPTIMISTIC, NAMED, FENCED = range(6)
TAKE_PARTIAL = 1

# Of dibs/admin.h.
RUN_DONE, RUN_FAILED, RUN_LOST, RUN_OVERTIME, RUN_KILLED, RUN_NOT_RUN = range(6)
RUNS_FAILED = 1
RUNS_KEEP_DEFAULT, RUNS_KEEP_MAX_MS = -1, 315619200000
HOLDS, WAITS, OFFERED, BREAKING, BROKEN = range(5)
BREAK_NOW = 1
COUNTER, GAUGE, LATENCY, SIZES = range(4)
LATENCY_STEPS = 25
SIZES_STEPS = 12
BUCKETS, TIERS_MAX = 100, 4
BREAKER_CLOSED, BREAKER_OPEN, BREAKER_HALF_OPEN = 0, 1, 2
HAND_AUTO, HAND_OPEN, HAND_CLOSED = 0, 1, 2
STRICTNESS_FENCED, STRICTNESS_STRICT, STRICTNESS_LEAST = 0, 1, 2
(TIERS_ACQUIRED, TIERS_BUSY, TIERS_LOST, TIERS_FALLBACK, TIERS_FAILED, TIERS_STALE, TIERS_MOVES, TIERS_EPOCHS, TIERS_TURNS,
 TIERS_LEAST_STRICT, TIERS_WENT_BACK, TIERS_COUNTED) = range(12)
TIERS_COUNTS = 16

# Of dibs/task.h.
TASKS_MAX = 1000
TASK_TEXT_MAX = 4096
TASK_ERRORS = 32
TASK_TRIES = 10
TASK_PRIORITY = 1000
TASK_PHASES_MAX = 16
WORKER_THREADS = 1024
WORKER_PREFETCH = 10000
END_DONE = 0
END_NEXT = 1
END_WAIT = 2
END_FAIL = 3
END_DEAD = 4
END_RELEASE = 5
WORKER_NO_PREFETCH = 1
TASK_ARRIVED = 0
TASK_READY = 1
TASK_CLAIMED = 2
TASK_WAITING = 3
TASK_BLOCKED = 4
TASK_PARKED = 5
TASK_DONE = 6
TASK_DEAD = 7
TASK_CANCELLED = 8
TASK_STATES = 9
LIST_PAYLOADS = 1
TASK_RETRY = 0
TASK_CANCEL = 1
TASK_PURGE = 2
CHANGE_DRY = 1
KIND_RUNNING = 1
KIND_PAUSED = 2
KIND_KEEP = 4
KIND_NO_LANES = 8

# Of dibs/cron.h.
CRON_NAME_MAX = 128
CRON_TABLE_MAX = 1048576
CRON_JOBS_MAX = 10000
CATCH_UP_LAST = 0
CATCH_UP_NONE = 1
CATCH_UP_ALL = 2
OVERLAP_SKIP = 0
OVERLAP_QUEUE = 1
OVERLAP_ALLOW = 2
CRON_NO_HISTORY = 1

# Of dibs/counter.h.
COUNT_DURABLE, COUNT_BUFFERED, COUNT_SHARED = 0, 1, 2
COUNT_KEEP = 1
COUNT_STORED_PART, COUNT_BUFFERED_PART, COUNT_SHARED_PART = 1, 2, 4

# Of dibs/lane.h.
LANES_MAX = 1024
TOPIC_MAX = 200

# Of dibs/kafka.h.
KAFKA_NO_TRANSACTION = 1

# ---- Structs ----


class Sized(ctypes.Structure):
    """A struct whose first field is its own size; every other field is zero, the default, unless it is given."""

    def __init__(self, **fields):
        super().__init__(ctypes.sizeof(self), **fields)


class dibs_error(ctypes.Structure):
    _fields_ = [("status", c_int), ("text", c_char * 508)]


class dibs_fence(ctypes.Structure):
    _fields_ = [("value", c_uint64)]


dibs_lease_fn = CFUNCTYPE(None, c_void_p, c_int, POINTER(dibs_error), c_void_p)


class dibs_store_options(Sized):
    _fields_ = [("size", c_size_t), ("flags", c_uint32), ("owner", c_char_p), ("module_path", c_char_p)]


class dibs_lease_options(Sized):
    _fields_ = [
        ("size", c_size_t), ("mode", c_int), ("slots", c_uint32), ("flags", c_uint32), ("reserved", c_uint32),
        ("ttl_ms", c_int64), ("wait_ms", c_int64), ("owner", c_char_p), ("id", c_char_p), ("on_lost", dibs_lease_fn),
        ("user", c_void_p)]


class dibs_table_options(Sized):
    _fields_ = [
        ("size", c_size_t), ("table", c_char_p), ("key", c_char_p), ("version", c_char_p), ("version_kind", c_int),
        ("fence", c_char_p), ("owner", c_char_p), ("columns", c_char_p), ("used", c_char_p), ("limit", c_char_p),
        ("claims", c_char_p), ("claim", c_char_p), ("claim_stock", c_char_p), ("claim_amount", c_char_p),
        ("claim_given", c_char_p), ("claim_owner", c_char_p), ("claim_time", c_char_p), ("phase", c_char_p),
        ("locked_at", c_char_p), ("updated_at", c_char_p), ("time_unit", c_int), ("count", c_char_p)]


class dibs_value(ctypes.Structure):
    """Bytes with their length: `data` is a pointer, not c_char_p, which would end at the first NUL."""

    _fields_ = [("data", c_void_p), ("length", c_size_t)]


class dibs_record(ctypes.Structure):
    _fields_ = [("version", c_char_p), ("fence", dibs_fence), ("count", c_size_t), ("values", POINTER(dibs_value))]


class dibs_record_options(Sized):
    _fields_ = [
        ("size", c_size_t), ("table", c_void_p), ("if_version", c_char_p), ("flags", c_uint32), ("lease", c_void_p),
        ("wait_ms", c_int64)]


class dibs_record_result(Sized):
    _fields_ = [("size", c_size_t), ("version", c_char * (VERSION_MAX + 1)), ("fence", dibs_fence), ("tries", c_uint32)]


class dibs_update_options(Sized):
    _fields_ = [
        ("size", c_size_t), ("table", c_void_p), ("lease", c_void_p), ("tries", c_uint32), ("flags", c_uint32),
        ("wait_ms", c_int64)]


class dibs_stock_options(Sized):
    _fields_ = [
        ("size", c_size_t), ("table", c_void_p), ("strategy", c_int), ("flags", c_uint32), ("claim", c_char_p),
        ("owner", c_char_p), ("wait_ms", c_int64), ("tries", c_uint32)]


class dibs_stock_result(Sized):
    _fields_ = [
        ("size", c_size_t), ("claim", c_char * 65), ("got", c_int64), ("used", c_int64), ("limit", c_int64),
        ("retries", c_uint32), ("deadlocks", c_uint32)]


class dibs_once_options(Sized):
    _fields_ = [("size", c_size_t), ("keep_ms", c_int64), ("wait_ms", c_int64), ("ttl_ms", c_int64), ("owner", c_char_p)]


class dibs_lease_info(Sized):
    _fields_ = [
        ("size", c_size_t), ("name", c_char_p), ("owner", c_char_p), ("state", c_uint32), ("mode", c_int),
        ("slots", c_uint32), ("slot", c_uint32), ("ahead", c_uint32), ("pid", c_uint32), ("fence", dibs_fence),
        ("ttl_ms", c_int64), ("left_ms", c_int64), ("age_ms", c_int64), ("from", c_char_p), ("tier", c_char_p)]


class dibs_break_options(Sized):
    _fields_ = [("size", c_size_t), ("flags", c_uint32), ("reserved", c_uint32), ("wait_ms", c_int64), ("who", c_char_p)]


class dibs_latency(ctypes.Structure):
    _fields_ = [
        ("count", c_uint64), ("sum", c_uint64), ("max", c_uint64), ("p50", c_uint64), ("p90", c_uint64),
        ("p99", c_uint64), ("p999", c_uint64), ("steps", c_uint64 * LATENCY_STEPS)]


class dibs_sizes(ctypes.Structure):
    _fields_ = [("count", c_uint64), ("sum", c_uint64), ("max", c_uint64), ("steps", c_uint64 * SIZES_STEPS)]


class dibs_metric(Sized):
    _fields_ = [
        ("size", c_size_t), ("name", c_char_p), ("help", c_char_p), ("tier", c_char_p), ("kind", c_uint32),
        ("value", c_uint64), ("latency", POINTER(dibs_latency)), ("strategy", c_char_p), ("sizes", POINTER(dibs_sizes))]


class dibs_tiers_info(Sized):
    _fields_ = [
        ("size", c_size_t), ("tiers", c_uint32), ("clients", c_uint32), ("pinned", c_int32), ("on_their_own", c_uint32),
        ("strictness", c_int), ("reserved", c_uint32), ("confirmed_ms", c_int64), ("here", c_uint64 * TIERS_COUNTS),
        ("all", c_uint64 * TIERS_COUNTS), ("restored_ms", c_int64), ("epochs_left_percent", c_uint32)]


class dibs_tier_info(Sized):
    _fields_ = [
        ("size", c_size_t), ("name", c_char_p), ("uri", c_char_p), ("trouble", c_char_p), ("tier", c_uint32),
        ("percent", c_uint32), ("buckets", c_uint32), ("wanted", c_uint32), ("hand", c_int), ("breaker", c_int),
        ("down", c_uint32), ("reached", c_uint32), ("turned_ms", c_int64), ("dwell_ms", c_int64), ("active", c_uint32),
        ("clients_down", c_uint32), ("clients_well", c_uint32), ("calls", c_uint32), ("failed_percent", c_uint32),
        ("slow_percent", c_uint32), ("operations", c_uint64), ("failures", c_uint64), ("p50_ns", c_uint64),
        ("p99_ns", c_uint64), ("max_ns", c_uint64), ("leaving", c_uint32)]


class dibs_tier_client(Sized):
    _fields_ = [
        ("size", c_size_t), ("owner", c_char_p), ("us", c_uint32), ("tiers", c_uint32), ("age_ms", c_int64),
        ("active", c_uint32 * TIERS_MAX), ("down", c_uint32 * TIERS_MAX), ("well", c_uint32 * TIERS_MAX),
        ("breaker", c_int * TIERS_MAX), ("counts", c_uint64 * TIERS_COUNTS)]


class dibs_task_options(Sized):
    _fields_ = [
        ("size", c_size_t), ("phase", c_char_p), ("serial", c_char_p), ("unique", c_char_p), ("at_ms", c_int64),
        ("delay_ms", c_int64), ("priority", c_int32), ("tries", c_uint32), ("wait_ms", c_int64)]


class dibs_task_new(Sized):
    _fields_ = [
        ("size", c_size_t), ("payload", c_void_p), ("length", c_size_t), ("phase", c_char_p), ("serial", c_char_p),
        ("unique", c_char_p), ("at_ms", c_int64), ("delay_ms", c_int64), ("priority", c_int32), ("tries", c_uint32),
        ("status", c_int), ("nr", c_uint64)]


class dibs_task(Sized):
    _fields_ = [
        ("size", c_size_t), ("nr", c_uint64), ("key", c_char_p), ("fence", dibs_fence), ("kind", c_char_p),
        ("phase", c_char_p), ("serial", c_char_p), ("unique", c_char_p), ("payload", c_char_p), ("length", c_size_t),
        ("error", c_char_p), ("attempt", c_uint32), ("fails", c_uint32), ("tries", c_uint32), ("priority", c_int32),
        ("age_ms", c_int64), ("made_ms", c_int64), ("lane", c_void_p)]


class dibs_claim_options(Sized):
    _fields_ = [
        ("size", c_size_t), ("phases", POINTER(c_char_p)), ("phase_count", c_uint32), ("most", c_uint32),
        ("timeout_ms", c_int64), ("wait_ms", c_int64), ("owner", c_char_p), ("table", c_void_p),
        ("lanes", POINTER(c_void_p)), ("lane_count", c_uint32), ("reserved", c_uint32),
        ("lane_statuses", POINTER(c_int))]


class dibs_task_end(Sized):
    _fields_ = [
        ("size", c_size_t), ("task", POINTER(dibs_task)), ("verdict", c_int), ("tries", c_uint32),
        ("phase", c_char_p), ("text", c_char_p), ("delay_ms", c_int64), ("least_ms", c_int64), ("status", c_int)]


class dibs_work_reply(Sized):
    _fields_ = [
        ("size", c_size_t), ("delay_ms", c_int64), ("least_ms", c_int64), ("tries", c_uint32), ("reserved", c_uint32),
        ("phase", c_char * (NAME_MAX + 1)), ("text", c_char * (TASK_TEXT_MAX + 1))]


dibs_work_fn = CFUNCTYPE(c_int, POINTER(dibs_task), POINTER(dibs_work_reply), c_void_p)


class dibs_worker_options(Sized):
    _fields_ = [
        ("size", c_size_t), ("phases", POINTER(c_char_p)), ("phase_count", c_uint32), ("threads", c_uint32),
        ("prefetch", c_uint32), ("flags", c_uint32), ("timeout_ms", c_int64), ("poll_ms", c_int64),
        ("owner", c_char_p), ("table", c_void_p), ("work", dibs_work_fn), ("user", c_void_p),
        ("topic", c_char_p), ("lanes", c_uint32), ("reserved", c_uint32), ("lane_ttl_ms", c_int64)]


class dibs_worker_counts(Sized):
    _fields_ = [
        ("size", c_size_t), ("claimed", c_uint64), ("begun", c_uint64), ("done", c_uint64), ("next", c_uint64),
        ("waits", c_uint64), ("failed", c_uint64), ("dead", c_uint64), ("released", c_uint64), ("refused", c_uint64),
        ("unsent", c_uint64), ("extended", c_uint64), ("lost", c_uint64), ("requests", c_uint64), ("idle", c_uint64),
        ("held", c_uint64), ("running", c_uint64), ("lanes", c_uint64), ("lanes_assigned", c_uint64)]


class dibs_task_filter(Sized):
    _fields_ = [
        ("size", c_size_t), ("nr", c_uint64), ("after", c_uint64), ("kind", c_char_p), ("phase", c_char_p),
        ("serial", c_char_p), ("text", c_char_p), ("states", c_uint32), ("reserved", c_uint32), ("older_ms", c_int64),
        ("table", c_void_p), ("key", c_char_p), ("timeout_ms", c_int64)]


class dibs_task_info(Sized):
    _fields_ = [
        ("size", c_size_t), ("nr", c_uint64), ("fence", dibs_fence), ("kind", c_char_p), ("phase", c_char_p),
        ("serial", c_char_p), ("unique", c_char_p), ("payload", c_char_p), ("length", c_size_t), ("owner", c_char_p),
        ("text", c_char_p), ("text_length", c_size_t), ("state", c_int), ("attempts", c_uint32), ("fails", c_uint32),
        ("tries", c_uint32), ("priority", c_int32), ("made_ms", c_int64), ("due_ms", c_int64), ("began_ms", c_int64),
        ("at_ms", c_int64), ("key", c_char_p)]


class dibs_task_kind(Sized):
    _fields_ = [
        ("size", c_size_t), ("kind", c_char_p), ("states", c_uint64 * TASK_STATES), ("oldest_ms", c_int64),
        ("running", c_uint32), ("paused", c_uint32), ("keep_ms", c_int64), ("topic", c_char_p)]


class dibs_kind_options(Sized):
    _fields_ = [
        ("size", c_size_t), ("set", c_uint32), ("running", c_uint32), ("paused", c_uint32), ("reserved", c_uint32),
        ("keep_ms", c_int64)]


# ---- Callbacks: what they return, and their arguments ----

dibs_record_fn = CFUNCTYPE(c_int, POINTER(dibs_record), POINTER(dibs_value), c_size_t, c_void_p)
dibs_once_fn = CFUNCTYPE(c_int, c_void_p, POINTER(c_void_p), POINTER(c_size_t), c_void_p)
dibs_done_fn = CFUNCTYPE(None, c_int, POINTER(dibs_error), c_void_p)
dibs_list_fn = CFUNCTYPE(c_int, POINTER(dibs_lease_info), c_void_p)
dibs_metric_fn = CFUNCTYPE(c_int, POINTER(dibs_metric), c_void_p)
dibs_tier_fn = CFUNCTYPE(c_int, POINTER(dibs_tier_info), c_void_p)
dibs_tier_client_fn = CFUNCTYPE(c_int, POINTER(dibs_tier_client), c_void_p)


class dibs_run_info(Sized):
    _fields_ = [
        ("size", c_size_t), ("name", c_char_p), ("kind", c_char_p), ("host", c_char_p), ("command", c_char_p),
        ("output", c_char_p), ("output_length", c_size_t), ("fence", dibs_fence), ("task", c_uint64), ("how", c_int),
        ("code", c_int32), ("began_ms", c_int64), ("ended_ms", c_int64)]


class dibs_runs_options(Sized):
    _fields_ = [
        ("size", c_size_t), ("name", c_char_p), ("prefix", c_char_p), ("kind", c_char_p), ("flags", c_uint32),
        ("most", c_uint32), ("since_ms", c_int64), ("until_ms", c_int64), ("task", c_uint64)]


dibs_run_fn = CFUNCTYPE(c_int, POINTER(dibs_run_info), c_void_p)
dibs_flag_fn = CFUNCTYPE(c_int, c_char_p, c_uint32, c_void_p)
dibs_task_fn = CFUNCTYPE(c_int, POINTER(dibs_task_info), c_void_p)
dibs_task_kind_fn = CFUNCTYPE(c_int, POINTER(dibs_task_kind), c_void_p)


class dibs_cron_job(Sized):
    _fields_ = [
        ("size", c_size_t), ("name", c_char_p), ("schedule", c_char_p), ("zone", c_char_p), ("command", c_char_p),
        ("catch_up", c_int), ("overlap", c_int), ("window_ms", c_int64), ("timeout_ms", c_int64), ("jitter_ms", c_int64)]


dibs_cron_error_fn = CFUNCTYPE(None, c_uint32, c_char_p, c_void_p)


class dibs_cron_table(Sized):
    _fields_ = [
        ("size", c_size_t), ("text", c_char_p), ("length", c_size_t), ("jobs", POINTER(dibs_cron_job)),
        ("job_count", c_size_t), ("zone", c_char_p), ("on_error", dibs_cron_error_fn), ("user", c_void_p)]


class dibs_firing(Sized):
    _fields_ = [
        ("size", c_size_t), ("job", c_char_p), ("command", c_char_p), ("input", c_char_p),
        ("environment", POINTER(c_char_p)), ("at_ms", c_int64), ("timeout_ms", c_int64), ("by_hand", c_uint32),
        ("reserved", c_uint32), ("task", POINTER(dibs_task))]


class dibs_firing_reply(Sized):
    _fields_ = [
        ("size", c_size_t), ("how", c_int), ("code", c_int32), ("delay_ms", c_int64), ("length", c_size_t),
        ("text", c_char * (TASK_TEXT_MAX + 1))]


dibs_firing_fn = CFUNCTYPE(c_int, POINTER(dibs_firing), POINTER(dibs_firing_reply), c_void_p)


dibs_lane_fn = CFUNCTYPE(None, c_void_p, c_int, c_void_p)


class dibs_lane_options(Sized):
    _fields_ = [
        ("size", c_size_t), ("lanes", c_uint32), ("reserved", c_uint32), ("ttl_ms", c_int64), ("look_ms", c_int64),
        ("owner", c_char_p), ("on_gain", dibs_lane_fn), ("on_lose", dibs_lane_fn), ("user", c_void_p)]


class dibs_lane_counts(Sized):
    _fields_ = [
        ("size", c_size_t), ("lanes", c_uint32), ("members", c_uint32), ("assigned", c_uint32), ("held", c_uint32),
        ("gained", c_uint64), ("lost", c_uint64), ("joined", c_uint64), ("looked", c_uint64)]


class dibs_lane_info(Sized):
    _fields_ = [
        ("size", c_size_t), ("lane", c_uint32), ("lanes", c_uint32), ("owner", c_char_p), ("fence", dibs_fence),
        ("left_ms", c_int64), ("age_ms", c_int64)]


class dibs_lane_topic_info(Sized):
    _fields_ = [
        ("size", c_size_t), ("lanes", c_uint32), ("members", c_uint32), ("leaving", c_uint32), ("recorded", c_uint32)]


dibs_lane_list_fn = CFUNCTYPE(c_int, POINTER(dibs_lane_info), c_void_p)


class dibs_kafka_message(Sized):
    _fields_ = [
        ("size", c_size_t), ("topic", c_char_p), ("offset", c_int64), ("key", c_void_p), ("key_length", c_size_t),
        ("value", c_void_p), ("value_length", c_size_t), ("lease", c_void_p), ("fence", dibs_fence),
        ("transaction", c_void_p), ("partition", c_int32), ("tries", c_uint32)]


dibs_kafka_fn = CFUNCTYPE(c_int, POINTER(dibs_kafka_message), c_void_p)
dibs_kafka_note_fn = CFUNCTYPE(None, c_int32, c_int, c_char_p, c_void_p)


class dibs_kafka_options(Sized):
    _fields_ = [
        ("size", c_size_t), ("topic", c_char_p), ("brokers", c_char_p), ("group", c_char_p),
        ("settings", POINTER(c_char_p)), ("ttl_ms", c_int64), ("owner", c_char_p), ("most", c_uint32),
        ("flags", c_uint32), ("on_message", dibs_kafka_fn), ("on_note", dibs_kafka_note_fn), ("user", c_void_p)]


class dibs_cron_options(Sized):
    _fields_ = [
        ("size", c_size_t), ("table", POINTER(dibs_cron_table)), ("threads", c_uint32), ("flags", c_uint32),
        ("claim_ms", c_int64), ("owner", c_char_p), ("work", dibs_firing_fn), ("user", c_void_p)]


class dibs_cron_counts(Sized):
    _fields_ = [
        ("size", c_size_t), ("jobs", c_uint64), ("decided", c_uint64), ("begun", c_uint64), ("done", c_uint64),
        ("failed", c_uint64), ("repeated", c_uint64), ("dead", c_uint64), ("declined", c_uint64), ("refused", c_uint64),
        ("history_lost", c_uint64), ("running", c_uint64)]


class dibs_cron_info(Sized):
    _fields_ = [
        ("size", c_size_t), ("name", c_char_p), ("schedule", c_char_p), ("zone", c_char_p), ("command", c_char_p),
        ("next_ms", c_int64), ("last_ms", c_int64), ("last_how", c_int), ("last_code", c_int32), ("missed", c_uint64),
        ("last_missed_ms", c_int64), ("skipped", c_uint64)]


dibs_cron_fn = CFUNCTYPE(c_int, POINTER(dibs_cron_info), c_void_p)


class dibs_counter_options(Sized):
    _fields_ = [
        ("size", c_size_t), ("table", c_void_p), ("level", c_int), ("reserved", c_uint32), ("wait_ms", c_int64)]


class dibs_counter_refusal(Sized):
    _fields_ = [
        ("size", c_size_t), ("key", c_char_p), ("table", c_void_p), ("delta", c_int64), ("status", c_int),
        ("reserved", c_uint32)]


dibs_counter_refusal_fn = CFUNCTYPE(c_int, POINTER(dibs_counter_refusal), c_void_p)


class dibs_counter_value(Sized):
    _fields_ = [
        ("size", c_size_t), ("value", c_int64), ("stored", c_int64), ("buffered", c_int64), ("shared", c_int64),
        ("parts", c_uint32), ("reserved", c_uint32)]


dibs_counter_fn = CFUNCTYPE(c_int, c_char_p, c_int64, c_void_p)


class dibs_rate_options(Sized):
    _fields_ = [
        ("size", c_size_t), ("limit", c_int64), ("per_ms", c_int64), ("amount", c_int64), ("wait_ms", c_int64)]


# ---- Functions: what they return, and their arguments ----

# Handles (dibs_store, dibs_lease, dibs_table) are pointers to what only the library knows.
handle, handles = c_void_p, POINTER(c_void_p)
error = POINTER(dibs_error)
record_options, record_result = POINTER(dibs_record_options), POINTER(dibs_record_result)
stock_options, stock_result = POINTER(dibs_stock_options), POINTER(dibs_stock_result)
lease_options = POINTER(dibs_lease_options)
task = POINTER(dibs_task)

FUNCTIONS = {
    "dibs_version": (c_char_p, []),
    "dibs_version_number": (c_uint32, []),
    "dibs_status_name": (c_char_p, [c_int]),
    "dibs_status_text": (c_char_p, [c_int]),
    "dibs_open": (c_int, [c_char_p, POINTER(dibs_store_options), handles, error]),
    "dibs_close": (None, [handle]),
    "dibs_store_uri": (c_char_p, [handle]),
    "dibs_fd": (c_int, [handle]),
    "dibs_dispatch": (c_size_t, [handle, c_size_t]),
    "dibs_acquire": (c_int, [handle, c_char_p, lease_options, handles, error]),
    "dibs_acquire_many": (c_int, [handle, POINTER(c_char_p), c_size_t, lease_options, handles, error]),
    "dibs_acquire_start": (c_int, [handle, c_char_p, lease_options, dibs_lease_fn, c_void_p, handles, error]),
    "dibs_acquire_cancel": (None, [handle]),
    "dibs_release": (c_int, [handle, error]),
    "dibs_release_start": (c_int, [handle, dibs_lease_fn, c_void_p, error]),
    "dibs_renew": (c_int, [handle, c_int64, error]),
    "dibs_renew_start": (c_int, [handle, c_int64, dibs_lease_fn, c_void_p, error]),
    "dibs_release_after": (c_int, [handle, c_int64, error]),
    "dibs_lease_alive": (c_int, [handle]),
    "dibs_lease_left_ms": (c_int64, [handle]),
    "dibs_lease_store_left_ms": (c_int64, [handle]),
    "dibs_lease_fence": (dibs_fence, [handle]),
    "dibs_lease_slot": (c_uint32, [handle]),
    "dibs_lease_tier": (c_char_p, [handle]),
    "dibs_lease_name": (c_char_p, [handle]),
    "dibs_lease_id": (c_int, [handle, c_char_p, error]),
    "dibs_lease_retain": (handle, [handle]),
    "dibs_lease_free": (None, [handle]),
    "dibs_lease_detach": (c_int, [handle, error]),
    "dibs_lease_adopt": (c_int, [handle, c_char_p, c_char_p, dibs_fence, lease_options, handles, error]),
    "dibs_table_declare": (c_int, [POINTER(dibs_table_options), handles, error]),
    "dibs_table_free": (None, [handle]),
    "dibs_table_read": (c_int, [c_char_p, c_char_p, handles, error]),
    "dibs_record_get": (c_int, [handle, c_char_p, record_options, POINTER(POINTER(dibs_record)), error]),
    "dibs_record_free": (None, [POINTER(dibs_record)]),
    "dibs_record_put": (c_int, [handle, c_char_p, POINTER(dibs_value), c_size_t, record_options, record_result, error]),
    "dibs_record_remove": (c_int, [handle, c_char_p, record_options, record_result, error]),
    "dibs_record_update": (
        c_int, [handle, c_char_p, POINTER(dibs_update_options), dibs_record_fn, c_void_p, record_result, error]),
    "dibs_stock_take": (c_int, [handle, c_char_p, c_int64, stock_options, stock_result, error]),
    "dibs_stock_give": (c_int, [handle, c_char_p, c_char_p, stock_options, stock_result, error]),
    "dibs_stock_show": (c_int, [handle, c_char_p, stock_options, stock_result, error]),
    "dibs_stock_set": (c_int, [handle, c_char_p, c_int64, stock_options, stock_result, error]),
    "dibs_once": (
        c_int,
        [handle, c_char_p, POINTER(dibs_once_options), dibs_once_fn, c_void_p, POINTER(c_void_p), POINTER(c_size_t), error]),
    "dibs_once_forget": (c_int, [handle, c_char_p, error]),
    # dibs/admin.h
    "dibs_list": (c_int, [handle, c_char_p, dibs_list_fn, c_void_p, error]),
    "dibs_show": (c_int, [handle, c_char_p, dibs_list_fn, c_void_p, error]),
    "dibs_show_start": (c_int, [handle, c_char_p, dibs_list_fn, dibs_done_fn, c_void_p, error]),
    "dibs_break_start": (c_int, [handle, c_char_p, POINTER(dibs_break_options), dibs_done_fn, c_void_p, error]),
    "dibs_break": (c_int, [handle, c_char_p, POINTER(dibs_break_options), error]),
    "dibs_metrics": (c_int, [handle, dibs_metric_fn, c_void_p, error]),
    "dibs_tiers": (c_int, [handle, POINTER(dibs_tiers_info), dibs_tier_fn, dibs_tier_client_fn, c_void_p, error]),
    "dibs_tier_move": (c_int, [handle, c_char_p, error]),
    "dibs_tier_switch": (c_int, [handle, c_char_p, c_int, error]),
    "dibs_tier_bump": (c_int, [handle, dibs_fence, error]),
    "dibs_tier_dissolve": (c_int, [handle, error]),
    "dibs_strictness_get": (c_int, [handle, POINTER(c_int), error]),
    "dibs_strictness_set": (c_int, [handle, c_int, error]),
    "dibs_runs": (c_int, [handle, POINTER(dibs_runs_options), dibs_run_fn, c_void_p, error]),
    "dibs_runs_add": (c_int, [handle, POINTER(dibs_run_info), error]),
    "dibs_runs_keep": (c_int, [handle, c_int64, error]),
    "dibs_flags": (c_int, [handle, dibs_flag_fn, c_void_p, error]),
    "dibs_flag_get": (c_int, [handle, c_char_p, POINTER(c_uint32), error]),
    "dibs_flag_set": (c_int, [handle, c_char_p, c_uint32, error]),
    # dibs/task.h
    "dibs_task_add": (
        c_int,
        [handle, c_char_p, c_void_p, c_size_t, POINTER(dibs_task_options), POINTER(c_uint64), error]),
    "dibs_task_add_many": (c_int, [handle, c_char_p, POINTER(dibs_task_new), c_size_t, c_int64, error]),
    "dibs_tasks_claim": (
        c_int,
        [handle, c_char_p, POINTER(dibs_claim_options), POINTER(task), POINTER(c_size_t), error]),
    "dibs_task_left_ms": (c_int64, [task]),
    "dibs_task_free": (None, [task]),
    "dibs_task_extend": (c_int, [task, c_int64, error]),
    "dibs_tasks_extend": (c_int, [POINTER(task), c_size_t, c_int64, POINTER(c_int), error]),
    "dibs_task_step": (c_int, [task, c_char_p, error]),
    "dibs_task_done": (c_int, [task, c_char_p, error]),
    "dibs_task_unlock": (c_int, [task, c_char_p, error]),
    "dibs_task_relock": (c_int, [task, c_int64, error]),
    "dibs_task_fail": (c_int, [task, c_char_p, error]),
    "dibs_task_dead": (c_int, [task, c_char_p, error]),
    "dibs_task_release": (c_int, [task, error]),
    "dibs_task_end_many": (c_int, [handle, POINTER(dibs_task_end), c_size_t, error]),
    "dibs_worker_start": (c_int, [handle, c_char_p, POINTER(dibs_worker_options), handles, error]),
    "dibs_worker_stop": (c_int, [handle, c_int64, error]),
    "dibs_worker_free": (None, [handle]),
    "dibs_worker_count": (c_int, [handle, POINTER(dibs_worker_counts), error]),
    "dibs_worker_trouble": (None, [handle, error]),
    "dibs_tasks_list": (c_int, [handle, POINTER(dibs_task_filter), c_uint32, dibs_task_fn, c_void_p, error]),
    "dibs_task_errors": (c_int, [handle, c_uint64, dibs_task_fn, c_void_p, error]),
    "dibs_tasks_count": (c_int, [handle, c_char_p, dibs_task_kind_fn, c_void_p, error]),
    "dibs_tasks_change": (
        c_int,
        [handle, c_int, POINTER(dibs_task_filter), c_uint32, c_uint64, POINTER(c_uint64), POINTER(c_uint64), error]),
    "dibs_task_kind_set": (c_int, [handle, c_char_p, POINTER(dibs_kind_options), error]),
    # dibs/cron.h
    "dibs_cron_next": (c_int, [c_char_p, c_char_p, c_int64, POINTER(c_int64), error]),
    "dibs_firing_left_ms": (c_int64, [POINTER(dibs_firing)]),
    "dibs_cron_start": (c_int, [handle, c_char_p, POINTER(dibs_cron_options), handles, error]),
    "dibs_cron_replace": (c_int, [handle, POINTER(dibs_cron_table), error]),
    "dibs_cron_stop": (c_int, [handle, c_int64, error]),
    "dibs_cron_free": (None, [handle]),
    "dibs_cron_count": (c_int, [handle, POINTER(dibs_cron_counts), error]),
    "dibs_cron_trouble": (None, [handle, error]),
    "dibs_cron_fire": (c_int, [handle, c_char_p, POINTER(dibs_cron_table), c_char_p, POINTER(c_uint64), error]),
    "dibs_cron_list": (c_int, [handle, c_char_p, POINTER(dibs_cron_table), dibs_cron_fn, c_void_p, error]),
    # dibs/counter.h
    "dibs_counter_add": (c_int, [handle, c_char_p, c_int64, POINTER(dibs_counter_options), error]),
    "dibs_counter_flush": (c_int, [handle, POINTER(dibs_counter_options), error]),
    "dibs_counter_refused": (c_int, [handle, dibs_counter_refusal_fn, c_void_p, error]),
    "dibs_counter_refused_shared": (c_int, [handle, c_void_p, dibs_counter_refusal_fn, c_void_p, error]),
    "dibs_counter_read": (
        c_int, [handle, c_char_p, POINTER(dibs_counter_options), POINTER(dibs_counter_value), error]),
    "dibs_counter_list": (c_int, [handle, c_char_p, dibs_counter_fn, c_void_p, error]),
    # dibs/lane.h
    "dibs_lane_of": (c_uint32, [c_void_p, c_size_t, c_uint32]),
    "dibs_lane_join": (c_int, [handle, c_char_p, POINTER(dibs_lane_options), handles, error]),
    "dibs_lane_number": (c_uint32, [handle]),
    "dibs_lane_lanes": (c_uint32, [handle]),
    "dibs_lane_lease": (c_void_p, [handle]),
    "dibs_lane_fence": (dibs_fence, [handle]),
    "dibs_lane_release": (None, [handle]),
    "dibs_lane_leave": (c_int, [handle, c_int64, error]),
    "dibs_lane_member_free": (None, [handle]),
    "dibs_lane_count": (c_int, [handle, POINTER(dibs_lane_counts), error]),
    "dibs_lane_trouble": (None, [handle, error]),
    "dibs_lane_list": (
        c_int,
        [handle, c_char_p, POINTER(dibs_lane_topic_info), dibs_lane_list_fn, c_void_p, error]),
    "dibs_lane_resize": (c_int, [handle, c_char_p, c_uint32, c_int64, error]),
    # dibs/transaction.h
    "dibs_transaction_open": (c_int, [handle, handles, error]),
    "dibs_transaction_begin": (c_int, [handle, error]),
    "dibs_transaction_inside": (c_void_p, [handle]),
    "dibs_transaction_connection": (c_void_p, [handle]),
    "dibs_transaction_sql": (c_int, [handle, c_char_p, error]),
    "dibs_transaction_commit": (c_int, [handle, error]),
    "dibs_transaction_rollback": (None, [handle]),
    "dibs_transaction_close": (None, [handle]),
    # dibs/kafka.h
    "dibs_kafka_join": (c_int, [handle, POINTER(dibs_kafka_options), handles, error]),
    "dibs_kafka_ends": (c_int, [POINTER(dibs_kafka_message)]),
    "dibs_kafka_trouble": (None, [handle, error]),
    "dibs_kafka_leave": (None, [handle]),
    "dibs_rate": (c_int, [handle, c_char_p, POINTER(dibs_rate_options), POINTER(c_int64), error]),
}


def load(path=None):
    """The library, with all functions typed.  ctypes gives up Python's lock while a function of it blocks."""
    library = ctypes.CDLL(path or os.environ.get("DIBS_LIBRARY", "libdibs.so.0"))
    for name, (result, arguments) in FUNCTIONS.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library
