// SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
/*
 * The list of policies and the defaults of their parameters. A new policy is its own file plus one line here, one in
 * neotier_policy.h and one in each build list (CMakeLists.txt, kmod/Kbuild); README.md has the steps.
 */
#include "neotier_policy.h"

const struct neotier_policy_params neotier_policy_default_params = {
	.threshold = 10,
	.p_start_ppm = 1000,
	.p_min_ppm = 100,
	.p_max_ppm = 15600,
	.saved_ns = 40,
	.payback_ms = 300,
};

const struct neotier_policy *const neotier_policies[] = {
	&neotier_policy_payback,
	&neotier_policy_fixed,
	&neotier_policy_neomem,
	NULL,
};

const struct neotier_policy *neotier_policy_find(const char *name)
{
	const struct neotier_policy *const *p;

	for (p = neotier_policies; *p; p++) {
		const char *a = (*p)->name, *b = name;

		while (*a && *a == *b) {
			a++;
			b++;
		}
		if (*a == *b)
			return *p;
	}
	return NULL;
}
