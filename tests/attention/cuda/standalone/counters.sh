#!/bin/bash
# Hardware counters of the kernels of one forward and one backward: counters.sh LIBRARY KERNEL HEAD_SIZE
here=$(dirname "$0")
metrics=(
  sm__cycles_elapsed.avg
  gpu__time_duration.sum
  sm__inst_executed_pipe_xu.avg.pct_of_peak_sustained_active
  sm__inst_executed_pipe_fma.avg.pct_of_peak_sustained_active
  sm__inst_executed_pipe_alu.avg.pct_of_peak_sustained_active
  sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active
  sm__inst_executed_pipe_tensor_op_gmma.avg.pct_of_peak_sustained_active
  sm__inst_issued.avg.pct_of_peak_sustained_active
  sm__inst_executed_pipe_lsu.avg.pct_of_peak_sustained_active
  l1tex__data_pipe_lsu_wavefronts_mem_shared.avg.pct_of_peak_sustained_active
  smsp__average_warps_issue_stalled_barrier_per_issue_active.ratio
  smsp__average_warps_issue_stalled_long_scoreboard_per_issue_active.ratio
  smsp__average_warps_issue_stalled_short_scoreboard_per_issue_active.ratio
  smsp__average_warps_issue_stalled_wait_per_issue_active.ratio
  smsp__average_warps_issue_stalled_gmma_per_issue_active.ratio
  smsp__average_warps_issue_stalled_math_pipe_throttle_per_issue_active.ratio
  smsp__average_warps_issue_stalled_mio_throttle_per_issue_active.ratio
  lts__t_sectors_op_red.sum
)
ncu --clock-control none -k 'regex:forward|backward' -s 3 -c 3 --metrics "$(IFS=,; echo "${metrics[*]}")" \
  python3 "$here/once.py" "$1" "$2" "$3" 2>&1 | grep -E '^  [a-z]|__' |
    sed -E 's/ {2,}/ /g; s/void lazy::kernels::cuda:://; s/\(Params.*//'
