#!/usr/bin/env bash
# Generates clients from openapi.json in Java and Go with OpenAPI Generator, and takes a claim through a running core
# with each (tests/e2e/openapi.rs). A part of `make soak`. The generated code is not edited.
#
# The Java client needs Jackson with its module for times, which is in the generator's jar, and
# javax.annotation.Generated, which is in tests/clients. The Go client needs no other modules.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/tools.sh
clients=$PWD/target/clients
rm -rf "$clients"
mkdir -p "$clients"

generate() { # LANGUAGE OPTION...
    local language=$1
    shift
    PYTHONPATH=$openapi_generator_dir python3 "$openapi_generator_dir/bin/openapi-generator-cli" generate \
        --input-spec openapi.json --generator-name "$language" --output "$clients/$language" "$@" >"$clients/$language.log" 2>&1 ||
        { cat "$clients/$language.log" >&2; return 1; }
}

generate java --library native --additional-properties=openApiNullable=false
jar=$openapi_generator_dir/openapi_generator_cli/openapi-generator.jar
find "$clients/java/src/main" tests/clients -name '*.java' >"$clients/sources"
javac -nowarn -classpath "$jar" -d "$clients/classes" @"$clients/sources"

# enumClassPrefix is needed because two enumerations share a value.
generate go --git-user-id claimgate --git-repo-id claimgate-go --additional-properties=packageName=claimgate,enumClassPrefix=true
mkdir "$clients/go/play"
cp tests/clients/play.go "$clients/go/play/"
(cd "$clients/go" && GOPROXY=off GOFLAGS=-mod=mod go build -o "$clients/play" ./play)

CLAIMGATE_CLIENTS=$clients CLAIMGATE_CLIENTS_JAR=$jar \
    cargo test -p claimgate-tests --test e2e generated_clients -- --nocapture
