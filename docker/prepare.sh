#!/usr/bin/env bash
# What must be there before the parts start, made once: tables, the accelerator's pool, the bucket, logins. Safe to repeat.
set -euo pipefail

airflow db migrate
# Deferred tasks count: a deferred training task is a trainer at work.
airflow pools set accelerator "${ACCELERATORS:-1}" "one training job at a time" --include-deferred

python - <<'PYTHON'
import os
import boto3

s3, bucket = boto3.client("s3"), os.environ["ATHANOR_STORE"].removeprefix("s3://").split("/")[0]
if bucket not in {item["Name"] for item in s3.list_buckets()["Buckets"]}:
    s3.create_bucket(Bucket=bucket)
print(f"bucket {bucket} is there")
PYTHON

# Airflow's simple auth manager reads passwords from a file that it may write; readable by this user alone.
umask 077
mkdir -p "$(dirname "$AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE")"
python -c 'import json, os; print(json.dumps({"admin": os.environ["UI_PASSWORD"]}))' \
  > "$AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE"
