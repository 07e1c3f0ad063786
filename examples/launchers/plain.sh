#!/bin/bash
# Plain processes: the workers of one host, each started again when it fails. On every host:
#
#     export WORLD_SIZE=4 MASTER_ADDR=10.0.0.1 MASTER_PORT=29500 SHOAL_JOB=/shared/my-job
#     FIRST_RANK=0 WORKERS=2 examples/launchers/plain.sh python train.py    # ranks 0 and 1
#     FIRST_RANK=2 WORKERS=2 examples/launchers/plain.sh python train.py    # on the other host
#
# SHOAL_JOB is where who starts again finds the job. Remove an old one before a new job begins.
set -u
: "${FIRST_RANK:?}" "${WORKERS:?}" "${WORLD_SIZE:?}" "${MASTER_ADDR:?}" "${MASTER_PORT:?}"
: "${SHOAL_JOB:?}"
export WORLD_SIZE MASTER_ADDR MASTER_PORT SHOAL_JOB LOCAL_WORLD_SIZE=$WORKERS

worker() { # its number on this host, and the command
    export LOCAL_RANK=$1 RANK=$((FIRST_RANK + $1))
    shift
    local start code
    for ((start = 0; start <= ${RESTARTS:-3}; start++)); do
        "$@"
        code=$?
        case $code in
            0) return 0 ;;
            2 | 3 | 4) return $code ;; # a mistake, which another start does not mend
        esac
        echo "rank $RANK ended with $code" >&2
        sleep $((1 << start))
    done
    return $code
}

trap 'trap "" TERM; kill 0; wait; exit 143' TERM INT HUP # to all of this script's processes
pids=()
for ((number = 0; number < WORKERS; number++)); do
    worker "$number" "$@" &
    pids+=($!)
done
result=0
for pid in "${pids[@]}"; do
    wait "$pid" || result=$?
done
exit "$result"
