#include "params.h"

#include <errno.h>
#include <math.h>
#include <string.h>

void params_open(struct params *p)
{
    p->count = p->values_len = 0;
    p->names_len = 1;
    p->names[0] = '[';
}

void params_add(struct params *p, struct text name, struct param value)
{
    /* a comma before, the bracket after */
    if (p->count == PARAMS_MOST || p->names_len + name.len > PARAMS_NAMES_MOST - 2) return;
    if (p->count++) p->names[p->names_len++] = ',';
    memcpy(p->names + p->names_len, name.at, name.len);
    p->names_len += (uint32_t)name.len;

    /* The low bytes of short floats are 0: 1.5 takes two bytes. */
    word bits = value.kind == PARAM_FLOAT ? __builtin_bswap64(value.bits) : value.bits;
    unsigned char *head = p->values + p->values_len++;
    for (; bits; bits >>= 8) p->values[p->values_len++] = (unsigned char)bits;
    *head = (unsigned char)(value.kind << 4 | (p->values + p->values_len - head - 1));
}

void params_add_float(struct params *p, struct text name, double value)
{
    struct param param = { PARAM_FLOAT, 0 };
    if (!isfinite(value)) return;
    memcpy(&param.bits, &value, sizeof value);
    params_add(p, name, param);
}

void params_close(struct params *p) { p->names[p->names_len++] = ']'; }

int params_next(struct text *values, struct param *value)
{
    if (values->len == 0) return 0;
    const unsigned char *at = (const unsigned char *)values->at;
    const unsigned bytes = at[0] & 15;
    if (bytes > sizeof(word) || bytes >= values->len) return -EINVAL;
    value->kind = (enum param_kind)(at[0] >> 4);
    value->bits = 0;
    for (unsigned i = bytes; i > 0; i--) value->bits = value->bits << 8 | at[i];
    if (value->kind == PARAM_FLOAT) value->bits = __builtin_bswap64(value->bits);
    if (value->kind < PARAM_BOOLEAN || value->kind > PARAM_FLOAT
        || (value->kind == PARAM_BOOLEAN && value->bits > 1)
        || (value->kind == PARAM_FLOAT && !isfinite(params_float(*value))))
        return -EINVAL;
    *values = (struct text){ values->at + 1 + bytes, values->len - 1 - bytes };
    return 1;
}

double params_float(struct param value)
{
    double found;
    memcpy(&found, &value.bits, sizeof found);
    return found;
}
