/* A loaded ELF object: its symbols, its relocations, its code, and the pages that the loader has
 * made read-only (RELRO).
 *
 * Called by patch.c from inside dl_iterate_phdr, where no object is loaded or unloaded. Any thread;
 * nothing here takes a lock or allocates.
 */
#ifndef DWSR_ELF_OBJECT_H
#define DWSR_ELF_OBJECT_H

#include <elf.h>
#include <link.h>
#include <stddef.h>
#include <stdint.h>

struct elf_object {
    uintptr_t base;
    const ElfW(Sym) * symbols;
    const char *strings;
    const char *soname; /* its own name, or "" */
    /* [0]: relocations of the PLT. [1]: all other relocations that have a symbol. */
    const ElfW(Rela) * relocations[2];
    size_t relocation_counts[2];
    const uint32_t *gnu_hash;
    const Elf32_Word *hash;
    uintptr_t relro, relro_end, text, text_end;
    int unsealed; /* the RELRO pages are writable now */
};

/* 1, or 0 if the object has no symbols, or relocations of another kind than RELA. */
int elf_object_read(const struct dl_phdr_info *info, struct elf_object *o);

/* The address of a function that the object defines, or 0. */
uintptr_t elf_object_function(const struct elf_object *o, const char *name);

/* Whether the object is the dynamic loader or the kernel's vDSO. */
int elf_object_is_loader(const struct dl_phdr_info *info);

/* Whether the address lies in one of the object's segments. */
int elf_object_contains(const struct dl_phdr_info *info, uintptr_t address);

/* Makes the RELRO pages writable, unless they are: 0 or -errno. */
int elf_object_unseal(struct elf_object *o);
/* Makes them read-only again, if elf_object_unseal has changed them. */
void elf_object_seal(struct elf_object *o);

#endif
