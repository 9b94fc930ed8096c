#!/bin/sh
# In the guest: perftest and ours by turns on the same wire. Emulation is slow, so only ratios mean something.
# On the host: ESP_VM_PRE='wire; ordered' ESP_VM_FILES="$(echo target/release/examples/{ibbench,ib-figure6})" tests/vm/run tests/vm/figures.sh [ROUNDS [RUNS]]
# RUNS: of figure 6. `ordered`, because a real wire never lets the packets of a connection overtake each other: InfiniBand promises it, and cards keep
# a RoCE flow in order. The guest's plain wire does not, and then soft-RoCE sends again, perftest's data and ours: `ESP_VM_PRE=wire` shows how it is there.
. /guest.sh
# Each end has a processor, perftest's by `taskset`; ibbench and ib-figure6 bind their threads themselves.
theirs() { # theirs TOOL OPTIONS...
  tool=$1; shift
  taskset 2 $tool -d rxb -x 1 "$@" > /dev/null 2>&1 & server=$!
  sleep 1
  taskset 1 $tool -d rxa -x 1 "$@" 10.9.0.2 2>&1 | grep -E '^ *[0-9]+ ' | tail -1
  wait $server
}
# Of perftest's columns: the typical latency is the fifth, the average bandwidth the fourth.
for round in $(seq ${1:-3}); do
  echo "round $round: ib_write_lat $(theirs ib_write_lat -s 8 -n 1000 | awk '{print $5}') us"
  echo "round $round: ours $(/t/ibbench latency rxa rxb)"
  echo "round $round: ib_send_lat $(theirs ib_send_lat -s 8 -n 1000 | awk '{print $5}') us"
  echo "round $round: ib_write_bw $(theirs ib_write_bw -s 1048576 -n 40 --report_gbits | awk '{print $4 * 125}') MB/s"
  echo "round $round: ours $(/t/ibbench bandwidth rxa rxb)"
done
/t/ibbench steps rxa rxb
[ -x /t/ib-figure6 ] && for _ in $(seq ${2:-1}); do /t/ib-figure6 threads rxa rxb || exit 1; done
