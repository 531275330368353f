#!/usr/bin/env bash
# Creates the secrets of compose.yaml in secrets/ beside it. Fails if the directory exists.
set -euo pipefail
cd "$(dirname "$0")"
random() { openssl rand -base64 32 | tr '+/' '-_' | tr -d '=\n'; }

# Other users cannot enter the directory; the containers' users must be able to read its files.
mkdir -m 700 secrets
postgres=$(random)
printf '%s' "$postgres" >secrets/postgres_password
printf 'postgres://claimgate:%s@postgres/claimgate' "$postgres" >secrets/database_url
random >secrets/admin_token
printf 'k1:%s' "$(random)" >secrets/edge_key
random >secrets/user_jwt_key
chmod 444 secrets/*
