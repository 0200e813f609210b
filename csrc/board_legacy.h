/* Boards of versions 4 and 5: their header, their layout, and their frames and slots, which are
 * fixed words. Called by board_read.c and frame.c.
 *
 * Version 4 has no headroom, and room for tasks from the start. Neither version describes its
 * fields in the file, so board_legacy.c has the lists. They never change.
 */
#ifndef DWSR_BOARD_LEGACY_H
#define DWSR_BOARD_LEGACY_H

#include "frame.h"

struct board_reader;

/* The header of version 4 or 5, in today's form. 0, or an error of board_read.h. */
int legacy_read_header(const struct board_reader *r, struct board_header *h);
/* The layout of version 4 or 5, in the form of BOARD_LAYOUT. */
const char *legacy_layout(uint64_t version);

/* Like frame_valid_bytes and frame_unpack of frame.h. */
uint64_t legacy_frame_valid_bytes(const char *frame, uint64_t available);
int legacy_frame_unpack(const struct layout *l, const char *frame, struct record *r);

/* Copies the lengths of a slot's texts, which stood among the task's fields. */
void legacy_slot_lengths(const word *task, struct slot_fields *slot);

#endif
