#!/bin/sh
# In the guest: p2p-check with four ranks on two "nodes" (network namespaces), so that shared memory connects the ranks of a node and
# verbs the nodes. Usage on the host: ESP_VM_PRE=wire ESP_VM_FILES=target/debug/examples/p2p-check tests/vm/run tests/vm/mixed.sh
# The devices stay in the first namespace, whose addresses they use; processes of the other one may open them.
. /guest.sh
[ -e /run/netns/other ] || ip netns add other
dir=$(mktemp -d /tmp/job.XXXXXX)
export ESP_JOB_DIR=$dir ESP_JOB_SIZE=4 ESP_SOCKET=/nonexistent ESP_BTL_VERBOSE=1 ESP_BTL=shm,ib
for rank in 0 1 2 3; do
  in= port=rxa
  [ $rank -ge 2 ] && in="/bin/ip netns exec other" port=rxb
  [ -e /sys/class/infiniband/$port ] || port=rxl
  ESP_JOB_RANK=$rank ESP_RDMA_PORTS=$port $in /t/p2p-check > /tmp/out.$rank 2>&1 &
  eval "pid$rank=$!"
done
status=0
for rank in 0 1 2 3; do eval "wait \$pid$rank" || { status=1; echo "rank $rank: status $?"; }; done
cat /tmp/out.0; [ $status = 0 ] || cat /tmp/out.1 /tmp/out.2 /tmp/out.3
grep -q PASS /tmp/out.0 || status=1
# Rank 0 reaches 1 by shared memory, 2 and 3 by verbs: else the run proves nothing.
[ "$(grep -cE 'has .*rank 1.* shm|has .*rank [23].* ib' /tmp/out.0)" -ge 3 ] || { echo "other paths than expected"; status=1; }
exit $status
