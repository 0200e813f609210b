/* A library that allocates, opened by test_patch.c. Its slots: a call, an address in code, a
 * variable, a constant on sealed pages. */
#include <stdlib.h>

void *library_malloc(size_t n);
void *library_address(void);
void *library_own(size_t n);
void *(*library_variable)(size_t) = malloc;
void *(*const library_constant)(size_t) = malloc;

void *library_malloc(size_t n) { return malloc(n); }
void *library_address(void) { return (void *)malloc; }
void *library_own(size_t n) { return (void)n, NULL; }
