#define _GNU_SOURCE
#include "elf_object.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static const ElfW(Dyn) * read_segments(const struct dl_phdr_info *info, struct elf_object *o)
{
    const ElfW(Dyn) *dynamic = NULL;
    o->text = UINTPTR_MAX;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *p = &info->dlpi_phdr[i];
        const uintptr_t begin = o->base + p->p_vaddr, end = begin + p->p_memsz;
        if (p->p_type == PT_DYNAMIC) dynamic = (const void *)begin;
        if (p->p_type == PT_GNU_RELRO) o->relro = begin, o->relro_end = end;
        if (p->p_type == PT_LOAD && (p->p_flags & PF_X)) {
            if (begin < o->text) o->text = begin;
            if (end > o->text_end) o->text_end = end;
        }
    }
    return dynamic;
}

int elf_object_read(const struct dl_phdr_info *info, struct elf_object *o)
{
    memset(o, 0, sizeof *o);
    o->base = info->dlpi_addr;
    const ElfW(Dyn) *dynamic = read_segments(info, o);
    if (!dynamic) return 0;
    size_t plt_bytes = 0, rela_bytes = 0, relative = 0, soname = 0;
    for (; dynamic->d_tag != DT_NULL; dynamic++) {
        const size_t value = dynamic->d_un.d_val;
        /* glibc has added the base to these addresses, except in read-only sections */
        uintptr_t address = dynamic->d_un.d_ptr;
        if (address < o->base) address += o->base;
        const void *at = (const void *)address;
        /* clang-format off */
        switch (dynamic->d_tag) {
            case DT_SYMTAB: o->symbols = at; break;
            case DT_STRTAB: o->strings = at; break;
            case DT_JMPREL: o->relocations[0] = at; break;
            case DT_PLTRELSZ: plt_bytes = value; break;
            case DT_RELA: o->relocations[1] = at; break;
            case DT_RELASZ: rela_bytes = value; break;
            case DT_RELACOUNT: relative = value; break;
            case DT_GNU_HASH: o->gnu_hash = at; break;
            case DT_HASH: o->hash = at; break;
            case DT_SONAME: soname = value; break;
            case DT_PLTREL: if (value != DT_RELA) return 0; break;
        }
        /* clang-format on */
    }
    o->relocation_counts[0] = o->relocations[0] ? plt_bytes / sizeof(ElfW(Rela)) : 0;
    o->relocation_counts[1] = o->relocations[1] ? rela_bytes / sizeof(ElfW(Rela)) : 0;
    /* relative relocations have no symbol and stand first */
    if (relative > o->relocation_counts[1]) relative = 0;
    if (relative) o->relocations[1] += relative, o->relocation_counts[1] -= relative;
    o->soname = o->strings && soname ? o->strings + soname : "";
    return o->symbols && o->strings;
}

static int has_name(const struct elf_object *o, uint32_t symbol, const char *name)
{
    return !strcmp(o->strings + o->symbols[symbol].st_name, name);
}

static uint32_t gnu_hash_of(const char *name)
{
    uint32_t h = 5381;
    for (; *name; name++) h = h * 33 + (unsigned char)*name;
    return h;
}

/* The index of a symbol in the table of DT_GNU_HASH, or 0. */
static uint32_t find_by_gnu_hash(const struct elf_object *o, const char *name)
{
    const uint32_t buckets = o->gnu_hash[0], first = o->gnu_hash[1], bloom = o->gnu_hash[2];
    const uint32_t *bucket = o->gnu_hash + 4 + bloom * (sizeof(ElfW(Addr)) / 4),
                   *chain = bucket + buckets, h = gnu_hash_of(name);
    uint32_t i = buckets ? bucket[h % buckets] : 0;
    for (; i && i >= first; i++) {
        const uint32_t entry = chain[i - first]; /* the hash; its lowest bit ends the chain */
        if ((entry | 1) == (h | 1) && has_name(o, i, name)) return i;
        if (entry & 1) return 0;
    }
    return 0;
}

/* In DT_HASH the second word is the number of symbols. */
static uint32_t find_one_by_one(const struct elf_object *o, const char *name)
{
    for (uint32_t i = 1; i < o->hash[1]; i++)
        if (has_name(o, i, name)) return i;
    return 0;
}

uintptr_t elf_object_function(const struct elf_object *o, const char *name)
{
    const uint32_t i = o->gnu_hash ? find_by_gnu_hash(o, name)
                       : o->hash   ? find_one_by_one(o, name)
                                   : 0;
    const ElfW(Sym) *found = &o->symbols[i];
    if (!i || found->st_shndx == SHN_UNDEF || found->st_value == 0
        || ELF64_ST_TYPE(found->st_info) != STT_FUNC)
        return 0;
    return o->base + found->st_value;
}

int elf_object_is_loader(const struct dl_phdr_info *info)
{
    const char *name = strrchr(info->dlpi_name, '/');
    name = name ? name + 1 : info->dlpi_name;
    return !strncmp(name, "ld-", 3) || !strncmp(name, "linux-vdso", 10);
}

int elf_object_contains(const struct dl_phdr_info *info, uintptr_t address)
{
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *p = &info->dlpi_phdr[i];
        const uintptr_t begin = info->dlpi_addr + p->p_vaddr;
        if (p->p_type == PT_LOAD && address >= begin && address - begin < p->p_memsz) return 1;
    }
    return 0;
}

/* The loader makes whole pages read-only. The last page stays writable if RELRO covers only a part
 * of it. */
static int protect_relro(const struct elf_object *o, int protection)
{
    const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), from = o->relro & ~(page - 1),
                    to = o->relro_end & ~(page - 1);
    return to > from ? mprotect((void *)from, to - from, protection) : 0;
}

int elf_object_unseal(struct elf_object *o)
{
    if (o->unsealed) return 0;
    if (protect_relro(o, PROT_READ | PROT_WRITE) < 0) return -errno;
    o->unsealed = 1;
    return 0;
}

void elf_object_seal(struct elf_object *o)
{
    if (o->unsealed) protect_relro(o, PROT_READ);
    o->unsealed = 0;
}
