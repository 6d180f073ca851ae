# SPDX-License-Identifier: MIT
"""dibs for Python: leases, fences and guarded writes, over ctypes and the standard library alone.

    with dibs.Store("sqlite:///var/lib/app/dibs.db") as store:
        with store.acquire("deploy", wait=dibs.FOREVER) as lease:
            store.get("config", lease=lease)             # seals: an older holder can't write from here on
            store.put("config", b"new", lease=lease)     # refused with STALE if a newer holder was seen

Times are seconds, names and owners are str, values are bytes.  A call that does not end with OK raises dibs.Error; where
another status is an answer (REPLAY), the call returns it.  doc/bindings.md explains what a binding has to care for.
"""
import atexit
import ctypes
import itertools
import types
import weakref

import dibs_h as h
from dibs_h import Status

FOREVER = float("inf")
library = h.load()
libc = ctypes.CDLL(None)  # malloc and free: dibs_once hands memory over in both directions
libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
libc.free.restype, libc.free.argtypes = None, [ctypes.c_void_p]


class Error(Exception):
    """A call that did not end with OK: its status, and a text for people that says what to do next."""

    def __init__(self, status, text):
        self.status = Status(status)
        super().__init__(f"{self.status.name}: {text}")


def check(status, error, answers=()):
    """The status of a call, if it is OK or one of `answers`; raises Error otherwise."""
    if status != Status.OK and status not in answers:
        raise Error(status, error.text.decode(errors="replace"))
    return Status(status)


def text(string):
    """For C a text ends at its first NUL: a name with one would be another name."""
    if string is not None and "\0" in string:
        raise ValueError("a text for dibs can't contain a NUL")
    return None if string is None else string.encode()


def ms(seconds):
    """ctypes keeps the low bits of a number that is too large, without an error."""
    if seconds == FOREVER:
        return h.FOREVER
    if not abs(seconds) < 1e12:
        raise ValueError(f"{seconds} is no time in seconds that dibs can use")
    return round(seconds * 1000)


# ---- Callbacks ----

# C gets one function for each kind of callback, which lives as long as the program, and a number as `user`.  The number
# finds the function of Python.  A late call, after the lease was freed, finds none and does nothing; a ctypes callback of
# its own for each lease would be freed memory by then.
_callbacks = {}
_numbers = itertools.count(1)


def _keep(function):
    number = next(_numbers)
    _callbacks[number] = function
    return number


def _outcome(status, error):
    """What the functions of Python get: None, or an Error with the text."""
    return None if status == Status.OK else Error(status, error.contents.text.decode(errors="replace"))


@h.dibs_lease_fn
def _on_lease(handle, status, error, number):
    function = _callbacks.get(number)
    if function is not None:
        function(_outcome(status, error))


@h.dibs_list_fn
def _on_info(info, number):
    _callbacks[number](copy_of(info.contents))
    return 0


class _Later:
    """A call that completes later: its entries, if there are any, then its end."""

    def __init__(self, done):
        self.entries = []
        self.done = done

    def __call__(self, entry):
        self.entries.append(entry)


@h.dibs_done_fn
def _on_done(status, error, number):
    later = _callbacks.pop(number)
    later.done(later.entries, _outcome(status, error))


@h.dibs_metric_fn
def _on_metric(metric, number):
    _callbacks[number](copy_of(metric.contents))
    return 0


def copy_of(struct):
    """A struct that C lends for the duration of a call, as an object of Python: `from` becomes `from_`."""
    fields = {}
    for name, *_ in struct._fields_:
        value = getattr(struct, name)
        if isinstance(value, bytes):
            value = value.decode(errors="replace")
        elif isinstance(value, h.dibs_fence):
            value = value.value
        elif isinstance(value, ctypes._Pointer):
            value = copy_of(value.contents) if value else None
        elif isinstance(value, ctypes.Array):
            value = list(value)
        fields[name + "_" if name == "from" else name] = value
    return types.SimpleNamespace(**fields)


# ---- Leases ----


class Lease:
    """A lease that is waited for, held or lost.  `with` releases it at the end."""

    def __init__(self, store):
        self._store = store  # the handle may be used until it is freed, but only while the store is open
        self._handle = ctypes.c_void_p()
        self._on_lost = None

    def _options(self, *, ttl=0, wait=0, mode=h.EXCLUSIVE, slots=0, owner=None, id=None, renew=True, on_lost=None):
        """on_lost(lease, error) runs in a thread of the library, or in Store.dispatch."""
        options = h.dibs_lease_options(
            ttl_ms=ms(ttl), wait_ms=ms(wait), mode=mode, slots=slots, owner=text(owner), id=text(id),
            flags=0 if renew else h.NO_RENEW)
        if on_lost is not None:
            # A weak reference: the callback does not keep a lease alive that nobody else needs.
            this = weakref.ref(self)
            self._on_lost = _keep(lambda error: on_lost(this(), error))
            options.on_lost, options.user = _on_lease, self._on_lost
        return ctypes.byref(options)

    def _call(self, function, *arguments, answers=()):
        error = h.dibs_error()
        return check(function(self._handle, *arguments, ctypes.byref(error)), error, answers)

    def _once(self, done):
        """The number of a callback that is called once, with (lease, error)."""

        def call(error):
            del _callbacks[number]
            done(self, error)

        number = _keep(call)
        return number

    def _start(self, function, *arguments, done):
        number = self._once(done)
        try:
            self._call(function, *arguments, _on_lease, number)
        except Error:
            del _callbacks[number]  # after an error there is no call
            raise

    @property
    def name(self):
        return library.dibs_lease_name(self._handle).decode()

    @property
    def fence(self):
        return library.dibs_lease_fence(self._handle).value

    @property
    def slot(self):
        return library.dibs_lease_slot(self._handle)

    @property
    def alive(self):
        return library.dibs_lease_alive(self._handle) == 1

    @property
    def left(self):
        return library.dibs_lease_left_ms(self._handle) / 1000

    @property
    def store_left(self):
        return library.dibs_lease_store_left_ms(self._handle) / 1000

    @property
    def id(self):
        """The secret that another process needs to adopt the lease."""
        digits = ctypes.create_string_buffer(33)
        self._call(library.dibs_lease_id, digits)
        return digits.value.decode()

    def renew(self, ttl=0):
        self._call(library.dibs_renew, ms(ttl))

    def renew_start(self, done, ttl=0):
        self._start(library.dibs_renew_start, ms(ttl), done=done)

    def release(self):
        self._call(library.dibs_release)

    def release_start(self, done):
        self._start(library.dibs_release_start, done=done)

    def release_after(self, keep):
        """Keeps it for `keep` seconds more, then releases it."""
        self._call(library.dibs_release_after, ms(keep))

    def cancel(self):
        library.dibs_acquire_cancel(self._handle)

    def detach(self):
        """Leaves it to any process that knows its id, which it returns."""
        id = self.id
        self._call(library.dibs_lease_detach)
        return id

    def free(self):
        """Gives the handle back; what is still held is released in the background."""
        handle, self._handle = self._handle, ctypes.c_void_p()
        library.dibs_lease_free(handle)
        _callbacks.pop(self._on_lost, None)

    def __enter__(self):
        return self

    def __exit__(self, kind, problem, traceback):
        try:
            if self._handle:
                self.release()
        except Error as error:
            if kind is None and error.status != Status.INVALID:  # INVALID: released, detached or closed within the block
                raise
        finally:
            self.free()

    def __del__(self):
        self.free()


# ---- Stores ----


class Record:
    """What a record contained when it was read: `version`, `fence`, and `values`, one bytes or None for each column."""

    def __init__(self, record):
        self.version = record.version.decode()
        self.fence = record.fence.value
        self.values = [ctypes.string_at(v.data, v.length) if v.data else None for v in record.values[: record.count]]
        self.value = self.values[0]


class Store:
    """An open store.  Close it, or use `with`; one that is still open when the program ends is closed then."""

    _open = weakref.WeakSet()

    def __init__(self, uri=None, *, owner=None, loop=False):
        """loop: callbacks run in dispatch(), which you call when fileno() is readable; else in a thread of the library."""
        options = h.dibs_store_options(flags=h.STORE_LOOP if loop else 0, owner=text(owner))
        self._handle = ctypes.c_void_p()
        error = h.dibs_error()
        check(library.dibs_open(text(uri), ctypes.byref(options), ctypes.byref(self._handle), ctypes.byref(error)), error)
        Store._open.add(self)

    def close(self):
        handle, self._handle = self._handle, ctypes.c_void_p()
        library.dibs_close(handle)
        Store._open.discard(self)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def _call(self, function, *arguments, answers=()):
        error = h.dibs_error()
        return check(function(self._handle, *arguments, ctypes.byref(error)), error, answers)

    def fileno(self):
        """With this method a store can be given to selectors, select and asyncio as it is."""
        return library.dibs_fd(self._handle)

    def dispatch(self, most=0):
        return library.dibs_dispatch(self._handle, most)

    @property
    def uri(self):
        return library.dibs_store_uri(self._handle).decode()

    # ---- Leases ----

    def acquire(self, name, **options):
        """Blocks until the lease is held; see Lease._options."""
        lease = Lease(self)
        self._call(library.dibs_acquire, text(name), lease._options(**options), ctypes.byref(lease._handle))
        return lease

    def acquire_many(self, names, **options):
        leases = [Lease(self) for _ in names]
        handles = (ctypes.c_void_p * len(names))()
        self._call(
            library.dibs_acquire_many, (ctypes.c_char_p * len(names))(*map(text, names)), len(names),
            leases[0]._options(**options), handles)
        for lease, handle in zip(leases, handles):
            lease._handle = ctypes.c_void_p(handle)
        return leases

    def acquire_start(self, name, done, **options):
        """Returns at once; done(lease, error) is called once, later."""
        lease = Lease(self)
        number = lease._once(done)
        options = lease._options(**options)
        try:
            self._call(library.dibs_acquire_start, text(name), options, _on_lease, number, ctypes.byref(lease._handle))
        except Error:
            del _callbacks[number]
            raise
        return lease

    def adopt(self, name, id, fence=0, **options):
        """A handle on a lease that another process acquired and detached."""
        lease = Lease(self)
        self._call(
            library.dibs_lease_adopt, text(name), text(id), h.dibs_fence(fence), lease._options(**options),
            ctypes.byref(lease._handle))
        return lease

    # ---- Records ----

    def _record_options(self, lease, if_version, flags, wait):
        handle = None if lease is None else lease._handle
        return ctypes.byref(h.dibs_record_options(lease=handle, if_version=text(if_version), flags=flags, wait_ms=ms(wait)))

    def get(self, key, *, lease=None, wait=0):
        """With a lease the record is sealed in the same step: an older holder can't put any more."""
        record = ctypes.POINTER(h.dibs_record)()
        self._call(library.dibs_record_get, text(key), self._record_options(lease, None, 0, wait), ctypes.byref(record))
        try:
            return Record(record.contents)
        finally:
            library.dibs_record_free(record)

    def put(self, key, value, *, lease=None, if_version=None, flags=0, wait=0):
        """Returns the new version.  At least one guard must be given, or dibs_h.UNCHECKED in flags."""
        result = h.dibs_record_result()
        self._call(
            library.dibs_record_put, text(key), ctypes.byref(value_of(value)), 1,
            self._record_options(lease, if_version, flags, wait), ctypes.byref(result))
        return result.version.decode()

    def remove(self, key, *, lease=None, if_version=None, flags=0, wait=0):
        self._call(library.dibs_record_remove, text(key), self._record_options(lease, if_version, flags, wait), None)

    def update(self, key, function, *, lease=None, create=False, wait=0):
        """function(record or None) returns the new value; it may be called several times.  Returns the new version."""
        failed = []  # an exception must not pass through C: it ends the update, and is raised again after it
        kept = []  # what values[0] points to must stay valid until the next call

        @h.dibs_record_fn
        def make(record, values, count, user):
            try:
                kept[:] = [value_of(function(Record(record.contents) if record else None))]
                values[0] = kept[0]
                return Status.OK
            except BaseException as problem:
                failed.append(problem)
                return Status.CANCELLED

        handle = None if lease is None else lease._handle
        options = h.dibs_update_options(lease=handle, flags=h.IF_ABSENT if create else 0, wait_ms=ms(wait))
        result = h.dibs_record_result()
        try:
            self._call(library.dibs_record_update, text(key), ctypes.byref(options), make, None, ctypes.byref(result))
        except Error:
            if failed:
                raise failed[0]
            raise
        return result.version.decode()

    # ---- Stock ----

    def _stock(self, function, key, *arguments, claim=None, flags=0, wait=0, answers=()):
        options = h.dibs_stock_options(claim=text(claim), flags=flags, wait_ms=ms(wait))
        result = h.dibs_stock_result()
        status = self._call(function, text(key), *arguments, ctypes.byref(options), ctypes.byref(result), answers=answers)
        found = copy_of(result)
        found.replay = status == Status.REPLAY
        return found

    def take(self, key, amount=1, **options):
        """Repeat it with the same claim after UNKNOWN: `replay` says that it was done before."""
        return self._stock(library.dibs_stock_take, key, amount, answers=[Status.REPLAY], **options)

    def give(self, key, claim, **options):
        return self._stock(library.dibs_stock_give, key, text(claim), answers=[Status.REPLAY], **options)

    def stock(self, key):
        return self._stock(library.dibs_stock_show, key)

    def set_stock(self, key, limit):
        return self._stock(library.dibs_stock_set, key, limit)

    # ---- Once ----

    def once(self, key, function, *, keep=0, wait=0, ttl=0):
        """Runs function(fence) once in the whole fleet; returns its bytes, and whether it ran now."""
        failed = []

        @h.dibs_once_fn
        def work(lease, answer, length, user):
            try:
                made = function(library.dibs_lease_fence(lease).value)
                # The library frees it, so it must be from malloc.
                answer[0] = libc.malloc(len(made) or 1)
                ctypes.memmove(answer[0], made, len(made))
                length[0] = len(made)
                return Status.OK
            except BaseException as problem:
                failed.append(problem)
                return Status.CANCELLED

        options = h.dibs_once_options(keep_ms=ms(keep), wait_ms=ms(wait), ttl_ms=ms(ttl))
        answer, length = ctypes.c_void_p(), ctypes.c_size_t()
        try:
            status = self._call(
                library.dibs_once, text(key), ctypes.byref(options), work, None, ctypes.byref(answer),
                ctypes.byref(length), answers=[Status.REPLAY])
        except Error:
            if failed:
                raise failed[0]
            raise
        try:
            return ctypes.string_at(answer, length.value), status == Status.OK
        finally:
            libc.free(answer)

    def forget(self, key):
        self._call(library.dibs_once_forget, text(key))

    # ---- What operators need: dibs/admin.h ----

    def _collect(self, function, *arguments, callback):
        found = []
        number = _keep(found.append)
        try:
            self._call(function, *arguments, callback, number, answers=[Status.NOT_FOUND])
        finally:
            del _callbacks[number]
        return found

    def list(self, prefix=None):
        """Holders and waiters; `state` is one of dibs_h.HOLDS, WAITS and so on."""
        return self._collect(library.dibs_list, text(prefix), callback=_on_info)

    def show(self, name):
        return self._collect(library.dibs_show, text(name), callback=_on_info)

    def _later(self, function, *arguments, done):
        number = _keep(_Later(done))
        try:
            self._call(function, *arguments, _on_done, number)
        except Error:
            del _callbacks[number]
            raise

    def show_start(self, name, done):
        """Returns at once; done(entries, error) is called once, later."""
        self._later(library.dibs_show_start, text(name), _on_info, done=done)

    def metrics(self):
        return self._collect(library.dibs_metrics, callback=_on_metric)

    def _break_options(self, now, wait, who):
        return ctypes.byref(h.dibs_break_options(flags=h.BREAK_NOW if now else 0, wait_ms=ms(wait), who=text(who)))

    def break_(self, name, *, now=False, wait=0, who=None):
        self._call(library.dibs_break, text(name), self._break_options(now, wait, who))

    def break_start(self, name, done, *, now=False, wait=0, who=None):
        """Returns at once; done(error) is called once, later."""
        options = self._break_options(now, wait, who)
        self._later(library.dibs_break_start, text(name), options, done=lambda _, error: done(error))


def value_of(data):
    """bytes as a dibs_value, which keeps them; None is SQL's NULL."""
    if data is None:
        return h.dibs_value()
    value = h.dibs_value(ctypes.cast(ctypes.c_char_p(data), ctypes.c_void_p), len(data))
    value.bytes = data
    return value


@atexit.register
def _close_all():
    """A thread of the library must not call into an interpreter that is gone."""
    for store in list(Store._open):
        store.close()
