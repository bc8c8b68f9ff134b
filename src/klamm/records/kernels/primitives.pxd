# The parts that kernels share, in C: defined here and `inline`, so that every kernel module gets its own copy to inline.
# A `cdef` function of a compiled module would be called through a pointer, which costs more than most of these do.
# primitives.py is the same for interpreted kernels.

from klamm.records.kernels.layout cimport (
    ATTRIBUTES_AT, BATCH_LENGTH_AT, BYTES_SINCE_ENTRY, CELL_AT, CELL_SIZE, CRC_AT, DAMAGED, END, FILE_AT, HEADERS_AT,
    HEADER_COUNT, HEADER_VALUE_AT, INDEX_ENTRIES, KEY_AT, LENGTH_OVERHEAD, MAGIC_AT, MAX_TIMESTAMP,
    MAX_TIMESTAMP_OFFSET, NAME_AT, NAME_SIZE, OFFSET_DELTA, RECORDS_AT, SPECIAL, TIMESTAMP_DELTA, VALUE_AT,
)
from libc.string cimport memcpy

cdef extern from "Python.h":
    void PyObject_GC_UnTrack(object)
    object PyType_GenericAlloc(type, Py_ssize_t)

cdef extern from "stdint.h":
    const long long INT64_MAX

cdef extern from *:
    """
    /* Where the bytes of a buffer lie that the caller keeps alive and does not resize. */
    static unsigned char *klamm_borrow(PyObject *object, int flags, Py_ssize_t *size) {
        Py_buffer view;
        unsigned char *start;
        if (PyObject_GetBuffer(object, &view, flags) < 0) return NULL;
        start = (unsigned char *)view.buf;
        *size = view.len;
        PyBuffer_Release(&view);
        return start;
    }

    /* CRC-32C by the processor's instruction; by tables, eight bytes at a time, where there is none. */
    static unsigned int klamm_crc_tables[8][256];
    static int klamm_crc_by_instruction;

    #if defined(__x86_64__) && defined(__GNUC__)
    static int klamm_has_crc_instruction(void) {
        __builtin_cpu_init();
        return __builtin_cpu_supports("sse4.2") != 0;
    }
    __attribute__((target("sse4.2")))
    static unsigned int klamm_crc_instruction(const unsigned char *p, Py_ssize_t size) {
        unsigned long long c = 0xFFFFFFFFu, word;
        for (; size >= 8; size -= 8, p += 8) {
            memcpy(&word, p, 8);
            c = __builtin_ia32_crc32di(c, word);
        }
        for (; size > 0; size--, p++) c = __builtin_ia32_crc32qi((unsigned int)c, *p);
        return ~(unsigned int)c;
    }
    #else
    static int klamm_has_crc_instruction(void) { return 0; }
    static unsigned int klamm_crc_instruction(const unsigned char *p, Py_ssize_t size) { return 0; }
    #endif

    /* When the module is loaded, because kernels compute checksums without the interpreter's lock. */
    __attribute__((constructor)) static void klamm_prepare_crc(void) {
        unsigned int i, bit, table, c;
        klamm_crc_by_instruction = klamm_has_crc_instruction();
        if (klamm_crc_by_instruction) return;
        for (i = 0; i < 256; i++) {
            for (c = i, bit = 0; bit < 8; bit++) c = c >> 1 ^ (c & 1 ? 0x82F63B78u : 0);
            klamm_crc_tables[0][i] = c;
        }
        for (i = 0; i < 256; i++)
            for (table = 1; table < 8; table++) {
                c = klamm_crc_tables[table - 1][i];
                klamm_crc_tables[table][i] = c >> 8 ^ klamm_crc_tables[0][c & 255];
            }
    }

    static unsigned int klamm_crc_table(const unsigned char *p, Py_ssize_t size) {
        unsigned int c = 0xFFFFFFFFu, (*t)[256] = klamm_crc_tables;
        for (; size >= 8; size -= 8, p += 8) {
            c ^= p[0] | p[1] << 8 | p[2] << 16 | (unsigned int)p[3] << 24;
            c = t[7][c & 255] ^ t[6][c >> 8 & 255] ^ t[5][c >> 16 & 255] ^ t[4][c >> 24]
                ^ t[3][p[4]] ^ t[2][p[5]] ^ t[1][p[6]] ^ t[0][p[7]];
        }
        for (; size > 0; size--, p++) c = t[0][(c ^ *p) & 255] ^ c >> 8;
        return ~c;
    }

    static unsigned int klamm_crc(const unsigned char *p, Py_ssize_t size) {
        return klamm_crc_by_instruction ? klamm_crc_instruction(p, size) : klamm_crc_table(p, size);
    }
    """
    unsigned char *klamm_borrow(object, int, Py_ssize_t *) except? NULL
    unsigned int klamm_crc(const unsigned char *, Py_ssize_t) nogil
    const int PyBUF_SIMPLE
    const int PyBUF_WRITABLE


# Buffers


cdef inline unsigned char *readable(object buffer, long long size) except? NULL:
    cdef Py_ssize_t present = 0
    cdef unsigned char *start = klamm_borrow(buffer, PyBUF_SIMPLE, &present)
    if present < size:
        raise ValueError(f"a buffer of {present} bytes is smaller than the {size} needed")
    return start


cdef inline unsigned char *writable(object buffer, long long size) except? NULL:
    cdef Py_ssize_t present = 0
    cdef unsigned char *start = klamm_borrow(buffer, PyBUF_WRITABLE, &present)
    if present < size:
        raise ValueError(f"a buffer of {present} bytes is smaller than the {size} needed")
    return start


cdef inline int *readable_ints(object buffer, long long count) except? NULL:
    return <int *>readable(buffer, 4 * count)


cdef inline long long *readable_longs(object buffer, long long count) except? NULL:
    return <long long *>readable(buffer, 8 * count)


cdef inline int *writable_ints(object buffer, long long count) except? NULL:
    return <int *>writable(buffer, 4 * count)


cdef inline long long *writable_longs(object buffer, long long count) except? NULL:
    return <long long *>writable(buffer, 8 * count)


cdef inline unsigned long long *readable_words(object buffer, long long count) except? NULL:
    return <unsigned long long *>readable(buffer, 8 * count)


cdef inline unsigned long long *writable_words(object buffer, long long count) except? NULL:
    return <unsigned long long *>writable(buffer, 8 * count)


cdef inline int copy_bytes(
    unsigned char *q, Py_ssize_t at, const unsigned char *p, Py_ssize_t pos, Py_ssize_t size
) noexcept nogil:
    memcpy(q + at, p + pos, size)
    return 0


# Integers


cdef inline int read_int16(const unsigned char *p, Py_ssize_t pos) noexcept nogil:
    cdef int high = p[pos]
    return ((high - 256 if high > 127 else high) << 8) | p[pos + 1]


cdef inline int read_int32(const unsigned char *p, Py_ssize_t pos) noexcept nogil:
    return (p[pos] << 24) | (p[pos + 1] << 16) | (p[pos + 2] << 8) | p[pos + 3]


cdef inline long long read_int64(const unsigned char *p, Py_ssize_t pos) noexcept nogil:
    cdef unsigned long long word = 0
    cdef Py_ssize_t i
    for i in range(8):
        word = (word << 8) | p[pos + i]
    return <long long>word


cdef inline Py_ssize_t write_int(unsigned char *q, Py_ssize_t pos, long long value, Py_ssize_t size) noexcept nogil:
    cdef Py_ssize_t i = size
    while i > 0:
        i -= 1
        q[pos + i] = value & 0xFF
        value >>= 8
    return pos + size


# Varints


cdef inline Py_ssize_t read_uvarint(
    const unsigned char *p, Py_ssize_t pos, Py_ssize_t end, long long *out, Py_ssize_t slot
) noexcept nogil:
    cdef long long value = 0
    cdef long long b = 0
    cdef int shift = 0
    while pos < end and shift <= 21:
        b = p[pos]
        pos += 1
        value |= (b & 0x7F) << shift
        if b < 0x80:
            out[slot] = value
            return pos
        shift += 7
    return -1


cdef inline Py_ssize_t write_uvarint(unsigned char *q, Py_ssize_t pos, Py_ssize_t value) noexcept nogil:
    while value > 127:
        q[pos] = (value & 0x7F) | 0x80
        value >>= 7
        pos += 1
    q[pos] = <unsigned char>value
    return pos + 1


cdef inline Py_ssize_t read_varint(
    const unsigned char *p, Py_ssize_t pos, Py_ssize_t end, long long *out, Py_ssize_t slot, int shift_max
) noexcept nogil:
    cdef unsigned long long u = 0
    cdef unsigned long long b = 0
    cdef int shift = 0
    while pos < end and shift <= shift_max:
        b = p[pos]
        pos += 1
        if shift == 63 and b > 1:
            return -1
        u |= (b & 0x7F) << shift
        if b < 0x80:
            out[slot] = <long long>(u >> 1) ^ -<long long>(u & 1)
            return pos
        shift += 7
    return -1


cdef inline Py_ssize_t varint_size(long long value) noexcept nogil:
    cdef unsigned long long u = (<unsigned long long>value << 1) ^ <unsigned long long>(value >> 63)
    cdef Py_ssize_t size = 1
    while u >= 0x80:
        u >>= 7
        size += 1
    return size


cdef inline Py_ssize_t write_varint(unsigned char *q, Py_ssize_t pos, long long value) noexcept nogil:
    cdef unsigned long long u = (<unsigned long long>value << 1) ^ <unsigned long long>(value >> 63)
    while u >= 0x80:
        q[pos] = (u & 0x7F) | 0x80
        u >>= 7
        pos += 1
    q[pos] = <unsigned char>u
    return pos + 1


cdef inline Py_ssize_t write_span(
    unsigned char *q, Py_ssize_t pos, const unsigned char *p, long long at, long long size
) noexcept nogil:
    pos = write_varint(q, pos, size)
    if size > 0:
        memcpy(q + pos, p + at, size)
        pos += size
    return pos


# Records


cdef inline Py_ssize_t read_span(
    const unsigned char *p, Py_ssize_t pos, Py_ssize_t end, long long *out, Py_ssize_t slot
) noexcept nogil:
    pos = read_varint(p, pos, end, out, slot + 1, 28)
    if pos < 0 or out[slot + 1] < -1 or out[slot + 1] > end - pos:
        return -1
    out[slot] = pos
    if out[slot + 1] > 0:
        pos += out[slot + 1]
    return pos


cdef inline Py_ssize_t read_header(
    const unsigned char *p, Py_ssize_t pos, Py_ssize_t end, long long *header
) noexcept nogil:
    pos = read_span(p, pos, end, header, NAME_AT)
    if pos < 0 or header[NAME_SIZE] < 0:
        return -1
    return read_span(p, pos, end, header, HEADER_VALUE_AT)


cdef inline Py_ssize_t read_record(
    const unsigned char *p, Py_ssize_t pos, Py_ssize_t end, long long *fields, long long *header
) noexcept nogil:
    cdef long long i
    cdef long long count = 0
    pos = read_varint(p, pos, end, fields, 0, 28)
    if pos < 0 or fields[0] < 1 or fields[0] > end - pos:
        return -1
    end = pos + fields[0]
    pos = read_varint(p, pos + 1, end, fields, TIMESTAMP_DELTA, 63)
    if pos < 0:
        return -1
    pos = read_varint(p, pos, end, fields, OFFSET_DELTA, 28)
    if pos < 0 or fields[OFFSET_DELTA] < 0 or fields[OFFSET_DELTA] > 0x7FFFFFFF:
        return -1
    pos = read_span(p, pos, end, fields, KEY_AT)
    if pos < 0:
        return -1
    pos = read_span(p, pos, end, fields, VALUE_AT)
    if pos < 0:
        return -1
    pos = read_varint(p, pos, end, fields, HEADER_COUNT, 28)
    if pos < 0 or fields[HEADER_COUNT] < 0 or fields[HEADER_COUNT] > end - pos:
        return -1
    fields[HEADERS_AT] = pos
    count = fields[HEADER_COUNT]
    for i in range(count):
        pos = read_header(p, pos, end, header)
        if pos < 0:
            return -1
    return end if pos == end else -1


cdef inline bint sums_fit(const long long *fields, long long base_offset, long long base_timestamp) noexcept nogil:
    # In C an overflow would pass unseen, so the sum is never made.
    if base_offset > INT64_MAX - fields[OFFSET_DELTA]:
        return False
    return timestamp_fits(base_timestamp, fields[TIMESTAMP_DELTA])


cdef inline bint timestamp_fits(long long base, long long delta) noexcept nogil:
    if delta > 0:
        return base <= INT64_MAX - delta
    return base >= -(INT64_MAX + delta) - 1


cdef inline bint distance_fits(long long timestamp, long long base) noexcept nogil:
    if base < 0:
        return timestamp <= INT64_MAX + base
    return timestamp >= -INT64_MAX - 1 + base


# Arrow columns


cdef inline bint is_null(const unsigned char *validity, long long index) noexcept nogil:
    return not (validity[index >> 3] >> (index & 7)) & 1


cdef inline bint read_cell(const int *offsets, long long index, long long capacity, long long *cell) noexcept nogil:
    cell[CELL_AT] = offsets[index]
    cell[CELL_SIZE] = offsets[index + 1] - cell[CELL_AT]
    return cell[CELL_AT] >= 0 and cell[CELL_SIZE] >= 0 and cell[CELL_SIZE] <= capacity - cell[CELL_AT]


# Batches


cdef inline long long checksum(const unsigned char *p, Py_ssize_t pos, Py_ssize_t end) noexcept nogil:
    return klamm_crc(p + pos, end - pos)


cdef inline long long claimed_checksum(const unsigned char *p, Py_ssize_t pos) noexcept nogil:
    return <unsigned int>read_int32(p, pos + CRC_AT)


cdef inline int frame_batch(const unsigned char *p, Py_ssize_t pos, Py_ssize_t end) noexcept nogil:
    cdef long long size = 0
    if end - pos < RECORDS_AT:
        return END
    size = read_int32(p, pos + BATCH_LENGTH_AT)
    if size < RECORDS_AT - LENGTH_OVERHEAD or p[pos + MAGIC_AT] != 2:
        return DAMAGED
    return SPECIAL if size + LENGTH_OVERHEAD <= end - pos else END


cdef inline int verify_batch(const unsigned char *p, Py_ssize_t pos, Py_ssize_t end) noexcept nogil:
    cdef int state = frame_batch(p, pos, end)
    cdef long long size = 0
    if state != SPECIAL:
        return state
    size = <long long>read_int32(p, pos + BATCH_LENGTH_AT) + LENGTH_OVERHEAD
    return SPECIAL if claimed_checksum(p, pos) == checksum(p, pos + ATTRIBUTES_AT, pos + size) else DAMAGED


cdef inline int index_batch(
    long long *w, long long *marks, long long interval, long long last_offset, long long size, long long max_timestamp
) noexcept nogil:
    cdef long long *mark
    if max_timestamp > w[MAX_TIMESTAMP]:
        w[MAX_TIMESTAMP] = max_timestamp
        w[MAX_TIMESTAMP_OFFSET] = last_offset
    if w[BYTES_SINCE_ENTRY] > interval:
        mark = marks + 4 * w[INDEX_ENTRIES]
        mark[0] = last_offset
        mark[1] = w[FILE_AT]
        mark[2] = w[MAX_TIMESTAMP]
        mark[3] = w[MAX_TIMESTAMP_OFFSET]
        w[INDEX_ENTRIES] += 1
        w[BYTES_SINCE_ENTRY] = 0
    w[BYTES_SINCE_ENTRY] += size
    w[FILE_AT] += size
    return 0
