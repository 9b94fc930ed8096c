#!/bin/sh
# In the guest, started by `esplab papers`: what docs/papers.md needs of it. papers.sh ROUNDS
rounds=${1:-3}
sh /t/figures.sh "$rounds" "$(((rounds + 1) / 2))" || exit 1
for _ in $(seq $(((rounds + 1) / 2))); do /t/ib-figure6 held rxa rxb || exit 1; done
