#!/bin/sh
# One machine with 8 GPUs. `sbatch experiments/t5_1_1_base_c4/slurm.sh` from the checkout's root; a job that is stopped by
# its time limit or put back into the queue goes on from its last checkpoint.
#SBATCH --job-name=t5_1_1_base_c4
#SBATCH --nodes=1
#SBATCH --ntasks=1
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=32
#SBATCH --mem=128G
#SBATCH --time=12:00:00
#SBATCH --signal=TERM@180
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=runs/t5_1_1_base_c4-%j.log
set -eu
export XLA_PYTHON_CLIENT_MEM_FRACTION=0.92
exec srun .venv/bin/python -m t5xpg train t5_1_1_base_c4 --gin.NUM_MICROBATCHES=1
