/* Stands for a library with an allocator of its own, opened by test_patch.c. */
#include <string.h>

void *library_copy(void *to, const void *from, size_t n);
void *library_fill(void *to, int byte, size_t n);

void *library_copy(void *to, const void *from, size_t n) { return memcpy(to, from, n); }
void *library_fill(void *to, int byte, size_t n) { return memset(to, byte, n); }
