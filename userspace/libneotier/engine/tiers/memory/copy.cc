// SPDX-License-Identifier: Apache-2.0
#include "engine/tiers/memory/copy.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <vector>

#include "engine/mapped_array.h"
#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace neotier::engine {

namespace {

constexpr size_t kLine = 64;
constexpr size_t kWorthStreaming = 4096;

#if defined(__x86_64__)
__attribute__((target("avx512f"))) void lines_avx512(std::byte* to, const std::byte* from, size_t lines) {
  for (size_t i = 0; i < lines; i++, to += kLine, from += kLine) {
    _mm_prefetch(reinterpret_cast<const char*>(from + 16 * kLine), _MM_HINT_NTA);
    _mm512_stream_si512(reinterpret_cast<__m512i*>(to), _mm512_loadu_si512(from));
  }
}

void lines_sse2(std::byte* to, const std::byte* from, size_t lines) {
  for (size_t i = 0; i < lines; i++, to += kLine, from += kLine) {
    _mm_prefetch(reinterpret_cast<const char*>(from + 16 * kLine), _MM_HINT_NTA);
    const auto* in = reinterpret_cast<const __m128i*>(from);
    auto* out = reinterpret_cast<__m128i*>(to);
    const __m128i a = _mm_loadu_si128(in), b = _mm_loadu_si128(in + 1), c = _mm_loadu_si128(in + 2),
                  d = _mm_loadu_si128(in + 3);
    _mm_stream_si128(out, a);
    _mm_stream_si128(out + 1, b);
    _mm_stream_si128(out + 2, c);
    _mm_stream_si128(out + 3, d);
  }
}
#endif

}  // namespace

void copy_plain(std::byte* to, const std::byte* from, size_t bytes) { std::memcpy(to, from, bytes); }

void copy_streaming(std::byte* to, const std::byte* from, size_t bytes) {
#if defined(__x86_64__)
  if (bytes >= kWorthStreaming) {
    const size_t head = (kLine - reinterpret_cast<uintptr_t>(to) % kLine) % kLine;
    std::memcpy(to, from, head);
    to += head;
    from += head;
    bytes -= head;
    static const bool avx512 = __builtin_cpu_supports("avx512f");
    (avx512 ? lines_avx512 : lines_sse2)(to, from, bytes / kLine);
    _mm_sfence();
    const size_t done = bytes / kLine * kLine;
    std::memcpy(to + done, from + done, bytes - done);
    return;
  }
#endif
  std::memcpy(to, from, bytes);
}

CopyFn best_copy() {
  static const CopyFn best = [] {
    constexpr size_t kBytes = 32 << 20, kPiece = 1 << 20;
    MappedArray<std::byte> from(kBytes), to(kBytes);
    std::memset(from.data(), 1, kBytes);
    std::memset(to.data(), 2, kBytes);
    const CopyFn candidates[] = {copy_plain, copy_streaming};
    double seconds[2] = {1e9, 1e9};
    for (int round = 0; round < 2; round++) {
      for (int i = 0; i < 2; i++) {
        const auto begin = std::chrono::steady_clock::now();
        for (size_t at = 0; at < kBytes; at += kPiece) candidates[i](to.data() + at, from.data() + at, kPiece);
        const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
        seconds[i] = std::min(seconds[i], took.count());
      }
    }
    return candidates[seconds[1] < seconds[0]];
  }();
  return best;
}

const char* copy_name(CopyFn copy) { return copy == copy_streaming ? "streaming stores" : "memcpy"; }

}  // namespace neotier::engine
