#!/bin/sh
# In the guest: everything CI tests over verbs. On the host: tests/vm/ci
. /guest.sh
# Smaller numbers than on a machine with hardware: the emulation is slow, more so on a busy host.
export ESP_TEST_REQUIRE_RDMA=1 IB_DEVICES=rxa,rxb IB_MESSAGES=500 IB_ROUNDS=30 IB_CHURN=200
status=0
step() { # step NAME COMMAND...
  name=$1; shift; read begin _ < /proc/uptime
  if "$@" > /tmp/step 2>&1; then result=ok; else result=FAILED; status=1; fi
  read end _ < /proc/uptime
  echo "$name: $result, from $begin to $end s"
  if [ $result = FAILED ]; then tail -n 60 /tmp/step; else grep -E 'passed,|test result: ok' /tmp/step | head -n 4; fi
}
step esp /t/esp.sh
wire
step locked /t/locked.sh
# Unit tests, with the guest's older kernel under userfaultfd.
step unit /t/unit --test-threads=2
step suite /t/guest --test-threads=1 --nocapture blocks_of_each_peer
# A part: all of it takes as long as the suite above.
step shared env BTL_CASE=many /t/guest --test-threads=1 --nocapture --exact shared_blocks
step late /t/guest --test-threads=1 --nocapture a_late_process
step churn /t/guest --test-threads=1 --nocapture memory_that
step fork /t/guest --test-threads=1 --nocapture a_fork
step mixed /t/mixed.sh
step mixed-shared env ESP_RDMA_SHARED=1 /t/mixed.sh
# The point-to-point layer's suite; deaths on the test's fabric are for the host.
step layer /t/layer --test-threads=1 --skip death
export IB_MESSAGES=200 IB_ROUNDS=12
# Each with a part of the suite: what moves data, and deaths.
bad loss 1% delay 100us reorder 5%
step lossy env BTL_CASE=many /t/guest --test-threads=1 --nocapture blocks_of_each_peer
bad loss 2%
step lossy-death env BTL_CASE=death /t/guest --test-threads=1 --nocapture blocks_of_each_peer
bad duplicate 5%
step duplicated env BTL_CASE=put /t/guest --test-threads=1 --nocapture blocks_of_each_peer
exit $status
