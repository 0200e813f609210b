/* The smallest test harness: CHECK prints what failed and where, RUN names the test, and main
 * returns the number of failures. A test that cannot run says so: SKIP inside it, or `skip_all`
 * before the first RUN. run.sh counts it as skipped, not as passed. */
#ifndef CHECK_H
#define CHECK_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static int failures;
static const char *skip_all, *skipped; /* the reason; NULL: run */

#define CHECK(condition)                                                            \
    do {                                                                            \
        if (!(condition)) {                                                         \
            failures++;                                                             \
            fprintf(stderr, "%s:%d: failed: %s\n", __FILE__, __LINE__, #condition); \
        }                                                                           \
    } while (0)

#define SKIP(reason)      \
    do {                  \
        skipped = reason; \
        return;           \
    } while (0)

#define RUN(test)                                    \
    do {                                             \
        int before_ = failures;                      \
        skipped = skip_all;                          \
        if (!skipped) test();                        \
        if (failures != before_)                     \
            printf("FAIL %s\n", #test);              \
        else if (skipped)                            \
            printf("skip %s: %s\n", #test, skipped); \
        else                                         \
            printf("ok   %s\n", #test);              \
        fflush(stdout);                              \
    } while (0)

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
#define SANITIZED 1 /* shadow memory changes rss: bytes are checked in the plain build only */
#else
#define SANITIZED 0
#endif

/* A fresh directory, and files in it. */
static inline const char *scratch(void)
{
    static char path[64];
    snprintf(path, sizeof path, "/tmp/dwsr-test-XXXXXX");
    if (!mkdtemp(path)) abort();
    return path;
}

static inline void put(const char *root, const char *name, const char *text)
{
    char path[512];
    snprintf(path, sizeof path, "%s/%s", root, name);
    for (char *at = path + strlen(root) + 1; (at = strchr(at, '/')); at++) {
        *at = 0;
        mkdir(path, 0700);
        *at = '/';
    }
    FILE *f = fopen(path, "w");
    if (!f || fputs(text, f) < 0 || fclose(f)) abort();
}

static inline void remove_tree(const char *root)
{
    char command[600];
    snprintf(command, sizeof command, "rm -rf '%s'", root);
    if (system(command)) abort();
}

#endif
