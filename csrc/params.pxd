from libc.stdint cimport uint32_t, uint64_t

from csrc.frame cimport text

cdef extern from "params.h" nogil:
    enum param_kind:
        PARAM_BOOLEAN, PARAM_INTEGER, PARAM_NEGATIVE, PARAM_FLOAT
    enum:
        PARAMS_MOST
    struct param:
        param_kind kind
        uint64_t bits
    struct params:
        uint32_t count, names_len, values_len
        char names[1]
        unsigned char values[1]
    void params_open(params *p)
    void params_add(params *p, text name, param value)
    void params_add_float(params *p, text name, double value)
    void params_close(params *p)
    int params_next(text *values, param *value)
    double params_float(param value)
