/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * What a program prints is checked: a full disk behind `> FILE` is an error, not a shorter output. Call the first
 * function at the start of main and return what the second one returns. C and C++.
 */
#ifndef NEOTIER_STANDARD_OUTPUT_H
#define NEOTIER_STANDARD_OUTPUT_H

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* A descriptor 0 to 2 that the caller has closed must not become a file of ours: what is printed would go there. */
static inline void neotier_open_standard_streams(void)
{
	int fd;

	do
		fd = open("/dev/null", O_RDONLY); /* for output too: then writing fails, and that is seen */
	while (fd >= 0 && fd <= STDERR_FILENO);
	if (fd > STDERR_FILENO)
		close(fd);
}

/* The status to end with: `status`, or 1 where it was 0 and not all that was printed could be written. */
static inline int neotier_finish_output(const char *program, int status)
{
	const int failed = ferror(stdout);

	errno = 0;
	if (fflush(stdout) == 0 && !failed)
		return status;
	/* What an earlier call failed with is not known any more; a device says it again. */
	if (errno == 0)
		(void)!write(STDOUT_FILENO, "", 0);
	fprintf(stderr, "%s: standard output: %s\n", program,
		errno ? strerror(errno) : "not all of it could be written; is the disk full?");
	return status ? status : 1;
}

#endif
