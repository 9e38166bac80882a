// SPDX-License-Identifier: Apache-2.0
#include "ggml/repack.h"

#include <algorithm>
#include <cstring>

namespace neotier::ggml {

namespace {

constexpr size_t kPage = 4096;  // parts of whole pages are all that can be converted (neotier_moe.h)
constexpr int kFloats = 0;      // ggml's number of f32, which files hold and so never changes

BufferType* repack_type(Device* cpu) {
  void* const procedure =
      ggml_backend_reg_get_proc_address(ggml_backend_dev_backend_reg(cpu), "ggml_backend_dev_get_extra_bufts");
  if (!procedure) return nullptr;
  BufferType** type = reinterpret_cast<BufferType** (*)(Device*)>(procedure)(cpu);
  while (type && *type && std::strcmp((*type)->table.name(*type), "CPU_REPACK") != 0) type++;
  return type ? *type : nullptr;
}

}  // namespace

std::unique_ptr<Repack> Repack::of(const std::vector<Tensor*>& tensors) {
  Device* const cpu = ggml_backend_dev_by_type(kCpu);
  BufferType* const type = cpu ? repack_type(cpu) : nullptr;
  if (!type) return nullptr;
  size_t most = 0;
  for (const Tensor* t : tensors) most = std::max(most, t->nb[2]);
  std::unique_ptr<Repack> repack(new Repack);
  repack->scratch_ = type->table.alloc(type, most);
  if (!repack->scratch_ || !repack->scratch_->table.init_tensor) return nullptr;
  Buffer* const scratch = repack->scratch_;
  repack->ones_.resize(tensors.size());
  bool any = false;
  for (size_t i = 0; i < tensors.size(); i++) {
    One& one = repack->ones_[i];
    one.shown = *tensors[i];
    one.shown.buffer = scratch;
    // Asked as llama.cpp asks where it places weights.
    Tensor inputs = {}, ids = {}, node = {};
    inputs.type = kFloats;
    std::fill_n(inputs.ne, kDims, 1);
    inputs.ne[0] = one.shown.ne[0];
    node.op = multiply_by_ids();
    node.src[0] = &one.shown;
    node.src[1] = &inputs;
    node.src[2] = &ids;
    one.converts = tensors[i]->nb[2] % kPage == 0 && cpu->table.supports_op(cpu, &node);
    if (!one.converts) continue;
    any = true;
    one.expert = one.shown;
    one.expert.data = scratch->table.base(scratch);
    one.expert.ne[2] = 1;
    one.expert.nb[3] = one.expert.nb[2];
    if (scratch->table.init_tensor(scratch, &one.shown) != kSuccess ||
        scratch->table.init_tensor(scratch, &one.expert) != kSuccess)
      return nullptr;
  }
  return any ? std::move(repack) : nullptr;
}

Repack::~Repack() {
  if (scratch_) ggml_backend_buffer_free(scratch_);
}

void Repack::convert(size_t tensor, void* expert) {
  One& one = ones_[tensor];
  if (!one.converts) return;
  const size_t bytes = one.expert.nb[2];
  scratch_->table.set_tensor(scratch_, &one.expert, expert, 0, bytes);
  std::memcpy(expert, one.expert.data, bytes);
}

}  // namespace neotier::ggml
