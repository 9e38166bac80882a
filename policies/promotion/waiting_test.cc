// SPDX-License-Identifier: Apache-2.0
// The list of waiting pages: hottest first, bounded, nobody for ever, each counted once.
#include "promotion/waiting.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <list>
#include <memory>
#include <random>
#include <vector>

namespace {

struct List {
  explicit List(uint32_t nr = NEOTIER_WAITING_MAX) : places(nr), waiting(std::make_unique<neotier_waiting>()) {
    neotier_waiting_init(waiting.get(), places.data(), nr);
  }
  bool add(uint32_t page, uint16_t count, uint64_t when = 0) {
    const neotier_hot hot = {when, page, count, false};
    return neotier_waiting_add(waiting.get(), &hot, &dropped);
  }
  std::vector<uint32_t> take_all() {
    std::vector<uint32_t> pages;
    neotier_hot hot;
    while (neotier_waiting_take(waiting.get(), &hot)) pages.push_back(hot.page);
    return pages;
  }
  std::vector<uint32_t> expire(uint64_t before) {
    std::vector<uint32_t> pages;
    neotier_hot hot;
    uint32_t cursor = 0;
    while (neotier_waiting_expire(waiting.get(), before, &cursor, &hot)) pages.push_back(hot.page);
    return pages;
  }
  std::vector<uint32_t> uncounted() {
    std::vector<uint32_t> pages;
    neotier_hot hot;
    uint32_t cursor = 0;
    while (neotier_waiting_uncounted(waiting.get(), &cursor, &hot)) pages.push_back(hot.page);
    std::sort(pages.begin(), pages.end());
    return pages;
  }
  std::vector<neotier_waiting_place> places;
  std::unique_ptr<neotier_waiting> waiting;
  neotier_hot dropped = {};
};

using Pages = std::vector<uint32_t>;

TEST(Waiting, TheHottestIsTakenFirst) {
  List list;
  list.add(1, 10);
  list.add(2, 65535);
  list.add(3, 0);
  list.add(4, 100);
  list.add(5, 1);
  list.add(6, 1000);
  EXPECT_EQ(list.take_all(), (Pages{2, 6, 4, 1, 5, 3}));
  EXPECT_EQ(list.waiting->nr, 0u);
}

TEST(Waiting, CountsThatDifferByAQuarterAreToldApart) {
  for (uint32_t low = 1; low < 50000; low = low * 5 / 4 + 1) {
    List list;
    list.add(1, static_cast<uint16_t>(low));
    list.add(2, static_cast<uint16_t>(std::min<uint32_t>(low + low / 4 + 1, 65535)));
    EXPECT_EQ(list.take_all(), (Pages{2, 1})) << low;
  }
}

TEST(Waiting, EqualCountsGoInTheOrderTheyCame) {
  List list;
  for (uint32_t page = 0; page < 100; page++) list.add(page, 20);
  Pages order(100);
  for (uint32_t page = 0; page < 100; page++) order[page] = page;
  EXPECT_EQ(list.take_all(), order);
}

TEST(Waiting, WhatStaysBehindHotterPagesExpires) {
  List list;
  neotier_hot hot;
  list.add(7, 1, 100);
  for (uint32_t round = 0; round < 1000; round++) {
    list.add(1000 + round, 500, 101 + round);
    ASSERT_TRUE(neotier_waiting_take(list.waiting.get(), &hot));
    ASSERT_EQ(hot.page, 1000 + round);
  }
  list.add(8, 300, 5000);
  list.add(9, 1, 5000);
  EXPECT_EQ(list.expire(100), Pages{});
  EXPECT_EQ(list.expire(5000), Pages{7});
  EXPECT_EQ(list.take_all(), (Pages{8, 9}));
}

TEST(Waiting, AFullListDropsTheColdest) {
  List list;
  for (uint32_t page = 0; page < NEOTIER_WAITING_MAX; page++) ASSERT_TRUE(list.add(page, page == 77 ? 10 : 100));
  EXPECT_FALSE(list.add(100000, 10));
  EXPECT_EQ(list.dropped.page, 100000u) << "no hotter than the coldest";
  EXPECT_FALSE(list.add(100001, 50));
  EXPECT_EQ(list.dropped.page, 77u);
  EXPECT_FALSE(list.add(100002, 60000));
  EXPECT_EQ(list.dropped.page, 100001u);
  EXPECT_EQ(list.waiting->nr, NEOTIER_WAITING_MAX);
  neotier_hot hot;
  ASSERT_TRUE(neotier_waiting_take(list.waiting.get(), &hot));
  EXPECT_EQ(hot.page, 100002u);
}

TEST(Waiting, WhatIsPutBackComesOutInTheSameOrder) {
  List list;
  for (uint32_t page = 0; page < 50; page++) list.add(page, static_cast<uint16_t>(page % 5 * 40));
  std::vector<neotier_hot> taken(30);
  for (auto& hot : taken) ASSERT_TRUE(neotier_waiting_take(list.waiting.get(), &hot));
  for (size_t i = taken.size(); i-- > 10;) neotier_waiting_untake(list.waiting.get(), &taken[i]);
  EXPECT_EQ(list.waiting->nr, 40u);
  const Pages rest = list.take_all();
  for (size_t i = 10; i < 30; i++) EXPECT_EQ(rest[i - 10], taken[i].page);
}

TEST(Waiting, EachIsCountedOnceAlsoWhenItIsPutBack) {
  List list;
  list.add(1, 10);
  list.add(2, 20);
  EXPECT_EQ(list.uncounted(), (Pages{1, 2}));
  EXPECT_EQ(list.uncounted(), Pages{});
  list.add(3, 30);
  neotier_hot three, two;
  ASSERT_TRUE(neotier_waiting_take(list.waiting.get(), &three));
  ASSERT_TRUE(neotier_waiting_take(list.waiting.get(), &two));
  EXPECT_EQ(list.uncounted(), Pages{}) << "taken before it had to wait";
  neotier_waiting_untake(list.waiting.get(), &two);
  neotier_waiting_untake(list.waiting.get(), &three);
  EXPECT_EQ(list.uncounted(), Pages{3});
  list.take_all();
  list.add(4, 40);
  EXPECT_EQ(list.uncounted(), Pages{4}) << "a place that is used again counts anew";
  EXPECT_EQ(list.waiting->nr_uncounted, 0u);
}

// Against a list that is searched: what is taken is never colder, by class, than what stays; nothing is lost or
// doubled.
TEST(Waiting, AgreesWithASearchedListOverRandomOperations) {
  std::mt19937 random(1);
  List list;
  std::list<neotier_hot> model;
  neotier_hot hot;
  uint32_t page = 0;
  const auto remove = [&](uint32_t which) {
    const auto at = std::find_if(model.begin(), model.end(), [&](const auto& h) { return h.page == which; });
    ASSERT_NE(at, model.end());
    model.erase(at);
  };
  for (uint64_t now = 1; now < 60000; now++) {
    switch (random() % 8) {
      case 0:
      case 1:
      case 2:
      case 3:
        hot = {now, page++, static_cast<uint16_t>(random() >> (16 + random() % 16)), false};
        model.push_back(hot);
        if (!list.add(hot.page, hot.count, now)) remove(list.dropped.page);
        break;
      case 4:
      case 5:
      case 6:
        if (!neotier_waiting_take(list.waiting.get(), &hot)) {
          ASSERT_TRUE(model.empty());
          break;
        }
        for (const auto& h : model) ASSERT_LE(h.count, hot.count + hot.count / 4);
        remove(hot.page);
        break;
      default:
        if (random() % 16) break;
        for (const uint32_t old : list.expire(now - std::min<uint64_t>(now, 100))) remove(old);
        for (const auto& h : model) ASSERT_GE(h.drained_ns + 100, now);
    }
    ASSERT_EQ(list.waiting->nr, model.size());
  }
}

TEST(Waiting, AsManyPlacesAsThereAre) {
  List list(3);
  for (uint32_t page = 0; page < 3; ++page) ASSERT_TRUE(list.add(page, static_cast<uint16_t>(10 + page)));
  EXPECT_FALSE(list.add(3, 100));
  EXPECT_EQ(list.waiting->nr, 3u);
  EXPECT_EQ(neotier_waiting_places(0), 1024u);
  EXPECT_EQ(neotier_waiting_places(32768), 4096u);
  EXPECT_EQ(neotier_waiting_places(uint64_t{1} << 40), NEOTIER_WAITING_MAX);
}

}  // namespace
