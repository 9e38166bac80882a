// SPDX-License-Identifier: Apache-2.0
#include "daemon/metrics_http.h"

#include <fmt/format.h>
#include <httplib.h>

#include <chrono>
#include <stdexcept>
#include <thread>

namespace neotier::daemon {

struct MetricsHttp::Impl {
  httplib::Server server;
  std::thread thread;
};

MetricsHttp::MetricsHttp(const std::string& host, uint16_t port, std::function<std::string()> text)
    : impl_(std::make_unique<Impl>()), host_(host) {
  httplib::Server& server = impl_->server;
  server.new_task_queue = [] { return new httplib::ThreadPool(2); };  // its owner is the server
  server.set_payload_max_length(4096);
  server.set_read_timeout(5);
  server.set_write_timeout(5);
  server.set_keep_alive_max_count(16);
  // httplib would share the port with whoever else asks for that; two daemons on one port are a mistake.
  server.set_socket_options([](int fd) {
    const int yes = 1;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  });
  server.Get("/metrics", [text = std::move(text)](const httplib::Request&, httplib::Response& response) {
    response.set_content(text(), "text/plain; version=0.0.4; charset=utf-8");
  });
  const int bound = port ? (server.bind_to_port(host, port) ? port : -1) : server.bind_to_any_port(host);
  if (bound <= 0)
    throw std::runtime_error(fmt::format("[metrics].listen: cannot listen on {}:{}; is the port taken?", host, port));
  port_ = static_cast<uint16_t>(bound);
  impl_->thread = std::thread([this] { impl_->server.listen_after_bind(); });
  // stop() before it listens would be lost.
  while (!server.is_running()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

MetricsHttp::~MetricsHttp() {
  impl_->server.stop();
  impl_->thread.join();
}

}  // namespace neotier::daemon
