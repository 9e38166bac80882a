// SPDX-License-Identifier: Apache-2.0
#include "experts/empty_range.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/userfaultfd.h>
#include <numaif.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

namespace neotier::experts {

using engine::Code;
using engine::Result;
using engine::Status;

namespace {

// Newer than Debian 12's headers (Linux 6.6).
#ifndef UFFDIO_POISON
struct uffdio_poison {
  uffdio_range range;
  __u64 mode;
  __s64 updated;
};
#define UFFDIO_POISON _IOWR(UFFDIO, 0x08, struct uffdio_poison)
#endif

uint64_t address_of(const std::byte* at) { return reinterpret_cast<uint64_t>(at); }

// Without privileges: faults of the kernel itself are refused then, those of the process are served.
int open_faults() {
#ifndef UFFD_USER_MODE_ONLY
  constexpr int UFFD_USER_MODE_ONLY = 1;
#endif
  constexpr int kFlags = O_CLOEXEC | O_NONBLOCK;
  const auto fd = static_cast<int>(syscall(SYS_userfaultfd, kFlags));
  return fd >= 0 || errno != EPERM ? fd : static_cast<int>(syscall(SYS_userfaultfd, kFlags | UFFD_USER_MODE_ONLY));
}

}  // namespace

Result<std::unique_ptr<EmptyRange>> EmptyRange::reserve(uint64_t bytes, int node) {
  std::unique_ptr<EmptyRange> range(new EmptyRange);
  const uint64_t size = (bytes + kPage - 1) / kPage * kPage;
  if (bytes == 0 || size < bytes) return Status(Code::kInvalid, fmt::format("a range of {} bytes", bytes));
  void* const base = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (base == MAP_FAILED)
    return Status(Code::kNoMemory, fmt::format("no {} bytes of addresses: {}", bytes, std::strerror(errno)));
  range->base_ = static_cast<std::byte*>(base);
  range->bytes_ = size;
  // Emptied page by page, so in small pages; and no child has part in it.
  madvise(base, size, MADV_NOHUGEPAGE);
  madvise(base, size, MADV_DONTFORK);
  if (node >= 0) {
    unsigned long mask[16] = {};
    constexpr unsigned kBits = 8 * sizeof mask[0];
    if (static_cast<unsigned>(node) >= 16 * kBits) return Status(Code::kInvalid, fmt::format("no node {}", node));
    mask[static_cast<unsigned>(node) / kBits] = 1UL << (static_cast<unsigned>(node) % kBits);
    if (mbind(base, size, MPOL_PREFERRED, mask, 16 * kBits + 1, 0) != 0)
      return Status(Code::kInvalid, fmt::format("no memory on node {}: {}", node, std::strerror(errno)));
  }
  range->faults_ = open_faults();
  uffdio_api api = {};
  api.api = UFFD_API;
  uffdio_register area = {};
  area.range = {address_of(range->base_), size};
  area.mode = UFFDIO_REGISTER_MODE_MISSING;
  if (range->faults_ < 0 || ioctl(range->faults_, UFFDIO_API, &api) != 0 ||
      ioctl(range->faults_, UFFDIO_REGISTER, &area) != 0)
    return Status(Code::kUnsupported,
                  fmt::format("userfaultfd: {}; a container's seccomp profile may forbid it", std::strerror(errno)));
  range->stop_ = eventfd(0, EFD_CLOEXEC);
  if (range->stop_ < 0) return Status(Code::kNoMemory, fmt::format("eventfd: {}", std::strerror(errno)));
  range->thread_ = std::thread([raw = range.get()] { raw->run(); });
  return range;
}

EmptyRange::~EmptyRange() {
  if (thread_.joinable()) {
    const uint64_t one = 1;
    while (write(stop_, &one, sizeof one) < 0 && errno == EINTR) continue;
    thread_.join();
  }
  if (faults_ >= 0) close(faults_);
  if (stop_ >= 0) close(stop_);
  if (base_) munmap(base_, bytes_);
}

void EmptyRange::on_fault(Fault fault) {
  const std::lock_guard lock(mutex_);
  fault_ = std::move(fault);
}

void EmptyRange::run() {
  pollfd both[2] = {{faults_, POLLIN, 0}, {stop_, POLLIN, 0}};
  for (;;) {
    if (poll(both, 2, -1) < 0) continue;
    if (both[1].revents) return;
    uffd_msg message;
    while (read(faults_, &message, sizeof message) == static_cast<ssize_t>(sizeof message)) {
      if (message.event != UFFD_EVENT_PAGEFAULT) continue;
      auto* const page = reinterpret_cast<std::byte*>(message.arg.pagefault.address / kPage * kPage);
      const std::lock_guard lock(mutex_);
      if (fault_)
        fault_(page);
      else
        zero(page);
    }
  }
}

Status EmptyRange::put(std::byte* to, const std::byte* from, uint64_t bytes) {
  while (bytes > 0) {
    uffdio_copy copy = {};
    copy.dst = address_of(to);
    copy.src = address_of(from);
    copy.len = bytes;
    uint64_t done = bytes;
    if (ioctl(faults_, UFFDIO_COPY, &copy) != 0) {
      const int error = errno;
      done = copy.copy > 0 ? static_cast<uint64_t>(copy.copy) : 0;
      if (done == 0 && error == EEXIST)
        done = kPage;
      else if (done == 0 && error != EAGAIN)
        return {error == ENOMEM ? Code::kNoMemory : Code::kInvalid,
                fmt::format("userfaultfd: cannot fill {} bytes: {}", bytes, std::strerror(error))};
    }
    to += done;
    from += done;
    bytes -= done;
  }
  return {};
}

void EmptyRange::zero(std::byte* page) {
  uffdio_zeropage zeros = {};
  zeros.range = {address_of(page), kPage};
  while (ioctl(faults_, UFFDIO_ZEROPAGE, &zeros) != 0 && errno == EAGAIN) continue;
  wake(page);
}

void EmptyRange::take_out(std::byte* at, uint64_t bytes) {
  if (bytes > 0) madvise(at, bytes, MADV_DONTNEED);
}

void EmptyRange::wake(std::byte* page) {
  uffdio_range range = {address_of(page), kPage};
  ioctl(faults_, UFFDIO_WAKE, &range);
}

void EmptyRange::poison(std::byte* page, const std::string& why) {
  uffdio_poison poison = {};
  poison.range = {address_of(page), kPage};
  if (ioctl(faults_, UFFDIO_POISON, &poison) == 0 || errno == EEXIST) return;
  // Whoever touched the page cannot go on, and nobody can tell it so.
  std::fprintf(stderr, "neotier: %s\n", why.c_str());
  std::abort();
}

}  // namespace neotier::experts
