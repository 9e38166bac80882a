// SPDX-License-Identifier: Apache-2.0
/* For lines of a guest's shell: marks the beginning of a phase on the emulated machine; elsewhere it does nothing. */
#include <stdio.h>
#include "neotier/mark.h"

int main(int argc, char **argv)
{
	if (argc != 2) {
		fprintf(stderr, "usage: mark PHASE\n");
		return 2;
	}
	struct neotier_marker marker = neotier_marker_open();

	neotier_mark_phase(&marker, argv[1]);
	return 0;
}
