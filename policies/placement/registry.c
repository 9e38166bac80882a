// SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
/* The list of placement policies. A new one is its own file, two lines here and one in CMakeLists.txt. */
#include "neotier_placement.h"

extern const struct neotier_placement neotier_placement_lru;

const struct neotier_placement *const neotier_placements[] = {
	&neotier_placement_lru,
	NULL,
};
