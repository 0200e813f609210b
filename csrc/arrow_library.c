#define _GNU_SOURCE
#include "arrow_library.h"

#include <dlfcn.h>
#include <link.h>

size_t arrow_table_words(const void *symbol)
{
    Dl_info info;
    const ElfW(Sym) *entry = NULL;
    if (!symbol || !dladdr1(symbol, &info, (void **)&entry, RTLD_DL_SYMENT) || !entry
        || (const char *)info.dli_saddr != symbol)
        return 0;
    return entry->st_size / sizeof(uintptr_t);
}

uintptr_t arrow_base_of(const void *address)
{
    Dl_info info;
    struct link_map *object = NULL;
    return dladdr1(address, &info, (void **)&object, RTLD_DL_LINKMAP) && object ? object->l_addr
                                                                                : 0;
}
