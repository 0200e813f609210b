/* Parameters of a task: the numbers and booleans among its arguments, by name.
 *
 * They are two texts of a frame: the names as a JSON list, which recur and are interned, and the
 * values, which may differ in every task (f(x, seed=i)) and are never interned. A value is one
 * byte, kind << 4 | number of bytes that follow, and these bytes, lowest first.
 *
 * Written before a task begins (binding/params.pyx), read by readers in any process. Nothing here
 * allocates or keeps state.
 */
#ifndef DWSR_PARAMS_H
#define DWSR_PARAMS_H

#include "frame.h"

#define PARAMS_MOST        16
#define PARAMS_NAMES_MOST  512
#define PARAMS_VALUES_MOST (PARAMS_MOST * (1 + sizeof(word)))

enum param_kind {
    PARAM_BOOLEAN = 1,  /* 0 or 1 */
    PARAM_INTEGER = 2,  /* from 0 up */
    PARAM_NEGATIVE = 3, /* the integer -1 - bits */
    PARAM_FLOAT = 4,    /* the bits of a finite double */
};

struct param {
    enum param_kind kind;
    word bits;
};

struct params {
    uint32_t count, names_len, values_len;
    char names[PARAMS_NAMES_MOST];
    unsigned char values[PARAMS_VALUES_MOST];
};

/* Begins an empty list. */
void params_open(struct params *p);
/* Adds a value. name: a JSON string, with its quotes. A value beyond PARAMS_MOST, one whose name
 * has no room, and a float that is not finite are left out. */
void params_add(struct params *p, struct text name, struct param value);
/* The same for a float. */
void params_add_float(struct params *p, struct text name, double value);
/* Ends the list: `names` and `values` are complete. */
void params_close(struct params *p);

/* Takes the first value off `values`. 1; 0: there are no more; -EINVAL: no writer can have written
 * these bytes. */
int params_next(struct text *values, struct param *value);
double params_float(struct param value);

#endif
