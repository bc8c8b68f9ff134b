# C names that the compiled form of kernels.py uses and that Cython's own declarations lack.

cdef extern from "Python.h":
    void PyObject_GC_UnTrack(object)
    object PyType_GenericAlloc(type, Py_ssize_t)
