// SPDX-License-Identifier: Apache-2.0
#include "util/interrupt.h"

#include <signal.h>

#include <stdexcept>

namespace neotier {

namespace {
volatile sig_atomic_t flag = 0;
void on_signal(int) { flag = 1; }
}  // namespace

void catch_interrupts() {
  struct sigaction action {};
  action.sa_handler = on_signal;
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
}

bool interrupted() { return flag != 0; }

void throw_if_interrupted() {
  if (interrupted()) throw std::runtime_error("interrupted; nothing was written");
}

}  // namespace neotier
