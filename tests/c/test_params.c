/* Parameters: each value is read as it was written; what does not fit is left out; bytes that are
 * no values. */
#include "check.h"
#include "params.h"

#include <errno.h>
#include <float.h>
#include <math.h>

static struct params params;

static struct text text(const char *at) { return (struct text){ at, strlen(at) }; }

static void add(const char *name, enum param_kind kind, word bits)
{
    params_add(&params, text(name), (struct param){ kind, bits });
}

static struct text values(void)
{
    return (struct text){ (const char *)params.values, params.values_len };
}

static int has_names(const char *expected)
{
    return params.names_len == strlen(expected)
           && !memcmp(params.names, expected, params.names_len);
}

static void values_of_every_size(void)
{
    for (int bits = 0; bits <= 64; bits++) {
        const word most = bits ? UINT64_MAX >> (64 - bits) : 0;
        params_open(&params);
        add("\"a\"", PARAM_INTEGER, most);
        add("\"b\"", PARAM_NEGATIVE, most);
        add("\"c\"", PARAM_BOOLEAN, (word)bits % 2);
        params_close(&params);
        CHECK(has_names("[\"a\",\"b\",\"c\"]"));
        struct text left = values();
        struct param found;
        CHECK(params_next(&left, &found) == 1 && found.kind == PARAM_INTEGER && found.bits == most);
        CHECK(params_next(&left, &found) == 1 && found.kind == PARAM_NEGATIVE
              && found.bits == most);
        CHECK(params_next(&left, &found) == 1 && found.kind == PARAM_BOOLEAN
              && found.bits == (word)bits % 2);
        CHECK(params_next(&left, &found) == 0);
    }
}

static void floats(void)
{
    static const double numbers[] = { 0.0,     -0.0,    1.0,    1.5,      -2.5,  0.1,
                                      DBL_MAX, DBL_MIN, 5e-324, -DBL_MAX, 1e300, M_PI };
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        params_open(&params);
        params_add_float(&params, text("\"x\""), numbers[i]);
        params_close(&params);
        struct text left = values();
        struct param found;
        CHECK(params_next(&left, &found) == 1 && found.kind == PARAM_FLOAT);
        const double number = params_float(found);
        CHECK(!memcmp(&number, &numbers[i], sizeof number) && left.len == 0);
    }
    params_open(&params);
    params_add_float(&params, text("\"sigma\""), 1.5);
    CHECK(params.values_len == 3);
    params_add_float(&params, text("\"x\""), NAN);
    params_add_float(&params, text("\"y\""), -INFINITY);
    params_close(&params);
    CHECK(params.count == 1 && has_names("[\"sigma\"]"));
}

static void none(void)
{
    struct text left;
    struct param found;
    params_open(&params);
    params_close(&params);
    left = values();
    CHECK(has_names("[]") && params_next(&left, &found) == 0);
}

static void what_does_not_fit_is_left_out(void)
{
    char name[80];
    params_open(&params);
    for (int i = 0; i < 100; i++) {
        snprintf(name, sizeof name, "\"%d\"", i);
        add(name, PARAM_INTEGER, UINT64_MAX);
    }
    params_close(&params);
    CHECK(params.count == PARAMS_MOST && params.values_len == PARAMS_VALUES_MOST);

    params_open(&params);
    memset(name, 'x', sizeof name);
    for (int i = 0; i < 100; i++)
        params_add(&params, (struct text){ name, 66 }, (struct param){ PARAM_INTEGER, 1 });
    CHECK(params.count == 7 && params.names_len == 7 * 67); /* and a short one still fits */
    add("\"y\"", PARAM_BOOLEAN, 1);
    CHECK(params.count == 8);
    /* up to the last byte */
    const uint64_t room = PARAMS_NAMES_MOST - 2 - params.names_len;
    params_add(&params, (struct text){ name, room + 1 }, (struct param){ PARAM_INTEGER, 1 });
    CHECK(params.count == 8);
    params_add(&params, (struct text){ name, room }, (struct param){ PARAM_INTEGER, 1 });
    CHECK(params.count == 9);
    add("", PARAM_INTEGER, 1);
    params_close(&params);
    CHECK(params.count == 9 && params.names_len == PARAMS_NAMES_MOST);
}

static int is_refused(const char *bytes, uint64_t len)
{
    struct text left = { bytes, len };
    struct param found;
    return params_next(&left, &found) == -EINVAL;
}

static void bytes_that_are_no_values(void)
{
    CHECK(is_refused("\x21", 1) && is_refused("\x29XXXXXXXXX", 10)); /* cut short; too long */
    CHECK(is_refused("\x00", 1) && is_refused("\x51X", 2));          /* no kind */
    CHECK(is_refused("\x11\x02", 2));                                /* a boolean that is 2 */
    CHECK(is_refused("\x42\x7f\xf0", 3));                            /* infinite */
    srand(1);
    for (int i = 0; i < 100000; i++) {
        char bytes[32];
        struct text left = { bytes, (uint64_t)rand() % sizeof bytes };
        struct param found;
        for (size_t k = 0; k < sizeof bytes; k++) bytes[k] = (char)rand();
        while (params_next(&left, &found) == 1) CHECK(left.at + left.len <= bytes + sizeof bytes);
    }
}

int main(void)
{
    RUN(values_of_every_size);
    RUN(floats);
    RUN(none);
    RUN(what_does_not_fit_is_left_out);
    RUN(bytes_that_are_no_values);
    return failures;
}
