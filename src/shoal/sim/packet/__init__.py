"""The network packet by packet, for clusters that an emulated one cannot hold."""
