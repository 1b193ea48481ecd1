#!/usr/bin/env bash
# One of several hosts that train together, as pod of an indexed Job: the first trains, the others lend their ranks.
#
#   JOB, SUBDOMAIN    names of the Job and of its headless service
#   HOSTS             how many pods there are
#   JOB_COMPLETION_INDEX   which one this is (set by Kubernetes)
#
# Arguments are those of `python -m tasks train`.
set -euo pipefail

hosts=()
for ((index = 0; index < HOSTS; index++)); do
  until address=$(getent ahostsv4 "$JOB-$index.$SUBDOMAIN" | awk 'NR == 1 {print $1}') && [ -n "$address" ]; do
    echo "waiting for $JOB-$index.$SUBDOMAIN"
    sleep 2
  done
  hosts+=("$address")
done

if [ "$JOB_COMPLETION_INDEX" = 0 ]; then
  export ATHANOR_HOSTS
  ATHANOR_HOSTS=$(IFS=, && echo "${hosts[*]}")
  exec python -m tasks train "$@"
fi
exec python -m tasks host-agent --home "$ATHANOR_HOME" --address "${hosts[$JOB_COMPLETION_INDEX]}"
