#!/bin/sh
# Spark's preStop hook, where spark.decommission.enabled=true: tells the executor to move its work.
# Its member drains, leaves the group and goes on elsewhere; then the executor ends by itself.
set -eu
executor=$(pgrep -o java)
kill -s PWR "$executor"
tail --pid="$executor" -f /dev/null
