#!/bin/sh
# The profiles that docs/loss.md shows. Runs that the file has already are not made again.
set -e
profile() { shoal profile-loss --json benchmarks/results/loss.json "$@"; }
profile --dataset digits --model mlp:512 --batch-size 8 --max-steps 120 --evaluate-every 2 --ablation all
profile --dataset fashion-mnist --model lenet --max-steps 600 --bounds 0.1 --holes error-feedback
profile --dataset fashion-mnist --model lenet --max-steps 600 --bounds 0.4 --holes zero,error-feedback
profile --dataset flights --model deepfm --max-steps 600 --bounds 0.1,0.4
profile --dataset text-stdlib --model char-gpt --max-steps 480 --evaluation-samples 300 --bounds 0.1 --holes error-feedback
