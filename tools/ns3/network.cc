// SPDX-License-Identifier: GPL-2.0-only
// A leaf-spine network in ns-3, with flows of UDP at constant rates or messages over TCP.
// run.py hands this to ns-3's Python bindings, which compile it as it runs.
//
// Nodes are hosts, then leaves, then spines. What ns-3 lacks and is here: a route in constant time
// that sprays packets over all spines or hashes flows, and device queues of eight priorities and of
// two colors.

#include <cstring>
#include <ctime>
#include <set>
#include <vector>

namespace shoal_reference {
using namespace ns3;

enum Discipline { TAIL = 0, BANDS = 1, PRIORITY_RED = 2, MARK = 3, COLORS = 4 };

struct Settings {
  int hosts = 0, leaves = 0, spines = 0;
  double rate = 0, trunkRate = 0;          // bits per second
  long long delay = 0, trunkDelay = 0;     // nanoseconds
  int discipline = TAIL;
  int limitPackets = 100;                  // of a switch's port (of each band or class, if there are)
  int hostLimitPackets = 100;
  int leastPackets = 0, mostPackets = 0;   // RED; MARK marks from mostPackets on
  double weight = 1, probability = 1;      // RED
  double loss = 0;                         // from leaf 0 to spine 0
  int seed = 1;
  bool isHashed = false;                   // a flow keeps to a spine
  int slowHost = -1;                       // its link has slowRate, both ways; -1: none
  double slowRate = 0;
};

// SplitMix64's finalizer: switches choose by it in Shoal.
inline uint64_t Mixed(uint64_t word)
{
  word = (word ^ (word >> 30)) * 0xbf58476d1ce4e5b9ULL;
  word = (word ^ (word >> 27)) * 0x94d049bb133111ebULL;
  return word ^ (word >> 31);
}

class Fabric : public Ipv4RoutingProtocol {
public:
  static TypeId GetTypeId()
  {
    static TypeId tid = TypeId("shoal_reference::Fabric").SetParent<Ipv4RoutingProtocol>();
    return tid;
  }
  static constexpr uint32_t FIRST = 0x0a000001;
  int host = -1, leaf = -1, each = 1, spines = 0, seed = 1;
  bool isHashed = false;
  uint64_t random = 1;
  std::vector<Ptr<Ipv4Route>> routes;  // by what Add was called for, in order
  void Add(Ptr<NetDevice> device, Ipv4Address own)
  {
    auto route = Create<Ipv4Route>();
    route->SetSource(own);
    route->SetGateway(Ipv4Address::GetZero());
    route->SetOutputDevice(device);
    routes.push_back(route);
  }
  Ptr<Ipv4Route> RouteOutput(Ptr<Packet>, const Ipv4Header&, Ptr<NetDevice>, Socket::SocketErrno& error) override
  {
    error = Socket::ERROR_NOTERROR;
    return routes[0];
  }
  bool RouteInput(Ptr<const Packet> packet, const Ipv4Header& header, Ptr<const NetDevice>,
                  const UnicastForwardCallback& forward, const MulticastForwardCallback&,
                  const LocalDeliverCallback& deliver, const ErrorCallback&) override
  {
    if (host >= 0) {
      deliver(packet, header, 1);
      return true;
    }
    const int target = static_cast<int>(header.GetDestination().Get() - FIRST);
    std::size_t way;
    if (leaf < 0)
      way = target / each;
    else if (target / each == leaf)
      way = target % each;
    else if (isHashed) {
      uint8_t head[16];  // UDP's header, then the flow's number
      packet->CopyData(head, sizeof head);
      uint64_t flow;
      std::memcpy(&flow, head + 8, sizeof flow);
      way = each + Mixed(flow + Mixed(static_cast<uint64_t>(seed) + leaf)) % spines;
    } else {
      random ^= random << 13;
      random ^= random >> 7;
      random ^= random << 17;
      way = each + (random >> 11) % spines;
    }
    forward(routes[way], packet, header);
    return true;
  }
  void NotifyInterfaceUp(uint32_t) override {}
  void NotifyInterfaceDown(uint32_t) override {}
  void NotifyAddAddress(uint32_t, Ipv4InterfaceAddress) override {}
  void NotifyRemoveAddress(uint32_t, Ipv4InterfaceAddress) override {}
  void SetIpv4(Ptr<Ipv4>) override {}
  void PrintRoutingTable(Ptr<OutputStreamWrapper>, Time::Unit) const override {}
};

// Of a device: eight bands of `limit` packets each, by the upper bits of the TOS byte, 0 first.
class Bands : public Queue<Packet> {
public:
  static TypeId GetTypeId()
  {
    static TypeId tid = TypeId("shoal_reference::Bands").SetParent<Queue<Packet>>();
    return tid;
  }
  int limit = 100;
  bool Enqueue(Ptr<Packet> packet) override
  {
    uint8_t head[4];  // two bytes of PPP before the IP header
    packet->CopyData(head, 4);
    const int band = head[3] >> 5;
    if (count[band] == limit) {
      DropBeforeEnqueue(packet);
      return false;
    }
    auto place = GetContainer().begin();
    for (int k = band; k >= 0; k--)
      if (count[k] > 0) {
        place = std::next(typename std::list<Ptr<Packet>>::const_iterator(last[k]));
        break;
      }
    if (!DoEnqueue(place, packet, last[band]))
      return false;
    count[band]++;
    return true;
  }
  Ptr<Packet> Dequeue() override
  {
    Note();
    return DoDequeue(GetContainer().begin());
  }
  Ptr<Packet> Remove() override
  {
    Note();
    return DoRemove(GetContainer().begin());
  }
  Ptr<const Packet> Peek() const override { return DoPeek(GetContainer().begin()); }

private:
  int count[8] = {0, 0, 0, 0, 0, 0, 0, 0};
  std::list<Ptr<Packet>>::iterator last[8];
  void Note()
  {
    for (int k = 0; k < 8; k++)
      if (count[k] > 0) {
        count[k]--;
        return;
      }
  }
};

// Of a device: one queue in which packets of the color 0 are dropped by a profile, the others at its
// limit. The color is the lowest bit of what stands in the upper ones of the TOS byte.
class Colors : public Queue<Packet> {
public:
  static TypeId GetTypeId()
  {
    static TypeId tid = TypeId("shoal_reference::Colors").SetParent<Queue<Packet>>();
    return tid;
  }
  int limit = 100, least = 0, most = 0;
  double probability = 1;
  Ptr<UniformRandomVariable> random = CreateObject<UniformRandomVariable>();
  bool Enqueue(Ptr<Packet> packet) override
  {
    uint8_t head[4];  // two bytes of PPP before the IP header
    packet->CopyData(head, 4);
    const int waiting = GetNPackets();
    bool isTooMuch = waiting >= limit;
    if (((head[3] >> 5) & 1) == 0 && waiting >= least)
      isTooMuch |= waiting >= most ||
                   random->GetValue() < probability * (waiting - least) / (most - least);
    if (isTooMuch) {
      DropBeforeEnqueue(packet);
      return false;
    }
    return DoEnqueue(GetContainer().end(), packet);
  }
  Ptr<Packet> Dequeue() override { return DoDequeue(GetContainer().begin()); }
  Ptr<Packet> Remove() override { return DoRemove(GetContainer().begin()); }
  Ptr<const Packet> Peek() const override { return DoPeek(GetContainer().begin()); }
};

class ByTos : public Ipv4PacketFilter {
public:
  static TypeId GetTypeId()
  {
    static TypeId tid = TypeId("shoal_reference::ByTos").SetParent<Ipv4PacketFilter>();
    return tid;
  }

private:
  int32_t DoClassify(Ptr<QueueDiscItem> item) const override
  {
    return static_cast<Ipv4QueueDiscItem*>(PeekPointer(item))->GetHeader().GetTos() >> 5;
  }
};

// As ns-3's, but a duplicate acknowledgement adds no packet to what its SACK block has counted, as RFC
// 6937 has it and ns-3 from 3.45 on.
class PlainPrr : public TcpPrrRecovery {
public:
  static TypeId GetTypeId()
  {
    static TypeId tid = TypeId("shoal_reference::PlainPrr").SetParent<TcpPrrRecovery>().AddConstructor<PlainPrr>();
    return tid;
  }
  void DoRecovery(Ptr<TcpSocketState> tcb, uint32_t deliveredBytes, bool) override
  {
    TcpPrrRecovery::DoRecovery(tcb, deliveredBytes, false);
  }
  Ptr<TcpRecoveryOps> Fork() override { return CopyObject<PlainPrr>(this); }
};

struct Counts {
  long long hops = 0, deviceDrops = 0, discDrops = 0, marks = 0, lost = 0;
  double processor = 0, simulated = 0;
  std::vector<long long> uplinks;  // packets of leaves' links to spines, a leaf after the other
};

class Network {
public:
  Settings settings;
  NodeContainer nodes;
  std::vector<Ptr<PointToPointNetDevice>> devices;
  std::vector<Ptr<QueueDisc>> discs;
  std::vector<Ptr<QueueDisc>> discOf;  // by device; null where there is none
  std::vector<Ptr<Fabric>> fabrics;
  long long lost = 0;

  explicit Network(const Settings& given) : settings(given)
  {
    RngSeedManager::SetSeed(1);
    RngSeedManager::SetRun(settings.seed);
    const int all = settings.hosts + settings.leaves + settings.spines;
    const int each = settings.hosts / settings.leaves;
    nodes.Create(all);
    InternetStackHelper stack;
    stack.SetIpv6StackInstall(false);
    stack.Install(nodes);
    for (int k = 0; k < all; k++) {
      auto fabric = CreateObject<Fabric>();
      fabric->host = k < settings.hosts ? k : -1;
      fabric->leaf = k >= settings.hosts && k < settings.hosts + settings.leaves ? k - settings.hosts : -1;
      fabric->each = each;
      fabric->spines = settings.spines;
      fabric->seed = settings.seed;
      fabric->isHashed = settings.isHashed;
      fabric->random = 0x9e3779b97f4a7c15ULL * (settings.seed * 4096ULL + k + 1);
      nodes.Get(k)->GetObject<Ipv4>()->SetRoutingProtocol(fabric);
      fabrics.push_back(fabric);
    }
    for (int h = 0; h < settings.hosts; h++)
      Join(h, settings.hosts + h / each, h == settings.slowHost ? settings.slowRate : settings.rate,
           settings.delay);
    for (int l = 0; l < settings.leaves; l++)
      for (int s = 0; s < settings.spines; s++)
        Join(settings.hosts + l, settings.hosts + settings.leaves + s, settings.trunkRate, settings.trunkDelay);
  }

  // Packets that wait at the switch's port to a host, beside the one on the link.
  double WaitingFor(int host) const
  {
    const std::size_t port = 2 * host + 1;
    const double inDisc = discOf[port] ? discOf[port]->GetNPackets() : 0;
    return inDisc + devices[port]->GetQueue()->GetNPackets();
  }

  Counts Run(double limit)
  {
    Counts counts;
    Simulator::Stop(Seconds(limit));
    const std::clock_t began = std::clock();
    Simulator::Run();
    counts.processor = static_cast<double>(std::clock() - began) / CLOCKS_PER_SEC;
    counts.simulated = Simulator::Now().GetSeconds();
    for (auto& device : devices) {
      auto queue = device->GetQueue();
      counts.hops += queue->GetTotalReceivedPackets() - queue->GetNPackets();
      counts.deviceDrops += queue->GetTotalDroppedPackets();
    }
    for (auto& disc : discs) {
      counts.discDrops += disc->GetStats().nTotalDroppedPackets;
      counts.marks += disc->GetStats().nTotalMarkedPackets;
    }
    counts.lost = lost;
    for (int k = 0; k < settings.leaves * settings.spines; k++)
      counts.uplinks.push_back(devices[2 * (settings.hosts + k)]->GetQueue()->GetTotalReceivedPackets());
    return counts;
  }

private:
  uint32_t address = 0x0b000000;

  void Join(int a, int b, double rate, long long delay)
  {
    auto channel = CreateObject<PointToPointChannel>();
    channel->SetAttribute("Delay", TimeValue(NanoSeconds(delay)));
    AddDevice(a, rate, channel);
    auto far = AddDevice(b, rate, channel);
    if (settings.loss > 0 && a == settings.hosts && b == settings.hosts + settings.leaves) {
      auto errors = CreateObject<RateErrorModel>();
      errors->SetUnit(RateErrorModel::ERROR_UNIT_PACKET);
      errors->SetRate(settings.loss);
      errors->AssignStreams(7);
      far->SetReceiveErrorModel(errors);
      far->TraceConnectWithoutContext("PhyRxDrop", MakeCallback(&Network::NoteLoss, this));
    }
  }
  void NoteLoss(Ptr<const Packet>) { lost++; }

  Ptr<PointToPointNetDevice> AddDevice(int number, double rate, Ptr<PointToPointChannel> channel)
  {
    auto node = nodes.Get(number);
    const bool isHost = number < settings.hosts;
    auto device = CreateObject<PointToPointNetDevice>();
    device->SetAddress(Mac48Address::Allocate());
    device->SetDataRate(DataRate(static_cast<uint64_t>(rate)));
    device->SetMtu(9000);
    const bool hasDisc = settings.discipline == PRIORITY_RED || (settings.discipline == MARK && !isHost);
    const int limit = isHost ? settings.hostLimitPackets : settings.limitPackets;
    Ptr<Queue<Packet>> queue;
    if (settings.discipline == BANDS) {
      auto bands = CreateObject<Bands>();
      bands->limit = limit;
      bands->SetMaxSize(QueueSize(QueueSizeUnit::PACKETS, 8 * limit));
      queue = bands;
    } else if (settings.discipline == COLORS && !isHost) {
      auto colors = CreateObject<Colors>();
      colors->limit = limit;
      colors->least = settings.leastPackets;
      colors->most = settings.mostPackets;
      colors->probability = settings.probability;
      colors->SetMaxSize(QueueSize(QueueSizeUnit::PACKETS, limit));
      queue = colors;
    } else {
      queue = CreateObject<DropTailQueue<Packet>>();
      queue->SetMaxSize(QueueSize(QueueSizeUnit::PACKETS, hasDisc ? 1 : limit));
    }
    device->SetQueue(queue);
    node->AddDevice(device);
    device->Attach(channel);
    auto ipv4 = node->GetObject<Ipv4>();
    const auto interface = ipv4->AddInterface(device);
    const Ipv4Address own(isHost ? Fabric::FIRST + number : address++);
    ipv4->AddAddress(interface, Ipv4InterfaceAddress(own, Ipv4Mask("255.255.255.255")));
    ipv4->SetUp(interface);
    fabrics[number]->Add(device, own);
    discOf.push_back(nullptr);
    if (hasDisc) {
      auto interfaces = CreateObject<NetDeviceQueueInterface>();
      interfaces->GetTxQueue(0)->ConnectQueueTraces(queue);
      device->AggregateObject(interfaces);
      TrafficControlHelper helper = Helper();
      discs.push_back(helper.Install(device).Get(0));
      discOf.back() = discs.back();
      if (settings.discipline == PRIORITY_RED)
        discs.back()->AddPacketFilter(CreateObject<ByTos>());
    }
    devices.push_back(device);
    return device;
  }

  TrafficControlHelper Helper()
  {
    TrafficControlHelper helper;
    uint16_t handle = 0;
    const QueueSizeValue size(QueueSize(QueueSizeUnit::PACKETS, settings.limitPackets));
    const DoubleValue least(settings.leastPackets), most(settings.mostPackets);
    const DoubleValue weight(settings.weight), slope(1 / settings.probability);
    if (settings.discipline == MARK) {
      helper.SetRootQueueDisc("ns3::RedQueueDisc", "MaxSize", size, "MinTh", most, "MaxTh", most,
                              "QW", DoubleValue(1), "Gentle", BooleanValue(false),
                              "UseHardDrop", BooleanValue(false), "UseEcn", BooleanValue(true),
                              "MeanPktSize", UintegerValue(1500));
      return helper;
    }
    Priomap map;
    map.fill(0);
    handle = helper.SetRootQueueDisc("ns3::PrioQueueDisc", "Priomap", PriomapValue(map));
    auto classes = helper.AddQueueDiscClasses(handle, 8, "ns3::QueueDiscClass");
    for (auto& each : classes)
      helper.AddChildQueueDisc(handle, each, "ns3::RedQueueDisc", "MaxSize", size, "MinTh", least,
                               "MaxTh", most, "QW", weight, "LInterm", slope, "Gentle",
                               BooleanValue(false), "MeanPktSize", UintegerValue(1500),
                               "LinkBandwidth", DataRateValue(DataRate(static_cast<uint64_t>(settings.rate))));
    return helper;
  }
};

// Flows of UDP: every `interval` ns a packet of `size` bytes on the link.
struct CbrFlow {
  int source, target, size, packets;
  long long interval, start;
  int band;
  long long sent = 0, delivered = 0, delay = 0;
  Ptr<Socket> socket;
  void Send()
  {
    long long head[2] = {number, Simulator::Now().GetNanoSeconds()};
    const int payload = size - 30;  // PPP, IP, UDP
    std::vector<uint8_t> bytes(payload);
    std::memcpy(bytes.data(), head, sizeof head);
    socket->Send(Create<Packet>(bytes.data(), payload));
    sent++;
    if (sent < packets)
      Simulator::Schedule(NanoSeconds(interval), &CbrFlow::Send, this);
  }
  long long number = 0;
};

struct Cbr {
  std::vector<CbrFlow> flows;
  void Add(int source, int target, int size, int packets, long long interval, long long start, int band)
  {
    CbrFlow flow{source, target, size, packets, interval, start, band};
    flow.number = static_cast<long long>(flows.size());
    flows.push_back(flow);
  }
  void Receive(Ptr<Socket> socket)
  {
    while (auto packet = socket->Recv()) {
      long long head[2];
      packet->CopyData(reinterpret_cast<uint8_t*>(head), sizeof head);
      flows[head[0]].delivered++;
      flows[head[0]].delay += Simulator::Now().GetNanoSeconds() - head[1];
    }
  }
  Counts Run(const Settings& settings, double limit)
  {
    Network network(settings);
    for (int h = 0; h < settings.hosts; h++) {
      auto sink = Socket::CreateSocket(network.nodes.Get(h), UdpSocketFactory::GetTypeId());
      sink->Bind(InetSocketAddress(Ipv4Address::GetAny(), 9));
      sink->SetRecvCallback(MakeCallback(&Cbr::Receive, this));
    }
    for (auto& flow : flows) {
      flow.socket = Socket::CreateSocket(network.nodes.Get(flow.source), UdpSocketFactory::GetTypeId());
      flow.socket->SetIpTos(flow.band << 5);
      flow.socket->Connect(InetSocketAddress(Ipv4Address(Fabric::FIRST + flow.target), 9));
      if (flow.packets > 0)
        Simulator::Schedule(NanoSeconds(flow.start), &CbrFlow::Send, &flow);
    }
    auto counts = network.Run(limit);
    for (auto& flow : flows)
      flow.socket = nullptr;
    Simulator::Destroy();
    return counts;
  }
};

// Messages over TCP; connections are made before time 0, which is `begin` of the simulator's clock.
struct Message {
  int source, target;
  long long bytes, start;
  int after;  // the number of the message that it waits for; -1: none
  std::vector<Message*> followers;
  long long received = 0, end = -1;
  Ptr<Socket> listener, sender;
  void Send() { sender->Send(Create<Packet>(static_cast<uint32_t>(bytes))); }
  int* left = nullptr;
  void Accept(Ptr<Socket> socket, const Address&)
  {
    socket->SetRecvCallback(MakeCallback(&Message::Receive, this));
  }
  void Receive(Ptr<Socket> socket)
  {
    while (auto packet = socket->Recv())
      received += packet->GetSize();
    if (received == bytes && end < 0) {
      end = Simulator::Now().GetNanoSeconds();
      for (auto each : followers)
        each->Send();
      if (--*left == 0)
        Simulator::Stop();
    }
  }
};

struct Tcp {
  std::vector<Message> messages;
  int left = 0;
  std::string control = "ns3::TcpDctcp", recovery = "ns3::TcpPrrRecovery";
  int firstWindow = 10, mostWindow = 1024;
  double minTimeout = 0.2;
  int segmentBytes = 0;
  long long sampleEvery = 0;  // nanoseconds; 0: never
  long long samples = 0;
  double waiting = 0;  // at the ports to hosts that are sent to, over all samples
  std::set<int> targets;
  void Add(int source, int target, long long bytes, long long start, int after)
  {
    messages.push_back(Message{source, target, bytes, start, after, {}});
    targets.insert(target);
  }
  double MeanQueue() const { return waiting / (samples * targets.size()); }
  void Sample(Network* network)
  {
    samples++;
    for (int target : targets)
      waiting += network->WaitingFor(target);
    Simulator::Schedule(NanoSeconds(sampleEvery), &Tcp::Sample, this, network);
  }
  Counts Run(const Settings& settings, double begin, double limit)
  {
    const uint32_t segment = segmentBytes;
    PlainPrr::GetTypeId();
    Config::SetDefault("ns3::TcpL4Protocol::SocketType", TypeIdValue(TypeId::LookupByName(control)));
    Config::SetDefault("ns3::TcpL4Protocol::RecoveryType", TypeIdValue(TypeId::LookupByName(recovery)));
    Config::SetDefault("ns3::TcpSocket::SegmentSize", UintegerValue(segment));
    Config::SetDefault("ns3::TcpSocket::InitialCwnd", UintegerValue(firstWindow));
    Config::SetDefault("ns3::TcpSocket::DelAckCount", UintegerValue(1));
    Config::SetDefault("ns3::TcpSocket::SndBufSize", UintegerValue(1u << 30));
    Config::SetDefault("ns3::TcpSocket::RcvBufSize", UintegerValue(mostWindow * segment));
    Config::SetDefault("ns3::TcpSocketBase::MinRto", TimeValue(Seconds(minTimeout)));
    Config::SetDefault("ns3::TcpSocketBase::ClockGranularity", TimeValue(MicroSeconds(1)));
    Network network(settings);
    left = static_cast<int>(messages.size());
    for (std::size_t k = 0; k < messages.size(); k++) {
      auto& each = messages[k];
      each.left = &left;
      each.listener = Socket::CreateSocket(network.nodes.Get(each.target), TcpSocketFactory::GetTypeId());
      const uint16_t port = static_cast<uint16_t>(1000 + k);
      each.listener->Bind(InetSocketAddress(Ipv4Address::GetAny(), port));
      each.listener->Listen();
      each.listener->SetAcceptCallback(MakeNullCallback<bool, Ptr<Socket>, const Address&>(),
                                       MakeCallback(&Message::Accept, &each));
      each.sender = Socket::CreateSocket(network.nodes.Get(each.source), TcpSocketFactory::GetTypeId());
      each.sender->Bind();
      each.sender->Connect(InetSocketAddress(Ipv4Address(Fabric::FIRST + each.target), port));
      if (each.after < 0)
        Simulator::Schedule(Seconds(begin) + NanoSeconds(each.start), &Message::Send, &each);
      else
        messages[each.after].followers.push_back(&each);
    }
    if (sampleEvery > 0)
      Simulator::Schedule(Seconds(begin) + NanoSeconds(sampleEvery), &Tcp::Sample, this, &network);
    auto counts = network.Run(begin + limit);
    for (auto& each : messages) {
      each.listener = each.sender = nullptr;
      if (each.end >= 0)
        each.end -= static_cast<long long>(begin * 1e9) + each.start;
    }
    Simulator::Destroy();
    return counts;
  }
};
}  // namespace shoal_reference
