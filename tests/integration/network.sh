#!/usr/bin/env bash
# network.sh RRFP SOURCE: four hosts, made of network namespaces on one bridge, with delay, jitter and
# 1 % loss: the bits of one process. One of them is then cut off: all others name it.
# Needs root and iproute2; without the kernel's netem, loss comes from nftables, and no delay.
set -euo pipefail
rrfp=$1 source=$2
skip() { echo "skipped: $1"; exit 77; }
"$rrfp" doctor | grep -q 'UCX no' && skip "built without UCX"
if [[ $(id -u) != 0 ]] || ! command -v ip >/dev/null || ! command -v tc >/dev/null; then
    skip "needs root and iproute2"
fi
tag=r$$
work=$(mktemp -d)
clean() {
    for i in 0 1 2 3; do ip netns pids $tag-$i 2>/dev/null | xargs -r kill -9 2>/dev/null || true; done
    for i in 0 1 2 3; do ip netns del $tag-$i 2>/dev/null || true; done
    ip link del $tag 2>/dev/null || true
    rm -rf "$work"
}
trap clean EXIT
ip link add $tag type bridge 2>/dev/null || skip "no bridge can be made here"
ip link set $tag up
for i in 0 1 2 3; do
    ip netns add $tag-$i
    ip netns exec $tag-$i true 2>/dev/null || skip "no program starts in a network namespace here"
    ip link add $tag-v$i type veth peer name eth0 netns $tag-$i
    ip link set $tag-v$i master $tag up
    ip -n $tag-$i addr add 10.77.0.$((i + 1))/24 dev eth0
    ip -n $tag-$i link set eth0 up
    ip -n $tag-$i link set lo up
    if tc -n $tag-$i qdisc add dev eth0 root netem delay 2ms 1ms loss 1% 2>/dev/null; then
        network="delay 2 ms +- 1 ms, loss 1 % (netem)"
    elif command -v nft >/dev/null && ip netns exec $tag-$i nft -f - 2>/dev/null <<'RULES'; then
table ip t {
    chain c {
        type filter hook input priority 0;
        iif eth0 numgen random mod 100 0 drop
    }
}
RULES
        network="loss 1 % (nftables); this kernel has no netem"
    else
        network="as it is; neither netem nor nftables here"
    fi
done
echo "network: $network"
cd "$work"
cat "$source"/docs/*.md "$source"/README.md "$source"/src/*/*.h >text.txt
common=(--data-path text.txt --num-layers 4 --hidden-size 32 --num-attention-heads 2 --seq-length 32
    --micro-batch-size 2 --global-batch-size 12 --dropout 0.1 --log-interval 1000 --peer-timeout 3)
export UCX_LOG_LEVEL=fatal UCX_WARN_UNUSED_ENV_VARS=n UCX_TLS=tcp,self UCX_NET_DEVICES=eth0
RRFP_SECRET=$(od -An -tx1 -N32 /dev/urandom | tr -d ' \n')
export RRFP_SECRET
"$rrfp" train "${common[@]}" --train-iters 6 --summary one.json >/dev/null
start() { # ARGUMENT...: rank i in namespace i, in the background; pids
    pids=()
    for i in 0 1 2 3; do
        RANK=$i WORLD_SIZE=4 LOCAL_RANK=0 LOCAL_WORLD_SIZE=1 MASTER_ADDR=10.77.0.1 MASTER_PORT=29500 \
            ip netns exec $tag-$i timeout 120 "$rrfp" train "${common[@]}" \
            --pipeline-model-parallel-size 4 --hint bfw "$@" >out$i 2>err$i & pids+=($!)
    done
}
sha() { python3 -c 'import json,sys; d=json.load(open(sys.argv[1])); print(d["weights_sha256"], [s["loss_bits"] for s in d["steps"]])' "$1"; }

echo "== the same bits over a bad network"
start --train-iters 6 --summary four.json
for pid in "${pids[@]}"; do wait "$pid" || { cat err*; exit 1; }; done
diff <(sha one.json) <(sha four.json)

echo "== a host that is cut off"
for victim in 2 0; do
    start --train-iters 1000000
    sleep 3
    ip link set $tag-v$victim down
    code=0
    for i in 0 1 2 3; do
        code=0
        wait "${pids[i]}" || code=$?
        [[ $code == 3 ]] || { echo "FAILED: rank $i ends with $code when rank $victim is cut off"; cat err*; exit 1; }
        [[ $i == "$victim" ]] || grep -q "rank $i: .*rank $victim " err$i || {
            echo "FAILED: rank $i does not name rank $victim"; cat err$i; exit 1; }
    done
    ip link set $tag-v$victim up
done
echo "all as expected"
