// SPDX-License-Identifier: LGPL-2.1-only
// Flows among the hosts of a star, by SimGrid: when each is over, and the processor's time.
//
// Standard input: hosts, bytes per second of a link, seconds of delay of a link, flows, and for each
// flow when it begins (seconds), its source, its target and its bytes, by the time of beginning.
// Standard output: the processor's seconds, then each flow's end in seconds, in the order of input.

#include <cstdint>
#include <cstdio>
#include <ctime>
#include <simgrid/s4u.hpp>
#include <string>
#include <vector>

namespace sg4 = simgrid::s4u;

struct Flow {
  double at;
  int source, target;
  std::uint64_t bytes;
};

int main(int argc, char* argv[])
{
  sg4::Engine engine(&argc, argv);
  int hosts       = 0;
  std::size_t count = 0;
  double rate = 0, delay = 0;
  if (std::scanf("%d %lf %lf %zu", &hosts, &rate, &delay, &count) != 4)
    return 1;
  std::vector<Flow> flows(count);
  for (auto& flow : flows)
    if (std::scanf("%lf %d %d %lu", &flow.at, &flow.source, &flow.target, &flow.bytes) != 4)
      return 1;

  auto* zone = sg4::create_star_zone("star");
  std::vector<sg4::Host*> nodes;
  for (int k = 0; k < hosts; k++) {
    const std::string name = std::to_string(k);
    auto* host             = zone->create_host("host" + name, 1e9);
    auto* up               = zone->create_link("up" + name, rate)->set_latency(delay)->seal();
    auto* down             = zone->create_link("down" + name, rate)->set_latency(delay)->seal();
    zone->add_route(host->get_netpoint(), nullptr, nullptr, nullptr, {sg4::LinkInRoute(up)}, false);
    zone->add_route(nullptr, host->get_netpoint(), nullptr, nullptr, {sg4::LinkInRoute(down)}, false);
    nodes.push_back(host);
  }
  zone->seal();

  std::vector<double> ends(count, -1.0);
  sg4::Actor::create("all", nodes[0], [&]() {
    std::vector<std::pair<sg4::CommPtr, std::size_t>> pending;
    for (std::size_t k = 0; k < count; k++) {
      if (flows[k].at > sg4::Engine::get_clock()) {
        sg4::this_actor::sleep_until(flows[k].at);
        std::size_t kept = 0;  // let go what is over: SimGrid is slower the more there is
        for (auto& each : pending)
          if (each.first->test())
            ends[each.second] = each.first->get_finish_time();
          else
            pending[kept++] = each;
        pending.resize(kept);
      }
      auto comm = sg4::Comm::sendto_init(nodes[flows[k].source], nodes[flows[k].target]);
      comm->set_payload_size(flows[k].bytes);
      comm->start();
      pending.emplace_back(comm, k);
    }
    for (auto& each : pending) {
      each.first->wait();
      ends[each.second] = each.first->get_finish_time();
    }
  });
  const std::clock_t began = std::clock();
  engine.run();
  std::printf("%.6f\n", static_cast<double>(std::clock() - began) / CLOCKS_PER_SEC);
  for (const double end : ends)
    std::printf("%.12g\n", end);
  return 0;
}
