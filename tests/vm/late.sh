#!/bin/sh
# In the guest: perftest alone over a slow wire whose acknowledgements come later than the interface waits for them (time-out 14: 67 ms). soft-RoCE of
# Linux 6.1 then ends half of the runs with status 9, "remote invalid request" (docs/infiniband.md, Tests). With a time-out of 4 s it does not.
# On the host: ESP_VM_TIMEOUT=300 ESP_VM_PRE='wire; ordered' tests/vm/run tests/vm/late.sh [RUNS]
. /guest.sh
modules sch_tbf
tc qdisc add dev va root tbf rate 30mbit burst 20k limit 20M
# once TIMEOUT: as ibv_modify_qp has it, 4.096 us x 2^TIMEOUT
once() {
  write="timeout 12 ib_write_bw -x 1 -u $1 -s 65536 -n 100 -t 16"
  taskset 2 $write -d rxb > /tmp/server 2>&1 & server=$!
  sleep 0.5
  taskset 1 $write -d rxa 10.9.0.2 > /tmp/client 2>&1; ended=$?
  wait $server
  echo "time-out $1, acknowledgements late by $delay: exit status $ended $(grep -i status /tmp/client)"
}
for timeout in 14 20; do
  for run in $(seq ${1:-30}); do
    for delay in 70ms 90ms; do
      tc qdisc replace dev vb root netem delay $delay limit 100000
      once $timeout
    done
  done
done > /tmp/all
sort /tmp/all | uniq -c
cd /sys/class/infiniband/rxb/ports/1/hw_counters && grep . out_of_seq_request duplicate_request
