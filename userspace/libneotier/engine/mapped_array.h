// SPDX-License-Identifier: Apache-2.0
// Zeroed arrays whose memory is taken page by page as it is touched: an index for 10 M objects costs what it holds.
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <new>
#include <utility>

namespace neotier::engine {

template <typename T>
class MappedArray {
 public:
  MappedArray() = default;
  // Throws std::bad_alloc.
  explicit MappedArray(size_t size) : size_(size) {
    if (size == 0) return;
    void* p =
        mmap(nullptr, size * sizeof(T), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) throw std::bad_alloc();
    madvise(p, size * sizeof(T), MADV_HUGEPAGE);
    data_ = static_cast<T*>(p);
  }
  MappedArray(MappedArray&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}
  MappedArray& operator=(MappedArray&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    return *this;
  }
  ~MappedArray() {
    if (data_) munmap(data_, size_ * sizeof(T));
  }

  T* data() { return data_; }
  const T* data() const { return data_; }
  size_t size() const { return size_; }
  T& operator[](size_t i) { return data_[i]; }
  const T& operator[](size_t i) const { return data_[i]; }

 private:
  T* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace neotier::engine
