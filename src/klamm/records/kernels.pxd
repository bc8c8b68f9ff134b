# C names that the compiled form of kernels.py uses and that Cython's own declarations lack.

cdef extern from "Python.h":
    void PyObject_GC_UnTrack(object)
    object PyType_GenericAlloc(type, Py_ssize_t)

# Where the bytes of an object lie that somebody else keeps alive.
cdef extern from *:
    """
    static const unsigned char *borrowed_bytes(PyObject *object, Py_ssize_t *size) {
        Py_buffer view;
        const unsigned char *start;
        if (PyObject_GetBuffer(object, &view, PyBUF_SIMPLE) < 0) return NULL;
        start = (const unsigned char *)view.buf;
        *size = view.len;
        PyBuffer_Release(&view);
        return start;
    }
    """
    const unsigned char *borrowed_bytes(object, Py_ssize_t *) except? NULL

# CRC-32C by the processor's own instruction, where it has one; elsewhere the tables of kernels.py do it.
cdef extern from *:
    """
    #if defined(__x86_64__) && defined(__GNUC__)
    static int checksum_is_an_instruction(void) { return __builtin_cpu_supports("sse4.2"); }
    __attribute__((target("sse4.2")))
    static unsigned int checksum_by_instruction(const unsigned char *p, Py_ssize_t size) {
        unsigned long long c = 0xFFFFFFFFu, word;
        for (; size >= 8; size -= 8, p += 8) {
            memcpy(&word, p, 8);
            c = __builtin_ia32_crc32di(c, word);
        }
        for (; size > 0; size--, p++) c = __builtin_ia32_crc32qi((unsigned int)c, *p);
        return ~(unsigned int)c;
    }
    #else
    static int checksum_is_an_instruction(void) { return 0; }
    static unsigned int checksum_by_instruction(const unsigned char *p, Py_ssize_t size) { return 0; }
    #endif
    """
    int checksum_is_an_instruction() nogil
    unsigned int checksum_by_instruction(const unsigned char *p, Py_ssize_t size) nogil
