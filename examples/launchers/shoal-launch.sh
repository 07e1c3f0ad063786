#!/bin/bash
# One machine: four workers, each started again up to three times, with the others or by itself.
#
#     examples/launchers/shoal-launch.sh python examples/train_digits.py --min-workers 2
#
# --grace is how long workers have to leave (shoal.leave_on) when this is ended by SIGTERM.
exec shoal launch -n "${WORKERS:-4}" --restarts 3 --grace 10 -- "$@"
