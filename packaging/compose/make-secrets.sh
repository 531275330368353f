#!/usr/bin/env bash
# Makes the secrets that compose.yaml names, in secrets/ beside it. Never over those that are there.
set -euo pipefail
cd "$(dirname "$0")"
random() { openssl rand -base64 32 | tr '+/' '-_' | tr -d '=\n'; }

# The directory keeps other users out; the containers' users have to read the files in it.
mkdir -m 700 secrets
postgres=$(random)
printf '%s' "$postgres" >secrets/postgres_password
printf 'postgres://claimgate:%s@postgres/claimgate' "$postgres" >secrets/database_url
random >secrets/admin_token
printf 'k1:%s' "$(random)" >secrets/edge_key
random >secrets/user_jwt_key
chmod 444 secrets/*
