/* The smallest test harness: CHECK prints what failed and where, RUN names the test, and main returns the number of failures. */
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

#define CHECK(condition)                                                         \
    do {                                                                         \
        if (!(condition)) {                                                      \
            failures++;                                                          \
            fprintf(stderr, "%s:%d: failed: %s\n", __FILE__, __LINE__, #condition); \
        }                                                                        \
    } while (0)

#define RUN(test)                                              \
    do {                                                       \
        int before_ = failures;                                \
        test();                                                \
        printf("%s %s\n", failures == before_ ? "ok  " : "FAIL", #test); \
        fflush(stdout);                                        \
    } while (0)

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
#define SANITIZED 1 /* shadow memory moves rss: figures of bytes are checked in the plain build */
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
