# cython: language_level=3, freethreading_compatible=True
"""Read board files and the frames of stored runs. Called by dwsr_probe.board and origin.

Numbers come back as tuples of words in the order of board_layout's lists; Python gives them names.
"""
cimport cython
from libc.errno cimport errno
from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc

from csrc.board_layout cimport (
    ABSENT, BARE_CELLS, TASK_DEVICES, TOTAL_CELLS, board_live, device, device_fields, facts, sample,
    task_device, task_fields, task_oom, total, total_device, total_fields)
from csrc.board_read cimport (
    BOARD_CUT_SHORT, BOARD_DAMAGED, BOARD_FOREIGN, BOARD_NOT_READY, BOARD_UNREADABLE,
    BOARD_VERSION_UNKNOWN, board_read_device, board_read_facts, board_read_live,
    board_read_records, board_read_samples, board_read_slot, board_read_texts, board_read_total,
    board_reader, board_reader_close, board_reader_open, board_reader_header_text, running_task)
from csrc.frame cimport (
    TEXT_COUNT, TEXT_chain, TEXT_inputs, TEXT_key_prefix, TEXT_key_rest, TEXT_name, TEXT_operation,
    TEXT_output, TEXT_params, TEXT_params_values, TEXT_reason_detail, frame_unpack,
    frame_valid_bytes, record, text as frame_text)
from csrc.gpu cimport GPU_PINNED
from csrc.layout cimport layout, layout_parse
from csrc.params cimport PARAM_BOOLEAN, PARAM_FLOAT, PARAM_INTEGER, param, params_float, params_next

import json
import os

from dwsr_probe import _core


class BoardError(Exception):
    """A board cannot be read. `reason` is a value of REASONS, `detail` a version or an errno."""
    __module__ = "dwsr_probe._core"  # where pickle finds it

    def __init__(self, reason, detail=None):
        super().__init__(reason, detail)
        self.reason = reason
        self.detail = detail


REASONS = {
    BOARD_NOT_READY: "not ready", BOARD_FOREIGN: "foreign", BOARD_VERSION_UNKNOWN: "version",
    BOARD_DAMAGED: "damaged", BOARD_CUT_SHORT: "cut short", BOARD_UNREADABLE: "unreadable"}


cdef tuple words(const void *start, uint64_t count):
    """The words as integers, ABSENT as None.

    No writer writes a number near 2**63, so the board is damaged if there is one.
    """
    cdef const uint64_t *w = <const uint64_t *>start
    cdef uint64_t i
    for i in range(count):
        if w[i] >> 63 and w[i] != ABSENT:
            raise BoardError(REASONS[BOARD_DAMAGED])
    return tuple([None if w[i] == ABSENT else w[i] for i in range(count)])


cdef str decoded(frame_text t):
    return t.at[:t.len].decode("utf-8", "replace") if t.len else ""


cdef dict param_heads = {}  # JSON list of names → of each its JSON and a colon, or None


cdef object heads_of(str names):
    """None if the text is no list of names. A name that recurs has no head."""
    found = param_heads.get(names, False)
    if found is False:
        found = None
        try:
            parsed = json.loads(names)
        except ValueError:
            parsed = None
        if type(parsed) is list and all([type(name) is str for name in parsed]):
            found = [
                None if name in parsed[:i] else f"{json.dumps(name)}:"
                for i, name in enumerate(parsed)]
        if len(param_heads) > 4096:
            param_heads.clear()
        param_heads[names] = found
    return found


cdef str params_text(str names, frame_text values):
    """A JSON object of the parameters; "" if they were not recorded, or not as csrc/params.h
    says."""
    cdef param value
    cdef int left
    if not names:
        return ""
    heads = heads_of(names)
    if heads is None:
        return ""
    found = []
    for head in heads:
        if params_next(&values, &value) != 1:
            return ""
        if value.kind == PARAM_FLOAT:
            number = repr(params_float(value))
        elif value.kind == PARAM_BOOLEAN:
            number = "true" if value.bits else "false"
        elif value.kind == PARAM_INTEGER:
            number = str(value.bits)
        else:
            number = str(-1 - <object>value.bits)
        if head is not None:
            found.append(<str>head + <str>number)
    left = params_next(&values, &value)
    return "" if left else "{" + ",".join(found) + "}"


cdef tuple devices_tuple(const task_device *devices, int count):
    """The GPUs among the devices, as words by TASK_DEVICE_FIELDS; without page-locked memory."""
    return tuple([
        words(&devices[i], sizeof(task_device) // 8)
        for i in range(count) if 0 < devices[i].device <= GPU_PINNED])


cdef tuple running_tuple(running_task *t):
    """A task in a slot, in the form of Layout.unpack.

    The sampler's figures are used if their serial number is that of this task.
    """
    cdef int i
    gpu = None
    if t.slot.alloc_serial == t.task.serial:
        t.task.alloc_peak_bytes = t.slot.alloc_peak_bytes
        t.task.alloc_end_bytes = t.slot.alloc_live_bytes
        t.task.alloc_count = t.slot.alloc_count
    if t.slot.gpu_serial == t.task.serial:
        gpu = devices_tuple(t.gpu, TASK_DEVICES)
        for i in range(TASK_DEVICES):
            if t.gpu[i].device == GPU_PINNED + 1:
                t.task.pinned_peak_bytes = t.gpu[i].peak_bytes
                t.task.pinned_end_bytes = t.gpu[i].live_bytes
    return (words(&t.task, sizeof(task_fields) // 8), decoded(t.name), decoded(t.key),
            decoded(t.inputs), "", gpu, None, "", decoded(t.operation), decoded(t.chain),
            params_text(decoded(t.params), t.params_values))


cdef dict cells(const uint32_t *counts, int most):
    """The cells of a histogram that are not empty: number → count."""
    cdef int i
    found = {}
    for i in range(most):
        if counts[i]:
            found[i] = counts[i]
    return found


@cython.final
cdef class Layout:
    """The lists of fields of a board or a stored run, to unpack its frames.

    ValueError: the text of the lists, or a frame, is invalid.
    """
    cdef layout layout
    cdef readonly bytes text

    def __init__(self, bytes text not None):
        self.text = text
        if layout_parse(&self.layout, <const char *>text, len(text)) < 0:
            raise ValueError("a layout of frames makes no sense")

    cdef str text_at(self, record *r, int index, list texts):
        if r.numbers[index] == ABSENT:
            return decoded(r.texts[index])
        if r.numbers[index] >= <uint64_t>len(texts):
            raise ValueError("a record names a text that is not there")
        return texts[r.numbers[index]]

    cdef tuple tuple_of(self, const char *frame, list texts):
        cdef record r
        if frame_unpack(&self.layout, frame, &r) < 0:
            raise ValueError("a record cannot be unpacked")
        if r.devices_known:
            gpu = devices_tuple(r.devices, r.device_count)
        else:
            gpu = decoded(r.gpu_json) or None
        oom = words(&r.oom, sizeof(task_oom) // 8) if r.oom.count else decoded(r.oom_json) or None
        key = self.text_at(&r, TEXT_key_rest, texts)
        if r.texts[TEXT_key_prefix].len or r.numbers[TEXT_key_prefix] != ABSENT:
            key = self.text_at(&r, TEXT_key_prefix, texts) + key
        return (
            words(&r.task, sizeof(task_fields) // 8), self.text_at(&r, TEXT_name, texts), key,
            self.text_at(&r, TEXT_inputs, texts), self.text_at(&r, TEXT_output, texts), gpu, oom,
            self.text_at(&r, TEXT_reason_detail, texts), self.text_at(&r, TEXT_operation, texts),
            self.text_at(&r, TEXT_chain, texts),
            params_text(self.text_at(&r, TEXT_params, texts), r.texts[TEXT_params_values]))

    def unpack(self, bytes packed not None, list texts not None):
        """The frames as tuples (words, name, key, inputs, output, devices, failed allocation,
        detail of the attribution's reason, operation, chain, parameters).

        words: by TASK_FIELDS. inputs, output, chain, parameters: JSON. devices: each as words by
        TASK_DEVICE_FIELDS; None if device memory was not followed. failed allocation: words by
        OOM_FIELDS, or None. Boards before version 6 have JSON in place of the last two.
        """
        cdef const char *at = packed
        cdef uint64_t left = len(packed), size
        found = []
        while left:
            size = frame_valid_bytes(&self.layout, at, left)
            if size == 0:
                raise ValueError("a record is damaged")
            found.append(self.tuple_of(at, texts))
            at += size
            left -= size
        return found


cdef class BoardReader:
    """A board file. Its content is checked before use: BoardError if it is not a valid board."""
    cdef board_reader reader
    cdef readonly Layout layout

    def __cinit__(self, path):
        self.reader.fd = -1
        cdef bytes encoded = os.fsencode(path)
        self.check(board_reader_open(&self.reader, encoded))
        self.layout = Layout(<bytes>self.reader.layout_text)

    def __dealloc__(self):
        board_reader_close(&self.reader)

    cdef int64_t check(self, int64_t result) except -1:
        if result >= 0:
            return result
        detail = None
        if result == BOARD_VERSION_UNKNOWN:
            detail = self.reader.header.version
        elif result == BOARD_UNREADABLE:
            detail = errno
        raise BoardError(REASONS[result], detail)

    def close(self):
        board_reader_close(&self.reader)

    def header(self):
        """Words by HEADER_FIELDS. The checksum has been verified."""
        return words(&self.reader.header, len(_core.HEADER_FIELDS))

    def inode(self):
        return self.reader.inode

    def texts(self):
        cdef uint64_t size
        cdef const char *at
        found = []
        for i in range(len(_core.HEADER_TEXTS)):
            at = board_reader_header_text(&self.reader, i, &size)
            found.append(at[:size])
        return tuple(found)

    def live(self):
        cdef board_live live
        self.check(board_read_live(&self.reader, &live))
        return words(&live, sizeof(board_live) // 8)

    def facts(self):
        """JSON about the program, from its own hooks; empty: none."""
        cdef facts *f = <facts *>malloc(sizeof(facts))
        if f == NULL:
            raise MemoryError
        try:
            self.check(board_read_facts(&self.reader, f))
            return (<char *>f.text)[:f.len]
        finally:
            free(f)

    def devices(self):
        """(number, fields, name, uuid) of each GPU that the process has allocated on."""
        cdef device d
        cdef uint64_t i
        found = []
        for i in range(self.reader.header.device_count):
            if self.check(board_read_device(&self.reader, i, &d)):
                fields = words(&d.fields, sizeof(device_fields) // 8)
                found.append((i, fields, <bytes>d.name, <bytes>d.uuid))
        return found

    def slots(self, uint64_t running):
        """(slot, task) of the running tasks. Reading stops once `running` tasks are found."""
        cdef running_task *s = <running_task *>malloc(sizeof(running_task))
        cdef uint64_t i
        found = []
        if s == NULL:
            raise MemoryError
        try:
            for i in range(self.reader.header.slot_count):
                if <uint64_t>len(found) >= running:
                    break
                if self.check(board_read_slot(&self.reader, i, s)):
                    found.append((i, running_tuple(s)))
        finally:
            free(s)
        return found

    def frames(self, uint64_t position, uint64_t most=100_000, uint64_t after_seq=0,
               uint64_t size=262144):
        """Finished tasks from `position` on, at most `most`, packed as they are on the board.

        Tasks whose seq is not above `after_seq` are left out. All others have been unpacked once as
        a check. Returns (position behind them, whether any were read, packed, count, first seq,
        last seq, last serial, number of texts that they refer to). If none were read, there are no
        more.
        """
        cdef char *buffer = <char *>malloc(size)
        cdef const char *at
        cdef int64_t left
        cdef uint64_t frame, serial = 0, seq = 0, first = 0, read = 0, skipped = 0, texts = 0
        cdef record r
        cdef int i
        if buffer == NULL:
            raise MemoryError
        try:
            left = self.check(board_read_records(&self.reader, &position, buffer, size, most))
            at = buffer
            while left:
                frame = frame_valid_bytes(&self.reader.layout, at, left)
                if frame_unpack(&self.reader.layout, at, &r) < 0:
                    raise BoardError(REASONS[BOARD_DAMAGED])
                serial, seq = r.task.serial, r.task.seq
                for i in range(TEXT_COUNT):
                    if r.numbers[i] != ABSENT and r.numbers[i] >= texts:
                        texts = r.numbers[i] + 1
                if seq <= after_seq:
                    skipped = at - buffer + frame
                elif first == 0:
                    first = seq
                if seq > after_seq:
                    read += 1
                at += frame
                left -= frame
            packed = (buffer + skipped)[:at - buffer - skipped]
            return position, at > buffer, packed, read, first, seq, serial, texts
        finally:
            free(buffer)

    def texts_from(self, uint64_t position, size_t size=65536):
        """(texts of the board from byte `position` on, in the order of their numbers, position
        behind them)."""
        cdef char *buffer = <char *>malloc(size)
        cdef int64_t left
        cdef const char *at
        cdef uint64_t length
        found = []
        if buffer == NULL:
            raise MemoryError
        try:
            while True:
                left = self.check(board_read_texts(&self.reader, &position, buffer, size))
                if left == 0:
                    return found, position
                at = buffer
                while left:
                    length = (<const uint32_t *>at)[0]
                    found.append((at + 8)[:length].decode("utf-8", "replace"))
                    at += 8 + (length + 7) // 8 * 8
                    left -= 8 + (length + 7) // 8 * 8
        finally:
            free(buffer)

    def totals(self):
        """One tuple per task name and operation: (words by TOTAL_FIELDS, devices by
        TOTAL_DEVICE_FIELDS, histograms of own peak, growth, duration, and growth of tasks without
        own figures).

        A histogram is a dict, cell → count. An entry that changes during each of several reads is
        left out.
        """
        cdef total *t = <total *>malloc(sizeof(total))
        cdef board_live live
        cdef uint64_t i, used = 0
        cdef int k
        found = []
        if t == NULL:
            raise MemoryError
        try:
            self.check(board_read_live(&self.reader, &live))
            if live.totals_used != ABSENT:
                used = min(live.totals_used, self.reader.header.total_count)
            for i in range(used):
                if not self.check(board_read_total(&self.reader, i, t)):
                    continue
                devices = tuple([
                    words(&t.devices[k], sizeof(total_device) // 8)
                    for k in range(TASK_DEVICES) if t.devices[k].device])
                found.append((
                    words(&t.fields, sizeof(total_fields) // 8), devices,
                    cells(t.alloc, TOTAL_CELLS), cells(t.growth, TOTAL_CELLS),
                    cells(t.duration, TOTAL_CELLS), cells(t.bare, BARE_CELLS)))
        finally:
            free(t)
        return found

    def samples(self, uint64_t index, uint64_t most=16384):
        """(samples from number `index` on, packed words by SAMPLE_FIELDS; the number behind them).

        Empty: no more.
        """
        cdef sample *buffer = <sample *>malloc(most * sizeof(sample))
        cdef int64_t count
        if buffer == NULL:
            raise MemoryError
        try:
            count = self.check(board_read_samples(&self.reader, &index, buffer, most))
            return (<char *>buffer)[:count * sizeof(sample)], index
        finally:
            free(buffer)
