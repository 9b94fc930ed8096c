# Helpers inside the guest, for what ESP_VM_PRE says before a test runs.
# busybox's shell prefers its own applets; these are iproute2's.
ip() { /bin/ip "$@"; }; tc() { /sbin/tc "$@"; }; rdma() { /bin/rdma "$@"; }
# modules NAME...: loads them and their dependencies
modules() {
  for m in "$@"; do grep "^$m " /lib/modules/order | while read -r _ file; do
    name=$(echo "${file%.ko}" | tr - _); [ -d "/sys/module/$name" ] || insmod "/lib/modules/$file" || echo "insmod $file failed"
  done; done
}
# ready DEVICE...: waits until the port is up and has the IPv4 address as its GID 1
ready() {
  for d in "$@"; do for _ in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do
    grep -q ACTIVE "/sys/class/infiniband/$d/ports/1/state" && grep -qi ffff: "/sys/class/infiniband/$d/ports/1/gids/1" && break
    sleep 0.1
  done; done
}
# loop: one device, rxl, on the loopback interface
loop() {
  modules crc32_generic rdma_rxe; ip link set lo up; rdma link add rxl type rxe netdev lo; ready rxl
}
# wire: two devices, rxa (10.9.0.1 on va) and rxb (10.9.0.2 on vb), whose traffic crosses a veth pair, so that qdiscs such as
# netem act on it. Both ends are in one namespace, for rxe of Linux 6.1 works in the first only: rules lead the packets out.
wire() {
  modules crc32_generic rdma_rxe veth sch_netem; ip link set lo up
  ip link add va type veth peer name vb
  ip addr add 10.9.0.1/32 dev va; ip addr add 10.9.0.2/32 dev vb
  for i in all va vb; do echo 0 > /proc/sys/net/ipv4/conf/$i/rp_filter; echo 1 > /proc/sys/net/ipv4/conf/$i/accept_local; done
  ip link set va mtu 9000 up; ip link set vb mtu 9000 up
  ip rule add pref 10 iif va lookup local; ip rule add pref 11 iif vb lookup local
  ip rule add pref 20 oif va lookup 101; ip rule add pref 21 oif vb lookup 102
  ip rule add pref 22 from 10.9.0.1 to 10.9.0.2 lookup 101; ip rule add pref 23 from 10.9.0.2 to 10.9.0.1 lookup 102
  ip rule add pref 32000 lookup local; ip rule del pref 0
  ip route add 10.9.0.2/32 dev va src 10.9.0.1 table 101; ip route add 10.9.0.1/32 dev vb src 10.9.0.2 table 102
  rdma link add rxa type rxe netdev va; rdma link add rxb type rxe netdev vb; ready rxa rxb
}
# ordered: a wire that keeps the order of packets, as InfiniBand's and a card's do, and one processor for each end, as if they were two machines: what arrives
# at va is handled by the first, at vb by the second (RPS), whatever its sender. For figures, with the programs bound likewise. Without it veth hands packets to the
# processor that sends: one in 2000 overtakes another, and all since the last acknowledgement is sent again.
ordered() { echo 1 > /sys/class/net/va/queues/rx-0/rps_cpus; echo 2 > /sys/class/net/vb/queues/rx-0/rps_cpus; }
# bad WORDS...: netem with these words at both ends of the wire
bad() {
  for i in va vb; do tc qdisc del dev $i root 2> /dev/null; tc qdisc add dev $i root netem "$@" || echo "netem $* failed"; done
}
