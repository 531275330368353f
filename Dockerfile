# The images of claimgate, built from this checkout, for x86-64 and arm64. docs/packages.md explains how to run them.
#
#   docker build --target core --tag claimgate .          core with its own Redis, and the command line
#   docker build --target edge --tag claimgate-edge .     the edge: the Worker and workerd in one program
#   docker build --target demo --tag claimgate-demo .     both in one container with a demo campaign, only for a first look
#
# Build arguments replace the base images. Those of Rust and Debian must be the same Debian release, 12 or later.
ARG RUST_IMAGE=rust:1-bookworm
ARG NODE_IMAGE=node:22-bookworm-slim
ARG DEBIAN_IMAGE=debian:bookworm-slim
# An SBOM also lists the crates and npm packages, which are in the context's lock files.
ARG BUILDKIT_SBOM_SCAN_CONTEXT=true

FROM ${NODE_IMAGE} AS node

# --- core -------------------------------------------------------------------------------------------------------

FROM ${RUST_IMAGE} AS core-build
# thin builds faster; a claim then costs core more CPU time.
ARG CARGO_PROFILE_RELEASE_LTO=fat
ARG TARGETARCH
WORKDIR /claimgate
COPY . .
# The caches keep compiled dependencies for the next build of this machine.
RUN --mount=type=cache,id=claimgate-cargo,target=/usr/local/cargo/registry \
    --mount=type=cache,id=claimgate-core-$TARGETARCH,target=/claimgate/target \
    cargo build --locked --release --bin claimgate \
    && mkdir /out \
    && strip -o /out/claimgate target/release/claimgate

FROM ${DEBIAN_IMAGE} AS runtime
# workerd does not start without certificates, and core needs them for TLS to its stores. The user has the same number in
# every image, so it owns a volume's files after an upgrade. The number lets Kubernetes verify that the user is not root.
RUN apt-get update \
    && apt-get install --yes --no-install-recommends ca-certificates \
    && rm -rf /var/lib/apt/lists/* /var/log/* /var/cache/* \
    && useradd --uid 10001 --user-group --no-create-home --home-dir /var/lib/claimgate --shell /usr/sbin/nologin claimgate
COPY packaging/debian/copyright LICENSE-APACHE LICENSE-MIT /usr/share/doc/claimgate/
COPY packaging/image/health /usr/local/bin/

FROM runtime AS core
RUN apt-get update \
    && apt-get install --yes --no-install-recommends redis-server \
    && rm -rf /var/lib/apt/lists/* /var/log/* /var/cache/* \
    && install -d -m 700 -o claimgate -g claimgate /var/lib/claimgate
COPY scripts/demo-campaign.sh /usr/local/bin/demo-campaign
COPY --from=core-build /out/claimgate /usr/bin/
# The commit, as `scripts/release.sh` passes it.
ARG REVISION=
LABEL org.opencontainers.image.title="claimgate" \
    org.opencontainers.image.description="claimgate's core: gives away a limited stock, exactly up to its limits" \
    org.opencontainers.image.licenses="MIT OR Apache-2.0" \
    org.opencontainers.image.revision=$REVISION
ENV CLAIMGATE_DATA_DIR=/var/lib/claimgate CLAIMGATE_LISTEN=0.0.0.0:8080 CLAIMGATE_ADMIN_LISTEN=0.0.0.0:8081
USER 10001:10001
VOLUME /var/lib/claimgate
EXPOSE 8080 8081
HEALTHCHECK --interval=10s --timeout=3s --start-period=30s --retries=3 CMD ["health", "8080", "/livez"]
ENTRYPOINT ["/usr/bin/claimgate"]
CMD ["serve"]

# --- edge -------------------------------------------------------------------------------------------------------

FROM ${RUST_IMAGE} AS edge-build
ARG TARGETARCH
COPY --from=node /usr/local/ /usr/local/
ENV CLAIMGATE_TOOLS=/opt/claimgate-tools
WORKDIR /claimgate
# Only these files decide which tools are needed; the layer stays in the cache until one of them changes.
COPY Cargo.toml package.json package-lock.json ./
COPY scripts/setup.sh scripts/tools.sh scripts/
RUN --mount=type=cache,id=claimgate-cargo,target=/usr/local/cargo/registry \
    scripts/setup.sh --up
COPY . .
RUN --mount=type=cache,id=claimgate-cargo,target=/usr/local/cargo/registry \
    --mount=type=cache,id=claimgate-edge-$TARGETARCH,target=/claimgate/target \
    scripts/build-worker.sh \
    && mkdir /out \
    && node_modules/.bin/workerd compile edge/workerd.capnp >/out/edge \
    && chmod 755 /out/edge

FROM runtime AS edge
COPY packaging/claimgate-edge /usr/bin/
COPY --from=edge-build /out/edge /usr/lib/claimgate/
ARG REVISION=
LABEL org.opencontainers.image.title="claimgate-edge" \
    org.opencontainers.image.description="claimgate's edge: rejects requests that cannot succeed and signs the rest for core" \
    org.opencontainers.image.licenses="MIT OR Apache-2.0" \
    org.opencontainers.image.revision=$REVISION
ENV CLAIMGATE_EDGE_LISTEN=0.0.0.0:8787
USER 10001:10001
EXPOSE 8787
HEALTHCHECK --interval=10s --timeout=3s --start-period=30s --retries=3 CMD ["health", "8787", "/readyz"]
ENTRYPOINT ["/usr/bin/claimgate-edge"]

# --- both, for a first look ---------------------------------------------------------------------------------------

FROM core AS demo
COPY --from=edge /usr/bin/claimgate-edge /usr/bin/
COPY --from=edge /usr/lib/claimgate/ /usr/lib/claimgate/
COPY packaging/image/demo /usr/local/bin/
LABEL org.opencontainers.image.title="claimgate-demo" \
    org.opencontainers.image.description="core, Redis and the edge of claimgate with a demo campaign, only for a first look"
ENV CLAIMGATE_EDGE_LISTEN=0.0.0.0:8787 CLAIMGATE_PAGE_URL=http://127.0.0.1:8787
EXPOSE 8787
HEALTHCHECK --interval=10s --timeout=3s --start-period=30s --retries=3 CMD ["health", "8787", "/readyz"]
ENTRYPOINT ["/usr/local/bin/demo"]
CMD []
