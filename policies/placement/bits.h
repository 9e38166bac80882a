/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* The little arithmetic that a library for mathematics would give. */
#ifndef NEOTIER_PLACEMENT_BITS_H
#define NEOTIER_PLACEMENT_BITS_H

#include <stdint.h>

/* log2(x), x > 0 and normal; within 1e-5 (atanh series of the mantissa about 1). */
static inline double nt_log2(double x)
{
	union {
		double d;
		uint64_t u;
	} v = { .d = x };
	int exponent = (int)((v.u >> 52) & 0x7ff) - 1023;
	double m, z, z2;

	v.u = (v.u & 0xfffffffffffffu) | 0x3ff0000000000000u;
	m = v.d;
	if (m > 1.4142135623730951) {
		m *= 0.5;
		exponent++;
	}
	z = (m - 1) / (m + 1);
	z2 = z * z;
	return exponent + 2.8853900817779268 * z * (1 + z2 * (1.0 / 3 + z2 * (1.0 / 5 + z2 * (1.0 / 7))));
}

/* 2^x for x in -1000 .. 1000; relative error under 2e-6. Lower x: 0. */
static inline double nt_exp2(double x)
{
	union {
		double d;
		uint64_t u;
	} v;
	int whole;
	double f;

	if (x < -1000)
		return 0;
	whole = (int)x - (x < (int)x);
	f = (x - whole - 0.5) * 0.69314718055994531;
	v.u = (uint64_t)(whole + 1023) << 52;
	return v.d * 1.4142135623730951 * (1 + f * (1 + f * (0.5 + f * (1.0 / 6 + f * (1.0 / 24 + f * (1.0 / 120))))));
}

/* Bits needed to write x: 0 for 0, 1 for 1, 2 for 2 and 3, ... */
static inline uint32_t nt_bits(uint64_t x)
{
	return x ? 64 - (uint32_t)__builtin_clzll(x) : 0;
}

#endif
