//! Raw Ethernet access: AF_PACKET sockets, filters, link properties, pcap tap.
