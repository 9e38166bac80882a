/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * Eight floats at a time, by GCC's and Clang's vector extension: the same source becomes two SSE2 or one AVX2 instruction, or what
 * another machine has. Logarithm and logistic function without libm. Every machine gets the same bits: only additions,
 * multiplications, divisions and casts, each rounded on its own, sums in a fixed order.
 */
#ifndef NEOTIER_PLACEMENT_VECTOR_MATH_H
#define NEOTIER_PLACEMENT_VECTOR_MATH_H

#include <stdint.h>

enum { NT_LANES = 8 };

typedef float nt_vec __attribute__((vector_size(32), aligned(32), may_alias));
typedef int32_t nt_ivec __attribute__((vector_size(32), aligned(32), may_alias));

#define NT_INLINE static inline __attribute__((always_inline))

/* A function that uses these, compiled for machines with AVX2 as well; the loader picks. No FMA: it would round differently. */
#if defined(__x86_64__) && defined(__linux__) && !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)
#define NT_VECTOR_CODE __attribute__((target_clones("default", "avx2")))
#else
#define NT_VECTOR_CODE
#endif

/* Through pointers, and always inlined: passing vectors by value is not the same in all ABIs. In registers all the same. */

/* 1 where bit `first` + lane of `bits` is set, 0 elsewhere. */
NT_INLINE void nt_from_bits(const uint32_t *bits, uint32_t first, nt_vec *out)
{
	const nt_ivec lane = { 1, 2, 4, 8, 16, 32, 64, 128 };
	const nt_vec one = { 1, 1, 1, 1, 1, 1, 1, 1 };
	int32_t byte = (int32_t)(bits[first / 32] >> first % 32 & 0xff);

	*out = (nt_vec)(((lane & byte) == lane) & (nt_ivec)one);
}

/* *x = natural logarithm of it, 1e-30 .. 1e30; off by less than 2e-5. */
NT_INLINE void nt_log(nt_vec *x)
{
	const nt_ivec bits = (nt_ivec)*x;
	const nt_vec exponent = __builtin_convertvector((bits >> 23) - 127, nt_vec);
	nt_vec m = (nt_vec)((bits & 0x7fffff) | 0x3f800000) - 1;

	/* log2(1 + m) on 0 .. 1: least squares on Chebyshev points, exact at both ends */
	m = m * (1.44183587f + m * (-0.70837215f + m * (0.41355505f + m * (-0.19126251f + m * 0.04424374f))));
	*x = 0.69314718f * (exponent + m);
}

/* *x = exp of it, moved into -40 .. 40; off by less than 2e-4 of the result. */
NT_INLINE void nt_exp(nt_vec *x)
{
	const nt_vec least = { -40, -40, -40, -40, -40, -40, -40, -40 }, most = -least;
	nt_ivec whole;
	nt_vec y, f;

	y = *x;
	y = (nt_vec)(((nt_ivec)y & (y > least)) | ((nt_ivec)least & ~(y > least)));
	y = (nt_vec)(((nt_ivec)y & (y < most)) | ((nt_ivec)most & ~(y < most)));
	y = 128 + y * 1.44269504f; /* positive, so that the cast rounds down */
	whole = __builtin_convertvector(y, nt_ivec);
	f = y - __builtin_convertvector(whole, nt_vec);
	/* 2^f on 0 .. 1, exact at both ends */
	f = 1 + f * (0.69585685f + f * (0.22499818f + f * 0.07914497f));
	*x = (nt_vec)((whole - 1) << 23) * f; /* 127 - 128: the bias */
}

/* *x = 1 / (1 + exp(-*x)), off by less than 1e-4. */
NT_INLINE void nt_logistic(nt_vec *x)
{
	*x = -*x;
	nt_exp(x);
	*x = 1 / (1 + *x);
}

NT_INLINE float nt_sum(const nt_vec *v)
{
	return (((*v)[0] + (*v)[4]) + ((*v)[1] + (*v)[5])) + (((*v)[2] + (*v)[6]) + ((*v)[3] + (*v)[7]));
}

#endif
