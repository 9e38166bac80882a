// SPDX-License-Identifier: Apache-2.0
#include "replay/pages/exchange.h"

#include <algorithm>

namespace neotier::pages {

Exchange::Exchange(Memory& memory)
    : memory_(memory), frames_(memory.dram_pages()), idle_(NEOTIER_AGE_FOUND), old_(NEOTIER_AGE_FOUND) {
  ages_.frames = frames_.data();
  ages_.nr = static_cast<uint32_t>(frames_.size());
  ages_.idle.frames = idle_.data();
  ages_.old.frames = old_.data();
  came_.resize(neotier_ages_came_max(ages_.nr));
  ages_.came = came_.data();
}

bool Exchange::see_accessed(uint32_t page, neotier_age_look look) {
  const bool accessed = memory_.is_accessed(page);
  if (accessed && look == NEOTIER_AGE_LOOK_ARM) memory_.clear_accessed(page);
  return accessed;
}

void Exchange::look_at_table(uint32_t page, neotier_age_look look) {
  const Memory::Table table = memory_.table_of(page);
  Memory::Looked looked;
  for (uint32_t at = table.first; at < table.end; ++at) {
    if (!memory_.mapped(at)) continue;
    ++looked.all;
    const uint32_t in = memory_.frame_of(at);
    if (in >= ages_.nr) continue;
    ++looked.dram;
    const bool accessed = see_accessed(at, look);
    looked.cleared += accessed && look == NEOTIER_AGE_LOOK_ARM;
    neotier_ages_see(&ages_, in, look, accessed);
  }
  entries_ += static_cast<uint32_t>(looked.all);
  memory_.spend_look(looked);
}

void Exchange::look_at_cached(uint32_t page, neotier_age_look look) {
  neotier_ages_see_cached(&ages_, memory_.frame_of(page), look, see_accessed(page, look));
  memory_.spend_look_at_cached();
}

void Exchange::look_at(uint32_t frame, neotier_age_look look) {
  const uint32_t page = memory_.page_in(frame);
  if (page != kNoPage && memory_.moves(page)) {
    memory_.cached(page) ? look_at_cached(page, look) : look_at_table(page, look);
  }
  if (neotier_ages_due(&ages_, frame, look)) neotier_ages_forget(&ages_, frame);
}

uint32_t Exchange::group(uint32_t first, uint32_t end, neotier_age_look look) {
  uint32_t frame = first, started = 0;
  entries_ = 0;
  for (; frame < end && started + entries_ < NEOTIER_AGE_GROUP; ++frame) {
    if (!neotier_ages_due(&ages_, frame, look)) continue;
    ++started;
    look_at(frame, look);
  }
  looks_ += entries_;
  return frame;
}

bool Exchange::look(uint64_t wanted, uint64_t least_ns, uint64_t after_ns, const std::function<void()>& group_done) {
  const uint64_t start = memory_.guest_ns();
  neotier_ages_settle(&ages_, after_ns, start);
  const neotier_age_look look =
      neotier_age_next(&pace_, &ages_, static_cast<uint32_t>(std::min<uint64_t>(wanted, UINT32_MAX)), least_ns, start);
  if (look == NEOTIER_AGE_LOOK_NONE) return false;
  const bool arm = look == NEOTIER_AGE_LOOK_ARM;
  const uint32_t end = arm ? ages_.nr : pace_.end;
  uint32_t frame = pace_.first;
  for (uint32_t groups = 0; frame < end && (!arm || groups < pace_.groups); ++groups) {
    frame = group(frame, end, look);
    group_done();
  }
  const uint64_t now = memory_.guest_ns();
  neotier_age_done(&pace_, &ages_, look, frame, now, now - start);
  return true;
}

uint32_t Exchange::victim() {
  const uint32_t frame = neotier_ages_victim(&ages_);
  return frame == NEOTIER_NO_FRAME ? kNoPage : memory_.page_in(frame);
}

void Exchange::done(uint32_t demoted, bool stale) {
  neotier_age_earn(&pace_, demoted);
  if (stale) neotier_ages_stale(&ages_);
}

}  // namespace neotier::pages
