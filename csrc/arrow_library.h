/* What arrow_pool.c and arrow_threads.c both know of Apache Arrow's C++ library.
 *
 * A class has a table of its virtual functions, which begins with two words that describe the
 * class. An object's first word leads to what follows: two destructors (the second one also frees
 * the object), then the functions.
 *
 * The functions here take the loader's lock, as dladdr does.
 */
#ifndef DWSR_ARROW_LIBRARY_H
#define DWSR_ARROW_LIBRARY_H

#include <stddef.h>
#include <stdint.h>

enum { ARROW_TABLE_HEAD = 2, ARROW_TABLE_DESTROY = 0, ARROW_TABLE_DELETE, ARROW_TABLE_FIRST };

/* arrow::Status is one pointer: null if the call succeeded. On x86-64, a function that returns one
 * receives the address for it as first argument and returns that address. */
struct arrow_status {
    const void *failure;
};

/* Words of the table with this symbol, the head included. 0: there is no such symbol. */
size_t arrow_table_words(const void *symbol);
/* The base of the loaded object that contains the address, or 0. */
uintptr_t arrow_base_of(const void *address);

#endif
