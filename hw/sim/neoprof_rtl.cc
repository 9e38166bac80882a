// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-or-later
// The Verilated RTL at its default parameters (2 rows x 512K x 16 bits) as a neoprof::Device.
#include "Vneoprof_top.h"
#include "rtl_driver.h"

namespace neoprof {

std::unique_ptr<Device> make_rtl_device(const Straps& straps) {
  return std::make_unique<RtlDriver<Vneoprof_top>>(straps);
}

}  // namespace neoprof
