#!/bin/bash
# torchrun: one for each worker, so that it starts that worker again and no other. On every host:
#
#     export WORLD_SIZE=2 MASTER_ADDR=10.0.0.1 MASTER_PORT=29500 SHOAL_JOB=/shared/my-job
#     RANK=0 examples/launchers/torchrun.sh python train.py     # RANK=1 on the other host
#
# One torchrun for all (--nnodes 2, or 1:2) restarts every worker when one dies: to it a death is a
# change of who takes part, and it gives all of them new ranks and a new store. Here each of them
# knows of one worker only, and what belongs to the whole job goes past it.
set -u
: "${RANK:?}" "${WORLD_SIZE:?}" "${MASTER_ADDR:?}" "${MASTER_PORT:?}" "${SHOAL_JOB:?}"
export JOB_PLACE="RANK=$RANK WORLD_SIZE=$WORLD_SIZE MASTER_ADDR=$MASTER_ADDR MASTER_PORT=$MASTER_PORT"
export JOB_PLACE="$JOB_PLACE LOCAL_RANK=${LOCAL_RANK:-0} LOCAL_WORLD_SIZE=${LOCAL_WORLD_SIZE:-1}"
export SHOAL_JOB
# GROUP_RANK would say that all workers share a host, and torchrun's store is not the job's.
exec torchrun --standalone --nproc-per-node 1 --max-restarts "${RESTARTS:-3}" --no-python \
    bash -c 'unset GROUP_RANK TORCHELASTIC_USE_AGENT_STORE; exec env $JOB_PLACE "$@"' worker "$@"
