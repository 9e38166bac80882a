/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* A law that was built with another neotier_policy.h, for tests. */
#include "neotier_policy.h"

const struct neotier_policy_entry neotier_policy_entry = {
	sizeof(struct neotier_policy_params), sizeof(struct neotier_snapshot) - 8, sizeof(struct neotier_plan),
	NEOTIER_POLICY_STATE_BYTES, 0
};
