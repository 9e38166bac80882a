// SPDX-License-Identifier: Apache-2.0
// What a tier brings to the conformance suite: a fresh tier, and faults of its medium. A fault that cannot be made is
// left as it is here, and `cannot` says why; the tests that need it are skipped with those words.
#pragma once

#include <string>

#include "engine/tier.h"

namespace neotier::engine {

enum class Fault { kHold, kFail, kCorrupt, kLose, kCrash };

class TierHarness {
 public:
  virtual ~TierHarness() = default;

  // Empty, in service, of 4 to 64 MiB; recover() was called. The same until crash().
  virtual Tier& tier() = 0;

  // "" where the fault can be made.
  virtual std::string cannot(Fault) const { return "the harness has no such fault"; }
  // kHold: transfers submitted between the two calls do not complete before release().
  virtual void hold() {}
  virtual void release() {}
  // kFail: the next `count` accesses of the medium for `op` fail, each with at most one transfer of the suite (64 KiB
  // at most, whole extents).
  virtual void fail(Op, unsigned /*count*/) {}
  // kCorrupt: a byte of the extent, as it lies on the medium, is changed.
  virtual void corrupt(Extent, uint64_t /*offset*/) {}
  // kLose: the medium is gone, and back again. A hold ends with it.
  virtual void lose() {}
  virtual void mend() {}
  // kCrash: the tier ends as its process would by a power failure, with nothing kept that was not flushed if the medium
  // so wills; tier() is a new one of the same medium, recover() not yet called.
  virtual void crash() {}
};

}  // namespace neotier::engine
