#!/bin/sh
# The fleet by spark-submit in cluster mode: the driver's pod runs app.py.
#   ops/kubernetes/submit.sh https://API-SERVER:6443
# The password comes by name from the Secret of common.yaml, so that no secret
# stands in this command.
set -eu
api=${1:?give the address of the API server, https://HOST:PORT}

secret() { printf -- '--conf spark.kubernetes.driver.secretKeyRef.%s=%s:%s ' "$1" geofence-kafka "$1"; }

# shellcheck disable=SC2046  # words, on purpose
exec spark-submit --master "k8s://$api" --deploy-mode cluster --name geofence \
    --conf spark.kubernetes.container.image=registry.example/geofence:1 \
    --conf spark.kubernetes.authenticate.driver.serviceAccountName=geofence-spark \
    --conf spark.kubernetes.driverEnv.KAFKA_BOOTSTRAP=kafka-bootstrap.kafka.svc:9093 \
    --conf spark.kubernetes.driverEnv.GROUP=geofence \
    --conf spark.kubernetes.driverEnv.TOPIC=positions \
    --conf spark.kubernetes.driverEnv.MEMBERS=4 \
    $(secret KAFKA_USERNAME) $(secret KAFKA_PASSWORD) \
    --conf spark.executor.instances=2 --conf spark.executor.cores=2 \
    --conf spark.executor.memory=1g --conf spark.executor.memoryOverhead=1g \
    --conf spark.decommission.enabled=true \
    --conf spark.kubernetes.executor.terminationGracePeriodSeconds=60 \
    local:///app/app.py
