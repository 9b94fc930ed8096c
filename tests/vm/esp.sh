#!/bin/sh
# In the guest, whose kernel is another one than the host's: two nodes with an esp-daemon each, on a bridge with netem at its ports (at
# the nodes' own ends it would do nothing: the daemon's frames bypass the queues there). Under every kind of impairment stations answer, and two ranks exchange messages of all sizes, every byte checked.
# On the host: ESP_VM_PRE=: ESP_VM_FILES="…/esp-daemon …/esping …/p2p-check" tests/vm/run tests/vm/esp.sh
. /guest.sh
modules veth bridge sch_netem af_packet
ip netns add n0; ip netns add n1; ip netns add nsw
on() { where=$1; shift; /bin/ip netns exec "n$where" "$@"; }
on sw /bin/ip link add sw0 type bridge; on sw /bin/ip link set sw0 up
for node in 0 1; do
  ip link add e$node netns n$node address 02:00:00:00:00:1$node type veth peer name p$node netns nsw
  on sw /bin/ip link set p$node master sw0 up
  on $node /bin/ip link set "e$node" up
  # Without leases all frames go by the daemon.
  printf 'node_name = "n%s"\n[lease]\nallow = "off"\n' $node > /tmp/n$node.toml
  # Not by `on`: the id must be the program's.
  /bin/ip netns exec "n$node" /t/esp-daemon -i "e$node" -c /tmp/n$node.toml --socket /tmp/n$node.sock > /tmp/n$node.log 2>&1 &
  eval "daemon$node=$!"
done
for node in 0 1; do for _ in $(seq 100); do [ -S /tmp/n$node.sock ] && break; sleep 0.1; done; done
status=0
bad() { echo "$impairment: $*"; exit 1; }
# netem WORDS...: at both ports
netem() {
  impairment="$*"
  for node in 0 1; do
    on sw /sbin/tc qdisc del dev p$node root 2> /dev/null
    on sw /sbin/tc qdisc add dev p$node root netem "$@" || bad "netem is not there"
  done
}
# answers MIN: at least MIN of twenty requests, each there and back, are answered
answers() {
  answers=$(ESP_SOCKET=/tmp/n0.sock on 0 /t/esping -q -c 20 -i 0.02 -W 1 02:00:00:00:00:11 2>&1)
  count=$(echo "$answers" | sed -n 's/.* \([0-9]*\) received.*/\1/p')
  [ "${count:-0}" -ge "$1" ] || bad "esping: $answers"
}
# impairment WORDS...: netem with these words; then the checks
impairment() {
  netem "$@"
  answers 5
  # A job asks whether the other node is there, for a second at most (exit status 2): a busy host may need that for itself.
  for try in 1 2 3; do
    dir=$(mktemp -d /tmp/job.XXXXXX)
    for rank in 0 1; do
      ESP_JOB_DIR=$dir ESP_JOB_SIZE=2 ESP_JOB_RANK=$rank ESP_BTL=eth ESP_SOCKET=/tmp/n$rank.sock on $rank /t/p2p-check > /tmp/out.$rank 2>&1 &
      eval "rank$rank=$!"
    done
    wait $rank0; code0=$?; wait $rank1; code1=$?
    [ $code0 = 2 ] || [ $code1 = 2 ] || break
  done
  [ $code0 = 0 ] && [ $code1 = 0 ] || bad "status $code0 and $code1: $(tail -n 5 /tmp/out.0 /tmp/out.1)"
  grep -q '^PASS' /tmp/out.0 || bad "no PASS: $(tail -n 5 /tmp/out.0)"
  # The frames did meet netem.
  sent=$(on sw /sbin/tc -s qdisc show dev p0 | sed -n 's/.*bytes \([0-9]*\) pkt (dropped \([0-9]*\),.*/\1 \2/p')
  [ "${sent%% *}" -gt 500 ] || bad "$sent packets and drops"
  case $impairment in *loss*) [ "${sent##* }" -gt 0 ] || bad "nothing was lost";; esac
  read -r now _ < /proc/uptime
  echo "at $now s, $impairment: ${count:-0} of 20 answers, $sent packets and drops, $(grep '^PASS' /tmp/out.0)"
}
impairment loss 2%
impairment delay 1ms 1ms reorder 20% duplicate 10%
impairment loss 1% delay 500us 300us duplicate 2%
# Changed bytes are noticed by the frame check sequence of real Ethernet, which frames have not yet at netem (docs/wire-format.md,
# integrity): here the daemons only have to stand them.
netem corrupt 20%
answers 0
netem delay 100us
answers 15
kill $daemon0 $daemon1
for node in 0 1; do eval "wait \$daemon$node" || { echo "daemon $node: status $?"; status=1; }; done
grep -iE 'panic|error' /tmp/n0.log /tmp/n1.log && status=1
[ $status = 0 ] && echo "4 passed, ESP in the guest"
exit $status
