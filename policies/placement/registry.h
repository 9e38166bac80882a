/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* For hosts that link the policies of this repository; neotier_placement.h, which is installed, is for who writes one. */
#ifndef NEOTIER_PLACEMENT_REGISTRY_H
#define NEOTIER_PLACEMENT_REGISTRY_H

#include "neotier_placement.h"

#ifdef __cplusplus
extern "C" {
#endif

/* NULL-terminated. */
extern const struct neotier_placement *const neotier_placements[];

#ifdef __cplusplus
}
#endif
#endif
