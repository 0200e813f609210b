/* Boards of versions 4 and 5: their header, their layout, and their frames and slots of fixed
 * words.
 *
 * Version 4 had no headroom, and room for tasks from the start. Both described neither their fields
 * nor what they are followed by: the lists are written down in board_legacy.c, for ever.
 */
#ifndef DWSR_BOARD_LEGACY_H
#define DWSR_BOARD_LEGACY_H

#include "frame.h"

struct board_reader;

/* Of a file that begins with the magic and version 4 or 5: its header in today's form, its layout.
 * A result of board_read.h. */
int legacy_read_header(const struct board_reader *r, struct board_header *h);
const char *legacy_layout(uint64_t version);

/* As their namesakes in frame.h. */
uint64_t legacy_frame_whole(const char *frame, uint64_t available);
int legacy_frame_unpack(const struct layout *l, const char *frame, struct record *r);

/* Lengths of the texts of a slot, which stood among the task's fields. */
void legacy_slot_lengths(const word *task, struct slot_fields *slot);

#endif
